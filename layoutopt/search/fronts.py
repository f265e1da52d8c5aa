"""Fronts: for each tile, layouts of falling bytes and rising excess, explored as far as they matter.

Each tile is an ordinary problem. Its **front** is the least excess that it can have as its bytes
shrink: solved without a limit, then below the bytes of that answer, and so on. A combination takes
one point of each front; its bytes are those of the tightest packing (`layoutopt.search.packing`). The best
combination has the least weighted excess within the budget, then the fewest bytes. Where a file asks for
something else to come first, the fronts are of that.

Fronts are explored only as far as they matter. What is not yet explored of a front is an option as
well, with bounds instead of values: no smaller than the elements, no better than the point before
it. While the best combination contains such an option, it is explored; once it contains none, no
combination is better. For two tiles and a budget of 9 bytes:

    tile A  excess 0 in 6 bytes, then unexplored: more than 0 in 4 or 5
    tile B  excess 0 in 5 bytes, then unexplored: more than 0 in 4

No pair of known points fits. A's unexplored part with B's known point might (4 + 5): it is explored.

Accesses narrower than a bank word have the same counts at every base of whole words, and some layouts at
finer bases, too: those may begin there. A swizzled layout wants a base aligned to a row of banks. Where
alignment costs bytes, a larger layout without swizzle may take less in all; each tile therefore has a
second front, of layouts that need the alignment of their accesses only, explored where a swizzled layout of
that alignment would win.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.free_lanes import free_accesses, naturally
from layoutopt.engine.case import Case, case_of, case_of_result
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.grammar import Node
from layoutopt.files.checks import fields_of
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current, unhurried
from layoutopt.hardware.devices import Device
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Result, Status
from layoutopt.problems.same_layout import alike, groups, side_by_side
from layoutopt.problems.types import Block, NamedTile, Problem
from layoutopt.search.packing import Plan, least, pack, rounded_up

# Bases in a word at which a layout is counted, to place it at less than whole words.
_MOST_BASES: Final = 4


@dataclass(slots=True)
class Unit:
    """What gets one layout: a tile, or the tiles that share it.

    Attributes:
        tiles: the first gives the coordinates.
        asked: all accesses, in these coordinates.
        case: the same; where lanes or widths are to be chosen, with lanes in their natural order and the
            widest accesses.
        plain_alignment: of a base at which any layout without a swizzle has its counts.
        least_alignment: what every base needs: that of the elements, as far as the file's bases have it,
            and the widest access.
        stages: copies of the layout, of all its tiles where they lie side by side.
        copies: of each tile, where they lie side by side, else of all: stages, and elements of `case`.
        front: layouts of any kind.
        plain: layouts that need the plain alignment only, once they matter.
    """

    tiles: tuple[NamedTile, ...]
    asked: Problem
    case: Case
    plain_alignment: int
    least_alignment: int
    stages: int
    copies: tuple[tuple[int, int], ...]
    front: "Front" = field(init=False)
    plain: "Front | None" = None

    @property
    def chooses_widths(self) -> bool:
        """Whether the width of an access is to be chosen."""
        return any(isinstance(access.bytes, tuple) for access in self.asked.accesses)

    @property
    def is_settled(self) -> bool:
        """Whether its lanes and widths are, and excess or bytes come first: its layouts are cases of one."""
        objective = self.asked.layout.objective
        return objective.counts_only and not self.asked.is_free and not self.chooses_widths

    def case_of(self, result: Result) -> Case:
        """The accesses with the lanes and widths that a result chose."""
        if self.is_settled:
            return self.case
        with unhurried():
            return case_of_result(self.asked, self.case.device, result)

    def value(self, result: Result) -> Fraction:
        """The objective's first part: weighted excess, wavefronts if widths are free, index cost or time."""
        assert result.layout is not None
        objective, cost = self.asked.layout.objective, result.proof.index_cost
        if objective.instructions_first:
            return Fraction(cost.value if cost is not None else 0)
        if objective.time_first:
            return exact(result.estimate.cycles if result.estimate is not None else 0)
        if self.chooses_widths:
            case = self.case_of(result)
            counts = case.count(case.table(result.layout))
            return exact(case.weighted_wavefronts(counts) / case.lanes.weight_unit)
        return exact(result.weighted_excess or 0)

    def bound(self, result: Result) -> Fraction:
        """Lower bound of the same; a guess, on which no proof rests, where widths are to be chosen."""
        proved = exact(result.proof.objective.lower_bound)
        if self.is_settled or result.layout is None:
            return proved
        value = self.value(result)
        if self.asked.layout.objective.counts_only and result.status is not Status.OPTIMAL:
            return value - exact(result.weighted_excess or 0) + proved
        return value

    @property
    def several_sizes(self) -> bool:
        """Whether tiles of several sizes lie side by side."""
        return len({count for _, count in self.copies}) > 1

    @property
    def elements_bytes(self) -> int:
        """Bytes of the elements of all stages."""
        return self.bytes_at(self._elements(), 1)

    def _elements(self) -> tuple[int, ...]:
        return tuple(count * self.case.lowered.tile.element_bytes for _, count in self.copies)

    def sizes(self, table: IntArray) -> tuple[int, ...]:
        """Bytes of one stage of each of `copies`, under byte offsets by row-major index."""
        return tuple(self.case.size(table[:count]) for _, count in self.copies)

    def least_sizes(self, point: "Point") -> tuple[int, ...]:
        """Bytes of one stage of each of `copies` at least, of a layout with those of `point` or more."""
        everything, problem = self.case.lowered.tile.bytes, self.case.problem
        alone = {"none", "order", "pad"}  # whose bytes rise with the one pitch of a matrix, in every tile
        rows = all(alike(tile, problem.tile) for tile in self.tiles) and len(problem.tile.shape) == 2
        if rows and problem.layout.families is not None and {*problem.layout.families} <= alone:
            return point.sizes
        return tuple(point.bytes if size == everything else size for size in self._elements())

    def bytes_at(self, sizes: Sequence[int], alignment: int, stages: int | None = None) -> int:
        """Bytes of all stages, (so many, where given), one of each of `copies` taking so many."""
        steps = [rounded_up(size, alignment) for size in sizes]
        counts = [count if stages is None else stages for count, _ in self.copies]
        return sum(n * step for n, step in zip(counts, steps, strict=True)) - steps[-1] + sizes[-1]

    def room(self, all_stages: int) -> int:
        """Bytes that the layout may take at most, where so many are there for all stages."""
        everything = self.case.lowered.tile.bytes
        copies = list(zip(self.copies, self._elements(), strict=True))
        smaller = sum(stages * size for (stages, _), size in copies if size < everything)
        return (all_stages - smaller) // sum(stages for (stages, _), size in copies if size == everything)


