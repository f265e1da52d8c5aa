"""CuTe's TiledCopy and TiledMMA as they are printed: which element each thread and value is.

    TiledCopy
      Tiler_MN:       (_32,_16)
      TiledLayout_TV: ((_4,_8,_2,_2),((_2,_2,_2),(_1,_1))):((_64,_1,_16,_0),((_32,_8,_256),(_0,_0)))
    Copy_Atom
      ThrID:        _32:_1
      ValLayoutSrc: (_32,_8):(_8,_1)
      ValLayoutDst: (_32,(_2,_4)):(_2,(_1,_64))
      ValLayoutRef: (_32,(_2,_4)):(_2,(_1,_64))
      ValueType:    16b

The tiler is repeated over the tile. TiledLayout_TV is of the atom's reference layout; where the side of
shared memory differs, the atom moves matrices, and lanes address rows (CUTLASS, include/cute/atom:
tidfrg_S and tidfrg_D of copy_atom.hpp; copy_traits_sm75.hpp, copy_traits_sm90.hpp).

    TiledMMA
      ThrLayoutVMNK:  (_32,_2,_2,_1):(_1,_32,_64,_0)
      PermutationMNK: (_,_,_)
    MMA_Atom
      Shape_MNK:  (_16,_8,_16)
      LayoutA_TV: ((_4,_8),(_2,_2,_2)):((_32,_1),(_16,_8,_128))
      ...

Thread ThrLayoutVMNK(v, m, n, k) holds what thread v of the atom does, of the atoms that lie at m of the rows
(of A and C), n of the columns (of B and C), k of what is summed, and again at every whole repetition over the
tile (CUTLASS, include/cute/atom/mma_atom.hpp: thrfrg_A, thrfrg_B, thrfrg_C).
"""

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.imports.cute import MAX_VALUES, modes

_EXTENTS: Final = re.compile(r"\(?\s*_?\d{1,9}\s*(?:,\s*_?\d{1,9}\s*)*\)?\s*")
_LANES: Final = 32
_MATRIX_ROWS: Final = 8
_MOST_ATOM: Final = 1 << 12  # values of one instruction
# Which of M, N and K the two dimensions of an operand are.
_OPERANDS: Final = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}
_INTEGERS: Final = r"\(\s*_?(\d{1,6})\s*,\s*_?(\d{1,6})\s*,\s*_?(\d{1,6})\s*\)"
_SHAPE: Final = re.compile(r"Shape[_ ]MNK:\s*" + _INTEGERS)
_THREADS: Final = r"Thr\s?Layout[_ ]?VMNK"
_PERMUTATION: Final = re.compile(r"Permutation[_ ]?MNK:\s*(\S[^\n]*)")
_ORDER: Final = re.compile(r"\(\s*(?:_|_?\d+)\s*,\s*(?:_|_?\d+)\s*,\s*(?:_|_?\d+)\s*\)")


def is_copy(text: str) -> bool:
    """Whether the text is a printed TiledCopy."""
    return "TiledLayout_TV:" in text


def is_mma(text: str) -> bool:
    """Whether the text is a printed TiledMMA."""
    return re.search(rf"{_THREADS}:", text) is not None


