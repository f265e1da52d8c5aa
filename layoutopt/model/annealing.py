"""Local search for a free assignment: simulated annealing over chains, compiled by numba.

A phase without a conflict is kept so: where a chunk goes to the bank of another of its phase, that one goes
to the bank which it leaves, and so on, until nothing meets that did not meet before (a Kempe chain of a
colouring). Only the phases that have conflicts decide whether it goes:

    phases {a b} {b c} without conflicts     a in 0, b in 1, c in 0     a to 1: b to 0, and so c to 1

A good formula keeps what it does well, and what it does badly is mended: most accesses of a kernel are served
by some formula, and the others are few. So most moves begin in a fullest bank of a phase that has conflicts,
and rounds are short: each keeps what the one before mended. Where chunks are of several sizes, or phases
cannot do without conflicts, chunks move alone.

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
_SLICE = 2_000_000  # units visited between two looks at the clock: some hundredths of a second
_PHASE = 4  # visiting all banks of a phase, in units visited
# A round cools once from warm to cold and visits so many units at most (0.1 s). So many rounds without a new
# best end the search.
_MOST_VISITS, _PATIENCE = 5_000_000, 20
_EFFORT_A_VISIT = 1.5e-8  # seconds of work that a visited unit is charged with
# One move of so many begins with any chunk. Phases among which one with conflicts is looked for.
_ANYWHERE, _MOST_ASKED = 8, 256
_ANY_COLUMNS = 1 << 62  # before the excess is enough


class _Schedule(NamedTuple):
    """The cost of a move, and the temperatures of a round."""

    wavefront: float  # cost of a weighted wavefront
    square: float  # cost of a square of a load beyond the least of its phase
    column: float  # cost of a square of a column beyond its room
    warmest: float
    coldest: float
    visits: int  # to each unit in a round


# Squares lead to layouts without conflicts; wavefronts, a maximum, to the least where some conflicts remain;
# columns to the fewest bytes.
_NO_CONFLICTS = _Schedule(wavefront=0, square=1, column=0.05, warmest=0.3, coldest=0.1, visits=500)
_FEW_WAVEFRONTS = _Schedule(wavefront=1, square=0.3, column=0.05, warmest=0.3, coldest=0.08, visits=500)
_EVEN_COLUMNS = _Schedule(wavefront=1, square=0.3, column=1, warmest=0.5, coldest=0.1, visits=100)


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
    """What the search does not change: chunks, phases, and the units in which they meet.

    A unit of a chunk is what one phase touches of it.
    """

    first: Ints  # number of each chunk's first unit, shape (chunks + 1,)
    chunk: Ints  # of each unit
    begin: Ints  # where each phase begins in `units`, shape (phases + 1,)
    units: Ints  # the units by phase
    phase: Ints  # of each unit
    times: Ints  # how often the phase touches each unit
    kind: Ints  # row of `bank`, of each unit
    bank: Ints  # of a unit of each kind, by the position of its chunk, shape (kinds, positions)
    positions: Ints  # how many each chunk may have
    wide: Ints  # columns that each chunk covers
    weight: Ints  # of each phase
    least: Ints  # wavefronts that each phase takes in every layout
    room: int  # chunks that every column holds without cost
    more: int  # columns that may hold one chunk more
    chains: bool  # whether chunks are of one size, so that they may change places


class Placed(NamedTuple):
    """What the search changes."""

    position: Ints  # of each chunk
    load: Ints  # units, times how often each is touched, of each bank in each phase, shape (phases, banks)
    worst: Ints  # largest load of each phase, at least its `least`
    height: Ints  # chunks in each column
    hard: npt.NDArray[np.bool_]  # phases in which no two units meet, nor may
    owner: Ints  # the chunk in each bank of a hard phase, -1 for none
    totals: npt.NDArray[np.int64]  # shape (6,), see `_EXCESS`
    best: Ints  # positions of the least excess so far, then of the most even columns
    random: npt.NDArray[np.uint64]  # state of the generator, not 0


# Entries of `Placed.totals`: excess, squares of columns beyond their room, both of the best, visits, moves.
_EXCESS, _COLUMNS, _BEST_EXCESS, _BEST_COLUMNS, _VISITED, _MOVES = range(6)


class Moves(NamedTuple):
    """Room to note what a move touches."""

    mark: npt.NDArray[np.int64]  # of each chunk, the last move that it was in
    stack: Ints  # the chunks that move
    target: Ints  # where each of these goes; after the move, where it came from
    stamp: npt.NDArray[np.int64]  # of each phase, the last move that changed its loads
    touched: Ints  # the phases whose loads change
    before: Ints  # the worst load of each of these before the move


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
def _drawn(board: Board, placed: Placed) -> int:
    """A chunk to move: mostly of a fullest bank of a phase that has conflicts."""
    phases = len(board.least)
    first = _draw(placed.random, phases)
    for k in range(min(phases, _MOST_ASKED) if _draw(placed.random, _ANYWHERE) else 0):
        phase = (first + k) % phases
        if placed.worst[phase] > board.least[phase]:
            begin, held = board.begin[phase], board.begin[phase + 1] - board.begin[phase]
            at = _draw(placed.random, held)
            for n in range(held):
                unit = board.units[begin + (at + n) % held]
                chunk = board.chunk[unit]
                bank = board.bank[board.kind[unit], placed.position[chunk]]
                if placed.load[phase, bank] == placed.worst[phase]:
                    return int(chunk)
    return _draw(placed.random, len(board.positions))


@part
def _chain(board: Board, placed: Placed, moves: Moves, now: int) -> int:
    """Draw a chunk and another position for it, and note all chunks that must change places with it.

    Where a chunk goes, another that is there in a hard phase goes where the first came from; so all change
    between the same two positions. Phases are hard only where chunks are of one size.

    Fills the first entries of `moves.stack` and `moves.target`; returns how many. `now`: number of the move.
    """
    drawn = _drawn(board, placed)
    old, stack = placed.position[drawn], moves.stack
    new = (old + 1 + _draw(placed.random, board.positions[drawn] - 1)) % board.positions[drawn]
    stack[0], moves.target[0], moves.mark[drawn] = drawn, new, now
    count, i = 1, 0
    while i < count:
        chunk, goes = stack[i], moves.target[i]
        i += 1
        for unit in range(board.first[chunk], board.first[chunk + 1]):
            if placed.hard[board.phase[unit]]:
                other = placed.owner[board.phase[unit], board.bank[board.kind[unit], goes]]
                if other >= 0 and moves.mark[other] != now:
                    moves.mark[other] = now
                    stack[count], moves.target[count] = other, old + new - goes
                    count += 1
    return count


@part
def _move(board: Board, placed: Placed, moves: Moves, count: int, now: int) -> tuple[int, int, int, int, int]:
    """Carry out move `now`, of `count` chunks that `_chain` noted, and note what `_take_back` needs.

    Hard phases are skipped: a chain leaves them without conflicts, so their loads are not kept.

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
        chunk, old = moves.stack[i], moves.target[i]
        new, wide = placed.position[chunk], board.wide[chunk]
        placed.position[chunk] = old
        for k in range(wide):
            placed.height[old * wide + k] += 1
            placed.height[new * wide + k] -= 1
        for unit in range(board.first[chunk], board.first[chunk + 1]):
            phase = board.phase[unit]
            if not placed.hard[phase]:
                placed.load[phase, board.bank[board.kind[unit], old]] += board.times[unit]
                placed.load[phase, board.bank[board.kind[unit], new]] -= board.times[unit]
    for i in range(touched):
        placed.worst[moves.touched[i]] = moves.before[i]


