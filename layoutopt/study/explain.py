"""Reasons in words: why a layout works, or why none can and what to give up.

Of several tiles: what decides each of them by itself, and what the common budget costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypedDict, Unpack, overload

import msgspec

from layoutopt.accesses.lower import offset_formula
from layoutopt.errors import ExpressionError, ProblemFileError
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.files.checks import fields_of
from layoutopt.files.result_file import MAX_BYTES
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.model.placement import FreeAssignment
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, Result, Status
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Access, Block, Problem
from layoutopt.proof.board import subject_of
from layoutopt.proof.reasons import BY_HAND, CLIQUE, COUNTING, SOLVER, Search
from layoutopt.search.block import solve
from layoutopt.search.proposal import Progress
from layoutopt.search.same_layout import groups, within_room
from layoutopt.study.edits import nearest_edit
from layoutopt.study.explanation import ALLOWED, BlockExplanation, ExplainedTile, Explanation, Relaxation
from layoutopt.study.known import Solved, solved
from layoutopt.study.phase_words import PhaseWords
from layoutopt.study.relaxations import QUESTION_SHARE, Relaxations, names, of_constraints

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
        return _of_block(problem, gpu, time, progress)
    return _of_tile(problem, gpu, time, progress)


def _of_tile(problem: Problem, gpu: Device, budget: Budget, progress: Progress) -> Explanation:
    """Why one tile comes out as it does."""
    in_use = _in_use(problem)
    # A share of the time, so that the search goes as it would without questions to follow.
    best = solved(problem, gpu, budget, share=_SEARCH_SHARE, progress=progress)
    case, result = best.case, best.result
    if result.layout is not None:
        progress(f"excess {result.excess:g} in {result.bytes:,} bytes; what could be given up")
    bound = result.proof.objective
    refuted = bound.lower_bound > 0 or (result.layout is None and result.proof.excess.lower_bound > 0)
    verdict = _verdict(result.layout is not None and result.excess == 0, refuted, result.status)
    general = bound if bound.everywhere else result.proof.every_layout
    in_every = general is not None and (bound.everywhere or general.lower_bound > 0)
    proved = general if in_every and not verdict and general is not None else bound
    questions = _Questions(best, in_use, Relaxations(case, budget))
    relaxations = tuple(questions.relaxations(verdict, refuted and in_every))
    scope = ALLOWED if verdict is False and not proved.lower_bound else proved.scope
    reasons = (*PhaseWords(case).why(result, in_use), *questions.why_none)
    if best.lanes:
        reasons = (f"The lanes are chosen: {best.lanes}; what follows is about them.", *reasons)
        scope += ", with the lanes chosen"
    return Explanation(
        case.problem.name,
        case.device.name,
        verdict,
        scope,
        proved.lower_bound,
        result.proof.evidence,
        result.excess,
        result.weighted_excess,
        result.offset,
        questions.clique,
        names(questions.clash),
        questions.minimal,
        tuple(questions.others),
        relaxations,
        reasons,
        best.widths,
        result.decided_by,
        result.model,
        case.has_weights,
    )


def _verdict(free: bool, refuted: bool, status: Status) -> bool | None:
    """Whether a layout without conflicts exists; None where that is open."""
    return True if free else False if refuted or status is Status.INFEASIBLE else None


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


class _Questions:
    """What to change or to give up, and why every layout has conflicts.

    Attributes:
        clique: words that pairwise meet, more than banks, as in a certificate; None without.
        clash: accesses that cannot all be served; `minimal` where each is needed for that.
        others: the names of more such accesses.
        why_none: sentences.
    """

    def __init__(self, best: Solved, in_use: Node | None, give_up: Relaxations) -> None:
        self.case, self.result, self.in_use, self.give_up = best.case, best.result, in_use, give_up
        self.clique: dict[str, Any] | None = None
        self.clash: list[Access] = []
        self.minimal = False
        self.others: list[tuple[str, ...]] = []
        self.why_none: list[str] = []

    def relaxations(self, free: bool | None, none_at_all: bool) -> Iterator[Relaxation]:
        """What would help, where no layout is known to be free of conflicts; an edit in any case.

        Args:
            free: whether a layout is free of conflicts; None where that is open.
            none_at_all: every layout has conflicts.
        """
        case, ask, result = self.case, self.give_up, self.result
        yield from self._edit()
        if free:
            return
        yield from of_constraints(case, ask.budget)
        if case.chooses:
            return  # what lanes may choose has no other width or order
        found: list[Relaxation] = []
        if none_at_all:
            self._explain_none()
            self.clash, self.minimal = ask.smallest(ask.accesses)
            self.others = ask.others(self.clash)
            found += ask.of_accesses(self.clash, self.others)
            self.why_none += dict.fromkeys(ask.not_allowed)
        if result.layout is not None:
            found += ask.lane_orders(case.as_bytes(result.layout), self.clash)
            found += ask.free_lanes(self.clash)
            if all(relaxation.kind == "drop_access" for relaxation in found):
                found += ask.narrower_with_order(self.clash)
        yield from found

    def _edit(self) -> Iterator[Relaxation]:
        """The nearest edit of the layout in use, where it leaves no conflict."""
        if self.in_use is None:
            return
        found = nearest_edit(self.in_use, self.case, self.give_up.budget.part(QUESTION_SHARE))
        if found is None:
            return
        if not any(report.excess for report in self.case.measure(found.edit.node)):  # of weight 0, too
            after = to_text(found.edit.node)
            yield Relaxation("edit", f"{found.edit.text}: {after} has no conflicts, {found.bytes:,} bytes")

    def _explain_none(self) -> None:
        """Why every layout has conflicts: the clique as data, if that is a reason, and sentences."""
        case, proof = self.case, self.result.proof
        subject = subject_of(case.lowered.tile, case.device, case.lanes)
        easier = ("", COUNTING.evidence, CLIQUE.evidence, SOLVER.evidence)
        for reason in BY_HAND:
            found = reason.find(subject, Search(self.give_up.budget))
            if found is None:
                continue
            self.why_none += reason.words(subject, case.problem, found)
            if reason is CLIQUE:
                self.clique = reason.data(subject, case.problem, found)
            if reason is not COUNTING and proof.evidence in (reason.evidence, *easier):
                break  # the easiest of those that add to counting, and what the bound rests on
        if proof.evidence == SOLVER.evidence:
            least = FreeAssignment(round(proof.objective.lower_bound * case.lanes.weight_unit))
            self.why_none += SOLVER.words(subject, case.problem, least)


# A block -----------------------------------------------------------------------------------------


def _of_block(block: Block, gpu: Device, time: Budget, progress: Progress) -> BlockExplanation:
    """What decides each tile, and what all of them share."""
    found = solve(block, target=gpu, budget=time.part(_ARRANGE_SHARE), progress=progress)
    room = within_room(_with(block, max_bytes=None), gpu).layout.max_bytes
    block = within_room(block, gpu)

    def solved_again(changed: Block) -> Arrangement:
        return solve(changed, target=gpu, budget=time.part(_ARRANGE_SHARE))

    def without(constraint: str, value: int | None) -> Arrangement | None:
        """What comes out with more of what a constraint leaves; None where nothing can be better."""
        if getattr(block.layout, constraint) is None or found.excess == 0:
            return None
        return solved_again(_with(block, **{constraint: value}))

    free, wide = without("max_bytes", MAX_BYTES), without("families", None)
    together = _Together(block, room, found, free, wide, solved_again)
    members, explained = groups(block), []
    for k, (tiles, problem) in enumerate(members):
        part, told = time.part(1 / (len(members) - k)), partial(_tell, progress, tiles[0].name)
        with fields_of(block, *tiles):
            own = _of_tile(problem, gpu, part, told)
        explained.append(ExplainedTile(tuple(tile.name for tile in tiles), own))
    bound = _bound(found, explained)
    verdict = _verdict(bool(found.tiles) and found.excess == 0, bound.lower_bound > 0, found.status)
    return BlockExplanation(
        block.name,
        gpu.name,
        verdict,
        ALLOWED if verdict is False and not bound.lower_bound else bound.scope,
        bound.lower_bound,
        found.excess,
        found.weighted_excess,
        found.bytes,
        block.layout.max_bytes,
        tuple(name for part in explained for name in part.explanation.clashing_accesses),
        tuple(together.relaxations()),
        tuple(together.reasons(explained)),
        tuple(explained),
    )


def _tell(progress: Progress, name: str, text: str) -> None:
    progress(f"{name}: {text}")


def _with(block: Block, **changes: int | None) -> Block:
    return msgspec.structs.replace(block, layout=msgspec.structs.replace(block.layout, **changes))


def _bound(found: Arrangement, explained: Sequence[ExplainedTile]) -> Bound:
    """Of the excess of all tiles: what the search proved, or what single tiles have in any layout."""
    each = (part.explanation for part in explained)
    everywhere = sum(one.lower_bound for one in each if one.scope == EVERY_LAYOUT)
    proved = found.proof.objective
    return Bound(everywhere, EVERY_LAYOUT) if everywhere >= proved.lower_bound else proved


def _least(found: Arrangement | Result, none: str = "no conflicts") -> str:
    return f"{found.excess:g} excess wavefronts" if found.excess else none


@dataclass(frozen=True, slots=True)
class _Together:
    """What holds of all tiles: `free` and `wide` are answers without the budget, and in every family.

    `room` is what a block of the GPU has, where that is known; the budget may be less.
    """

    block: Block
    room: int | None
    found: Arrangement
    free: Arrangement | None
    wide: Arrangement | None
    solve: Callable[[Block], Arrangement]

    def reasons(self, explained: Sequence[ExplainedTile]) -> Iterator[str]:
        """What comes out, the tiles that decide it by themselves, and what the budget costs."""
        limit, found = self.block.layout.max_bytes, self.found
        if not found.tiles:
            yield f"{found.status}: {found.reason}"
        else:
            of = f" of {limit:,}" if limit is not None else ""
            yield f"all tiles together: {_least(found, 'no bank conflicts')} in {found.bytes:,} bytes{of}"
        for part in explained:
            if part.explanation.conflict_free is False:
                has = "has conflicts in" if part.explanation.lower_bound else "is held by none of"
                scope = f"{part.explanation.scope}, whatever the others take"
                yield f"tile {' and '.join(part.tiles)} {has} {scope}"
        if (free := self._beyond_budget()) is not None:
            has = f"layout.max_bytes is {limit:,}"
            if limit == self.room:
                has = f"a block of {self.block.target} has {limit:,}"
            saved = (found.excess or 0) - (free.excess or 0)
            costs = f"the budget costs {saved:g} excess wavefronts: " if found.tiles else ""
            least = _least(free, "no bank conflicts")
            yield f"{costs}with {least} the tiles take {free.bytes:,} bytes, and {has}"

    def relaxations(self) -> Iterator[Relaxation]:
        """What to give up of what all tiles share."""
        wide, free, limit = self.wide, self._beyond_budget(), self.block.layout.max_bytes
        if wide is not None and wide.tiles and (not self.found.tiles or self._is_better(wide)):
            yield Relaxation(
                "families", f"with all families there are {_least(wide)} in {wide.bytes:,} bytes"
            )
        if free is None:
            return
        least = _least(free)
        if self.room is None or (free.bytes or 0) <= self.room:
            yield Relaxation("max_bytes", f"with layout.max_bytes {free.bytes:,} there are {least}")
        most = max(tile.stages for tile in self.block.tiles)
        for stages in range(most - 1, 0, -1):
            if sum(min(stages, t.stages) * t.bytes for t in self.block.tiles) > (limit or 0):
                continue
            tiles = tuple(
                msgspec.structs.replace(tile, stages=min(stages, tile.stages)) for tile in self.block.tiles
            )
            fewer = self.solve(msgspec.structs.replace(self.block, tiles=tiles))
            if fewer.tiles and (fewer.weighted_excess or 0) <= (free.weighted_excess or 0):
                yield Relaxation("stages", f"with {stages} in place of {most} stages there are {least}")
                return

    def _beyond_budget(self) -> Arrangement | None:
        """The answer without the budget, where the budget is what keeps from it."""
        free, found, limit = self.free, self.found, self.block.layout.max_bytes
        if free is None or free.bytes is None or limit is None or free.bytes <= limit:
            return None
        better = self._is_better(free) and (free.excess or 0) < (found.excess or 0)
        return free if better or not found.tiles else None

    def _is_better(self, other: Arrangement) -> bool:
        """Whether another answer, which the time may have cut off, is better than the one found."""
        return (other.weighted_excess or 0) < (self.found.weighted_excess or 0)
