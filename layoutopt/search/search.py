"""One case, and the proposers of layouts for it: each in turn improves on the best proposal so far."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case
from layoutopt.ground.budget import Budget, current
from layoutopt.search.proposal import Ask, Found, Proposal
from layoutopt.search.reach_floor import ReachFloor
from layoutopt.search.scene import Scene
from layoutopt.search.tables import are_asked_for

# Share of the work that the search over the families may use; proofs for every layout get the rest.
_SEARCH_SHARE: Final = 0.75


def rank(case: Case, found: Found | None) -> tuple[float, ...]:
    """Sorting key of layouts of a case by its objective, the better one smaller; none is the worst."""
    if found is None:
        return (math.inf,)
    cost = case.index_cost(case.as_elements(found.layout))
    return case.lowered.layout.objective.key(found.weighted_excess, found.bytes, cost)


# Who proposes layouts: given the search and the best proposal so far, a better one; None where it has none.
Proposer = Callable[["Search", Proposal | None], Proposal | None]


class Search:
    """A case, and those who propose layouts for it, in the order in which they are asked.

    Attributes:
        counted: the instructions whose excess counts, where not all do: a sample, for formulas alone.
        for_formulas: the time for formulas.
        reach: the search for the floor of the excess, once it has begun.
    """

    def __init__(
        self,
        case: Case,
        ask: Ask,
        proposers: Sequence[Proposer],
        counted: Trace | None = None,
        for_formulas: Budget | None = None,
    ) -> None:
        self.case, self.ask, self.proposers, self.counted = case, ask, proposers, counted
        self.for_formulas = for_formulas or current().part(_SEARCH_SHARE)
        self.reach: ReachFloor | None = None

    @cached_property
    def scene(self) -> Scene:
        """The case as formulas see it."""
        case, families = self.case, self.case.asked.layout.families
        if are_asked_for(case):  # afterwards
            formulas = tuple(f for f in families or () if f != "table") or ("none",)
            case = case.constrained(replace(case.asked.layout, families=formulas))
        return Scene(case, self.ask, self.counted)

    def proposal(self) -> Proposal:
        """The best proposal of all."""
        best: Proposal | None = None
        for propose in self.proposers:
            best = propose(self, best) or best
        assert best is not None
        return best
