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
    size, word_bytes = tile.element_bytes, sets[0].rule.bank_bytes
    fewest, most = min(s.rule.banks for s in sets), max(s.rule.banks for s in sets)
    # Bits of the bank of some access are flipped, but for those inside an element.
    targets = range(_bits_inside(size, word_bytes), most.bit_length() - 1)
    if size & (size - 1) or not targets:
        return None
    starts: dict[int, list[IntArray]] = {}
    for access in trace.accesses:
        chunk_bits = _bits_inside(access.operation.width_bytes, word_bytes)
        if chunk_bits > targets.start:
            starts.setdefault(chunk_bits, []).append(access.starts)
    vectors = tuple(
        (bits, np.flatnonzero(np.bincount(np.concatenate(parts)))) for bits, parts in sorted(starts.items())
    )
    vector_bits = max(starts, default=targets.start)
    # Sources are no bits of every access's bank, nor inside a group of `_unread_group`, nor inside a vector,
    # which they would tear.
    first_source = max(vector_bits, max(fewest, _unread_group(s.rule for s in sets)).bit_length() - 1)
    inner = range(vector_bits, targets.stop) if fewest == most else range(0)
    return Field(targets, first_source, word_bytes, inner, vectors)


def _bits_inside(size_bytes: int, word_bytes: int) -> int:
    """Bits of the word offset that are the same wherever something of this size begins."""
    return max(1, size_bytes // word_bytes).bit_length() - 1


def _unread_group(rules: Iterable[PhaseRule]) -> int:
    """Words of an aligned group whose bits above the banks no swizzle reads; 1 where there is none.

    Those of one group and bank are one word to the phases (Kepler), which such a source would tear apart.
    """
    return max((rule.row_words for rule in rules), default=1)


def left_out(rules: Iterable[PhaseRule], element_bytes: int) -> str:
    """Swizzles of the family `xor` that are not searched, as a scope names them; often none."""
    if element_bytes & (element_bytes - 1):
        return f", no XOR over elements of {element_bytes} bytes"
    group = _unread_group(rules)
    return f", XOR sources outside groups of {group} words" if group > 1 else ""


class LastBlock(Struct, frozen=True):
    """The last block of offsets, where it is only partly filled."""

    sources: int  # the source bits that all its words share
    # For each pattern of target bits flipped in all of it, the elements that the layout then takes at least,
    # row operations included
    reach: dict[int, int]
    # For each pattern, the row operations with which it takes no more: target -> source mask
    operations: dict[int, Masks]

    def flips(self, masks: Masks) -> int:
        """The pattern of target bits that masks flip in all of it."""
        return sum(1 << bit for bit, mask in masks.items() if (mask & self.sources).bit_count() & 1)


@lru_cache(maxsize=256)
def last_block(candidate: Linearisation, field: Field, tile: Tile) -> LastBlock | None:
    """The last block under `candidate`; None where no swizzle changes how long it is."""
    size, block_bits = tile.element_bytes, field.targets.stop
    table = candidate.table(tile.shape)
    block = (1 << block_bits) * field.word_bytes // size  # elements of a block
    last = int(table.max()) // block
    inside = table[table >= last * block] - last * block
    unread = last == 0 and field.first_source >= block_bits  # all source bits are 0
    if len(inside) == block or (unread and not field.inner):
        return None
    ends: dict[int, int] = {}  # of each word, the byte behind the last element that starts in it
    for start in (inside * size).tolist():
        word = start // field.word_bytes
        ends[word] = max(ends.get(word, 0), start % field.word_bytes + size)
    words, word_ends = zip(*sorted(ends.items()), strict=True)
    reach, operations = {}, {}
    for pattern in range(0, 1 << block_bits if last else 1, 1 << field.targets.start):
        end, rows = _shortest(words, word_ends, pattern, block_bits, field.inner, field.word_bytes)
        reach[pattern], operations[pattern] = last * block + end // size, dict(rows)
    return LastBlock(last << block_bits, reach, operations)


@lru_cache(maxsize=1 << 14)
def _shortest(
    words: tuple[int, ...], word_ends: tuple[int, ...], pattern: int, bits: int, inner: range, word_bytes: int
) -> Shortest:
    """The least end of a block that row operations can reach, and these.

    A row operation flips one bit of a word's number where a higher one is set; so it moves the word. What
    counts is the word that comes to lie last. From the highest bit down, those that can still be it agree in
    all bits above. A bit that some of them have puts these last; but where a higher bit is set, in all of
    them, a row operation may flip it, which puts the others last, or makes the block shorter if there are
    none.

    Args:
        words: those in use, by number in the block.
        word_ends: for each, the bytes from its start to the end of its last element.
        pattern: bits that the masks flip in all of them, before the row operations.
        bits: of a word's number.
        inner: bits that row operations flip and read.
        word_bytes: bytes of a word.
    """

    def last(words_left: list[tuple[int, int]], bit: int) -> Shortest:
        """The least end of words, each with its end, by `bit` and those below, as they agree above."""
        if bit < 0:
            return Shortest(max(end for _, end in words_left), ())
        ones = [item for item in words_left if item[0] >> bit & 1]
        zeros = [item for item in words_left if not item[0] >> bit & 1]
        if not ones:
            return last(zeros, bit - 1)
        bit_bytes = word_bytes << bit
        ones_last = last(ones, bit - 1)
        kept = Shortest(ones_last.end + bit_bytes, ones_last.rows)
        any_word = words_left[0][0]
        sources = [source for source in inner if source > bit and any_word >> source & 1]
        if bit not in inner or not sources:
            return kept
        lower = last(zeros, bit - 1) if zeros else ones_last
        row = bit, 1 << sources[0]
        flipped = Shortest(lower.end + (bit_bytes if zeros else 0), (row, *lower.rows))
        return min(kept, flipped, key=lambda choice: (choice.end, len(choice.rows)))

    return last([(w ^ pattern, end) for w, end in zip(words, word_ends, strict=True)], bits - 1)


def shortened(candidate: Linearisation, field: Field, tile: Tile, masks: Masks) -> Masks:
    """`masks`, with the row operations that are needed to keep the layout within `candidate.span`."""
    block = last_block(candidate, field, tile)
    if block is None:
        return masks
    rows = block.operations[block.flips(masks)]
    if not rows or _end(candidate, field, tile, masks) <= candidate.span:
        return masks
    both = dict(masks)
    for bit, row in rows.items():
        both[bit] = masks.get(bit, 0) ^ row
        # A row reads bits as the masks have flipped them: of a target, it reads what its mask does, too.
        for target, mask in masks.items():
            both[bit] ^= mask if row >> target & 1 else 0
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
    """What a swizzle over one linearisation must obey besides the phases, lest it tear vectors."""

    targets: range  # bank bits that may be flipped
    # (target, source bits of offsets): at these offsets the target may not be flipped.
    unflipped: tuple[tuple[int, tuple[int, ...]], ...]


def rules(candidate: Linearisation, field: Field, tile: Tile) -> Rules:
    """The rules under `candidate`.

    Flips are linear in the source bits, so a basis of the vectors' source bits is enough. Where it
    spans every source, no target inside the vector is left.
    """
    words = candidate.table(tile.shape) * tile.element_bytes // field.word_bytes
    source_bits = (int(words.max()) >> field.first_source).bit_length()
    targets = field.targets
    unflipped: list[tuple[int, tuple[int, ...]]] = []
    for chunk_bits, starts in field.vectors:
        basis = xor_basis(np.flatnonzero(np.bincount(words[starts] >> field.first_source)).tolist())
        if len(basis) == source_bits:
            targets = range(min(max(targets.start, chunk_bits), targets.stop), targets.stop)
            continue
        for target in range(targets.start, min(chunk_bits, targets.stop)):
            unflipped.append((target, tuple(sources << field.first_source for sources in basis)))
    return Rules(targets, tuple((t, offsets) for t, offsets in unflipped if t in targets))


def textbook(candidate: Linearisation, field: Field, tile: Tile) -> Iterator[Masks]:
    """Every `Swizzle<B, M, S>` that may lie over a candidate within its span.

    It flips B targets in a row, each by the bit S above it.
    """
    obeyed, last = rules(candidate, field, tile), last_block(candidate, field, tile)
    targets, last_word = obeyed.targets, (candidate.span * tile.element_bytes - 1) // field.word_bytes
    top = last_word.bit_length()
    for count in range(1, len(targets) + 1):
        for first in range(targets.start, targets.stop - count + 1):
            nearest = min(count, max(1, field.first_source - first))
            for shift in range(nearest, top - first - count + 1):
                masks = {bit: 1 << bit + shift for bit in range(first, first + count)}
                pairs = ((masks.get(target, 0), v) for target, held in obeyed.unflipped for v in held)
                torn = any((mask & offset).bit_count() & 1 for mask, offset in pairs)
                if not torn and (last is None or last.reach[last.flips(masks)] <= candidate.span):
                    yield masks
