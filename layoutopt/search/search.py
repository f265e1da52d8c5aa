"""The search over linearisations and swizzles, by rising bytes.

Stage 1 (`layoutopt.search.reach_floor`) looks for the smallest layout under which every phase costs no more
than its counting bound. Where no candidate reaches the bounds, stage 2 (`layoutopt.search.least_excess`)
minimises the weighted excess over all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from layoutopt.accesses.trace import Trace
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import Device
from layoutopt.layout.layout import Layout
from layoutopt.model.linearisations import rotated, unpadded
from layoutopt.model.pads import padded
from layoutopt.problems.answer import EVERY_LAYOUT, Method
from layoutopt.problems.types import Problem
from layoutopt.search.fall_back import fall_back
from layoutopt.search.found import Found
from layoutopt.search.least_excess import ALL_HAVE_CONFLICTS, NONE_KEEPS_TO_THEM, LeastExcess
from layoutopt.search.least_operations import LeastOperations, with_cost_open
from layoutopt.search.proposal import Progress, Proposal
from layoutopt.search.reach_floor import ReachFloor
from layoutopt.search.scene import Scene


def search(
    problem: Problem,
    device: Device,
    trace: Trace,
    *,
    conflict_free: bool,
    budget: Budget,
    workers: int,
    progress: Progress,
    counted: Trace | None = None,
    method: Method = "auto",
) -> Proposal:
    """Find the layout with the least weighted excess, then bytes, then index cost.

    `counted` are the instructions of `trace` whose excess counts, where not all of them: the others bind
    vectors only. `method` is that of `Ask`.

    Raises:
        ProblemFileError: no access has an active lane, or the constraints contradict the accesses.
    """
    scene = Scene(problem, device, trace, conflict_free, budget, workers, progress, counted)
    return _Search(scene, method).run()


def plain_layouts(
    problem: Problem, device: Device, trace: Trace, budget: Budget
) -> Iterator[tuple[Layout, str]]:
    """Layouts of the families without a swizzle, with their families.

    First those without cuts and pads, then pads of whole dimensions by rising bytes, then cuts.
    """
    scene = Scene(problem, device, trace, False, budget, 1, lambda _: None)
    space = scene.space
    cut = (candidate for cuts in (1, 2) for candidate in unpadded(space, cuts))
    every = itertools.chain(unpadded(space, 0), padded(space, cuts=False), rotated(space), cut)
    for candidate in budget.while_left(every):
        if scene.fits(candidate.span):
            found = Found(candidate, {}, 0, candidate.operations)
            yield scene.layout(found), candidate.family


class _Search:
    """The stages in their order."""

    def __init__(self, scene: Scene, method: Method) -> None:
        self.scene, self.tally = scene, scene.tally
        self.method = method

    def run(self) -> Proposal:
        """The answer, and who decided it."""
        proposal = self._answer()
        return replace(
            proposal,
            decided_by=proposal.decided_by or self._decided_by(proposal),
            model=self.tally.growth,
        )

    def _decided_by(self, proposal: Proposal) -> str:
        everywhere = proposal.excess_bound.everywhere and proposal.bytes_bound.everywhere
        if not self.tally.deciders or (everywhere and proposal.layout is not None):
            return "counting"
        return next(name for name in ("cp-sat", "tree") if name in self.tally.deciders)

    def _answer(self) -> Proposal:
        if self.scene.limit is not None and self.scene.tile.bytes > self.scene.limit:
            return self.scene.none(
                f"the elements alone need {self.scene.tile.bytes} bytes; max_bytes is {self.scene.limit}",
                EVERY_LAYOUT,
                True,
            )
        if self.scene.conflict_free and self.scene.floor:
            return self.scene.none("the counting bound: every layout has conflicts", EVERY_LAYOUT, True)
        if not self.scene.objective.instructions_first:
            return self._excess_first()
        if (cheapest := LeastOperations(self.scene).run()) is not None:
            return cheapest
        proposal = self._excess_first()
        return proposal if proposal.layout is None else with_cost_open(proposal)

    def _plainest(self) -> Proposal:
        """Where the time was over before the smallest candidate was known: the best of a few plain ones."""
        fall_back(self.scene)
        self.tally.undecided_span = self.scene.tile.elements
        enough = self.scene.floor if self.scene.conflict_free else math.inf
        found = [f for f in self.tally.unswizzled if f.excess <= enough]
        if not found:
            return self.scene.none("out of time", self.scene.scope, False)
        return self.scene.proposal(min(found, key=lambda f: f.rank), self.scene.floor)

    def _excess_first(self) -> Proposal:
        """Least excess, then bytes, then index cost."""
        try:
            reach = ReachFloor(self.scene, presolved=self.method == "auto")
        except OutOfTime:
            return self._plainest()
        stage1 = reach.run()
        if not self.tally.unswizzled:
            if self.scene.budget.spent or not self.tally.exhausted:
                return self.scene.none("out of time", self.scene.scope, False)
            return self.scene.none(NONE_KEEPS_TO_THEM, self.scene.scope, True)
        if stage1 is not None and stage1.excess == self.scene.floor:
            if not self.tally.exhausted:
                self.tally.undecided_span = self.scene.tile.elements
            return self.scene.proposal(stage1, self.scene.floor)
        if self.scene.conflict_free and self.tally.undecided_span is None and self.tally.exhausted:
            return self.scene.none(ALL_HAVE_CONFLICTS, self.scene.scope, True)
        return LeastExcess(self.scene, reach).run()
