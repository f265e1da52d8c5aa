"""Reasons in words: why a layout works, or why none can and what to give up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from layoutopt.accesses.lower import chosen_widths
from layoutopt.errors import ExpressionError, ProblemFileError
from layoutopt.expressions.grammar import Node, parse, to_text
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.model.placement import FreeAssignment
from layoutopt.problems.answer import Status
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Access, Problem
from layoutopt.problems.words import lanes_text
from layoutopt.proof.reasons import BY_HAND, CLIQUE, COUNTING, SOLVER, Search, subject_of
from layoutopt.search.proposal import Ask, Progress
from layoutopt.search.solve import solve, solve_cases
from layoutopt.study.clash import QUESTION_SHARE, Clashes, names
from layoutopt.study.explanation import ALLOWED, Explanation, Relaxation
from layoutopt.study.known import known_case, with_known_lanes
from layoutopt.study.nearest_edit import nearest_edit
from layoutopt.study.phase_words import PhaseWords
from layoutopt.study.relaxations import Relaxations

# Share of the time that the first search may use; the questions after it have the rest.
_SEARCH_SHARE: Final = 0.5


def explain(
    problem: Problem,
    *,
    time_limit: float | None = None,
    target: Device | str | None = None,
    budget: Budget | None = None,
    progress: Progress = lambda _: None,
) -> Explanation:
    """Solve `problem` and say why the answer is what it is.

    Args:
        problem: what to explain.
        time_limit: seconds, of which the search may use half; None for no limit.
        target: the device or its name, where it is not the one the problem names.
        budget: replaces `time_limit`, for callers that stop the search from another thread.
        progress: called with a line of text from time to time.

    Raises:
        ProblemFileError: the problem contradicts itself.
    """
    gpu, time = target_of(problem, target), budget or Budget.of_limit(time_limit)
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
                return parse(text, frozenset(f"x{d}" for d in range(len(problem.tile.shape))))
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
