"""XOR masks over one linearisation: the cheapest under which phases keep to ceilings.

Two words u, v of one phase meet in a bank exactly when `B(u ^ v) = 0`, where B is the bank part of the
swizzle and `^` is taken after linearisation. So a phase matters only through its words up to an XOR
translation, and the model only through the distinct differences (`layoutopt.model.masks`). A phase costs, for
each of its words w, 1 + the number of words w' that share its bank, exactly, because "same bank" is an
equivalence.

Symmetry is broken by the form itself: sources lie above the bank field and targets inside it, so the swizzle
is unit triangular and no two mask settings differ by row operations. Targets inside the widest vector are
allowed where the vectors' own rows are not flipped there. What it cannot express: a swizzle of elements whose
size is no power of two.
"""

from __future__ import annotations

from dataclasses import dataclass

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.cp_sat import Model, Outcome
from layoutopt.model.linear_phases import Phases
from layoutopt.model.masks import Swizzle
from layoutopt.model.swizzle_rules import Field, Masks, Rules

# Operations per distinct shift amount: `^ ((v >> s) & m)`.
SHIFT_OPERATIONS = 3
# Weight of a shift against single mask bits in the index cost.
_SHIFT_WEIGHT = 1000


@dataclass(frozen=True, slots=True)
class Solution:
    """The solver's word, and the swizzle, where there is one."""

    outcome: Outcome
    masks: Masks


class SwizzleModel:
    """One linearisation's masks as CP-SAT variables."""

    def __init__(self, phases: Phases, field: Field, given: Rules) -> None:
        """Masks that obey the rules; `hold` says what phases may cost.

        Args:
            phases: of the linearisation.
            field: where the swizzle may act.
            given: what it must obey besides.
        """
        self.model = Model()
        self.swizzle = Swizzle(self.model, field)
        self._phases, self._field, self._given = phases, field, given
        self._low = given.targets.start if len(given.targets) else field.targets.stop
        for target, offsets in given.still:
            for offset in offsets:
                parity = self.swizzle.parity(target, offset & field.sources(target))
                if parity is not None:
                    self.model.clause((-parity - 1,))
        if given.last is not None:
            sources, allowed = given.last
            for pattern in range(0, 1 << field.targets.stop, 1 << field.targets.start):
                differs = self.swizzle.differs(sources, pattern)
                if pattern not in allowed and differs is not None:
                    self.model.clause(differs)

    def hold(self, ceilings: IntArray) -> None:
        """Every phase costs at most its ceiling, in wavefronts."""
        apart: set[tuple[int, int, int]] = set()
        for k, ceiling in enumerate(ceilings.tolist()):
            words = self._phases.held(k)
            if ceiling == 1:  # in clauses, which every SAT solver reads
                bits = int(self._phases.bank_bits[k]), self._lowest(k)
                apart.update((u ^ v, *bits) for a, u in enumerate(words) for v in words[:a])
            elif len(words) > ceiling:
                for terms, constant in self._loads(k):
                    self.model.at_most(terms, ceiling - 1 - constant)
        for difference in sorted(apart):
            shared = self.swizzle.shared_bank(*difference)
            if shared is not None:
                self.model.clause(() if shared is True else (-shared - 1,))

    def cheapest(self, budget: Budget, effort: float | None, hint: Masks | None = None) -> Solution:
        """The swizzle of the fewest shifts, then mask bits.

        Args:
            budget: time left.
            effort: deterministic time; None for no limit.
            hint: a swizzle that does, if one is known.
        """
        self._keep_low()
        if hint is not None:
            self.swizzle.hint(self.model, hint)
        self.model.minimise(self.swizzle.index_cost(self.model, _SHIFT_WEIGHT, 1))
        # Always one worker: which of several cheapest swizzles comes out must not depend on luck.
        answer = self.model.solve(budget, 1, effort)
        return Solution(answer.outcome, self.swizzle.masks(answer.values, 64) if answer.values else {})

    def text(self) -> str:
        """The question as `CpModelProto` text, without the index cost."""
        self._keep_low()
        return self.model.to_text()

    def _lowest(self, k: int) -> int:
        """The lowest bit that tells words of a phase apart and may be flipped."""
        return max(self._low, int(self._phases.chunk_bits[k]))

    def _loads(self, k: int) -> list[tuple[list[tuple[int, int]], int]]:
        phases = self._phases
        return list(self.swizzle.loads(phases.held(k), int(phases.bank_bits[k]), self._lowest(k)))

    def _keep_low(self) -> None:
        """Targets that may not be flipped have no mask bits."""
        for target, bit in self.swizzle.mask_bits():
            if target not in self._given.targets:
                self.model.clause((-bit - 1,))
