"""Propose, verify, grow: the smallest layout that reaches the floor, all of it decided by one model.

    propose   CP-SAT picks pitches, order and masks (`layoutopt.model.layout_model`)
    verify    a linearisation that was not written out is counted
    grow      where it does not do, it is written out, with the next smallest ones: 1, 3, 7, ... of them

It ends when a proposal that was written out comes back: nothing better exists among all pitches within the
bound. Where a last block that is not full may be moved by the swizzle, a linearisation of a larger span can
still take fewer elements, so those are written out before the answer counts as the smallest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.model.layout_model import Choice, LayoutModel
from layoutopt.model.linearisations import Linearisation, Space, by_cost
from layoutopt.model.phases import PhaseSet
from layoutopt.model.pitches import BEYOND, PitchModel, described
from layoutopt.model.swizzle_rules import Field
from layoutopt.problems.answer import ModelGrowth
from layoutopt.problems.types import Tile

# Linearisations that join the model at once where pitches do not do; twice as many each time.
_FIRST_LISTED = 32


@dataclass(frozen=True, slots=True)
class Reached:
    """What the model decided.

    Attributes:
        choice: the layout, the span of its linearisation what it takes; None where none reaches the floor.
        proved: whether nothing smaller does; without a choice, whether nothing within the bound does.
        growth: what it took.
    """

    choice: Choice | None
    proved: bool
    growth: ModelGrowth


class Growth:
    """One model that grows until what it proposes holds."""

    def __init__(
        self,
        space: Space,
        field: Field | None,
        sets: Sequence[PhaseSet],
        tile: Tile,
        most: int,
        *,
        ideal: bool,
        holds: Callable[[Choice], bool],
        budget: Budget,
        patience: Budget,
        progress: Callable[[str], None],
    ) -> None:
        """Nothing is solved yet.

        Args:
            space: what bounds the pitches.
            field: where a swizzle may act.
            sets: the phases.
            tile: the tile.
            most: elements that the layout may take.
            ideal: see `LayoutModel`.
            holds: whether a choice does, counted by somebody else.
            budget: the time there is.
            patience: the part of it after which there must be some layout.
            progress: told of each round.
        """
        self.model = LayoutModel(space, field, sets, tile, most, ideal=ideal)
        self.ahead = PitchModel(space, most + self.model.block - 1)
        self.space, self.tile, self.most = space, tile, most
        self.holds, self.progress = holds, progress
        self._budget, self._patience = budget, patience
        self.waiting: list[Linearisation] = []  # listed ones that were not written out, the cheapest last
        self.rounds = self.rejected = 0
        self.best: Choice | None = None  # it holds

    @property
    def budget(self) -> Budget:
        """The time left for what is being sought."""
        return self._patience if self.best is None else self._budget

    def may_hold(self, candidate: Linearisation) -> bool:
        """Whether it reaches the floor, or some masks over it might: where none can be, counting says no."""
        if self.model.swizzle is not None and candidate.may_swizzle:
            return True
        return self.holds(Choice(candidate, {}, cheapest=True, written=False))

    def allow(self, candidates: Sequence[Linearisation]) -> None:
        """Allow linearisations that pitches do not describe."""
        for candidate in candidates:
            self.model.allow(candidate)
        self.waiting = sorted([*self.waiting, *candidates], key=by_cost, reverse=True)

    def run(self) -> None:
        """Find the smallest layout in which every phase keeps to its ceiling, then the cheapest: `best`.

        Raises:
            OutOfTime: the time is over; `best` holds, and something smaller may.
        """
        batch = 1
        while True:
            self.budget.check()
            self.rounds += 1
            choice = self.model.solve(self.budget)
            if choice is None:
                if not self._write_past(self.most):
                    return
                continue
            size = choice.candidate.span * self.tile.element_bytes
            self.progress(f"round {self.rounds}: {size} bytes, {len(self.model.written)} written out")
            # Masks of what is not written out may tear its vectors.
            if not choice.written and (choice.masks or not self.holds(choice)):
                self.rejected += 1
                self._write_out(choice.candidate)
                self._write_following(batch - 1)
                batch = 2 * batch + 1
                continue
            self.best = choice
            if choice.candidate.span == self.tile.elements or not self._write_past(choice.candidate.span):
                return

    def reached(self, proved: bool) -> Reached:
        """What is known."""
        variables, constraints = self.model.size
        grown = ModelGrowth(self.rounds, len(self.model.written), self.rejected, variables, constraints)
        return Reached(self.best, proved, grown)

    def _write_out(self, candidate: Linearisation) -> None:
        self.model.write_out(candidate)
        if candidate in self.waiting:
            self.waiting.remove(candidate)
        else:
            self.ahead.forbid(candidate)

    def _write_following(self, count: int) -> None:
        """The next smallest, of listed ones and of pitches."""
        following = self.ahead.next(self.budget, self.most) if count else None
        for _ in range(count):
            self.budget.check()
            if self.waiting and (following is None or by_cost(self.waiting[-1]) <= by_cost(following)):
                self._write_out(self.waiting[-1])
            elif following is not None:
                self._write_out(following)
                following = self.ahead.next(self.budget, self.most)

    def _write_past(self, used: int) -> bool:
        """Write out what a swizzle might make smaller than `used`, or as small; whether there is any."""
        grown = False
        block = self.model.block
        while (following := self.ahead.next(self.budget, used + block - 1, used)) is not None:
            self.ahead.forbid(following)
            if self.model.least_used(following) <= used:
                self.model.write_out(following)
                grown = True
        for candidate in list(self.waiting):
            if candidate.span >= used >= self.model.least_used(candidate):
                self._write_out(candidate)
                grown = True
        return grown


def smallest(growth: Growth, listed: Iterator[Linearisation]) -> Reached:
    """The smallest layout over pitches and listed linearisations.

    Pitches come first. What pitches do not describe joins the model in growing numbers, as long as it can be
    smaller than what is known.

    Args:
        growth: the model, with nothing listed.
        listed: all linearisations by rising span and operations, those that pitches describe among them.
    """
    size = _FIRST_LISTED
    try:
        growth.run()
        while growth.best is None or growth.best.candidate.span != growth.tile.elements:
            batch = list(itertools.islice(_worthwhile(growth, listed), size))
            if not batch:
                break
            growth.allow(batch)
            growth.run()
            size *= 2
    except OutOfTime:
        return growth.reached(proved=False)
    return growth.reached(proved=True)


def needs_no_list(space: Space) -> bool:
    """Whether pitches describe every linearisation, but those without pads that are aligned in sum only."""
    # A dimension of one element inside another has a pad of its own among the candidates.
    return not space.families & BEYOND and not ("pad" in space.families and 1 in space.shape)


def _worthwhile(growth: Growth, listed: Iterator[Linearisation]) -> Iterator[Linearisation]:
    """Those that may be smaller than the best; what is as small and cheaper is not sought among them."""
    for candidate in listed:
        growth.budget.check()
        least = candidate.span - growth.model.block + 1
        if least > growth.most or (growth.best is not None and least >= growth.best.candidate.span):
            return
        if not described(candidate, growth.space) and growth.may_hold(candidate):
            yield candidate
