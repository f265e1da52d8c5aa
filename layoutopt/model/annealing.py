"""Local search for a free assignment: simulated annealing over chains, compiled by numba.

A phase without a conflict is kept so: where a chunk goes to the bank of another of its phase, that one goes
to the bank which it leaves, and so on, until nothing meets that did not meet before (a Kempe chain of a
colouring). Only the phases that have conflicts decide whether it goes:

    phases {a b} {b c} without conflicts     a in 0, b in 1, c in 0     a to 1: b to 0, and so c to 1

A good formula keeps what it does well, and what it does badly is mended: most accesses of a kernel are served
by some formula, and the others are few. Where chunks are of several sizes, or phases cannot do without
conflicts, chunks move alone.

What it finds is a hint: the solver and the conflict engine judge it. The only module that imports numba,
itself imported when a table is searched: what it compiles is kept beside it (or in the user's cache), so that
only the first search of an installation waits for the compiler.
"""

import contextlib
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.core import caching

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current
from layoutopt.model.placement_model import PlacementModel

Function = TypeVar("Function", bound=Callable[..., object])
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

_SEED = 88172645463325252
_SLICE = 2_000_000  # units looked at between two looks at the clock: some hundredths of a second
_PHASE = 4  # looking at all banks of a phase, in units looked at
# A round goes once from warm to cold: so many looks at units at most (0.3 s). So many without a new best end
# the search.
_MOST_LOOKS, _PATIENCE = 20_000_000, 10
_EFFORT_A_LOOK = 1.5e-8


class _Manner(NamedTuple):
    """How moves are judged: what counts how much, how warm it is at first and at last, looks at each unit."""

    wavefront: float
    square: float
    column: float
    warmest: float
    coldest: float
    looks: int


# Squares show the way to no conflict at all; wavefronts, a maximum, what is least where some are needed.
_TO_NOTHING = _Manner(0, 1, 0.05, 0.3, 0.1, 2000)
_TO_LITTLE = _Manner(1, 0.3, 0.05, 0.3, 0.08, 2000)
_TO_EVEN = _Manner(1, 0.3, 1, 0.5, 0.1, 300)


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
        with contextlib.suppress(OSError):
            super().save_overload(signature, compiled)


class Board(NamedTuple):
    """What does not change: units of chunks, by chunk, and what they count.

    first: of the units of each chunk, shape (chunks + 1,); phase, times, kind: of each unit.
    bank: of a unit of each kind by the position of its chunk, shape (kinds, positions).
    positions: of each chunk; wide: columns that it covers.
    weight, least: of each phase; square: what a load beyond `least` counts by its square.
    room: chunks that every column holds without cost; columns more may hold one more.
    chains: whether chunks are of one size, so that they may change places.
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
    more: int
    chains: bool


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
    """Carry out the move that `_chain` noted, and note what `_take_back` needs to undo it.

    A unit of a chunk is what one phase touches of it, `times` over; a column holds the chunks of one
    position, and what it is higher than `board.room` is paid for by its square.

    `moves.target` then holds the positions that the chunks left, `moves.before` the worst loads before the
    move. Hard phases are skipped: a chain leaves them without conflicts, so their loads are not kept.

    Returns:
        What squares of loads, wavefronts and squares of columns grow by; the number of phases whose loads
        changed (`moves.touched` begins with them); the number of units moved.
    """
    squares, touched, columns, units = 0, 0, 0, 0
    # No local name for `placed.load`: with one, the compiled search takes nearly half as long again.
    for i in range(count):
        chunk, new = moves.stack[i], moves.target[i]
        old, wide = placed.position[chunk], board.wide[chunk]
        placed.position[chunk], moves.target[i] = new, old
        for k in range(wide):
            over = placed.height[old * wide + k] - board.room
            columns += _square(over - 1) - _square(over)
            placed.height[old * wide + k] -= 1
            over = placed.height[new * wide + k] - board.room
            columns += _square(over + 1) - _square(over)
            placed.height[new * wide + k] += 1
        units += board.first[chunk + 1] - board.first[chunk]
        for unit in range(board.first[chunk], board.first[chunk + 1]):
            phase, times = board.phase[unit], board.times[unit]
            if placed.hard[phase]:
                continue
            if moves.stamp[phase] != now:
                moves.stamp[phase], moves.touched[touched] = now, phase
                touched += 1
            least, weight = board.least[phase], board.weight[phase]
            bank = board.bank[board.kind[unit], old]
            over = placed.load[phase, bank] - least
            squares += weight * (_square(over - times) - _square(over))
            placed.load[phase, bank] -= times
            bank = board.bank[board.kind[unit], new]
            over = placed.load[phase, bank] - least
            squares += weight * (_square(over + times) - _square(over))
            placed.load[phase, bank] += times
    wavefronts = 0
    for i in range(touched):
        phase = moves.touched[i]
        worst = board.least[phase]
        for bank in range(placed.load.shape[1]):
            if placed.load[phase, bank] > worst:
                worst = placed.load[phase, bank]
        moves.before[i] = placed.worst[phase]
        wavefronts += board.weight[phase] * (worst - placed.worst[phase])
        placed.worst[phase] = worst
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
def cooled(
    board: Board,
    placed: Placed,
    moves: Moves,
    warmth: Floats,
    counts: Floats,
    work: npt.NDArray[np.int64],
    enough: npt.NDArray[np.int64],
) -> bool:
    """Cool down until so many units were looked at; whether `enough` was found.

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


