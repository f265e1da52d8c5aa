"""Fronts: for each tile, layouts of falling bytes and rising excess, explored as far as they matter.

Each tile is an ordinary problem. Its **front** is the least excess that it can have as its bytes
shrink: solved without a limit, then below the bytes of that answer, and so on. A combination takes
one point of each front; its bytes are those of the tightest packing (`layoutopt.search.packing`). The best
combination has the least weighted excess within the budget, then the fewest bytes. Where a file asks for
something else to come first, the fronts are of that.

Fronts are explored only as far as they matter. The unexplored rest of a front is an option of a combination
as well, with bounds instead of values: no smaller than the elements, no better than the point before
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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.free_lanes import free_accesses, naturally
from layoutopt.engine.case import Case, case_of
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.grammar import Node
from layoutopt.files.checks import fields_of
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current, unhurried
from layoutopt.hardware.devices import Device
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Result, Status
from layoutopt.problems.same_layout import Groups, alike, side_by_side
from layoutopt.problems.types import Block, NamedTile, Problem
from layoutopt.search.packing import Plan, least_bytes, pack, rounded_up
from layoutopt.search.verify import Answer

# Bases in a word at which a layout is counted, to place it at less than whole words.
_MOST_BASES: Final = 4


class Copies(NamedTuple):
    """Stages of a tile, and the elements of each."""

    stages: int
    elements: int


@dataclass(slots=True)
class Unit:
    """What gets one layout: a tile, or the tiles that share it."""

    tiles: tuple[NamedTile, ...]  # the first gives the coordinates
    asked: Problem  # all accesses, in these coordinates
    # As `asked`; where lanes or widths are to be chosen, with lanes in their natural order and the widest
    # accesses.
    case: Case
    plain_alignment: int  # bytes, of a base at which any layout without a swizzle has its counts
    # Bytes that every base is a multiple of: the alignment of the elements, as far as the file's bases have
    # it, and the widest access.
    least_alignment: int
    stages: int  # copies of the layout, of all its tiles where they lie side by side
    # Of each tile, where they lie side by side, else one for all; elements are those of `case`.
    copies: tuple[Copies, ...]
    front: "Front" = field(init=False)  # layouts of any kind
    plain: "Front | None" = None  # layouts that need the plain alignment only; None until they may matter

    @property
    def chooses_instructions(self) -> bool:
        """Whether widths or instructions are to be chosen, so that excess alone says too little."""
        widths_open = any(isinstance(access.bytes, tuple) for access in self.asked.accesses)
        return widths_open or self.asked.chooses_instructions

    @property
    def is_settled(self) -> bool:
        """Whether lanes and widths are fixed, and excess or bytes come first: `case` is then all of it."""
        objective = self.asked.layout.objective
        return objective.counts_only and not self.asked.is_free and not self.chooses_instructions

    def value(self, answer: Answer) -> Fraction:
        """What the objective minimises first: index cost, time, weighted excess, or wavefronts."""
        result = answer.result
        objective, cost = self.asked.layout.objective, result.proof.index_cost
        if objective.instructions_first:
            return Fraction(cost.value if cost is not None else 0)
        if objective.time_first:
            return exact(result.estimate.cycles if result.estimate is not None else 0)
        if self.chooses_instructions:
            return exact(answer.wavefronts)
        return exact(result.weighted_excess or 0)

    def bound(self, answer: Answer) -> Fraction:
        """Lower bound of `value`; a guess, on which no proof rests, where the unit is not settled."""
        result, proved = answer.result, exact(answer.result.proof.objective.lower_bound)
        if self.is_settled or result.layout is None:
            return proved
        value = self.value(answer)
        if self.asked.layout.objective.counts_only and result.status is not Status.OPTIMAL:
            return value - exact(result.weighted_excess or 0) + proved
        return value

    @property
    def several_sizes(self) -> bool:
        """Whether tiles of several sizes lie side by side."""
        return len({copies.elements for copies in self.copies}) > 1

    @property
    def elements_bytes(self) -> int:
        """Bytes of the elements of all stages."""
        return self.bytes_at(self._stage_elements_bytes(), 1)

    def _stage_elements_bytes(self) -> tuple[int, ...]:
        """Bytes of the elements of one stage of each of `copies`."""
        return tuple(copies.elements * self.case.lowered.tile.element_bytes for copies in self.copies)

    def sizes(self, table: IntArray) -> tuple[int, ...]:
        """Bytes of one stage of each of `copies`, under a table of byte offsets by row-major index."""
        return tuple(self.case.size(table[: copies.elements]) for copies in self.copies)

    def least_sizes(self, point: "Point") -> tuple[int, ...]:
        """Bytes of one stage of each of `copies` at least, in a layout of `point.bytes` bytes or more."""
        largest, problem = self.case.lowered.tile.bytes, self.case.problem
        one_pitch = {"none", "order", "pad"}  # in every tile, bytes rise with the one pitch of a matrix
        rows = all(alike(tile, problem.tile) for tile in self.tiles) and len(problem.tile.shape) == 2
        if rows and problem.layout.families is not None and {*problem.layout.families} <= one_pitch:
            return point.sizes
        # Of tiles smaller than the largest only their elements are certain.
        return tuple(point.bytes if size == largest else size for size in self._stage_elements_bytes())

    def bytes_at(self, sizes: Sequence[int], alignment: int, stages: int | None = None) -> int:
        """Bytes of all stages, the last without what alignment adds.

        Args:
            sizes: bytes of one stage of each of `copies`.
            alignment: of the base of each stage.
            stages: of each of `copies`, in place of its own.
        """
        steps = [rounded_up(size, alignment) for size in sizes]
        counts = [copies.stages if stages is None else stages for copies in self.copies]
        return sum(n * step for n, step in zip(counts, steps, strict=True)) - steps[-1] + sizes[-1]

    def room(self, all_stages: int) -> int:
        """Bytes that one stage of the largest tile may take where `all_stages` is what all stages may."""
        largest = self.case.lowered.tile.bytes
        copies = list(zip(self.copies, self._stage_elements_bytes(), strict=True))
        smaller = sum(c.stages * size for c, size in copies if size < largest)
        return (all_stages - smaller) // sum(c.stages for c, size in copies if size == largest)


def units_of(block: Block, sharing: Groups, gpu: Device) -> tuple[Unit, ...]:
    """What gets one layout each: the groups of tiles that share one (`sharing`), in the order of the file.

    Raises:
        ProblemFileError: a tile's accesses contradict it; the field is that of the file of all tiles.
    """
    units = []
    for group, problem in sharing:
        for tile in group[1:]:  # in its own coordinates, where an index outside the tile shows
            smaller_elements = tile.element_bits != group[0].element_bits
            _reference(block, (tile,), block.problem(tile), gpu, whole=smaller_elements)
        case = _reference(block, group, problem, gpu, whole=False)
        of_elements = min(case.problem.tile.element_alignment, problem.layout.alignment_bytes or 16)
        widest = max(access.operation.width_bytes for access in case.lanes.accesses)
        plain = max(case.alignment(swizzled=False), of_elements)
        element_bytes = case.lowered.tile.element_bytes
        if side_by_side(block):
            copies = tuple(Copies(tile.stages, tile.bytes // element_bytes) for tile in group)
        else:
            copies = (Copies(group[0].stages, case.lowered.tile.elements),)
        stages = sum(c.stages for c in copies)
        units.append(Unit(group, problem, case, plain, max(widest, of_elements), stages, copies))
    return tuple(units)


def _reference(
    block: Block, tiles: Sequence[NamedTile], problem: Problem, gpu: Device, *, whole: bool
) -> Case:
    """The case of tiles that share a layout: open lanes in their natural order, open widths the widest.

    `whole`: the layout is sought over smaller elements than those of the tile, so that every element must be
    touched by an access, which keeps it whole; else a ProblemFileError.
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
    """Which units live when, by number; `overlay` of the file lists the tiles that live together."""
    if block.same_layout and not side_by_side(block):
        return Plan(tuple(range(len(units))))
    number = {tile.name: i for i, unit in enumerate(units) for tile in unit.tiles}
    times = tuple(tuple(dict.fromkeys(number[name] for name in time)) for time in block.overlay)
    overlaid = {i for time in times for i in time}
    return Plan(tuple(i for i in range(len(units)) if i not in overlaid), times)