@part
def _own(board: Board, placed: Placed, moves: Moves, count: int) -> None:
    """Update `placed.owner` after a move of `count` chunks: all give up their banks, then take others."""
    for i in range(count):
        chunk = moves.stack[i]
        for unit in range(board.first[chunk], board.first[chunk + 1]):
            if placed.hard[board.phase[unit]]:
                bank = board.bank[board.kind[unit], moves.target[i]]  # now where the chunk came from
                placed.owner[board.phase[unit], bank] = -1
    for i in range(count):
        chunk = moves.stack[i]
        for unit in range(board.first[chunk], board.first[chunk + 1]):
            if placed.hard[board.phase[unit]]:
                bank = board.bank[board.kind[unit], placed.position[chunk]]
                placed.owner[board.phase[unit], bank] = chunk


@whole
def cooled(
    board: Board,
    placed: Placed,
    moves: Moves,
    warmth: Floats,
    costs: Floats,
    work: npt.NDArray[np.int64],
    enough: npt.NDArray[np.int64],
) -> bool:
    """Make moves, those that cost more ever more rarely; whether a placement as good as `enough` was found.

    Args:
        board: of the search; `placed` is changed.
        warmth: temperature at the beginning and at the end of the round.
        costs: of a wavefront, a square of a load, a square of a column.
        work: units visited at which to stop, and at the end of the round.
        enough: excess, and squares of columns.
    """
    totals, temperature = placed.totals, warmth[0]
    stop, end = work[0], work[1]
    while totals[_VISITED] < stop:
        totals[_MOVES] += 1
        now = totals[_MOVES]
        if now % 64 == 1:  # often enough, and a power is dear
            temperature = warmth[0] * (warmth[1] / warmth[0]) ** (totals[_VISITED] / end)
        count = _chain(board, placed, moves, now)
        squares, wavefronts, columns, touched, units = _move(board, placed, moves, count, now)
        totals[_VISITED] += units + count + _PHASE * touched
        cost = costs[0] * wavefronts + costs[1] * squares + costs[2] * columns
        if cost > 0 and _draw(placed.random, 1 << 30) >= math.exp(-cost / temperature) * (1 << 30):
            _take_back(board, placed, moves, count, touched)
            continue
        _own(board, placed, moves, count)
        totals[_EXCESS] += wavefronts
        totals[_COLUMNS] += columns
        if totals[_EXCESS] < totals[_BEST_EXCESS] or (
            totals[_EXCESS] == totals[_BEST_EXCESS] and totals[_COLUMNS] < totals[_BEST_COLUMNS]
        ):
            totals[_BEST_EXCESS], totals[_BEST_COLUMNS] = totals[_EXCESS], totals[_COLUMNS]
            for chunk in range(len(placed.best)):  # a slice takes a third of the compiler's time
                placed.best[chunk] = placed.position[chunk]
            if totals[_BEST_EXCESS] <= enough[0] and totals[_BEST_COLUMNS] <= enough[1]:
                return True
    return False


