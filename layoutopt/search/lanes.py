"""Which lane handles which piece under a layout that is given (`under_layout`).

    digits    which thread covers which unit: digits of the number of a unit, and XORs of two of them
              (`layoutopt.accesses.assignments`)
    places    which lane of a warp handles which of its pieces, by a table, where digits leave conflicts
    turns     in which iteration a thread moves which of its pieces: piece `v ^ f(lane)` in iteration v

What a phase costs depends on what its lanes cover together, so only the digits for the fastest lanes matter:
those of one phase. They are chosen one by one, the plainest first; as soon as the lanes decided so far
conflict, the rest is not looked at. What is left is counted by the conflict engine, every lane of it.
Under a layout that is linear over F2, as every XOR swizzle of a tile of powers of two is, digits without
conflicts are found wherever segments by themselves have none: their banks are a subspace, and every subspace
can be completed.

A wide access is served in several phases, and a phase is a few lanes: 8 of 16 bytes, 16 of 8. A phase takes
one piece from each group of banks without a conflict, so that n pieces in one group take n phases at least;
and no group having more than there are phases, pieces dealt in turn, group by group, have no conflicts.
(Where a thread makes two accesses to its piece, their groups are the two sides of a bipartite graph, its
edges the pieces, and that as many colours as the busiest group has pieces are enough is Koenig's theorem.)
So lanes change places: the digits of an assignment in another order where one fits, else by a table, the
shorter the better: of a warp, of the block, of all iterations.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.assignments import (
    ROUND,
    Assignment,
    Digit,
    Twist,
    Work,
    lanes_under,
    unit_coordinates,
)
from layoutopt.accesses.free_lanes import (
    FreeAccess,
    can_deal,
    check_lanes,
    free_accesses,
    naturally,
    settled_with,
    whole_warp,
    with_padded_segments,
)
from layoutopt.accesses.trace import LaneTrace, expression_ranges, trace
from layoutopt.engine.conflicts import Counts, count_wavefronts
from layoutopt.engine.referee import CountedAccess
from layoutopt.expressions.bits import moved_bits
from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, evaluate, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import current, unhurried
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.hardware.operations import is_direct_load
from layoutopt.model.cp_sat import Model
from layoutopt.problems.types import Access, Problem
from layoutopt.search.modes import divisors

# Partial choices looked at, and whole ones counted, for each amount of conflicts that is allowed.
_MOST_EXTENDED: Final = 3000
_MOST_COUNTED: Final = 48
MAX_ENTRIES: Final = 2048  # of a table
# The solver's deterministic time for the lanes of one warp, and for a table; how many instructions of a warp
# may differ.
_EFFORT: Final = 0.1
_TABLE_EFFORT: Final = 0.5
_MOST_ROWS: Final = 64
_TID: Final = Var("tid")


def under_layout(
    problem: Problem, gpu: Device, table: IntArray, free: Sequence[FreeAccess] | None = None
) -> Problem:
    """The problem with the best lanes that are found under a layout that is given; itself where none is free.

    Args:
        problem: some of whose accesses may be free.
        table: byte offset of the element, or of the byte that holds it, by row-major index, int64.
        free: the accesses whose lanes are free, where they are known.

    Raises:
        ProblemFileError: an access cannot be free.
    """
    if not problem.is_free:
        return problem
    free = free_accesses(problem, gpu) if free is None else free
    if table.min() < 0:  # no layout, as whoever asks will find
        return naturally(problem, free)
    best: list[_Assigned] = []
    for access in free:
        direct = is_direct_load(problem.accesses[access.number].op)
        padded = None if direct else with_padded_segments(access, gpu)  # idle threads keep them in one warp
        found = (_best(problem, variant, table) for variant in (access, padded) if variant is not None)
        best.append(min(found, key=lambda assigned: assigned.wavefronts))
    assignments = {found.access.number: found.assignment for found in best}
    settled = settled_with(problem, assignments, [found.access for found in best])
    # Loops that may run in another order: where lanes were assigned, that over the steps of a unit; else any.
    step_loops = {found.access.number: [found.access.work.step_loop] for found in best}
    accesses = list(settled.accesses)
    for k, access_of_file in enumerate(problem.accesses):
        if access_of_file.values is not None:  # the order in which a thread moves its elements is open, too
            trips = accesses[k].loops
            may_turn = step_loops.get(k, list(reversed(trips)))
            loops = [loop for loop in may_turn if loop is not None and trips[loop] > 1]
            with unhurried():
                lanes = trace(replace(settled, accesses=(accesses[k],)), gpu)
            placed = PlacedAccess(lanes.accesses[0], table)
            accesses[k] = reordered(settled, accesses[k], loops, placed)
    settled = replace(settled, accesses=tuple(accesses))
    with unhurried():  # checked even if the time is over
        check_lanes(problem, settled, gpu)
    return settled


class _Assigned(NamedTuple):
    """The best assignment found for a free access."""

    wavefronts: int
    assignment: Assignment
    access: FreeAccess


def _best(problem: Problem, free: FreeAccess, table: IntArray) -> _Assigned:
    """The assignment of the fewest wavefronts that is found for a free access under a layout."""
    search = AssignmentSearch(free.lanes, table, free.work, problem.tile.shape)
    if is_direct_load(problem.accesses[free.number].op):
        found = as_written(search) or free.work.natural
    else:
        found = search.best()
        if search.excess(search.lanes_under(found)) and can_deal(free.lanes):
            # Where instructions come first, none of them is to look anything up.
            found = dealt_lanes(search, found, tables=problem.layout.objective.counts_only)
    return _Assigned(search.wavefronts(found), found, free)


class PlacedAccess(Struct, frozen=True):
    """An access under a layout."""

    lanes: LaneTrace  # of the access as the file has it
    table: IntArray  # the layout: byte offsets by row-major index, int64

    @property
    def warp(self) -> int:
        """Lanes of a warp."""
        return int(self.lanes.element.shape[1])

    def counts(self, lanes: LaneTrace) -> Counts:
        """Wavefronts of all instructions of the access with these lanes."""
        return CountedAccess(lanes).count(self.table)

    def excess(self, lanes: LaneTrace) -> int:
        """Excess wavefronts of all instructions with these lanes."""
        return int(self.counts(lanes).excess.sum())


# Digits: which thread covers which unit -----------------------------------------------------------


class AssignmentSearch(PlacedAccess, frozen=True):
    """The search for the assignment of threads to units under a layout, digit by digit."""

    work: Work  # the units, and the threads that take part
    shape: tuple[int, ...]  # of the tile
    # Whether the digits of a segment may stand anywhere in a warp, between others, and need not come first.
    segments_apart: bool = False

    @property
    def _deciding_lanes(self) -> int:
        """The number of lanes, from the first of a warp, whose units decide what phases cost.

        Those of one phase, where phases are lanes side by side; else the warp.
        """
        phases = self.lanes.rule.phases
        length = len(phases[0])
        aligned = all(phase == tuple(range(k * length, (k + 1) * length)) for k, phase in enumerate(phases))
        return length if aligned and self.work.first % self.warp == 0 else self.warp

    def extensions(self, chosen: Assignment) -> list[Assignment]:
        """The assignment with one more digit, plain ones first, then XORs of two; none: enough is decided.

        The digits of a segment, whose threads are neighbours in global memory, come before all others, unless
        `segments_apart`.
        """
        span = chosen.span  # lanes whose units are told apart by the digits chosen
        if span >= min(self._deciding_lanes, self.work.units):
            return []
        of_segment = [d for d in self.work.in_segment if d not in chosen.digits]
        others = [d for d in self.work.beyond if d not in chosen.digits]

        def with_digit(digit: Digit, *twists: Twist) -> Assignment:
            return Assignment((*chosen.digits, digit), (*chosen.twists, *twists))

        if self.segments_apart:
            # What is left of a segment must find room in the same warp.
            segment_rest = math.prod(d.size for d in of_segment)
            others = [d for d in others if self.warp % (span * d.size * segment_rest) == 0]
            return [with_digit(digit) for digit in (*of_segment, *others)]
        if of_segment:
            # Where a segment is more than a phase, and no slot of it idle, its order decides what a phase is.
            any_order = self.work.slots == self.work.segment > self._deciding_lanes
            return [with_digit(digit) for digit in (of_segment if any_order else of_segment[:1])]
        found = [with_digit(digit) for digit in others]
        if span & (span - 1) == 0:  # a digit of size 2 is then one bit of the lane, and can flip another
            bits = [d for d in others if d.size == 2 and d.stride & (d.stride - 1) == 0]
            for digit, flipped in itertools.permutations(bits, 2):
                found.append(with_digit(digit, Twist(flipped.dim, flipped.stride, divide=span)))
        return found

    def completed(self, chosen: Assignment) -> Assignment:
        """The assignment with all digits, those not chosen in their natural order."""
        rest = (d for d in self.work.natural.digits if d not in chosen.digits)
        return replace(chosen, digits=(*chosen.digits, *rest))

    def decided_lanes(self, chosen: Assignment) -> tuple[IntArray, BoolArray]:
        """Element of each lane of the first warp; whether it is active and `chosen` decides its unit."""
        work = self.work
        lane = np.arange(self.warp)
        decided = min(chosen.span, self._deciding_lanes, work.units, work.threads)
        active = (lane < decided) & (lane % work.slots < work.segment)
        at = unit_coordinates(work, self.completed(chosen), np.where(active, lane, 0))
        return np.ravel_multi_index(at, self.shape), active

    def lanes_under(self, chosen: Assignment) -> LaneTrace:
        """The lanes of the access under an assignment, completed."""
        return lanes_under(self.work, self.completed(chosen), self.lanes, self.shape)

    def best(self) -> Assignment:
        """The assignment of the least excess that is found.

        The first whose lanes have no excess; where none is good enough, the first of at most 1, 3, 7, ... a
        phase.
        """
        phases = len(self.lanes.element) * len(self.lanes.rule.phases)
        best, allowed = Assignment(()), 0
        least = self.excess(self.lanes_under(best))
        while least > allowed * phases and not current().spent:
            candidates = itertools.islice(self._within(allowed), _MOST_COUNTED)
            for chosen in current().while_left(candidates):
                excess = self.excess(self.lanes_under(chosen))
                if excess < least:
                    least, best = excess, chosen
                if least <= allowed * phases:
                    break
            allowed = 2 * allowed + 1
        return self.completed(best)

    def _within(self, allowed: int) -> Iterator[Assignment]:
        """Assignments whose decided lanes have at most `allowed` excess a phase, the plainest first.

        Depth first; it ends after `_MOST_EXTENDED` partial assignments.
        """
        extended, stack = 0, [Assignment(())]
        while stack and extended <= _MOST_EXTENDED:
            chosen = stack.pop()
            extensions = self.extensions(chosen)
            if not extensions:
                yield chosen
                continue
            extended += len(extensions)
            excess = self._excess_a_phase(extensions)
            stack += [e for e, over in zip(extensions, excess, strict=True) if over <= allowed][::-1]

    def _excess_a_phase(self, assignments: Sequence[Assignment]) -> list[int]:
        """The excess of a phase under each assignment, if only the decided lanes take part; rounded up."""
        element, active = map(np.stack, zip(*map(self.decided_lanes, assignments), strict=True))
        counts = count_wavefronts(self.table[element], active, self.lanes.operation, self.lanes.rule)
        excess: list[int] = (-(-counts.excess // np.maximum(counts.phases, 1))).tolist()
        return excess

    def wavefronts(self, assignment: Assignment) -> int:
        """Wavefronts of all instructions of the access."""
        return int(self.counts(self.lanes_under(assignment)).wavefronts.sum())


def as_written(search: AssignmentSearch) -> Assignment | None:
    """The assignment in which thread t moves the unit that lies t-th in memory, as AMD direct loads must.

    None unless the number of that unit is linear over F2 in the bits of t, and bit i of it has bit i of t: an
    assignment has bit i of t as digit i, and its twists only flip that by other bits.
    """
    work, table = search.work, search.table
    bits, digits = (work.units - 1).bit_length(), work.natural.digits
    if work.steps != 1 or work.units != 1 << bits or len(digits) != bits:
        return None
    number = np.arange(work.units)
    element = np.ravel_multi_index(unit_coordinates(work, work.natural, number), search.shape)
    place, rest = np.divmod(table[element] - table[element].min(), search.lanes.operation.width_bytes)
    if rest.any() or (np.sort(place) != number).any():
        return None  # units do not lie side by side
    unit_at = np.argsort(place)
    is_linear = moved_bits(Var("unit"), unit_at) is not None
    images = [int(unit_at[1 << k]) for k in range(bits)]  # bits of the unit that each bit of t flips
    if not is_linear or not all(image >> k & 1 for k, image in enumerate(images)):
        return None
    twists = (
        Twist(digits[b].dim, digits[b].stride, 1 << k)
        for k, image in enumerate(images)
        for b in range(bits)
        if b != k and image >> b & 1
    )
    return Assignment(digits, tuple(twists))


# Places: which lane of a warp handles which of its pieces ---------------------------------------------


def dealt_lanes(search: AssignmentSearch, known: Assignment, *, tables: bool) -> Assignment:
    """The assignment of the fewest wavefronts that is found where lanes of a warp may change places.

    Args:
        search: of the access under the layout.
        known: the best assignment in which neighbours cover a segment.
        tables: whether the place of a lane may come from a table, too, not from a formula only.
    """
    work, warp = search.work, search.warp
    if not work.keeps_to_warps(warp):
        return known  # a segment would be torn
    # Served in one phase, a warp would cost the same in every order of its lanes. So what `best` then finds,
    # which only chooses which warp has which units, is a lower bound of all orders.
    in_any_order = replace(search, lanes=replace(search.lanes, rule=whole_warp(search.lanes.rule)))
    base = in_any_order.best()
    least = in_any_order.wavefronts(base)
    found: list[Assignment] = [known, base]
    # Where segments without idle slots lie within warps, their digits may stand between others.
    if work.first % warp == 0 and warp % work.segment == 0 and work.slots == work.segment:
        found.append(replace(search, segments_apart=True).best())
    best = min(found, key=search.wavefronts)
    if not tables or search.wavefronts(best) <= least:
        return best
    with_tables = (a for start in dict.fromkeys((base, known)) for a in _with_tables(search, start))
    for assignment in current().while_left(with_tables):
        best = min(best, assignment, key=search.wavefronts)
        if search.wavefronts(best) <= least:
            break
    return best


def _with_tables(search: AssignmentSearch, start: Assignment) -> Iterator[Assignment]:
    """The assignment with the lanes of each warp reordered by a table, the shortest table first."""
    work, lanes, rule = search.work, search.lanes_under(start), search.lanes.rule
    # A group: neighbouring banks, as many as a lane's piece takes.
    width = max(lanes.operation.width_bytes, rule.bank_bytes)
    group = search.table[lanes.element] // width % (rule.banks * rule.bank_bytes // width)
    groups = np.where(lanes.active, group, -1).reshape(work.rounds, work.steps, -1)
    of_threads = groups[:, :, work.first : work.first + work.threads].transpose(0, 2, 1)
    lengths = _table_lengths(work, search.warp)
    for length in lengths:
        may_conflict = length == lengths[-1]
        place = _table(work, rule, of_threads.reshape(-1, work.steps), length, may_conflict)
        if place is not None:
            yield replace(start, swapped_tid=place)


def _table_lengths(work: Work, warp: int) -> list[int]:
    """Entries that a table may have: of whole warps that repeat, of all threads, of several rounds."""
    whole_warps = work.threads % warp == 0 and work.first % warp == 0
    found = [warp * d for d in divisors(work.threads // warp)] if whole_warps else [work.threads]
    found += [work.threads * d for d in divisors(work.rounds)[1:]]
    return [entries for entries in found if entries <= MAX_ENTRIES]


def _table(work: Work, rule: PhaseRule, groups: IntArray, length: int, may_conflict: bool) -> Node | None:
    """The thread whose unit each thread moves, by a table in which CP-SAT reorders the lanes of each warp.

    Args:
        work: the threads that take part.
        rule: the phases in which lanes of a warp are served.
        groups: bank group of each thread's pieces, -1 for none, shape (rounds * threads, steps).
        length: entries of the table, which repeats.
        may_conflict: whether a table with avoidable conflicts will do.

    Returns:
        An expression over `tid` and the round; None where some warp's order is not found within the effort.
    """
    effort_left = _TABLE_EFFORT
    phase_of_lane = np.argsort(np.concatenate(rule.phases)) // len(rule.phases[0])
    # Of each entry, the thread that has it, and its lane; the table holds these threads in another order.
    thread = np.arange(length) % work.threads
    lane, table = (work.first + thread) % len(phase_of_lane), thread.copy()
    warp_begins = np.flatnonzero((lane == 0) | (thread == 0)).tolist()
    known: dict[tuple[bytes, bytes], _WarpOrder | None] = {}
    for begin, end in itertools.pairwise([*warp_begins, length]):
        # The instructions of all warps that have these entries, shape (instructions, lanes).
        rows = np.concatenate([groups[at : at + end - begin].T for at in range(begin, len(groups), length)])
        # Each group named by the first lane that has it: warps whose pieces meet alike share an order.
        pattern = np.where(rows < 0, -1, (rows[:, :, None] == rows[:, None, :]).argmax(axis=2))
        patterns, times = np.unique(pattern, axis=0, return_counts=True)
        phase = phase_of_lane[lane[begin:end]]
        key = patterns.tobytes(), phase.tobytes()
        if key not in known:
            known[key] = found = _warp_order(patterns, times, phase, min(_EFFORT, effort_left))
            effort_left -= found.effort if found is not None else 0
        order = known[key]
        if order is None or current().spent or (order.avoidable and not may_conflict):
            return None
        table[begin:end] = table[begin:end][order.lanes]
    return _looked_up(table, work.threads)


def _looked_up(table: IntArray, threads: int) -> Node:
    """The thread that a table names, over `tid`; over the round, too, where it has more entries than threads.

    A shorter table repeats: it reorders every `len(table)` threads in a row alike.
    """
    length, of_all_rounds = Const(len(table)), len(table) > threads
    number = Op("+", (_TID, Op("*", (Const(threads), Var(ROUND))))) if of_all_rounds else _TID
    named = Lookup(tuple(table.tolist()), Op("%", (number, length)), "")
    return named if of_all_rounds else Op("+", (Op("*", (Op("//", (_TID, length)), length)), named))


class _WarpOrder(NamedTuple):
    """An order of a warp's lanes."""

    avoidable: int  # wavefronts beyond `_least_wavefronts`, which every order takes
    lanes: IntArray  # whose piece each lane moves, int64
    effort: float  # deterministic time of the solver


