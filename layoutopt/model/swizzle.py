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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layoutopt.budget import Budget
from layoutopt.model.cp_sat import Answer, Model, Outcome
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.phases import PhaseSet
from layoutopt.problems.trace import Trace
from layoutopt.problems.types import Tile

IntArray = npt.NDArray[np.int64]

# Operations per distinct shift amount: `^ ((v >> s) & m)`.
SHIFT_OPERATIONS = 3
# Weight of a shift against single mask bits in the index cost.
_SHIFT_WEIGHT = 1000

Masks = dict[int, int]  # target bit -> source mask, in bits of the word offset


@dataclass(frozen=True, slots=True)
class Field:
    """Where a swizzle may act, in bits of the word offset.

    Attributes:
        targets: bits that may be flipped.
        first_source: lowest bit that may flip them.
        word_bytes: bytes of a word.
        vectors: for accesses wider than the lowest target, log2 of their words and the elements at
            which they start; a swizzle must not tear them.
    """

    targets: range
    first_source: int
    word_bytes: int
    vectors: tuple[tuple[int, IntArray], ...]

    def sources(self, target: int) -> int:
        """Mask of the bits that may flip `target`."""
        return -1 << max(self.first_source, target + 1)


def swizzle_field(sets: Sequence[PhaseSet], tile: Tile, trace: Trace) -> Field | None:
    """The field for a problem; None where no swizzle is possible."""
    size = tile.element_bytes
    word_bytes = sets[0].rule.bank_bytes
    if size & (size - 1):
        return None
    low = max(1, size // word_bytes).bit_length() - 1
    high = max(s.rule.banks for s in sets).bit_length() - 1
    # Words of one Kepler row never conflict, so bits inside it are no sources either.
    rows = [s.rule.row_words for s in sets if s.rule.row_words > 1]
    first_source = (max(rows) if rows else min(s.rule.banks for s in sets)).bit_length() - 1
    starts: dict[int, list[IntArray]] = {}
    for access in trace.accesses:
        chunk_bits = max(1, access.operation.width_bytes // word_bytes).bit_length() - 1
        if chunk_bits > low:
            starts.setdefault(chunk_bits, []).append(access.element[access.active])
    vectors = tuple((bits, np.unique(np.concatenate(parts))) for bits, parts in sorted(starts.items()))
    return Field(range(low, high), first_source, word_bytes, vectors) if low < high else None


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of a problem under one linearisation, merged as far as they must cost the same.

    Arrays of shape (phases,), but for `words`.

    Attributes:
        words: sorted word offsets, up to an XOR translation, shape (phases, lanes); -1 for absent.
        chunk_bits: log2 of the words that each stands for.
        bank_bits: log2 of the banks.
        weight: weighted number of phases.
        ideal: wavefronts if spread evenly.
        target: wavefronts that no layout undercuts.
    """

    words: IntArray
    chunk_bits: IntArray
    bank_bits: IntArray
    weight: IntArray
    ideal: IntArray
    target: IntArray

    def __len__(self) -> int:
        return len(self.words)

    def held(self, phase: int) -> tuple[int, ...]:
        """The words of one phase."""
        return tuple(w for w in self.words[phase].tolist() if w >= 0)

    def costs(self, masks: Masks) -> IntArray:
        """Wavefronts of each phase under a swizzle, in the model's own arithmetic."""
        if not len(self):
            return np.zeros(0, np.int64)
        bank = self.words.copy()
        for bit, mask in masks.items():
            bank ^= (np.bitwise_count(self.words & mask).astype(np.int64) & 1) << bit
        bank = (bank & ((1 << self.bank_bits) - 1)[:, None]) >> self.chunk_bits[:, None]
        banks = 1 << int(self.bank_bits.max())
        index = (bank + (np.arange(len(bank)) * banks)[:, None])[self.words >= 0]
        worst: IntArray = np.bincount(index, minlength=len(bank) * banks).reshape(-1, banks).max(axis=1)
        return worst

    def excess(self, masks: Masks) -> int:
        """Weighted excess wavefronts under a swizzle."""
        return self.excess_at(self.costs(masks))

    def excess_at(self, costs: IntArray) -> int:
        """Weighted excess wavefronts, of each phase's wavefronts."""
        return int((self.weight * (costs - self.ideal)).sum())


def phases_of(candidate: Linearisation, sets: Sequence[PhaseSet], tile: Tile) -> Phases:
    """The phases of a problem under one linearisation."""
    table = candidate.table(tile.shape) * tile.element_bytes
    lanes = max((s.elements.shape[1] for s in sets), default=0)
    columns: list[tuple[IntArray, ...]] = []
    for phase_set in sets:
        rule = phase_set.rule
        chunk_words = max(1, phase_set.width_bytes // rule.bank_bytes)
        words = np.where(phase_set.elements < 0, -1, table[phase_set.elements] // rule.bank_bytes)
        if rule.row_words > 1:
            words = np.where(words < 0, -1, words // rule.row_words * rule.row_words + words % rule.banks)
        words.sort(axis=1)
        if not rule.serialises_equal:
            words[:, 1:][words[:, 1:] == words[:, :-1]] = -1
        present = words >= 0
        first = np.where(present, words, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
        words = np.where(present, words ^ first, -1)
        words.sort(axis=1)
        words, inverse = _unique_rows(words)
        weight = np.bincount(inverse, phase_set.weight, len(words)).astype(np.int64)
        target = np.full(len(words), np.iinfo(np.int64).max)
        np.minimum.at(target, inverse, phase_set.floor)
        requests = chunk_words if rule.split_words else 1
        distinct = words >= 0
        distinct[:, 1:] &= words[:, 1:] != words[:, :-1]
        ideal = -(-distinct.sum(axis=1) * chunk_words // (rule.banks * requests))
        full = np.full_like(weight, 1)
        columns.append(
            (
                np.pad(words, ((0, 0), (lanes - words.shape[1], 0)), constant_values=-1),
                full * (chunk_words.bit_length() - 1),
                full * (rule.banks.bit_length() - 1),
                weight * requests,
                np.maximum(1, ideal),
                np.maximum(1, target),
            )
        )
    if not columns:
        none = np.zeros(0, np.int64)
        return Phases(np.zeros((0, 0), np.int64), none, none, none, none, none)
    return Phases(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))


def _unique_rows(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct rows, and for each row which it is; in an order that depends on the rows alone."""
    if not rows.size:
        return rows[:1], np.zeros(len(rows), np.int64)
    rows = np.ascontiguousarray(rows)
    # Rows as opaque bytes sort several times faster than `np.unique(axis=0)`.
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], inverse.reshape(-1)


@dataclass(frozen=True, slots=True)
class LastBlock:
    """The last block of offsets, where it is only partly filled.

    Attributes:
        sources: the source bits that all its words share.
        reach: for each pattern of flipped target bits, the elements that the layout then takes.
    """

    sources: int
    reach: dict[int, int]


def last_block(candidate: Linearisation, field: Field, tile: Tile) -> LastBlock | None:
    """The last block under `candidate`; None where it is full, or the only one and so never moved."""
    size, bits = tile.element_bytes, field.targets.stop
    table = candidate.table(tile.shape)
    used = int(table.max()) + 1
    block = (1 << bits) * field.word_bytes // size  # elements
    last = (used - 1) // block
    if used % block == 0 or (last == 0 and field.first_source >= bits):
        return None
    inside = table[table >= last * block] - last * block
    reach = {}
    for pattern in range(0, 1 << bits, 1 << field.targets.start):
        reach[pattern] = int((inside ^ pattern * field.word_bytes // size).max()) + last * block + 1
    return LastBlock(last << bits, reach)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a swizzle over one linearisation must obey besides the phases.

    Attributes:
        targets: bank bits that may be flipped.
        still: (target, offsets): source bits of offsets at which the target may not be flipped.
        last: source bits of the last block of offsets, and the flips that may happen to it.
    """

    targets: range
    still: tuple[tuple[int, tuple[int, ...]], ...]
    last: tuple[int, frozenset[int]] | None


def rules(candidate: Linearisation, field: Field, tile: Tile) -> Rules:
    """The rules under `candidate`: vectors stay whole, and the layout within `candidate.span`.

    Flips are linear in the source bits, so a basis of the vectors' source bits is enough. Where it
    spans every source, no target inside the vector is left.
    """
    table = candidate.table(tile.shape) * tile.element_bytes // field.word_bytes
    sources = (int(table.max()) >> field.first_source).bit_length()
    targets = field.targets
    still: list[tuple[int, tuple[int, ...]]] = []
    for chunk_bits, starts in field.vectors:
        basis = _basis(np.unique(table[starts] >> field.first_source).tolist(), sources)
        if len(basis) == sources:
            targets = range(min(max(targets.start, chunk_bits), targets.stop), targets.stop)
            continue
        for target in range(targets.start, min(chunk_bits, targets.stop)):
            still.append((target, tuple(head << field.first_source for head in basis)))
    last = None
    if (block := last_block(candidate, field, tile)) is not None:
        flips = (pattern for pattern, reach in block.reach.items() if reach <= candidate.span)
        last = block.sources, frozenset(flips)
    return Rules(targets, tuple((t, v) for t, v in still if t in targets), last)


def textbook(field: Field, given: Rules, highest: int) -> Iterator[Masks]:
    """Every `Swizzle<B, M, S>` within the rules: B targets in a row, each flipped by the bit S above.

    Args:
        field: where swizzles act.
        given: the rules of the linearisation.
        highest: the highest offset in words.
    """
    top = highest.bit_length()
    for count in range(1, len(given.targets) + 1):
        for first in range(given.targets.start, given.targets.stop - count + 1):
            for shift in range(max(1, field.first_source - first), top - first - count + 1):
                masks = {bit: 1 << bit + shift for bit in range(first, first + count)}
                if _obeys(masks, given):
                    yield masks


def _obeys(masks: Masks, given: Rules) -> bool:
    if any((masks.get(target, 0) & v).bit_count() & 1 for target, held in given.still for v in held):
        return False
    if given.last is None:
        return True
    sources, allowed = given.last
    return sum(1 << bit for bit, mask in masks.items() if (mask & sources).bit_count() & 1) in allowed


@dataclass(frozen=True, slots=True)
class Solution:
    """What one model gave.

    Attributes:
        outcome: the solver's word.
        masks: the swizzle, where there is one.
        value: the objective: index cost (shifts, bits), or weighted excess.
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

    def solve_excess(
        self, most: int, budget: Budget, workers: int, effort: float | None, hint: Masks | None = None
    ) -> Solution:
        """The swizzle of least weighted excess, if that is at most `most`; `hint` is tried first."""
        terms = []
        offset = 0
        for phase in self._phases:
            offset += phase.weight * phase.ideal
            if len(phase.words) == 1:
                offset -= phase.weight
                continue
            wavefronts = self._model.integer(1, len(phase.words))
            terms.append((wavefronts, phase.weight))
            for load, constant in self._loads(phase):
                self._model.at_most([*load, (wavefronts, -1)], -1 - constant)
        self._model.at_most(terms, most + offset)
        self._model.minimise(terms)
        self._hint(hint)
        answer = self._model.solve(budget, workers, effort)
        return self._solution(answer, answer.objective - offset, answer.bound - offset)

    def solve_index_cost(self, most: int, budget: Budget) -> Solution:
        """The cheapest swizzle whose weighted excess is at most `most`."""
        terms = []
        offset = 0
        for phase in self._phases:
            offset += phase.weight * phase.ideal
            wavefronts = self._model.integer(1, len(phase.words))
            terms.append((wavefronts, phase.weight))
            for load, constant in self._loads(phase):
                self._model.at_most([*load, (wavefronts, -1)], -1 - constant)
        self._model.at_most(terms, most + offset)
        return self._minimise_index_cost(budget, None)

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


def _basis(vectors: Sequence[int], enough: int) -> list[int]:
    """A basis of the span of `vectors` over F2; stops at `enough`."""
    basis: list[int] = []
    for vector in vectors:
        for known in basis:
            vector = min(vector, vector ^ known)
        if vector:
            basis.append(vector)
            if len(basis) == enough:
                break
    return basis