def board_of(model: PlacementModel) -> Board:
    """The phases of a placement model as arrays for the local search."""
    number, sizes = np.zeros(len(model.chunks.size), np.int64), model.chunks.size[[*model.positions]]
    number[[*model.positions]] = np.arange(len(sizes))
    phase_of, chunk, byte, times_of, unit_bytes, banks = model.units
    kinds, kind_of = np.unique(
        np.stack([model.chunks.size[chunk], byte, unit_bytes, banks]), axis=1, return_inverse=True
    )
    units = np.stack([number[chunk], phase_of, times_of, kind_of.reshape(-1)])
    chunk, phase_of, times_of, kind_of = units[:, np.lexsort(units[::-1])]  # by chunk, as `first` needs them
    by_phase = np.argsort(phase_of, kind="stable")
    positions = np.array([*model.positions.values()])
    size, byte, unit_bytes, banks = kinds[..., None]
    bank = (np.arange(positions.max()) * size + byte) // unit_bytes % banks
    room, more = divmod(model.atoms(model.tile.bytes), model.period // model.atom)
    return Board(
        first=_narrow(np.searchsorted(chunk, np.arange(len(sizes) + 1))),
        chunk=_narrow(chunk),
        begin=_narrow(np.searchsorted(phase_of[by_phase], np.arange(len(model.phases) + 1))),
        units=_narrow(by_phase),
        phase=_narrow(phase_of),
        times=_narrow(times_of),
        kind=_narrow(kind_of),
        bank=_narrow(bank),
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

    Args:
        board: chunks and phases.
        start: int, shape (chunks,): positions.
        enough: lower bound of the weighted wavefronts beyond `least`, at which the search ends.
        rounds: at most, each from the best of the round before; the same number gives the same answer.
    """
    if (board.positions < 2).any():
        return start
    # Each column that holds one chunk beyond the room of all counts as a square, and so many may.
    goal, random = np.array([enough, board.more], np.int64), np.array([_SEED], np.uint64)
    best = last = _placed(board, start, random, chains=False)

    def rank(placed: Placed) -> tuple[int, int]:
        """Excess, and squares of columns where they do not fit."""
        return int(placed.totals[_BEST_EXCESS]), max(int(placed.totals[_BEST_COLUMNS]), board.more)

    in_vain = 0  # rounds without a new best
    for number in current().while_left(range(rounds)):
        if (best.totals[_BEST_EXCESS:_VISITED] <= goal).all() or in_vain == _PATIENCE:
            break
        last = _placed(board, last.best.astype(np.int64), random, chains=board.chains)
        if best.totals[_BEST_EXCESS] <= enough:
            _cool(board, last, goal, _EVEN_COLUMNS)
        else:  # every fourth round by wavefronts, a maximum, which squares only approach
            schedule = _FEW_WAVEFRONTS if number % 4 == 3 else _NO_CONFLICTS
            _cool(board, last, np.array([enough, _ANY_COLUMNS]), schedule)
        in_vain = 0 if rank(last) < rank(best) else in_vain + 1
        best = min(best, last, key=rank)
    return best.best.astype(np.int64)


def _cool(board: Board, placed: Placed, goal: npt.NDArray[np.int64], schedule: _Schedule) -> None:
    """One round, from warm to cold; `goal`: excess and squares of columns at which it ends."""
    work = min(schedule.visits * len(board.phase), _MOST_VISITS)
    chunks, phases = len(board.positions), len(board.least)
    mark, stamp = np.zeros(chunks, np.int64), np.zeros(phases, np.int64)
    stack, target, touched, before = (np.zeros(n, np.int32) for n in (chunks, chunks, phases, phases))
    moves = Moves(mark, stack, target, stamp, touched, before)
    warmth = np.array([schedule.warmest, schedule.coldest])
    costs = np.array([schedule.wavefront, schedule.square, schedule.column], np.float64)
    for done in current().while_left(range(0, work, _SLICE)):
        until = np.array([min(work, done + _SLICE), work], np.int64)
        ended = cooled(board, placed, moves, warmth, costs, until, goal)
        current().charge(_EFFORT_A_VISIT * min(_SLICE, work - done))
        if ended:
            return


def _placed(board: Board, position: IntArray, random: npt.NDArray[np.uint64], *, chains: bool) -> Placed:
    """A placement with these positions; with `chains`, phases without conflicts are hard."""
    load = np.zeros((len(board.least), int(board.bank.max()) + 1), np.int32)
    bank = board.bank[board.kind, position[board.chunk]]
    np.add.at(load, (board.phase, bank), board.times)
    worst = np.maximum(load.max(axis=1, initial=0), board.least)
    # A chunk stands on as many columns as it is wide.
    height = np.zeros(int((board.positions * board.wide).max()), np.int32)
    for k in range(int(board.wide.max())):
        covered = board.wide > k
        np.add.at(height, position[covered] * board.wide[covered] + k, 1)
    owner = np.full(load.shape, -1, np.int32)
    owner[board.phase, bank] = board.chunk
    excess = int(((worst - board.least) * board.weight.astype(np.int64)).sum())
    overfull = int((np.maximum(height - board.room, 0) ** 2).sum())  # columns beyond their room
    return Placed(
        position=_narrow(position),
        load=load,
        worst=_narrow(worst),
        height=height,
        hard=(board.least == 1) & (worst == 1) & chains,
        owner=owner,
        totals=np.array([excess, overfull, excess, overfull, 0, 0], np.int64),  # see `Placed.totals`
        best=_narrow(position).copy(),
        random=random,
    )


def _narrow(numbers: IntArray) -> Ints:
    return np.ascontiguousarray(numbers, np.int32)
