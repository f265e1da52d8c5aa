"""The inner loop of the local search for tables (`layoutopt.model.annealing`), compiled by numba.

The only module that imports numba, itself imported when a table is searched: what it compiles is kept beside
it (or in the user's cache), so that only the first search of an installation waits for the compiler.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.core import caching

Function = TypeVar("Function", bound=Callable[..., object])
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


def part(function: Function) -> Function:
    """Compiled as a part of the function that calls it."""
    made: Function = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
    return made


def whole(function: Function) -> Function:
    """Compiled for what it is called with; kept in a cache where one can be written."""
    made: Function = numba.njit(no_cfunc_wrapper=True)(function)
    with contextlib.suppress(RuntimeError):  # no folder for the cache
        made._cache = _Cache(function)  # type: ignore[attr-defined]
    return made


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    """Numba's, whose failures cost the time of the compiler, not the answer: damaged files, a full disk."""

    def load_overload(self, signature: object, target: object) -> object:
        """What is kept for a signature; None where that cannot be read, and then it is written anew."""
        try:
            return super().load_overload(signature, target)
        except Exception:  # whatever a damaged file does to pickle and LLVM
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: object, compiled: object) -> None:
        """Keep what was compiled, where there is room."""
        with contextlib.suppress(OSError):
            super().save_overload(signature, compiled)


# Looking at all banks of a phase, in units looked at.
_PHASE = 4


class Board(NamedTuple):
    """What does not change: units of chunks, by chunk, and what they count.

    first: of the units of each chunk, shape (chunks + 1,); phase, times, kind: of each unit.
    bank: of a unit of each kind by the position of its chunk, shape (kinds, positions).
    positions: of each chunk; wide: columns that it covers.
    weight, least: of each phase; square: what a load beyond `least` counts by its square.
    room: chunks that every column holds without cost.
    """

    first: Ints
    phase: Ints
    times: Ints
    kind: Ints
    bank: Ints
    positions: Ints
    wide: Ints
    weight: Ints
    least: Ints
    room: int


class Placed(NamedTuple):
    """What changes.

    position: of each chunk; load: of each bank in each phase; worst: of each phase; height: of each column.
    hard: phases in which no two units meet, nor may; owner: the chunk in each bank of them, -1 for none.
    totals: excess, squares beyond the rooms of the columns, the least of both so far, units looked at.
    best: the positions of the least. random: state of the generator, not 0.
    """

    position: Ints
    load: Ints
    worst: Ints
    height: Ints
    hard: npt.NDArray[np.bool_]
    owner: Ints
    totals: npt.NDArray[np.int64]
    best: Ints
    random: npt.NDArray[np.uint64]


class Moves(NamedTuple):
    """Room to note what a move touches: mark, stack, target of chunks; stamp, touched, before of phases."""

    mark: npt.NDArray[np.int64]
    stack: Ints
    target: Ints
    stamp: npt.NDArray[np.int64]
    touched: Ints
    before: Ints


