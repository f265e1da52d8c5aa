"""The smallest layout under which every phase costs no more than its counting bound.

    propose   CP-SAT picks pitches, order and masks (`layoutopt.model.layout_model`)
    verify    a linearisation that was not written out is counted
    grow      where it does not do, it is written out, with those as small, then the 3, 7, ... next smallest

It ends when a proposal that was written out comes back: nothing better exists among all pitches within the
bound. Where a last block that is not full may be moved by the swizzle, a linearisation of a larger span can
still take fewer elements, so those are written out before the answer counts as the smallest.

What pitches do not describe (splits, rotations, interval pads) is looked at one by one, by rising bytes,
while it can be better; and with the method `auto` so are pitches before they are written out. What is refuted
is forbidden, and a layout that is known bounds the others:

    counting   a linearisation over which no swizzle may lie is one layout: counting its phases decides it.
               Where one keeps to the ceilings as it is, a swizzle over it only makes the index dearer, or the
               last block shorter
    swizzles   a branch of the tree of masks (`layoutopt.search.mask_tree`) is cut where some phase cannot
               keep to its ceiling any more. Where nothing is left, there is no swizzle within the ceilings
"""

import contextlib
import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.ground.budget import OutOfTime, checkpoint, current, spending
from layoutopt.model.cp_sat import Outcome
from layoutopt.model.layout_model import LayoutModel, Solution
from layoutopt.model.linearisations import (
    MAX_CUTS,
    Linearisation,
    Together,
    by_cost,
    candidate_of,
    of_own_bytes,
    unpadded,
)
from layoutopt.model.phases import Masks, Phases
from layoutopt.model.pitches import MOST_ELEMENTS, WITHIN, by_span, described, most_elements
from layoutopt.model.swizzle_rules import SHIFT_OPERATIONS, shifts_of
from layoutopt.problems.answer import ModelGrowth
from layoutopt.search.fall_back import fall_back, likely
from layoutopt.search.proposal import Proposal
from layoutopt.search.refuters import Refuters
from layoutopt.search.scene import EFFORT_A_CANDIDATE, FEW_STEPS, GATHERING, STEPS, TOGETHER, Scene
from layoutopt.search.tables import soon

# Shares of the work left, and effort at most, after which a layout of the least excess is sought; where any
# excess is too much and none that is free of it was found by rising bytes, the rest is for one of any size.
_PATIENCE: Final = {False: (0.3, 1.5), True: (0.6, 3.0)}
# Layouts as small as the best whose index code is compared with its own.
_MOST_ALIKE_BEST, _MOST_USUAL, _MOST_UNSWIZZLED = 1, 2, 3
# As small as a proposal that is not good enough, they are written out with it, for each would be proposed.
_MOST_ALIKE = 32
# Listed linearisations whose masks are made the cheapest.
_MOST_POLISHED = 16
# Deterministic time for the cheapest index; where it does not do, the fewest bytes are found first.
_INDEX_EFFORT = 0.2
# The next smallest pitches that are looked at before the model is asked.
_AHEAD: Final = 16
# Linearisations that are named in the account of the rounds.
_NAMED = 100
# To count the phases under one linearisation: seconds of a quiet machine.
_EFFORT_EACH, _EFFORT_AN_ENTRY = 2e-4, 5e-8
# Of one that is refuted among many, and counted later; and as it is alone.
_EFFORT_REFUTED, _EFFORT_OF_MANY = 5e-4, 1e-6


class Verdict(Struct, frozen=True):
    """What is known of a linearisation: that no layout over it is of use; or one that is."""

    refuted: bool = False
    known: Solution | None = None


