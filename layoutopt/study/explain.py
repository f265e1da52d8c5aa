"""Reasons in words: why a layout works, or why none can and what to give up.

Of several tiles: what decides each of them by itself, and what the common budget costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack, overload

import msgspec

from layoutopt.accesses.lower import chosen_widths, offset_formula
from layoutopt.errors import ExpressionError, ProblemFileError
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.files.checks import fields_of
from layoutopt.files.result_file import MAX_BYTES
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.model.placement import FreeAssignment
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, PlacedTile, Status
from layoutopt.problems.target import target_of
from layoutopt.problems.text import lanes_text
from layoutopt.problems.types import Access, Block, Problem
from layoutopt.proof.reasons import BY_HAND, CLIQUE, COUNTING, SOLVER, Search, subject_of
from layoutopt.search.block import solve
from layoutopt.search.packing import Plan, pack
from layoutopt.search.proposal import Ask, Progress
from layoutopt.search.solve import solve_cases
from layoutopt.search.tile_groups import groups, within_room
from layoutopt.study.clash import QUESTION_SHARE, Clashes, names
from layoutopt.study.explanation import ALLOWED, BlockExplanation, ExplainedTile, Explanation, Relaxation
from layoutopt.study.known import known_case, with_known_lanes
from layoutopt.study.nearest_edit import nearest_edit
from layoutopt.study.phase_words import PhaseWords
from layoutopt.study.relaxations import Relaxations

# Share of the time that the first search may use; the questions after it have the rest.
_SEARCH_SHARE: Final = 0.5
# Of several tiles: for the search over all of them, and of what is left, for the same without the budget.
_ARRANGE_SHARE: Final = 0.3


class Options(TypedDict, total=False):
    """How to explain; see `explain`."""

    time_limit: float | None
    target: Device | str | None
    budget: Budget | None
    progress: Progress


@overload
def explain(problem: Problem, **how: Unpack[Options]) -> Explanation: ...
@overload
def explain(problem: Block, **how: Unpack[Options]) -> BlockExplanation: ...
def explain(
    problem: Problem | Block,
    *,
    time_limit: float | None = None,
    target: Device | str | None = None,
    budget: Budget | None = None,
    progress: Progress = lambda _: None,
) -> Explanation | BlockExplanation:
    """Solve `problem` and say why the answer is what it is.

    Args:
        problem: what to explain: a tile and its accesses, or several.
        time_limit: seconds, of which the search may use half; None for no limit.
        target: the device or its name, where it is not the one the problem names.
        budget: replaces `time_limit`, for callers that stop the search from another thread.
        progress: called with a line of text from time to time.

    Raises:
        ProblemFileError: the problem contradicts itself.
    """
    gpu, time = target_of(problem, target), budget or Budget.of_limit(time_limit)
    if isinstance(problem, Block):
        return _block_explanation(problem, gpu, time, progress)
    return _tile_explanation(problem, gpu, time, progress)


def _tile_explanation(problem: Problem, gpu: Device, time: Budget, progress: Progress) -> Explanation:
    """Why one tile comes out as it does."""
    chosen = with_known_lanes(problem, gpu, time)
    found = _Explainer(chosen, gpu, time, progress).run()
    if chosen is problem:
        return found
    told = f"The lanes are chosen: {lanes_text(problem, chosen)}; what follows is about them."
    scope = f"{found.scope}, with the lanes chosen"
    return msgspec.structs.replace(found, reasons=(told, *found.reasons), scope=scope)


def _in_use(problem: Problem) -> Node | None:
    """The file's layout in use, else the published one.

    Raises:
        ProblemFileError: it cannot be read.
    """
    texts = {"layout.offset": problem.layout.offset}
    if problem.published is not None:
        texts["published.offset"] = problem.published.offset
    for field, text in texts.items():
        if text is not None:
            try:
                return offset_formula(text, problem.tile)
            except ExpressionError as error:
                raise ProblemFileError(field, error.reason) from None
    return None


class _Explainer:
    def __init__(self, problem: Problem, gpu: Device, budget: Budget, progress: Progress) -> None:
        self.in_use = _in_use(problem)
        problem = msgspec.structs.replace(
            problem, layout=msgspec.structs.replace(problem.layout, offset=None)
        )
        self.case = known_case(problem, gpu, budget=budget)  # or refused before the search
        # A budget of its own, so that the search goes as it would without questions to follow.
        part = budget.part(_SEARCH_SHARE)
        if self.case.widths:
            self.result = solve(problem, target=gpu, budget=part, progress=progress)
        else:
            self.result = solve_cases([self.case], Ask(part, progress=progress))
        self.widths = chosen_widths(problem, self.result)
        if self.widths:
            self.case = known_case(problem, gpu, self.widths)
        self.clashes = Clashes(self.case, budget)
        if self.result.layout is not None:
            progress(f"excess {self.result.excess:g} in {self.result.bytes:,} bytes; what could be given up")

    def run(self) -> Explanation:
        result, case = self.result, self.case
        free = bool(result.layout is not None and result.excess == 0)
        verdict: bool | None = True if free else None
        bound = result.proof.objective
        clique, reasons = None, list(PhaseWords(case).why(result, self.in_use))
        if bound.lower_bound > 0 or (result.layout is None and result.proof.excess.lower_bound > 0):
            verdict = False
        clash: list[Access] = []
        minimal = False
        others: list[tuple[str, ...]] = []
        relaxations = list(self._edit())
        give_up = Relaxations(case, self.clashes)
        general = bound if bound.everywhere else result.proof.every_layout
        every = bound.everywhere or (general is not None and general.lower_bound > 0)
        if not free:
            relaxations += give_up.of_constraints()
        if verdict is False and every:
            clique, more = self._why_none()
            reasons += more
            clash, minimal = self.clashes.smallest(case.lowered.accesses)
            others = self.clashes.others(clash)
            relaxations += give_up.of_accesses(clash, others)
            reasons += dict.fromkeys(give_up.not_allowed)
        if result.layout is not None and not free:
            relaxations += give_up.lane_orders(case.as_bytes(result.layout), clash)
            relaxations += give_up.free_lanes(clash)
            if not any(r.kind in ("narrower", "lane_order", "free_lanes") for r in relaxations):
                relaxations += give_up.narrower_with_order(clash)
        if verdict is None and result.status is Status.INFEASIBLE:
            verdict = False  # there is no layout at all
        proved = general if every and not free and general is not None else bound
        return Explanation(
            case.problem.name,
            case.device.name,
            verdict,
            ALLOWED if verdict is False and not proved.lower_bound else proved.scope,
            proved.lower_bound,
            result.proof.evidence,
            result.excess,
            result.weighted_excess,
            result.offset,
            clique,
            names(clash),
            minimal,
            tuple(others),
            tuple(relaxations),
            tuple(reasons),
            self.widths,
            result.decided_by,
            result.model,
            self.case.has_weights,
        )

    def _edit(self) -> Iterator[Relaxation]:
        """The nearest edit of the layout in use, where it leaves no conflict."""
        if self.in_use is None:
            return
        found = nearest_edit(self.in_use, self.case, self.clashes.budget.part(QUESTION_SHARE))
        if found is None:
            return
        counts = self.case.count(self.case.table(found.edit.node))
        if not any(report.excess for report in self.case.reports(counts)):  # of weight 0, too
            after = to_text(found.edit.node)
            yield Relaxation("edit", f"{found.edit.text}: {after} has no conflicts, {found.bytes:,} bytes")

    def _why_none(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Why every layout has conflicts: the clique as data, if that is a reason, and sentences."""
        case, proof = self.case, self.result.proof
        subject = subject_of(case.lowered.tile, case.device, case.lanes)
        clique: dict[str, Any] | None = None
        sentences: list[str] = []
        easier = ("", COUNTING.evidence, CLIQUE.evidence, SOLVER.evidence)
        for reason in BY_HAND:
            found = reason.find(subject, Search(self.clashes.budget))
            if found is None:
                continue
            sentences += reason.words(subject, case.problem, found)
            if reason is CLIQUE:
                clique = reason.data(subject, case.problem, found)
            if reason is not COUNTING and proof.evidence in (reason.evidence, *easier):
                break  # the easiest of those that add to counting, and what the bound rests on
        if proof.evidence == SOLVER.evidence:
            least = FreeAssignment(round(proof.objective.lower_bound * case.lanes.weight_unit))
            sentences += SOLVER.words(subject, case.problem, least)
        return clique, sentences