@part
def _draw(random: npt.NDArray[np.uint64], below: int) -> int:
    """A number from 0 on, by xorshift."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return int(x >> np.uint64(33)) % below


@part
def _square(over: int) -> int:
    """Of what is beyond a limit."""
    return over * over if over > 0 else 0


@part
def _chain(board: Board, placed: Placed, moves: Moves, now: int) -> int:
    """A chunk to another position, and all that has to change places with it; the number of chunks."""
    c = _draw(placed.random, len(board.positions))
    a, stack = placed.position[c], moves.stack
    b = (a + 1 + _draw(placed.random, board.positions[c] - 1)) % board.positions[c]
    stack[0], moves.target[0], moves.mark[c] = c, b, now
    count, i = 1, 0
    while i < count:
        u, goes = stack[i], moves.target[i]
        i += 1
        for j in range(board.first[u], board.first[u + 1]):
            if placed.hard[board.phase[j]]:
                v = placed.owner[board.phase[j], board.bank[board.kind[j], goes]]
                if v >= 0 and moves.mark[v] != now:
                    moves.mark[v] = now
                    stack[count], moves.target[count] = v, a + b - goes
                    count += 1
    return count


@part
def _move(board: Board, placed: Placed, moves: Moves, count: int, now: int) -> tuple[int, int, int, int, int]:
    """Move what is in the stack; by how much squares, wavefronts and columns grow; phases, units touched."""
    squares, touched, columns, units = 0, 0, 0, 0
    for i in range(count):
        c, goes = moves.stack[i], moves.target[i]
        came, wide = placed.position[c], board.wide[c]
        placed.position[c], moves.target[i] = goes, came
        for k in range(wide):
            over = placed.height[came * wide + k] - board.room
            columns -= 2 * over - 1 if over > 0 else 0
            placed.height[came * wide + k] -= 1
            over = placed.height[goes * wide + k] - board.room
            columns += 2 * over + 1 if over >= 0 else 0
            placed.height[goes * wide + k] += 1
        units += board.first[c + 1] - board.first[c]
        for j in range(board.first[c], board.first[c + 1]):
            p, n = board.phase[j], board.times[j]
            if placed.hard[p]:
                continue
            if moves.stamp[p] != now:
                moves.stamp[p], moves.touched[touched] = now, p
                touched += 1
            x, y = board.bank[board.kind[j], came], board.bank[board.kind[j], goes]
            least, weight = board.least[p], board.weight[p]
            squares += weight * (_square(placed.load[p, x] - n - least) - _square(placed.load[p, x] - least))
            placed.load[p, x] -= n
            squares += weight * (_square(placed.load[p, y] + n - least) - _square(placed.load[p, y] - least))
            placed.load[p, y] += n
    wavefronts = 0
    for i in range(touched):
        p, worst = moves.touched[i], board.least[moves.touched[i]]
        for k in range(placed.load.shape[1]):
            if placed.load[p, k] > worst:
                worst = placed.load[p, k]
        moves.before[i] = placed.worst[p]
        wavefronts += board.weight[p] * (worst - placed.worst[p])
        placed.worst[p] = worst
    return squares, wavefronts, columns, touched, units


@part
def _take_back(board: Board, placed: Placed, moves: Moves, count: int, touched: int) -> None:
    """Undo the move just made; the targets are where the chunks came from."""
    for i in range(count):
        c, came = moves.stack[i], moves.target[i]
        goes, wide = placed.position[c], board.wide[c]
        placed.position[c] = came
        for k in range(wide):
            placed.height[came * wide + k] += 1
            placed.height[goes * wide + k] -= 1
        for j in range(board.first[c], board.first[c + 1]):
            p = board.phase[j]
            if not placed.hard[p]:
                placed.load[p, board.bank[board.kind[j], came]] += board.times[j]
                placed.load[p, board.bank[board.kind[j], goes]] -= board.times[j]
    for i in range(touched):
        placed.worst[moves.touched[i]] = moves.before[i]


@part
def _own(board: Board, placed: Placed, moves: Moves, count: int) -> None:
    """Note who is where in the hard phases after a move."""
    for i in range(count):
        c = moves.stack[i]
        for j in range(board.first[c], board.first[c + 1]):
            p, bank = board.phase[j], board.bank[board.kind[j], moves.target[i]]
            if placed.hard[p] and placed.owner[p, bank] == c:
                placed.owner[p, bank] = -1
    for i in range(count):
        c = moves.stack[i]
        for j in range(board.first[c], board.first[c + 1]):
            if placed.hard[board.phase[j]]:
                placed.owner[board.phase[j], board.bank[board.kind[j], placed.position[c]]] = c


@whole
def anneal(
    board: Board,
    placed: Placed,
    moves: Moves,
    warmth: Floats,
    counts: Floats,
    work: npt.NDArray[np.int64],
    enough: npt.NDArray[np.int64],
) -> bool:
    """Go on until so many units were looked at; whether `enough` was found.

    warmth: at the beginning and at the end of all the work. counts: a wavefront, a square, one of columns.
    work: units to stop at, and of all the work. enough: excess and squares of columns at which it ends.
    """
    totals, heat = placed.totals, warmth[0]
    while totals[4] < work[0]:
        totals[5] += 1
        now = totals[5]
        if now % 64 == 1:
            heat = warmth[0] * (warmth[1] / warmth[0]) ** (totals[4] / work[1])
        count = _chain(board, placed, moves, now)
        squares, wavefronts, columns, touched, units = _move(board, placed, moves, count, now)
        totals[4] += units + count + _PHASE * touched
        cost = counts[0] * wavefronts + counts[1] * squares + counts[2] * columns
        if cost > 0 and _draw(placed.random, 1 << 30) >= math.exp(-cost / heat) * (1 << 30):
            _take_back(board, placed, moves, count, touched)
            continue
        _own(board, placed, moves, count)
        totals[0] += wavefronts
        totals[1] += columns
        if totals[0] < totals[2] or (totals[0] == totals[2] and totals[1] < totals[3]):
            totals[2], totals[3] = totals[0], totals[1]
            for c in range(len(placed.best)):  # a slice takes a third of the compiler's time
                placed.best[c] = placed.position[c]
            if totals[2] <= enough[0] and totals[3] <= enough[1]:
                return True
    return False
