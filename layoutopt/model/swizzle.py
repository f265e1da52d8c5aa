"""XOR masks as parity constraints over differences.

Two words u, v of one phase meet in a bank exactly when `B(u ^ v) = 0`, where B is the bank part of
the swizzle and `^` is taken after linearisation. So a phase matters only through its words up to an
XOR translation, and the model only through the distinct differences d:

    quantity                        encoding
    mask bit (target j, source s)   a boolean
    parity(mask_j & d)              one XOR per step of a trie over d (clear the lowest set bit)
    same bank, forbidden            a clause: some target bit of B(d) is 1
    same bank, counted              a literal e_d, the conjunction of the opposite
    cost of a phase                 for each of its words w: 1 + sum of e_(w ^ w'), exact because
                                    "same bank" is an equivalence

Symmetry is broken by the form itself: sources lie above the bank field and targets inside it, so X
is unit triangular and no two mask settings differ by row operations.

Targets inside the widest vector are allowed where the vectors' own rows are not flipped there.
What it cannot express: a swizzle of elements whose size is no power of two.
"""

from __future__ import annotations

from dataclasses import dataclass

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.cp_sat import Answer, Model, Outcome
from layoutopt.model.linear_phases import Phases
from layoutopt.model.swizzle_rules import Field, Masks, Rules

# Operations per distinct shift amount: `^ ((v >> s) & m)`.
SHIFT_OPERATIONS = 3
# Weight of a shift against single mask bits in the index cost.
_SHIFT_WEIGHT = 1000


@dataclass(frozen=True, slots=True)
class Solution:
    """What one model gave.

    Attributes:
        outcome: the solver's word.
        masks: the swizzle, where there is one.
        value: the objective: index cost (shifts, bits).
        bound: proved lower bound of the objective.
    """

    outcome: Outcome
    masks: Masks
    value: int
    bound: int


@dataclass(frozen=True, slots=True)
class _Phase:
    words: tuple[int, ...]
    chunk_bits: int
    bank_bits: int
    weight: int
    ideal: int