def copied(text: str, tile: Sequence[int], op: str) -> tuple[IntArray, str]:
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
    printed = _line(text, "Tiler_MN", "Tiler_MN")
    tiler = tuple(map(int, re.findall(r"\d+", printed)))
    if _EXTENTS.fullmatch(printed) is None or not all(tiler):
        wrong = f"Tiler_MN {printed[:60]!r} is read where it is extents, such as (_16,_64)"
        raise ProblemFileError("", wrong)
    repeats = _repeats(tiler, tile, "the TiledCopy", " (Tiler_MN)")
    place = _grid(text, "TiledLayout_TV", MAX_VALUES // math.prod(repeats))
    if "ValLayoutRef:" in text:
        source, destination, reference = (
            _grid(text, f"ValLayout{name}", _MOST_ATOM) for name in ("Src", "Dst", "Ref")
        )
        shared, other = (source, destination) if op == "load" else (destination, source)
        if not np.array_equal(other, reference):
            verb, wanted = ("stores", "store") if op == "load" else ("loads", "load")
            raise ProblemFileError("--op", f"the Copy_Atom {verb} matrices: {wanted} is expected, not {op}")
        if not np.array_equal(shared, reference):
            op = _matrices(reference, shared, op)
            place = _addressed(place, reference, shared)
    if place.max() >= math.prod(tiler):
        raise ProblemFileError("", f"TiledLayout_TV reaches element {int(place.max())} of its tiler")
    within = np.stack(np.unravel_index(place, tiler, order="F"), axis=-1)
    return _repeated(within, tiler, itertools.product(*map(range, repeats))), op


def multiplied(text: str, tile: Sequence[int], operand: str) -> IntArray:
    """The element of an operand that each thread and value is.

    Args:
        text: what `print` says of a TiledMMA, in CuTe of C++ or of Python.
        tile: extents of the operand: M and K of A, N and K of B, M and N of C.
        operand: `A`, `B` or `C`.

    Returns:
        int64, shape (threads, values, 2).

    Raises:
        ProblemFileError: a line is missing, or the tile holds no whole number of repetitions.
    """
    atom = _grid(text, rf"(?:Layout{operand}_TV|TV Layout {operand})", MAX_VALUES, f"Layout{operand}_TV")
    threads = modes(_line(text, _THREADS, "ThrLayoutVMNK"))
    if len(threads) != 4:
        raise ProblemFileError("", f"ThrLayoutVMNK has {len(threads)} modes, not 4")
    order = _PERMUTATION.search(text)
    if order is not None and _ORDER.fullmatch(order[1].strip()) is None:
        shown = order[1].strip()[:60]
        raise ProblemFileError("", f"PermutationMNK {shown!r} moves elements; only extents are read")
    shape = _SHAPE.search(text)
    if shape is None:
        raise ProblemFileError("", "a printed TiledMMA has a line Shape_MNK")
    dims = _OPERANDS[operand]
    extent = [int(shape[1 + d]) for d in dims]
    unit = [size * len(threads[1 + d]) for size, d in zip(extent, dims, strict=True)]
    down, across = _repeats(unit, tile, f"operand {operand}")
    thread: IntArray = np.zeros(1, np.int64)
    for d, mode in enumerate(threads):
        thread = thread + mode.reshape([-1 if d == e else 1 for e in range(4)])
    total = int(thread.max()) + 1
    if total * atom.shape[1] * down * across > MAX_VALUES:
        raise ProblemFileError("--tile", f"more than {MAX_VALUES} values")
    if len(np.unique(thread)) != total or len(atom) != len(threads[0]):
        raise ProblemFileError("", "ThrLayoutVMNK does not count the threads of the atom")
    if atom.max() >= math.prod(extent):
        raise ProblemFileError("", f"Layout{operand}_TV reaches element {int(atom.max())} of its atom")
    held = np.stack(np.unravel_index(atom, tuple(extent), order="F"), axis=-1)
    within = np.zeros((total, *held.shape[1:]), np.int64)
    for v, *mnk in itertools.product(*(range(len(mode)) for mode in threads)):
        within[thread[v, *mnk]] = held[v] + np.array([e * mnk[d] for e, d in zip(extent, dims, strict=True)])
    starts = ((r0, r1) for r1 in range(across) for r0 in range(down))
    return _repeated(within, unit, starts)


def _repeats(unit: Sequence[int], tile: Sequence[int], what: str, source: str = "") -> list[int]:
    """How often what covers so many elements of each dimension is repeated over the tile."""
    if len(unit) != len(tile) or any(n % u or not n for n, u in zip(tile, unit, strict=True)):
        shown = "x".join(map(str, unit))
        raise ProblemFileError("--tile", f"{what} repeats every {shown} elements{source}")
    return [n // u for n, u in zip(tile, unit, strict=True)]


def _repeated(within: IntArray, unit: Sequence[int], starts: Iterable[tuple[int, ...]]) -> IntArray:
    """The coordinates `within` a unit, once for each start, in units."""
    every = [within + np.array(start) * np.array(unit) for start in starts]
    return np.concatenate(every, axis=1).astype(np.int64)


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


def _grid(text: str, pattern: str, most: int, name: str = "") -> IntArray:
    """The number of each thread and value of a layout that stands behind a name."""
    parts = modes(_line(text, pattern, name or pattern))
    if len(parts) != 2:
        raise ProblemFileError("", f"{name or pattern} has {len(parts)} modes, not threads and values")
    if len(parts[0]) * len(parts[1]) > most:
        raise ProblemFileError("", f"{name or pattern} has more than {most:,} values")
    return parts[0][:, None] + parts[1][None, :]


def _line(text: str, pattern: str, name: str) -> str:
    found = re.search(rf"{pattern}:\s*(\S[^\n]*)", text)
    if found is None:
        raise ProblemFileError("", f"what CuTe prints has a line {name}")
    return found[1].strip()