def _warp_order(groups: IntArray, times: IntArray, phase: IntArray, effort: float) -> _WarpOrder | None:
    """The order of a warp's lanes of the fewest wavefronts over several instructions that CP-SAT finds.

    None where it finds no order within the effort, or there are too many instructions.

    Args:
        groups: bank group (the banks that one piece fills) of each lane's piece, a piece of its own; -1 for
            none; shape (instructions, lanes).
        times: how often each instruction comes.
        phase: number of the phase in which each lane is served.
        effort: limit of the solver's deterministic time.
    """
    if len(groups) > _MOST_ROWS or effort <= 0:
        return None
    lanes_of_phase = np.bincount(phase)
    model = Model()
    served_in = [[model.boolean() for _ in lanes_of_phase] for _ in phase]  # each piece, in each phase
    for literals in served_in:
        model.exactly_one(literals)
    for p, count in enumerate(lanes_of_phase.tolist()):
        model.linear([(literals[p], 1) for literals in served_in], (count, count))
    # Wavefronts of each instruction in each phase with their weight, and the least that they sum to.
    terms, floor = [], 0
    for row, weight in zip(groups, times, strict=True):
        floor += int(weight) * _least_wavefronts(row[row >= 0], lanes_of_phase)
        for p in range(len(lanes_of_phase)):
            wavefronts = model.integer(0, len(phase))
            terms.append((wavefronts, int(weight)))
            for group in np.unique(row[row >= 0]).tolist():  # no group has more pieces in the phase
                load = [(served_in[lane][p], 1) for lane in np.flatnonzero(row == group)]
                model.linear([*load, (wavefronts, -1)], (-len(phase), 0))
    # Implied, for speed: a row takes its floor at least, and at most a wavefront a lane.
    model.linear(terms, (floor, floor * len(phase)))
    model.minimise(terms)
    answer = model.solve(effort=effort)
    if not answer.values:
        return None
    chosen = np.array([[answer.values[literal] for literal in literals].index(1) for literals in served_in])
    # Pieces chosen for a phase go to its lanes in the order they had.
    piece_of_lane = np.empty(len(phase), np.int64)
    piece_of_lane[np.argsort(phase, kind="stable")] = np.argsort(chosen, kind="stable")
    return _WarpOrder(avoidable=answer.objective - floor, lanes=piece_of_lane, effort=answer.effort)


