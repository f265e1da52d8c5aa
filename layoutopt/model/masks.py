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

import enum
from collections.abc import Iterator, Sequence

from layoutopt.ground.arrays import IntArray
from layoutopt.model.cp_sat import FAR, Model
from layoutopt.model.phases import Masks, Phases
from layoutopt.model.swizzle_rules import Field, Rules


class Known(enum.Enum):
    """Whether two words share a bank, where that is the same under all masks."""

    ALWAYS, NEVER = True, False


class Swizzle:
    """The masks of one model, whatever the linearisation."""

    def __init__(self, model: Model, field: Field) -> None:
        self.model = model
        self.field = field
        self._bits: dict[tuple[int, int], int] = {}
        self._parity: dict[tuple[int, int], int] = {}
        self._shared: dict[tuple[int, int, int], int | Known] = {}
        self._sources = [field.sources(bit) for bit in range(field.targets.stop)]

    def bits_below(self, lowest: int) -> list[int]:
        """The literal of every mask bit that some parity reads, of targets below `lowest`."""
        return [bit for (target, _), bit in self._bits.items() if target < lowest]

    def parity(self, target: int, bits: int) -> int | None:
        """The literal `parity(mask_target & bits)`; None for no bits, where it is 0."""
        if not bits:
            return None
        known = self._parity.get((target, bits))
        return self._new_parity(target, bits) if known is None else known

    def _new_parity(self, target: int, bits: int) -> int:
        lowest = bits & -bits
        source = lowest.bit_length() - 1
        if (target, source) not in self._bits:
            self._bits[target, source] = self.model.boolean(f"mask_{target}_{source}")
        rest = self.parity(target, bits ^ lowest)
        literal = self._bits[target, source]
        if rest is not None:
            literal = self.model.xor(rest, literal, f"parity_{target}_{bits}")
        self._parity[target, bits] = literal
        return literal

    def unless_flipped(self, word: int, pattern: int, targets: range) -> list[int] | None:
        """Literals of which one is true unless masks flip in `word` those of the targets that `pattern` has.

        None where no masks do.
        """
        literals = []
        for bit in targets:
            wanted = pattern >> bit & 1
            parity = self.parity(bit, word & self._sources[bit])
            if parity is not None:
                literals.append(-parity - 1 if wanted else parity)
            elif wanted:
                return None
        return literals

    def shared_bank(self, difference: int, bank_bits: int, lowest_target: int) -> int | Known:
        """A literal that is true where words at `difference` share a bank.

        Args:
            difference: of two word offsets, as an XOR.
            bank_bits: log2 of the banks.
            lowest_target: no bit below this is flipped; or it is inside the chunk of one lane.
        """
        key = difference, bank_bits, lowest_target
        if key not in self._shared:
            unflipped = difference & ((1 << min(lowest_target, bank_bits)) - 1)
            # The bank bits in which the words differ are to be flipped in one of them, and no others.
            targets = range(lowest_target, bank_bits)
            unless = None if unflipped else self.unless_flipped(difference, difference, targets)
            if unless:
                self._shared[key] = shared = self.model.boolean(f"e_{difference}")
                self.model.clause([*unless, shared])
            else:
                self._shared[key] = Known.NEVER if unless is None else Known.ALWAYS
        return self._shared[key]

    def loads(
        self, words: Sequence[int], bank_bits: int, lowest_target: int
    ) -> Iterator[tuple[list[tuple[int, int]], int]]:
        """For each of a phase's words, (literal, coefficient) and a constant: others that share its bank."""
        # The least difference of a word is 0, to itself. Words of the same differences have the same load.
        for row in sorted({tuple(sorted(u ^ v for v in words)[1:]) for u in words}):
            terms: dict[int, int] = {}
            always = 0
            for difference in row:
                shared = self.shared_bank(difference, bank_bits, lowest_target)
                if shared is Known.ALWAYS:
                    always += 1
                elif shared is not Known.NEVER:
                    terms[shared] = terms.get(shared, 0) + 1
            yield list(terms.items()), always

    def torn(self, rules: Rules) -> Iterator[int]:
        """Literals that are true where a flip tears a vector."""
        for target, offsets in rules.unflipped:
            for offset in offsets:
                parity = self.parity(target, offset & self._sources[target])
                if parity is not None:
                    yield parity

    def within_ceilings(self, phases: Phases, ceilings: IntArray, lowest_target: int, y: int) -> list[int]:
        """Constrain phases to at most their ceilings of wavefronts, if the literal `y` is true.

        Two words u, v of one phase meet in a bank exactly when `B(u ^ v) = 0`, where B is the bank part of
        the swizzle. So a phase keeps to a ceiling of c exactly if each of its words shares its bank with
        c - 1 others at most.

        Args:
            phases: of one linearisation.
            ceilings: most wavefronts of each phase, shape (phases,).
            lowest_target: no bit below this is flipped.
            y: literal of the linearisation.

        Returns:
            Literals that must be false if `y` is true. That is left to the caller, who says it for all
            linearisations in one constraint.
        """
        # Phases without conflicts, by (bank_bits, lowest_target) as `shared_bank` takes them: flips inside
        # what one lane covers leave it the same banks.
        without: dict[tuple[int, int], list[int]] = {}
        for k, ceiling in enumerate(ceilings.tolist()):
            bits = int(phases.bank_bits[k]), max(lowest_target, int(phases.chunk_bits[k]))
            if ceiling == 1:  # in clauses, which every SAT solver reads
                without.setdefault(bits, []).append(k)
            elif len(words := phases.held(k)) > ceiling:
                for others, always in self.loads(words, *bits):  # of one word: maybe, and in any case
                    self.model.linear(others, [-FAR, ceiling - 1 - always], only_if=[y])
        apart = [(d, *bits) for bits, rows in without.items() for d in phases.differences(rows)]
        conflicts = []
        for difference, bank_bits, lowest in sorted(apart):
            shared = self.shared_bank(difference, bank_bits, lowest)
            if shared is Known.ALWAYS:
                self.model.clause([-y - 1])  # not y
                break
            if shared is not Known.NEVER:
                conflicts.append(shared)
        return conflicts

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
