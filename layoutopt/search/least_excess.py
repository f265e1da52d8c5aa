"""The least weighted excess over all candidates, where none reaches the bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from layoutopt.model.cp_sat import Outcome
from layoutopt.model.linear_phases import Phases, phases_of
from layoutopt.model.linearisations import Linearisation, by_cost
from layoutopt.model.swizzle import SwizzleModel
from layoutopt.model.swizzle_rules import Masks, rules, textbook
from layoutopt.search.found import Found, by_cost_then_digits
from layoutopt.search.proposal import Proposal
from layoutopt.search.reach_floor import STAGE_1_EFFORT, ReachFloor
from layoutopt.search.scene import Scene

# Rounds of stage 2: how many candidates, most promising first, and the deterministic time that each gets.
_ROUNDS = ((24, 0.05), (24, 0.5), (None, 0.05), (24, 5.0), (None, 0.5), (None, 5.0), (None, None))
# Before this round a table is tried: it may be the answer, and be proved to be.
_TABLE_ROUND = 1
# Smallest and least conflicting linearisations over which the usual swizzles are evaluated.
_TEXTBOOK_CANDIDATES = 48


class LeastExcess:
    """Stage 2: one swizzle model for each candidate, under the best so far."""

    def __init__(self, scene: Scene, stage1: ReachFloor) -> None:
        self.scene, self.tally = scene, scene.tally
        self.stage1 = stage1

    def run(self) -> Proposal:
        """The best layout found, and what is proved of it."""
        fitting = [f for f in self.tally.unswizzled if self.scene.fits(f.candidate.span)]
        # Where only swizzles fit: worse than every one of them, and no answer.
        nothing = replace(self.tally.unswizzled[0], excess=1 + self._most_excess())
        best = min(fitting, key=lambda f: f.rank, default=nothing)
        hints: dict[Linearisation, Masks] = {}
        nearest = dict.fromkeys(
            found.candidate
            for key in (lambda f: by_cost(f.candidate), lambda f: f.rank)
            for found in sorted(self.tally.unswizzled, key=key)[:_TEXTBOOK_CANDIDATES]
        )
        promise = {f.candidate: f.excess for f in self.tally.unswizzled}
        for candidate in nearest:
            for found in self._textbook(candidate):
                if found.excess < promise[candidate]:
                    promise[candidate], hints[candidate] = found.excess, found.masks
                best = min(best, found, key=lambda f: f.rank)
        by_size = sorted(promise, key=by_cost_then_digits)
        by_promise = sorted(by_size, key=promise.__getitem__)
        # The smallest candidates in turn with the most promising.
        order = dict.fromkeys(c for pair in zip(by_promise, by_size, strict=True) for c in pair)
        known = max(self.scene.floor, self.tally.refuted)
        pending = [
            (replace(candidate, span=reach), hints.get(candidate), known)
            for candidate in order
            for reach in self.scene.reaches(candidate)
        ]
        # Every candidate gets a little effort before any gets much: good layouts come early.
        for number, (count, effort) in enumerate(_ROUNDS):
            if number == _TABLE_ROUND and (answer := self.scene.by_table(best)) is not None:
                return answer
            left = []
            for candidate, hint, bound in pending[:count]:
                best, bound = self._improve(candidate, hint, best, bound, effort)
                if bound < best.excess or (bound == best.excess and candidate.span < best.candidate.span):
                    left.append((candidate, hint, bound))
            pending = left + pending[len(pending) if count is None else count :]
        best = self._go_on(best)
        bound = min((bound for *_, bound in pending), default=best.excess)
        self.tally.undecided_span = min((candidate.span for candidate, *_ in pending), default=None)
        if not self.tally.exhausted:
            bound = max(self.scene.floor, self.tally.refuted)
            self.tally.undecided_span = self.scene.tile.elements
        if best is nothing:
            complete = self.tally.exhausted and not pending
            reason = "no layout of these families keeps to the constraints" if complete else "out of time"
            return self.scene.none(reason, self.scene.scope, complete)
        return self.scene.proposal(
            best, max(self.scene.floor, min(bound, best.excess)), operations_proved=False
        )

    def _go_on(self, best: Found) -> Found:
        """The best, after the candidates that stage 1 left when it had had its share of the time."""
        for candidate in self.scene.budget.while_left(self.scene.stream if not self.tally.exhausted else ()):
            if best.excess == self.scene.floor:
                break
            found, _ = self.stage1.attempt(candidate, None, STAGE_1_EFFORT)
            plain = self.tally.unswizzled[-1]
            fitting = [f for f in (best, found, plain) if f is not None and self.scene.fits(f.candidate.span)]
            best = min(fitting, key=lambda f: f.rank, default=best)
        return best

    def _most_excess(self) -> int:
        """Weighted excess that no layout exceeds: every lane waits for every other."""
        return sum(
            int(s.weight.sum()) * s.elements.shape[1] * max(1, s.width_bytes // s.rule.bank_bytes)
            for s in self.scene.sets
        )

    def _textbook(self, candidate: Linearisation) -> Iterator[Found]:
        """The usual swizzles over `candidate`: a good start, for it costs little to evaluate them."""
        phases: Phases | None = None
        for reach in self.scene.reaches(candidate):
            assert self.scene.field is not None
            exact = replace(candidate, span=reach)
            given = rules(exact, self.scene.field, self.scene.tile)
            phases = phases or phases_of(candidate, self.scene.sets, self.scene.tile)
            highest = (reach * self.scene.tile.element_bytes - 1) // self.scene.field.word_bytes
            for masks in textbook(self.scene.field, given, highest):
                if self.scene.budget.spent:
                    return
                yield self.scene.swizzled(exact, phases, masks)

    def _improve(
        self, candidate: Linearisation, hint: Masks | None, best: Found, bound: int, effort: float | None
    ) -> tuple[Found, int]:
        """Try to beat `best` with a swizzle over `candidate`; the new best, and its proved bound."""
        most = best.excess if candidate.span < best.candidate.span else best.excess - 1
        if most < bound:
            return best, most + 1
        if self.scene.budget.spent:
            return best, bound
        phases = phases_of(candidate, self.scene.sets, self.scene.tile)
        self.scene.progress(f"{candidate.family}, excess at most {most}")
        # Several workers only where nothing but the proved minimum counts: the rest depends on luck.
        workers = self.scene.workers if effort is None else 1
        self.tally.deciders.add("cp-sat")
        solution = self._model(candidate, phases).solve_excess(most, self.scene.budget, workers, effort, hint)
        if solution.outcome is Outcome.INFEASIBLE:
            return best, most + 1
        bound = max(bound, solution.bound)
        if solution.outcome is Outcome.UNKNOWN:
            return best, bound
        if solution.outcome is Outcome.OPTIMAL:
            bound = solution.value
            cheap = self._model(candidate, phases).solve_index_cost(solution.value, self.scene.budget)
            solution = cheap if cheap.masks else solution
        found = self.scene.swizzled(candidate, phases, solution.masks)
        return min(best, found, key=lambda f: f.rank), bound

    def _model(self, candidate: Linearisation, phases: Phases) -> SwizzleModel:
        assert self.scene.field is not None
        return SwizzleModel(phases, self.scene.field, rules(candidate, self.scene.field, self.scene.tile))
