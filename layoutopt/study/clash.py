"""Which accesses cannot all be served without conflicts, asked of proofs and of the solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from layoutopt.accesses.trace import trace
from layoutopt.engine.case import Case
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.problems.types import Access, Constraints, Problem
from layoutopt.proof.board import subject_of
from layoutopt.proof.reasons import BY_HAND, Search, every_layout
from layoutopt.search.solve import solve

# Accesses beyond which no smallest clash is looked for: each is one question to the solver.
MAX_CLASH: Final = 16
# Share of the time left that each question may use.
QUESTION_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Clashes:
    """Questions about subsets of the accesses of `case.lowered`, each asked once.

    Attributes:
        case: whose accesses.
        budget: the time there is for all of them.
    """

    case: Case
    budget: Budget
    _answers: dict[bytes, bool | None] = field(default_factory=dict)

    def smallest(self, accesses: Sequence[Access]) -> tuple[list[Access], bool]:
        """Of accesses that cannot all be served, some that cannot; and whether each is needed for that.

        What stays open while other accesses are still there may be decided once they are gone.
        """
        kept = list(accesses)
        if len(kept) > MAX_CLASH:
            return kept, False
        for access in kept:
            if self.possible([access]) is False:
                return [access], True
        open_, before = list(kept), len(kept) + 1
        while open_ and len(kept) < before:
            before, asked, open_ = len(kept), open_, []
            for access in asked:
                rest = [a for a in kept if a is not access]
                verdict = self.possible(rest)
                if verdict is False:
                    kept = rest
                elif verdict is None:
                    open_.append(access)
        return kept, not open_

    def others(self, clash: Sequence[Access]) -> list[tuple[str, ...]]:
        """What still clashes with one access of `clash` left out."""
        found = []
        for access in clash:
            rest = [a for a in self.case.lowered.accesses if a is not access]
            if self.possible(rest) is False:
                found.append(names(self.smallest(rest)[0]))
        return list(dict.fromkeys(found))

    def possible(self, accesses: Sequence[Access]) -> bool | None:
        """Whether a layout without conflicts exists for these accesses alone; None where that is open."""
        key = msgspec.json.encode(accesses)
        if key not in self._answers:
            try:
                self.budget.check()
                self._answers[key] = self._asked(accesses)
            except OutOfTime:
                return None
        return self._answers[key]

    def allowed(self, accesses: Sequence[Access]) -> bool:
        """Whether such a layout, which may exist, is known among those that the constraints allow."""
        layout = self.case.lowered.layout
        if layout == Constraints(minimise=layout.minimise):
            return True
        smaller = self._alone(accesses, msgspec.structs.replace(layout, minimise="excess"))
        part = self.budget.part(QUESTION_SHARE)
        try:
            lanes = trace(smaller, self.case.device, part).accesses if accesses else ()
            if not any(access.active.any() for access in lanes):
                return True
            return solve(smaller, target=self.case.device, budget=part, conflict_free=True).layout is not None
        except (OutOfTime, ProblemFileError):  # or the constraints contradict what an access becomes
            return False

    def _asked(self, accesses: Sequence[Access]) -> bool | None:
        if not accesses:
            return True
        smaller = self._alone(accesses, self.case.lowered.layout)
        lanes = trace(smaller, self.case.device, self.budget)
        if not any(a.active.any() for a in lanes.accesses):
            return True
        subject = subject_of(smaller.tile, self.case.device, lanes)
        for reason in BY_HAND:
            if reason.find(subject, Search(self.budget)) is not None:
                return False
            self.budget.check()
        free = msgspec.structs.replace(smaller.layout, families=None, max_bytes=None)
        smaller = self._alone(accesses, free)
        part = self.budget.part(QUESTION_SHARE)
        result = solve(smaller, target=self.case.device, budget=part, conflict_free=True)
        if result.layout is not None:
            return True
        if result.proof.excess.lower_bound:
            return False
        general = every_layout(smaller.tile, self.case.device, lanes, enough=1, budget=part)
        if general.bound:
            return False
        return True if general.free is not None and general.free.excess == 0 else None

    def _alone(self, accesses: Sequence[Access], layout: Constraints) -> Problem:
        """The problem of these accesses; what one weighs does not change whether it can be served."""
        equal = tuple(msgspec.structs.replace(access, weight=1) for access in accesses)
        return msgspec.structs.replace(self.case.lowered, accesses=equal, layout=layout)


def names(accesses: Sequence[Access]) -> tuple[str, ...]:
    """The names of accesses."""
    return tuple(a.name for a in accesses)
