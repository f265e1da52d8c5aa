"""XOR masks as variables: mask bits, parities along a trie, and which differences share a bank.

mask_{t,s}      a boolean: source bit s flips target bit t
parity_{t,v}    parity(mask_t & v): one XOR a step of a trie over v (clear the lowest set bit)
shared_{d}      whether words at the XOR difference d share a bank. One-sided: true where they do, which is
                all that a bound from above needs

Symmetry is broken by the form itself: sources lie above the bank field and targets inside it, so the swizzle
is unit triangular and no two mask settings differ by row operations. Targets inside the widest vector are
allowed where the vectors' own rows are not flipped there. What it cannot express: a swizzle of elements whose
size is no power of two.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from layoutopt.ground.arrays import IntArray
from layoutopt.model.cp_sat import FAR, Model
from layoutopt.model.phases import Masks, Phases
from layoutopt.model.swizzle_rules import Field, Rules


class Swizzle:
    """The masks of one model, whatever the linearisation."""

    def __init__(self, model: Model, field: Field) -> None:
        self.model = model
        self.field = field
        self._bits: dict[tuple[int, int], int] = {}
        self._parity: dict[tuple[int, int], int] = {}
        self._shared: dict[tuple[int, int, int], int | Literal[True] | None] = {}
        self._sources = [field.sources(bit) for bit in range(field.targets.stop)]

    def mask_bits(self) -> Iterator[tuple[int, int]]:
        """Target and literal of every mask bit that some parity reads."""
        for (target, _), bit in self._bits.items():
            yield target, bit

    def parity(self, target: int, bits: int) -> int | None:
        """The literal `parity(mask_target & bits)`; None for no bits, where it is 0."""
        if not bits:
            return None
        known = self._parity.get((target, bits))
        return self._new_parity(target, bits) if known is None else known

    def _new_parity(self, target: int, bits: int) -> int:
        low = bits & -bits
        source = target, low.bit_length() - 1
        if source not in self._bits:
            self._bits[source] = self.model.boolean(f"mask_{target}_{source[1]}")
        rest = self.parity(target, bits ^ low)
        literal = self._bits[source]
        if rest is not None:
            literal = self.model.xor(rest, literal, f"parity_{target}_{bits}")
        self._parity[target, bits] = literal
        return literal

    def shared_bank(self, difference: int, bank_bits: int, low: int) -> int | Literal[True] | None:
        """A literal that is true where words at `difference` share a bank; None if they never do.

        Args:
            difference: of two word offsets, as an XOR.
            bank_bits: log2 of the banks.
            low: bits below this do not tell words of this phase apart, or are never flipped.
        """
        key = difference, bank_bits, low
        if key not in self._shared:
            self._shared[key] = self._shared_bank(difference, bank_bits, low)
        return self._shared[key]

    def _shared_bank(self, difference: int, bank_bits: int, low: int) -> int | Literal[True] | None:
        """`shared_bank`, where it was not asked before: every bank bit of both words must come out alike."""
        if difference & ((1 << min(low, bank_bits)) - 1):
            return None
        agree = []
        for bit in range(low, bank_bits):
            flipped = difference >> bit & 1
            if sources := difference & self._sources[bit]:
                parity = self._parity.get((bit, sources))
                if parity is None:
                    parity = self._new_parity(bit, sources)
                agree.append(-parity - 1 if flipped else parity)
            elif flipped:
                return None
        if not agree:
            return True
        shared = self.model.boolean(f"e_{difference}")
        self.model.clause([*agree, shared])
        return shared

    def loads(
        self, words: Sequence[int], bank_bits: int, low: int
    ) -> Iterator[tuple[list[tuple[int, int]], int]]:
        """For each of a phase's words, (literal, coefficient) and a constant: others that share its bank."""
        for row in sorted({tuple(sorted(u ^ v for v in words)[1:]) for u in words}):
            terms: dict[int, int] = {}
            constant = 0
            for difference in row:
                shared = self.shared_bank(difference, bank_bits, low)
                if shared is True:
                    constant += 1
                elif shared is not None:
                    terms[shared] = terms.get(shared, 0) + 1
            yield list(terms.items()), constant

    def still(self, rules: Rules) -> Iterator[int]:
        """Literals that are true where a flip would tear a vector."""
        for target, offsets in rules.still:
            for offset in offsets:
                parity = self.parity(target, offset & self.field.sources(target))
                if parity is not None:
                    yield parity

    def within_ceilings(
        self, phases: Phases, ceilings: IntArray, low: int, only_if: Sequence[int] = ()
    ) -> Iterator[int | Literal[True]]:
        """Constrain every phase to at most its ceiling of wavefronts, unless a literal of `only_if` is false.

        Two words u, v of one phase meet in a bank exactly when `B(u ^ v) = 0`, where B is the bank part of
        the swizzle. So a phase costs, for each of its words w, 1 + the number of words w' that share its
        bank, exactly, because "same bank" is an equivalence.

        Args:
            phases: of one linearisation.
            ceilings: most wavefronts of each phase, shape (phases,).
            low: no bit below this is flipped.
            only_if: literals that enforce the constraints on phases with conflicts.

        Yields:
            Literals that must be false for phases of ceiling 1; True where such a phase always conflicts.
        """
        together: dict[tuple[int, int], list[int]] = {}  # phases without conflicts, by bits of their banks
        for k, ceiling in enumerate(ceilings.tolist()):
            bits = int(phases.bank_bits[k]), max(low, int(phases.chunk_bits[k]))
            if ceiling == 1:  # in clauses, which every SAT solver reads
                together.setdefault(bits, []).append(k)
            elif len(words := phases.held(k)) > ceiling:
                for terms, constant in self.loads(words, *bits):
                    self.model.linear(terms, [-FAR, ceiling - 1 - constant], only_if)
        apart = [(d, *bits) for bits, rows in together.items() for d in phases.differences(rows)]
        for difference in sorted(apart):
            if (shared := self.shared_bank(*difference)) is not None:
                yield shared

    def differs(self, sources: int, pattern: int) -> list[int] | None:
        """Literals of which one is true unless words of these source bits have the targets `pattern` flipped.

        None where no masks flip them so.
        """
        literals = []
        for bit in self.field.targets:
            wanted = pattern >> bit & 1
            parity = self.parity(bit, sources & self.field.sources(bit))
            if parity is not None:
                literals.append(-parity - 1 if wanted else parity)
            elif wanted:
                return None
        return literals

    def index_cost(self, model: Model, shift: int, single: int) -> list[tuple[int, int]]:
        """Terms of an objective: `shift` for each distinct distance, `single` for each mask bit."""
        distances: dict[int, list[int]] = {}
        for (target, source), bit in self._bits.items():
            distances.setdefault(source - target, []).append(bit)
        terms = [(bit, single) for bit in self._bits.values()]
        for distance, bits in sorted(distances.items()):
            used = model.boolean(f"shift_{distance}")
            terms.append((used, shift))
            for bit in bits:
                model.clause((-bit - 1, used))
        return terms

    def hint(self, model: Model, masks: Masks) -> None:
        """Have the solver try these masks first."""
        for (target, source), bit in self._bits.items():
            model.hint(bit, masks.get(target, 0) >> source & 1)

    def masks(self, values: Sequence[int], bits: int) -> Masks:
        """The masks in a solution, without sources above the lowest `bits` bits, which no offset has."""
        masks: Masks = {}
        for (target, source), bit in sorted(self._bits.items()):
            if values[bit] and source < bits:
                masks[target] = masks.get(target, 0) | 1 << source
        return masks
