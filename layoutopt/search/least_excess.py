"""The least weighted excess over all candidates, where none reaches the bounds.

A search tree (`layoutopt.search.mask_tree`) is asked of every linearisation for less than the best so far,
the most promising and the smallest in turn; the bound is what makes the questions easy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from layoutopt.model.linear_phases import Phases, phases_of
from layoutopt.model.linearisations import Linearisation, by_cost
from layoutopt.model.swizzle_rules import rules, textbook
from layoutopt.search.found import Found, by_cost_then_digits
from layoutopt.search.mask_tree import least_excess
from layoutopt.search.proposal import Proposal
from layoutopt.search.reach_floor import ReachFloor
from layoutopt.search.scene import Scene

ALL_HAVE_CONFLICTS = "every layout of these families has conflicts"
NONE_KEEPS_TO_THEM = "no layout of these families keeps to the constraints"
# Classes that the tree may count for one linearisation, round by round: about 0.01, 0.1 and 14 s.
_TREE_STEPS = (1 << 22, 1 << 26, 1 << 33)
# After so many linearisations a table is tried: it may be the answer, and be proved to be.
_BEFORE_TABLE = 24
# Smallest and least conflicting linearisations over which the usual swizzles are evaluated.
_TEXTBOOK_CANDIDATES = 48


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
        self._usual_swizzles()
        first = self._by_tree(left[:_BEFORE_TABLE], _TREE_STEPS[0])
        if (answer := self.scene.by_table(self.best)) is not None:
            return answer
        left = first + left[_BEFORE_TABLE:]
        for steps in _TREE_STEPS:
            left = self._by_tree(left, steps)
        left = [candidate for candidate in left if self._may_be_better(candidate)]
        self._go_on()
        return self._proposal(left, nothing)

    def _proposal(self, left: Sequence[Linearisation], nothing: Found) -> Proposal:
        """The best as an answer; nobody knows whether one of those that are `left` is better."""
        self._account()
        known = max(self.scene.floor, self.tally.refuted)
        bound = known if left or not self.tally.exhausted else self.best.excess
        spans = [reach for candidate in left for reach in self.scene.reaches(candidate)[:1]]
        self.tally.undecided_span = min(spans, default=None)
        if not self.tally.exhausted:
            self.tally.undecided_span = self.scene.tile.elements
        if self.best is nothing:
            complete = self.tally.exhausted and not left
            nowhere = ALL_HAVE_CONFLICTS if self.scene.conflict_free else NONE_KEEPS_TO_THEM
            return self.scene.none(nowhere if complete else "out of time", self.scene.scope, complete)
        return self.scene.proposal(self.best, max(known, min(bound, self.best.excess)))

    def _account(self) -> None:
        """Add what this stage took to what is told of the model."""
        if (grown := self.tally.growth) is not None:
            self.tally.growth = structs.replace(grown, trees=self._trees)

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
        by_size = sorted(promise, key=by_cost_then_digits)
        by_promise = sorted(by_size, key=promise.__getitem__)
        return list(dict.fromkeys(c for pair in zip(by_promise, by_size, strict=True) for c in pair))

    def _may_be_better(self, candidate: Linearisation) -> bool:
        """Whether nothing that is known rules out that a swizzle over it is better than the best."""
        known = max(self.scene.floor, self.tally.refuted)
        smaller = self.scene.reaches(candidate)[0] < self.best.candidate.span
        return known < self.best.excess or (known == self.best.excess and smaller)

    @property
    def _below(self) -> tuple[int, int]:
        return self.best.excess, self.best.candidate.span

    @property
    def _most(self) -> int | None:
        limit = self.scene.limit
        return None if limit is None else limit // self.scene.tile.element_bytes

    def _by_tree(self, candidates: Sequence[Linearisation], steps: int) -> list[Linearisation]:
        """Ask the tree; those that it did not decide."""
        left = []
        for candidate in candidates:
            if not self._may_be_better(candidate):
                continue
            if self.scene.budget.spent:
                left.append(candidate)
                continue
            self.tally.deciders.add("tree")
            self._trees += steps == _TREE_STEPS[0]
            self._say(candidate)
            phases = phases_of(candidate, self.scene.sets, self.scene.tile)
            question = self.scene.question(candidate, phases, self._most, self._below)
            searched = least_excess(question, steps, self.scene.budget)
            if searched.best is not None:
                exact = replace(candidate, span=searched.best.used)
                self._consider(self.scene.swizzled(exact, phases, searched.best.masks))
            if not searched.complete:
                left.append(candidate)
        return left

    def _serves(self, found: Found) -> bool:
        return found.excess <= self.scene.floor or not self.scene.conflict_free

    def _consider(self, found: Found) -> None:
        if self._serves(found):
            self.best = min(self.best, found, key=lambda f: f.rank)

    def _say(self, candidate: Linearisation) -> None:
        known = max(self.scene.floor, self.tally.refuted)
        self.scene.tell(self.best.excess, self.best.candidate.span, known, candidate.family)

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

    def _usual_swizzles(self) -> None:
        """Evaluate `Swizzle<B, M, S>` over a few linearisations: a good start that costs little."""
        orders = (lambda f: by_cost(f.candidate), lambda f: f.rank)
        nearest = dict.fromkeys(
            found.candidate
            for key in orders
            for found in sorted(self.tally.unswizzled, key=key)[:_TEXTBOOK_CANDIDATES]
        )
        for candidate in nearest:
            for found in self._textbook(candidate):
                self._consider(found)

    def _textbook(self, candidate: Linearisation) -> Iterator[Found]:
        phases: Phases | None = None
        for reach in self.scene.reaches(candidate):
            assert self.scene.field is not None
            exact = replace(candidate, span=reach)
            given = rules(exact, self.scene.field, self.scene.tile)
            phases = phases or phases_of(candidate, self.scene.sets, self.scene.tile)
            highest = (reach * self.scene.tile.element_bytes - 1) // self.scene.field.word_bytes
            for masks in textbook(self.scene.field, given, highest):
                if self.scene.budget.spent:
                    return
                yield self.scene.swizzled(exact, phases, masks)