def _least_wavefronts(groups: IntArray, lanes_of_phase: IntArray) -> int:
    """Wavefronts that pieces in these bank groups take at least, in phases of so many lanes."""
    lanes_of_phases = np.cumsum(np.sort(lanes_of_phase)[::-1])  # the largest phases first
    busiest = int(np.unique(groups, return_counts=True)[1].max(initial=0))
    return max(busiest, 1 + int(np.searchsorted(lanes_of_phases, len(groups))))


# Turns: in which iteration a thread moves which of its pieces ----------------------------------------


def reordered(problem: Problem, access: Access, loops: Sequence[str], placed: PlacedAccess) -> Access:
    """The access with one of the loops in the order of least excess, written into its index.

    Itself where no other order of a loop that is tried has less.

    Args:
        problem: whose threads.
        access: as written.
        loops: those that may have another order; one of them gets it.
        placed: the access under the layout.
    """
    ranges = expression_ranges(problem.threads, placed.warp, access.loops)
    turns = ((loop, turn) for loop in loops for turn in _turns(loop, access.loops[loop], placed.warp))
    least, best = placed.excess(placed.lanes), dict[str, Node]()  # what to write for the loop's variable
    for loop, turn in current().while_left(turns):
        if least == 0:
            break
        excess = placed.excess(_turned(placed, access.loops, loop, turn))
        if excess < least:
            least, best = excess, {loop: turn}
    if not best:
        return access

    def written(text: str | int) -> str:
        return to_text(simplify(substituted(parse(str(text), frozenset(ranges)), best), ranges))

    where = None if access.where is None else written(access.where)
    return replace(access, index=tuple(map(written, access.index)), where=where)