class SwizzleModel:
    """One linearisation's masks as CP-SAT variables."""

    def __init__(self, phases: Phases, field: Field, given: Rules) -> None:
        self._model = Model()
        self._field = field
        self._targets = given.targets
        self._phases = [
            _Phase(phases.held(k), *numbers)
            for k, numbers in enumerate(
                zip(
                    phases.chunk_bits.tolist(),
                    phases.bank_bits.tolist(),
                    phases.weight.tolist(),
                    phases.ideal.tolist(),
                    strict=True,
                )
            )
        ]
        self._bits: dict[tuple[int, int], int] = {}
        self._parity: dict[tuple[int, int], int] = {}
        self._same: dict[tuple[int, int, int], int | None] = {}
        self._obey(given)

    def solve_targets(
        self, ceilings: IntArray, budget: Budget, effort: float | None, hint: Masks | None
    ) -> Solution:
        """The cheapest swizzle under which every phase costs at most its ceiling.

        Args:
            ceilings: wavefronts, by phase.
            budget: time left.
            effort: deterministic time; None for no limit.
            hint: a swizzle that does, if one is known.
        """
        self._hold(ceilings)
        self._hint(hint)
        return self._minimise_index_cost(budget, effort)

    def targets_text(self, ceilings: IntArray) -> str:
        """The question of `solve_targets` as `CpModelProto` text, without the index cost."""
        self._hold(ceilings)
        return self._model.to_text()

    def _hold(self, ceilings: IntArray) -> None:
        """Every phase costs at most its ceiling."""
        rows: set[tuple[int, int, int]] = set()
        for phase, ceiling in zip(self._phases, ceilings.tolist(), strict=True):
            if len(phase.words) <= ceiling:
                continue
            if ceiling == 1:
                for a, u in enumerate(phase.words):
                    rows.update((u ^ v, phase.bank_bits, phase.chunk_bits) for v in phase.words[:a])
            else:
                for terms, constant in self._loads(phase):
                    self._model.at_most(terms, ceiling - 1 - constant)
        for row in sorted(rows):
            self._forbid(*row)

    def solve_index_cost(
        self, most: int, budget: Budget, effort: float | None, hint: Masks | None = None
    ) -> Solution:
        """The cheapest swizzle whose weighted excess is at most `most`; `hint` is tried first."""
        terms = []
        offset = 0
        for phase in self._phases:
            offset += phase.weight * phase.ideal
            wavefronts = self._model.integer(1, len(phase.words))
            terms.append((wavefronts, phase.weight))
            for load, constant in self._loads(phase):
                self._model.at_most([*load, (wavefronts, -1)], -1 - constant)
        self._model.at_most(terms, most + offset)
        self._hint(hint)
        return self._minimise_index_cost(budget, effort)

    def _hint(self, masks: Masks | None) -> None:
        if masks is not None:
            for (target, source), bit in self._bits.items():
                self._model.hint(bit, masks.get(target, 0) >> source & 1)

    def _minimise_index_cost(self, budget: Budget, effort: float | None) -> Solution:
        # Always one worker: which of several cheapest swizzles comes out must not depend on luck.
        shifts: dict[int, list[int]] = {}
        for (target, source), bit in self._bits.items():
            shifts.setdefault(source - target, []).append(bit)
        terms = [(bit, 1) for bits in shifts.values() for bit in bits]
        for _, bits in sorted(shifts.items()):
            used = self._model.boolean()
            terms.append((used, _SHIFT_WEIGHT))
            for bit in bits:
                self._model.clause((-bit - 1, used))
        self._model.minimise(terms)
        answer = self._model.solve(budget, 1, effort)
        return self._solution(answer, answer.objective, answer.bound)

    def _solution(self, answer: Answer, value: int, bound: int) -> Solution:
        masks: Masks = {}
        if answer.values:
            for (target, source), bit in sorted(self._bits.items()):
                if answer.values[bit]:
                    masks[target] = masks.get(target, 0) | 1 << source
        return Solution(answer.outcome, masks, value, bound)

    def _obey(self, given: Rules) -> None:
        for target, offsets in given.still:
            for offset in offsets:
                parity = self._parity_of(target, offset & self._field.sources(target))
                if parity is not None:
                    self._model.clause((-parity - 1,))
        if given.last is None:
            return
        sources, allowed = given.last
        for pattern in range(0, 1 << self._field.targets.stop, 1 << self._field.targets.start):
            if pattern in allowed:
                continue
            clause: list[int] = []
            for bit in self._field.targets:
                wanted = pattern >> bit & 1
                parity = self._parity_of(bit, sources & self._field.sources(bit))
                if bit not in self._targets or parity is None:
                    if wanted:  # never flipped, so this pattern does not happen
                        break
                else:
                    clause.append(-parity - 1 if wanted else parity)
            else:
                self._model.clause(clause)

    def _loads(self, phase: _Phase) -> list[tuple[list[tuple[int, int]], int]]:
        """For each word, the literals and constant whose sum is how many others share its bank."""
        seen: dict[tuple[int, ...], None] = {}
        for u in phase.words:
            # Word u itself appears once in phase.words and is not counted against itself.
            differences = sorted(u ^ v for v in phase.words)[1:]
            seen[tuple(differences)] = None
        result = []
        for others in seen:
            terms: dict[int, int] = {}
            constant = 0
            for d in others:
                literal = self._same_bank(d, phase.bank_bits, phase.chunk_bits)
                if literal is None:
                    continue
                if d == 0:
                    constant += 1
                else:
                    terms[literal] = terms.get(literal, 0) + 1
            result.append((list(terms.items()), constant))
        return result

    def _agreement(self, difference: int, bank_bits: int, chunk_bits: int) -> list[int] | None:
        """Literals that all hold when `difference` maps to bank 0; None if it never does."""
        low = max(self._targets.start, chunk_bits)  # bits inside a vector are never flipped
        if difference & ((1 << min(low, bank_bits)) - 1):
            return None
        literals = []
        for bit in range(low, bank_bits):
            parity = self._parity_of(bit, difference & self._field.sources(bit))
            flipped = difference >> bit & 1
            if parity is None:
                if flipped:
                    return None
            else:
                literals.append(parity if flipped else -parity - 1)
        return literals

    def _forbid(self, difference: int, bank_bits: int, chunk_bits: int) -> None:
        literals = self._agreement(difference, bank_bits, chunk_bits)
        if literals is not None:
            self._model.clause([-literal - 1 for literal in literals])

    def _same_bank(self, difference: int, bank_bits: int, chunk_bits: int) -> int | None:
        if difference == 0:
            return 0
        key = difference, bank_bits, chunk_bits
        if key not in self._same:
            literals = self._agreement(difference, bank_bits, chunk_bits)
            if literals is None:
                self._same[key] = None
            elif literals:
                self._same[key] = self._model.conjunction(literals)
            else:
                self._same[key] = self._model.integer(1, 1)
        return self._same[key]

    def _parity_of(self, target: int, bits: int) -> int | None:
        """The literal `parity(mask_target & bits)`; None for no bits, where it is 0."""
        if not bits:
            return None
        key = target, bits
        found = self._parity.get(key)
        if found is None:
            low = bits & -bits
            own = self._bits.setdefault((target, low.bit_length() - 1), -1)
            if own < 0:
                own = self._bits[target, low.bit_length() - 1] = self._model.boolean()
            rest = self._parity_of(target, bits ^ low)
            found = own if rest is None else self._model.xor(rest, own)
            self._parity[key] = found
        return found
