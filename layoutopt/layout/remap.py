"""What a layout does to the bytes of an array that lies row-major in memory, as compilers can be told it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from layoutopt.errors import LayoutError
from layoutopt.ground.arrays import IntArray
from layoutopt.layout.layout import Layout


class Moves(NamedTuple):
    """One thing done to offsets `v`: all terms see the same v.

    Attributes:
        flips: `v ^ (v >> shift & mask) ^ ...`; else `v + v // every * extra + ...`.
        terms: (shift, mask) or (every, extra), in bits and bytes.
    """

    flips: bool
    terms: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Remap:
    """Byte offsets to byte offsets.

    Attributes:
        moves: done one after another.
        size: bytes of the array then.
    """

    moves: tuple[Moves, ...]
    size: int

    def unit(self, size: int) -> int:
        """Most bytes, up to 16, that stay together at every multiple of themselves in so large an array."""
        for unit in (16, 8, 4, 2):
            first = np.arange(0, size - unit + 1, unit, dtype=np.int64)
            moved = self.apply(first)
            together = (self.apply(first + k) - moved == k for k in range(1, unit))
            if not (moved % unit).any() and all(bool(part.all()) for part in together):
                return unit
        return 1

    def apply(self, offsets: IntArray) -> IntArray:
        """Where bytes at these offsets go."""
        for flips, terms in self.moves:
            moved = offsets.copy()
            for a, b in terms:
                if flips:
                    moved ^= offsets >> a & b
                else:
                    moved += offsets // a * b
            offsets = moved
        return offsets


def remap_of(layout: Layout) -> Remap:
    """What a layout does to the offsets of the same tile, row-major in its own bytes.

    Raises:
        LayoutError: it is not made of pads and XOR alone.
    """
    plain = len(layout.digits) == len(layout.shape) and all(
        digit.dim == d and digit.divide == 1 for d, digit in enumerate(layout.digits)
    )
    unit = layout.element_bytes
    if layout.lookup or layout.turn or layout.packed != 1 or not plain or layout.digits[-1].stride != 1:
        raise LayoutError("only pads and an XOR of shifted bits can be put into compiled code")
    if unit & (unit - 1) and layout.swizzle:
        raise LayoutError(f"an XOR over elements of {unit} bytes cannot be put into compiled code")
    pads = []
    every = 1
    for d in range(len(layout.shape) - 1, 0, -1):
        every *= layout.shape[d]
        extra = layout.digits[d - 1].stride - layout.shape[d] * layout.digits[d].stride
        if extra:
            pads.append((every * unit, extra * unit))
    interval = [(layout.interval[0] * unit, layout.interval[1] * unit)] if layout.interval[0] else []
    masks: dict[int, int] = {}
    for target in layout.swizzle:
        for source in range(target.mask.bit_length()):
            if target.mask >> source & 1:
                masks[source - target.bit] = masks.get(source - target.bit, 0) | unit << target.bit
    table = layout.table().ravel()
    moves = (
        Moves(False, tuple(pads)),
        Moves(False, tuple(interval)),
        Moves(True, tuple(sorted(masks.items()))),
    )
    remap = Remap(tuple(one for one in moves if one.terms), int(table.max()) + unit)
    if not np.array_equal(remap.apply(np.arange(table.size) * unit), table):
        raise LayoutError("the layout is not its own pads and flips")
    return remap
