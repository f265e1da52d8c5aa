"""Propose, verify, grow: the smallest layout that reaches the floor, all of it decided by one model.

    propose   CP-SAT picks pitches, order and masks (`layoutopt.model.layout_model`)
    verify    a linearisation that was not written out is counted
    grow      where it does not do, it is written out, with those as small, then the 3, 7, ... next smallest

It ends when a proposal that was written out comes back: nothing better exists among all pitches within the
bound. Where a last block that is not full may be moved by the swizzle, a linearisation of a larger span can
still take fewer elements, so those are written out before the answer counts as the smallest.

`layoutopt.search.presolve` comes before a linearisation is written out: one that is refuted is forbidden
instead, and a layout that is known bounds the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.model.cp_sat import Outcome
from layoutopt.model.layout_model import Choice, LayoutModel
from layoutopt.model.linearisations import Linearisation, by_cost
from layoutopt.model.phases import PhaseSet
from layoutopt.model.pitches import WITHIN, by_span, described
from layoutopt.model.space import Space
from layoutopt.model.swizzle import SHIFT_OPERATIONS
from layoutopt.model.swizzle_rules import Field
from layoutopt.problems.answer import ModelGrowth
from layoutopt.problems.types import Tile
from layoutopt.search.presolve import Judge, Verdict

# Linearisations that join the model at once where pitches do not do; twice as many each time.
_FIRST_LISTED = 32
# As small as a proposal that is not good enough, they are written out with it, for each would be proposed.
_MOST_ALIKE = 32
# Deterministic time for the cheapest index; where it does not do, the fewest bytes are found first.
_INDEX_EFFORT = 0.2
# Linearisations that are named in the account of the rounds.
_NAMED = 100


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
        judge: Judge | None,
        budget: Budget,
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
            judge: what is known of linearisations; None where the model decides everything.
            budget: the time there is.
            progress: told of each round.
        """
        self.model = LayoutModel(space, field, sets, tile, most, ideal=ideal)
        self._ahead = by_span(space, most + self.model.block - 1)
        self._next = next(self._ahead, None)
        self.space, self.tile, self.most = space, tile, most
        self.holds, self.judge, self.progress = holds, judge, progress
        self.budget = budget
        self._looked_at: set[Linearisation] = set()
        self.pending = True  # something may have come that `run` has not seen
        self._waiting: list[Linearisation] = []  # listed ones that were not written out, the cheapest last
        self.rounds = 0
        self.rejected: list[Linearisation] = []
        self.best: Choice | None = None  # it holds
        self.known: list[Choice] = []  # all that the judge came across

    @property
    def bound(self) -> int:
        """Elements that a layout may take and be of use."""
        return self.most if self.best is None else self.best.candidate.span

    @property
    def farthest(self) -> int:
        """Elements of the largest linearisation over which a swizzle may be of use."""
        return self.bound + self.model.block - 1

    def may_be_better(self, candidate: Linearisation) -> bool:
        """Whether something over it may be smaller than the best.

        Or as small and cheaper, where that may be known before the model is asked.
        """
        if candidate.span < self.bound or self.best is None:
            return candidate.span - self.model.block < self.bound
        size, cost = self.best.rank
        if candidate.span == size and (candidate.operations < cost or size == self.tile.elements):
            return candidate.operations < cost and self.judge is not None
        return self.model.least_used(candidate) <= self._swizzled_bound(candidate)

    def _swizzled_bound(self, candidate: Linearisation) -> int:
        """Elements that a swizzled layout over it may take and be of use."""
        dearer = self.best is not None and candidate.operations + SHIFT_OPERATIONS >= self.best.operations
        return self.bound - dearer

    def _verdict(self, candidate: Linearisation) -> Verdict:
        self.progress(f"{candidate.family} of {candidate.span * self.tile.element_bytes:,} bytes")
        if self.judge is not None:
            verdict = self.judge(candidate, self.bound, self._swizzled_bound(candidate))
            self.known += [verdict.known] if verdict.known is not None else []
            return verdict
        plain = Choice(candidate, {}, written=False)
        if candidate.span <= self.bound and self.holds(plain):
            return Verdict(known=plain)
        swizzled = self.model.swizzle is not None and candidate.may_swizzle
        return Verdict(refuted=not swizzled)

    def join(self, candidate: Linearisation) -> bool:
        """Allow a linearisation that pitches do not describe, unless it is known to be of no use."""
        verdict = self._verdict(candidate)
        if verdict.refuted:
            return False
        known = verdict.known
        self.pending = True
        self.model.allow(candidate)
        if known is not None and known.masks:
            self.model.write_out(candidate)
        else:
            self._waiting.append(candidate)
            self._waiting.sort(key=by_cost, reverse=True)
        if known is not None:
            self._keep(known)
        return True

    def run(self) -> None:
        """Find the smallest layout in which every phase keeps to its ceiling, then the cheapest: `best`.

        Raises:
            OutOfTime: the time is over, or ceilings do not tell what holds; `best` does, if there is one.
        """
        self.pending = False
        batch = 1
        while True:
            choice = self._proposal()
            if choice is None:
                if not self._look_past(self.bound):
                    return
                continue
            size = choice.candidate.span * self.tile.element_bytes
            self.progress(f"round {self.rounds}: {size:,} bytes proposed")
            holds = self.holds(choice)
            if choice.written and not holds:
                # Phases keep to their ceilings, but share words, so that fewer wavefronts are their ideal.
                raise OutOfTime
            if not holds:
                self.rejected.append(choice.candidate)
                self._look_at(choice.candidate, counted=True)
                self.look_at_following(choice.candidate.span, batch - 1)
                batch = 2 * batch + 1
                continue
            self.best = choice
            if choice.candidate.span == self.tile.elements or not self._look_past(choice.candidate.span):
                return

    @property
    def grown(self) -> ModelGrowth:
        """What it took."""
        shape, work = self.tile.shape, self.model.work
        variables, constraints = self.model.asked.size
        return ModelGrowth(
            self.rounds,
            len(self.model.written),
            len(self.rejected),
            variables,
            constraints,
            branches=work.branches,
            conflicts=work.conflicts,
            effort=round(work.effort, 4),
            written=tuple(c.text(shape) for c in itertools.islice(self.model.written, _NAMED)),
            proposed=tuple(c.text(shape) for c in self.rejected[:_NAMED]),
        )

    def _proposal(self) -> Choice | None:
        """What the model takes to be smallest, then cheapest; None where it knows that nothing is left.

        Raises:
            OutOfTime: the time is over.
        """
        self.budget.check()
        self.rounds += 1
        outcome, choice = self.model.solve(self.budget, effort=_INDEX_EFFORT, hint=self.best)
        if outcome in (Outcome.OPTIMAL, Outcome.INFEASIBLE):
            return choice
        # To find the cheapest index takes long, so the fewest bytes come first.
        smallest = self.best
        if smallest is None or smallest.candidate.span > self.tile.elements:
            outcome, smallest = self.model.solve(self.budget, index=False, hint=choice or self.best)
            if outcome is Outcome.INFEASIBLE:
                return None
            if outcome is not Outcome.OPTIMAL or smallest is None:
                raise OutOfTime
            span = smallest.candidate.span
            _, choice = self.model.solve(self.budget, effort=_INDEX_EFFORT, most=span, hint=smallest)
        return min((c for c in (smallest, choice) if c is not None), key=lambda c: c.rank)

    def _keep(self, known: Choice) -> None:
        """A layout that does: nothing larger is of use any more."""
        if (self.best is None or known.rank < self.best.rank) and self.holds(known):
            self.best = known
            self.model.at_most(known.candidate.span)

    def _look_at(self, candidate: Linearisation, *, counted: bool = False) -> None:
        """Write it out, unless it is known which layouts over it there are.

        `counted`: as it is, it does not do.
        """
        if candidate in self._waiting:
            self._waiting.remove(candidate)
            self.model.write_out(candidate)
            return
        self._looked_at.add(candidate)
        verdict = Verdict() if counted and self.judge is None else self._verdict(candidate)
        if verdict.known is not None and not verdict.known.masks:
            self._keep(verdict.known)
            if not self._may_be_shorter(candidate):
                return  # as it is, it does
        if verdict.refuted:
            self.model.forbid(candidate)
            return
        self.model.write_out(candidate)
        if verdict.known is not None:
            self._keep(verdict.known)

    def _may_be_shorter(self, candidate: Linearisation) -> bool:
        """Whether a swizzle over what does as it is may do, too, and move the last block together."""
        if self.model.least_used(candidate) >= candidate.span:
            return False
        most = candidate.span - 1
        return self.judge is None or not self.judge(candidate, most, most).refuted

    def look_at_following(self, span: int, count: int) -> None:
        """The following pitches that are not larger, and the next smallest linearisations of any kind."""
        alike = 0
        while (following := self._following()) is not None and following.span <= span and alike < _MOST_ALIKE:
            self._look_at(following)
            alike += 1
            if self.best is not None and not self.best.masks and self.best.candidate.span <= span:
                return  # one does as it is, and none is cheaper
        for _ in range(count):
            following = self._following()
            if self._waiting and (following is None or by_cost(self._waiting[-1]) <= by_cost(following)):
                following = self._waiting[-1]
            if following is None or following.span >= self.bound + self.model.block:
                return
            self._look_at(following)

    def look_at_first_to_do(self, candidates: Iterable[Linearisation]) -> None:
        """Look at pitches until one does as it is."""
        for candidate in candidates:
            self.budget.check()
            if candidate not in self._looked_at:
                self._look_at(candidate)
            if self.best is not None:
                return

    def _following(self) -> Linearisation | None:
        """The smallest of the pitches that were not looked at."""
        self.budget.check()
        while self._next is not None and self._next in self._looked_at:
            self._next = next(self._ahead, None)
        return self._next

    def _look_past(self, used: int) -> bool:
        """Write out what a swizzle might make smaller than `used`, or as small; whether there is any."""
        before = len(self.model.written)
        while (following := self._following()) is not None and following.span < used + self.model.block:
            if self.may_be_better(following):
                self._look_at(following)
            else:
                self._looked_at.add(following)
        for candidate in list(self._waiting):
            if candidate.span >= used and self.may_be_better(candidate):
                self._look_at(candidate)
        return len(self.model.written) > before


