"""Where instructions come first: of the plainest formulas, that of the fewest instructions, then bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from layoutopt.accesses.lower import with_loops
from layoutopt.ground.budget import OutOfTime
from layoutopt.index.index_code import least_instructions
from layoutopt.model.linear_phases import Phases
from layoutopt.model.linearisations import Linearisation, least_operations
from layoutopt.model.swizzle_rules import SHIFT_OPERATIONS
from layoutopt.search.proposal import Proposal
from layoutopt.search.scene import EFFORT_A_CANDIDATE, GATHERING, Found, Scene


def with_cost_open(proposal: Proposal) -> Proposal:
    """A layout whose index another may undercut, where the index comes first."""
    reason = "that no index of these families is cheaper is not proved"
    return replace(proposal, left_open=True, reason=reason)


class LeastOperations:
    """Where instructions come first: of the plainest formulas, that of the fewest instructions."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.tally = scene, scene.tally
        self._instructions: dict[object, int] = {}

    def run(self) -> Proposal | None:
        """The cheapest index (with `conflict_free`, that serves every phase), then excess, then bytes.

        None where no layout was found that needs no swizzle, or one without conflicts.
        """
        scene, least = self.scene, least_operations(self.scene.space)
        best: Found | None = None
        for candidate in self._by_operations():
            most = least if best is None else best.operations
            if candidate.operations > most and (best is not None or not scene.conflict_free):
                continue
            if scene.budget.spent and best is not None:
                break
            if best is not None and self._rank(Found(candidate, {}, scene.floor)) >= self._rank(best):
                continue
            phases = scene.phases(candidate)
            found: Found | None = scene.plain(candidate, phases)
            if scene.conflict_free and found is not None and found.excess:
                found = self._swizzled_within(candidate, phases, best)
            if found is not None and scene.fits(found.candidate.span):
                best = found if best is None else min(best, found, key=self._rank)
        return None if best is None else self._cheapest(best)

    def _rank(self, found: Found) -> tuple[int, int, int]:
        """Instructions, those of the first found that is like it but for its strides; excess and elements."""
        candidate = found.candidate
        strides = [d.stride & (d.stride - 1) == 0 for d in candidate.digits]
        places = [(d.dim, d.divide, d.size) for d in candidate.digits]
        kind = str((places, strides, candidate.turn > 0, candidate.interval[0], found.masks))
        if kind not in self._instructions:
            self._instructions[kind] = self.scene.instructions(found)
        return self._instructions[kind], found.excess, candidate.span

    def _by_operations(self) -> Iterator[Linearisation]:
        """The candidates that a cheapest index may come from, by rising operations where that matters.

        Without `conflict_free` any candidate serves, so that only those as cheap as row-major, or cheaper,
        need be looked at; of them the smallest that reaches the floor ends the search.
        """
        if self.scene.conflict_free:
            part, gathered = self.scene.budget.part(*GATHERING), []
            for candidate in part.while_left(self.scene.candidates()):
                gathered.append(candidate)
                part.charge(EFFORT_A_CANDIDATE)
            self.tally.exhausted = self.tally.exhausted and not part.spent
            yield from sorted(gathered, key=lambda c: (c.operations, c.span))
            return
        try:
            yield from self.scene.candidates()
        except OutOfTime:
            self.tally.exhausted = False

    def _swizzled_within(self, candidate: Linearisation, phases: Phases, best: Found | None) -> Found | None:
        """A swizzle over `candidate` without conflicts that is as cheap as `best`, or cheaper."""
        scene = self.scene
        for reach in scene.reaches(candidate):
            if best is not None and candidate.operations + SHIFT_OPERATIONS > best.operations:
                return None
            roomy = replace(candidate, span=reach)
            searched = scene.within_ceilings(roomy, phases, phases.ideal, scene.budget)
            self.tally.deciders.add("tree")
            if searched.best is not None:
                return scene.swizzled(roomy, phases, searched.best.masks)
            self.tally.exhausted = self.tally.exhausted and searched.complete
        return None

    def _cheapest(self, found: Found) -> Proposal:
        """Proved only where no layout of any kind can be better in anything."""
        scene = self.scene
        size = int(scene.layout(found).table().max()) + scene.tile.element_bytes
        least = least_instructions(with_loops(scene.problem), scene.trace)
        proved = (scene.instructions(found), found.excess, size) <= (least, scene.floor, scene.tile.bytes)
        self.tally.undecided_span = scene.tile.elements
        proposal = scene.proposal(found, scene.floor)
        return proposal if proved else with_cost_open(proposal)
