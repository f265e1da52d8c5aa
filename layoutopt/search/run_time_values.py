"""Layouts where the cost depends on values known only at run time: the engine decides between them."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Final

from layoutopt.engine.case import Case
from layoutopt.engine.run_time_values import ChoiceTrace
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import EVERY_LAYOUT, Bound
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.search.proposal import Ask, Proposal
from layoutopt.search.search import plain_layouts

# Layouts compared: at most so many, and so many that this many choices are counted in all.
_MOST_PLAIN_LAYOUTS: Final = 1000
_CHOICES_COUNTED: Final = 30_000_000
_NEEDED_S: Final = 0.5  # for the first of them, without which there is no answer
_NOT_ALL: Final = "over values, only plain layouts and swizzles of one shift were compared with the model's"


def over_values(case: Case, proposal: Proposal, ask: Ask) -> Proposal:
    """The best of the model's proposal and the plain layouts, by what the engine counts over values.

    The excess over values is at least 0 and that of the other accesses at least what the model proved,
    so their sum is a bound; a layout that meets it cannot be smaller than the model's bound on bytes.

    Raises:
        OutOfTime: counting the model's proposal takes longer than there is time.
    """
    if proposal.layout is None:
        return proposal
    bound = proposal.excess_bound.lower_bound
    least_bytes = proposal.bytes_bound.lower_bound
    needed = ask.budget.at_least(_NEEDED_S)
    best = _judged(case, proposal, proposal.layout, proposal.family, needed)
    plain = plain_layouts(case.lowered, case.device, case.certain, ask)
    for layout, family in islice(plain, _most(case)):
        if ask.budget.spent or (best.weighted_excess <= bound and best.bytes <= least_bytes):
            break
        if best.weighted_excess <= bound and case.size(case.table(case.as_elements(layout))) >= best.bytes:
            continue
        try:
            judged = _judged(case, proposal, layout, family, ask.budget)
        except OutOfTime:
            break
        best = min(best, judged, key=_key)
    if best.weighted_excess > bound:
        best = replace(best, bytes_bound=Bound(case.lowered.tile.bytes, EVERY_LAYOUT))
    if ask.conflict_free and best.weighted_excess > 0:
        return replace(best, layout=None, reason="no layout without excess over all values was found")
    return replace(best, reason="" if best.complete else _NOT_ALL)


def _most(case: Case) -> int:
    """How many layouts are compared."""
    work = sum(access.rows.size for access in case.accesses if isinstance(access, ChoiceTrace))
    return max(32, min(_MOST_PLAIN_LAYOUTS, _CHOICES_COUNTED // max(1, work)))


def _judged(case: Case, proposal: Proposal, layout: Layout, family: str, budget: Budget) -> Proposal:
    """The layout in the proposal's place, with what the engine counts."""
    table = case.table(case.as_elements(layout))
    excess = case.weighted_excess(case.count(table, budget))
    return replace(proposal, layout=layout, family=family, bytes=case.size(table), weighted_excess=excess)


def _key(proposal: Proposal) -> tuple[float, ...]:
    flips = len(proposal.layout.swizzle) if proposal.layout is not None else 0
    return EXCESS_FIRST.key(proposal.weighted_excess, proposal.bytes, flips)
