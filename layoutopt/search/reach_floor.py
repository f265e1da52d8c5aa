"""The smallest layout under which every phase costs no more than its counting bound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from layoutopt.ground.budget import OutOfTime
from layoutopt.model.layout_model import Choice
from layoutopt.model.linear_phases import phases_of
from layoutopt.model.linearisations import unpadded
from layoutopt.model.pads import whole_lines
from layoutopt.model.pitches import MOST_ELEMENTS, most_elements
from layoutopt.model.swizzle_rules import rules, textbook
from layoutopt.search.fall_back import fall_back
from layoutopt.search.found import Found
from layoutopt.search.joint import Growth, Listed, join, needs_no_list, smallest
from layoutopt.search.many_orders import likely
from layoutopt.search.presolve import Presolve
from layoutopt.search.scene import EFFORT_A_CANDIDATE, GATHERING, Scene

# Share of the time after which a layout of the least excess is sought, and where any excess is too much:
# where none that is free of it was found by rising bytes, the rest is for finding one of any size.
_PATIENCE, _PATIENCE_CONFLICT_FREE = 0.3, 0.6
_EFFORT, _EFFORT_CONFLICT_FREE = 1.5, 3.0
# Layouts as small as the best whose index code is compared with its own.
_MOST_ALIKE, _MOST_USUAL = 1, 2
# Of what is then left.
_WHOLE_LINES_SHARE, _WHOLE_LINES_EFFORT = 0.2, 1.0


class ReachFloor:
    """Stage 1: it is optimal among all layouts where it needs only the tile's own bytes.

    With `presolved`, rules look at a linearisation before it is written out; else CP-SAT decides everything.
    """

    def __init__(self, scene: Scene, *, presolved: bool) -> None:
        self.scene, self.tally = scene, scene.tally
        self.presolved = presolved
        limit = None if scene.limit is None else scene.limit // scene.tile.element_bytes
        self._every_pitch = most_elements(scene.space)
        if limit is not None:
            self._every_pitch = limit if scene.space.far else min(self._every_pitch, limit)
        if scene.conflict_free:
            budget = scene.budget.part(_PATIENCE_CONFLICT_FREE, _EFFORT_CONFLICT_FREE)
        else:
            budget = scene.budget.part(_PATIENCE, _EFFORT)
        self._judge = Presolve(scene, budget)
        self.growth = Growth(
            scene.space,
            scene.field,
            scene.sets,
            scene.tile,
            min(self._every_pitch, MOST_ELEMENTS),
            ideal=scene.conflict_free,
            holds=self._holds,
            judge=self._judge if presolved else None,
            budget=budget,
            progress=self._tell,
        )
        every = unpadded(scene.space, 0) if needs_no_list(scene.space) else scene.candidates(self._cost)
        self.listed = Listed(every)
        self._told = 0  # of the layouts looked at, those that whoever watches knows
        self._plain: Found | None = None  # the best of them

    def run(self) -> Found | None:
        """The smallest, then the cheapest, of all layouts that reach the floor; None where none does.

        Called again, it goes on where it stopped for want of time, as long as there is any.
        """
        tally = self.tally
        proved = self._solved()
        self.growth.budget = self._judge.budget = self.scene.budget
        tally.growth = self.growth.grown
        if not self.presolved:
            tally.deciders.add("cp-sat")
        tally.exhausted = tally.exhausted and proved
        if self.growth.best is None and self.presolved and not proved:
            self._look_at_whole_lines()
        if self.growth.best is not None:
            tally.level = self._chosen(self._cheapest(self.growth.best))
            tally.unswizzled.append(tally.level)
            return tally.level
        tally.exhausted = tally.exhausted and self._every_pitch <= MOST_ELEMENTS
        tally.refuted = self.scene.floor + 1 if tally.exhausted else 0
        if not self.presolved:
            self._count_plain()
        elif not proved:
            fall_back(self.scene)
        return None

    def _cheapest(self, best: Choice) -> Choice:
        """Of a few that are as small as the best, the one of the cheapest index code."""
        if not (best.masks or best.candidate.turn):
            return best
        alike = [c for c in self.growth.known if c.candidate.span == best.candidate.span and c != best]
        alike.sort(key=lambda choice: choice.operations)
        usual = (c for c in self._usual(best) if c != best and self._holds(c))
        others = [*(c for c in alike[:_MOST_ALIKE] if self._holds(c)), *islice(usual, _MOST_USUAL)]
        return min([best, *others], key=lambda choice: self.scene.instructions(self._chosen(choice)))

    def _usual(self, best: Choice) -> Iterator[Choice]:
        """`Swizzle<B, M, S>` over the linearisation of the best, of as few shifts, in as few bytes."""
        scene = self.scene
        if not best.masks or self.scene.budget.spent:
            return
        assert scene.field is not None
        phases, given = (
            phases_of(best.candidate, scene.sets, scene.tile),
            rules(best.candidate, scene.field, scene.tile),
        )
        ceilings = phases.ideal if scene.conflict_free else phases.target
        highest = (best.candidate.span * scene.tile.element_bytes - 1) // scene.field.word_bytes
        for masks in textbook(scene.field, given, highest):
            if (phases.costs(masks) <= ceilings).all():
                found = scene.swizzled(best.candidate, phases, masks)
                if found.operations <= best.operations:
                    yield Choice(found.candidate, found.masks, written=True)

    def _solved(self) -> bool:
        """Have the model grow; whether to the end, so that nothing is better than its best."""
        try:
            if not (self.presolved and self._dense()):
                smallest(self.growth, self.listed)
        except OutOfTime:
            return False
        return True

    def _dense(self) -> bool:
        """Look at layouts of the tile's own bytes before anything is solved; whether one of them is the best.

        Theorem: elements do not overlap, so nothing is smaller; and of pitches without a swizzle none has a
        cheaper index, and no index of another family is as cheap. So one of them that does as it is is best.
        """
        growth, elements = self.growth, self.scene.tile.elements
        growth.look_at_following(elements, 0)
        if growth.best is None:
            growth.look_at_first_to_do(likely(self.scene))
        best = growth.best
        if best is not None and best.rank == (elements, best.candidate.operations):
            return True
        join(growth, self.listed, elements)
        return False

    def _look_at_whole_lines(self) -> None:
        """Out of time: lines that all start at the first bank, which a swizzle serves oftener than others."""
        space, part = self.scene.space, self.scene.budget.part(_WHOLE_LINES_SHARE, _WHOLE_LINES_EFFORT)
        judge = Presolve(self.scene, part)
        for candidate in part.while_left(whole_lines(space)):
            if candidate.may_swizzle and self.scene.fits(candidate.span):
                known = judge(candidate, self.growth.bound, self.growth.bound).known
                if known is not None and self._holds(known):
                    self.growth.best = known
                    return

    def _tell(self, doing: str) -> None:
        """Tell whoever watches the best so far, which is the answer if they wait no longer."""
        scene, best = self.scene, self.growth.best
        new = [f for f in self.tally.unswizzled[self._told :] if scene.fits(f.candidate.span)]
        self._told = len(self.tally.unswizzled)
        known = new if self._plain is None else [self._plain, *new]
        self._plain = min(known, key=lambda f: f.rank, default=None)
        if best is not None:
            scene.tell(scene.floor, best.candidate.span, scene.floor, doing)
        elif self._plain is not None:
            scene.tell(self._plain.excess, self._plain.candidate.span, scene.floor, doing)

    def _cost(self) -> int | None:
        """What the index of the best layout costs, where it takes the tile's own bytes."""
        best = self.growth.best
        return best.operations if best and best.candidate.span == self.scene.tile.elements else None

    def _holds(self, choice: Choice) -> bool:
        """Whether the conflict engine confirms a proposal."""
        layout = self.scene.layout(self._chosen(choice))
        return self.scene.engine.excess(layout) == self.scene.floor

    def _chosen(self, choice: Choice) -> Found:
        return Found(choice.candidate, choice.masks, self.scene.floor, choice.operations)

    def _count_plain(self) -> None:
        """All candidates without their swizzles, as far as time allows, where none reaches the floor."""
        part = self.scene.budget.part(*GATHERING)
        try:
            for candidate in self.scene.candidates():
                excess = phases_of(candidate, self.scene.sets, self.scene.tile).excess({})
                self.tally.unswizzled.append(Found(candidate, {}, excess, candidate.operations))
                if self.scene.conflict_free and self.tally.exhausted:
                    return  # one shows that there are layouts
                part.charge(EFFORT_A_CANDIDATE)
                part.check()
        except OutOfTime:
            fall_back(self.scene)
