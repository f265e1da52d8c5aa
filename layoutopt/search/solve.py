"""Propose, verify, keep the best: who proposes layouts, and over what one answer is the best."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec.structs import replace

from layoutopt.accesses.lower import width_choices
from layoutopt.engine.case import Case, cases
from layoutopt.engine.estimate import estimate, why_no_estimate
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import OutOfTime, current, spending, unhurried
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, Proof, Status
from layoutopt.problems.types import FAMILIES, Problem
from layoutopt.search import dictated, formulas
from layoutopt.search.beyond import beyond
from layoutopt.search.proposal import Ask
from layoutopt.search.sample import by_sample
from layoutopt.search.search import Proposer, Search
from layoutopt.search.values import over_values
from layoutopt.search.verify import Answer, verified

# Families that are searched for themselves where time or instructions come first: row-major, which belongs
# to every family, and pads before all families, the others after them; and shares of the work left.
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
_ESTIMATED: Final = (
    "least estimated time of the best layouts of several choices of families; an estimate, no proof"
)
_WIDTHS_LEFT: Final = "another choice of widths was not searched to the end"


# Who proposes layouts, in the order in which they are asked; another one is an entry.
PROPOSERS: Final[tuple[Proposer, ...]] = (
    dictated.propose,  # of what the hardware dictates, every layout is counted
    by_sample,  # of many instructions, formulas for ever more of them
    formulas.propose,
    over_values,  # lanes that choose at run time
    beyond,  # tables, and what holds for every layout
)
# CuTe's swizzles alone, as `compare` counts them.
_CUTE: Final[tuple[Proposer, ...]] = (by_sample, formulas.swizzles_alone)


def solve_fixed(problem: Problem, gpu: Device, ask: Ask) -> Answer:
    """The answer to a problem whose instructions and lanes are fixed, over every choice of its widths.

    Raises:
        as `solve_cases`.
    """
    return solve_cases(cases(problem, gpu), ask, len(width_choices(problem)))


def solve_cases(of_problem: Iterable[Case], ask: Ask, choices: int = 1) -> Answer:
    """The best verified answer over several cases of one problem, solved one after another.

    Args:
        of_problem: the cases, one for each choice of widths, widest first; drawn as they are solved.
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
        for k, case in enumerate(of_problem):
            check_solvable(case, ask)
            share = max(_WIDTHS_SHARE, 1 / max(1, choices - k))
            with spending(current() if share == 1 else current().portion(share)):
                answers.append(_solved(case, ask))
    except OutOfTime:
        if not answers:
            raise
        all_there = False
    least = best(answers, all_there)
    return least.saying(method=ask.method)


def _solved(case: Case, ask: Ask) -> Answer:
    """The best layout by the objective; where time or instructions come first, also of few families."""
    objective = case.asked.layout.objective
    if objective.time_first:
        return _of_least_time(case, ask)
    if objective.instructions_first and not case.asked.is_dictated:
        return _of_fewest_instructions(case, ask)
    return proposed(case, ask)


def proposed(case: Case, ask: Ask, proposers: Sequence[Proposer] | None = None) -> Answer:
    """The best layout of all proposers, or of some, verified."""
    best = Search(case, ask, proposers or PROPOSERS).proposal()
    return verified(case, best, conflict_free=ask.conflict_free)


def _of_least_time(case: Case, ask: Ask) -> Answer:
    """The layout of least estimated time among the best of all families and of a few cheap ones."""
    parts = _best_by_families(case, ask, _ESTIMATED)
    answers = [(of_all, estimated(answer)) for of_all, answer in parts]
    answers = [(of_all, answer) for of_all, answer in answers if answer.result.estimate is not None]
    if not answers:
        return proposed(case.constrained(replace(case.asked.layout, minimise="excess")), ask)
    return min(answers, key=lambda entry: (*entry[1].rank[:-1], not entry[0]))[1]


def _of_fewest_instructions(case: Case, ask: Ask) -> Answer:
    """The plainest formula, or the best layout of few families where that takes fewer instructions."""
    with spending(current().portion(_ALL_SHARE)):
        plainest = proposed(case, ask)
    result = plainest.result
    if result.layout is None or result.proof.index_cost is None or result.status is Status.OPTIMAL:
        return plainest
    found = [plainest]
    with suppress(OutOfTime):
        parts = _best_by_families(case, ask, result.reason)
        found += [answer for _, answer in parts if answer.result.layout is not None]
    return min(found, key=lambda answer: answer.rank)


class _Part(NamedTuple):
    """Families that are searched for themselves, by whom, and the share of the work left for it."""

    families: tuple[str, ...] | None
    proposers: Sequence[Proposer]
    share: float
    is_all: bool = False  # whether it is all that the problem allows


def _parts(case: Case) -> list[_Part]:
    """Row-major and pads, then all families, then CuTe's swizzles and the others whose index is cheap.

    The first two are searched quickly and may win, and the search of all families may use up the time. A
    layout that the hardware dictates is searched once.
    """
    everything = case.asked.layout.families
    of_all = _Part(everything, PROPOSERS, share=_ALL_SHARE, is_all=True)
    if case.asked.is_dictated:
        return [of_all]
    allowed = everything or FAMILIES
    cheap = [tuple(f for f in families if f in allowed) for families in _CHEAP_TO_INDEX]
    first = [f for f in dict.fromkeys([_ROW_MAJOR, cheap[0]]) if f and f != everything]
    others = [f for f in dict.fromkeys(cheap[1:]) if f and f not in (*first, everything)]
    later: list[tuple[tuple[str, ...] | None, Sequence[Proposer]]] = [(f, PROPOSERS) for f in others]
    if "xor" in allowed:
        later.insert(0, (everything, _CUTE))
    equal_shares = [_Part(*part, 1 / (1 + len(later) - k)) for k, part in enumerate(later)]
    return [*(_Part(f, PROPOSERS, share=_FIRST_SHARE) for f in first), of_all, *equal_shares]


