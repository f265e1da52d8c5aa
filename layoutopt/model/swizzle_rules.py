"""Where a swizzle may act, and what it must obey besides the phases.

A source bit inside the bank field, above its target, changes no conflict: it adds one row of the bank's
matrix to another, which keeps the kernel. What it may change is which bytes of the **last block** are taken,
where that is not full: a mask over bank bits can move its words together at its beginning. So a swizzle is
found in two steps, masks M over sources above the bank field first, then row operations U inside it that make
the last block shortest; the swizzle is both, U (v + M v), and every swizzle is of that form. Below the widest
vector there are no row operations, for they could tear it.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from layoutopt.accesses.trace import Trace
from layoutopt.expressions.bits import xor_basis
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import PhaseRule
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.phases import Masks, PhaseSet
from layoutopt.problems.types import Tile

SHIFT_OPERATIONS: Final = 3  # of each distance that bits move over: `^ ((v >> s) & m)`


def shift_operations(masks: Masks) -> int:
    """Integer operations of the XORs: those of each different distance that bits move over."""
    return SHIFT_OPERATIONS * len(shifts_of(masks))


def shifts_of(masks: Masks) -> set[int]:
    """The distances that bits move over."""
    return {
        source - target
        for target, mask in masks.items()
        for source in range(mask.bit_length())
        if mask >> source & 1
    }


class Shortest(NamedTuple):
    """The least end of a block of words, in bytes, and the row operations for it: (target, source mask)."""

    end: int
    rows: tuple[tuple[int, int], ...]


class Field(Struct, frozen=True, eq=False):
    """Where a swizzle may act, in bits of the word offset."""

    targets: range  # bits that may be flipped
    first_source: int  # lowest bit that may flip them
    word_bytes: int  # bytes of a word
    # Bits that row operations flip and read; empty where accesses see different numbers of banks.
    inner: range
    # For accesses wider than the lowest target, log2 of their words and the elements at which they start; a
    # swizzle must not tear them.
    vectors: tuple[tuple[int, IntArray], ...]

    def sources(self, target: int) -> int:
        """Mask of the bits that may flip `target`."""
        return -1 << max(self.first_source, target + 1)

    @property
    def alike(self) -> bool:
        """Whether no bit inside a block flips a target, so that all words of a block are flipped alike.

        Where accesses see different numbers of banks they may not be, and what the last block takes at least
        is not known.
        """
        return self.first_source >= self.targets.stop


def swizzle_field(sets: Sequence[PhaseSet], tile: Tile, trace: Trace) -> Field | None:
    """Where a swizzle may act, given the phases and the accesses of a tile; None where none is possible."""
    size = tile.element_bytes
    word_bytes = sets[0].rule.bank_bytes
    if size & (size - 1):
        return None
    low = max(1, size // word_bytes).bit_length() - 1
    high = max(s.rule.banks for s in sets).bit_length() - 1
    # Words of one Kepler row never conflict, so bits inside it are no sources either.
    row_words = [s.rule.row_words for s in sets if s.rule.row_words > 1]
    first_source = (max(row_words) if row_words else min(s.rule.banks for s in sets)).bit_length() - 1
    starts: dict[int, list[IntArray]] = {}
    for access in trace.accesses:
        chunk_bits = max(1, access.operation.width_bytes // word_bytes).bit_length() - 1
        if chunk_bits > low:
            starts.setdefault(chunk_bits, []).append(access.starts)
    vectors = tuple(
        (bits, np.flatnonzero(np.bincount(np.concatenate(parts)))) for bits, parts in sorted(starts.items())
    )
    vector_bits = max((bits for bits, _ in vectors), default=low)  # inside the widest vector
    first_source = max(first_source, vector_bits)  # a source bit inside a vector would tear it
    same_banks = min(s.rule.banks for s in sets) == 1 << high
    inner = range(vector_bits, high) if same_banks else range(0)
    return Field(range(low, high), first_source, word_bytes, inner, vectors) if low < high else None


def unread_group(rules: Iterable[PhaseRule]) -> int:
    """Words of an aligned group whose bits above the banks no swizzle reads; 1 where there is none.

    Those of one group and bank are one word to the phases, which such a source would tear apart.
    """
    every = list(rules)
    group = max((rule.row_words for rule in every), default=1)
    return group if group > min((rule.banks for rule in every), default=1) else 1


def left_out(rules: Iterable[PhaseRule], element_bytes: int) -> str:
    """Swizzles of the family `xor` that are not searched, as a scope names them; often none."""
    if element_bytes & (element_bytes - 1):
        return f", no XOR over elements of {element_bytes} bytes"
    group = unread_group(rules)
    return f", XOR sources outside groups of {group} words" if group > 1 else ""


class LastBlock(Struct, frozen=True):
    """The last block of offsets, where it is only partly filled."""

    sources: int  # the source bits that all its words share
    # For each pattern of target bits flipped in all of it, the elements that the layout then takes at least,
    # row operations included
    reach: dict[int, int]
    # For each pattern, the row operations with which it takes no more: target -> source mask
    operations: dict[int, Masks]


@lru_cache(maxsize=256)
def last_block(candidate: Linearisation, field: Field, tile: Tile) -> LastBlock | None:
    """The last block under `candidate`; None where no swizzle changes how long it is."""
    size, bits = tile.element_bytes, field.targets.stop
    table = candidate.table(tile.shape)
    block = (1 << bits) * field.word_bytes // size  # elements of a block
    last = int(table.max()) // block
    inside = table[table >= last * block] - last * block
    if len(inside) == block or (last == 0 and field.first_source >= bits and not field.inner):
        return None
    ends: dict[int, int] = {}  # of each word, the byte behind the last element that starts in it
    for start in (inside * size).tolist():
        word = start // field.word_bytes
        ends[word] = max(ends.get(word, 0), start % field.word_bytes + size)
    words, word_ends = zip(*sorted(ends.items()), strict=True)
    reach, operations = {}, {}
    for pattern in range(0, 1 << bits if last else 1, 1 << field.targets.start):
        end, rows = _shortest(words, word_ends, pattern, bits, field.inner, field.word_bytes)
        reach[pattern], operations[pattern] = last * block + end // size, dict(rows)
    return LastBlock(last << bits, reach, operations)


@lru_cache(maxsize=1 << 14)
def _shortest(
    words: tuple[int, ...], word_ends: tuple[int, ...], pattern: int, bits: int, inner: range, word_bytes: int
) -> Shortest:
    """The least end of a block that row operations can reach, and these, where target bits are flipped.

    From the highest bit down: all words that can still be the last agree on the bits above, in their source
    bits, too. Where they agree on this bit, a row operation clears it if any source bit is set; where they do
    not, it chooses which of them go first. A row operation flips a bit where a higher one is set; all of
    them read the word after `pattern`.

    Args:
        words: those in use, by number in the block.
        word_ends: for each, the bytes from its start to the end of its last element.
        pattern: bits flipped in all of them.
        bits: of a word's number.
        inner: bits that row operations flip and read.
        word_bytes: bytes of a word.
    """

    def descend(left: list[tuple[int, int]], bit: int) -> Shortest:
        """The least end of the words `left`, each with its end, that can still be the last, by lower bits."""
        if bit < 0:
            return Shortest(max(end for _, end in left), ())
        ones = [item for item in left if item[0] >> bit & 1]
        zeros = [item for item in left if not item[0] >> bit & 1]
        if not ones:
            return descend(zeros, bit - 1)
        set_bytes = word_bytes << bit  # that a set bit adds
        end, rows = descend(ones, bit - 1)
        choices = [Shortest(end + set_bytes, rows)]
        sources = [s for s in inner if s > bit and left[0][0] >> s & 1] if bit in inner else []
        if sources:
            row = (bit, 1 << sources[0])
            end, rows = descend(zeros, bit - 1) if zeros else (end - set_bytes, rows)
            choices.append(Shortest(end + set_bytes, (row, *rows)))
        return min(choices, key=lambda choice: (choice.end, len(choice.rows)))

    return descend([(w ^ pattern, end) for w, end in zip(words, word_ends, strict=True)], bits - 1)


def shortened(candidate: Linearisation, field: Field, tile: Tile, masks: Masks) -> Masks:
    """`masks`, with the row operations that are needed to keep the layout within `candidate.span`."""
    block = last_block(candidate, field, tile)
    if block is None:
        return masks
    flip = sum(1 << bit for bit, mask in masks.items() if (mask & block.sources).bit_count() & 1)
    rows = block.operations[flip]
    if not rows or _end(candidate, field, tile, masks) <= candidate.span:
        return masks
    both = dict(masks)
    for bit, row in rows.items():
        mask = masks.get(bit, 0) ^ row
        for source, other in masks.items():
            mask ^= other if row >> source & 1 else 0
        both[bit] = mask
    return {bit: mask for bit, mask in sorted(both.items()) if mask}


def _end(candidate: Linearisation, field: Field, tile: Tile, masks: Masks) -> int:
    """Elements that the layout takes under masks."""
    size = tile.element_bytes
    byte = candidate.table(tile.shape) * size
    word = byte // field.word_bytes
    for bit, mask in masks.items():
        byte = byte ^ ((np.bitwise_count(word & mask).astype(np.int64) & 1) << bit) * field.word_bytes
    return int(byte.max()) // size + 1


class Rules(Struct, frozen=True):
    """What a swizzle over one linearisation must obey besides the phases."""

    targets: range  # bank bits that may be flipped
    # (target, source bits of offsets): at these offsets the target may not be flipped
    still: tuple[tuple[int, tuple[int, ...]], ...]
    # Source bits of the last block of offsets, and the flips that may happen to it
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
        basis = xor_basis(np.flatnonzero(np.bincount(table[starts] >> field.first_source)).tolist())
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
        highest: the highest offset in words.
    """
    top = highest.bit_length()
    for count in range(1, len(given.targets) + 1):
        for first in range(given.targets.start, given.targets.stop - count + 1):
            least = min(count, max(1, field.first_source - first))
            for shift in range(least, top - first - count + 1):
                masks = {bit: 1 << bit + shift for bit in range(first, first + count)}
                if _obeys(masks, given):
                    yield masks


def _obeys(masks: Masks, given: Rules) -> bool:
    """Whether masks keep vectors whole and flip the last block as they may."""
    if any((masks.get(target, 0) & v).bit_count() & 1 for target, held in given.still for v in held):
        return False
    if given.last is None:
        return True
    sources, allowed = given.last
    return sum(1 << bit for bit, mask in masks.items() if (mask & sources).bit_count() & 1) in allowed
