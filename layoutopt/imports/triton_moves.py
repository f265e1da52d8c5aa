"""How Triton's compiler moves a tensor between registers, or global memory, and shared memory.

The widest vectors that registers and layout keep together; ldmatrix, and stmatrix of 2-byte elements, where
registers hold matrices as these move them; on AMD ds_read_b64_tr_b16 and b8 for operands of mfma that lie
across the rows, and copies past the registers whose lanes write side by side, each fetching what lies at its
place.
Rules: Triton, third_party/nvidia/lib/TritonNVIDIAGPUToLLVM and third_party/amd/lib/TritonAMDGPUToLLVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from layoutopt.accesses.thread_values import access_of, index_of, starts_of
from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import device
from layoutopt.hardware.operations import spelling
from layoutopt.imports.triton_text import PrintedLayout

WIDTHS: Final = (16, 8, 4, 2, 1)
MATRIX: Final = 8  # rows of a matrix that ldmatrix moves
ROW_BYTES: Final = 16
TR_LANES: Final = 16  # lanes between which ds_read_b64_tr_b16 and b8 exchange elements
TR_BYTES: Final = 8  # that each of them addresses and receives
_DIRECT_WIDTHS: Final = (16, 12, 4)
# An operation, and the places in the tile that each thread addresses, one after another.
_Found = tuple[str, IntArray]


@dataclass(frozen=True)
class Launch:
    """What a module says: the target's name, the warps of a block, the lanes of a warp."""

    target: str
    warps: int
    lanes: int

    def has(self, kind: str, width_bytes: int) -> bool:
        """Whether the target has such an instruction."""
        return (kind, width_bytes) in device(self.target).rules


@dataclass(frozen=True)
class Moved:
    """A tensor on its way.

    Attributes:
        layout: of its registers.
        coordinates: in the tile, int64, shape (threads, registers, dimensions).
        table: of the tile, int64 offsets in elements.
        size: bytes of an element.
    """

    layout: PrintedLayout
    coordinates: IntArray
    table: IntArray
    size: int

    @property
    def flat(self) -> IntArray:
        """The element of each thread and register, row by row."""
        found: IntArray = np.ravel_multi_index(
            tuple(np.moveaxis(self.coordinates, -1, 0)), self.table.shape
        ).astype(np.int64)
        return found

    def whole(self, starts: IntArray, count: int) -> bool:
        """Whether `count` elements from each start on lie together, at a multiple of their length."""
        if (starts % self.table.shape[-1] + count > self.table.shape[-1]).any():
            return False
        run = self.table.reshape(-1)[starts[..., None] + np.arange(count)]
        return not (run[..., 0] % count).any() and bool((run == run[..., :1] + np.arange(count)).all())


def access(name: str, kind: str, moved: Moved, launch: Launch) -> dict[str, Any]:
    """The access by which a tensor is loaded, stored or copied (`cp.async`).

    Raises:
        ProblemFileError: no formula gives its elements.
    """
    shape, found = moved.table.shape, None
    direct = kind == "cp.async" and device(launch.target).has("load.lds")
    if direct:
        found = _direct(moved, launch)
    elif kind == "load":
        found = _matrices(moved, launch, "ldmatrix") or _transposing(moved, launch)
    elif kind == "store":
        found = _matrices(moved, launch, "stmatrix")
    if found is not None:
        op, starts = found
        index = index_of(starts, shape, launch.lanes)
        if index is not None:
            return {"name": name, "op": op, **index}
        if direct:
            raise ProblemFileError("", f"no formula gives the elements that lanes address by {op}")
    known = [w for w in WIDTHS if kind not in ("load", "store") or launch.has(kind, w)]
    width = _width(moved, known)
    return access_of(moved.coordinates, shape, moved.size, name, kind, width, lanes=launch.lanes)


