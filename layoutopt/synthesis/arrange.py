"""Several tiles in one block of memory: one layout for each, within a common budget.

Each tile is an ordinary problem. Its **front** is the least excess that it can have as its bytes
shrink: solved without a limit, then below the bytes of that answer, and so on. A combination takes
one point of each front; its bytes are those of the tightest packing (`layoutopt.synthesis.packing`). The best
combination has the least weighted excess within the budget, then the fewest bytes.

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

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from layoutopt.budget import Budget
from layoutopt.engine.case import Case, case_of
from layoutopt.errors import VerificationError
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, IndexCost, Proof, Result, Status
from layoutopt.problems.tile_set_file import fields_of
from layoutopt.problems.types import FAMILIES, Access, NamedTile, Problem, TileSet
from layoutopt.search.proposal import Ask
from layoutopt.synthesis.packing import Plan, least, pack, rounded_up
from layoutopt.synthesis.solve import solve_cases
from layoutopt.synthesis.verify import INDEX_COST_MEASURE

ARRANGEMENT_SCHEMA: Final = "layoutopt.arrangement/1"
# Bases in a word at which a layout is counted, to place it at less than whole words.
_MOST_BASES: Final = 4


class PlacedTile(Struct, frozen=True):
    """A layout and where it lies.

    Attributes:
        tiles: names of the tiles that it serves: one, or all that share it. The layout is in the
            coordinates of the first.
        base_bytes: where its first stage begins.
        stages: how many copies there are.
        stage_bytes: from one copy to the next.
        result: the layout of one copy, with what is proved of it alone.
    """

    tiles: tuple[str, ...]
    base_bytes: int
    stages: int
    stage_bytes: int
    result: Result


class Arrangement(Struct, frozen=True, rename={"schema_": "schema"}):
    """The answer to a problem of several tiles. Without layouts, `bytes` and what follows from them are null.

    Attributes:
        tiles: in the order of the file.
        bytes: of all tiles and stages, alignment included.
        max_bytes: the budget.
        alignment_bytes: of the base of the whole.
        excess: one pass over every access, one stage.
        proof: of all tiles together.
    """

    problem: str
    target: str
    status: Status
    proof: Proof
    reason: str
    tiles: tuple[PlacedTile, ...] = ()
    bytes: int | None = None
    max_bytes: int | None = None
    alignment_bytes: int | None = None
    excess: int | float | None = None
    weighted_excess: float | None = None
    schema_: str = ARRANGEMENT_SCHEMA

    def to_json(self) -> dict[str, Any]:
        """The arrangement as JSON-ready data, the schema first."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": data.pop("schema"), **data}


