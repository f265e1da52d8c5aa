"""The search over linearisations and swizzles, by rising bytes: what each of its stages proposes.

`_smallest` (`layoutopt.search.reach_floor`) looks for the smallest layout under which every phase costs no
more than its counting bound. Where no candidate reaches the bounds, `_least_excess` minimises the weighted
excess over all of them: a search tree (`layoutopt.search.mask_tree`) is asked of every linearisation for less
than the best so far, the most promising and the smallest in turn; the bound is what makes the questions easy.
Where instructions come first, and excess may be left, the plainest formulas do.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from layoutopt.accesses.lower import with_loops
from layoutopt.ground.budget import OutOfTime, current, spending
from layoutopt.index.index_code import least_instructions
from layoutopt.model.layout_model import Solution
from layoutopt.model.linearisations import Linearisation, by_cost, least_operations
from layoutopt.problems.answer import EVERY_LAYOUT
from layoutopt.search.counted import Counter, best, cute_swizzles
from layoutopt.search.fall_back import fall_back
from layoutopt.search.mask_tree import least_excess as least_of_masks
from layoutopt.search.proposal import STOPPED, Found, Proposal, Proved
from layoutopt.search.reach_floor import ReachFloor
from layoutopt.search.search import Search, rank
from layoutopt.search.tables import instead

ALL_HAVE_CONFLICTS: Final = "every layout of these families has conflicts"
NONE_KEEPS_TO_THEM: Final = "no layout of these families keeps to the constraints"
# Classes that the tree may count for one linearisation, round by round: about 0.01, 0.1 and 14 s.
_TREE_STEPS: Final = (1 << 22, 1 << 26, 1 << 33)
# After so many linearisations another answer is asked for, such as a table.
_AT_FIRST: Final = 24


def propose(search: Search, best: Proposal | None) -> Proposal | None:
    """The best formula, in the time for formulas; None where there is a proposal."""
    if best is not None:
        return None
    with spending(search.for_formulas):
        stages = _refuted, _plainest, _smallest, _least_excess
        found = next(found for stage in stages if (found := stage(search)) is not None)
        if search.scene.counts_swizzles and (found.found is not None or found.left_open):
            found = _or_swizzle(search, found)
    return found


def _refuted(search: Search) -> Proposal | None:
    """An answer without a layout where no search is needed to refute all; else None."""
    scene = search.scene
    if scene.limit is not None and scene.tile.bytes > scene.limit:
        reason = f"the elements alone need {scene.tile.bytes} bytes; max_bytes is {scene.limit}"
        return scene.none(reason, EVERY_LAYOUT, True)
    if scene.conflict_free and scene.floor:
        return scene.none("the counting bound: every layout has conflicts", EVERY_LAYOUT, True)
    return None


def _plainest(search: Search) -> Proposal | None:
    """Of the formulas of fewest operations, that of the fewest instructions, then least excess, then bytes.

    None where excess comes first, or no layout was found that needs no swizzle. Proved only where no layout
    of any kind can have fewer instructions, excess or bytes.
    """
    scene, instructions = search.scene, dict[str, int]()
    if not scene.wants_plainest:
        return None

    def rank(solution: Solution) -> tuple[int, int, int]:
        """Instructions, excess and elements.

        The instructions are counted once for formulas that differ in their strides alone, as long as the same
        ones are powers of two.
        """
        candidate = solution.candidate
        shifts = [d.stride & (d.stride - 1) == 0 for d in candidate.digits]
        places = [(d.dim, d.divide, d.size) for d in candidate.digits]
        form = str((places, shifts, candidate.turn > 0, candidate.interval[0]))
        if form not in instructions:
            instructions[form] = scene.instructions(solution)
        return instructions[form], solution.excess, candidate.span

    best: Solution | None = None
    try:
        for candidate in itertools.chain.from_iterable(scene.candidates()):
            if best is not None and current().spent:
                break
            most = least_operations(scene.space) if best is None else best.operations
            worse = best is not None and rank(Solution(candidate, {}, scene.floor)) >= rank(best)
            if candidate.operations <= most and not worse and scene.fits(candidate.span):
                solution = scene.plain(candidate)
                best = solution if best is None else min(best, solution, key=rank)
    except OutOfTime:
        scene.tally.exhausted = False
    if best is None:
        return None
    size = int(scene.layout(best).table().max()) + scene.tile.element_bytes
    least = least_instructions(with_loops(scene.problem), scene.trace)
    proved = (scene.instructions(best), best.excess, size) <= (least, scene.floor, scene.tile.bytes)
    scene.tally.undecided_span = scene.tile.elements
    return replace(scene.proposal(best, scene.floor), left_open=not proved)


def _smallest(search: Search) -> Proposal | None:
    """The smallest layout whose excess is the floor; None where there is none and more excess will do.

    Without a layout if the time is over before one is found, or if none keeps to the constraints.
    """
    scene = search.scene
    tally = scene.tally
    try:
        search.reach = ReachFloor(scene, presolved=scene.ask.method == "auto")
    except OutOfTime:
        # Before any search: the best of a few layouts without a swizzle.
        fall_back(scene)
        tally.undecided_span = scene.tile.elements
        return scene.unswizzled("out of time")
    found = search.reach.run()
    if search.reach.table is not None:
        return search.reach.table
    if not tally.unswizzled:
        out_of_time = current().spent or not tally.exhausted
        reason = "out of time" if out_of_time else NONE_KEEPS_TO_THEM
        return scene.none(reason, scene.scope, not out_of_time)
    if found is not None and found.excess == scene.floor:
        if not tally.exhausted:
            tally.undecided_span = scene.tile.elements
        return scene.proposal(found, scene.floor)
    if scene.conflict_free and tally.undecided_span is None and tally.exhausted:
        return scene.none(ALL_HAVE_CONFLICTS, scene.scope, True)
    return None


def _least_excess(search: Search) -> Proposal:
    """The least excess over all linearisations, where nothing reaches the floor."""
    return _LeastExcess(search).run()


# The least excess, where nothing reaches the floor ---------------------------------------------


class _LeastExcess:
    """The search for the least excess over all linearisations, by a tree of masks over each.

    Attributes:
        best: the solution of least excess so far, then of fewest elements.
    """

    def __init__(self, search: Search) -> None:
        self.search, self.scene = search, search.scene
        self.tally = self.scene.tally
        self._trees = 0

    def run(self) -> Proposal:
        """The best layout found, and what is proved of it."""
        fits = self.scene.fits
        serving = [s for s in self.tally.unswizzled if self._serves(s) and fits(s.candidate.span)]
        # Where only swizzles serve: more excess than any of them has, and no answer.
        most = self.scene.floor if self.scene.conflict_free else self._most_excess()
        no_layout = dataclasses.replace(self.tally.unswizzled[0], excess=1 + most)
        self.best = min(serving, key=lambda solution: solution.rank, default=no_layout)
        undecided = self._to_swizzle()
        first = self._by_tree(undecided[:_AT_FIRST], _TREE_STEPS[0])
        # Of the best so far, which may be too large, nothing is proved.
        if self.scene.counted is self.scene.trace:
            so_far = self.scene.proposal(self.best, self.scene.floor)
            if (answer := instead(self.scene.case, so_far, self.scene.ask)) is not None:
                return answer
        undecided = first + undecided[_AT_FIRST:]
        for steps in _TREE_STEPS:
            undecided = self._by_tree(undecided, steps)
        undecided = [candidate for candidate in undecided if self._may_be_better(candidate)]
        self._resume_floor_search()
        return self._proposal(undecided, self.best is no_layout)

    def _proposal(self, undecided: Sequence[Linearisation], without_layout: bool) -> Proposal:
        """The best as an answer, with what is proved of it, or why there is none.

        Args:
            undecided: linearisations over which a swizzle might still be better.
            without_layout: nothing that was found meets the constraints.
        """
        tally, scene = self.tally, self.scene
        if tally.growth is not None:
            tally.growth = replace(tally.growth, trees=self._trees)
        everything_tried = tally.exhausted and not undecided
        # A smaller layout could only lie over one of the undecided: the least size of each, in elements.
        spans = [reach for candidate in undecided for reach in scene.reaches(candidate)[:1]]
        tally.undecided_span = min(spans, default=None) if tally.exhausted else scene.tile.elements
        if without_layout:
            reason = ALL_HAVE_CONFLICTS if scene.conflict_free else NONE_KEEPS_TO_THEM
            return scene.none(reason if everything_tried else "out of time", scene.scope, everything_tried)
        best = self.best
        if self.search.reach is not None:
            best = self.search.reach.cheaper.alike(best, (), best.excess)
        return scene.proposal(best, max(self._proved, best.excess) if everything_tried else self._proved)

    def _to_swizzle(self) -> list[Linearisation]:
        """Linearisations that a swizzle may lie over, alternately of least excess as they are and smallest.

        None of them where the time is over; they then stay open.
        """
        if self.scene.field is None:
            return []
        if current().spent:
            self.tally.exhausted = False
            return []
        excess = {s.candidate: s.excess for s in self.tally.unswizzled if self.scene.reaches(s.candidate)}
        by_size = sorted(excess, key=_by_cost_then_digits)
        by_excess = sorted(by_size, key=excess.__getitem__)
        return list(dict.fromkeys(c for pair in zip(by_excess, by_size, strict=True) for c in pair))

    @property
    def _proved(self) -> int:
        """Lower bound of the excess of every layout in scope, so far."""
        return max(self.scene.floor, self.tally.refuted)

    def _may_be_better(self, candidate: Linearisation) -> bool:
        smaller = self.scene.reaches(candidate)[0] < self.best.candidate.span
        return self._proved < self.best.excess or (self._proved == self.best.excess and smaller)

    def _by_tree(self, candidates: Sequence[Linearisation], steps: int) -> list[Linearisation]:
        """Search a tree of masks over each candidate for a better layout; gives candidates left undecided.

        `steps` limits each tree: classes that it counts.
        """
        undecided, scene = [], self.scene
        most = None if scene.limit is None else scene.limit // scene.tile.element_bytes
        for candidate in candidates:
            if not self._may_be_better(candidate):
                continue
            if current().spent:
                undecided.append(candidate)
                continue
            self.tally.deciders.add("tree")
            self._trees += steps == _TREE_STEPS[0]
            scene.tell(self.best.excess, self.best.candidate.span, self._proved, candidate.family)
            phases = scene.phases(candidate)
            below = self.best.excess, self.best.candidate.span
            searched = least_of_masks(scene.question(candidate, phases, most, below), steps)
            if searched.best is not None:
                exact = replace(candidate, span=searched.best.used)
                self._consider(scene.swizzled(exact, phases, searched.best.masks))
            if not searched.complete:
                undecided.append(candidate)
        return undecided

    def _serves(self, solution: Solution) -> bool:
        return solution.excess <= self.scene.floor or not self.scene.conflict_free

    def _consider(self, solution: Solution) -> None:
        if self._serves(solution):
            self.best = min(self.best, solution, key=lambda solution: solution.rank)

    def _resume_floor_search(self) -> None:
        """Let the search for the floor go on if it ended because its share of the time was over."""
        reach = self.search.reach
        if reach is None or self.tally.exhausted or current().spent or self.best.excess == self.scene.floor:
            return
        if (found := reach.run()) is not None:
            self._consider(found)

    def _most_excess(self) -> int:
        """Upper bound of the weighted excess of every layout."""
        return sum(
            int(s.weight.sum()) * s.elements.shape[1] * max(1, s.width_bytes // s.rule.bank_bytes)
            for s in self.scene.sets
        )


def _by_cost_then_digits(candidate: Linearisation) -> tuple[object, ...]:
    """A total order, so that the search does not depend on the order of a set."""
    places = [(d.dim, d.divide, d.stride) for d in candidate.digits]
    return (*by_cost(candidate), candidate.turn, candidate.interval, places)


# CuTe's swizzles, counted ------------------------------------------------------------------------


def _best_swizzle(search: Search) -> Found | None:
    """The best of `cute_swizzles`; None where they or the conflicts of all of them are not allowed."""
    scene, size = search.scene, search.scene.tile.element_bytes
    if scene.field is None and not scene.counts_swizzles:
        return None
    counter = Counter(search.case, scene.counted)
    layout = best(cute_swizzles(scene.space, size), counter, scene.floor, scene.limit)
    if layout is None:
        return None
    table = layout.table()
    excess = int(counter.excess(table.reshape(1, -1))[0])
    if excess and scene.conflict_free:
        return None
    dims = [digit.dim for digit in layout.digits]
    names = ["order"] * (dims != sorted(dims)) + ["xor"] * bool(layout.swizzle)
    return Found(layout, "+".join(names) or "none", excess, int(table.max()) + size)


def swizzles_alone(search: Search, best: Proposal | None) -> Proposal | None:
    """The best of `cute_swizzles`, of which nothing is proved; None where there is a proposal."""
    if best is not None:
        return None
    nothing_proved = search.scene.none(STOPPED, search.scene.scope, False)
    found = _best_swizzle(search)
    return nothing_proved if found is None else replace(nothing_proved, found=found, left=STOPPED)


def _or_swizzle(search: Search, proposal: Proposal) -> Proposal:
    """The better of the proposal and `cute_swizzles`; bounds of the scope are then of both together."""
    scene, excess, size = search.scene, proposal.excess_bound, proposal.bytes_bound
    found = _best_swizzle(search)
    if current().spent:  # not all were counted
        excess, size = excess if excess.everywhere else Proved(scene.floor), Proved(scene.tile.bytes)
    elif found is not None and (found.weighted_excess, found.bytes) < (excess.lower_bound, size.lower_bound):
        excess = excess._replace(lower_bound=found.weighted_excess)
        size = Proved(found.bytes, scene.scope if found.bytes > scene.tile.bytes else EVERY_LAYOUT)
    proposal = replace(proposal, excess_bound=excess, bytes_bound=size)
    if found is None:
        return proposal
    if proposal.found is None:
        proposal = replace(proposal, left_open=False, left=STOPPED)
    return replace(proposal, found=min(proposal.found, found, key=partial(rank, search.case)))