def _width(moved: Moved, widths: Sequence[int] = WIDTHS) -> int:
    """Bytes that a thread moves at once: the most that registers and layout keep together.

    Args:
        moved: the tensor.
        widths: those whose rules are known; what is wider counts as several.
    """
    for width in (w for w in widths if w >= moved.size):
        starts = starts_of(moved.coordinates, moved.table.shape, width // moved.size)
        if starts is not None and moved.whole(starts, width // moved.size):
            return width
    return moved.size


def _direct(moved: Moved, launch: Launch) -> _Found:
    """Copies past the registers: of what a wave writes, lane l fetches what lies at l times the width."""
    widths = [w for w in _DIRECT_WIDTHS if launch.has("load.lds", w) and w <= _width(moved)]
    for width in widths:
        starts = starts_of(moved.coordinates, moved.table.shape, width // moved.size)
        if starts is not None:
            break
    else:
        raise ProblemFileError("", f"{launch.target} copies at least 4 bytes a lane past the registers")
    waves = starts.reshape(launch.warps, launch.lanes, -1)
    places = np.argsort(moved.table.reshape(-1)[waves], axis=1, kind="stable")
    return spelling("load.lds", width) or "", np.take_along_axis(waves, places, axis=1).reshape(starts.shape)


def _transposing(moved: Moved, launch: Launch) -> _Found | None:
    """Loads by ds_read_b64_tr_b16 or b8, where the registers of an operand lie across the rows.

    Of 16 lanes, each addresses 8 bytes in rows of 16 elements; lane l receives column l % 16.
    """
    of_mfma = moved.layout.kind == "dot_op" and moved.layout.layout("parent").kind == "amd_mfma"
    wide = _width(moved) > moved.size
    if not of_mfma or moved.size not in (1, 2) or not launch.has("load.tr", TR_BYTES) or wide:
        return None
    values = TR_BYTES // moved.size
    held = moved.flat.reshape(launch.warps, launch.lanes, -1)
    if held.shape[2] % values:
        return None
    lane, piece = np.arange(launch.lanes)[:, None], np.arange(held.shape[2] // values)
    across = TR_LANES // values
    holder = lane // TR_LANES * TR_LANES + lane % across * values
    register = piece * values + lane % TR_LANES // across
    starts = held[:, holder, register]
    along = np.stack([held[:, holder + e, register] for e in range(values)], axis=-1)
    if (along != starts[..., None] + np.arange(values)).any() or not moved.whole(starts, values):
        return None
    return f"ds_read_b64_tr_b{8 * moved.size}", starts.reshape(launch.warps * launch.lanes, -1)


def _matrices(moved: Moved, launch: Launch, op: str) -> _Found | None:
    """Loads or stores of matrices, where registers hold 8 rows of 16 bytes as they move them, each whole.

    Lane l holds 4 bytes of row l // 4 from byte 4 * (l % 4) on; of a transposed one, of 2-byte elements, what
    lies there across.
    """
    table, columns = moved.table, ROW_BYTES // moved.size
    if not launch.has(op, ROW_BYTES) or moved.size not in ((2,) if op == "stmatrix" else (1, 2, 4)):
        return None
    if table.ndim != 2:
        return None
    warps = moved.coordinates.reshape(launch.warps, launch.lanes, -1, 2)
    # (warps, registers, 2): of the matrix that a register holds in all lanes.
    extent = np.array([MATRIX, columns])
    corners = warps.min(axis=1) // extent * extent
    inside, lane = warps - corners[:, None], np.arange(launch.lanes)[:, None]
    held = 4 // moved.size

    def lie(row: int, column: int) -> bool:
        by_lane = (inside[..., row] == lane // 4) & (inside[..., column] // held == lane % 4)
        return bool(by_lane.all())

    across = moved.size == 2 and lie(1, 0)
    if not (lie(0, 1) or across) or (corners + extent > table.shape).any():
        return None
    rows = corners[:, :, None] + np.stack([np.arange(MATRIX), np.zeros(MATRIX, np.int64)], axis=-1)
    if not moved.whole(np.ravel_multi_index((rows[..., 0], rows[..., 1]), table.shape), columns):
        return None
    # Each block once: registers side by side hold elements of one row.
    _, first = np.unique(np.ravel_multi_index(tuple(corners[0].T), table.shape), return_index=True)
    blocks = rows[:, np.sort(first)]
    together = next(n for n in (4, 2, 1) if blocks.shape[1] % n == 0)
    lanes = blocks.reshape(launch.warps, -1, together * MATRIX, 2).transpose(1, 0, 2, 3)
    repeated = np.concatenate([lanes] * (launch.lanes // (together * MATRIX)), axis=2)
    by_thread = repeated.transpose(1, 2, 0, 3).reshape(launch.warps * launch.lanes, -1, 2)
    starts = np.ravel_multi_index(tuple(np.moveaxis(by_thread, -1, 0)), table.shape).astype(np.int64)
    return f"{op}.x{together}{'.trans' if across else ''}", starts
