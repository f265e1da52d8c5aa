"""The smallest layout under which every phase costs no more than its counting bound."""

from __future__ import annotations

from dataclasses import replace

from layoutopt.model.layout_model import Choice
from layoutopt.model.linear_phases import Phases, phases_of
from layoutopt.model.linearisations import IntArray, Linearisation, by_cost, unpadded
from layoutopt.model.pitches import BEYOND, MOST_ELEMENTS, most_elements
from layoutopt.model.swizzle import SHIFT_OPERATIONS
from layoutopt.model.swizzle_rules import distances
from layoutopt.search.found import Found, better
from layoutopt.search.joint import Growth, needs_no_list, smallest
from layoutopt.search.scene import GATHER_SHARE, Scene

# Share of the time that one model of everything gets where excess is allowed.
_MODEL_SHARE = 0.5
# What it gets in stage 1 before the next candidate is looked at.
STAGE_1_EFFORT = 0.2


class ReachFloor:
    """Stage 1: it is optimal among all layouts where it needs only the tile's own bytes."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.tally = scene, scene.tally

    def by_candidates(self) -> Found | None:
        """The smallest, then the cheapest, of all candidates; None where none reaches the floor."""
        deferred: list[Linearisation] = []
        for candidate in self.scene.stream:
            # Where nothing reaches the floor, the other half is for the swizzles that come nearest, or
            # two fifths for pads that are not the smallest.
            needed = 0.4 if self.scene.field is None else 0.5
            if self.tally.level is not None or self.scene.conflict_free:
                needed = 0.0
            if self.scene.budget.share_left <= needed and self.tally.unswizzled:
                self.scene.fall_back()
                return self.tally.level
            if (
                self.tally.level is not None
                and candidate.span >= self.tally.level.candidate.span + self.scene.block
            ):
                break
            if self._is_no_better(candidate, self.tally.level):
                continue
            found, decided = self.attempt(candidate, self.tally.level, STAGE_1_EFFORT)
            if not decided:
                deferred.append(candidate)
            self.tally.level = better(self.tally.level, found)
        if self.tally.level is None and not self.scene.conflict_free:
            return None  # stage 2 decides the deferred ones, too
        for candidate in sorted(deferred, key=by_cost):
            mine = self.tally.level is not None and candidate.digits == self.tally.level.candidate.digits
            if not mine and self._is_no_better(candidate, self.tally.level):
                continue
            found, decided = self.attempt(candidate, self.tally.level, None)
            if not decided:
                self._leave_open(candidate)
            self.tally.level = better(self.tally.level, found)
        return self.tally.level

    def by_model(self) -> Found | None:
        """Pads, order and masks decided by one model, until the conflict engine confirms what it proposes."""
        every_pitch = most_elements(self.scene.space)
        if self.scene.limit is not None:
            every_pitch = min(every_pitch, self.scene.limit // self.scene.tile.element_bytes)
        growth = Growth(
            self.scene.space,
            self.scene.field,
            self.scene.sets,
            self.scene.tile,
            min(every_pitch, MOST_ELEMENTS),
            ideal=self.scene.conflict_free,
            holds=self._holds,
            budget=self.scene.budget,
            patience=self.scene.budget if self.scene.conflict_free else self.scene.budget.part(_MODEL_SHARE),
            progress=self.scene.progress,
        )
        every = unpadded(self.scene.space, 0) if needs_no_list(self.scene.space) else self.scene.candidates()
        reached = smallest(growth, every)
        self.tally.growth = reached.growth
        self.tally.deciders.add("cp-sat")
        self.tally.exhausted = self.tally.exhausted and reached.proved
        if reached.choice is not None:
            self.tally.level = self._chosen(reached.choice)
            self.tally.unswizzled.append(self.tally.level)
        else:
            self.tally.exhausted = self.tally.exhausted and every_pitch <= MOST_ELEMENTS
            self.tally.refuted = self.scene.floor + 1 if self.tally.exhausted else 0
            self._count_plain()
        return self.tally.level

    def _holds(self, choice: Choice) -> bool:
        """Whether the conflict engine confirms a proposal."""
        layout = self.scene.layout(self._chosen(choice))
        return self.scene.engine.excess(layout) == self.scene.floor

    def _chosen(self, choice: Choice) -> Found:
        masks, candidate = choice.masks, choice.candidate
        operations = candidate.operations + SHIFT_OPERATIONS * distances(masks)
        # Of other families what is as small and cheaper is not sought.
        cheapest = choice.cheapest and not self.scene.space.families & BEYOND
        return Found(candidate, masks, self.scene.floor, operations, cheapest)

    def _count_plain(self) -> None:
        """All candidates without their swizzles, as far as time allows, where none reaches the floor."""
        part = self.scene.budget.part(GATHER_SHARE)
        for candidate in self.scene.stream:
            excess = phases_of(candidate, self.scene.sets, self.scene.tile).excess({})
            self.tally.unswizzled.append(Found(candidate, {}, excess, candidate.operations))
            if self.scene.conflict_free:
                return
            if part.spent:
                self.scene.fall_back()
                return

    def _is_no_better(self, candidate: Linearisation, level: Found | None) -> bool:
        """Whether nothing over `candidate` can be smaller than `level`, or as small and cheaper."""
        if level is None or candidate.span < level.candidate.span:
            return False
        if candidate.span == level.candidate.span and candidate.operations < level.operations:
            return False
        if candidate.span == self.scene.tile.elements:
            return True
        size = level.candidate.span
        least = candidate.operations + SHIFT_OPERATIONS
        return not any(
            r < size or (r == size and least < level.operations) for r in self.scene.reaches(candidate)
        )

    def attempt(
        self, candidate: Linearisation, level: Found | None, effort: float | None
    ) -> tuple[Found | None, bool]:
        """A layout over `candidate` that reaches the floor, if there is one; and whether that is sure."""
        phases = phases_of(candidate, self.scene.sets, self.scene.tile)
        costs = phases.costs({})
        plain = Found(candidate, {}, phases.excess_at(costs), candidate.operations)
        self.tally.unswizzled.append(plain)
        ceilings = phases.ideal if self.scene.conflict_free else phases.target
        serves = bool((costs <= ceilings).all()) and self.scene.fits(candidate.span)
        level = better(level, plain if serves else None)
        reaches = self.scene.reaches(candidate)
        if level is not None:
            least = candidate.operations + SHIFT_OPERATIONS
            size = level.candidate.span
            reaches = [r for r in reaches if r < size or (r == size and least < level.operations)]
        shorter, decided = self._try_reaches(candidate, phases, ceilings, reaches, effort)
        return better(plain if serves else None, shorter), decided

    def _try_reaches(
        self,
        candidate: Linearisation,
        phases: Phases,
        ceilings: IntArray,
        reaches: list[int],
        effort: float | None,
    ) -> tuple[Found | None, bool]:
        """The shortest swizzled layout over `candidate` within the ceilings; and whether that is sure."""
        if not reaches:
            return None, True
        self.scene.progress(f"{candidate.family}, {candidate.span * self.scene.tile.element_bytes} bytes")
        # The roomiest first: where that fails, the tighter ones need not be tried.
        for reach in (reaches[-1], *reaches[:-1]):
            roomy = replace(candidate, span=reach)
            found, decided = self.scene.swizzle(roomy, phases, ceilings, effort)
            if not decided:
                return found, False
            if reach == reaches[-1]:
                if found is None or len(reaches) == 1:
                    return found, True
                widest = found
            elif found is not None:
                return found, True
        return widest, True

    def _leave_open(self, candidate: Linearisation) -> None:
        spans = [*self.scene.reaches(candidate)[:1], candidate.span, self.tally.undecided_span]
        self.tally.undecided_span = min(s for s in spans if s is not None)
