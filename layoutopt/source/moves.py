"""Layouts that sources are given: pads of rows, and XORs of whole vectors within rows.

pad   e + e / W * p                 rows of W elements lie W + p apart
XOR   (e & -n ^ f) + (e & n - 1)    f = (r >> s & m) * n moves vectors of n elements within row r = e / W
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from layoutopt.ground.arrays import IntArray

_BANKS_BYTES: Final = 128
# Rows that an XOR tells apart lie at most so many doublings apart.
_MOST_SHIFT: Final = 5


@dataclass(frozen=True, slots=True)
class Move:
    """Where the bytes of an array go.

    Attributes:
        row: bytes of a row.
        extra: bytes between rows; 0 for an XOR.
        terms: of an XOR: (s, m), of which f is the XOR.
        unit: bytes of the vectors that stay together.
        line: bytes of a row as it is declared, where that has several of these rows; else 0.
    """

    row: int
    extra: int = 0
    terms: tuple[tuple[int, int], ...] = ()
    unit: int = 1
    line: int = 0

    def apply(self, offsets: IntArray) -> IntArray:
        """Where bytes at these offsets go."""
        if self.line and self.extra:
            lines, columns = offsets // self.line, offsets % self.line
            return lines * self.longer + columns + columns // self.row * self.extra
        row = offsets // self.row
        moved = offsets + row * self.extra
        for shift, mask in self.terms:
            moved = moved ^ ((row >> shift & mask) * self.unit)
        return moved

    def size(self, before: int) -> int:
        """Bytes of an array of so many bytes: whole rows of an XOR, and no pad behind the last row."""
        if self.terms:
            return -(-before // self.block) * self.block
        if self.line:
            return before // self.line * self.longer
        return before + (before - 1) // self.row * self.extra

    @property
    def longer(self) -> int:
        """Bytes of a declared row with its pads."""
        return self.line + self.line // self.row * self.extra

    def bytes(self, n: str, bare: bool) -> str:
        """The same in C, for bytes that a launch computes; `bare` if n needs no brackets."""
        n = n if bare else f"({n})"
        if self.extra:
            return f"{n} + {n} / {self.row} * {self.extra}"
        return f"({n} + {self.block - 1}) / {self.block} * {self.block}"

    @property
    def block(self) -> int:
        """Bytes that an XOR keeps among themselves, from every multiple of them on."""
        return max((1 << mask.bit_length()) * self.unit for _, mask in self.terms) if self.terms else 1

    @property
    def period(self) -> int:
        """Bytes behind which an array begins anew: P(period + v) is P(period) + P(v)."""
        rows = max((1 << (shift + mask.bit_length()) for shift, mask in self.terms), default=1)
        return self.row * rows

    @property
    def text(self) -> str:
        """For people."""
        if self.extra and self.line:
            return f"columns padded by {self.extra} bytes behind every {self.row}"
        if self.extra:
            return f"rows of {self.row} bytes padded by {self.extra}"
        return f"vectors of {self.unit} bytes moved by XOR within rows of {self.row}"

    def flat(self, e: str, element: int) -> str:
        """The new index of an element in C, out of the old one.

        Args:
            e: a name.
            element: bytes of one.
        """
        width = self.row // element
        if self.extra:
            times = f" * {self.extra // element}" if self.extra > element else ""
            return f"{e} + {_quotient(e, width)}{times}"
        return self._flipped(e, [_part(e, width, shift, mask) for shift, mask in self.terms], element)

    def within(self, r: str, c: str, element: int) -> str:
        """The new last coordinate of an XOR, out of the number of the row and the old one."""
        return self._flipped(c, [_part(r, 1, shift, mask) for shift, mask in self.terms], element)

    def _flipped(self, e: str, parts: list[str], element: int) -> str:
        count = self.unit // element
        f = " ^ ".join(f"({part}) * {count}" if count > 1 else f"({part})" for part in parts)
        return f"(({e} & -{count}) ^ {f}) + ({e} & {count - 1})" if count > 1 else f"{e} ^ {f}"


def _quotient(e: str, by: int) -> str:
    return f"({e} >> {by.bit_length() - 1})" if by & (by - 1) == 0 else f"{e} / {by}"


def _part(e: str, width: int, shift: int, mask: int) -> str:
    if width & (width - 1) == 0:
        shift, row = shift + width.bit_length() - 1, e
    else:
        row = f"{e} / {width}"
    return f"{row} >> {shift} & {mask}" if shift else f"{row} & {mask}"


def pads(row: int, unit: int, size: int) -> Iterator[Move]:
    """Pads of rows, in multiples of what stays together, smallest first."""
    if unit <= row < size:
        yield from (Move(row, extra, unit=unit) for extra in range(unit, _BANKS_BYTES + 1, unit))


def flips(row: int, unit: int, size: int) -> Iterator[Move]:
    """XORs of whole vectors within rows, those of fewest bits first."""
    for bits in range(1, 6):
        block = unit << bits
        if block > _BANKS_BYTES or row % block or row >= size:
            return
        for shift in range(_MOST_SHIFT + 1):
            yield Move(row, 0, ((shift, (1 << bits) - 1),), unit)
