"""CuTe's TiledCopy as it is printed: which element each thread and value moves, on the side of shared memory.

    TiledCopy
      Tiler_MN:       (_32,_16)
      TiledLayout_TV: ((_4,_8,_2,_2),((_2,_2,_2),(_1,_1))):((_64,_1,_16,_0),((_32,_8,_256),(_0,_0)))
    Copy_Atom
      ThrID:        _32:_1
      ValLayoutSrc: (_32,_8):(_8,_1)
      ValLayoutDst: (_32,(_2,_4)):(_2,(_1,_64))
      ValLayoutRef: (_32,(_2,_4)):(_2,(_1,_64))
      ValueType:    16b

The tiler is repeated over the tile. TiledLayout_TV is of the atom's reference layout; where the other side
differs, the atom moves matrices, and lanes address rows (CUTLASS, include/cute/atom/copy_atom.hpp: tidfrg_S
and tidfrg_D; copy_traits_sm75.hpp, copy_traits_sm90.hpp).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.imports.cute import MAX_VALUES, modes

_TILER: Final = re.compile(r"Tiler_MN:\s*(\S[^\n]*)")
_EXTENTS: Final = re.compile(r"\(?\s*_?\d{1,9}\s*(?:,\s*_?\d{1,9}\s*)*\)?\s*")
_LANES: Final = 32
_MATRIX_ROWS: Final = 8
_MOST_ATOM: Final = 1 << 12  # values of one instruction


def is_copy(text: str) -> bool:
    """Whether the text is a printed TiledCopy."""
    return "TiledLayout_TV:" in text


def thread_values(text: str, tile: Sequence[int], op: str) -> tuple[IntArray, str]:
    """The element of each thread and value in shared memory, and the operation that moves them.

    Args:
        text: what `print` says of a TiledCopy.
        tile: extents of the tile; whole multiples of the tiler's.
        op: `load` (shared memory is the source), `store` or `cp.async` (the destination).

    Returns:
        int64, shape (threads, values, dimensions); and `op`, or an ldmatrix or stmatrix, of which each lane's
        values are rows that it addresses.

    Raises:
        ProblemFileError: a line is missing or not read here, or the tile is no multiple of the tiler.
    """
    tiler = _tiler(text)
    if len(tiler) != len(tile) or any(whole % part for whole, part in zip(tile, tiler, strict=False)):
        raise ProblemFileError(
            "--tile", f"the TiledCopy repeats every {'x'.join(map(str, tiler))} elements (Tiler_MN)"
        )
    threads, values = _pair(text, "TiledLayout_TV")
    repeats = [whole // part for whole, part in zip(tile, tiler, strict=True)]
    if len(threads) * len(values) * math.prod(repeats) > MAX_VALUES:
        raise ProblemFileError("--tile", f"more than {MAX_VALUES} values")
    place = threads[:, None] + values[None, :]
    if "ValLayoutRef:" in text:
        source, destination, reference = (_grid(text, f"ValLayout{name}") for name in ("Src", "Dst", "Ref"))
        shared, other = (source, destination) if op == "load" else (destination, source)
        if not _same(other, reference):
            verb, wanted = ("stores", "store") if op == "load" else ("loads", "load")
            raise ProblemFileError("--op", f"the Copy_Atom {verb} matrices: {wanted} is expected, not {op}")
        if not _same(shared, reference):
            op = _matrices(reference, shared, op)
            place = _addressed(place, reference, shared)
    if place.max() >= math.prod(tiler):
        raise ProblemFileError("", f"TiledLayout_TV reaches element {int(place.max())} of its tiler")
    within = np.stack(np.unravel_index(place, tiler, order="F"), axis=-1)
    starts = [np.array(at) * tiler for at in itertools.product(*map(range, repeats))]
    return np.concatenate([within + start for start in starts], axis=1).astype(np.int64), op


def _addressed(place: IntArray, reference: IntArray, shared: IntArray) -> IntArray:
    """The places by the values of the shared side; `reference` and `shared` number an atom's bits."""
    lanes, held = reference.shape
    holder = {int(bit): at for at, bit in np.ndenumerate(reference)}
    if len(place) % lanes or place.shape[1] % held or any(int(bit) not in holder for bit in shared.flat):
        raise ProblemFileError("", "the layouts of Copy_Atom are not those of TiledLayout_TV")
    lane, value = (
        np.array([holder[int(bit)][k] for bit in shared.flat]).reshape(shared.shape) for k in (0, 1)
    )
    groups = place.reshape(-1, lanes, place.shape[1] // held, held)
    return groups[:, lane, :, value].transpose(2, 0, 3, 1).reshape(len(place), -1)


def _matrices(reference: IntArray, shared: IntArray, op: str) -> str:
    """The matrix operation in which lanes address rows as `shared` and hold elements as `reference`."""
    rows = len(np.unique(shared[:, 0]))
    if op == "cp.async" or len(reference) != _LANES or rows not in (8, 16, 32):
        raise ProblemFileError("", "a Copy_Atom whose two sides differ is read where it moves 8x8 matrices")
    across = "" if reference[0, 1] == reference[0, 0] + 1 else ".trans"
    return f"{'ldmatrix' if op == 'load' else 'stmatrix'}.x{rows // _MATRIX_ROWS}{across}"


def _same(one: IntArray, other: IntArray) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _tiler(text: str) -> tuple[int, ...]:
    found = _TILER.search(text)
    if found is None or _EXTENTS.fullmatch(found[1]) is None:
        shown = found[1].strip()[:60] if found is not None else ""
        raise ProblemFileError("", f"Tiler_MN {shown!r} is read where it is extents, such as (_16,_64)")
    extents = tuple(int(n) for n in re.findall(r"\d+", found[1]))
    if not all(extents):
        raise ProblemFileError("", "Tiler_MN has an extent of 0")
    return extents


def _grid(text: str, name: str) -> IntArray:
    threads, values = _pair(text, name)
    if len(threads) * len(values) > _MOST_ATOM:
        raise ProblemFileError("", f"{name} has more than {_MOST_ATOM:,} values")
    return threads[:, None] + values[None, :]


def _pair(text: str, name: str) -> list[IntArray]:
    found = re.search(rf"{name}:\s*(\S[^\n]*)", text)
    parts = modes(found[1].strip()) if found is not None else []
    if len(parts) != 2:
        raise ProblemFileError("", f"{name} has {len(parts)} modes, not threads and values")
    return parts