class Listed:
    """Linearisations by rising span; whoever stops, for want of time or not, loses none."""

    def __init__(self, every: Iterator[Linearisation]) -> None:
        self._every = every
        self._next: Linearisation | None = None

    def up_to(self, span: int, check: Callable[[], None]) -> Iterator[Linearisation]:
        """Those that take no more, but for what was asked for before; `check` may stop it before each."""
        while True:
            check()
            self._next = self._next or next(self._every, None)
            if self._next is None or self._next.span > span:
                return
            candidate, self._next = self._next, None
            yield candidate


def smallest(growth: Growth, listed: Listed) -> None:
    """The smallest layout over pitches and listed linearisations: `growth.best`.

    Pitches come first. What pitches do not describe joins the model in growing numbers, as long as it can be
    better than what is known.

    Args:
        growth: the model.
        listed: all linearisations by rising span and operations, those that pitches describe among them.

    Raises:
        OutOfTime: the time is over.
    """
    if growth.pending:
        growth.run()
    join(growth, listed, None)


def needs_no_list(space: Space) -> bool:
    """Whether pitches describe every linearisation."""
    return space.families <= WITHIN


def join(growth: Growth, listed: Listed, most: int | None) -> None:
    """Let those join that may be better than the best; the model is solved with each few of them.

    They come with rising costs, so once there is a layout, the first ones most often rule out the others.

    Args:
        growth: the model.
        listed: linearisations by rising span.
        most: elements of the largest; None for as many as may be of use, where the model is complete without.
    """
    if growth.best is not None and growth.pending:
        growth.run()
    size = 1 if growth.best is not None and growth.judge is not None else _FIRST_LISTED
    while True:
        worthwhile = _worthwhile(growth, listed, growth.farthest if most is None else most)
        if not list(itertools.islice(worthwhile, size)):
            return
        if growth.best is not None or most is None:
            growth.run()
            size *= 4


def _worthwhile(growth: Growth, listed: Listed, most: int) -> Iterator[Linearisation]:
    """Those that may be smaller than the best, or as small and cheaper; they join the model."""
    for candidate in listed.up_to(most, lambda: growth.budget.check()):
        if not described(candidate, growth.space) and growth.may_be_better(candidate):
            before = growth.best
            if growth.join(candidate):
                yield candidate
            if growth.best is not before:
                return
