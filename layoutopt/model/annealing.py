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

_SEED = 88172645463325252
_SLICE = 2_000_000  # units visited between two looks at the clock: some hundredths of a second
_PHASE_VISITS = 4  # visiting all banks of a phase, in units visited
# A round cools once from warm to cold and visits so many units at most (0.1 s). So many rounds without a new
# best end the search.
_MOST_VISITS, _PATIENCE = 5_000_000, 20
_EFFORT_A_VISIT = 1.5e-8  # seconds of work that a visited unit is charged with
# One move of so many begins with any chunk. Phases among which one with conflicts is looked for.
_ANYWHERE, _MOST_ASKED = 8, 256
_ANY_COLUMNS = 1 << 62  # before the excess is enough


class Schedule(NamedTuple):
    """The cost of a move, and the temperatures of a round; all floats, or `cooled` is compiled once more."""

    wavefront: float  # cost of a weighted wavefront
    square: float  # cost of a square of a load beyond the least of its phase
    column: float  # cost of a square of a column beyond its room
    warmest: float
    coldest: float
    visits: int  # to each unit in a round


# Squares lead to layouts without conflicts; wavefronts, a maximum, to the least where some conflicts remain;
# columns to the fewest bytes.
_NO_CONFLICTS = Schedule(wavefront=0.0, square=1.0, column=0.05, warmest=0.3, coldest=0.1, visits=500)
_FEW_WAVEFRONTS = Schedule(wavefront=1.0, square=0.3, column=0.05, warmest=0.3, coldest=0.08, visits=500)
_EVEN_COLUMNS = Schedule(wavefront=1.0, square=0.3, column=1.0, warmest=0.5, coldest=0.1, visits=100)


class Goal(NamedTuple):
    """What a round ends at, if it reaches both."""

    excess: int  # weighted wavefronts beyond the `least` of the phases
    columns: int  # squares of columns beyond their room


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

    first_unit: Ints  # number of each chunk's first unit, the others follow, shape (chunks + 1,)
    chunk: Ints  # of each unit
    phase_begin: Ints  # where each phase begins in `by_phase`, shape (phases + 1,)
    by_phase: Ints  # the units' numbers, phase by phase
    phase: Ints  # of each unit
    times: Ints  # how often the phase touches each unit
    kind: Ints  # row of `bank`, of each unit
    bank: Ints  # of a unit of each kind, by the position of its chunk, shape (kinds, positions)
    position_count: Ints  # of each chunk
    width: Ints  # columns that each chunk covers; a column is as wide as the smallest chunk
    weight: Ints  # of each phase
    least: Ints  # wavefronts that each phase takes in every layout
    column_room: int  # chunks that every column holds without cost
    fuller_columns: int  # how many columns may hold one chunk more, in the tile's own bytes
    chains: bool  # whether chunks are of one size, so that they may change places


class Placed(NamedTuple):
    """What the search changes."""

    position: Ints  # of each chunk
    load: Ints  # units, times how often each is touched, of each bank in each phase, shape (phases, banks)
    worst: Ints  # largest load of each phase, at least its `least`
    column_height: Ints  # chunks in each column
    kept_free: npt.NDArray[np.bool_]  # phases in which no two units meet, nor may
    owner: Ints  # the chunk in each bank of a phase that is kept free, -1 for none
    totals: npt.NDArray[np.int64]  # shape (6,), see `_EXCESS`
    best: Ints  # positions of the least excess so far, then of the most even columns
    random: npt.NDArray[np.uint64]  # state of the generator, not 0


# Entries of `Placed.totals`: excess, squares of columns beyond their room, both of the best, visits, moves.
_EXCESS, _COLUMNS, _BEST_EXCESS, _BEST_COLUMNS, _VISITED, _MOVES = range(6)


class Moves(NamedTuple):
    """Room to note what a move touches. Moves are numbered from 1."""

    chunk_move: npt.NDArray[np.int64]  # of each chunk, the last move that it was in
    chunk: Ints  # the chunks that move
    target: Ints  # where each of these goes; after the move, where it came from
    phase_move: npt.NDArray[np.int64]  # of each phase, the last move that changed its loads
    touched: Ints  # the phases whose loads change
    worst_before: Ints  # the worst load of each of these before the move


class Change(NamedTuple):
    """What a move changes."""

    excess: int  # weighted wavefronts
    squares: int  # weighted squares of loads beyond the `least` of their phase
    columns: int  # squares of columns beyond their room
    units: int  # how many moved
    touched: int  # phases whose loads changed, the first entries of `Moves.touched`


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
            begin, held = board.phase_begin[phase], board.phase_begin[phase + 1] - board.phase_begin[phase]
            at = _draw(placed.random, held)
            for n in range(held):
                unit = board.by_phase[begin + (at + n) % held]
                chunk = board.chunk[unit]
                bank = board.bank[board.kind[unit], placed.position[chunk]]
                if placed.load[phase, bank] == placed.worst[phase]:
                    return int(chunk)
    return _draw(placed.random, len(board.position_count))


