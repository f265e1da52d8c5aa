"""The cheapest index, then the least excess, then the fewest bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from layoutopt.accesses.lower import with_loops
from layoutopt.ground.budget import OutOfTime
from layoutopt.index.index_code import least_instructions
from layoutopt.model.linear_phases import Phases, phases_of
from layoutopt.model.linearisations import Linearisation, least_operations
from layoutopt.model.swizzle import SHIFT_OPERATIONS
from layoutopt.search.found import Found
from layoutopt.search.proposal import Proposal
from layoutopt.search.scene import EFFORT_A_CANDIDATE, GATHERING, Scene


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
        best: tuple[tuple[int, int, int], Found] | None = None
        least = least_operations(self.scene.space)
        for candidate in self._by_operations():
            most = least if best is None else best[1].operations
            if candidate.operations > most and (best is not None or not self.scene.conflict_free):
                continue
            if self.scene.budget.spent and best is not None:
                break
            plain = Found(candidate, {}, self.scene.floor, candidate.operations)
            if best is not None and (self._cost(plain), plain.excess, candidate.span) >= best[0]:
                continue
            phases = phases_of(candidate, self.scene.sets, self.scene.tile)
            found: Found | None = replace(plain, excess=phases.excess({}))
            if self.scene.conflict_free and found is not None and found.excess:
                found = self._swizzled_within(candidate, phases, best[1] if best is not None else None)
            if found is not None and self.scene.fits(found.candidate.span):
                rank = self._cost(found), found.excess, found.candidate.span
                best = (rank, found) if best is None or rank < best[0] else best
        return None if best is None else self._cheapest(best[1])

    def _cost(self, found: Found) -> int:
        """Instructions of what was found; without a swizzle, of the first like it but for its strides."""
        candidate = found.candidate
        strides = [d.stride & (d.stride - 1) == 0 for d in candidate.digits]
        places = [(d.dim, d.divide, d.size) for d in candidate.digits]
        kind = str((places, strides, candidate.turn > 0, candidate.interval[0], found.masks))
        if kind not in self._instructions:
            self._instructions[kind] = self.scene.instructions(found)
        return self._instructions[kind]

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
        for reach in self.scene.reaches(candidate):
            if best is not None and candidate.operations + SHIFT_OPERATIONS > best.operations:
                return None
            found, decided = self.scene.swizzle(replace(candidate, span=reach), phases, phases.ideal, None)
            if not decided:
                self.tally.exhausted = False
            if found is not None:
                return found
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