class Point(Struct, frozen=True):
    """A layout of a front."""

    bytes: int  # of one stage. Every smaller layout belongs to a later point.
    sizes: tuple[int, ...]  # bytes of one stage of each of the unit's copies
    alignment: int  # of the base, in bytes
    value: Fraction  # what the objective minimises first, see `Unit.value`
    bound: Fraction  # lower bound of it in as many bytes as the point was solved for
    second: Fraction  # weighted excess, where that does not come first, else 0
    operations: int  # index cost, which decides between equal values and bytes
    result: Result
    case: Case  # the accesses, with the lanes and widths of `result`


@dataclass(slots=True)
class Front:
    """Points of falling bytes, and bounds of the layouts that are smaller still."""

    problem: Problem  # what the first point is solved for; the next ones have fewer bytes
    points: list[Point] = field(default_factory=list)  # so far
    # Lower bound of the cost in fewer bytes than the last point, if any; None: no layout is smaller.
    smaller: "Cost | None" = field(default_factory=lambda: Cost(Fraction(0)))
    stuck: bool = False  # of the layouts that are smaller none was found, and none is excluded
    last_seconds: float | None = None  # time that there was for the last point; None without a limit
    floor: Fraction = Fraction(0)  # lower bound of the weighted excess of every layout of any kind
    reason: str = ""  # why there is no smaller layout, or none was found

    def explore(self, unit: Unit, solver: Callable[[Problem], Answer], *, again: bool = False) -> None:
        """Add the next point, of fewer bytes; with `again`, solve for the last one with more time.

        Of two layouts for the last point the better is kept. Where none is found, `smaller`, `stuck` and
        `reason` say what is known.

        `unit`: whose front this is; it says what a result has of the first objective, and its bound.
        """
        before = self.points[:-1] if again else self.points  # which stay as they are
        known_bound = Fraction(0)  # of what is solved for now
        if again:
            known_bound = self.points[-1].bound
        elif self.smaller is not None:
            known_bound = self.smaller.value
        layout = self.problem.layout
        if before:
            layout = replace(layout, max_bytes=before[-1].bytes - 1)
        answer = solver(replace(self.problem, layout=layout))
        result, bound = answer.result, max(unit.bound(answer), known_bound)
        with unhurried():  # counting the layout at its bases must not stop where the time is over
            point = _point(unit, answer, bound) if result.layout is not None else None
        proved = result.proof.objective
        if proved.everywhere:  # of every layout, of any size
            self.floor = max(self.floor, exact(proved.lower_bound))
        if point is None:
            if not again:  # else the last point stays as it was
                self.reason = result.reason
                self.stuck = result.status is not Status.INFEASIBLE  # none found, none excluded
                self.smaller = Cost(bound) if self.stuck else None
            return
        if again:
            both = replace(self.points[-1], bound=bound), point
            point = min(
                both, key=lambda p: (p.value, p.second, p.bytes, p.result.status is not Status.OPTIMAL)
            )
        self.points = [*before, point]
        # An optimal point is the smallest of its value, so that smaller layouts cost more (`above`); where
        # instructions or time come first that is not proved, but assumed.
        costs_more = point.result.status is Status.OPTIMAL or not unit.asked.layout.objective.counts_only
        has_pads = point.bytes > self.problem.tile.bytes  # else nothing is smaller
        self.smaller = Cost(bound, above=int(costs_more)) if has_pads else None


