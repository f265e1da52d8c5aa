"""The smallest layout under which every phase costs no more than its counting bound.

    propose   CP-SAT picks pitches, order and masks (`layoutopt.model.layout_model`)
    verify    a linearisation that was not written out is counted
    grow      if it exceeds a ceiling, it is written out, with those as small, then the 3, 7, ... next

It ends when a proposal that was written out comes back: nothing better exists among all pitches within the
bound. Where a last block that is not full may be moved by the swizzle, a linearisation of a larger span can
still take fewer elements, so those are written out before the answer counts as the smallest.

Candidates that pitches do not describe (splits, rotations, interval pads) are decided one by one, by rising
bytes, while they can be better; with the method `auto` so are pitches before they are written out. Those that
are refuted are forbidden, and a layout that is known bounds the others:

    counting   a linearisation over which no swizzle may lie is one layout: counting its phases decides it.
               Where one keeps to the ceilings as it is, a swizzle over it only makes the index dearer, or the
               last block shorter
    swizzles   a branch of the tree of masks (`layoutopt.search.mask_tree`) is cut where some phase cannot
               keep to its ceiling any more. Where nothing is left, there is no swizzle within the ceilings
"""

import dataclasses
import itertools
import math
from collections import deque
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.ground.budget import OutOfTime, checkpoint, current, spending
from layoutopt.model.cp_sat import Outcome
from layoutopt.model.layout_model import LayoutModel, Solution
from layoutopt.model.linearisations import Linearisation, Together, unpadded
from layoutopt.model.phases import Phases
from layoutopt.model.pitches import MOST_ELEMENTS, WITHIN, by_span, described, most_elements
from layoutopt.model.swizzle_rules import SHIFT_OPERATIONS
from layoutopt.problems.answer import ModelGrowth
from layoutopt.search.cheaper import Cheaper
from layoutopt.search.fall_back import fall_back, likely
from layoutopt.search.proposal import Proposal
from layoutopt.search.refuters import Refuters
from layoutopt.search.scene import EFFORT_A_CANDIDATE, FEW_STEPS, STEPS, TOGETHER, Scene, for_listing
from layoutopt.search.tables import above_floor, at_floor

# Shares of the work left, and effort at most, after which a layout of the least excess is sought; where any
# excess is too much and none that is free of it was found by rising bytes, the rest is for one of any size.
_PATIENCE: Final = {False: (0.3, 1.5), True: (0.6, 3.0)}
# As small as a proposal that exceeds a ceiling, written out with it: each would be proposed.
_MOST_ALIKE = 32
# Listed linearisations whose masks are made the cheapest.
_MOST_POLISHED = 16
# Deterministic time for the cheapest index; where it does not do, the fewest bytes are found first.
_INDEX_EFFORT = 0.2
# The next smallest pitches that are decided before the model is asked.
_AHEAD: Final = 16
# Linearisations that are named in the account of the rounds.
_NAMED = 100
# To count the phases under one linearisation: seconds of a quiet machine.
_EFFORT_EACH, _EFFORT_AN_ENTRY = 2e-4, 5e-8
# Of one that is refuted among many; and to count it later, where no layout reaches the floor.
_EFFORT_REFUTED, _EFFORT_A_REFUTED_ENTRY = 1.5e-4, 1.5e-8
_EFFORT_COUNTED_LATER: Final = 5e-4
_MOST_EFFORT_LATER: Final = 1.5  # for all that are counted then, after which the others stay open


class Verdict(Struct, frozen=True):
    """What counting and the tree decide of a linearisation; neither field set: nothing."""

    refuted: bool = False  # no layout over it keeps to the ceilings in a size of use
    known: Solution | None = None  # a layout over it that does


