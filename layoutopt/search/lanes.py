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

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.assignments import (
    ROUND,
    Assignment,
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

# Partial choices looked at, and whole ones counted, for each amount of conflicts that is allowed.
_MOST_LOOKED_AT: Final = 3000
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
    found: dict[int, Assignment] = {}
    chosen: list[FreeAccess] = []
    for one in free:
        direct = is_direct_load(problem.accesses[one.number].op)
        idle = None if direct else with_padded_segments(one, gpu)
        each = [(*_best(problem, other, table), other) for other in (one, idle) if other]
        _, found[one.number], taken = min(each, key=lambda best: best[0])
        chosen.append(taken)
    settled = settled_with(problem, found, chosen)
    accesses = list(settled.accesses)
    steps = {one.number: [one.work.step_loop] for one in chosen}
    for k, access in enumerate(problem.accesses):
        if access.values is not None:
            loops = steps.get(k, [*accesses[k].loops][::-1])
            with unhurried():
                lanes = trace(msgspec.structs.replace(settled, accesses=(accesses[k],)), gpu)
            several = [loop for loop in loops if loop is not None and accesses[k].loops[loop] > 1]
            accesses[k] = reordered(settled, accesses[k], several, Given(lanes.accesses[0], table))
    settled = msgspec.structs.replace(settled, accesses=tuple(accesses))
    with unhurried():  # whose time is over has them checked all the same
        check_lanes(problem, settled, gpu)
    return settled


def _best(problem: Problem, free: FreeAccess, table: IntArray) -> tuple[int, Assignment]:
    """The fewest wavefronts that are found, and the assignment."""
    choices = Digits(free.lanes, table, free.work, problem.tile.shape)
    if is_direct_load(problem.accesses[free.number].op):
        found = as_written(choices) or free.work.natural
    else:
        found = choices.best()
        if choices.excess(choices.under(found)) and can_deal(free.lanes):
            # Where instructions come first, none of them is to look anything up.
            found = dealt_lanes(choices, found, tables=problem.layout.objective.counts_only)
    return choices.wavefronts(found), found


class Given(Struct, frozen=True):
    """An access under a layout.

    Attributes:
        lanes: of the access as the file has it.
        table: byte offsets by row-major index, int64.
    """

    lanes: LaneTrace
    table: IntArray

    @property
    def warp(self) -> int:
        """Lanes of a warp."""
        return int(self.lanes.element.shape[1])

    def counts(self, lanes: LaneTrace) -> Counts:
        """Of all instructions of the access with other lanes."""
        return CountedAccess(lanes).count(self.table)

    def excess(self, lanes: LaneTrace) -> int:
        """Excess wavefronts of all instructions with other lanes."""
        counts = self.counts(lanes)
        return int((counts.wavefronts - counts.ideal).sum())


# Digits: which thread covers which unit -----------------------------------------------------------


class Digits(Given, frozen=True):
    """Assignments of threads to units: digits from the fastest, and XORs of two.

    Attributes:
        shape: of the tile.
        mixed: whether the digits of a segment stand anywhere in a warp, and not before all others.
    """

    work: Work
    shape: tuple[int, ...]
    mixed: bool = False

    @property
    def _decisive(self) -> int:
        """Lanes whose digits decide what phases cost: one phase, where phases are neighbours."""
        phases = self.lanes.rule.phases
        length = len(phases[0])
        aligned = all(phase == tuple(range(k * length, (k + 1) * length)) for k, phase in enumerate(phases))
        return length if aligned and self.work.first % self.warp == 0 else self.warp

    def further(self, chosen: Assignment) -> list[Assignment]:
        """Assignments with one more digit, plain ones first, then XORs of two; digits of a segment lead."""
        span = chosen.span
        if span >= min(self._decisive, self.work.units):
            return []
        segment = [d for d in self.work.in_segment if d not in chosen.digits]
        left = [d for d in self.work.beyond if d not in chosen.digits]
        if self.mixed:
            rest, warp = math.prod(d.size for d in segment), self.warp
            left = [d for d in left if warp % (span * d.size * rest) == 0]
            return [Assignment((*chosen.digits, digit)) for digit in (*segment, *left)]
        if segment:
            # Where a segment is more than a phase, its order decides what a phase is.
            free = self.work.slots == self.work.segment > self._decisive
            first = segment if free else segment[:1]
            return [Assignment((*chosen.digits, digit), chosen.twists) for digit in first]
        found = [Assignment((*chosen.digits, digit), chosen.twists) for digit in left]
        twos = [d for d in left if d.size == 2 and d.stride & (d.stride - 1) == 0]
        for digit, other in itertools.permutations(twos, 2) if span & (span - 1) == 0 else ():
            twist = Twist(other.dim, other.stride, span)
            found.append(Assignment((*chosen.digits, digit), (*chosen.twists, twist)))
        return found

    def completed(self, chosen: Assignment) -> Assignment:
        """The assignment with all digits, those not chosen in their natural order."""
        rest = (d for d in (*self.work.in_segment, *self.work.beyond) if d not in chosen.digits)
        return replace(chosen, digits=(*chosen.digits, *rest))

    def decided(self, chosen: Assignment) -> tuple[IntArray, BoolArray]:
        """Elements of the first warp, and which lanes are active and decided."""
        work = self.work
        number = np.arange(self.warp)
        count = min(chosen.span, self._decisive, work.units, work.threads)
        active = (number < count) & (number % work.slots < work.segment)
        places = unit_coordinates(work, self.completed(chosen), np.where(active, number, 0))
        return np.ravel_multi_index(places, self.shape), active

    def under(self, chosen: Assignment) -> LaneTrace:
        """The lanes of the access."""
        return lanes_under(self.work, self.completed(chosen), self.lanes, self.shape)

    def best(self) -> Assignment:
        """The assignment of the least excess that is found.

        Its decided lanes have no excess; where none is good enough, ever more of it.
        """
        phases = len(self.lanes.element) * len(self.lanes.rule.phases)
        best, allowed = (self.excess(self.under(Assignment(()))), Assignment(())), 0
        while best[0] > allowed * phases and not current().spent:
            whole = itertools.islice(self._grown(allowed), _MOST_COUNTED)
            for chosen in current().while_left(whole):
                best = min(best, (self.excess(self.under(chosen)), chosen), key=lambda found: found[0])
                if best[0] <= allowed * phases:
                    break
            allowed = 2 * allowed + 1
        return self.completed(best[1])

    def _grown(self, allowed: int) -> Iterator[Assignment]:
        """Assignments whose decided lanes have no more excess a phase than is allowed, the plainest first.

        It ends where enough was looked at.
        """
        looked_at, open_ = 0, [Assignment(())]
        while open_ and looked_at <= _MOST_LOOKED_AT:
            chosen = open_.pop()
            children = self.further(chosen)
            if not children:
                yield chosen
                continue
            looked_at += len(children)
            good = [c for c, over in zip(children, self._excess_of(children), strict=True) if over <= allowed]
            open_ += reversed(good)

    def _excess_of(self, children: Sequence[Assignment]) -> list[int]:
        """The excess of a phase, when only the lanes that are decided take part."""
        element, active = map(np.stack, zip(*map(self.decided, children), strict=True))
        counts = count_wavefronts(self.table[element], active, self.lanes.operation, self.lanes.rule)
        over: list[int] = (-(-(counts.wavefronts - counts.ideal) // np.maximum(counts.phases, 1))).tolist()
        return over

    def wavefronts(self, assignment: Assignment) -> int:
        """Of all instructions."""
        return int(self.counts(self.under(assignment)).wavefronts.sum())


def as_written(choices: Digits) -> Assignment | None:
    """The assignment under which the k-th unit lies k-th in memory; None where bits of its number say none.

    Threads in turn then write side by side, as AMD's direct loads must.
    """
    work, table = choices.work, choices.table
    bits, digits = (work.units - 1).bit_length(), work.natural.digits
    if work.steps != 1 or work.units != 1 << bits or len(digits) != bits:
        return None
    number = np.arange(work.units)
    element = np.ravel_multi_index(unit_coordinates(work, work.natural, number), choices.shape)
    width = choices.lanes.operation.width_bytes
    place, rest = np.divmod(table[element] - table[element].min(), width)
    if rest.any() or (np.sort(place) != number).any():
        return None
    unit = np.argsort(place)
    images = [int(unit[1 << k]) for k in range(bits)]
    if moved_bits(Var("unit"), unit) is None or not all(image >> k & 1 for k, image in enumerate(images)):
        return None
    twists = (
        Twist(digits[b].dim, digits[b].stride, 1 << k)
        for k, image in enumerate(images)
        for b in range(bits)
        if b != k and image >> b & 1
    )
    return Assignment(digits, tuple(twists))


# Places: which lane of a warp handles which of its pieces ---------------------------------------------


def dealt_lanes(choices: Digits, known: Assignment, *, tables: bool) -> Assignment:
    """The assignment of the fewest wavefronts that is found.

    Args:
        choices: of the access under the layout.
        known: the best whose segments keep to neighbours.
        tables: whether the places may be looked up.
    """
    work, warp = choices.work, choices.warp
    if not work.keeps_to_warps(warp):
        return known
    together = replace(choices, lanes=replace(choices.lanes, rule=whole_warp(choices.lanes.rule)))
    base = together.best()
    found: list[Assignment] = [known, base]
    if work.first % warp == 0 and warp % work.segment == 0 and work.slots == work.segment:
        found.append(replace(choices, mixed=True).best())
    least = together.wavefronts(base)
    best = min(found, key=choices.wavefronts)
    if not tables or choices.wavefronts(best) <= least:
        return best
    by_table = (a for start in dict.fromkeys((base, known)) for a in _by_tables(choices, start))
    for assignment in current().while_left(by_table):
        best = min(best, assignment, key=choices.wavefronts)
        if choices.wavefronts(best) <= least:
            break
    return best


def _by_tables(choices: Digits, start: Assignment) -> Iterator[Assignment]:
    work, lanes, rule = choices.work, choices.under(start), choices.lanes.rule
    # Groups of banks, as many as a lane's piece takes.
    width = max(lanes.operation.width_bytes, rule.bank_bytes)
    group = choices.table[lanes.element] // width % (rule.banks * rule.bank_bytes // width)
    groups = np.where(lanes.active, group, -1).reshape(work.rounds, work.steps, -1)
    pieces = groups[:, :, work.first : work.first + work.threads].transpose(0, 2, 1)
    cycles = _cycles(work, choices.warp)
    for cycle in cycles:
        node = _table(work, rule, pieces.reshape(-1, work.steps), cycle, cycle == cycles[-1])
        if node is not None:
            yield replace(start, swapped_tid=node)


def _cycles(work: Work, warp: int) -> list[int]:
    whole = work.threads % warp == 0 and work.first % warp == 0
    found = [warp * d for d in _divisors(work.threads // warp)] if whole else [work.threads]
    found += [work.threads * d for d in _divisors(work.rounds)[1:]]
    return [entries for entries in found if entries <= MAX_ENTRIES]


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _table(work: Work, rule: PhaseRule, pieces: IntArray, cycle: int, anyhow: bool) -> Node | None:
    """The place of each thread, from a table in which CP-SAT reorders the lanes of each warp.

    Args:
        work: the threads that take part.
        rule: the phases in which lanes of a warp are served.
        pieces: bank group of each thread's pieces, -1 for none, shape (rounds * threads, steps).
        cycle: entries of the table, which repeats.
        anyhow: whether a table with avoidable conflicts will do.

    Returns:
        None where some warp's order is not found within the effort.
    """
    threads, left = work.threads, _TABLE_EFFORT
    phases = np.argsort(np.concatenate(rule.phases)) // len(rule.phases[0])  # in which each lane is served
    slot = np.arange(cycle)
    lane, place = (work.first + slot % threads) % len(phases), slot % threads
    begins = np.flatnonzero((lane == 0) | (slot % threads == 0)).tolist()
    known: dict[tuple[bytes, bytes], _Dealt | None] = {}
    for begin, end in itertools.pairwise([*begins, cycle]):
        rows = np.concatenate([pieces[at : at + end - begin].T for at in range(begin, len(pieces), cycle)])
        alike = np.where(rows < 0, -1, (rows[:, :, None] == rows[:, None, :]).argmax(axis=2))
        kinds, times = np.unique(alike, axis=0, return_counts=True)
        phase = phases[lane[begin:end]]
        key = kinds.tobytes(), phase.tobytes()
        if key not in known:  # warps whose pieces meet in the same way share an order
            known[key] = dealt = _dealt(kinds, times, phase, min(_EFFORT, left))
            left -= _EFFORT if dealt is None else dealt.effort
        dealt = known[key]
        if dealt is None or current().spent or (dealt.over and not anyhow):
            return None
        place[begin:end] = place[begin:end][dealt.order]
    number = Op("+", (_TID, Op("*", (Const(threads), Var(ROUND))))) if cycle > threads else _TID
    looked_up = Lookup(tuple(place.tolist()), Op("%", (number, Const(cycle))), "")
    first = Op("*", (Op("//", (_TID, Const(cycle))), Const(cycle)))
    return looked_up if cycle > threads else Op("+", (first, looked_up))


class _Dealt(NamedTuple):
    """The piece of each lane, the wavefronts beyond what every order takes, and deterministic time."""

    over: int
    order: IntArray
    effort: float


def _dealt(rows: IntArray, times: IntArray, phase: IntArray, effort: float) -> _Dealt | None:
    """The order of a warp's lanes with the fewest wavefronts over several instructions, by CP-SAT, or None.

    Args:
        rows: groups of each instruction's pieces, -1 for none, shape (instructions, lanes).
        times: how often each instruction comes.
        phase: of each lane.
        effort: the most deterministic time.
    """
    if len(rows) > _MOST_ROWS or effort <= 0:
        return None
    sizes = np.bincount(phase)
    model = Model()
    deal = [[model.boolean() for _ in sizes] for _ in phase]
    for literals in deal:
        model.exactly_one(literals)
    for p, size in enumerate(sizes.tolist()):
        model.linear([(literals[p], 1) for literals in deal], (size, size))
    terms, floor = [], 0
    for row, weight in zip(rows, times, strict=True):
        floor += int(weight) * _least(row[row >= 0], sizes)
        for p in range(len(sizes)):
            cost = model.integer(0, len(phase))
            terms.append((cost, int(weight)))
            for group in np.unique(row[row >= 0]).tolist():
                held = [(deal[lane][p], 1) for lane in np.flatnonzero(row == group)]
                model.linear([*held, (cost, -1)], (-len(phase), 0))
    model.linear(terms, (floor, floor * len(phase)))
    model.minimise(terms)
    answer = model.solve(effort=effort)
    if not answer.values:
        return None
    chosen = np.array([[answer.values[literal] for literal in literals].index(1) for literals in deal])
    order = np.empty(len(phase), np.int64)
    order[np.argsort(phase, kind="stable")] = np.argsort(chosen, kind="stable")
    return _Dealt(answer.objective - floor, order, answer.effort)


def _least(used: IntArray, sizes: IntArray) -> int:
    """Phases that pieces in these groups take at least; `sizes` are how many lanes each has."""
    held = np.cumsum(np.sort(sizes)[::-1])
    busiest = int(np.unique(used, return_counts=True)[1].max(initial=0))
    return max(busiest, 1 + int(np.searchsorted(held, len(used))))


# Turns: in which iteration a thread moves which of its pieces ----------------------------------------


def reordered(problem: Problem, access: Access, loops: Sequence[str], given: Given) -> Access:
    """The access with one of the loops in the order of least excess, written into its index."""
    lanes = given.warp
    ranges = expression_ranges(problem.threads, lanes, access.loops)
    every = ((loop, turn) for loop in loops for turn in _turns(loop, access.loops[loop], lanes))
    least, best = given.excess(given.lanes), None
    for loop, turn in current().while_left(every):
        if least == 0:
            break
        excess = given.excess(_turned(given, access.loops, loop, turn))
        if excess < least:
            least, best = excess, {loop: turn}
    if best is None:
        return access
    chosen: Mapping[str, Node] = best

    def written(text: str | int) -> str:
        return to_text(simplify(substituted(parse(str(text), frozenset(ranges)), chosen), ranges))

    where = None if access.where is None else written(access.where)
    return msgspec.structs.replace(access, index=tuple(map(written, access.index)), where=where)


def _turns(loop: str, trips: int, lanes: int) -> Iterator[Node]:
    """Other orders of a loop v: `v ^ f` where that stays inside, and `v + f`, both modulo the trips.

    f is a multiple of `lane // divide`, of powers of two.
    """
    lane, v = Op("%", (Var("tid"), Const(lanes))), Var(loop)
    divides = [1 << k for k in range((lanes - 1).bit_length())]

    def moved(divide: int, shift: int) -> Node:
        return Op("*", (Op("//", (lane, Const(divide))), Const(shift)))

    if trips & (trips - 1) == 0:
        for divide, k in itertools.product(divides, range((trips - 1).bit_length())):
            yield Op("^", (v, Op("%", (moved(divide, 1 << k), Const(trips)))))
    for divide, shift in itertools.product(divides, range(1, min(trips, 9))):
        yield Op("%", (Op("+", (v, moved(divide, shift))), Const(trips)))


def _turned(given: Given, loops: Mapping[str, int], loop: str, turn: Node) -> LaneTrace:
    """The lanes of the access with another order of a loop."""
    trips, at, lanes = list(loops.values()), list(loops).index(loop), given.lanes
    outer, inner = (math.prod(some) for some in (trips[:at], trips[at + 1 :]))
    values = {"tid": np.arange(given.warp), loop: np.arange(trips[at])[:, None]}
    piece = evaluate(turn, values)[None, :, None, None, :]

    def moved(values: np.ndarray) -> np.ndarray:
        whole = values.reshape(outer, trips[at], inner, -1, values.shape[-1])
        return np.take_along_axis(whole, np.broadcast_to(piece, whole.shape), axis=1).reshape(values.shape)

    return replace(lanes, element=moved(lanes.element), active=moved(lanes.active))