def board_of(model: PlacementModel) -> Board:
    """The phases of a placement model as arrays for the local search."""
    number, sizes = {c: k for k, c in enumerate(model.positions)}, model.chunks.size[[*model.positions]]
    kinds: dict[tuple[int, int, int, int], int] = {}
    units = []
    for p, phase in enumerate(model.phases):
        for c, place, times in phase.units:
            kind = int(model.chunks.size[c]), place, phase.unit_bytes, phase.banks
            units.append((number[c], p, times, kinds.setdefault(kind, len(kinds))))
    at = np.array(sorted(units))
    positions = np.array([*model.positions.values()])
    places = np.arange(positions.max())
    room, more = divmod(model.atoms(model.tile.bytes), model.period // model.atom)
    return Board(
        first=_narrow(np.searchsorted(at[:, 0], np.arange(len(number) + 1))),
        phase=_narrow(at[:, 1]),
        times=_narrow(at[:, 2]),
        kind=_narrow(at[:, 3]),
        bank=_narrow(np.array([(places * size + byte) // wide % banks for size, byte, wide, banks in kinds])),
        positions=_narrow(positions),
        wide=_narrow(sizes // model.atom),
        weight=_narrow(np.array([phase.weight for phase in model.phases])),
        least=_narrow(np.array([phase.least for phase in model.phases])),
        room=room,
        more=more,
        chains=model.alike,
    )


def annealed(board: Board, start: IntArray, enough: int, rounds: int) -> IntArray:
    """Positions of no more weighted excess than `start`, then of columns that are no more uneven.

    The clock is asked every few hundredths of a second.

    Args:
        start: int, shape (chunks,): positions.
        enough: weighted wavefronts beyond `least` that nothing undercuts.
        rounds: how often it is cooled down, each time from the best of the time before; the same number gives
            the same answer.
    """
    if (board.positions < 2).any():
        return start
    least, random = np.array([enough, board.more], np.int64), np.array([_SEED], np.uint64)
    best = here = _placed(board, start, random, chains=False)

    def rank(placed: Placed) -> tuple[int, int]:
        """Excess, and squares of columns where they do not fit."""
        return int(placed.totals[2]), max(int(placed.totals[3]), board.more)

    in_vain = 0
    for number in current().while_left(range(rounds)):
        if (best.totals[2:4] <= least).all() or in_vain == _PATIENCE:
            break
        here = _placed(board, here.best.astype(np.int64), random, chains=board.chains)
        manner = _TO_LITTLE if number % 4 == 3 else _TO_NOTHING
        _cool(board, here, least, manner if best.totals[2] > enough else _TO_EVEN)
        in_vain = 0 if rank(here) < rank(best) else in_vain + 1
        best = min(best, here, key=rank)
    return best.best.astype(np.int64)


def _cool(board: Board, placed: Placed, least: npt.NDArray[np.int64], manner: _Manner) -> None:
    """Once from warm to cold."""
    work = min(manner.looks * len(board.phase), _MOST_LOOKS)
    chunks, phases = len(board.positions), len(board.least)
    noted = [np.zeros(n, kind) for n, kind in ((chunks, np.int64), (phases, np.int64))]
    stack, target, touched, before = (np.zeros(n, np.int32) for n in (chunks, chunks, phases, phases))
    moves = Moves(noted[0], stack, target, noted[1], touched, before)
    warmth, counts = np.array([manner.warmest, manner.coldest]), np.array(manner[:3], np.float64)
    for done in current().while_left(range(0, work, _SLICE)):
        until = np.array([min(work, done + _SLICE), work], np.int64)
        ended = cooled(board, placed, moves, warmth, counts, until, least)
        current().charge(_EFFORT_A_LOOK * min(_SLICE, work - done))
        if ended:
            return


def _placed(board: Board, position: IntArray, random: npt.NDArray[np.uint64], *, chains: bool) -> Placed:
    """Positions with what they load; with `chains`, phases without conflicts are hard."""
    chunk = np.repeat(np.arange(len(board.positions)), np.diff(board.first))  # of each unit
    load = np.zeros((len(board.least), int(board.bank.max()) + 1), np.int32)
    bank = board.bank[board.kind, position[chunk]]
    np.add.at(load, (board.phase, bank), board.times)
    worst = np.maximum(load.max(axis=1, initial=0), board.least)
    height = np.zeros(int((board.positions * board.wide).max()), np.int32)
    for k in range(int(board.wide.max())):
        covered = board.wide > k
        np.add.at(height, position[covered] * board.wide[covered] + k, 1)
    owner = np.full(load.shape, -1, np.int32)
    owner[board.phase, bank] = chunk
    excess = int(((worst - board.least) * board.weight.astype(np.int64)).sum())
    columns = int((np.maximum(height - board.room, 0) ** 2).sum())
    here = _narrow(position)
    return Placed(
        here,
        load,
        _narrow(worst),
        height,
        (board.least == 1) & (worst == 1) & chains,
        owner,
        np.array([excess, columns, excess, columns, 0, 0], np.int64),
        here.copy(),
        random,
    )


def _narrow(numbers: IntArray) -> Ints:
    return np.ascontiguousarray(numbers, np.int32)
