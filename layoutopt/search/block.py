"""Several tiles in one block of memory: one layout for each, within a common budget.

Each tile is an ordinary problem with a front of layouts (`layoutopt.search.fronts`), of less excess in
more bytes. The answer is one layout of each, packed (`layoutopt.search.packing`), and counted again where
it lies.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Final, overload

from msgspec.structs import replace

from layoutopt.errors import VerificationError
from layoutopt.files.checks import fields_of
from layoutopt.ground.budget import current, spending, unhurried
from layoutopt.hardware.devices import Device
from layoutopt.index.index_code import MEASURE
from layoutopt.model.swizzle_rules import left_out
from layoutopt.problems.answer import (
    EVERY_LAYOUT,
    AccessReport,
    Arrangement,
    Bound,
    IndexCost,
    Place,
    PlacedTile,
    Proof,
    Result,
    Status,
)
from layoutopt.problems.same_layout import beginning_bytes, groups, within_room
from layoutopt.problems.types import Block, Problem
from layoutopt.search.choices import solve_tile, what_ended
from layoutopt.search.dictated import side_by_side
from layoutopt.search.fronts import Explored, Point, Unit, exact, explore, plan_of, units_of
from layoutopt.search.packing import least_bytes, pack, rounded_up
from layoutopt.search.proposal import STOPPED, Ask, of_tile
from layoutopt.search.scene import searched_families
from layoutopt.search.solve import solve_cases
from layoutopt.search.verify import Answer

_AS_USUAL: Final = Ask()
# Of the time, for a search without a budget, where the file has none and a block of the GPU has one.
_UNBOUNDED_SHARE: Final = 0.75
# Of the time, where bytes come first, for the bytes of the elements.
_ELEMENTS_SHARE: Final = 0.5
_SMALLEST_OPEN: Final = "fewer bytes in all are not refuted"
_WITHIN_WORDS: Final = (
    "no combination was found, and where in a bank word tiles may begin is not all searched"
)


@overload
def solve(problem: Problem, gpu: Device, ask: Ask = ...) -> Result: ...
@overload
def solve(problem: Block, gpu: Device, ask: Ask = ...) -> Arrangement: ...
def solve(problem: Problem | Block, gpu: Device, ask: Ask = _AS_USUAL) -> Result | Arrangement:
    """Layouts of least weighted excess in all, then fewest bytes, then least index cost, each verified.

    They are searched in the time in force. `layoutopt.solve` says more beside the answer.

    Raises:
        ProblemFileError: the problem contradicts itself.
        VerificationError: the conflict engine does not confirm the model; nothing is returned.
    """
    if isinstance(problem, Problem):
        answer = solve_tile(problem, gpu, ask)
        return _out_of_time(problem, gpu) if answer is None else answer.result
    tiles = _Tiles(problem, gpu, ask)
    found = tiles.of_fewest_bytes() if problem.layout.objective.bytes_first else tiles.within_room()
    return replace(found, reason=what_ended(found))


class _Tiles:
    """The tiles of a block, what each may have, and what is made of one layout for each.

    Attributes:
        sharing: the tiles that share a layout.
        units: what gets one layout: a tile, or the tiles that share it. Its front holds the layouts found for
            it, the points, each of less excess in more bytes than the one before.
        plan: which units live when, so that some may lie in the bytes of others.
        elements_bytes: bytes that the elements of all tiles take at least, packed.
        limit: bytes that the layouts may take: `max_bytes`, else the shared memory of a block of the GPU.
    """

    def __init__(self, block: Block, gpu: Device, ask: Ask) -> None:
        self.block, self.gpu, self.ask = block, gpu, ask
        self.sharing, self.limit = groups(block), within_room(block, gpu).layout.max_bytes
        with unhurried():
            self.units = units_of(block, self.sharing, gpu)
        self.plan = plan_of(block, self.units)
        self.elements_bytes = least_bytes(self.plan, [unit.elements_bytes for unit in self.units])

    def within_room(self) -> Arrangement:
        """Layouts of least excess within `layout.max_bytes`, else within the shared memory of a block."""
        asked, limit = self.block.layout.max_bytes, self.limit
        if limit is not None and self.elements_bytes > limit:
            most = f"layout.max_bytes is {limit}" if asked else f"a block of {self.block.target} has {limit}"
            reason = f"the elements alone need {self.elements_bytes} bytes; {most} ({EVERY_LAYOUT})"
            return self._without(Status.INFEASIBLE, reason, limit)
        if asked is None:
            # Layouts that fit without a limit have a proof for every size, so they are tried first.
            with spending(current() if limit is None else current().part(_UNBOUNDED_SHARE)):
                unlimited = self._best(None)
            if limit is None or unlimited.bytes is None or unlimited.bytes <= limit:
                return replace(unlimited, max_bytes=limit)
            with unhurried():  # whose fronts hold nothing yet: those found have no limit
                self.units = units_of(self.block, self.sharing, self.gpu)
        return self._best(limit)

    def of_fewest_bytes(self) -> Arrangement:
        """Layouts of least excess in the fewest bytes into which all tiles fit.

        Those are the bytes of the elements where layouts of so few are found, else of the smallest layouts.
        """
        block, limit = self.block, self.limit
        if limit is not None and self.elements_bytes > limit:
            return self._in_bytes(block.layout.max_bytes)  # not `limit`: the reason names the file's own
        with spending(current().part(_ELEMENTS_SHARE)):
            found = self._in_bytes(self.elements_bytes)
        if found.tiles or self.elements_bytes == limit:
            return replace(found, max_bytes=limit)
        sizes, alignments, are_smallest = [], [], True  # of the smallest layout of each unit
        share = 1 / (2 * len(self.units))  # about half of the time: the rest is for layouts in these bytes
        for unit in self.units:
            result = _solved(block, self.ask, unit, share, unit.asked).result
            if result.layout is None:
                return self._in_bytes(block.layout.max_bytes)
            alignments.append(result.alignment_bytes or 1)
            stage_sizes = unit.sizes(unit.case.table(result.layout))
            sizes.append(unit.bytes_at(stage_sizes, alignments[-1]))  # of all stages
            are_smallest = are_smallest and result.status is Status.OPTIMAL
        total = pack(self.plan, sizes, alignments).end
        found = self._in_bytes(total if limit is None else min(total, limit))
        if found.status is Status.OPTIMAL and not (are_smallest and least_bytes(self.plan, sizes) == total):
            found = replace(found, status=Status.FEASIBLE, reason=_SMALLEST_OPEN)
        return replace(found, max_bytes=limit)

    def _in_bytes(self, most: int | None) -> Arrangement:
        """Layouts of least excess within `most` bytes."""
        layout = replace(self.block.layout, minimise="excess", max_bytes=most)
        return _Tiles(replace(self.block, layout=layout), self.gpu, self.ask).within_room()

    def _without(self, status: Status, reason: str, limit: int | None) -> Arrangement:
        """An answer without layouts."""
        proof = Proof(Bound(0, EVERY_LAYOUT), Bound(self.elements_bytes, EVERY_LAYOUT))
        return Arrangement(self.block.name, self.gpu.name, status, proof, reason, max_bytes=limit)

    def _best(self, limit: int | None) -> Arrangement:
        """The best combination of layouts that is found within `limit` bytes, verified where each lies."""
        units = self.units
        explored = explore(units, self.plan, limit, partial(_solved, self.block, self.ask))
        points = explored.points
        if points is None:
            return self._nothing(infeasible=explored.bound is None, limit=limit)
        pairs = list(zip(units, points, strict=True))
        sizes = [unit.bytes_at(p.sizes, p.alignment) for unit, p in pairs]
        total, bases = pack(self.plan, sizes, [p.alignment for p in points])
        # Whether no byte is lost to alignment or overlay.
        tight = not self.plan.times and total == sum(unit.bytes_at(p.sizes, 1) for unit, p in pairs)
        least_excess, least_size, complete = self._proved(explored, total, tight, limit)
        placed = tuple(_placed(unit, p, bases[i]) for i, (unit, p) in enumerate(pairs))
        with unhurried():
            for point, part in zip(points, placed, strict=True):
                _verify(point, part)
        return Arrangement(
            problem=self.block.name,
            target=self.gpu.name,
            status=Status.OPTIMAL if complete else Status.FEASIBLE,
            proof=_proof(units, points, least_excess, least_size, complete and tight),
            reason="" if complete else _left_unproved(units, points),
            tiles=placed,
            bytes=total,
            max_bytes=limit,
            alignment_bytes=max(max(p.alignment, p.result.alignment_bytes or 1) for p in points),
            excess=sum(p.result.excess or 0 for p in points),
            weighted_excess=float(_excess(points)),
        )

    def _nothing(self, *, infeasible: bool, limit: int | None) -> Arrangement:
        """The answer where no combination was found: why, tile by tile where a tile alone has no layout."""
        fronts = [(unit.tiles[0].name, unit.front) for unit in self.units]
        reasons = [
            f"tile {name!r}: {front.reason}" for name, front in fronts if front.reason and not front.points
        ]
        if not reasons and infeasible:
            scope = _scope(self.units, limit)
            reasons = [f"no combination of layouts keeps to the constraints ({scope})"]
        stopped = current().spent or any(front.stuck for _, front in fronts)
        reason = "; ".join(reasons) or ("out of time" if stopped else _WITHIN_WORDS)
        return self._without(Status.INFEASIBLE if infeasible else Status.UNKNOWN, reason, limit)

    def _proved(
        self, explored: Explored, total: int, tight: bool, limit: int | None
    ) -> tuple[Bound, Bound, bool]:
        """Proved bounds of the weighted excess and of the bytes, and whether the arrangement is optimal.

        Args:
            explored: the best combination, and the least that any other could cost (`bound`).
            total: bytes of the best combination, packed.
            tight: whether no byte is lost to alignment, or beside a larger tile of another time.
            limit: bytes that the layouts may take.
        """
        assert explored.points is not None
        assert explored.key is not None
        assert explored.bound is not None
        units = self.units
        excess = _excess(explored.points)
        floor = sum((unit.front.floor for unit in units), Fraction(0))  # of the weighted excess, as `excess`
        optimal = all(point.result.status is Status.OPTIMAL for point in explored.points)
        if not self.block.layout.objective.counts_only:  # instructions or time come first
            bytes_bound = Bound(self.elements_bytes, EVERY_LAYOUT)
            return Bound(_number(min(floor, excess)), EVERY_LAYOUT), bytes_bound, optimal and tight
        gap = explored.key.cost.value - explored.bound.cost.value  # what another combination may save
        is_least = gap <= 0
        # Where lanes and widths are fixed, a cost is excess, and its bound is proved. Else the bound may be a
        # guess, and costs wavefronts, whose gap bounds the excess of the chosen widths only.
        gap_holds = optimal or all(unit.is_settled for unit in units)
        least_excess = excess - max(gap, Fraction(0)) if gap_holds else floor
        least_excess = max(least_excess, Fraction(0))
        # Bytes come second: they are bounded only where the cost is proved least.
        size = min(explored.bound.bytes, total) if is_least else self.elements_bytes
        scope = _scope(units, limit)
        return (  # what goes beyond `floor`, or the bytes of the elements, holds in the scope only
            Bound(_number(least_excess), EVERY_LAYOUT if least_excess <= floor else scope),
            Bound(size, EVERY_LAYOUT if size == self.elements_bytes else scope),
            is_least and size == total and gap_holds,
        )


def _out_of_time(problem: Problem, gpu: Device) -> Result:
    """The answer where nothing is known."""
    proof = Proof(Bound(0, EVERY_LAYOUT), Bound(problem.tile.bytes, EVERY_LAYOUT))
    return Result(problem.name, gpu.name, Status.UNKNOWN, proof, reason="out of time")


def _solved(block: Block, ask: Ask, unit: Unit, share: float, problem: Problem) -> Answer:
    """The answer to a problem of a unit of the block, in a share of the time left."""
    ask = replace(ask, progress=of_tile(unit.tiles[0].name, ask.progress))
    with fields_of(block, *unit.tiles), spending(current().part(share)):
        if unit.is_settled:
            return solve_cases([unit.case.constrained(problem.layout)], ask)
        answer = solve_tile(problem, unit.case.device, ask)
        return answer or Answer(unit.case, _out_of_time(problem, unit.case.device))


def _excess(points: Sequence[Point]) -> Fraction:
    """Weighted excess of all."""
    return sum((exact(point.result.weighted_excess or 0) for point in points), Fraction(0))


def _left_unproved(units: Sequence[Unit], points: Sequence[Point]) -> str:
    """Why an arrangement of these points is not proved best."""
    optimal = all(point.result.status is Status.OPTIMAL for point in points)
    if optimal and any(unit.several_sizes for unit in units):
        return "of tiles of several sizes that share a layout, only the bytes of the largest are proved least"
    if not units[0].asked.layout.objective.counts_only:
        reasons = dict.fromkeys(point.result.reason for point in points if point.result.reason)
        return "; ".join(reasons) or "bytes are lost to alignment or at other times"
    return STOPPED


def _placed(unit: Unit, point: Point, base: int) -> PlacedTile:
    """The tiles of a unit from byte `base`: all in the same bytes, or one behind the other."""
    same_bytes = len(unit.copies) < len(unit.tiles)
    places, next_base, offsets = [], base, point.result.table().ravel()
    for k, tile in enumerate(unit.tiles):
        size = point.sizes[0 if same_bytes else k]
        own_size = beginning_bytes(offsets, tile, unit.asked.tile) if same_bytes else size
        place = Place(tile.name, next_base, tile.stages, rounded_up(size, point.alignment), own_size)
        places.append(place)
        if not same_bytes:
            next_base += place.stages * place.stage_bytes
    return PlacedTile(
        tiles=tuple(place.tile for place in places),
        base_bytes=base,
        stages=unit.stages,
        stage_bytes=max(place.stage_bytes for place in places),
        result=point.result,
        bases_bytes=tuple(place.base_bytes for place in places),
        places=tuple(places),
    )


def _scope(units: Sequence[Unit], limit: int | None) -> str:
    """The layouts that a search of the units covers, in words for a proof."""
    searched = [searched_families(unit.case.lowered) for unit in units]
    if any(unit.case.problem.is_dictated for unit in units):
        listed = dict.fromkeys(side_by_side(unit.case.problem) for unit in units)
        scope = "the layouts that each tile may have" + "".join(listed)
    elif all(families == searched[0] for families in searched):
        scope = "families " + ", ".join(searched[0])
        used = {a.rule for u in units for a in u.case.lanes.accesses}
        if {"xor", "matrix"} & set(searched[0]):
            sizes = dict.fromkeys(unit.case.lowered.tile.element_bytes for unit in units)
            scope += "".join(dict.fromkeys(left_out(used, size) for size in sizes))
    else:
        scope = "the families of each tile"
    return scope if limit is None else f"{scope} within {limit} bytes"


def _proof(units: Sequence[Unit], points: Sequence[Point], excess: Bound, size: Bound, exact: bool) -> Proof:
    """The proof of an arrangement with these bounds of its weighted excess and bytes.

    `exact`: it is optimal and no byte is lost to alignment or overlay. Where some are, a tile could be
    larger, and cheaper to index, for nothing: the index cost is not proved then.
    """
    costs = [p.result.proof.index_cost for p in points]
    known = [cost for cost in costs if cost is not None]  # the hardware dictates the others
    proved = exact and len(known) == len(costs) and all(cost.proved for cost in known)
    cost = IndexCost(sum(c.value for c in known), proved, MEASURE) if known else None
    if all(p.result.proof.weighted_excess is None for p in points):
        return Proof(excess, size, cost)
    # Of the excess without weights, only what every layout has is known.
    unweighted = [unit.front.points[0].result.proof.excess for unit in units if unit.front.points]
    floor = sum(bound.lower_bound for bound in unweighted if bound.everywhere)
    return Proof(excess=Bound(floor, EVERY_LAYOUT), bytes=size, index_cost=cost, weighted_excess=excess)


def _number(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _verify(point: Point, part: PlacedTile) -> None:
    """Count the accesses at every base of the tiles of a point; VerificationError where that differs."""
    assert part.result.layout is not None
    promised = _counts(part.result.accesses)
    for base in sorted({start for place in part.places for start in place.starts}):
        if _counts(point.case.measure(part.result.layout, base)) != promised:
            raise VerificationError(
                f"tile {part.tiles[0]!r}: the accesses cost another number of wavefronts at byte {base}"
            )


def _counts(reports: Sequence[AccessReport]) -> list[tuple[float, ...]]:
    """Wavefronts, ideal and bank conflicts of each access, whatever was chosen for it."""
    return [(report.wavefronts, report.ideal, report.bank_conflicts) for report in reports]
