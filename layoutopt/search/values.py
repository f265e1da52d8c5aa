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
from layoutopt.search.proposal import Found, Proposal, Proved
from layoutopt.search.scene import Scene
from layoutopt.search.search import Search

# Layouts compared: at most so many, and so many that this many choices are counted in all.
_MOST_PLAIN_LAYOUTS: Final = 1000
_CHOICES_COUNTED: Final = 30_000_000
_NEEDED_S: Final = 0.5  # seconds at least for the first of them, without which there is no answer
_ALL_HAVE_EXCESS: Final = "no layout without excess over all values was found"
_NOT_ALL: Final = "over values, only plain layouts and swizzles of one shift were compared with the model's"


def over_values(search: Search, proposal: Proposal | None) -> Proposal | None:
    """The best of the model's proposal and the plain layouts, by what the engine counts over values.

    None where no lane chooses at run time, or what the hardware dictates was counted over values already.

    The model knows the accesses without such values alone. The excess of the others is at least 0, so its
    bound holds of all; a layout that meets it cannot be smaller than the model's bound on bytes.

    Raises:
        OutOfTime: counting the model's proposal takes longer than there is time.
    """
    case, ask = search.case, search.ask
    decided = search.counted is not None or case.lowered.is_dictated or not case.chooses
    if decided or proposal is None or proposal.found is None:
        return None
    bound, least_bytes = proposal.excess_bound.lower_bound, proposal.bytes_bound.lower_bound
    with spending(current().at_least(_NEEDED_S)):
        best = _counted(case, proposal.found.layout, proposal.found.family)
    assert best is not None  # any excess will do
    choices = sum(access.distinct.size for access in case.accesses if isinstance(access, ChoiceTrace))
    most = max(32, min(_MOST_PLAIN_LAYOUTS, _CHOICES_COUNTED // max(1, choices)))
    plain = _plain_layouts(Scene(case, replace(ask, conflict_free=False)))
    for layout, family in itertools.islice(plain, most):
        at_bound = best.weighted_excess <= bound  # then only fewer bytes are better
        if current().spent or (at_bound and best.bytes <= least_bytes):
            break
        if at_bound and case.size(case.table(case.as_elements(layout))) >= best.bytes:
            continue
        try:
            found = _counted(case, layout, family, best.weighted_excess)
        except OutOfTime:
            break
        best = min(best, found or best, key=_rank)
    if best.weighted_excess > bound:
        proposal = replace(proposal, bytes_bound=Proved(case.lowered.tile.bytes))
    if ask.conflict_free and best.weighted_excess > 0:
        return replace(proposal, found=None, left_open=True, left=_ALL_HAVE_EXCESS)
    return replace(proposal, found=best, left=_NOT_ALL)


def _counted(case: Case, layout: Layout, family: str, most: float = math.inf) -> Found | None:
    """A layout as the engine counts it over all values; None where its excess is above `most`."""
    table, excess = case.table(case.as_elements(layout)), 0.0
    for access in sorted(case.accesses, key=lambda a: isinstance(a, ChoiceTrace)):  # the quickest first
        count = access.count(table)
        excess += float((count.excess * access.weight).sum())
        if rounded_count(excess) > most:
            return None
    return Found(layout, family, weighted_excess=rounded_count(excess), bytes=case.size(table))


def _rank(found: Found) -> tuple[float, ...]:
    return EXCESS_FIRST.key(found.weighted_excess, found.bytes, len(found.layout.swizzle))


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
