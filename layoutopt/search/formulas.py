"""The search over linearisations and swizzles, by rising bytes: what each of its stages proposes.

`smallest` (`layoutopt.search.reach_floor`) looks for the smallest layout under which every phase costs no
more than its counting bound. Where no candidate reaches the bounds, `least_excess` minimises the weighted
excess over all of them: a search tree (`layoutopt.search.mask_tree`) is asked of every linearisation for less
than the best so far, the most promising and the smallest in turn; the bound is what makes the questions easy.
Where instructions come first, and excess may be left, the plainest formulas do.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Final

from msgspec import structs
from msgspec.structs import replace

from layoutopt.accesses.lower import with_loops
from layoutopt.ground.budget import OutOfTime, current
from layoutopt.index.index_code import least_instructions
from layoutopt.model.layout_model import Solution
from layoutopt.model.linearisations import Linearisation, by_cost, least_operations
from layoutopt.problems.answer import EVERY_LAYOUT
from layoutopt.search.fall_back import fall_back
from layoutopt.search.mask_tree import least_excess as least_of_masks
from layoutopt.search.proposal import Proposal
from layoutopt.search.reach_floor import ReachFloor
from layoutopt.search.scene import Scene
from layoutopt.search.search import Search
from layoutopt.search.tables import instead

ALL_HAVE_CONFLICTS: Final = "every layout of these families has conflicts"
NONE_KEEPS_TO_THEM: Final = "no layout of these families keeps to the constraints"
# Classes that the tree may count for one linearisation, round by round: about 0.01, 0.1 and 14 s.
_TREE_STEPS: Final = (1 << 22, 1 << 26, 1 << 33)
# After so many linearisations another answer is asked for, such as a table.
_AT_FIRST: Final = 24


def refuted(search: Search, _: Proposal | None) -> Proposal | None:
    """That there is no layout, where that shows without a search; else None."""
    scene = search.scene
    if scene.limit is not None and scene.tile.bytes > scene.limit:
        reason = f"the elements alone need {scene.tile.bytes} bytes; max_bytes is {scene.limit}"
        return scene.none(reason, EVERY_LAYOUT, True)
    if scene.conflict_free and scene.floor:
        return scene.none("the counting bound: every layout has conflicts", EVERY_LAYOUT, True)
    return None


def plainest_formula(search: Search, _: Proposal | None) -> Proposal | None:
    """Of the formulas of fewest operations, that of the fewest instructions, then least excess, then bytes.

    None where no layout was found that needs no swizzle. Proved only where no layout of any kind can be
    better in anything.
    """
    scene, instructions = search.scene, dict[str, int]()

    def rank(solution: Solution) -> tuple[int, int, int]:
        """Instructions, those of the first found that is like it but for its strides; excess and elements."""
        candidate = solution.candidate
        strides = [d.stride & (d.stride - 1) == 0 for d in candidate.digits]
        places = [(d.dim, d.divide, d.size) for d in candidate.digits]
        kind = str((places, strides, candidate.turn > 0, candidate.interval[0]))
        if kind not in instructions:
            instructions[kind] = scene.instructions(solution)
        return instructions[kind], solution.excess, candidate.span

    best: Solution | None = None
    try:
        for candidate in itertools.chain.from_iterable(scene.candidates()):
            if best is not None and current().spent:
                break
            most = least_operations(scene.space) if best is None else best.operations
            worse = best is not None and rank(Solution(candidate, {}, scene.floor)) >= rank(best)
            if candidate.operations <= most and not worse and scene.fits(candidate.span):
                found = scene.plain(candidate)
                best = found if best is None else min(best, found, key=rank)
    except OutOfTime:
        scene.tally.exhausted = False
    if best is None:
        return None
    size = int(scene.layout(best).table().max()) + scene.tile.element_bytes
    least = least_instructions(with_loops(scene.problem), scene.trace)
    proved = (scene.instructions(best), best.excess, size) <= (least, scene.floor, scene.tile.bytes)
    scene.tally.undecided_span = scene.tile.elements
    return replace(scene.proposal(best, scene.floor), left_open=not proved)


def smallest(search: Search, _: Proposal | None) -> Proposal | None:
    """The smallest layout at the floor of the excess, or that there is none; None where more may do."""
    scene = search.scene
    tally = scene.tally
    try:
        search.reach = ReachFloor(scene, presolved=scene.ask.method == "auto")
    except OutOfTime:
        return _plainest(scene)
    found = search.reach.run()
    if search.reach.table is not None:
        return search.reach.table
    if not tally.unswizzled:
        over = current().spent or not tally.exhausted
        return scene.none("out of time" if over else NONE_KEEPS_TO_THEM, scene.scope, not over)
    if found is not None and found.excess == scene.floor:
        if not tally.exhausted:
            tally.undecided_span = scene.tile.elements
        return scene.proposal(found, scene.floor)
    if scene.conflict_free and tally.undecided_span is None and tally.exhausted:
        return scene.none(ALL_HAVE_CONFLICTS, scene.scope, True)
    return None


def least_excess(search: Search, _: Proposal | None) -> Proposal:
    """The least excess over all linearisations, where nothing reaches the floor."""
    return _LeastExcess(search).run()


def _plainest(scene: Scene) -> Proposal:
    """Where the time was over before the smallest candidate was known: the best of a few plain ones."""
    fall_back(scene)
    scene.tally.undecided_span = scene.tile.elements
    enough = scene.floor if scene.conflict_free else math.inf
    found = [f for f in scene.tally.unswizzled if f.excess <= enough]
    if not found:
        return scene.none("out of time", scene.scope, False)
    return scene.proposal(min(found, key=lambda f: f.rank), scene.floor)


# The least excess, where nothing reaches the floor ---------------------------------------------


class _LeastExcess:
    """All linearisations under the best so far."""

    def __init__(self, search: Search) -> None:
        self.search, self.scene = search, search.scene
        self.tally = self.scene.tally
        self._trees = 0

    def run(self) -> Proposal:
        """The best layout found, and what is proved of it."""
        known = [f for f in self.tally.unswizzled if self._serves(f)]
        fitting = [f for f in known if self.scene.fits(f.candidate.span)]
        # Where only swizzles serve: worse than every one of them, and no answer.
        most = self.scene.floor if self.scene.conflict_free else self._most_excess()
        nothing = dataclasses.replace(self.tally.unswizzled[0], excess=1 + most)
        self.best = min(fitting, key=lambda f: f.rank, default=nothing)
        left = self._in_turn()
        first = self._by_tree(left[:_AT_FIRST], _TREE_STEPS[0])
        # Of the best so far, which may be too large, nothing is proved.
        if self.scene.counted is self.scene.trace:
            so_far = self.scene.proposal(self.best, self.scene.floor)
            if (answer := instead(self.scene.case, so_far, self.scene.ask)) is not None:
                return answer
        left = first + left[_AT_FIRST:]
        for steps in _TREE_STEPS:
            left = self._by_tree(left, steps)
        left = [candidate for candidate in left if self._may_be_better(candidate)]
        self._go_on()
        return self._proposal(left, nothing)

    def _proposal(self, left: Sequence[Linearisation], nothing: Solution) -> Proposal:
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

    def _in_turn(self) -> list[Linearisation]:
        """Linearisations that a swizzle may lie over: the smallest in turn with the most promising.

        None of them where there is no time to look at them; they then stay open.
        """
        if self.scene.field is None:
            return []
        if current().spent:
            self.tally.exhausted = False
            return []
        promise = {f.candidate: f.excess for f in self.tally.unswizzled if self.scene.reaches(f.candidate)}
        by_size = sorted(promise, key=_by_cost_then_digits)
        by_promise = sorted(by_size, key=promise.__getitem__)
        return list(dict.fromkeys(c for pair in zip(by_promise, by_size, strict=True) for c in pair))

    @property
    def _known(self) -> int:
        return max(self.scene.floor, self.tally.refuted)

    def _may_be_better(self, candidate: Linearisation) -> bool:
        smaller = self.scene.reaches(candidate)[0] < self.best.candidate.span
        return self._known < self.best.excess or (self._known == self.best.excess and smaller)

    def _by_tree(self, candidates: Sequence[Linearisation], steps: int) -> list[Linearisation]:
        """Consider the best masks over each candidate; gives those that so many steps do not decide."""
        left, scene = [], self.scene
        most = None if scene.limit is None else scene.limit // scene.tile.element_bytes
        for candidate in candidates:
            if not self._may_be_better(candidate):
                continue
            if current().spent:
                left.append(candidate)
                continue
            self.tally.deciders.add("tree")
            self._trees += steps == _TREE_STEPS[0]
            scene.tell(self.best.excess, self.best.candidate.span, self._known, candidate.family)
            phases = scene.phases(candidate)
            below = self.best.excess, self.best.candidate.span
            searched = least_of_masks(scene.question(candidate, phases, most, below), steps)
            if searched.best is not None:
                exact = replace(candidate, span=searched.best.used)
                self._consider(scene.swizzled(exact, phases, searched.best.masks))
            if not searched.complete:
                left.append(candidate)
        return left

    def _serves(self, solution: Solution) -> bool:
        return solution.excess <= self.scene.floor or not self.scene.conflict_free

    def _consider(self, solution: Solution) -> None:
        if self._serves(solution):
            self.best = min(self.best, solution, key=lambda f: f.rank)

    def _go_on(self) -> None:
        """Have the search for the floor go on where it had had its share of the time."""
        reach = self.search.reach
        if reach is None or self.tally.exhausted or current().spent or self.best.excess == self.scene.floor:
            return
        if (found := reach.run()) is not None:
            self._consider(found)

    def _most_excess(self) -> int:
        return sum(
            int(s.weight.sum()) * s.elements.shape[1] * max(1, s.width_bytes // s.rule.bank_bytes)
            for s in self.scene.sets
        )


def _by_cost_then_digits(candidate: Linearisation) -> tuple[object, ...]:
    """A total order, so that the search does not depend on the order of a set."""
    places = [(d.dim, d.divide, d.stride) for d in candidate.digits]
    return (*by_cost(candidate), candidate.turn, candidate.interval, places)