def units_of(block: Block, gpu: Device) -> tuple[Unit, ...]:
    """The groups of tiles with one layout each, in the order of the file.

    Raises:
        ProblemFileError: a tile's accesses contradict it; the field is that of the file of all tiles.
    """
    units = []
    for group, problem in groups(block):
        # Others in their own coordinates first, where an index outside the tile shows.
        others = [((tile,), block.problem(tile)) for tile in group[1:]]
        for tiles, own in [*others, (group, problem)]:
            whole = tiles[0].element_bits != group[0].element_bits
            case = _reference(block, tiles, own, gpu, whole=whole)
        given = problem.layout.alignment_bytes
        elements = min(case.problem.tile.element_alignment, given or 16)
        widest = max(access.operation.width_bytes for access in case.lanes.accesses)
        plain = max(case.alignment(swizzled=False), elements)
        unit_bytes = case.lowered.tile.element_bytes
        if side_by_side(block):
            copies = tuple((tile.stages, tile.bytes // unit_bytes) for tile in group)
        else:
            copies = ((group[0].stages, case.lowered.tile.elements),)
        stages = sum(count for count, _ in copies)
        units.append(Unit(group, problem, case, plain, max(widest, elements), stages, copies))
    return tuple(units)


def _reference(
    block: Block, tiles: Sequence[NamedTile], problem: Problem, gpu: Device, *, whole: bool
) -> Case:
    """Tiles of a block with lanes in their natural order and the widest accesses.

    `whole`: the layout is sought over smaller elements, so that accesses must keep every element whole.
    """
    with fields_of(block, *tiles):
        if problem.is_free:
            free = free_accesses(problem, gpu)
            problem = naturally(problem, free)
        case = case_of(problem, gpu)
        touched = np.full(case.lowered.tile.elements, not whole)
        for access in case.lanes.accesses if whole else ():
            for k in range(access.width_elements):
                touched[access.starts + k] = True
        if touched.all():
            return case
        at = case.coordinates(int(np.argmin(touched)))
        needs = f"none touches element {at}; same_layout with smaller elements needs one there"
        raise ProblemFileError("accesses", needs)


def plan_of(block: Block, units: Sequence[Unit]) -> Plan:
    """Which units live when."""
    number = {tile.name: i for i, unit in enumerate(units) for tile in unit.tiles}
    if block.same_layout and not side_by_side(block):
        return Plan(tuple(range(len(units))))
    times = tuple(tuple(dict.fromkeys(number[name] for name in time)) for time in block.overlay)
    named = {i for time in times for i in time}
    return Plan(tuple(i for i in range(len(units)) if i not in named), times)


class Point(Struct, frozen=True):
    """A layout of a front.

    Attributes:
        bytes: of one stage. Every smaller layout belongs to a later point.
        sizes: of one stage of each of the unit's copies.
        alignment: of the base.
        value: what comes first, see `Unit.value`.
        bound: lower bound of it in as many bytes as the point was solved for.
        second: weighted excess, where that does not come first.
        operations: index cost.
    """

    bytes: int
    sizes: tuple[int, ...]
    alignment: int
    value: Fraction
    bound: Fraction
    second: Fraction
    operations: int
    result: Result


@dataclass(slots=True)
class Front:
    """Points of falling bytes, and what is known of the layouts that are smaller still.

    Attributes:
        points: so far.
        rest: lower bound of the excess in fewer bytes, and 1 where it is exceeded; None: nothing is smaller.
        stuck: the time ran out over what is smaller.
        had_seconds: that there were for the last point; None without a limit.
        floor: lower bound of the weighted excess of every layout of any kind.
    """

    problem: Problem
    points: list[Point] = field(default_factory=list)
    rest: tuple[Fraction, int] | None = (Fraction(0), 0)
    stuck: bool = False
    had_seconds: float | None = None
    floor: Fraction = Fraction(0)
    reason: str = ""

    def explore(self, unit: Unit, solver: Callable[[Problem], Result], *, again: bool = False) -> None:
        """Find the next point; or the last one `again`, with more time, of which the better stays."""
        before = self.points[:-1] if again else self.points
        known = self.points[-1].bound if again else self.rest[0] if self.rest is not None else Fraction(0)
        layout = self.problem.layout
        if before:
            layout = msgspec.structs.replace(layout, max_bytes=before[-1].bytes - 1)
        result = solver(msgspec.structs.replace(self.problem, layout=layout))
        proved = result.proof.objective
        with unhurried():
            bound = max(unit.bound(result), known)
            point = _point(unit, result, bound) if result.layout is not None else None
        if proved.everywhere:
            self.floor = max(self.floor, exact(proved.lower_bound))
        if point is None:
            if not again:
                self.reason = result.reason
                self.stuck = result.status is not Status.INFEASIBLE
                self.rest = (bound, 0) if self.stuck else None
            return
        if again:
            tied = replace(self.points[-1], bound=bound), point
            point = min(
                tied, key=lambda p: (p.value, p.second, p.bytes, p.result.status is not Status.OPTIMAL)
            )
        self.points = [*before, point]
        exceeded = point.result.status is Status.OPTIMAL or not unit.asked.layout.objective.counts_only
        self.rest = (bound, int(exceeded))
        if point.bytes <= self.problem.tile.bytes:
            self.rest = None


def _point(unit: Unit, result: Result, bound: Fraction) -> Point:
    assert result.layout is not None
    assert result.bytes is not None
    assert result.weighted_excess is not None
    cost, excess_first = result.proof.index_cost, unit.asked.layout.objective.counts_only
    sizes = unit.sizes(unit.case.table(result.layout))
    alignment = own_alignment(unit, result.layout, result.alignment_bytes or 1, unit.case_of(result))
    second = Fraction(0) if excess_first else exact(result.weighted_excess)
    operations = cost.value if cost else 0
    return Point(result.bytes, sizes, alignment, unit.value(result), bound, second, operations, result)


def own_alignment(unit: Unit, layout: Layout | Node, alignment: int, case: Case | None = None) -> int:
    """The least alignment of its base at which a layout has its counts: less than a word, for some.

    Args:
        layout: the layout, or the formula of its elements.
        alignment: at which it has its counts.
        case: the accesses, where the layout was found with other lanes or widths than those of the unit.
    """
    case = case or unit.case
    alignment = max(alignment, unit.least_alignment)
    if alignment > unit.plain_alignment:
        return alignment  # a swizzle's row of banks
    counts = None
    while alignment > max(unit.least_alignment, unit.plain_alignment // _MOST_BASES):
        counts = counts or case.measure(layout)
        bases = range(alignment // 2, unit.plain_alignment, alignment)
        if any(case.measure(layout, base) != counts for base in bases):
            break
        alignment //= 2
    return alignment


def exact(value: float) -> Fraction:
    """The decimal number that a weight was given as: sums of them then compare exactly."""
    return Fraction(str(value))


Cost = tuple[Fraction, int, Fraction]
Key = tuple[Cost, int, int, int]


class Option(Struct, frozen=True):
    """What one unit may contribute to a combination.

    Attributes:
        size: bytes of all stages.
        alignment: of the base.
        cost: what comes first, or a lower bound; 1 where it is more than that, by an unknown amount; and the
            weighted excess, where that does not come first.
        operations: index cost.
        point: the layout; None where there is only a bound.
        front: what to explore to learn more; None for the front of plain layouts not begun.
    """

    size: int
    alignment: int
    cost: Cost
    operations: int
    point: Point | None
    front: Front | None


class Choice(Struct, frozen=True):
    """The best combination of known points; and of options when bounds stand for what is unknown."""

    points: tuple[Point, ...] | None
    found: Key | None
    bound: Key | None


def _options(unit: Unit, optimistic: bool) -> Iterator[Option]:
    """Points, and what is not known; with `optimistic`, bounds in place of points that are not proved."""
    alignment = unit.least_alignment if optimistic else unit.plain_alignment
    for front in (unit.front, unit.plain):
        if front is None:
            continue
        for p in front.points:
            cost = (p.bound if optimistic else p.value, 0, p.second)
            promised = unit.least_sizes(p)
            size = unit.bytes_at(promised if optimistic else p.sizes, p.alignment)
            yield Option(size, p.alignment, cost, p.operations, p, front)
            searched = unit.plain is not None and p.alignment > unit.plain_alignment
            if p.alignment > alignment and not searched:
                size = unit.bytes_at(promised, alignment)
                yield Option(size, alignment, cost, 0, None, None)
        if front.rest is not None and (optimistic or not front.stuck):
            cost = (*front.rest, Fraction(0))
            yield Option(unit.elements_bytes, unit.least_alignment, cost, 0, None, front)


def explore(
    units: Sequence[Unit],
    plan: Plan,
    limit: int | None,
    solver: Callable[[Unit, float, Problem], Result],
) -> Choice:
    """Explore fronts until the best combination is known."""
    time = current()
    elements = [unit.elements_bytes for unit in units]
    for i, unit in enumerate(units):
        unit.front = Front(_within(unit, _room(i, unit, plan, elements, limit)))
    while not time.spent:
        chosen = _best(plan, [list(_options(unit, False)) for unit in units], limit)
        if chosen is None:
            break
        options = list(zip(units, chosen[1], strict=True))
        unknown = [(unit, o) for unit, o in options if o.point is None]
        cut_short = [(unit, o) for unit, o in options if _may_be_better(o)]
        if not unknown and not cut_short:
            break
        # The smallest first: what it leaves of its time is for the others.
        smallest_first = sorted(unknown or cut_short, key=lambda pair: pair[0].case.lowered.tile.elements)
        for k, (unit, option) in enumerate(smallest_first):
            front = option.front
            if front is None:
                layout = msgspec.structs.replace(
                    unit.front.problem.layout, alignment_bytes=unit.plain_alignment
                )
                unit.plain = front = Front(msgspec.structs.replace(unit.front.problem, layout=layout))
            # All that is left for first points and for those known, half of it for later ones.
            share = (0.5 if unknown and front.points else 1.0) / (len(smallest_first) - k)
            front.had_seconds = None if time.seconds is None else time.seconds * share
            front.explore(unit, partial(solver, unit, share), again=not unknown)
    known = [[o for o in _options(unit, False) if o.point is not None] for unit in units]
    best = _best(plan, known, limit)
    bound = _best(plan, [list(_options(unit, True)) for unit in units], limit)
    points = None if best is None else tuple(o.point for o in best[1] if o.point is not None)
    return Choice(points, best and best[0], bound and bound[0])


def _may_be_better(option: Option) -> bool:
    """Whether a point was cut short by the clock and there is now more time for it than there was."""
    time = current()
    front, point = option.front, option.point
    if front is None or point is None or point is not front.points[-1] or not time.ran_out:
        return False
    if point.result.status is Status.OPTIMAL or time.seconds is None or front.had_seconds is None:
        return False
    return time.seconds > front.had_seconds


def _room(i: int, unit: Unit, plan: Plan, elements: Sequence[int], limit: int | None) -> int | None:
    """Bytes that a stage may take at most if every other tile takes no more than its elements."""
    if limit is None:
        return None
    others = [0 if k == i else size for k, size in enumerate(elements)]
    mine = tuple(time for time in plan.times if i in time)
    return unit.room(limit - least(Plan(plan.always, mine or plan.times), others))


def _within(unit: Unit, room: int | None) -> Problem:
    problem = unit.case.problem if unit.is_settled else unit.asked
    layout = problem.layout
    limits = [size for size in (layout.max_bytes, room) if size is not None]
    changed = msgspec.structs.replace(layout, max_bytes=min(limits, default=None))
    return msgspec.structs.replace(problem, layout=changed)


def _best(
    plan: Plan, options: Sequence[Sequence[Option]], limit: int | None
) -> tuple[Key, tuple[Option, ...]] | None:
    """The combination of least cost within the limit, then bytes, then unknowns, then index cost."""
    ordered = [sorted(mine, key=lambda o: (o.cost, o.size, o.operations)) for mine in options]
    if not all(ordered):
        return None
    smallest = [min(o.size for o in mine) for mine in ordered]
    # Least cost of the units from i on: sums of costs are compared as costs are.
    least_cost: list[Cost] = [_NOTHING]
    for mine in reversed(ordered):
        least_cost.insert(0, _sum(least_cost[0], mine[0].cost))
    best: tuple[Key, tuple[Option, ...]] | None = None

    def extend(chosen: tuple[Option, ...], cost: Cost) -> None:
        """Try every option of the next unit, unless the least of the rest is too much even so."""
        nonlocal best
        i = len(chosen)
        sizes = [*(o.size for o in chosen), *smallest[i:]]
        lower = least(plan, sizes)
        if limit is not None and lower > limit:
            return
        if best is not None and (_sum(cost, least_cost[i]), lower) > best[0][:2]:
            return
        if i < len(ordered):
            for option in ordered[i]:
                extend((*chosen, option), _sum(cost, option.cost))
            return
        size, _ = pack(plan, sizes, [o.alignment for o in chosen])
        if limit is not None and size > limit:
            return
        unknown = sum(o.point is None for o in chosen)
        key = (cost, size, unknown, sum(o.operations for o in chosen))
        if best is None or key < best[0]:
            best = key, chosen

    extend((), _NOTHING)
    return best


_NOTHING: Final[Cost] = (Fraction(0), 0, Fraction(0))


def _sum(one: Cost, other: Cost) -> Cost:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]
