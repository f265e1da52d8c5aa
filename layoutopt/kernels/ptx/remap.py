"""A layout as what it does to byte offsets of a row-major array: pads, then an XOR of shifted bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.errors import LayoutError
from layoutopt.ground.arrays import IntArray
from layoutopt.layout.layout import Layout


@dataclass(frozen=True, slots=True)
class Remap:
    """Byte offsets to byte offsets.

    `v = o + sum(o // every * extra)` over `pads`, then `v + v // every * extra` for `interval`, then
    `v ^ (v >> shift & mask) ^ ...` over `flips`.

    Attributes:
        pads: (every, extra), bytes, both of the offset in the plain array.
        interval: the same of what the pads leave; None without one.
        flips: (shift, mask), bits of byte offsets.
        size: bytes of the array then.
    """

    pads: tuple[tuple[int, int], ...]
    interval: tuple[int, int] | None
    flips: tuple[tuple[int, int], ...]
    size: int

    @property
    def moves(self) -> bool:
        """Whether any offset changes."""
        return bool(self.pads or self.interval or self.flips)

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
        moved = offsets.copy()
        for every, extra in self.pads:
            moved += offsets // every * extra
        if self.interval is not None:
            moved += moved // self.interval[0] * self.interval[1]
        found = moved.copy()
        for shift, mask in self.flips:
            found ^= moved >> shift & mask
        return found


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
    interval = (layout.interval[0] * unit, layout.interval[1] * unit) if layout.interval[0] else None
    masks: dict[int, int] = {}
    for target in layout.swizzle:
        for source in range(target.mask.bit_length()):
            if target.mask >> source & 1:
                masks[source - target.bit] = masks.get(source - target.bit, 0) | unit << target.bit
    table = layout.table().ravel()
    remap = Remap(tuple(pads), interval, tuple(sorted(masks.items())), int(table.max()) + unit)
    if not np.array_equal(remap.apply(np.arange(table.size) * unit), table):
        raise LayoutError("the layout is not its own pads and flips")
    return remap