# A block -----------------------------------------------------------------------------------------


def _block_explanation(tile_set: Block, gpu: Device, time: Budget, progress: Progress) -> BlockExplanation:
    """What decides each tile, and what all of them share."""
    found = solve(tile_set, target=gpu, budget=time.part(_ARRANGE_SHARE), progress=progress)
    room = within_room(_with(tile_set, max_bytes=None), gpu).layout.max_bytes
    tile_set = within_room(tile_set, gpu)
    free = None
    if tile_set.layout.max_bytes is not None and found.excess != 0:
        free = solve(_with(tile_set, max_bytes=MAX_BYTES), target=gpu, budget=time.part(_ARRANGE_SHARE))
    wide = None
    if tile_set.layout.families is not None and found.excess != 0:
        wide = solve(_with(tile_set, families=None), target=gpu, budget=time.part(_ARRANGE_SHARE))
    members = groups(tile_set)
    explained = []
    for k, (tiles, problem) in enumerate(members):
        named = _telling(progress, tiles[0].name)
        with fields_of(tile_set, *tiles):
            own = _tile_explanation(problem, gpu, time.part(1 / (len(members) - k)), named)
        explained.append(ExplainedTile(tuple(tile.name for tile in tiles), own))
    bound = _bound(found, explained)
    verdict = True if found.tiles and found.excess == 0 else False if bound.lower_bound > 0 else None
    if verdict is None and found.status is Status.INFEASIBLE:
        verdict = False
    together = _Together(tile_set, room, found, free, wide)
    return BlockExplanation(
        tile_set.name,
        gpu.name,
        verdict,
        ALLOWED if verdict is False and not bound.lower_bound else bound.scope,
        bound.lower_bound,
        found.excess,
        found.weighted_excess,
        found.bytes,
        tile_set.layout.max_bytes,
        tuple(name for part in explained for name in part.explanation.clashing_accesses),
        tuple(together.relaxations()),
        tuple(together.reasons(explained)),
        tuple(explained),
    )


