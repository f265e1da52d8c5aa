"""Several tiles in one block of memory: one layout for each, within a common budget.

Each tile is an ordinary problem with a front of layouts (`layoutopt.search.fronts`), of less excess in
more bytes. The answer is one layout of each, packed (`layoutopt.search.packing`), and counted again where
it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final, TypedDict, Unpack, overload

import msgspec

from layoutopt.errors import VerificationError
from layoutopt.files.checks import fields_of
from layoutopt.ground.budget import DEFAULT_SECONDS, Budget
from layoutopt.hardware.devices import Device
from layoutopt.index.index_code import MEASURE
from layoutopt.model.swizzle_rules import left_out
from layoutopt.problems.answer import (
    EVERY_LAYOUT,
    AccessReport,
    Arrangement,
    Bound,
    IndexCost,
    Method,
    Place,
    PlacedTile,
    Proof,
    Result,
    Status,
)
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Block, Problem
from layoutopt.search.dictated import side_by_side
from layoutopt.search.fronts import Choice, Point, Unit, exact, explore, plan_of, units_of
from layoutopt.search.packing import Plan, least, pack, rounded_up
from layoutopt.search.proposal import STOPPED, Ask, Progress
from layoutopt.search.same_layout import within_room
from layoutopt.search.scene import searched_families
from layoutopt.search.solve import solve_cases, solve_tile

# Of the time, for a search without a budget, where the file has none and a block of the GPU has one.
_UNBOUNDED_SHARE: Final = 0.75
# Of the time, where bytes come first, for the bytes of the elements.
_ELEMENTS_SHARE: Final = 0.5
_SMALLEST_OPEN: Final = "fewer bytes in all are not refuted"
_WITHIN_WORDS: Final = (
    "no combination was found, and where in a bank word tiles may begin is not all searched"
)


class Options(TypedDict, total=False):
    """How to solve; see `solve`."""

    time_limit: float | None
    workers: int
    conflict_free: bool
    target: Device | str | None
    budget: Budget | None
    progress: Progress
    method: Method


@overload
def solve(problem: Problem, **how: Unpack[Options]) -> Result: ...
@overload
def solve(problem: Block, **how: Unpack[Options]) -> Arrangement: ...
def solve(
    problem: Problem | Block,
    *,
    time_limit: float | None = DEFAULT_SECONDS,
    workers: int = 1,
    conflict_free: bool = False,
    target: Device | str | None = None,
    budget: Budget | None = None,
    progress: Progress = lambda _: None,
    method: Method = "auto",
) -> Result | Arrangement:
    """Layouts of least weighted excess in all, then fewest bytes, then least index cost, each verified.

    Args:
        problem: what to solve: one tile, or several of one block, without `layout.max_bytes` within what a
            block of the GPU has.
        time_limit: seconds; None for no limit. The best answer so far is the answer when it ends.
        workers: solver threads. The answer does not depend on it unless the time runs out.
        conflict_free: make any excess infeasible.
        target: the device or its name, where it is not the one the problem names.
        budget: replaces `time_limit`, for callers that stop the search from another thread.
        progress: called with a line of text from time to time.
        method: "model": one CP-SAT model decides pads, order and XOR masks, and refutes what is smaller;
            "auto": the same answer, by counting and a tree of masks as far as they go.

    Raises:
        ProblemFileError: the problem contradicts itself, or an argument is none.
        VerificationError: the conflict engine does not confirm the model; nothing is returned.
    """
    gpu = target_of(problem, target)
    ask = Ask(budget or Budget.of_limit(time_limit), conflict_free, workers, progress, method)
    if isinstance(problem, Problem):
        return solve_tile(problem, gpu, ask)
    if problem.layout.objective.bytes_first:
        return _of_fewest_bytes(problem, gpu, ask)
    return _within_room(problem, gpu, ask)


def _solved(block: Block, ask: Ask, unit: Unit, share: float, problem: Problem) -> Result:

    def tell(text: str) -> None:
        ask.progress(f"{unit.tiles[0].name}: {text}")

    mine = replace(ask, budget=ask.budget.part(share), progress=tell)
    with fields_of(block, *unit.tiles):
        if unit.is_settled:
            return solve_cases([unit.case.constrained(problem.layout)], mine)
        return solve_tile(problem, unit.case.device, mine)


def _within_room(block: Block, gpu: Device, ask: Ask) -> Arrangement:
    """The best layouts within the budget of the file, else within what a block of the GPU has."""
    bounded = within_room(block, gpu)
    units = units_of(block, gpu)
    plan = plan_of(block, units)
    asked, limit = block.layout.max_bytes, bounded.layout.max_bytes
    elements = least(plan, [unit.elements_bytes for unit in units])
    if limit is not None and elements > limit:
        most = f"layout.max_bytes is {limit}" if asked else f"a block of {block.target} has {limit}"
        reason = f"the elements alone need {elements} bytes; {most} ({EVERY_LAYOUT})"
        nothing = Proof(Bound(0, EVERY_LAYOUT), Bound(elements, EVERY_LAYOUT))
        return Arrangement(block.name, gpu.name, Status.INFEASIBLE, nothing, reason, max_bytes=limit)

    def best(whole: Block, units: Sequence[Unit], ask: Ask) -> Arrangement:
        choice = explore(units, plan, whole.layout.max_bytes, partial(_solved, whole, ask), ask.budget)
        return _arrangement(whole, gpu, units, plan, choice, elements, ask.budget.spent)

    if asked is None:
        # What fits without being told to has the stronger proof.
        free = best(block, units, ask if limit is None else _part(ask, _UNBOUNDED_SHARE))
        if limit is None or free.bytes is None or free.bytes <= limit:
            return msgspec.structs.replace(free, max_bytes=limit)
        units = units_of(block, gpu)
    return best(bounded, units, ask)


def _of_fewest_bytes(block: Block, gpu: Device, ask: Ask) -> Arrangement:
    """Of the layouts in the fewest bytes that all tiles fit into, those of least excess.

    That is the bytes of the elements, where these are enough; else each tile's fewest.
    """
    bounded = within_room(block, gpu)
    units, limit = units_of(block, gpu), bounded.layout.max_bytes
    plan = plan_of(block, units)
    elements = least(plan, [unit.elements_bytes for unit in units])
    if limit is not None and elements > limit:
        return _within_room(_in_bytes(block, block.layout.max_bytes), gpu, ask)
    found = _within_room(_in_bytes(block, elements), gpu, _part(ask, _ELEMENTS_SHARE))
    if found.tiles or elements == limit:
        return msgspec.structs.replace(found, max_bytes=limit)
    smallest = [_solved(block, ask, unit, 1 / (2 * len(units)), unit.asked) for unit in units]
    if any(result.layout is None for result in smallest):
        return _within_room(_in_bytes(block, block.layout.max_bytes), gpu, ask)
    sizes = [
        unit.bytes_at(unit.sizes(unit.case.table(result.layout)), result.alignment_bytes or 1)
        for unit, result in zip(units, smallest, strict=True)
        if result.layout is not None
    ]
    total, _ = pack(plan, sizes, [result.alignment_bytes or 1 for result in smallest])
    most = total if limit is None else min(total, limit)
    found = msgspec.structs.replace(_within_room(_in_bytes(block, most), gpu, ask), max_bytes=limit)
    proved = least(plan, sizes) == total and all(r.status is Status.OPTIMAL for r in smallest)
    if proved or found.status is not Status.OPTIMAL:
        return found
    return msgspec.structs.replace(found, status=Status.FEASIBLE, reason=_SMALLEST_OPEN)


def _part(ask: Ask, share: float) -> Ask:
    return replace(ask, budget=ask.budget.part(share))


def _in_bytes(block: Block, most: int | None) -> Block:
    layout = msgspec.structs.replace(block.layout, minimise="excess", max_bytes=most)
    return msgspec.structs.replace(block, layout=layout)


def _arrangement(
    block: Block,
    gpu: Device,
    units: Sequence[Unit],
    plan: Plan,
    choice: Choice,
    elements: int,
    out_of_time: bool,
) -> Arrangement:
    limit = block.layout.max_bytes
    if choice.points is None or choice.found is None:
        return _nothing(block, gpu, units, choice.bound is None, elements, out_of_time)
    points = choice.points
    total, bases = pack(
        plan,
        [unit.bytes_at(p.sizes, p.alignment) for unit, p in zip(units, points, strict=True)],
        [p.alignment for p in points],
    )
    tight = not plan.times and total == sum(
        unit.bytes_at(p.sizes, 1) for unit, p in zip(units, points, strict=True)
    )
    bound, size, complete = _proved(block, units, choice, total, elements, tight)
    placed = tuple(_placed(unit, p, bases[i]) for i, (unit, p) in enumerate(zip(units, points, strict=True)))
    for unit, part in zip(units, placed, strict=True):
        _verify(unit, part)
    return Arrangement(
        problem=block.name,
        target=gpu.name,
        status=Status.OPTIMAL if complete else Status.FEASIBLE,
        proof=_proof(units, points, bound, size, complete and tight),
        reason="" if complete else _open(units, points),
        tiles=placed,
        bytes=total,
        max_bytes=limit,
        alignment_bytes=max(max(p.alignment, p.result.alignment_bytes or 1) for p in points),
        excess=sum(p.result.excess or 0 for p in points),
        weighted_excess=float(_excess(points)),
    )


def _proved(
    block: Block, units: Sequence[Unit], choice: Choice, total: int, elements: int, tight: bool
) -> tuple[Bound, Bound, bool]:
    """What is proved of the weighted excess and of the bytes, and whether nothing is better.

    `tight` says that no byte is lost to alignment or overlay.
    """
    assert choice.points is not None
    assert choice.found is not None
    assert choice.bound is not None
    excess, floor = _excess(choice.points), sum((unit.front.floor for unit in units), Fraction(0))
    optimal = all(point.result.status is Status.OPTIMAL for point in choice.points)
    if not block.layout.objective.counts_only:
        least_bytes = Bound(elements, EVERY_LAYOUT)
        return Bound(_number(min(floor, excess)), EVERY_LAYOUT), least_bytes, optimal and tight
    value, promised = choice.found[0][0], choice.bound[0][0]
    best = promised >= value
    settled = all(unit.is_settled for unit in units)
    # With the widths chosen, where the file leaves them open: the value is of wavefronts then.
    least_excess = excess - max(value - promised, Fraction(0)) if settled or optimal else floor
    least_excess = max(least_excess, Fraction(0))
    size = min(choice.bound[1], total) if best else elements
    scope = _scope(units, block.layout.max_bytes)
    return (
        Bound(_number(least_excess), EVERY_LAYOUT if least_excess <= floor else scope),
        Bound(size, EVERY_LAYOUT if size == elements else scope),
        best and size == total and (settled or optimal),
    )


def _excess(points: Sequence[Point]) -> Fraction:
    return sum((exact(point.result.weighted_excess or 0) for point in points), Fraction(0))


def _open(units: Sequence[Unit], points: Sequence[Point]) -> str:
    if any(unit.several_sizes for unit in units) and all(
        point.result.status is Status.OPTIMAL for point in points
    ):
        return "of tiles of several sizes that share a layout, only the bytes of the largest are proved least"
    if not units[0].asked.layout.objective.counts_only:
        reasons = dict.fromkeys(point.result.reason for point in points if point.result.reason)
        return "; ".join(reasons) or "bytes are lost to alignment or at other times"
    return STOPPED


def _placed(unit: Unit, point: Point, base: int) -> PlacedTile:
    """The tiles of a unit: in the same bytes, or one behind the other."""
    together = len(unit.copies) < len(unit.tiles)
    places, at = [], base
    for k, tile in enumerate(unit.tiles):
        size = point.sizes[0 if together else k]
        place = Place(tile.name, at, tile.stages, rounded_up(size, point.alignment), size)
        places.append(place)
        at += 0 if together else place.stages * place.stage_bytes
    whole = max(place.stage_bytes for place in places)
    bases = tuple(place.base_bytes for place in places)
    names = tuple(tile.name for tile in unit.tiles)
    return PlacedTile(names, base, unit.stages, whole, point.result, bases, tuple(places))


def _nothing(
    block: Block,
    gpu: Device,
    units: Sequence[Unit],
    infeasible: bool,
    elements: int,
    out_of_time: bool,
) -> Arrangement:
    """No combination was found: why, tile by tile where a tile alone has no layout."""
    limit = block.layout.max_bytes
    reasons = [
        f"tile {unit.tiles[0].name!r}: {unit.front.reason}"
        for unit in units
        if unit.front.reason and not unit.front.points
    ]
    if not reasons and infeasible:
        reasons = [f"no combination of layouts keeps to the constraints ({_scope(units, limit)})"]
    stopped = out_of_time or any(unit.front.stuck for unit in units)
    return Arrangement(
        block.name,
        gpu.name,
        Status.INFEASIBLE if infeasible else Status.UNKNOWN,
        Proof(Bound(0, EVERY_LAYOUT), Bound(elements, EVERY_LAYOUT)),
        "; ".join(reasons) or ("out of time" if stopped else _WITHIN_WORDS),
        max_bytes=limit,
    )


def _scope(units: Sequence[Unit], limit: int | None) -> str:
    searched = [searched_families(unit.case.lowered) for unit in units]
    if any(unit.case.problem.is_dictated for unit in units):
        listed = dict.fromkeys(side_by_side(unit.case.problem) for unit in units)
        scope = "the layouts that each tile may have" + "".join(listed)
    elif all(families == searched[0] for families in searched):
        scope = "families " + ", ".join(searched[0])
        used = {u.case.device.rule(a.operation) for u in units for a in u.case.lanes.accesses}
        if {"xor", "matrix"} & set(searched[0]):
            sizes = dict.fromkeys(unit.case.lowered.tile.element_bytes for unit in units)
            scope += "".join(dict.fromkeys(left_out(used, size) for size in sizes))
    else:
        scope = "the families of each tile"
    return scope if limit is None else f"{scope} within {limit} bytes"


def _proof(units: Sequence[Unit], points: Sequence[Point], excess: Bound, size: Bound, exact: bool) -> Proof:
    """Bounds of the whole. The index cost is proved only where no byte is lost to alignment or overlay.

    Where some are, a tile could be larger, and cheaper to index, for nothing.
    """
    costs = [p.result.proof.index_cost for p in points]
    known = [cost for cost in costs if cost is not None]  # the hardware dictates the others
    proved = exact and len(known) == len(costs) and all(cost.proved for cost in known)
    cost = IndexCost(sum(c.value for c in known), proved, MEASURE) if known else None
    if all(p.result.proof.weighted_excess is None for p in points):
        return Proof(excess, size, cost)
    # Of the plain excess, only what no layout at all avoids is known.
    plain = [unit.front.points[0].result.proof.excess if unit.front.points else None for unit in units]
    floor = sum(b.lower_bound for b in plain if b is not None and b.everywhere)
    return Proof(Bound(floor, EVERY_LAYOUT), size, cost, excess)


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _verify(unit: Unit, part: PlacedTile) -> None:
    assert part.result.layout is not None
    case, promised = unit.case_of(part.result), _counts(part.result.accesses)
    for base in sorted({start for place in part.places for start in place.starts}):
        if _counts(case.measure(part.result.layout, base)) != promised:
            raise VerificationError(
                f"tile {part.tiles[0]!r}: the accesses cost another number of wavefronts at byte {base}"
            )


def _counts(reports: Sequence[AccessReport]) -> list[AccessReport]:
    """Reports without the lanes and widths that were chosen."""
    return [
        msgspec.structs.replace(report, bytes=None, index=None, loops=None, where=None) for report in reports
    ]