def _point(unit: Unit, answer: Answer, bound: Fraction) -> Point:
    """The point of a front that an answer with a layout is; `bound` as in `Point`."""
    result = answer.result
    assert result.layout is not None
    assert result.bytes is not None
    assert result.weighted_excess is not None
    cost, excess_first = result.proof.index_cost, unit.asked.layout.objective.counts_only
    return Point(
        bytes=result.bytes,
        sizes=unit.sizes(unit.case.table(result.layout)),
        alignment=own_alignment(unit, result.layout, result.alignment_bytes or 1, answer.case),
        value=unit.value(answer),
        bound=bound,
        second=Fraction(0) if excess_first else exact(result.weighted_excess),
        operations=cost.value if cost else 0,
        result=result,
        case=answer.case,
    )


def own_alignment(unit: Unit, layout: Layout | Node, alignment: int, case: Case | None = None) -> int:
    """The least alignment of a layout's base, in bytes, at which its accesses take the same wavefronts.

    Halved as long as they do at every base at odd multiples of the half; for some it is less than a word. Of
    layouts without a swizzle none needs more than `unit.plain_alignment`, a row of banks or less.

    Args:
        layout: the layout, or the formula of its elements.
        alignment: bytes, at which it has the counts for which it was chosen.
        case: the accesses, where the layout was found with other lanes or widths than those of the unit.
    """
    case = case or unit.case
    alignment = max(alignment, unit.least_alignment)
    if alignment > unit.plain_alignment:
        return alignment  # of a swizzle, which reads bits of the address
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