def _telling(progress: Progress, name: str) -> Progress:
    return lambda text: progress(f"{name}: {text}")


def _with(tile_set: Block, **changes: int | None) -> Block:
    layout = msgspec.structs.replace(tile_set.layout, **changes)
    return msgspec.structs.replace(tile_set, layout=layout)


def _bound(found: Arrangement, explained: list[ExplainedTile]) -> Bound:
    """Of the excess of all tiles: what the search proved, or what single tiles have in any layout."""
    everywhere = sum(
        part.explanation.lower_bound for part in explained if part.explanation.scope == EVERY_LAYOUT
    )
    proved = found.proof.objective
    return Bound(everywhere, EVERY_LAYOUT) if everywhere >= proved.lower_bound else proved


@dataclass(frozen=True, slots=True)
class _Together:
    """What holds of all tiles: `free` and `wide` are answers without the budget, and in every family.

    `room` is what a block of the GPU has, where that is known; the budget may be less.
    """

    tile_set: Block
    room: int | None
    found: Arrangement
    free: Arrangement | None
    wide: Arrangement | None

    def reasons(self, explained: list[ExplainedTile]) -> Iterator[str]:
        limit, found, free = self.tile_set.layout.max_bytes, self.found, self.free
        if not found.tiles:
            yield f"{found.status}: {found.reason}"
        else:
            best = f"{found.excess:g} excess wavefronts" if found.excess else "no bank conflicts"
            of = f" of {limit:,}" if limit is not None else ""
            yield f"all tiles together: {best} in {found.bytes:,} bytes{of}"
        for part in explained:
            if part.explanation.conflict_free is False:
                names = " and ".join(part.tiles)
                has = "has conflicts in" if part.explanation.lower_bound else "is held by none of"
                yield f"tile {names} {has} {part.explanation.scope}, whatever the others take"
        if self._budget_costs(free):
            assert free is not None
            least = f"{free.excess:g} excess wavefronts" if free.excess else "no bank conflicts"
            yield (
                f"the budget costs {self._more():g} excess wavefronts: with {least} the tiles take "
                f"{free.bytes:,} bytes, and {self._budget()}"
                if found.tiles
                else f"with {least} the tiles take {free.bytes:,} bytes, and {self._budget()}"
            )

    def _budget(self) -> str:
        limit = self.tile_set.layout.max_bytes
        if limit == self.room:
            return f"a block of {self.tile_set.target} has {limit:,}"
        return f"layout.max_bytes is {limit:,}"

    def relaxations(self) -> Iterator[Relaxation]:
        wide, free = self.wide, self.free
        if wide is not None and wide.tiles and (not self.found.tiles or self._less(wide)):
            least = f"{wide.excess:g} excess wavefronts" if wide.excess else "no conflicts"
            yield Relaxation("families", f"with all families there are {least} in {wide.bytes:,} bytes")
        if not self._budget_costs(free):
            return
        assert free is not None
        least = f"{free.excess:g} excess wavefronts" if free.excess else "no conflicts"
        if self.room is None or (free.bytes or 0) <= self.room:
            yield Relaxation("max_bytes", f"with layout.max_bytes {free.bytes:,} there are {least}")
        yield from self._fewer_stages(free, least)

    def _fewer_stages(self, free: Arrangement, least: str) -> Iterator[Relaxation]:
        """The most stages in which the layouts of `free` fit, where the file has more."""
        limit = self.tile_set.layout.max_bytes
        assert limit is not None
        if self.tile_set.overlay:
            return
        tiles = {tile.name: tile for tile in self.tile_set.tiles}
        alignments = [
            max(part.result.alignment_bytes or 1, *(tiles[name].element_alignment for name in part.tiles))
            for part in free.tiles
        ]
        most = max(place.stages for part in free.tiles for place in part.places)
        for stages in range(most - 1, 0, -1):
            sizes = [_bytes_in(part, stages) for part in free.tiles]
            if pack(Plan(tuple(range(len(sizes)))), sizes, alignments)[0] <= limit:
                yield Relaxation("stages", f"with {stages} in place of {most} stages there are {least}")
                return

    def _budget_costs(self, free: Arrangement | None) -> bool:
        limit = self.tile_set.layout.max_bytes
        if free is None or free.bytes is None or limit is None or free.bytes <= limit:
            return False
        return not self.found.tiles or (self._less(free) and self._more() > 0)

    def _less(self, other: Arrangement) -> bool:
        """Whether another answer, which the time may have cut off, is better than the one found."""
        return (other.weighted_excess or 0) < (self.found.weighted_excess or 0)

    def _more(self) -> float:
        """Excess that the budget costs."""
        assert self.free is not None
        return (self.found.excess or 0) - (self.free.excess or 0)


def _bytes_in(part: PlacedTile, stages: int) -> int:
    """Bytes of tiles with one layout in so many stages at most, one behind the other."""
    last = part.places[-1]
    return sum(min(p.stages, stages) * p.stage_bytes for p in part.places) - last.stage_bytes + last.bytes