def _best_by_families(case: Case, ask: Ask, reason: str) -> Iterator[tuple[bool, Answer]]:
    """For each of `_parts`: whether it is all families, and the best layout in it as an answer to the case.

    Of the bounds of an answer in a few families, those of every layout are left. `reason` says why it is not
    proved best.
    """
    for k, part in enumerate(_parts(case)):
        if k and current().spent:
            return
        asked = replace(ask, every_layout=ask.every_layout and part.is_all)
        constraints = replace(case.asked.layout, families=part.families, minimise="excess")
        try:
            with spending(current().portion(part.share)):
                answer = proposed(case.constrained(constraints), asked, part.proposers)
        except OutOfTime:
            if k == 0:
                raise
            return
        if not part.is_all:
            answer = answer.saying(proof=_held_everywhere(answer))
        yield part.is_all, replace(answer, case=case).unproved(reason)


def _held_everywhere(answer: Answer) -> Proof:
    """The proof of an answer in a few families, without the bounds that hold in these families alone."""
    proof, nothing = answer.result.proof, Bound(0, EVERY_LAYOUT)
    if not proof.objective.everywhere:
        known, has_weights = proof.every_layout or nothing, proof.weighted_excess is not None
        excess, weighted = (nothing, known) if has_weights else (known, None)
        proof = replace(proof, excess=excess, weighted_excess=weighted, every_layout=None)
    least = Bound(answer.case.asked.tile.bytes, EVERY_LAYOUT)
    return proof if proof.bytes.everywhere else replace(proof, bytes=least)


def estimated(answer: Answer) -> Answer:
    """The answer with the estimated time of its layout, where there is one that can be estimated."""
    result, case = answer.result, answer.case
    if result.layout is None or why_no_estimate(case) is not None:
        return answer
    with unhurried():
        took = estimate(case, result.layout)
    return answer.saying(estimate=took)


def check_solvable(case: Case, ask: Ask) -> None:
    """Check that a layout can be chosen and that the objective is defined for this case.

    Raises:
        ProblemFileError: the layout is fixed, nothing is accessed, or the objective is not defined.
    """
    layout = case.asked.layout
    if layout.offset is not None:
        raise ProblemFileError(
            "layout.offset",
            "fixes the layout, so there is nothing to solve; `layoutopt check` audits it, or remove it",
        )
    if not case.asked.is_dictated and not any(access.active.any() for access in case.lanes.accesses):
        raise ProblemFileError("accesses", "no access has an active lane")
    objective, first = layout.objective, layout.minimise
    if objective.time_first or (objective.instructions_first and not case.asked.is_dictated):
        if case.chooses:
            cannot = f"{first} cannot come first where values are known only at run time"
            raise ProblemFileError("layout.minimise", cannot)
        if ask.method == "model":
            raise ProblemFileError("layout.minimise", f"{first} cannot come first with the method 'model'")


def best(answers: Sequence[Answer], all_there: bool = True) -> Answer:
    """The best of one answer for each choice of widths: optimal if all are there and none can do better.

    By weighted wavefronts, bytes and index cost, in the order that is asked for. Excess would not do:
    16 bytes in two wavefronts more than ideal and 8 bytes in none may cost the same.
    """
    with_layout = [answer for answer in answers if answer.result.layout is not None]
    unknown = [answer for answer in answers if answer.result.status is Status.UNKNOWN]
    proofs = [answer.result.proof for answer in answers]
    if not with_layout:
        first = (unknown or answers)[0]
        first = first.saying(proof=_of_all_widths(first.result.proof, proofs, all_there))
        return first if all_there or unknown else first.unproved(_WIDTHS_LEFT)
    least = min(with_layout, key=lambda answer: answer.rank)
    if all_there and not unknown and all(a is least or _is_refuted(a, least) for a in with_layout):
        return least
    proof = _of_all_widths(least.result.proof, proofs, all_there)
    proof = replace(proof, bytes=Bound(least.case.lowered.tile.bytes, EVERY_LAYOUT))
    return least.saying(proof=proof).unproved(least.result.reason or _WIDTHS_LEFT)


def _of_all_widths(proof: Proof, proofs: Sequence[Proof], all_there: bool) -> Proof:
    """The proof of one choice of widths, with the bounds that hold of every choice: the least of all."""
    excess = min(other.excess.lower_bound for other in proofs) if all_there else 0
    weighted = min(other.objective.lower_bound for other in proofs) if all_there else 0
    if excess == proof.excess.lower_bound and weighted == proof.objective.lower_bound:
        return proof
    scope = next((o.objective.scope for o in proofs if not o.objective.everywhere), EVERY_LAYOUT)
    return replace(
        proof,
        excess=Bound(excess, scope if excess else EVERY_LAYOUT),
        weighted_excess=proof.weighted_excess and Bound(weighted, scope if weighted else EVERY_LAYOUT),
        every_layout=None,
        evidence="",
    )


def _is_refuted(answer: Answer, least: Answer) -> bool:
    """Whether no layout of the answer's widths is better than `least`, an answer of other widths."""
    result = answer.result
    if result.status is Status.OPTIMAL:
        return True
    unproved = (result.weighted_excess or 0) - result.proof.objective.lower_bound
    return answer.case.asked.layout.objective.excess_first and answer.wavefronts - unproved > least.wavefronts
