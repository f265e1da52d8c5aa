"""What is known of one linearisation before CP-SAT is asked: the method `auto`.

It decides what the model would decide, at less cost: that no masks over a linearisation reach the ceilings
(it is forbidden, instead of written out), or that some do (they bound the bytes, and are a hint). What stays
open is written out. The method `model` does without.

Counting. Wavefronts are a function of the layout. A linearisation over which no swizzle may lie is one
layout: counting its phases decides it. Where one keeps to the ceilings as it is, a swizzle over it only makes
the index dearer, or the last block shorter.

Swizzles (`layoutopt.search.mask_tree`). A branch of the tree of masks is cut where some phase cannot keep to
its ceiling any more. Where nothing is left, there is no swizzle within the ceilings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.layout_model import Choice
from layoutopt.model.linear_phases import Phases, phases_of
from layoutopt.model.linearisations import Linearisation
from layoutopt.search.found import Found
from layoutopt.search.scene import Scene

# To count the phases under one linearisation: seconds of a quiet machine.
_EFFORT_EACH, _EFFORT_AN_ENTRY = 2e-4, 5e-8


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a linearisation.

    Attributes:
        refuted: no layout over it is of use.
        known: one that is, where one is known.
    """

    refuted: bool = False
    known: Choice | None = None


# Of a linearisation whose layouts are of use if they take at most so many elements: as it is, swizzled.
Judge = Callable[[Linearisation, int, int], Verdict]


class Presolve:
    """A `Judge` by counting and the tree of masks, within a budget."""

    def __init__(self, scene: Scene, budget: Budget) -> None:
        self.scene, self.budget = scene, budget

    def __call__(self, candidate: Linearisation, most: int, most_swizzled: int) -> Verdict:
        """See `Judge`."""
        scene = self.scene
        phases = phases_of(candidate, scene.sets, scene.tile)
        costs = phases.costs({})
        self.budget.charge(_EFFORT_EACH + _EFFORT_AN_ENTRY * (phases.words.size + scene.tile.elements))
        plain = Found(candidate, {}, phases.excess_at(costs), candidate.operations)
        scene.tally.unswizzled.append(plain)
        ceilings = phases.ideal if scene.conflict_free else phases.target
        if (costs <= ceilings).all() and candidate.span <= most:
            return Verdict(known=Choice(candidate, {}, written=False))
        reach = max((r for r in scene.reaches(candidate) if r <= most_swizzled), default=None)
        if reach is None:
            return Verdict(refuted=True)
        return self._of_swizzles(replace(candidate, span=reach), phases, ceilings)

    def _of_swizzles(self, roomy: Linearisation, phases: Phases, ceilings: IntArray) -> Verdict:
        """What the tree says of swizzles that take no more than the span."""
        searched = self.scene.within_ceilings(roomy, phases, ceilings, self.budget)
        if searched.best is None:
            self.scene.tally.deciders.add("tree" if searched.complete else "cp-sat")
            return Verdict(refuted=searched.complete)
        found = self.scene.swizzled(replace(roomy, span=searched.best.used), phases, searched.best.masks)
        return Verdict(known=Choice(found.candidate, found.masks, written=bool(found.masks)))
