"""The search over linearisations and swizzles, by rising bytes: what each of its stages proposes.

`_smallest` (`layoutopt.search.reach_floor`) looks for the smallest layout under which every phase costs no
more than its counting bound. Where no candidate reaches the bounds, `_least_excess` minimises the weighted
excess over all of them: a search tree (`layoutopt.search.mask_tree`) is asked of every linearisation for less
than the best so far, the most promising and the smallest in turn; the bound is what makes the questions easy.
Where instructions come first, and excess may be left, the plainest formulas do.
"""

import itertools
import math
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
# Linearisations, of those a swizzle may lie over, after which a table is asked for: it may end the search.
_AT_FIRST: Final = 24
_ANY_EXCESS: Final = 1 << 40  # more than any layout has


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

    None where instructions do not come first, or no layout was found that needs no swizzle. Proved only where
    no layout of any kind can have fewer instructions, excess or bytes.
    """
    scene = search.scene
    if not scene.wants_plainest:
        return None
    best: Solution | None = None
    best_rank = math.inf, math.inf, math.inf  # index instructions, weighted excess, span
    most_operations = least_operations(scene.space)
    try:
        for candidate in itertools.chain.from_iterable(scene.candidates()):
            if best is not None and current().spent:
                break
            if candidate.operations > most_operations or not scene.fits(candidate.span):
                continue
            instructions = scene.instructions(Solution(candidate, masks={}, excess=0))
            # Excess takes long to count, and is looked at only where the least would make this the best.
            if (instructions, scene.floor, candidate.span) < best_rank:
                solution = scene.plain(candidate)
                rank_of_plain = instructions, solution.excess, candidate.span
                if rank_of_plain < best_rank:
                    best, best_rank, most_operations = solution, rank_of_plain, candidate.operations
    except OutOfTime:
        scene.tally.exhausted = False
    if best is None:
        return None
    size = int(scene.layout(best).table().max()) + scene.tile.element_bytes
    fewest = least_instructions(with_loops(scene.problem), scene.trace)
    proved = (best_rank[0], best.excess, size) <= (fewest, scene.floor, scene.tile.bytes)
    scene.tally.undecided_span = scene.tile.elements  # of fewer bytes, nothing is proved
    return replace(scene.proposal(best, scene.floor), left_open=not proved)


def _smallest(search: Search) -> Proposal | None:
    """The smallest layout whose excess is the floor; None where the next stage is to look for more excess.

    A proposal without a layout if the time is over before one is found, or if none keeps to the constraints.
    `search.reach` stays for the next stage.
    """
    scene = search.scene
    tally = scene.tally
    try:
        search.reach = ReachFloor(scene, presolved=scene.ask.method == "auto")
    except OutOfTime:
        fall_back(scene)  # puts a few layouts without a swizzle into the tally
        tally.undecided_span = scene.tile.elements
        return scene.unswizzled("out of time")
    found = search.reach.run()
    if search.reach.table is not None:  # found on the way, and no formula is as small
        return search.reach.table
    if not tally.counted:  # nor anything else
        out_of_time = current().spent or not tally.exhausted
        reason = "out of time" if out_of_time else NONE_KEEPS_TO_THEM
        return scene.none(reason, scene.scope, not out_of_time)
    if found is not None and found.excess == scene.floor:
        if not tally.exhausted:
            tally.undecided_span = scene.tile.elements  # a smaller one is not refuted
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
        best: the solution of least excess so far, then of fewest elements, that meets the constraints.
    """

    def __init__(self, search: Search) -> None:
        self.search, self.scene = search, search.scene
        self.tally = self.scene.tally
        self._searched: set[Linearisation] = set()  # those over which a tree was begun
        self.best: Solution | None = None
        for solution in self.tally.counted:
            if self.scene.fits(solution.candidate.span):
                self._consider(solution)

    def run(self) -> Proposal:
        """The best layout found, and what is proved of it, or why there is none."""
        tally, scene = self.tally, self.scene
        undecided = self._to_swizzle()
        # A few at first: what they give may be enough for a table that no layout is better than.
        first, later = undecided[:_AT_FIRST], undecided[_AT_FIRST:]
        first = self._by_tree(first, _TREE_STEPS[0])
        if self.best is not None and scene.counted is scene.trace:  # not of a sample
            # Of the best so far, which may be too large, nothing is proved.
            so_far = scene.proposal(self.best, scene.floor)
            if (table := instead(scene.case, so_far, scene.ask)) is not None:
                return table
        undecided = first + later
        for steps in _TREE_STEPS:
            undecided = self._by_tree(undecided, steps)
        undecided = [candidate for candidate in undecided if self._may_be_better(candidate)]
        if tally.growth is not None:
            tally.growth = replace(tally.growth, trees=len(self._searched))
        everything_tried = tally.exhausted and not undecided
        # A smaller layout could only lie over one of those undecided: the least size of each, in elements.
        sizes = [scene.reaches(candidate)[0] for candidate in undecided]
        tally.undecided_span = min(sizes, default=None) if tally.exhausted else scene.tile.elements
        best = self.best
        if best is None:
            reason = ALL_HAVE_CONFLICTS if scene.conflict_free else NONE_KEEPS_TO_THEM
            return scene.none(reason if everything_tried else "out of time", scene.scope, everything_tried)
        if self.search.reach is not None:
            best = self.search.reach.cheaper.alike(best, known=(), excess=best.excess)
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
        excess = {s.candidate: s.excess for s in self.tally.counted if self.scene.reaches(s.candidate)}
        by_size = sorted(excess, key=by_cost)
        by_excess = sorted(by_size, key=excess.__getitem__)
        return list(dict.fromkeys(c for pair in zip(by_excess, by_size, strict=True) for c in pair))

    @property
    def _proved(self) -> int:
        """Lower bound of the excess of every layout in scope, so far."""
        return max(self.scene.floor, self.tally.refuted)

    @property
    def _to_beat(self) -> tuple[int, int]:
        """Excess and elements that a layout must be below to be better than the best, or the first."""
        if self.best is None:
            return self.scene.floor + 1 if self.scene.conflict_free else _ANY_EXCESS, 0
        return self.best.excess, self.best.candidate.span

    def _may_be_better(self, candidate: Linearisation) -> bool:
        return (self._proved, self.scene.reaches(candidate)[0]) < self._to_beat

    def _by_tree(self, candidates: Sequence[Linearisation], steps: int) -> list[Linearisation]:
        """Search a tree of masks over each candidate for a better layout; the candidates left undecided.

        `steps`: classes of words that each tree may count.
        """
        undecided, scene = [], self.scene
        for candidate in candidates:
            if not self._may_be_better(candidate):
                continue
            if current().spent:
                undecided.append(candidate)
                continue
            self.tally.deciders.add("tree")
            self._searched.add(candidate)
            if self.best is not None:
                scene.tell(*self._to_beat, self._proved, candidate.family)
            phases = scene.phases(candidate)
            question = scene.question(candidate, phases, scene.limit_elements, below=self._to_beat)
            searched = least_of_masks(question, steps)
            if searched.best is not None:
                exact = replace(candidate, span=searched.best.used)
                self._consider(scene.swizzled(exact, phases, searched.best.masks))
            if not searched.complete:
                undecided.append(candidate)
        return undecided

    def _consider(self, solution: Solution) -> None:
        """Let a solution be the best if it is, and has no conflicts where these are ruled out."""
        if solution.excess <= self.scene.floor or not self.scene.conflict_free:
            self.best = min(self.best or solution, solution, key=lambda solution: solution.rank)


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