class ReachFloor:
    """The search for the smallest layout at the floor of the excess.

    A CP-SAT model proposes; a linearisation whose phases exceed their ceilings is written into the model with
    them, until a proposal keeps to them. The model knows linearisations of pitches alone: one stride for each
    whole dimension.

    Attributes:
        presolved: whether linearisations that counting and the tree decide stay out of the model.
        patience: the work that this search may do.
        most: elements of the largest layout sought; with `all_pitches`, none of pitches is larger.
        rounds: how often the model was asked for a proposal.
        best: the smallest at the floor so far, then of the cheapest index.
        table: the answer in place of all formulas, where none takes the tile's own bytes.
    """

    def __init__(self, scene: Scene, *, presolved: bool) -> None:
        self.scene, self.tally, self.space = scene, scene.tally, scene.space
        self.presolved = presolved
        share, effort = _PATIENCE[scene.conflict_free]
        self.patience = current().part(share).portion(1, effort)  # a share of the time, limited work
        largest = most_elements(scene.space)
        if scene.limit_elements is not None:  # with pads of any length (`far`), it alone bounds them
            largest = scene.limit_elements if scene.space.far else min(largest, scene.limit_elements)
        self.all_pitches = largest <= MOST_ELEMENTS
        self.most = min(largest, MOST_ELEMENTS)
        self.best: Solution | None = None
        self.table: Proposal | None = None
        self._found: list[Solution] = []  # all layouts found at the floor
        # The model, what it proposed that exceeds a ceiling, and whether it was asked at all.
        self.model = LayoutModel(
            scene.space, scene.field, scene.sets, scene.tile, self.most, ideal=scene.conflict_free
        )
        self.rounds = 0
        self._rejected: list[Linearisation] = []
        self._model_asked = False
        # Linearisations of pitches, by rising span (a swizzle shortens by less than a block); the next of
        # them; and those decided or written out.
        self._by_span = by_span(scene.space, self.most + scene.block - 1)
        self._next_pitches: deque[Linearisation] = deque()
        self._visited: set[Linearisation] = set()
        # Candidates of all families in batches, by rising span and operations: those of no cut, of one, ...
        # How many batches were drawn, and the rest of the last one.
        if scene.space.families <= WITHIN:  # pitches describe all others
            self._batches = iter([list(unpadded(scene.space, 0))])
        else:
            self._batches = scene.candidates(self._dense_cost)
        self._drawn = 0
        self._batch: deque[Linearisation] = deque()
        self._undecided: list[Linearisation] = []  # of these, by counting and the tree
        self._polished = 0  # of these, layouts whose masks were made cheaper
        # The last linearisations of which the refuters were asked, with whether they refute each; and of how
        # many they are asked next.
        self._refuters, self._asked_at_once = Refuters(scene), 1
        self._asked: dict[Linearisation, bool] = {}
        self.cheaper = Cheaper(scene, self._refuters)
        # What the refuters refute is counted only where no layout reaches the floor. The effort is for all of
        # it; entries are the lanes and elements that counting one linearisation looks at.
        self._uncounted: list[Linearisation] = []
        self._put_off_effort = 0.0
        self._entries = scene.tile.elements + sum(s.elements.size for s in scene.sets)
        # For progress lines: how many of `tally.counted` they took account of, and the best of those.
        self._shown = 0
        self._best_shown: Solution | None = None

    def run(self) -> Solution | None:
        """The smallest, then the cheapest, of all layouts at the floor.

        None where no formula is at the floor: then `table` has a table that is, or the tally what is proved
        of all formulas.
        """
        tally = self.tally
        proved = self._solved()
        tally.growth = self._grown
        if not self.presolved:
            tally.deciders.add("cp-sat")
        tally.exhausted = tally.exhausted and proved
        if self.best is not None:
            cheapest = self.cheaper.alike(self.best, self._found, self.scene.floor)
            tally.counted.append(cheapest)
            return cheapest
        if self.table is not None:
            return None
        # Layouts whose count was put off stay uncounted where counting them takes too long.
        all_counted = self._put_off_effort <= _MOST_EFFORT_LATER
        tally.exhausted = tally.exhausted and self.all_pitches and all_counted
        tally.refuted = self.scene.floor + 1 if tally.exhausted else 0  # no formula has the floor itself
        if not self.presolved:  # the model alone decided, so that nothing is counted yet
            self._count_plain()
        elif not proved:  # time was over: layouts beyond those listed may be better than all so far
            fall_back(self.scene)
        # The next stage lays swizzles over all that are counted; where there are none, only layouts no worse
        # than the best one counted are of use.
        counted = (s.excess for s in tally.counted if self.scene.fits(s.candidate.span))
        most = min(counted, default=math.inf) if self.scene.field is None else None
        tally.counted += self._refuters.counted(self._uncounted, most)
        return None

    def _solved(self) -> bool:
        """Search for `best`; whether to the end, so that no formula of the families is better."""
        try:
            if not (self.presolved and self._dense()):
                if self.presolved and self._dense_cost() is None and self.table is None:
                    self.table = at_floor(self.scene)
                if self.table is not None:
                    return True
                if not self._model_asked:
                    self._visit_next(0, _AHEAD if self.presolved and self.best is None else 0)
                    self._ask_model()
                self._visit_listed(None)
        except OutOfTime:
            return False
        return not any(self._may_be_better(candidate) for candidate in self._undecided)

    def _dense(self) -> bool:
        """Visit layouts of the tile's own bytes before the model is solved; whether `best` is proved best.

        Theorem: elements do not overlap, so no layout is smaller; without a swizzle, layouts of pitches all
        have the same index cost, and no index of another family is as cheap. So any of them at the floor is
        best.
        """
        elements = self.scene.tile.elements
        self._visit_next(elements, 0)
        for candidate in likely(self.scene) if self.best is None else ():
            self.patience.check()
            if candidate not in self._visited:
                self._visit(candidate)
            if self.best is not None:
                break
        if self.best is not None and self.best.size_and_cost == (elements, self.best.candidate.operations):
            return True
        self._visit_listed(elements, cuts=1)
        if self.best is None:  # there is none to be found where every layout has more than the floor
            self.table = above_floor(self.scene)
        if self.table is None:
            self._visit_listed(elements)
        return False

    def _dense_cost(self) -> int | None:
        """The index cost of the best layout, if it takes the tile's own bytes."""
        dense = self.best is not None and self.best.candidate.span == self.scene.tile.elements
        return self.best.operations if self.best is not None and dense else None

    # The best ---------------------------------------------------------------------------------

    def _at_floor(self, solution: Solution) -> bool:
        """Whether the conflict engine counts the floor of the excess."""
        return self.scene.holds(solution, self.scene.floor)

    def _keep(self, known: Solution) -> None:
        """Make a layout the best if it is at the floor and smaller or cheaper; it then bounds the model."""
        if (self.best is None or known.size_and_cost < self.best.size_and_cost) and self._at_floor(known):
            self.best = known
            self.model.at_most(known.candidate.span)

    @property
    def _bound(self) -> int:
        """Largest layout, in elements, that could still beat the best."""
        return self.most if self.best is None else self.best.candidate.span

    def _swizzled_bound(self, candidate: Linearisation) -> int:
        """Largest swizzled layout over a linearisation, in elements, that could still beat the best."""
        dearer = self.best is not None and candidate.operations + SHIFT_OPERATIONS >= self.best.operations
        return self._bound - dearer

    def _may_be_better(self, candidate: Linearisation) -> bool:
        """Whether a layout over it may be smaller than the best, or as small and cheaper (presolving)."""
        if self.best is None:
            return candidate.span - self.scene.block < self.most  # a swizzle shortens by less than a block
        size, cost = self.best.size_and_cost
        if candidate.span < size:
            return True
        if candidate.span == size and (candidate.operations < cost or size == self.scene.tile.elements):
            # As it is; no swizzle makes it smaller than the tile's own bytes, and any makes it dearer.
            return candidate.operations < cost and self.presolved
        return self.model.least_used(candidate) <= self._swizzled_bound(candidate)

    # One linearisation ------------------------------------------------------------------------

    def _verdict(self, candidate: Linearisation) -> Verdict:
        """What is decided of a linearisation of pitches before the model is asked."""
        if self.presolved:
            verdict = self._presolve(candidate, self._bound, self._swizzled_bound(candidate))
            self._found += [verdict.known] if verdict.known is not None else []
            return verdict
        unswizzled = Solution(candidate, {})
        if candidate.span <= self._bound and self._at_floor(unswizzled):
            return Verdict(known=unswizzled)
        return Verdict(refuted=self.model.swizzle is None or not candidate.may_swizzle)

    def _presolve(self, candidate: Linearisation, most: int, most_swizzled: int) -> Verdict:
        """The verdict of the refuters, then of counting, then of the tree of masks.

        Layouts of more elements than `most`, swizzled ones of more than `most_swizzled`, are of no use.
        """
        scene = self.scene
        if self._is_refuted(candidate):
            self.patience.charge(_EFFORT_REFUTED + _EFFORT_A_REFUTED_ENTRY * self._entries)
            self._put_off_effort += _EFFORT_COUNTED_LATER + _EFFORT_AN_ENTRY * self._entries
            if self._put_off_effort <= _MOST_EFFORT_LATER:
                self._uncounted.append(candidate)
            return Verdict(refuted=True)
        self._tell(f"{candidate.family} of {candidate.span * scene.tile.element_bytes:,} bytes")
        phases = scene.phases(candidate)
        costs, ceilings = phases.costs({})[0], scene.ceilings(phases)
        self.patience.charge(_EFFORT_EACH + _EFFORT_AN_ENTRY * (phases.words.size + scene.tile.elements))
        self.tally.counted.append(Solution(candidate, {}, int((costs - phases.ideal) @ phases.weight)))
        if (costs <= ceilings).all() and candidate.span <= most:
            return Verdict(known=Solution(candidate, {}))
        # The largest size of use: the tree then looks for all that are as small.
        size = max((size for size in scene.reaches(candidate) if size <= most_swizzled), default=None)
        if size is None:  # no swizzle over it is of use
            self._refuters.learn(candidate)
            return Verdict(refuted=True)
        return self._by_tree(replace(candidate, span=size), phases)

    def _is_refuted(self, candidate: Linearisation) -> bool:
        """Whether the refuters refute it; they are asked of the candidates after it at once, ever more."""
        if (known := self._asked.get(candidate)) is None:
            following = self._batch
            if described(candidate, self.space):
                following = self._next_pitches
                following.extend(itertools.islice(self._by_span, self._asked_at_once - len(following)))
            batch = [candidate, *itertools.islice(following, self._asked_at_once)]
            self._asked_at_once = min(2 * self._asked_at_once, TOGETHER)
            least, field = self.scene.tile.elements, self.scene.field
            may = [field is not None and c.may_swizzle and self._swizzled_bound(c) >= least for c in batch]
            refuted = self._refuters.refuted(Together.of(batch), may_swizzle=np.array(may))
            self._asked = dict(zip(batch, refuted.tolist(), strict=True))
            known = self._asked[candidate]
        return known

    def _by_tree(self, candidate: Linearisation, phases: Phases) -> Verdict:
        """The verdict of the tree of masks, of few steps first; what it does not decide is for CP-SAT.

        `candidate.span`: elements that a layout over it may take.
        """
        for steps in (FEW_STEPS, STEPS):
            with spending(self.patience):
                searched = self.scene.within_ceilings(candidate, phases, self.scene.ceilings(phases), steps)
            if (best := searched.best) is not None:
                exact = replace(candidate, span=best.used)
                return Verdict(known=self.scene.swizzled(exact, phases, best.masks))
            if searched.bit is not None:
                self._refuters.learn(candidate, searched.bit)
            if searched.complete:
                self.tally.deciders.add("tree")
                return Verdict(refuted=True)
        self.tally.deciders.add("cp-sat")
        return Verdict()

    # The model --------------------------------------------------------------------------------

    def _ask_model(self) -> None:
        """Make the smallest layout of pitches at the floor, then the cheapest, the `best`, if there is one.

        Raises OutOfTime where the model cannot tell, too.
        """
        self._model_asked = True
        while self.presolved and self.best is None and not self.model.written:
            # With none written out, the model knows only what was refuted: it would propose the next pitches.
            if (following := self._following()) is None:
                return
            self._visit(following)
        if self.presolved and self._settled():  # no pitches are better
            return
        # Linearisations that are written out with a proposal that fails, itself included: ever more, as each
        # of the next would be proposed.
        written_together = 1
        while True:
            with spending(self.patience):
                proposal = self._proposal()
            if proposal is None:  # none is better; but a swizzle may shorten pitches not yet visited
                if not self._visit_up_to(self._bound):
                    return
                continue
            size = proposal.candidate.span * self.scene.tile.element_bytes
            self._tell(f"round {self.rounds}: {size:,} bytes proposed")
            if self._at_floor(proposal):
                span = proposal.candidate.span
                if self.best is None or proposal.size_and_cost <= self.best.size_and_cost:
                    self.best = proposal
                if span == self.scene.tile.elements or not self._visit_up_to(span):
                    return
            elif proposal.written:
                # The model knows its phases, which keep to their ceilings; but where lanes share words, fewer
                # wavefronts are ideal: too much excess. It would be proposed again: the answer stays open.
                raise OutOfTime
            else:
                self._rejected.append(proposal.candidate)
                self._visit(proposal.candidate, counted=True)
                self._visit_next(proposal.candidate.span, written_together - 1)
                written_together = 2 * written_together + 1

    def _settled(self) -> bool:
        """Whether no pitches, swizzled or not, are better than the best: the model need not be asked.

        All that may be are visited. Those not refuted need a swizzle, of one shift at least: no textbook
        swizzle over the linearisation of the best costs more.
        """
        if self.best is None or (self.best.masks and self.best.candidate.family != "none"):
            return False  # of equal swizzles, the model prefers that of the natural order
        if self.best.masks and not current().spent:
            for usual in self.cheaper.usual(self.best.candidate, self.scene.floor):
                self._keep(usual)
        following, elements = self._following(), self.scene.tile.elements
        if self._bound > elements:
            left = self._visit_up_to(self._bound)
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
        outcome, cheapest = self.model.solve(effort=_INDEX_EFFORT, hint=hint)
        if outcome in (Outcome.OPTIMAL, Outcome.INFEASIBLE):
            return cheapest
        # To find the cheapest index takes long, so the fewest bytes come first.
        smallest = self.best
        if smallest is None or smallest.candidate.span > self.scene.tile.elements:
            outcome, smallest = self.model.solve(index=False, hint=cheapest or hint)
            if outcome is Outcome.INFEASIBLE:
                return None
            if outcome is not Outcome.OPTIMAL or smallest is None:
                raise OutOfTime
            span = smallest.candidate.span
            _, cheapest = self.model.solve(effort=_INDEX_EFFORT, most=span, hint=smallest)
        return min((s for s in (smallest, cheapest) if s is not None), key=lambda s: s.size_and_cost)

    @property
    def _grown(self) -> ModelGrowth:
        """Statistics of the model, for a result."""
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

    def _visit(self, candidate: Linearisation, *, counted: bool = False) -> None:
        """Decide it, or write it into the model; forbid it there if it is refuted.

        `counted`: without a swizzle it was counted and is not at the floor.
        """
        self._visited.add(candidate)
        verdict = Verdict() if counted and not self.presolved else self._verdict(candidate)
        if verdict.known is not None and not verdict.known.masks:
            self._keep(verdict.known)
            if not self._may_be_shorter(candidate):
                return  # no swizzle is needed
        if verdict.refuted:
            self.model.forbid(candidate)
            return
        self.model.write_out(candidate)
        if verdict.known is not None:
            self._keep(verdict.known)

    def _may_be_shorter(self, candidate: Linearisation) -> bool:
        """Whether a swizzle over a candidate at the floor without one may shorten it by its last block."""
        if self.model.least_used(candidate) >= candidate.span:
            return False
        most = candidate.span - 1
        return not (self.presolved and self._presolve(candidate, most, most).refuted)

    def _visit_next(self, span: int, count: int) -> None:
        """Visit the next pitches of at most `span` elements, until one is best, then `count` more."""
        alike = 0
        while (following := self._following()) is not None and following.span <= span and alike < _MOST_ALIKE:
            self._visit(following)
            alike += 1
            if self.best is not None and not self.best.masks and self.best.candidate.span <= span:
                return  # it needs no swizzle, so none is cheaper
        for _ in range(count):
            following = self._following()
            if following is None or following.span >= self._bound + self.scene.block:
                return
            self._visit(following)

    def _following(self) -> Linearisation | None:
        """The smallest pitches not yet visited."""
        self.patience.check()
        while self._next_pitches and self._next_pitches[0] in self._visited:
            self._next_pitches.popleft()
        if not self._next_pitches:
            unvisited = (c for c in self._by_span if c not in self._visited)
            self._next_pitches.extend(itertools.islice(unvisited, 1))
        return self._next_pitches[0] if self._next_pitches else None

    def _visit_up_to(self, span: int) -> bool:
        """Visit all pitches that a swizzle might make as small as `span`; whether any is written out."""
        before = len(self.model.written)
        while (following := self._following()) is not None and following.span < span + self.scene.block:
            if self._may_be_better(following):
                self._visit(following)
            else:
                self._visited.add(following)
        return len(self.model.written) > before

    # Candidates of all families ---------------------------------------------------------------

    def _visit_listed(self, most: int | None, cuts: int | None = None) -> None:
        """Decide the next candidates of all families, as far as they may be better than the best.

        They come by rising size and cost, so that the first layout found rules out most of the others. Of at
        most `most` elements and `cuts` cuts of coordinates; None for any number.
        """
        if self.best is not None and not self._model_asked:
            self._ask_model()  # whose masks are cheaper than those of the tree
        while True:
            self.patience.check()
            while not self._batch and (cuts is None or self._drawn <= cuts):
                if (batch := next(self._batches, None)) is None:
                    break
                self._batch.extend(batch)
                self._drawn += 1
            # A swizzle may shorten a layout by less than a block.
            span = self._bound + self.scene.block - 1 if most is None else most
            if not self._batch or self._batch[0].span > span:
                return
            candidate = self._batch.popleft()
            if described(candidate, self.space) or not self._may_be_better(candidate):
                continue  # of pitches, which the model decides; or of no use
            verdict = self._presolve(candidate, self._bound, self._swizzled_bound(candidate))
            if verdict.known is not None:
                self._found.append(verdict.known)
                self._keep(verdict.known)
                # Masks of fewer shifts are of no use where any swizzle of this size costs more than the best.
                may_be_cheaper = self._swizzled_bound(candidate) == self._bound
                if may_be_cheaper and self._polished < _MOST_POLISHED:
                    self._polished += 1
                    for cheaper in self.cheaper.of_few_shifts(verdict.known, than=self.best):
                        self._keep(cheaper)
            elif not verdict.refuted:
                self._undecided.append(candidate)

    # ------------------------------------------------------------------------------------------

    def _tell(self, doing: str) -> None:
        """Report the best layout so far, at the floor or without a swizzle, and what comes next."""
        scene = self.scene
        new = [s for s in self.tally.counted[self._shown :] if scene.fits(s.candidate.span)]
        self._shown = len(self.tally.counted)
        known = new if self._best_shown is None else [self._best_shown, *new]
        self._best_shown = min(known, key=lambda s: s.rank, default=None)
        shown = self._best_shown if self.best is None else dataclasses.replace(self.best, excess=scene.floor)
        if shown is not None:
            scene.tell(shown.excess, shown.candidate.span, scene.floor, doing)

    def _count_plain(self) -> None:
        """Add all candidates without a swizzle to the tally, as far as time allows."""
        part = for_listing()
        try:
            for candidate in itertools.chain.from_iterable(self.scene.candidates()):
                self.tally.counted.append(self.scene.plain(candidate))
                if self.scene.conflict_free and self.tally.exhausted:
                    return  # one shows that there are layouts
                part.charge(EFFORT_A_CANDIDATE)
                part.check()
        except OutOfTime:
            fall_back(self.scene)