@part
def _chain(board: Board, placed: Placed, moves: Moves, now: int) -> int:
    """Draw a chunk and another position for it, and note all chunks that must change places with it.

    Where a chunk goes, another that has its bank in a phase kept free goes where the first came from; so all
    change between the same two positions. Phases are kept free only where chunks are of one size.

    Fills the first entries of `moves.chunk` and `moves.target`; returns how many. `now`: number of the move.
    """
    drawn = _drawn(board, placed)
    here, positions = placed.position[drawn], board.position_count[drawn]
    there = (here + 1 + _draw(placed.random, positions - 1)) % positions
    moves.chunk[0], moves.target[0], moves.chunk_move[drawn] = drawn, there, now
    noted, followed = 1, 0
    while followed < noted:
        chunk, goes = moves.chunk[followed], moves.target[followed]
        followed += 1
        for unit in range(board.first_unit[chunk], board.first_unit[chunk + 1]):  # one in each of its phases
            if placed.kept_free[board.phase[unit]]:
                in_the_way = placed.owner[board.phase[unit], board.bank[board.kind[unit], goes]]
                if in_the_way >= 0 and moves.chunk_move[in_the_way] != now:  # not noted yet
                    moves.chunk_move[in_the_way] = now
                    moves.chunk[noted] = in_the_way
                    moves.target[noted] = here + there - goes  # the other of the two positions
                    noted += 1
    return noted


@part
def _put(board: Board, placed: Placed, chunk: int, position: int, sign: int) -> tuple[int, int]:
    """Count a chunk in (`sign` 1) or out (-1) at a position, in columns and in loads.

    Loads of phases that are kept free are not counted: a chain leaves them without conflicts. Called from
    any further place, it is not inlined there, and the search takes five times as long.

    Returns:
        What squares of loads, and squares of columns, grow by: `Change.squares` and `Change.columns`.
    """
    squares, columns = 0, 0
    for column in range(position * board.width[chunk], (position + 1) * board.width[chunk]):
        over = placed.column_height[column] - board.column_room
        columns += _square(over + sign) - _square(over)
        placed.column_height[column] += sign
    for unit in range(board.first_unit[chunk], board.first_unit[chunk + 1]):
        phase = board.phase[unit]
        if not placed.kept_free[phase]:
            bank, more = board.bank[board.kind[unit], position], sign * board.times[unit]
            over = placed.load[phase, bank] - board.least[phase]
            squares += board.weight[phase] * (_square(over + more) - _square(over))
            placed.load[phase, bank] += more
    return squares, columns


@part
def _move(board: Board, placed: Placed, moves: Moves, count: int, now: int) -> Change:
    """Carry out move `now`, of `count` chunks that `_chain` noted, and note what `_take_back` needs."""
    excess, squares, columns, units, touched = 0, 0, 0, 0, 0
    for i in range(count):
        chunk, new = moves.chunk[i], moves.target[i]
        old = placed.position[chunk]
        placed.position[chunk], moves.target[i] = new, old  # the way back
        for position, sign in ((old, -1), (new, 1)):
            more_squares, more_columns = _put(board, placed, chunk, position, sign)
            squares += more_squares
            columns += more_columns
        units += board.first_unit[chunk + 1] - board.first_unit[chunk]
        for unit in range(board.first_unit[chunk], board.first_unit[chunk + 1]):
            phase = board.phase[unit]  # kept free, it stays without excess
            if not placed.kept_free[phase] and moves.phase_move[phase] != now:
                moves.phase_move[phase], moves.touched[touched] = now, phase
                touched += 1
    for i in range(touched):
        phase = moves.touched[i]
        worst = board.least[phase]
        for bank in range(placed.load.shape[1]):  # the fullest one decides
            if placed.load[phase, bank] > worst:
                worst = placed.load[phase, bank]
        moves.worst_before[i] = placed.worst[phase]
        excess += board.weight[phase] * (worst - placed.worst[phase])
        placed.worst[phase] = worst
    return Change(excess, squares, columns, units, touched)


@part
def _take_back(board: Board, placed: Placed, moves: Moves, count: int, touched: int) -> None:
    """Undo the move just made; the targets are where the chunks came from."""
    for i in range(count):
        chunk, old = moves.chunk[i], moves.target[i]
        _put(board, placed, chunk, placed.position[chunk], -1)
        _put(board, placed, chunk, old, 1)
        placed.position[chunk] = old
    for i in range(touched):
        placed.worst[moves.touched[i]] = moves.worst_before[i]


