"""What is known of linearisations before CP-SAT is asked: the rules of the method `auto`.

Each rule looks at one linearisation and decides what the model would decide, at less cost: that no masks
over it reach the ceilings (it is forbidden, instead of written out), or that some do (they bound the bytes,
and are a hint). What no rule decides is written out. The method `model` has no rules.

    rule      what it decides
    dense     layouts of the tile's own bytes are looked at before the model is made, all orders among them
    pads      where no XOR may lie over any, pitches are counted by rising bytes
    counted   a linearisation as it is; one over which no XOR may lie
    spectra   whether an XOR over it exists, and one
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.cp_sat import Outcome
from layoutopt.model.layout_model import Choice
from layoutopt.model.linear_phases import Phases, phases_of
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.swizzle_rules import rules, shortened
from layoutopt.search.found import Found
from layoutopt.search.joint import Growth, Listed, join
from layoutopt.search.many_orders import likely
from layoutopt.search.scene import Scene
from layoutopt.search.verdict import Verdict
from layoutopt.search.walsh import decide

# Pitches that are counted before the model is asked, which counts some of them, too.
_MOST_COUNTED: Final = 64


@dataclass(frozen=True, slots=True)
class Look:
    """One linearisation, for the rules.

    Attributes:
        candidate: it.
        most: elements that a layout of use takes at most.
        reach: the most that a swizzled one of use may take; None where there is none.
        phases: the phases under it.
        costs: wavefronts of each without a swizzle.
        ceilings: what each may cost.
        budget: the time that a rule has.
    """

    candidate: Linearisation
    most: int
    reach: int | None
    phases: Phases
    costs: IntArray
    ceilings: IntArray
    budget: Budget


Rule = Callable[[Scene, Look], Verdict | None]


def counted(scene: Scene, look: Look) -> Verdict | None:
    """Count the linearisation as it is.

    Theorem: wavefronts are a function of the layout. A linearisation over which no swizzle may lie is one
    layout: counting its phases decides it. Where one keeps to the ceilings as it is, a swizzle over it only
    makes the index dearer, or the last block shorter.
    """
    if (look.costs <= look.ceilings).all() and look.candidate.span <= look.most:
        return Verdict(known=Choice(look.candidate, {}, cheapest=True, written=False))
    return Verdict(refuted=True) if look.reach is None else None


def spectra(scene: Scene, look: Look) -> Verdict | None:
    """Ask the Walsh spectra of the phases for a swizzle over the linearisation.

    Theorem: see `layoutopt.search.walsh`. A phase of n words keeps to its ceiling c only if every sum of rows
    of the swizzle's bank matrix splits its words so evenly that |W| <= c * banks - n. Where no choice of rows
    passes, there is no swizzle; where one passes and keeps to the ceilings, there is.
    """
    if scene.field is None or look.reach is None:
        return None
    roomy = replace(look.candidate, span=look.reach)
    given = rules(roomy, scene.field, scene.tile)
    question = scene.question(look.phases, look.ceilings, given)
    outcome, masks = decide(question, look.budget)
    if outcome is Outcome.INFEASIBLE:
        scene.tally.deciders.add("walsh")
        return Verdict(refuted=True)
    if outcome is not Outcome.FEASIBLE:
        return None
    masks = shortened(roomy, scene.field, scene.tile, masks)
    return Verdict(known=Choice(roomy, masks, cheapest=False, written=bool(masks)))


def dense(scene: Scene, growth: Growth, listed: Listed) -> bool:
    """Look at what takes the tile's own bytes before anything is solved: pitches, then all other families.

    Theorem: elements do not overlap, so nothing is smaller; and of pitches without a swizzle none has a
    cheaper index, and no index of another family is as cheap. So one of them that does as it is is best.

    Returns:
        Whether the best is known, so that there is nothing left to solve.
    """
    elements = growth.tile.elements
    growth.look_at_following(elements, 0)
    if growth.best is None:
        growth.look_at_first_to_do(likely(scene))
    best = growth.best
    if best is not None and best.rank == (elements, best.candidate.operations):
        return True
    join(growth, listed, elements)
    return False


def pads(scene: Scene, growth: Growth, listed: Listed) -> bool:
    """Count pitches by rising bytes where no swizzle may lie over them, if few come before those that do.

    Theorem: without a swizzle a linearisation is one layout, so that the first that does is smallest. All
    pitches take the same operations. Where one of the smallest has its dimensions less turned than all
    others, it is the one answer that the model has.
    """
    if growth.model.swizzle is None and growth.best is None and not growth.joined:
        growth.count_following(_MOST_COUNTED)
    return False


# Of one linearisation, asked in turn; and of the whole problem.
RULES: Final[dict[str, Rule]] = {"counted": counted, "spectra": spectra}
FIRST: Final[dict[str, Callable[[Scene, Growth, Listed], bool]]] = {"dense": dense, "pads": pads}


def nothing_left(scene: Scene, growth: Growth, listed: Listed) -> bool:
    """Whether a rule of the whole problem leaves nothing to solve."""
    return any(rule(scene, growth, listed) for rule in FIRST.values())


class Presolve:
    """The rules, asked of one linearisation after the other within a budget."""

    def __init__(self, scene: Scene, budget: Budget) -> None:
        self.scene, self.budget = scene, budget

    def __call__(self, candidate: Linearisation, most: int, most_swizzled: int) -> Verdict:
        """See `layoutopt.search.verdict.Judge`."""
        scene = self.scene
        phases = phases_of(candidate, scene.sets, scene.tile)
        costs = phases.costs({})
        plain = Found(candidate, {}, phases.excess_at(costs), candidate.operations)
        scene.tally.unswizzled.append(plain)
        reach = max((r for r in scene.reaches(candidate) if r <= most_swizzled), default=None)
        ceilings = phases.ideal if scene.conflict_free else phases.target
        look = Look(candidate, most, reach, phases, costs, ceilings, self.budget)
        verdicts = (rule(scene, look) for rule in RULES.values())
        verdict = next((v for v in verdicts if v is not None), None)
        if verdict is None:
            scene.tally.deciders.add("cp-sat")
        return verdict or Verdict()
