"""Layouts that sources are given: pads of rows, XORs of whole vectors within rows, and transpositions.

pad         e + e / W * p                 rows of W elements lie W + p apart
XOR         (e & -n ^ f) + (e & n - 1)    f = (r >> s & m) * n moves vectors of n within row r = e / W
both        the XOR, + e / W * p          rows moved by XOR, then padded
transposed  c * (R + p) + r               row r and column c of R rows, which lie behind one another in planes
"""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from layoutopt.errors import LayoutError
from layoutopt.ground.arrays import IntArray
from layoutopt.layout.formula import swizzle_sources
from layoutopt.layout.layout import Layout

_BANKS_BYTES: Final = 128
# Rows that an XOR tells apart lie at most so many doublings apart.
_MOST_SHIFT: Final = 5


class Move(Struct, frozen=True):
    """Where the bytes of an array go; see the module's table."""

    row: int  # bytes of a row (W elements)
    extra: int = 0  # bytes of the pad behind each row
    terms: tuple[tuple[int, int], ...] = ()  # of an XOR: (s, m) of each part of f
    unit: int = 1  # bytes of the vectors that stay together (n elements)
    # Each row as it is declared has several of these rows, and a pad behind each of them
    inside: bool = False
    rows: int = 0  # of a transposition: how many become columns, each with `extra` bytes behind it; else 0

    def apply(self, offsets: IntArray) -> IntArray:
        """The new offsets, in bytes, of bytes at these offsets."""
        row, column = offsets // self.row, offsets % self.row
        if self.rows:
            plane = row // self.rows * (self.row // self.unit) + column // self.unit
            return plane * self.column_bytes + row % self.rows * self.unit + column % self.unit
        moved = offsets
        for shift, mask in self.terms:
            moved = moved ^ ((row >> shift & mask) * self.unit)
        return moved + row * self.extra

    def size(self, before: int) -> int:
        """Bytes of an array of `before` bytes so far: whole blocks of an XOR, no pad behind the last row."""
        if self.rows:
            return before // self.rows // self.unit * self.column_bytes
        whole = -(-before // self.block) * self.block
        return whole + (whole - (not self.inside)) // self.row * self.extra

    @property
    def column_bytes(self) -> int:
        """Bytes of a column that a transposition makes a row, its pad included."""
        return self.rows * self.unit + self.extra

    def count(self, n: str, element: int, bare: bool) -> str:
        """`size` as a C expression in elements of `element` bytes, of `n`; `bare` if n needs no brackets."""
        n, block = n if bare else f"({n})", self.block // element
        if self.terms:
            n = f"({n} + {block - 1}) / {block} * {block}"
        return f"{n} + {n} / {self.row // element} * {self.extra // element}" if self.extra else n

    def bytes_of(self, n: str, bare: bool) -> str:
        """At least as many bytes as `size`, as a C expression; pads alone serve elements of every size."""
        common = math.gcd(self.row, self.extra)
        if self.terms or not self.extra:
            return self.count(n, 1, bare)
        n, pad = n if bare else f"({n})", self.extra // common
        return f"{n} + {n} {f'* {pad} ' if pad > 1 else ''}/ {self.row // common}"

    @property
    def block(self) -> int:
        """Bytes of the aligned blocks that an XOR maps onto themselves; 1 without an XOR."""
        return max(((1 << mask.bit_length()) * self.unit for _, mask in self.terms), default=1)

    @property
    def period_rows(self) -> int:
        """Rows after which an XOR repeats; 1 without an XOR."""
        return max((1 << (shift + mask.bit_length()) for shift, mask in self.terms), default=1)

    @property
    def text(self) -> str:
        """For people."""
        if self.rows:
            pad = f" and padded by {self.extra}" if self.extra else ""
            return f"rows of {self.row} bytes made columns of {self.rows * self.unit}{pad}"
        if self.terms:
            rows = f"rows of {max(self.row, self.block)}" + (f" padded by {self.extra}" if self.extra else "")
            return f"vectors of {self.unit} bytes moved by XOR within {rows}"
        if self.inside:
            return f"columns padded by {self.extra} bytes behind every {self.row}"
        return f"rows of {self.row} bytes padded by {self.extra}"

    def new_index(self, e: str, element: int, row: str = "") -> str:
        """The new index of an element as a C expression, such as `e ^ (e >> 5 & 7)`.

        Args:
            e: name of the old index; with `row`, of the last coordinate.
            element: bytes of one element.
            row: name of the row's number, where an XOR moves elements within a declared row.
        """
        width, vector, index = 1 if row else self.row // element, self.unit // element, e
        flips = [f"({_row_number(row or e, width, shift)} & {mask})" for shift, mask in self.terms]
        if flips:
            f = " ^ ".join(f"{flip} * {vector}" if vector > 1 else flip for flip in flips)
            index = f"(({e} & -{vector}) ^ {f}) + ({e} & {vector - 1})" if vector > 1 else f"{e} ^ {f}"
        if row or not self.extra:
            return index
        pads = _row_number(e, width)
        pads = f"({pads})" if ">>" in pads else pads
        pads = f"{pads} * {self.extra // element}" if self.extra > element else pads
        return f"({index}) + {pads}" if flips and vector == 1 else f"{index} + {pads}"


def _row_number(index: str, width: int, shift: int = 0) -> str:
    """The row of an index in rows of `width`, shifted right, as a C expression."""
    if width & (width - 1):
        index = f"{index} / {width}"
    else:
        shift += width.bit_length() - 1
    return f"{index} >> {shift}" if shift else index


def pads(row: int, unit: int, size: int) -> Iterator[Move]:
    """Pads of rows, in multiples of what stays together, smallest first."""
    if unit <= row < size:
        yield from (Move(row, extra, unit=unit) for extra in range(unit, _BANKS_BYTES + 1, unit))


def transpositions(row: int, unit: int, size: int) -> Iterator[Move]:
    """Rows made columns, with pads in multiples of an element, smallest first; `size` is that of a plane."""
    if unit < row < size and size % row == 0:
        for extra in range(0, _BANKS_BYTES, unit):
            yield Move(row, extra, unit=unit, rows=size // row)


def move_of(layout: Layout) -> Move:
    """What a layout does to an array that lies row-major.

    Raises:
        LayoutError: it is not one pad, and not an XOR.
    """
    element, offsets = layout.element_bytes, layout.table().ravel()
    plain = np.arange(offsets.size, dtype=np.int64) * element
    if masks := swizzle_sources(layout):
        low, near = layout.swizzle[0].bit, min(masks)
        terms = tuple((far - near, mask >> low) for far, mask in sorted(masks.items()))
        move = Move(element << low + near, 0, terms, element << low)
    else:
        first = int((offsets != plain).argmax())  # the first element behind a pad
        row, extra = max(first, 1) * element, int(offsets[first] - plain[first])
        move = Move(row, extra, unit=(row | extra) & -(row | extra))
    if not (move.terms or move.extra > 0) or not np.array_equal(move.apply(plain), offsets):
        raise LayoutError("expected a layout that pads rows, or moves elements by XOR")
    return move


def flips(row: int, unit: int, size: int, padded: bool = False) -> Iterator[Move]:
    """XORs of whole vectors within rows, those of fewest bits first; rows may be padded by a vector, too."""
    for bits in range(1, 6):
        block = unit << bits
        if block > _BANKS_BYTES or row % block or row >= size:
            return
        for shift in range(_MOST_SHIFT + 1):
            yield Move(row, unit * padded, ((shift, (1 << bits) - 1),), unit)