class Cost(NamedTuple):
    """What a layout or a combination costs, compared in this order."""

    value: Fraction  # what the objective minimises first, or a lower bound of it
    above: int = 0  # how many of its layouts have more than their bound in `value`, by an unknown amount
    second: Fraction = Fraction(0)  # weighted excess, where that does not come first

    def plus(self, other: "Cost") -> "Cost":
        """The cost of both together."""
        return Cost(self.value + other.value, self.above + other.above, self.second + other.second)


class Key(NamedTuple):
    """What combinations are compared by, in this order."""

    cost: Cost
    bytes: int  # of all tiles, packed
    unknown: int  # options that are bounds only, without a layout
    operations: int  # index cost


class Option(Struct, frozen=True):
    """What one unit may contribute to a combination."""

    size: int  # bytes of all stages
    alignment: int  # of the base, in bytes
    cost: Cost  # of the layout, or a lower bound of what a layout costs that is not found yet
    operations: int = 0  # index cost
    point: Point | None = None  # the layout; None where there is only a bound
    # What to explore to learn more; None: the front of layouts of plain alignment, not begun yet.
    front: Front | None = None


class Combination(NamedTuple):
    """An option of each unit, together."""

    key: Key
    options: tuple[Option, ...]


class Explored(Struct, frozen=True):
    """The best combination of layouts found, one of each unit; None where no combination fits the limit."""

    points: tuple[Point, ...] | None
    key: Key | None  # what it costs and takes
    bound: Key | None  # lower bound of the key of every combination


def _options(unit: Unit, *, optimistic: bool) -> Iterator[Option]:
    """The points of a unit's fronts, and bounds of the layouts that are not found yet.

    With `optimistic`, a point has its lower bounds in place of its values, and no option is left out because
    time ran out over it: the best combination of such options is a bound of every combination.
    """
    lower_alignment = unit.least_alignment if optimistic else unit.plain_alignment
    for front in (unit.front, unit.plain):
        if front is None:
            continue
        for p in front.points:
            cost = Cost(p.bound if optimistic else p.value, second=p.second)
            least_sizes = unit.least_sizes(p)
            size = unit.bytes_at(least_sizes if optimistic else p.sizes, p.alignment)
            yield Option(size, p.alignment, cost, p.operations, p, front)
            # A layout of lower alignment may cost as little, unless the front of such layouts has begun.
            begun = unit.plain is not None and p.alignment > unit.plain_alignment
            if p.alignment > lower_alignment and not begun:
                size = unit.bytes_at(least_sizes, lower_alignment)
                yield Option(size, lower_alignment, cost)
        if front.smaller is not None and (optimistic or not front.stuck):
            yield Option(unit.elements_bytes, unit.least_alignment, front.smaller, front=front)


