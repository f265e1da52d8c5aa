"""What a search has found, and what it leaves open."""

from __future__ import annotations

from dataclasses import dataclass, field

from layoutopt.model.linearisations import Linearisation, by_cost
from layoutopt.model.swizzle_rules import Masks
from layoutopt.problems.answer import ModelGrowth
from layoutopt.problems.objective import EXCESS_FIRST


@dataclass(frozen=True, slots=True)
class Found:
    """A layout of the families that was looked at.

    Attributes:
        candidate: its linearisation; its span is what the layout may take.
        masks: of the swizzle.
        excess: weighted.
        operations: of the linearisation, and three for each distinct shift.
    """

    candidate: Linearisation
    masks: Masks
    excess: int
    operations: int

    @property
    def rank(self) -> tuple[float, ...]:
        """Sorting key of layouts of one search, which seeks the least excess within its limit of bytes."""
        return EXCESS_FIRST.key(self.excess, self.candidate.span, self.operations)


@dataclass(slots=True)
class Tally:
    """What the stages of a search found and leave open.

    Attributes:
        level: the best that reaches the floor.
        undecided_span: of the smallest candidate that was left open.
        refuted: no layout of the families has this excess or less than this.
        deciders: who refuted swizzles, beside counting.
        exhausted: every candidate of the families was looked at.
        unswizzled: every candidate looked at, as it is.
        growth: of the one model, where it was asked.
    """

    level: Found | None = None
    undecided_span: int | None = None
    refuted: int = 0
    deciders: set[str] = field(default_factory=set)
    exhausted: bool = True
    unswizzled: list[Found] = field(default_factory=list)
    growth: ModelGrowth | None = None


def by_cost_then_digits(candidate: Linearisation) -> tuple[object, ...]:
    """A total order, so that the search does not depend on the order of a set."""
    return (
        *by_cost(candidate),
        candidate.turn,
        candidate.interval,
        [(d.dim, d.divide, d.stride) for d in candidate.digits],
    )
