"""Alignment: what every layout keeps, and so what bounds may assume. The one definition.

A **layout** of a tile gives every element bytes of its own such that

    - every element starts at a multiple of its alignment (`Tile.element_alignment`);
    - every access of W bytes starts at a multiple of W in every lane (a matrix row: of 16);
    - the elements that one access covers lie one after the other.

Addresses count from a base that is aligned as the answer says. **Every layout** means each layout in this
sense, and no other: a bound for every layout rests on nothing but these three. What they fix of an element
is its **block**, aligned bytes in which its place is known:

    an access of W bytes covers several elements        the W bytes that it covers
    else: the element's alignment is A, the widest
    access that starts there and stays inside has W     the first max(A, W) bytes of the element

A structure of 16 bytes that 4-byte loads read has blocks of 16 bytes by default: 32 of them meet in a quarter
of the banks in every layout. With `"align": 4` its blocks have 4 bytes, and may lie in any bank.
"""

import numpy as np
from msgspec import Struct

from layoutopt.accesses.trace import Trace
from layoutopt.ground.arrays import IntArray
from layoutopt.problems.types import Tile


class Blocks(Struct, frozen=True):
    """The block of every element; int64 arrays of shape (elements,)."""

    width: IntArray  # bytes of the block, a power of two, also its alignment
    head: IntArray  # row-major index of the element at which the block starts
    place: IntArray  # byte of the block at which the element starts


def blocks(trace: Trace, tile: Tile, element_alignment: int | None = None) -> Blocks:
    """The aligned block around every element that each layout must keep whole.

    Args:
        trace: the accesses.
        tile: what they access, in whole bytes.
        element_alignment: that of every element, where only layouts are meant that keep more than the tile's.
    """
    size, count = tile.element_bytes, tile.elements
    alignment = element_alignment or tile.element_alignment
    width = np.full(count, alignment, np.int64)
    block_elements = np.ones(count, np.int64)
    for access in trace.accesses:
        if access.width_elements == 1 and access.operation.width_bytes <= alignment:
            continue  # it fixes no more than every element has
        element = access.vectors
        width[element] = np.maximum(width[element], access.operation.width_bytes)
        block_elements[element] = np.maximum(block_elements[element], access.width_elements)
    element = np.arange(count)
    # Accesses of several elements start at multiples of their own width along the last dimension.
    before = element % tile.shape[-1] % block_elements
    return Blocks(width=width, head=element - before, place=before * size)


def base_alignment(trace: Trace, *, swizzled: bool) -> int:
    """The least alignment of the base in bytes at which every access is aligned and every count holds.

    Wavefronts are counted from base 0. A base that is a multiple of a word moves all words on by as many
    banks, which changes no count. Under a swizzle it is a multiple of a row of all banks, so that code may
    flip bits of the whole address, the base included.
    """
    accesses = trace.taking_part or trace.accesses
    rules = [access.rule for access in accesses]
    widest = max(access.operation.width_bytes for access in accesses)
    word = max(rule.bank_bytes * rule.row_words for rule in rules)
    row = max(rule.banks * rule.bank_bytes for rule in rules) if swizzled else 1
    return max(widest, word, row)
