"""How Triton's compiler moves a tensor between registers, or global memory, and shared memory.

The widest vectors that registers and layout keep together; ldmatrix and stmatrix where registers hold 8 rows
of 16 bytes as these move them, wherever the rows lie (as Triton 3.9 compiles elements of 1, 2 and 4 bytes);
on AMD ds_read_b64_tr_b16 and b8 for operands of mfma that lie across the rows, and copies past the registers
whose lanes write side by side, each fetching what lies at its place.
Rules: Triton, third_party/nvidia/lib/TritonNVIDIAGPUToLLVM and third_party/amd/lib/TritonAMDGPUToLLVM.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from layoutopt.accesses.ownership import ROW_BYTES, WIDTHS, WORD_BYTES, Ownership, index_fields
from layoutopt.accesses.view import Step
from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import device
from layoutopt.hardware.operations import Operation, spelling
from layoutopt.imports.triton_text import PrintedLayout

TR_BYTES: Final = 8  # that a lane addresses and receives of ds_read_b64_tr_b16 and b8
_DIRECT_WIDTHS: Final = (16, 4)
# An operation as problem files name it, and the places in the tile that each thread addresses in turn.
_Found = tuple[str, IntArray]


class Launch(Struct, frozen=True):
    """What a module says: the target's name, the warps of a block, the lanes of a warp."""

    target: str
    warps: int
    lanes: int

    def has(self, kind: str, width_bytes: int) -> bool:
        """Whether the target has such an instruction."""
        return (kind, width_bytes) in device(self.target).rules


class Moved(Ownership, frozen=True):
    """A tensor on its way."""

    layout: PrintedLayout  # of its registers
    table: IntArray  # of the tile, int64 offsets in elements
    size: int  # bytes of an element

    def vectors(self, width: int) -> IntArray | None:
        """Where vectors of so many bytes start; None where registers or layout do not keep them together."""
        count = width // self.size
        starts = self.last_dim_starts(count) if count else None
        return None if starts is None or not self.is_whole(starts, count) else starts

    def is_whole(self, starts: IntArray, count: int) -> bool:
        """Whether `count` elements from each start on lie together, at a multiple of their length."""
        if (starts % self.table.shape[-1] + count > self.table.shape[-1]).any():
            return False
        run = self.table.reshape(-1)[starts[..., None] + np.arange(count)]
        return not (run[..., 0] % count).any() and bool((run == run[..., :1] + np.arange(count)).all())

    def exchanged(self, operation: Operation, word: Sequence[Step], launch: Launch) -> IntArray | None:
        """What lanes address by an instruction that hands elements on to others; None where it does not."""
        count = operation.width_bytes // self.size
        starts = self.matrix_row_starts(
            operation, 8 * self.size, launch.lanes, self.last_dim_steps(count), word
        )
        return None if starts is None or not self.is_whole(starts, count) else starts


def access(name: str, kind: str, moved: Moved, launch: Launch) -> dict[str, Any]:
    """The access by which a tensor is loaded, stored or copied (`cp.async`).

    Raises:
        ProblemFileError: its lanes are none that the target copies past the registers.
    """
    found: _Found | None = None
    if kind == "cp.async" and device(launch.target).has("load.lds"):
        found = _direct(moved, launch)
    elif kind == "load":
        found = _matrices(moved, launch, "ldmatrix") or _transposing(moved, launch)
    elif kind == "store":
        found = _matrices(moved, launch, "stmatrix")
    if found is not None:
        return {"name": name, "op": found[0], **index_fields(found[1], moved.shape, launch.lanes)}
    served = (w for w in WIDTHS if w >= moved.size and (kind == "cp.async" or launch.has(kind, w)))
    width, starts = next(
        ((w, starts) for w in served if (starts := moved.vectors(w)) is not None), (moved.size, moved.element)
    )
    return {"name": name, "op": kind, "bytes": width, **index_fields(starts, moved.shape, launch.lanes)}


def _direct(moved: Moved, launch: Launch) -> _Found:
    """Copies past the registers: of what a wave writes, lane l fetches what lies at l times the width."""
    for width in (w for w in _DIRECT_WIDTHS if launch.has("load.lds", w)):
        if (starts := moved.vectors(width)) is not None:
            waves = starts.reshape(launch.warps, launch.lanes, -1)
            places = np.argsort(moved.table.reshape(-1)[waves], axis=1, kind="stable")
            fetched = np.take_along_axis(waves, places, axis=1).reshape(starts.shape)
            return spelling("load.lds", width) or "", fetched
    raise ProblemFileError("", f"{launch.target} copies at least 4 bytes a lane past the registers")


def _transposing(moved: Moved, launch: Launch) -> _Found | None:
    """Loads by ds_read_b64_tr_b16 or b8, where the registers of an operand lie across the rows."""
    of_mfma = moved.layout.kind == "dot_op" and moved.layout.layout("parent").kind == "amd_mfma"
    wide = moved.vectors(2 * moved.size) is not None
    if not of_mfma or moved.size not in (1, 2) or not launch.has("load.tr", TR_BYTES) or wide:
        return None
    starts = moved.exchanged(Operation("load.tr", TR_BYTES), (), launch)
    return None if starts is None else (f"ds_read_b64_tr_b{8 * moved.size}", starts)


def _matrices(moved: Moved, launch: Launch, kind: str) -> _Found | None:
    """Loads or stores of matrices, where registers hold 8 rows of 16 bytes as they move them, each whole."""
    if not launch.has(kind, ROW_BYTES) or moved.size > WORD_BYTES or moved.table.ndim < 2:
        return None
    across = Step(moved.table.ndim - 2, 1)  # dimensions before the last two number matrices
    for transposed in (False, True)[: 1 + (moved.size == 2)]:
        word = [across] if transposed else moved.last_dim_steps(WORD_BYTES // moved.size)
        if all(map(moved.is_closed, word)):
            words = moved.element.shape[1] >> len(word)
            together = next(n for n in (4, 2, 1) if words % n == 0)
            operation = Operation(kind, ROW_BYTES, together, transposed)
            if (starts := moved.exchanged(operation, word, launch)) is not None:
                return operation.text, starts
    return None