@part
def _update_owner(board: Board, placed: Placed, moves: Moves, count: int) -> None:
    """Update `placed.owner` after a move of `count` chunks: all give up their banks, then take others."""
    for i in range(count):
        chunk = moves.chunk[i]
        for unit in range(board.first_unit[chunk], board.first_unit[chunk + 1]):
            if placed.kept_free[board.phase[unit]]:
                bank = board.bank[board.kind[unit], moves.target[i]]  # now where the chunk came from
                placed.owner[board.phase[unit], bank] = -1
    for i in range(count):
        chunk = moves.chunk[i]
        for unit in range(board.first_unit[chunk], board.first_unit[chunk + 1]):
            if placed.kept_free[board.phase[unit]]:
                bank = board.bank[board.kind[unit], placed.position[chunk]]
                placed.owner[board.phase[unit], bank] = chunk


@whole
def cooled(
    board: Board, placed: Placed, moves: Moves, schedule: Schedule, goal: Goal, until: int, end: int
) -> bool:
    """Make moves, those that cost more ever more rarely; whether a placement as good as `goal` was found.

    Changes `placed`, whose `best` has the least excess, then the fewest columns with more chunks than they
    have room for; squares only tell placements of equal excess apart. Work is counted in visits of units,
    the words that a phase touches in a chunk.

    Args:
        until: visits at which to return, as the caller looks at the clock.
        end: visits of the whole round; the temperature is then `schedule.coldest`.
    """
    totals, temperature = placed.totals, 0.0
    while totals[_VISITED] < until:
        totals[_MOVES] += 1
        now = totals[_MOVES]
        if now % 64 == 1 or temperature == 0:  # often enough, and a power is dear
            cooling = schedule.coldest / schedule.warmest
            temperature = schedule.warmest * cooling ** (totals[_VISITED] / end)
        count = _chain(board, placed, moves, now)
        change = _move(board, placed, moves, count, now)
        totals[_VISITED] += change.units + count + _PHASE_VISITS * change.touched
        cost = (
            schedule.wavefront * change.excess
            + schedule.square * change.squares
            + schedule.column * change.columns
        )
        # A move that costs more is kept with the probability exp(-cost / temperature) (Metropolis).
        if cost > 0 and _draw(placed.random, 1 << 30) >= math.exp(-cost / temperature) * (1 << 30):
            _take_back(board, placed, moves, count, change.touched)
            continue
        _update_owner(board, placed, moves, count)
        totals[_EXCESS] += change.excess
        totals[_COLUMNS] += change.columns
        if totals[_EXCESS] < totals[_BEST_EXCESS] or (
            totals[_EXCESS] == totals[_BEST_EXCESS] and totals[_COLUMNS] < totals[_BEST_COLUMNS]
        ):
            totals[_BEST_EXCESS], totals[_BEST_COLUMNS] = totals[_EXCESS], totals[_COLUMNS]
            for chunk in range(len(placed.best)):  # a slice takes a third of the compiler's time
                placed.best[chunk] = placed.position[chunk]
            if totals[_BEST_EXCESS] <= goal.excess and totals[_BEST_COLUMNS] <= goal.columns:
                return True
    return False