def explore(
    units: Sequence[Unit], plan: Plan, limit: int | None, solver: Callable[[Unit, float, Problem], Answer]
) -> Explored:
    """Explore the fronts of the units until the best combination is known, or the time is over.

    Args:
        plan: which units live when.
        limit: bytes that all may take together.
        solver: solves a problem of a unit in a share of the time left.
    """
    time = current()
    elements = [unit.elements_bytes for unit in units]
    for i, unit in enumerate(units):
        unit.front = Front(_within(unit, _room(i, unit, plan, elements, limit)))
    while not time.spent:
        chosen = _best(plan, [_options(unit, optimistic=False) for unit in units], limit)
        if chosen is None:
            break
        # Bounds without a layout are explored; where there are none, points again that the clock cut short.
        options = list(zip(units, chosen.options, strict=True))
        unknown = [(unit, o) for unit, o in options if o.point is None]
        cut_short = [(unit, o) for unit, o in options if _deserves_more_time(o)]
        if not unknown and not cut_short:
            break
        # The smallest first: what it leaves of its time is for the others.
        smallest_first = sorted(unknown or cut_short, key=lambda pair: pair[0].case.lowered.tile.elements)
        for k, (unit, option) in enumerate(smallest_first):
            front = option.front or _begun_plain(unit)  # none: a bound of what needs the plain alignment only
            # Of the time left, the further points of fronts get half, all others all of it, in equal parts.
            share = (0.5 if unknown and front.points else 1.0) / (len(smallest_first) - k)
            front.last_seconds = None if time.seconds is None else time.seconds * share
            front.explore(unit, partial(solver, unit, share), again=not unknown)
    found = [[o for o in _options(unit, optimistic=False) if o.point is not None] for unit in units]
    best = _best(plan, found, limit)
    bound = _best(plan, [_options(unit, optimistic=True) for unit in units], limit)
    points = None if best is None else tuple(o.point for o in best.options if o.point is not None)
    return Explored(points, key=best and best.key, bound=bound and bound.key)


def _begun_plain(unit: Unit) -> Front:
    """The front of a unit's layouts that need the plain alignment only, without points yet."""
    layout = replace(unit.front.problem.layout, alignment_bytes=unit.plain_alignment)
    unit.plain = Front(replace(unit.front.problem, layout=layout))
    return unit.plain


def _deserves_more_time(option: Option) -> bool:
    """Whether the clock cut an option's point short and there is now more time for it than there was."""
    time = current()
    front, point = option.front, option.point
    if front is None or point is None or point is not front.points[-1] or not time.ran_out:
        return False
    if point.result.status is Status.OPTIMAL or time.seconds is None or front.last_seconds is None:
        return False
    return time.seconds > front.last_seconds


def _room(i: int, unit: Unit, plan: Plan, elements: Sequence[int], limit: int | None) -> int | None:
    """Bytes that a stage of unit i may take if every other unit takes only the bytes of its `elements`."""
    if limit is None:
        return None
    others = [0 if k == i else size for k, size in enumerate(elements)]
    times_of_unit = tuple(time for time in plan.times if i in time)
    return unit.room(limit - least_bytes(Plan(plan.always, times_of_unit or plan.times), others))


def _within(unit: Unit, room: int | None) -> Problem:
    problem = unit.case.problem if unit.is_settled else unit.asked
    layout = problem.layout
    limits = [size for size in (layout.max_bytes, room) if size is not None]
    changed = replace(layout, max_bytes=min(limits, default=None))
    return replace(problem, layout=changed)


def _best(plan: Plan, options: Sequence[Iterable[Option]], limit: int | None) -> Combination | None:
    """The combination of an option of each unit with the least key; None if none is within `limit` bytes.

    `options`: those of each unit.
    """
    ordered = [sorted(of_unit, key=lambda o: (o.cost, o.size, o.operations)) for of_unit in options]
    if not all(ordered):
        return None
    smallest = [min(o.size for o in of_unit) for of_unit in ordered]
    least_cost = [Cost(Fraction(0))]  # entry i: of the units from i on
    for of_unit in reversed(ordered):
        least_cost.insert(0, least_cost[0].plus(of_unit[0].cost))
    best: Combination | None = None

    def extend(chosen: tuple[Option, ...], cost: Cost) -> None:
        """Branch and bound: every option of the next unit, unless the rest at its least is too much."""
        nonlocal best
        i = len(chosen)
        sizes = [*(o.size for o in chosen), *smallest[i:]]
        lower = least_bytes(plan, sizes)
        if limit is not None and lower > limit:
            return
        if best is not None and (cost.plus(least_cost[i]), lower) > (best.key.cost, best.key.bytes):
            return
        if i < len(ordered):
            for option in ordered[i]:
                extend((*chosen, option), cost.plus(option.cost))
            return
        size = pack(plan, sizes, [o.alignment for o in chosen]).end
        if limit is not None and size > limit:
            return
        without_layout = sum(o.point is None for o in chosen)
        key = Key(cost, size, without_layout, operations=sum(o.operations for o in chosen))
        if best is None or key < best.key:
            best = Combination(key, chosen)

    extend((), Cost(Fraction(0)))
    return best