class ReachFloor:
    """The smallest layout at the floor of the excess, by a CP-SAT model to which linearisations are added.

    The model proposes; a proposal whose phases exceed their ceilings is written into the model with them,
    until one holds. `presolved`: linearisations that counting and the tree decide never reach the model.
    """

    def __init__(self, scene: Scene, *, presolved: bool) -> None:
        self.scene, self.tally, self.space = scene, scene.tally, scene.space
        self.presolved = presolved
        share, effort = _PATIENCE[scene.conflict_free]
        self.patience = current().part(share).portion(1, effort)
        largest = most_elements(scene.space)  # that some pitch needs
        if scene.limit is not None:
            limit = scene.limit // scene.tile.element_bytes
            largest = limit if scene.space.far else min(largest, limit)
        self.all_pitches = largest <= MOST_ELEMENTS
        self.most = min(largest, MOST_ELEMENTS)
        self.model = LayoutModel(
            scene.space, scene.field, scene.sets, scene.tile, self.most, ideal=scene.conflict_free
        )
        # Pitches, which the model has as variables, by rising span; the next of them; and those looked at.
        self._by_span = by_span(scene.space, self.most + scene.block - 1)
        self._next_pitches: deque[Linearisation] = deque()
        self._looked_at: set[Linearisation] = set()
        self._pending = True  # the model was not solved since it last grew
        # Candidates of all families by rising span and operations, in batches; the rest of the last batch.
        if scene.space.families <= WITHIN:
            self._batches = iter([list(unpadded(scene.space, 0))])
        else:
            self._batches = scene.candidates(self._dense_cost)
        self._batch: deque[Linearisation] = deque()
        self._undecided: list[Linearisation] = []  # of these, what neither counting nor the tree decided
        self._polished = 0  # of these, layouts whose masks were made cheaper
        self._refuters, self._asked_at_once = Refuters(scene), 1
        self._asked: dict[Linearisation, bool] = {}  # whether the refuters refute it
        self._uncounted: list[Linearisation] = []  # those that they refuted
        self._textbook: dict[Linearisation, list[Masks]] = {}  # of a few, the textbook swizzles that do
        self.rounds = 0  # proposals of the model
        self._rejected: list[Linearisation] = []  # proposals that exceed a ceiling
        self.best: Solution | None = None  # at the floor
        self.table: Proposal | None = None  # in place of all, where no formula takes the tile's own bytes
        self._known: list[Solution] = []  # all layouts found at it
        self._shown = 0  # entries of `tally.unswizzled` that progress lines took account of
        self._plain: Solution | None = None  # the best of those

    def run(self) -> Solution | None:
        """The smallest, then the cheapest, of all layouts that reach the floor; None where none does.

        Called again, it goes on where it stopped for want of time, as long as there is any.
        """
        tally = self.tally
        proved = self._solved()
        self.patience = current()
        tally.growth = self._grown
        if not self.presolved:
            tally.deciders.add("cp-sat")
        tally.exhausted = tally.exhausted and proved
        if self.best is not None:
            level = dataclasses.replace(self._cheapest(self.best), excess=self.scene.floor)
            tally.unswizzled.append(level)
            return level
        if self.table is not None:
            return None
        tally.exhausted = tally.exhausted and self.all_pitches
        tally.refuted = self.scene.floor + 1 if tally.exhausted else 0
        if not self.presolved:
            self._count_plain()
        elif not proved:
            fall_back(self.scene)
        # Where no swizzle is sought, only those are of use that are no worse than the best of the others.
        known = (f.excess for f in tally.unswizzled if self.scene.fits(f.candidate.span))
        most = min(known, default=math.inf) if self.scene.field is None else None
        tally.unswizzled += self._refuters.counted(self._uncounted, most)
        self._uncounted.clear()
        return None

    def _solved(self) -> bool:
        """Have the model grow; whether to the end, so that nothing is better than its best."""
        try:
            if not (self.presolved and self._dense()):
                if self.presolved and self._dense_cost() is None:
                    self.table = soon(self.scene)
                if self.table is not None:
                    return True
                if self._pending:
                    self._look_at_following(0, _AHEAD if self.presolved and self.best is None else 0)
                    self._grow()
                self._look_at_listed(None)
        except OutOfTime:
            return False
        return not any(self._may_be_better(candidate) for candidate in self._undecided)

    def _dense(self) -> bool:
        """Look at layouts of the tile's own bytes before anything is solved; whether one of them is the best.

        Theorem: elements do not overlap, so nothing is smaller; and of pitches without a swizzle none has a
        cheaper index, and no index of another family is as cheap. So one of them that does as it is is best.
        """
        elements = self.scene.tile.elements
        self._look_at_following(elements, 0)
        for candidate in likely(self.scene) if self.best is None else ():
            self.patience.check()
            if candidate not in self._looked_at:
                self._look_at(candidate)
            if self.best is not None:
                break
        if self.best is not None and self.best.size_and_cost == (elements, self.best.candidate.operations):
            return True
        self._look_at_listed(elements)
        return False

    def _dense_cost(self) -> int | None:
        """What the index of the best layout costs, where it takes the tile's own bytes."""
        dense = self.best is not None and self.best.candidate.span == self.scene.tile.elements
        return self.best.operations if self.best is not None and dense else None

    # The best ---------------------------------------------------------------------------------

    def _holds(self, solution: Solution) -> bool:
        return self.scene.holds(solution, self.scene.floor)

    def _keep(self, known: Solution) -> None:
        """A layout that does: nothing larger is of use any more."""
        if (self.best is None or known.size_and_cost < self.best.size_and_cost) and self._holds(known):
            self.best = known
            self.model.at_most(known.candidate.span)

    def _cheapest(self, best: Solution) -> Solution:
        """Of a few that are as small as the best, the one of the cheapest index code."""
        if not (best.masks or best.candidate.turn or "split" in best.candidate.family):
            return best
        alike = [c for c in self._known if c.candidate.span == best.candidate.span and c != best]
        alike = sorted(alike, key=lambda choice: choice.operations)[:_MOST_ALIKE_BEST]
        others = [c for c in (*self._of_few_shifts(best), *alike) if self._holds(c)]
        usual = (c for c in self._usual(best) if c != best and self._holds(c))
        others += itertools.islice(usual, _MOST_USUAL)
        cost, best = min(((self.scene.instructions(c), c) for c in (best, *others)), key=itemgetter(0))
        below = max(cost, best.candidate.operations + 1)
        for plain in itertools.islice(self._unswizzled_alike(best, below), _MOST_UNSWIZZLED):
            if (its := self.scene.instructions(plain)) < cost:
                cost, best = its, plain
        return best

    def _of_few_shifts(self, best: Solution) -> Iterator[Solution]:
        """Where the model did not choose the masks, those of the fewest shifts, if that makes it cheapest."""
        if best.masks and not described(best.candidate, self.space):
            phases, candidate = self.scene.phases(best.candidate), best.candidate
            ceilings, most = self.scene.ceilings(phases), len(shifts_of(best.masks)) - 1
            if self.best is not None and self.best.candidate.span <= candidate.span:
                most = min(most, (self.best.operations - candidate.operations - 1) // SHIFT_OPERATIONS)
            for count in range(1, most + 1):
                searched = self.scene.within_ceilings(candidate, phases, ceilings, shifts=count)
                if searched.best is not None:
                    yield self.scene.swizzled(candidate, phases, searched.best.masks)
                    return

    def _usual(self, best: Solution) -> Iterator[Solution]:
        """`Swizzle<B, M, S>` over the linearisation of the best, of as few shifts, in as few bytes."""
        scene = self.scene
        if not best.masks or current().spent:
            return
        phases, candidate = scene.phases(best.candidate), best.candidate
        if candidate not in self._textbook:
            every, ceilings = scene.textbook(candidate), scene.ceilings(phases)
            self._textbook[candidate] = [m for m in every if (phases.costs(m) <= ceilings).all()]
        for masks in self._textbook[candidate]:
            found = scene.swizzled(candidate, phases, masks)
            if found.operations <= best.operations:
                yield found

    def _unswizzled_alike(self, best: Solution, below: int) -> Iterator[Solution]:
        """Layouts of the tile's own bytes that do without a swizzle, by rising operations of the offset.

        Where lanes lie along its cuts, the code of an index costs less than its operations say. What has
        `below` or more of them is not asked.
        """
        if best.candidate.span > self.scene.tile.elements or self.scene.ask.lanes_open:
            return
        part = current().portion(*GATHERING)
        self._refuters.learn(best.candidate, None)
        with contextlib.suppress(OutOfTime):
            for together in itertools.chain.from_iterable(
                of_own_bytes(self.space, cuts, below) for cuts in range(MAX_CUTS + 1)
            ):
                part.charge(_EFFORT_OF_MANY * len(together))
                part.check()
                listed = (candidate_of(self.space, together.pieces(n)) for n in self._stand(together))
                left = sorted((c for c in listed if c is not None), key=by_cost)
                while left:
                    if self._holds(plain := Solution(left.pop(0), {})):
                        yield plain
                    else:
                        self._refuters.learn(plain.candidate, None)
                        left = [left[n] for n in self._stand(Together.of(left))] if left else []

    def _stand(self, together: Together) -> list[int]:
        """Those of some linearisations that nothing learnt refutes as they are."""
        fallen = self._refuters.refuted(together, np.zeros(len(together), np.bool_))
        stand: list[int] = np.flatnonzero(~fallen).tolist()
        return stand

    @property
    def _bound(self) -> int:
        """Largest layout, in elements, that could still beat the best."""
        return self.most if self.best is None else self.best.candidate.span

    def _swizzled_bound(self, candidate: Linearisation) -> int:
        """Largest swizzled layout over a linearisation, in elements, that could still beat the best."""
        dearer = self.best is not None and candidate.operations + SHIFT_OPERATIONS >= self.best.operations
        return self._bound - dearer

    def _may_be_better(self, candidate: Linearisation) -> bool:
        """Whether something over it may be smaller than the best.

        Or as small and cheaper, where that may be known before the model is asked.
        """
        if candidate.span < self._bound or self.best is None:
            return candidate.span - self.scene.block < self._bound
        size, cost = self.best.size_and_cost
        if candidate.span == size and (candidate.operations < cost or size == self.scene.tile.elements):
            return candidate.operations < cost and self.presolved
        return self.model.least_used(candidate) <= self._swizzled_bound(candidate)

    # What is known of one ---------------------------------------------------------------------

    def _verdict(self, candidate: Linearisation) -> Verdict:
        """What is known of a linearisation of pitches before the model is asked."""
        if self.presolved:
            verdict = self._presolve(candidate, self._bound, self._swizzled_bound(candidate))
            self._known += [verdict.known] if verdict.known is not None else []
            return verdict
        plain = Solution(candidate, {})
        if candidate.span <= self._bound and self._holds(plain):
            return Verdict(known=plain)
        return Verdict(refuted=self.model.swizzle is None or not candidate.may_swizzle)

    def _presolve(self, candidate: Linearisation, most: int, most_swizzled: int) -> Verdict:
        """`_verdict` by counting and the tree; larger layouts than `most`, `most_swizzled` are of no use."""
        scene = self.scene
        if self._falls(candidate):
            entries = scene.tile.elements + sum(s.elements.size for s in scene.sets)
            self.patience.charge(_EFFORT_REFUTED + _EFFORT_AN_ENTRY * entries)
            self._uncounted.append(candidate)
            return Verdict(refuted=True)
        self._tell(f"{candidate.family} of {candidate.span * scene.tile.element_bytes:,} bytes")
        phases = scene.phases(candidate)
        costs, ceilings = phases.costs({}), scene.ceilings(phases)
        self.patience.charge(_EFFORT_EACH + _EFFORT_AN_ENTRY * (phases.words.size + scene.tile.elements))
        self.tally.unswizzled.append(Solution(candidate, {}, phases.excess_at(costs)))
        if (costs <= ceilings).all() and candidate.span <= most:
            return Verdict(known=Solution(candidate, {}))
        reach = max((r for r in scene.reaches(candidate) if r <= most_swizzled), default=None)
        if reach is None:
            self._refuters.learn(candidate, None)
            return Verdict(refuted=True)
        return self._by_tree(replace(candidate, span=reach), phases)

    def _falls(self, candidate: Linearisation) -> bool:
        """Whether what refuted others refutes it; ever more of the following candidates are asked with it."""
        if candidate not in self._asked:
            waiting = self._batch
            if described(candidate, self.space):
                waiting = self._next_pitches
                waiting.extend(itertools.islice(self._by_span, self._asked_at_once - len(waiting)))
            some = [candidate, *itertools.islice(waiting, self._asked_at_once)]
            self._asked_at_once = min(2 * self._asked_at_once, TOGETHER)
            least, field = self.scene.tile.elements, self.scene.field
            may = [field is not None and c.may_swizzle and self._swizzled_bound(c) >= least for c in some]
            fallen = self._refuters.refuted(Together.of(some), np.array(may))
            self._asked = dict(zip(some, fallen.tolist(), strict=True))
        return self._asked[candidate]

    def _by_tree(self, roomy: Linearisation, phases: Phases) -> Verdict:
        """`_verdict` by the tree of masks, of few steps first; undecided, it is for CP-SAT."""
        for steps in (FEW_STEPS, STEPS):
            with spending(self.patience):
                searched = self.scene.within_ceilings(roomy, phases, self.scene.ceilings(phases), steps)
            if (best := searched.best) is not None:
                exact = replace(roomy, span=best.used)
                return Verdict(known=self.scene.swizzled(exact, phases, best.masks))
            if searched.bit is not None:
                self._refuters.learn(roomy, searched.bit)
            if searched.complete:
                self.tally.deciders.add("tree")
                return Verdict(refuted=True)
        self.tally.deciders.add("cp-sat")
        return Verdict()

    # The model --------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Find the smallest layout in which every phase keeps to its ceiling, then the cheapest: `best`."""
        self._pending = False
        if self.presolved and self._settled():
            return
        batch = 1
        while True:
            with spending(self.patience):
                choice = self._proposal()
            if choice is None:
                if not self._look_past(self._bound):
                    return
                continue
            size = choice.candidate.span * self.scene.tile.element_bytes
            self._tell(f"round {self.rounds}: {size:,} bytes proposed")
            if self._holds(choice):
                span = choice.candidate.span
                if self.best is None or choice.size_and_cost <= self.best.size_and_cost:
                    self.best = choice
                if span == self.scene.tile.elements or not self._look_past(span):
                    return
            elif choice.written:
                # Phases keep to their ceilings, but share words, so that fewer wavefronts are their ideal.
                raise OutOfTime
            else:
                self._rejected.append(choice.candidate)
                self._look_at(choice.candidate, counted=True)
                self._look_at_following(choice.candidate.span, batch - 1)
                batch = 2 * batch + 1

    def _settled(self) -> bool:
        """Whether counting and the tree leave no pitches, swizzled or not, that are better than the best.

        All that may be were looked at. Over those that are not refuted, none of which does as it is, a
        swizzle of one shift is the least; often a textbook one does.
        """
        if self.best is None or (self.best.masks and self.best.candidate.family != "none"):
            return False  # of equal swizzles, the model prefers that of the natural order
        for usual in self._usual(self.best):
            self._keep(usual)
        following, elements = self._following(), self.scene.tile.elements
        if self._bound > elements:
            left = self._look_past(self._bound)
        else:
            left = following is not None and following.span <= elements
        written = self.model.written
        return not left and all(self.model.least_used(c) > self._swizzled_bound(c) for c in written)

    def _proposal(self) -> Solution | None:
        """The smallest, then cheapest layout of the model; None where it proves that none is left."""
        checkpoint()
        self.rounds += 1
        hint = self.best
        if hint is not None and not described(hint.candidate, self.space):
            hint = None
        outcome, choice = self.model.solve(effort=_INDEX_EFFORT, hint=hint)
        if outcome in (Outcome.OPTIMAL, Outcome.INFEASIBLE):
            return choice
        # To find the cheapest index takes long, so the fewest bytes come first.
        smallest = self.best
        if smallest is None or smallest.candidate.span > self.scene.tile.elements:
            outcome, smallest = self.model.solve(index=False, hint=choice or hint)
            if outcome is Outcome.INFEASIBLE:
                return None
            if outcome is not Outcome.OPTIMAL or smallest is None:
                raise OutOfTime
            span = smallest.candidate.span
            _, choice = self.model.solve(effort=_INDEX_EFFORT, most=span, hint=smallest)
        return min((c for c in (smallest, choice) if c is not None), key=lambda c: c.size_and_cost)

    @property
    def _grown(self) -> ModelGrowth:
        shape, answers = self.scene.tile.shape, self.model.answers
        variables, constraints = self.model.asked.size
        return ModelGrowth(
            self.rounds,
            len(self.model.written),
            len(self._rejected),
            variables,
            constraints,
            branches=sum(answer.branches for answer in answers),
            conflicts=sum(answer.conflicts for answer in answers),
            effort=round(sum((answer.effort for answer in answers), 0.0), 4),
            written=tuple(c.text(shape) for c in itertools.islice(self.model.written, _NAMED)),
            proposed=tuple(c.text(shape) for c in self._rejected[:_NAMED]),
        )

    # Pitches ----------------------------------------------------------------------------------

    def _look_at(self, candidate: Linearisation, *, counted: bool = False) -> None:
        """Write it out, unless it is known which layouts over it there are.

        `counted`: as it is, it does not do.
        """
        self._looked_at.add(candidate)
        verdict = Verdict() if counted and not self.presolved else self._verdict(candidate)
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
        return not (self.presolved and self._presolve(candidate, most, most).refuted)

    def _look_at_following(self, span: int, count: int) -> None:
        """The following pitches that are not larger, and the next smallest linearisations of any kind."""
        alike = 0
        while (following := self._following()) is not None and following.span <= span and alike < _MOST_ALIKE:
            self._look_at(following)
            alike += 1
            if self.best is not None and not self.best.masks and self.best.candidate.span <= span:
                return  # one does as it is, and none is cheaper
        for _ in range(count):
            following = self._following()
            if following is None or following.span >= self._bound + self.scene.block:
                return
            self._look_at(following)

    def _following(self) -> Linearisation | None:
        self.patience.check()
        while self._next_pitches and self._next_pitches[0] in self._looked_at:
            self._next_pitches.popleft()
        if not self._next_pitches:
            fresh = (c for c in self._by_span if c not in self._looked_at)
            self._next_pitches.extend(itertools.islice(fresh, 1))
        return self._next_pitches[0] if self._next_pitches else None

    def _look_past(self, used: int) -> bool:
        """Write out what a swizzle might make smaller than `used`, or as small; whether there is any."""
        before = len(self.model.written)
        while (following := self._following()) is not None and following.span < used + self.scene.block:
            if self._may_be_better(following):
                self._look_at(following)
            else:
                self._looked_at.add(following)
        return len(self.model.written) > before

    # Candidates of all families ---------------------------------------------------------------

    def _look_at_listed(self, most: int | None) -> None:
        """Look at those that may be better than the best, up to so many elements; None for all of use.

        They come with rising costs, so once there is a layout, the first ones most often rule out the others.
        """
        if self.best is not None and self._pending:
            self._grow()  # whose masks are cheaper than those of the tree
        while True:
            self.patience.check()
            while not self._batch and (following := next(self._batches, None)) is not None:
                self._batch.extend(following)
            span = self._bound + self.scene.block - 1 if most is None else most
            if not self._batch or self._batch[0].span > span:
                return
            candidate = self._batch.popleft()
            if described(candidate, self.space) or not self._may_be_better(candidate):
                continue
            verdict = self._presolve(candidate, self._bound, self._swizzled_bound(candidate))
            if verdict.known is not None:
                self._known.append(verdict.known)
                self._keep(verdict.known)
                dearer = self.best is not None and self._swizzled_bound(candidate) < self.best.candidate.span
                if not dearer and self._polished < _MOST_POLISHED:
                    self._polished += 1
                    for cheaper in self._of_few_shifts(verdict.known):
                        self._keep(cheaper)
            elif not verdict.refuted:
                self._undecided.append(candidate)

    # ------------------------------------------------------------------------------------------

    def _tell(self, doing: str) -> None:
        scene = self.scene
        new = [f for f in self.tally.unswizzled[self._shown :] if scene.fits(f.candidate.span)]
        self._shown = len(self.tally.unswizzled)
        known = new if self._plain is None else [self._plain, *new]
        self._plain = min(known, key=lambda f: f.rank, default=None)
        shown = self._plain if self.best is None else dataclasses.replace(self.best, excess=scene.floor)
        if shown is not None:
            scene.tell(shown.excess, shown.candidate.span, scene.floor, doing)

    def _count_plain(self) -> None:
        """All candidates without their swizzles, as far as time allows, where none reaches the floor."""
        part = current().portion(*GATHERING)
        try:
            for candidate in itertools.chain.from_iterable(self.scene.candidates()):
                self.tally.unswizzled.append(self.scene.plain(candidate))
                if self.scene.conflict_free and self.tally.exhausted:
                    return  # one shows that there are layouts
                part.charge(EFFORT_A_CANDIDATE)
                part.check()
        except OutOfTime:
            fall_back(self.scene)