def board_of(model: PlacementModel) -> Board:
    """The phases of a placement model as arrays for the local search."""
    # The board numbers the chunks that have a position, in the order of `model.positions`.
    chunks, counts = np.array([*model.positions]), np.array([*model.positions.values()])
    number = np.zeros(len(model.chunks.size), np.int64)
    number[chunks] = np.arange(len(chunks))
    sizes, of = model.chunks.size[chunks], model.units
    # Units of one kind lie in the same bank where their chunks have the same position.
    kinds, kind = np.unique(
        np.stack([model.chunks.size[of.chunk], of.byte, of.unit_bytes, of.banks]), axis=1, return_inverse=True
    )
    size, byte, unit_bytes, banks = kinds[..., None]  # each of shape (kinds, 1)
    bank = (np.arange(counts.max()) * size + byte) // unit_bytes % banks
    units = np.stack([number[of.chunk], of.phase, of.times, kind.reshape(-1)])
    chunk, phase, times, kind = units[:, np.lexsort(units[::-1])]  # by chunk, as `first_unit` needs them
    by_phase = np.argsort(phase, kind="stable")
    # Columns of the bank rows, an atom wide, share the tile's own bytes; the first ones hold one chunk more.
    column_room, fuller_columns = divmod(model.atoms(model.tile.bytes), model.period // model.atom)
    return Board(
        first_unit=_narrow(np.searchsorted(chunk, np.arange(len(chunks) + 1))),
        chunk=_narrow(chunk),
        phase_begin=_narrow(np.searchsorted(phase[by_phase], np.arange(len(model.phases) + 1))),
        by_phase=_narrow(by_phase),
        phase=_narrow(phase),
        times=_narrow(times),
        kind=_narrow(kind),
        bank=_narrow(bank),
        position_count=_narrow(counts),
        width=_narrow(sizes // model.atom),
        weight=_narrow(np.array([phase.weight for phase in model.phases])),
        least=_narrow(np.array([phase.least for phase in model.phases])),
        column_room=column_room,
        fuller_columns=fuller_columns,
        chains=model.alike,
    )


def annealed(board: Board, start: IntArray, enough: int, rounds: int) -> IntArray:
    """Positions of no more weighted excess than `start`; with as much, of bank rows filled no less evenly.

    Args:
        board: chunks and phases.
        start: int, shape (chunks,): positions.
        enough: lower bound of the weighted wavefronts beyond `least`, at which the search ends.
        rounds: at most, each from the best of the round before; the same number gives the same answer.
    """
    if (board.position_count < 2).any():
        return start
    # A column with one chunk beyond its room counts 1: the tile's own bytes hold `fuller_columns` of these.
    goal = Goal(enough, board.fuller_columns)
    random = np.array([_SEED], np.uint64)  # the state, which each round leaves to the next
    best = last = _placed(board, start, random, chains=False)

    def rank(placed: Placed) -> tuple[int, int]:
        """Excess, and squares of columns where they do not fit the tile's own bytes."""
        return int(placed.totals[_BEST_EXCESS]), max(int(placed.totals[_BEST_COLUMNS]), goal.columns)

    in_vain = 0  # rounds without a new best
    for number in current().while_left(range(rounds)):
        excess, columns = rank(best)
        if (excess <= goal.excess and columns == goal.columns) or in_vain == _PATIENCE:
            break
        last = _placed(board, last.best.astype(np.int64), random, chains=board.chains)
        if excess <= goal.excess:
            _cool(board, last, goal, _EVEN_COLUMNS)
        else:  # every fourth round by wavefronts, a maximum, which squares only approach
            schedule = _FEW_WAVEFRONTS if number % 4 == 3 else _NO_CONFLICTS
            _cool(board, last, Goal(enough, _ANY_COLUMNS), schedule)
        in_vain = 0 if rank(last) < rank(best) else in_vain + 1
        best = min(best, last, key=rank)
    return best.best.astype(np.int64)


def _cool(board: Board, placed: Placed, goal: Goal, schedule: Schedule) -> None:
    """One round, from warm to cold, which ends early at the goal."""
    work = min(schedule.visits * len(board.phase), _MOST_VISITS)
    chunks, phases = len(board.position_count), len(board.least)
    moves = Moves(
        chunk_move=np.zeros(chunks, np.int64),
        chunk=np.zeros(chunks, np.int32),
        target=np.zeros(chunks, np.int32),
        phase_move=np.zeros(phases, np.int64),
        touched=np.zeros(phases, np.int32),
        worst_before=np.zeros(phases, np.int32),
    )
    for done in current().while_left(range(0, work, _SLICE)):
        ended = cooled(board, placed, moves, schedule, goal, min(work, done + _SLICE), work)
        current().charge(_EFFORT_A_VISIT * min(_SLICE, work - done))
        if ended:
            return


def _placed(board: Board, position: IntArray, random: npt.NDArray[np.uint64], *, chains: bool) -> Placed:
    """A placement with these positions; with `chains`, phases without conflicts are kept free of them."""
    load = np.zeros((len(board.least), int(board.bank.max()) + 1), np.int32)
    bank = board.bank[board.kind, position[board.chunk]]
    np.add.at(load, (board.phase, bank), board.times)
    worst = np.maximum(load.max(axis=1, initial=0), board.least)
    column_height = np.zeros(int((board.position_count * board.width).max()), np.int32)
    for k in range(int(board.width.max())):  # column k of each chunk that has one
        wide = board.width > k
        np.add.at(column_height, position[wide] * board.width[wide] + k, 1)
    owner = np.full(load.shape, -1, np.int32)
    owner[board.phase, bank] = board.chunk  # one of several, where a phase is not kept free: not read there
    excess = int(((worst - board.least) * board.weight.astype(np.int64)).sum())
    overfull = int((np.maximum(column_height - board.column_room, 0) ** 2).sum())  # columns beyond their room
    return Placed(
        position=_narrow(position),
        load=load,
        worst=_narrow(worst),
        column_height=column_height,
        kept_free=(board.least == 1) & (worst == 1) & chains,
        owner=owner,
        # Both also of the best so far; no visits, no moves.
        totals=np.array([excess, overfull, excess, overfull, 0, 0], np.int64),
        best=_narrow(position).copy(),
        random=random,
    )


def _narrow(numbers: IntArray) -> Ints:
    return np.ascontiguousarray(numbers, np.int32)
