"""Propose, improve, verify, keep the best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from layoutopt.accesses.lower import assigned, chosen_widths, width_choices
from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case, case_of, cases
from layoutopt.engine.estimate import estimate, why_no_estimate
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import OutOfTime, current, spending, unhurried
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, Proof, Result, Status
from layoutopt.problems.types import FAMILIES, Constraints, Problem
from layoutopt.search import dictated, tables
from layoutopt.search.proposal import Ask, Proposal
from layoutopt.search.sample import by_sample, is_large
from layoutopt.search.scene import Scene
from layoutopt.search.search import over_values, search
from layoutopt.search.verify import Answer, verified

# Share of the work that the search over the families may use; proofs for every layout get the rest.
_SEARCH_SHARE: Final = 0.75
# Families that are searched for themselves where time comes first: row-major, which belongs to every family,
# and pads before all families, the others after them; and shares of the work left.
_ROW_MAJOR: Final = ("none",)
_CHEAP_TO_INDEX: Final = (
    ("none", "pad"),
    ("none", "order"),
    ("none", "order", "pad"),
    ("none", "xor"),
    ("none", "interval"),
    ("none", "order", "split"),
)
_FIRST_SHARE, _ALL_SHARE = 0.2, 0.5
# Share of the work left that one choice of widths has at least.
_WIDTHS_SHARE: Final = 0.5
_WIDTHS_LEFT: Final = "another choice of widths was not searched to the end"


def solve_fixed(problem: Problem, gpu: Device, ask: Ask) -> Result:
    """The answer to a problem whose instructions and lanes are given; raises as `solve_cases`."""
    if problem.layout.objective.time_first:
        return _of_least_time(problem, gpu, ask)
    if problem.layout.objective.instructions_first and not problem.is_dictated:
        return _of_fewest_instructions(problem, gpu, ask)
    return solve_widths(problem, gpu, ask)


def solve_widths(problem: Problem, gpu: Device, ask: Ask) -> Result:
    """The best answer over every choice of widths that the problem leaves open; raises as `solve_cases`."""
    return solve_cases(cases(problem, gpu), ask, len(width_choices(problem)))


def solve_cases(found: Iterable[Case], ask: Ask, choices: int = 1) -> Result:
    """The best verified answer over several cases of one problem, solved one after another.

    Args:
        found: such as one for each choice of widths, widest first; drawn as they are solved.
        ask: how to solve them.
        choices: how many there are at most, among which the time is shared.

    Raises:
        OutOfTime: the time was over before the first case was there.
        ProblemFileError: a case contradicts itself.
        VerificationError: the conflict engine does not confirm the model; nothing is returned.
    """
    answers = []
    all_there = True
    try:
        for k, case in enumerate(found):
            check_solvable(case)
            share = max(_WIDTHS_SHARE, 1 / max(1, choices - k))
            propose = dictated.propose if case.lowered.is_dictated else formulas
            with spending(current() if share == 1 else current().portion(share)):
                proposal = improved(case, propose(case, ask), ask)
            answers.append(verified(case, proposal, conflict_free=ask.conflict_free))
    except OutOfTime:
        if not answers:
            raise
        all_there = False
    return msgspec.structs.replace(best(answers, all_there), method=ask.method)


def _of_least_time(problem: Problem, gpu: Device, ask: Ask) -> Result:
    """The layout of least estimated time among the best of all families and of a few cheap ones."""
    if any(access.any for access in problem.accesses):
        raise ProblemFileError(
            "layout.minimise", "time cannot come first where values are known only at run time"
        )
    if ask.method == "model":
        raise ProblemFileError("layout.minimise", "time cannot come first with the method 'model'")
    under = Under(problem, gpu)
    each = [(in_all, under.estimated(result)) for in_all, result in _best_by_families(under, ask)]
    found = [(in_all, r) for in_all, r in each if r.layout is not None and r.estimate is not None]
    if not found:
        return under.solve(msgspec.structs.replace(problem.layout, minimise="excess"), ask)
    in_all, least = min(found, key=lambda entry: (*_key(problem, entry[1])[:-1], not entry[0]))
    least = least if in_all else _held_everywhere(least, problem)
    reason = "least estimated time of the best layouts of several choices of families; an estimate, no proof"
    return least.unproved(reason)


def _of_fewest_instructions(problem: Problem, gpu: Device, ask: Ask) -> Result:
    """The plainest formula, or the best layout of few families where that takes fewer instructions."""
    with spending(current().portion(_ALL_SHARE)):
        under = Under(problem, gpu)
        plainest = under.solve(problem.layout, ask)
    cost = plainest.proof.index_cost
    if plainest.layout is None or cost is None or plainest.status is Status.OPTIMAL:
        return plainest
    found = [plainest]
    with suppress(OutOfTime):
        each = (r if whole else _held_everywhere(r, problem) for whole, r in _best_by_families(under, ask))
        found += (result for result in each if result.layout is not None)
    least = min(found, key=lambda result: _key(problem, result))
    if least is plainest:
        return plainest
    return least.unproved(plainest.reason)


def _held_everywhere(result: Result, problem: Problem) -> Result:
    """The best of a few families with what is proved of every layout: those that are allowed are more."""
    proof = result.proof
    if not proof.objective.everywhere:
        wider = proof.every_layout or Bound(0, EVERY_LAYOUT)
        plain = Bound(0, EVERY_LAYOUT) if proof.weighted_excess is not None else wider
        weighted = wider if proof.weighted_excess is not None else None
        proof = msgspec.structs.replace(proof, excess=plain, weighted_excess=weighted, every_layout=None)
    if not proof.bytes.everywhere:
        proof = msgspec.structs.replace(proof, bytes=Bound(problem.tile.bytes, EVERY_LAYOUT))
    return msgspec.structs.replace(result, proof=proof)


def _key(problem: Problem, result: Result) -> tuple[float, ...]:
    """What sorts results that have a layout; of estimates, what fits on the device comes first."""
    cost, took = result.proof.index_cost, result.estimate
    return problem.layout.objective.key(
        result.weighted_excess or 0,
        result.bytes or 0,
        cost.value if cost is not None else 0,
        (took.blocks_per_sm == 0, took.time, took.cycles) if took is not None else (),
    )


class Under:
    """The answers to a problem under one constraint after another, traced once where no width is open.

    Raises:
        OutOfTime: the time was over before the first was there.
    """

    def __init__(self, problem: Problem, gpu: Device) -> None:
        self.problem, self.gpu = problem, gpu
        several = len(width_choices(problem)) > 1
        self._case = None if several else case_of(problem, gpu)

    def solve(self, layout: Constraints, ask: Ask) -> Result:
        """The answer under these."""
        if self._case is not None:
            return solve_cases([self._case.constrained(layout)], ask)
        return solve_widths(msgspec.structs.replace(self.problem, layout=layout), self.gpu, ask)

    def estimated(self, result: Result) -> Result:
        """The result with the estimated time of its layout, if it has one."""
        if result.layout is None or any(access.any for access in self.problem.accesses):
            return result
        widths = chosen_widths(self.problem, result)
        with unhurried():
            case = self._case or case_of(assigned(self.problem, result), self.gpu, widths)
            return estimated(case, result)


def _best_by_families(under: Under, ask: Ask) -> Iterator[tuple[bool, Result]]:
    """For each of several lists of families: whether it is all that are allowed, and the best layout in it.

    Row-major and pads come first, then all families, then the other lists that have cheap index code: the
    first two are searched quickly and may win, and the search of all families may use up the time. A layout
    that the hardware dictates is searched once.
    """
    layout = under.problem.layout
    lists = [layout.families]
    if not under.problem.is_dictated:
        allowed = layout.families or FAMILIES
        pads, *others = (tuple(f for f in families if f in allowed) for families in _CHEAP_TO_INDEX)
        lists = [f for f in dict.fromkeys([_ROW_MAJOR, pads, layout.families, *others]) if f != ()]
    everything = lists.index(layout.families)
    for k, families in enumerate(lists):
        if k and current().spent:
            return
        if k < everything:
            share = _FIRST_SHARE
        else:
            share = _ALL_SHARE if k == everything else 1 / (1 + len(lists) - k)
        mine = replace(ask, every_layout=ask.every_layout and k == everything)
        constraints = msgspec.structs.replace(layout, families=families, minimise="excess")
        try:
            with spending(current().portion(share)):
                found = under.solve(constraints, mine)
        except OutOfTime:
            if k == 0:
                raise
            return
        yield k == everything, found


def estimated(case: Case, result: Result) -> Result:
    """The result of a case, which has a layout, with its time, where that can be estimated."""
    assert result.layout is not None
    if why_no_estimate(case) is not None:
        return result
    took = estimate(case, result.layout)
    return msgspec.structs.replace(result, estimate=took)


def check_solvable(case: Case) -> None:
    """Check that there is something to solve.

    Raises:
        ProblemFileError: the layout is fixed, or nothing is accessed.
    """
    if case.asked.layout.offset is not None:
        raise ProblemFileError(
            "layout.offset",
            "fixes the layout, so there is nothing to solve; `layoutopt check` audits it, or remove it",
        )
    if not case.asked.is_dictated and not any(access.active.any() for access in case.lanes.accesses):
        raise ProblemFileError("accesses", "no access has an active lane")


def formulas(case: Case, ask: Ask) -> Proposal:
    """The best formula, by what is certain: the model counts no lanes that choose at run time.

    Raises:
        ProblemFileError: instructions come first where values are known only at run time.
    """
    problem = case.lowered
    if case.chooses and problem.layout.objective.instructions_first:
        raise ProblemFileError(
            "layout.minimise", "instructions cannot come first where values are known only at run time"
        )
    if ask.method == "model" and problem.layout.objective.instructions_first:
        raise ProblemFileError("layout.minimise", "instructions cannot come first with the method 'model'")
    if tables.are_asked_for(case):  # afterwards
        families = tuple(f for f in problem.layout.families or () if f != "table")
        problem = tables.within(problem, families or ("none",))
    ask, searching, large = replace(ask, indexed=case.indexed), current().part(_SEARCH_SHARE), is_large(case)
    tables_too = problem is case.lowered and not case.chooses and not large
    instead = partial(tables.instead, case, ask=ask) if tables_too else lambda _: None

    def searched(counted: Trace | None = None) -> Proposal:
        with spending(searching):
            return search(Scene(problem, case.device, case.certain, ask, counted, instead))

    return by_sample(case, ask, searched) if large else searched()


def improved(case: Case, proposal: Proposal, ask: Ask) -> Proposal:
    """The proposal, or a better one, by what its source does not see."""
    if case.lowered.is_dictated:
        return proposal  # every layout there may be was counted
    if case.chooses:
        proposal = over_values(case, proposal, ask)
    elif ask.every_layout or tables.are_asked_for(case):
        # What holds for every layout is not asked of too many instructions together.
        proposal = tables.with_tables(case, proposal, ask, bounds=not is_large(case))
    if "table" in (case.lowered.layout.families or ()) and (why := tables.why_none_is_searched(case)):
        proposal = replace(proposal, notes=(*proposal.notes, f"no table was searched: {why}"))
    return tables.not_refuted(case, proposal, ask)


def best(answers: Sequence[Answer], all_there: bool = True) -> Result:
    """The best of one answer for each choice of widths: optimal if all are there and none can do better.

    By weighted wavefronts, bytes and index cost, in the order that is asked for. Excess would not do:
    16 bytes in two wavefronts more than ideal and 8 bytes in none may cost the same.
    """
    found = [answer for answer in answers if answer.result.layout is not None]
    unknown = [answer.result for answer in answers if answer.result.status is Status.UNKNOWN]
    proofs = [answer.result.proof for answer in answers]
    if not found:
        result = (unknown or [answer.result for answer in answers])[0]
        result = msgspec.structs.replace(result, proof=_of_all_widths(result.proof, proofs, all_there))
        if all_there or unknown:
            return result
        return msgspec.structs.replace(result, status=Status.UNKNOWN, reason=_WIDTHS_LEFT, decided_by=None)
    least = min(found, key=lambda answer: answer.rank)
    if all_there and not unknown and all(a is least or _decided(a, least) for a in found):
        return least.result
    proof = _of_all_widths(least.result.proof, proofs, all_there)
    proof = msgspec.structs.replace(proof, bytes=Bound(least.case.lowered.tile.bytes, EVERY_LAYOUT))
    return msgspec.structs.replace(least.result, proof=proof).unproved(least.result.reason or _WIDTHS_LEFT)


def _of_all_widths(proof: Proof, proofs: Sequence[Proof], all_there: bool) -> Proof:
    """The proof of one choice of widths, where another may be better: what holds of every choice."""
    needed = min(other.excess.lower_bound for other in proofs) if all_there else 0
    weighted = min(other.objective.lower_bound for other in proofs) if all_there else 0
    if needed == proof.excess.lower_bound and weighted == proof.objective.lower_bound:
        return proof
    scope = next((o.objective.scope for o in proofs if not o.objective.everywhere), EVERY_LAYOUT)
    return msgspec.structs.replace(
        proof,
        excess=Bound(needed, scope if needed else EVERY_LAYOUT),
        weighted_excess=proof.weighted_excess and Bound(weighted, scope if weighted else EVERY_LAYOUT),
        every_layout=None,
        evidence="",
    )


def _decided(answer: Answer, least: Answer) -> bool:
    result = answer.result
    if result.status is Status.OPTIMAL:
        return True
    saved = (result.weighted_excess or 0) - result.proof.objective.lower_bound
    return answer.case.asked.layout.objective.excess_first and answer.wavefronts - saved > least.wavefronts
