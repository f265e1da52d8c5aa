"""What is known of one linearisation before CP-SAT is asked: the method `auto`.

It decides what the model would decide, at less cost: that no masks over a linearisation reach the ceilings
(it is forbidden, instead of written out), or that some do (they bound the bytes, and are a hint). What stays
open is written out. The method `model` does without.

Counting. Wavefronts are a function of the layout. A linearisation over which no swizzle may lie is one
layout: counting its phases decides it. Where one keeps to the ceilings as it is, a swizzle over it only makes
the index dearer, or the last block shorter.

Spectra (`layoutopt.search.walsh`). A phase of n words keeps to its ceiling c only if every sum of rows of
the swizzle's bank matrix splits its words so evenly that |W| <= c * banks - n. Where no choice of rows
passes, there is no swizzle; where one passes and keeps to the ceilings, there is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.cp_sat import Outcome
from layoutopt.model.layout_model import Choice
from layoutopt.model.linear_phases import Phases, phases_of
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.swizzle_rules import rules, shortened
from layoutopt.search.found import Found
from layoutopt.search.scene import Scene
from layoutopt.search.walsh import decide

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
    """A `Judge` by counting and spectra, within a budget."""

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
        return self._by_spectra(replace(candidate, span=reach), phases, ceilings)

    def _by_spectra(self, roomy: Linearisation, phases: Phases, ceilings: IntArray) -> Verdict:
        """What the spectra of the phases say of swizzles that take no more than the span."""
        scene = self.scene
        assert scene.field is not None
        question = scene.question(phases, ceilings, rules(roomy, scene.field, scene.tile))
        outcome, masks = decide(question, self.budget)
        if outcome is Outcome.INFEASIBLE:
            scene.tally.deciders.add("walsh")
            return Verdict(refuted=True)
        if outcome is not Outcome.FEASIBLE:
            scene.tally.deciders.add("cp-sat")
            return Verdict()
        masks = shortened(roomy, scene.field, scene.tile, masks)
        return Verdict(known=Choice(roomy, masks, written=bool(masks)))
