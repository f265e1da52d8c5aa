"""Values known only at run time: the conflict engine decides between the model's layout and plain ones."""

import itertools
import math
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from layoutopt.engine.case import Case
from layoutopt.engine.referee import rounded_count
from layoutopt.engine.run_time_values import ChoiceTrace
from layoutopt.ground.budget import OutOfTime, current, spending
from layoutopt.layout.layout import Layout
from layoutopt.model.layout_model import Solution
from layoutopt.model.linearisations import rotated, unpadded
from layoutopt.model.pads import padded
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.search.proposal import Proposal, Proved
from layoutopt.search.scene import Scene
from layoutopt.search.search import Search

# Layouts compared: at most so many, and so many that this many choices are counted in all.
_MOST_PLAIN_LAYOUTS: Final = 1000
_CHOICES_COUNTED: Final = 30_000_000
_NEEDED_S: Final = 0.5  # for the first of them, without which there is no answer
_NOT_ALL: Final = "over values, only plain layouts and swizzles of one shift were compared with the model's"


def over_values(search: Search, proposal: Proposal | None) -> Proposal:
    """The best of the model's proposal and the plain layouts, by what the engine counts over values.

    The excess over values is at least 0 and that of the other accesses at least what the model proved,
    so their sum is a bound; a layout that meets it cannot be smaller than the model's bound on bytes.

    Raises:
        OutOfTime: counting the model's proposal takes longer than there is time.
    """
    assert proposal is not None
    if proposal.layout is None:
        return proposal
    case, ask = search.case, search.ask
    bound = proposal.excess_bound.lower_bound
    least_bytes = proposal.bytes_bound.lower_bound
    with spending(current().at_least(_NEEDED_S)):
        best = _judged(case, proposal, proposal.layout, proposal.family) or proposal
    plain = _plain_layouts(Scene(case, replace(ask, conflict_free=False)))
    choices = sum(access.distinct.size for access in case.accesses if isinstance(access, ChoiceTrace))
    most = max(32, min(_MOST_PLAIN_LAYOUTS, _CHOICES_COUNTED // max(1, choices)))
    for layout, family in itertools.islice(plain, most):
        if current().spent or (best.weighted_excess <= bound and best.bytes <= least_bytes):
            break
        if best.weighted_excess <= bound and case.size(case.table(case.as_elements(layout))) >= best.bytes:
            continue
        try:
            judged = _judged(case, proposal, layout, family, best.weighted_excess)
        except OutOfTime:
            break
        best = min(best, judged or best, key=_key)
    if best.weighted_excess > bound:
        best = replace(best, bytes_bound=Proved(case.lowered.tile.bytes))
    if ask.conflict_free and best.weighted_excess > 0:
        return replace(best, layout=None, left="no layout without excess over all values was found")
    return replace(best, left=_NOT_ALL)


def _judged(
    case: Case, proposal: Proposal, layout: Layout, family: str, most: float = math.inf
) -> Proposal | None:
    """The proposal with another layout, as the engine counts it; None where its excess is above `most`."""
    table, excess = case.table(case.as_elements(layout)), 0.0
    for access in sorted(case.accesses, key=lambda a: isinstance(a, ChoiceTrace)):  # the quickest first
        count = access.count(table)
        excess += float(((count.wavefronts - count.ideal) * access.weight).sum())
        if rounded_count(excess) > most:
            return None
    size, counted = case.size(table), rounded_count(excess)
    return replace(proposal, layout=layout, family=family, bytes=size, weighted_excess=counted)


def _key(proposal: Proposal) -> tuple[float, ...]:
    flips = len(proposal.layout.swizzle) if proposal.layout is not None else 0
    return EXCESS_FIRST.key(proposal.weighted_excess, proposal.bytes, flips)


def _plain_layouts(scene: Scene) -> Iterator[tuple[Layout, str]]:
    """Layouts of the families with a swizzle of one shift or none, with their families.

    First those without cuts and pads, as they are and swizzled, then one cut, then pads of whole dimensions
    by rising bytes, then rotations and two cuts.
    """
    space = scene.space
    pads = padded(space, cuts=False)
    swizzled = ((c, masks) for c in unpadded(space, 0) for masks in ({}, *scene.textbook(c)))
    plain = itertools.chain(unpadded(space, 1), pads, rotated(space), unpadded(space, 2))
    for candidate, masks in current().while_left(itertools.chain(swizzled, ((c, {}) for c in plain))):
        if scene.fits(candidate.span):
            solution = Solution(candidate, masks)
            yield scene.layout(solution), solution.family
