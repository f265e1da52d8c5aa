"""The least weighted excess over all candidates, where none reaches the bounds.

A search tree (`layoutopt.search.mask_tree`) is asked of every linearisation for less than the best so far,
the most promising and the smallest in turn; the bound is what makes the questions easy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from layoutopt.model.linearisations import Linearisation, by_cost
from layoutopt.search.mask_tree import least_excess
from layoutopt.search.proposal import Proposal
from layoutopt.search.reach_floor import ReachFloor
from layoutopt.search.scene import Found, Scene

ALL_HAVE_CONFLICTS: Final = "every layout of these families has conflicts"
NONE_KEEPS_TO_THEM: Final = "no layout of these families keeps to the constraints"
# Classes that the tree may count for one linearisation, round by round: about 0.01, 0.1 and 14 s.
_TREE_STEPS: Final = (1 << 22, 1 << 26, 1 << 33)
# After so many linearisations another answer is asked for, such as a table.
_AT_FIRST: Final = 24


class LeastExcess:
    """Stage 2: all linearisations under the best so far."""

    def __init__(self, scene: Scene, stage1: ReachFloor) -> None:
        self.scene, self.tally = scene, scene.tally
        self.stage1 = stage1
        self._trees = 0

    def run(self) -> Proposal:
        """The best layout found, and what is proved of it."""
        known = [f for f in self.tally.unswizzled if self._serves(f)]
        fitting = [f for f in known if self.scene.fits(f.candidate.span)]
        # Where only swizzles serve: worse than every one of them, and no answer.
        most = self.scene.floor if self.scene.conflict_free else self._most_excess()
        nothing = replace(self.tally.unswizzled[0], excess=1 + most)
        self.best = min(fitting, key=lambda f: f.rank, default=nothing)
        left = self._in_turn()
        first = self._by_tree(left[:_AT_FIRST], _TREE_STEPS[0])
        if (answer := self._instead()) is not None:
            return answer
        left = first + left[_AT_FIRST:]
        for steps in _TREE_STEPS:
            left = self._by_tree(left, steps)
        left = [candidate for candidate in left if self._may_be_better(candidate)]
        self._go_on()
        return self._proposal(left, nothing)

    def _proposal(self, left: Sequence[Linearisation], nothing: Found) -> Proposal:
        """The best as an answer; nobody knows whether one of those that are `left` is better."""
        tally, scene = self.tally, self.scene
        if tally.growth is not None:
            tally.growth = structs.replace(tally.growth, trees=self._trees)
        bound = self._known if left or not tally.exhausted else self.best.excess
        spans = [reach for candidate in left for reach in scene.reaches(candidate)[:1]]
        tally.undecided_span = min(spans, default=None) if tally.exhausted else scene.tile.elements
        if self.best is nothing:
            complete = tally.exhausted and not left
            nowhere = ALL_HAVE_CONFLICTS if scene.conflict_free else NONE_KEEPS_TO_THEM
            return scene.none(nowhere if complete else "out of time", scene.scope, complete)
        return scene.proposal(self.best, max(self._known, min(bound, self.best.excess)))

    def _instead(self) -> Proposal | None:
        """Another answer than the best so far, which may be larger than it may, with nothing proved of it."""
        return self.scene.instead(self.scene.proposal(self.best, self.scene.floor))

    def _in_turn(self) -> list[Linearisation]:
        """Linearisations that a swizzle may lie over: the smallest in turn with the most promising.

        None of them where there is no time to look at them; they then stay open.
        """
        if self.scene.field is None:
            return []
        if self.scene.budget.spent:
            self.tally.exhausted = False
            return []
        promise = {f.candidate: f.excess for f in self.tally.unswizzled if self.scene.reaches(f.candidate)}
        by_size = sorted(promise, key=_by_cost_then_digits)
        by_promise = sorted(by_size, key=promise.__getitem__)
        return list(dict.fromkeys(c for pair in zip(by_promise, by_size, strict=True) for c in pair))

    @property
    def _known(self) -> int:
        """Weighted excess that no layout of the families undercuts."""
        return max(self.scene.floor, self.tally.refuted)

    def _may_be_better(self, candidate: Linearisation) -> bool:
        """Whether nothing that is known rules out that a swizzle over it is better than the best."""
        smaller = self.scene.reaches(candidate)[0] < self.best.candidate.span
        return self._known < self.best.excess or (self._known == self.best.excess and smaller)

    def _by_tree(self, candidates: Sequence[Linearisation], steps: int) -> list[Linearisation]:
        """Ask the tree; those that it did not decide."""
        left, scene = [], self.scene
        most = None if scene.limit is None else scene.limit // scene.tile.element_bytes
        for candidate in candidates:
            if not self._may_be_better(candidate):
                continue
            if scene.budget.spent:
                left.append(candidate)
                continue
            self.tally.deciders.add("tree")
            self._trees += steps == _TREE_STEPS[0]
            scene.tell(self.best.excess, self.best.candidate.span, self._known, candidate.family)
            phases = scene.phases(candidate)
            below = self.best.excess, self.best.candidate.span
            searched = least_excess(scene.question(candidate, phases, most, below), steps, scene.budget)
            if searched.best is not None:
                exact = replace(candidate, span=searched.best.used)
                self._consider(scene.swizzled(exact, phases, searched.best.masks))
            if not searched.complete:
                left.append(candidate)
        return left

    def _serves(self, found: Found) -> bool:
        return found.excess <= self.scene.floor or not self.scene.conflict_free

    def _consider(self, found: Found) -> None:
        if self._serves(found):
            self.best = min(self.best, found, key=lambda f: f.rank)

    def _go_on(self) -> None:
        """Have stage 1 go on where it had had its share of the time."""
        if self.tally.exhausted or self.scene.budget.spent or self.best.excess == self.scene.floor:
            return
        if (found := self.stage1.run()) is not None:
            self._consider(found)

    def _most_excess(self) -> int:
        """Weighted excess that no layout exceeds: every lane waits for every other."""
        return sum(
            int(s.weight.sum()) * s.elements.shape[1] * max(1, s.width_bytes // s.rule.bank_bytes)
            for s in self.scene.sets
        )


def _by_cost_then_digits(candidate: Linearisation) -> tuple[object, ...]:
    """A total order, so that the search does not depend on the order of a set."""
    places = [(d.dim, d.divide, d.stride) for d in candidate.digits]
    return (*by_cost(candidate), candidate.turn, candidate.interval, places)
