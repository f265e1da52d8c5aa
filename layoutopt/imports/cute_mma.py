"""CuTe's TiledMMA as it is printed: which element of an operand each thread holds.

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

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.imports.cute import MAX_VALUES, modes

# Which of M, N and K the two dimensions of an operand are.
OPERANDS: Final = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}
_INTEGERS: Final = r"\(\s*_?(\d{1,6})\s*,\s*_?(\d{1,6})\s*,\s*_?(\d{1,6})\s*\)"
_SHAPE: Final = re.compile(r"Shape[_ ]MNK:\s*" + _INTEGERS)
_THREADS: Final = re.compile(r"Thr\s?Layout[_ ]?VMNK:\s*(\S[^\n]*)")
_PERMUTATION: Final = re.compile(r"Permutation[_ ]?MNK:\s*(\S[^\n]*)")
_ORDER: Final = re.compile(r"\(\s*(?:_|_?\d+)\s*,\s*(?:_|_?\d+)\s*,\s*(?:_|_?\d+)\s*\)")


def is_mma(text: str) -> bool:
    """Whether the text is a printed TiledMMA."""
    return _THREADS.search(text) is not None


def thread_values(text: str, tile: Sequence[int], operand: str) -> IntArray:
    """The element of each thread and value.

    Args:
        text: what `print` says of a TiledMMA, in CuTe of C++ or of Python.
        tile: extents of the operand: M and K of A, N and K of B, M and N of C.
        operand: `A`, `B` or `C`.

    Returns:
        int64, shape (threads, values, 2).

    Raises:
        ProblemFileError: a line is missing, or the tile holds no whole number of repetitions.
    """
    atom, threads = _atom(text, operand), _modes(text, _THREADS, "ThrLayoutVMNK")
    if len(threads) != 4:
        raise ProblemFileError("", f"ThrLayoutVMNK has {len(threads)} modes, not 4")
    order = _PERMUTATION.search(text)
    if order is not None and _ORDER.fullmatch(order[1].strip()) is None:
        shown = order[1].strip()[:60]
        raise ProblemFileError("", f"PermutationMNK {shown!r} moves elements; only extents are read")
    shape = _SHAPE.search(text)
    if shape is None:
        raise ProblemFileError("", "a printed TiledMMA has a line Shape_MNK")
    dims = OPERANDS[operand]
    extent = [int(shape[1 + d]) for d in dims]
    across = [len(threads[1 + d]) for d in dims]
    repeat = [whole // (size * count) for whole, size, count in zip(tile, extent, across, strict=True)]
    if len(tile) != 2 or any(
        whole % (size * count) or not whole for whole, size, count in zip(tile, extent, across, strict=True)
    ):
        unit = "x".join(str(size * count) for size, count in zip(extent, across, strict=True))
        raise ProblemFileError("--tile", f"operand {operand} repeats every {unit} elements")
    within = np.stack(np.unravel_index(atom, tuple(extent), order="F"), axis=-1)
    numbers = [np.arange(len(mode)) for mode in threads]
    thread: IntArray = np.zeros(1, np.int64)
    for d, mode in enumerate(threads):
        thread = thread + mode.reshape([-1 if d == e else 1 for e in range(4)])
    total = int(thread.max()) + 1
    if total * within.shape[1] * repeat[0] * repeat[1] > MAX_VALUES:
        raise ProblemFileError("--tile", f"more than {MAX_VALUES} values")
    if len(np.unique(thread)) != total or len(within) != len(threads[0]):
        raise ProblemFileError("", "ThrLayoutVMNK does not count the threads of the atom")
    found = np.zeros((total, repeat[1], repeat[0], within.shape[1], 2), np.int64)
    for v, m, n, k in itertools.product(*numbers):
        place = [(m, n, k)[d] for d in dims]
        for r1, r0 in itertools.product(range(repeat[1]), range(repeat[0])):
            start = [e * (p + a * r) for e, p, a, r in zip(extent, place, across, (r0, r1), strict=True)]
            found[thread[v, m, n, k], r1, r0] = within[v] + np.array(start)
    return found.reshape(total, -1, 2)


def _atom(text: str, operand: str) -> IntArray:
    """Of one instruction, the place that each thread's value has, column-major."""
    line = re.compile(rf"(?:Layout{operand}_TV|TV Layout {operand}):\s*(\S[^\n]*)")
    parts = _modes(text, line, f"Layout{operand}_TV")
    if len(parts) != 2:
        raise ProblemFileError("", f"Layout{operand}_TV has {len(parts)} modes, not threads and values")
    return parts[0][:, None] + parts[1][None, :]


def _modes(text: str, line: re.Pattern[str], name: str) -> list[IntArray]:
    found = line.search(text)
    if found is None:
        raise ProblemFileError("", f"a printed TiledMMA has a line {name}")
    return modes(found[1].strip())
