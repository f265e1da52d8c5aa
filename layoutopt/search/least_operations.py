"""The cheapest index, then the least excess, then the fewest bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from layoutopt.ground.budget import OutOfTime
from layoutopt.layout.index_cost import index_cost, least_index_cost
from layoutopt.model.linear_phases import Phases, phases_of
from layoutopt.model.linearisations import Linearisation, least_operations
from layoutopt.model.swizzle import SHIFT_OPERATIONS
from layoutopt.problems.answer import EVERY_LAYOUT, Bound
from layoutopt.search.found import Found
from layoutopt.search.proposal import Proposal
from layoutopt.search.scene import GATHER_SHARE, Scene

# Said of a layout whose index another may undercut, where the index comes first.
COST_LEFT: Final[dict[str, Any]] = {
    "complete": False,
    "operations_proved": False,
    "reason": "that no index of these families is cheaper is not proved",
}


class LeastOperations:
    """Where instructions come first."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.tally = scene, scene.tally

    def run(self) -> Proposal | None:
        """The cheapest index (with `conflict_free`, that serves every phase), then excess, then bytes.

        None where no layout was found that needs no swizzle, or one without conflicts.
        """
        best: Found | None = None
        least = least_operations(self.scene.space)
        for candidate in self._by_operations():
            if best is not None and candidate.operations > best.operations:
                continue
            if self.scene.budget.spent and best is not None:
                self.tally.exhausted = False
                break
            phases = phases_of(candidate, self.scene.sets, self.scene.tile)
            found: Found | None = Found(candidate, {}, phases.excess({}), candidate.operations)
            if self.scene.conflict_free and found is not None and found.excess:
                found = self._swizzled_within(candidate, phases, best)
            if found is not None and self.scene.fits(found.candidate.span):
                best = found if best is None else min(best, found, key=lambda f: (f.operations, *f.rank))
            if best is not None and (best.operations, best.excess) <= (least, self.scene.floor):
                break  # what follows is larger
        return None if best is None else self._cheapest(best)

    def _by_operations(self) -> Iterator[Linearisation]:
        """The candidates that a cheapest index may come from, by rising operations where that matters.

        Without `conflict_free` any candidate serves, so that only those as cheap as row-major, or cheaper,
        need be looked at; of them the smallest that reaches the floor ends the search.
        """
        if self.scene.conflict_free:
            gathered = list(self.scene.budget.part(GATHER_SHARE).while_left(self.scene.candidates()))
            self.tally.exhausted = self.tally.exhausted and self.scene.budget.share_left > 1 - GATHER_SHARE
            yield from sorted(gathered, key=lambda c: (c.operations, c.span))
            return
        try:
            yield from self.scene.candidates()
        except OutOfTime:
            self.tally.exhausted = False

    def _swizzled_within(self, candidate: Linearisation, phases: Phases, best: Found | None) -> Found | None:
        """A swizzle over `candidate` without conflicts that is as cheap as `best`, or cheaper."""
        for reach in self.scene.reaches(candidate):
            if best is not None and candidate.operations + SHIFT_OPERATIONS > best.operations:
                return None
            found, decided = self.scene.swizzle(replace(candidate, span=reach), phases, phases.ideal, None)
            if not decided:
                self.tally.exhausted = False
            if found is not None:
                return found
        return None

    def _cheapest(self, found: Found) -> Proposal:
        cost = index_cost(self.scene.layout(found))
        self.scene.scope += f" with at most {cost} operations"
        least = least_index_cost(self.scene.tile.shape, bool(found.masks))
        proved = self.tally.exhausted and found.cheapest and cost <= least and self.scene.knows_sizes
        bound = found.excess if proved else self.scene.floor
        size = int(self.scene.layout(found).table().max()) + self.scene.tile.element_bytes
        self.tally.undecided_span = None if proved else self.scene.tile.elements
        proposal = self.scene.proposal(found, bound, operations_proved=proved)
        least = size if proved else self.scene.tile.bytes
        scope = EVERY_LAYOUT if least == self.scene.tile.bytes else self.scene.scope
        proposal = replace(proposal, bytes_bound=Bound(least, scope))
        return (
            replace(proposal, operations_proved=True, complete=True, reason="")
            if proved
            else replace(proposal, **COST_LEFT)
        )