def _turns(loop: str, trips: int, lanes: int) -> Iterator[Node]:
    """Other orders of a loop v: `v ^ f % trips`, trips a power of two, then `(v + f) % trips`.

    f is `lane // divide * factor`, of every power of two `divide` below `lanes`.
    """
    lane, v = Op("%", (Var("tid"), Const(lanes))), Var(loop)
    divides = [1 << k for k in range((lanes - 1).bit_length())]

    def f(divide: int, factor: int) -> Node:
        return Op("*", (Op("//", (lane, Const(divide))), Const(factor)))

    if trips & (trips - 1) == 0:
        for divide, k in itertools.product(divides, range((trips - 1).bit_length())):
            yield Op("^", (v, Op("%", (f(divide, 1 << k), Const(trips)))))
    for divide, factor in itertools.product(divides, range(1, min(trips, 9))):
        yield Op("%", (Op("+", (v, f(divide, factor))), Const(trips)))


def _turned(placed: PlacedAccess, loops: Mapping[str, int], loop: str, turn: Node) -> LaneTrace:
    """The lanes of the access if a thread moves in each iteration of `loop` the piece that `turn` names."""
    trips, at, lanes = list(loops.values()), list(loops).index(loop), placed.lanes
    outer, inner = math.prod(trips[:at]), math.prod(trips[at + 1 :])
    values = {"tid": np.arange(placed.warp), loop: np.arange(trips[at])[:, None]}
    iteration = evaluate(turn, values)[None, :, None, None, :]

    def turned(values: np.ndarray) -> np.ndarray:
        by_loop = values.reshape(outer, trips[at], inner, -1, values.shape[-1])
        every = np.broadcast_to(iteration, by_loop.shape)
        return np.take_along_axis(by_loop, every, axis=1).reshape(values.shape)

    return replace(lanes, element=turned(lanes.element), active=turned(lanes.active))