def arrange(
    tile_set: TileSet,
    *,
    time_limit: float | None = None,
    workers: int = 1,
    conflict_free: bool = False,
    target: Device | None = None,
    budget: Budget | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Arrangement:
    """Layouts of least weighted excess in all, then fewest bytes, each verified where it lies.

    Args:
        tile_set: what to solve.
        time_limit: seconds; None for no limit. The best combination so far is the answer when it ends.
        workers: solver threads. The answer does not depend on it unless the time runs out.
        conflict_free: make any excess infeasible.
        target: the device, where it is not the one the problem names.
        budget: replaces `time_limit`, for callers that stop the search from another thread.
        progress: called with a line of text from time to time.

    Raises:
        ProblemFileError: the problem contradicts itself.
        VerificationError: the conflict engine does not confirm the model; nothing is returned.
    """
    gpu = target or device(tile_set.target)
    units = _units(tile_set, gpu)
    plan = _plan(tile_set, units)
    time = budget or Budget(time_limit)

    def solver(unit: _Unit, share: float, problem: Problem) -> Result:
        name = unit.tiles[0].name
        with fields_of(tile_set, *unit.tiles):
            ask = Ask(time.part(share), conflict_free, workers, lambda text: progress(f"{name}: {text}"))
            return solve_cases([unit.case.constrained(problem.layout)], ask)

    limit = tile_set.layout.max_bytes
    elements = least(plan, [unit.bytes_at(unit.elements_bytes, 1) for unit in units])
    if limit is not None and elements > limit:
        reason = f"the elements alone need {elements} bytes; layout.max_bytes is {limit} ({EVERY_LAYOUT})"
        nothing = Proof(Bound(0, EVERY_LAYOUT), Bound(elements, EVERY_LAYOUT))
        return Arrangement(tile_set.name, gpu.name, Status.INFEASIBLE, nothing, reason, max_bytes=limit)
    choice = _explore(units, plan, limit, solver, time)
    return _arrangement(tile_set, gpu, units, plan, choice, elements)


# The problem as parts ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Unit:
    """What gets one layout: a tile, or the tiles that share it.

    Attributes:
        tiles: the first gives the coordinates.
        case: all accesses, in these coordinates.
        plain_alignment: of a base at which any layout without a swizzle has its counts.
        least_alignment: what every base needs: that of the elements, and the widest access.
        front: layouts of any kind.
        plain: layouts that need the plain alignment only, once they matter.
    """

    tiles: tuple[NamedTile, ...]
    case: Case
    plain_alignment: int
    least_alignment: int
    front: _Front = field(init=False)
    plain: _Front | None = None

    @property
    def elements_bytes(self) -> int:
        """Bytes of the elements of one stage."""
        return self.case.lowered.tile.bytes

    def bytes_at(self, stage: int, alignment: int) -> int:
        """Bytes of all stages, where one takes `stage` bytes."""
        return (self.tiles[0].stages - 1) * rounded_up(stage, alignment) + stage


def groups(tile_set: TileSet) -> tuple[tuple[tuple[NamedTile, ...], Problem], ...]:
    """The tiles that get one layout, and their accesses as one problem, in the order of the file.

    The problem is in the coordinates of the group's first tile.
    """
    tiles = {tile.name: tile for tile in tile_set.tiles}
    times = tile_set.overlay if tile_set.same_layout else ()
    shared = tuple(tiles[name] for time in times for name in time)
    members: list[tuple[NamedTile, ...]] = [(tile,) for tile in tile_set.tiles if tile not in shared]
    members += [shared] if shared else []
    members.sort(key=lambda group: min(map(tile_set.tiles.index, group)))
    found = []
    for group in members:
        accesses = tuple(
            _viewed(access, tile.shape, group[0].shape)
            for tile in group
            for access in tile_set.problem(tile).accesses
        )
        found.append((group, msgspec.structs.replace(tile_set.problem(group[0]), accesses=accesses)))
    return tuple(found)


def _units(tile_set: TileSet, gpu: Device) -> tuple[_Unit, ...]:
    units = []
    for group, problem in groups(tile_set):
        for tile in group[1:]:  # in its own coordinates, where an index outside the tile shows
            with fields_of(tile_set, tile):
                case_of(tile_set.problem(tile), gpu)
        with fields_of(tile_set, *group):
            case = case_of(problem, gpu)
        elements = case.problem.tile.element_alignment
        widest = max(access.operation.width_bytes for access in case.accesses)
        plain = max(case.alignment(swizzled=False), elements)
        units.append(_Unit(group, case, plain, max(widest, elements)))
    return tuple(units)


def _viewed(access: Access, shape: tuple[int, ...], onto: tuple[int, ...]) -> Access:
    """The access in the coordinates of a tile of shape `onto` that holds the same elements, row-major."""
    if shape == onto:
        return access
    flat = "0"
    for extent, text in zip(shape, access.index, strict=True):
        flat = f"({flat})*{extent} + ({text})"
    index, inner = [], 1
    for d in reversed(range(len(onto))):
        index.append(f"({flat}) // {inner}" + (f" % {onto[d]}" if d else ""))
        inner *= onto[d]
    return msgspec.structs.replace(access, index=tuple(reversed(index)))


def _plan(tile_set: TileSet, units: Sequence[_Unit]) -> Plan:
    number = {tile.name: i for i, unit in enumerate(units) for tile in unit.tiles}
    if tile_set.same_layout:
        return Plan(tuple(range(len(units))))
    times = tuple(tuple(number[name] for name in time) for time in tile_set.overlay)
    named = {i for time in times for i in time}
    return Plan(tuple(i for i in range(len(units)) if i not in named), times)


# Fronts --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Point:
    """A layout of a front.

    Attributes:
        bytes: of one stage. Every smaller layout belongs to a later point.
        alignment: of the base.
        excess: weighted.
        bound: proved lower bound of the weighted excess in as many bytes as the point was solved for.
        operations: index cost.
        result: the answer.
    """

    bytes: int
    alignment: int
    excess: Fraction
    bound: Fraction
    operations: int
    result: Result


@dataclass(slots=True)
class _Front:
    """Points of falling bytes, and what is known of the layouts that are smaller still.

    Attributes:
        problem: whose layouts.
        points: so far.
        rest: lower bound of the excess in fewer bytes, and 1 where it is exceeded; None: nothing is smaller.
        stuck: the time ran out over what is smaller.
        floor: lower bound of the weighted excess of every layout of any kind.
    """

    problem: Problem
    points: list[_Point] = field(default_factory=list)
    rest: tuple[Fraction, int] | None = (Fraction(0), 0)
    stuck: bool = False
    floor: Fraction = Fraction(0)
    reason: str = ""

    def explore(self, unit: _Unit, solver: Callable[[Problem], Result]) -> None:
        """Find the next point."""
        assert self.rest is not None
        layout = self.problem.layout
        if self.points:
            layout = msgspec.structs.replace(layout, max_bytes=self.points[-1].bytes - 1)
        result = solver(msgspec.structs.replace(self.problem, layout=layout))
        proved = result.proof.objective
        bound = max(_exact(proved.lower_bound), self.rest[0])
        if proved.everywhere:
            self.floor = max(self.floor, _exact(proved.lower_bound))
        if result.layout is None:
            self.reason = result.reason
            self.stuck = result.status is not Status.INFEASIBLE
            self.rest = (bound, 0) if self.stuck else None
            return
        assert result.bytes is not None
        assert result.alignment_bytes is not None
        assert result.weighted_excess is not None
        excess = _exact(result.weighted_excess)
        cost = result.proof.index_cost
        operations = cost.value if cost else 0
        alignment = _own_alignment(unit, result)
        self.points.append(_Point(result.bytes, alignment, excess, bound, operations, result))
        self.rest = (bound, 1) if result.status is Status.OPTIMAL else (bound, 0)
        if result.bytes <= self.problem.tile.bytes:
            self.rest = None


def _own_alignment(unit: _Unit, result: Result) -> int:
    """The least alignment of its base at which this layout has its counts: less than a word, for some."""
    assert result.layout is not None
    assert result.alignment_bytes is not None
    alignment = max(result.alignment_bytes, unit.case.problem.tile.element_alignment)
    if alignment > unit.plain_alignment:
        return alignment  # a swizzle's row of banks
    while alignment > max(unit.least_alignment, unit.plain_alignment // _MOST_BASES):
        bases = range(alignment // 2, unit.plain_alignment, alignment)
        if any(unit.case.measure(result.layout, base) != result.accesses for base in bases):
            break
        alignment //= 2
    return alignment


def _exact(value: float) -> Fraction:
    """The decimal number that a weight was given as: sums of them then compare exactly."""
    return Fraction(str(value))


Key = tuple[Fraction, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Option:
    """What one unit may contribute to a combination.

    Attributes:
        size: bytes of all stages.
        alignment: of the base.
        excess: weighted, or a lower bound.
        more: 1 where the excess is more than that, by an unknown amount.
        operations: index cost.
        point: the layout; None where there is only a bound.
        front: what to explore to learn more; None for the front of plain layouts not begun.
    """

    size: int
    alignment: int
    excess: Fraction
    more: int
    operations: int
    point: _Point | None
    front: _Front | None


@dataclass(frozen=True, slots=True)
class _Choice:
    """The best combination of known points; and of options when bounds stand for what is unknown."""

    points: tuple[_Point, ...] | None
    found: Key | None
    bound: Key | None


def _options(unit: _Unit, optimistic: bool) -> Iterator[_Option]:
    """Points, and what is not known; with `optimistic`, bounds in place of points that are not proved."""
    alignment = unit.least_alignment if optimistic else unit.plain_alignment
    for front in (unit.front, unit.plain):
        if front is None:
            continue
        for p in front.points:
            excess = p.bound if optimistic else p.excess
            size = unit.bytes_at(p.bytes, p.alignment)
            yield _Option(size, p.alignment, excess, 0, p.operations, p, front)
            searched = unit.plain is not None and p.alignment > unit.plain_alignment
            if p.alignment > alignment and not searched:
                size = unit.bytes_at(p.bytes, alignment)
                yield _Option(size, alignment, excess, 0, 0, None, None)
        if front.rest is not None and (optimistic or not front.stuck):
            size = unit.bytes_at(unit.elements_bytes, 1)
            yield _Option(size, alignment, *front.rest, 0, None, front)


def _explore(
    units: Sequence[_Unit],
    plan: Plan,
    limit: int | None,
    solver: Callable[[_Unit, float, Problem], Result],
    time: Budget,
) -> _Choice:
    """Explore fronts until the best combination is known."""
    elements = [unit.bytes_at(unit.elements_bytes, 1) for unit in units]
    for i, unit in enumerate(units):
        unit.front = _Front(_within(unit, _room(i, unit, plan, elements, limit)))
    while not time.spent:
        chosen = _best(plan, [list(_options(unit, False)) for unit in units], limit)
        if chosen is None:
            break
        unknown = [(unit, o) for unit, o in zip(units, chosen[1], strict=True) if o.point is None]
        if not unknown:
            break
        for k, (unit, option) in enumerate(unknown):
            front = option.front
            if front is None:
                layout = msgspec.structs.replace(
                    unit.front.problem.layout, alignment_bytes=unit.plain_alignment
                )
                unit.plain = front = _Front(msgspec.structs.replace(unit.front.problem, layout=layout))
            # All that is left for first points, half of it for later ones.
            share = (0.5 if front.points else 1.0) / (len(unknown) - k)
            front.explore(unit, partial(solver, unit, share))
    known = [[o for o in _options(unit, False) if o.point is not None] for unit in units]
    best = _best(plan, known, limit)
    bound = _best(plan, [list(_options(unit, True)) for unit in units], limit)
    points = None if best is None else tuple(o.point for o in best[1] if o.point is not None)
    return _Choice(points, best and best[0], bound and bound[0])


def _room(i: int, unit: _Unit, plan: Plan, elements: Sequence[int], limit: int | None) -> int | None:
    """Bytes that a stage may take at most if every other tile takes no more than its elements."""
    if limit is None:
        return None
    others = [0 if k == i else size for k, size in enumerate(elements)]
    mine = tuple(time for time in plan.times if i in time)
    return (limit - least(Plan(plan.always, mine or plan.times), others)) // unit.tiles[0].stages


def _within(unit: _Unit, room: int | None) -> Problem:
    layout = unit.case.problem.layout
    limits = [size for size in (layout.max_bytes, room) if size is not None]
    changed = msgspec.structs.replace(layout, max_bytes=min(limits, default=None))
    return msgspec.structs.replace(unit.case.problem, layout=changed)


def _best(
    plan: Plan, options: Sequence[Sequence[_Option]], limit: int | None
) -> tuple[Key, tuple[_Option, ...]] | None:
    """The combination of least excess within the limit, then bytes, then unknowns, then index cost."""
    ordered = [sorted(mine, key=lambda o: (o.excess, o.more, o.size, o.operations)) for mine in options]
    if not all(ordered):
        return None
    smallest = [min(o.size for o in mine) for mine in ordered]
    # Least excess of the units from i on; sums of pairs, compared as pairs.
    least_excess = [(Fraction(0), 0)]
    for mine in reversed(ordered):
        least_excess.insert(0, (least_excess[0][0] + mine[0].excess, least_excess[0][1] + mine[0].more))
    best: tuple[Key, tuple[_Option, ...]] | None = None

    def extend(chosen: tuple[_Option, ...], excess: Fraction, more: int) -> None:
        nonlocal best
        i = len(chosen)
        sizes = [*(o.size for o in chosen), *smallest[i:]]
        lower = least(plan, sizes)
        if limit is not None and lower > limit:
            return
        promise = (excess + least_excess[i][0], more + least_excess[i][1], lower)
        if best is not None and promise > best[0][:3]:
            return
        if i < len(ordered):
            for option in ordered[i]:
                extend((*chosen, option), excess + option.excess, more + option.more)
            return
        size, _ = pack(plan, sizes, [o.alignment for o in chosen])
        if limit is not None and size > limit:
            return
        unknown = sum(o.point is None for o in chosen)
        key = (excess, more, size, unknown, sum(o.operations for o in chosen))
        if best is None or key < best[0]:
            best = key, chosen

    extend((), Fraction(0), 0)
    return best


# The answer ----------------------------------------------------------------------------------------


def _arrangement(
    tile_set: TileSet, gpu: Device, units: Sequence[_Unit], plan: Plan, choice: _Choice, elements: int
) -> Arrangement:
    limit = tile_set.layout.max_bytes
    scope = _scope(units, limit)
    floor = sum((unit.front.floor for unit in units), Fraction(0))
    if choice.points is None or choice.found is None:
        reasons = [
            f"tile {unit.tiles[0].name!r}: {unit.front.reason}"
            for unit in units
            if unit.front.reason and not unit.front.points
        ]
        infeasible = choice.bound is None
        if not reasons:
            reasons = [
                f"no combination of layouts keeps to the constraints ({scope})"
                if infeasible
                else "out of time"
            ]
        return Arrangement(
            tile_set.name,
            gpu.name,
            Status.INFEASIBLE if infeasible else Status.UNKNOWN,
            Proof(Bound(0, EVERY_LAYOUT), Bound(elements, EVERY_LAYOUT)),
            "; ".join(reasons),
            max_bytes=limit,
        )
    points = choice.points
    total, bases = pack(
        plan,
        [unit.bytes_at(p.bytes, p.alignment) for unit, p in zip(units, points, strict=True)],
        [p.alignment for p in points],
    )
    assert choice.bound is not None
    excess = choice.found[0]
    bound = min(choice.bound[0], excess)
    excess_proved = bound == excess
    least_bytes = min(choice.bound[2], total) if excess_proved else elements
    complete = excess_proved and least_bytes == total
    placed = tuple(
        PlacedTile(
            tuple(tile.name for tile in unit.tiles),
            bases[i],
            unit.tiles[0].stages,
            rounded_up(p.bytes, p.alignment),
            p.result,
        )
        for i, (unit, p) in enumerate(zip(units, points, strict=True))
    )
    for unit, part in zip(units, placed, strict=True):
        _verify(unit, part)
    return Arrangement(
        problem=tile_set.name,
        target=gpu.name,
        status=Status.OPTIMAL if complete else Status.FEASIBLE,
        proof=_proof(
            units,
            points,
            Bound(_number(bound), EVERY_LAYOUT if bound <= floor else scope),
            Bound(least_bytes, EVERY_LAYOUT if least_bytes == elements else scope),
            complete
            and not plan.times
            and total == sum(unit.tiles[0].stages * p.bytes for unit, p in zip(units, points, strict=True)),
        ),
        reason="" if complete else "stopped before the proof was complete",
        tiles=placed,
        bytes=total,
        max_bytes=limit,
        alignment_bytes=max(max(p.alignment, p.result.alignment_bytes or 1) for p in points),
        excess=sum(p.result.excess or 0 for p in points),
        weighted_excess=float(excess),
    )


def _scope(units: Sequence[_Unit], limit: int | None) -> str:
    allowed = [frozenset(unit.case.problem.layout.families or FAMILIES) for unit in units]
    if len(set(allowed)) == 1:
        scope = "families " + ", ".join(f for f in FAMILIES if f in allowed[0])
    else:
        scope = "the families of each tile"
    return scope if limit is None else f"{scope} within {limit} bytes"


def _proof(
    units: Sequence[_Unit], points: Sequence[_Point], excess: Bound, size: Bound, exact: bool
) -> Proof:
    """Bounds of the whole. The index cost is proved only where no byte is lost to alignment or overlay.

    Where some are, a tile could be larger, and cheaper to index, for nothing.
    """
    costs = [p.result.proof.index_cost for p in points]
    cost = IndexCost(
        sum(c.value for c in costs if c is not None),
        exact and all(c is not None and c.proved for c in costs),
        INDEX_COST_MEASURE,
    )
    if all(p.result.proof.weighted_excess is None for p in points):
        return Proof(excess, size, cost)
    # Of the plain excess, only what no layout at all avoids is known.
    plain = [unit.front.points[0].result.proof.excess if unit.front.points else None for unit in units]
    floor = sum(b.lower_bound for b in plain if b is not None and b.everywhere)
    return Proof(Bound(floor, EVERY_LAYOUT), size, cost, excess)


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _verify(unit: _Unit, part: PlacedTile) -> None:
    """Count every access again where its tile lies, in each stage."""
    assert part.result.layout is not None
    for stage in range(part.stages):
        base = part.base_bytes + stage * part.stage_bytes
        if unit.case.measure(part.result.layout, base) != part.result.accesses:
            raise VerificationError(
                f"tile {part.tiles[0]!r}: the accesses cost another number of wavefronts at byte {base}"
            )
