"""Layouts: coordinates to byte offset.

Always that direction, because that is what a kernel computes: the thread knows which element it
wants and needs its address. (Triton's `LinearLayout` maps the other way for registers, where the
hardware location is known and the element is sought.)

A layout is `offset(x) = X(L(x))`.

**L, the linearisation**, cuts coordinates into digits and gives each digit a stride. A 4x4 tile,
row-major, is two digits: x0 with stride 4 and x1 with stride 1. Offsets, rows down:

         x1=0   1   2   3        pitch 5 (pad 1)         x1 split in two: 2-column pages
    x0=0    0   1   2   3        0   1   2   3           0   1 |  8   9
       1    4   5   6   7        5   6   7   8           2   3 | 10  11
       2    8   9  10  11       10  11  12  13           4   5 | 12  13
       3   12  13  14  15       15  16  17  18           6   7 | 14  15

With 4 banks of one element, column 0 of the first table is 0, 4, 8, 12: all in bank 0. Pitch 5
puts it in banks 0, 1, 2, 3, for 3 elements more (19, not 20: the last row needs no pad).
Padding, interval padding (`i + P * (i // N)`), dimension order and pages are all this one form. A
linearisation may also **rotate** its lines, which lie at multiples of one pitch: element c of line r goes
to place `(c + turn * r) % N` of it.

**X, the swizzle**, flips low bits of the offset by parities of higher ones. Flip both bits of the
column by both bits of the row (target bit 0 by mask 0b0100, target bit 1 by mask 0b1000):

         x1=0   1   2   3
    x0=0    0   1   2   3
       1    5   4   7   6
       2   10  11   8   9
       3   15  14  13  12

Column 0 is now 0, 5, 10, 15: banks 0, 1, 2, 3, and no byte more. Because every mask holds only bits
above its target, X is unit triangular over F2 and so a permutation of each aligned block.

CuTe's `Swizzle<B, M, S>` is the case of B targets M, M+1, ..., each with the one-bit mask S above
it.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct
from msgspec.structs import replace

from layoutopt.errors import LayoutError
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.escape import described
from layoutopt.layout.forms import Form, linear_columns, padded_form, swizzle_between

# What a file may say: far beyond shared memory, and far from where integers of 64 bits wrap.
MAX_BITS: Final = 40
Extent = Annotated[int, Meta(ge=1, le=1 << 21)]
Count = Annotated[int, Meta(ge=1, le=1 << MAX_BITS)]
Offset = Annotated[int, Meta(ge=0, le=1 << MAX_BITS)]


class Digit(Struct, frozen=True):
    """A piece of one coordinate, `x_dim // divide % size`, and how far one step of it goes."""

    dim: Annotated[int, Meta(ge=0)]  # which coordinate
    divide: Count  # divisor; 1 takes the coordinate from its lowest digit
    size: Count  # number of values
    stride: Offset  # elements from one value to the next


class Target(Struct, frozen=True):
    """One output bit of the swizzle: the parity of `offset & mask` flips bit `bit` of the offset."""

    bit: Annotated[int, Meta(ge=0, lt=MAX_BITS)]
    mask: Annotated[int, Meta(ge=0, lt=1 << MAX_BITS)]


class Layout(Struct, frozen=True):
    """Coordinates to byte offset.

    Attributes:
        shape: extent of each dimension, in elements.
        element_bytes: bytes of a unit, which is an element or a byte of packed ones.
        digits: the linearisation, slowest digit first.
        swizzle: the targets, lowest bit first; empty for none. Bits count elements, not bytes.
        turn: elements by which each line (one run of the innermost digit) is rotated against the
            line before it; 0 for none.
        packed: elements that share a unit, neighbours along the last dimension; the digits of that
            dimension then count units. 1 for elements of whole bytes.
        interval: (every, extra): after every so many elements of the linearisation, so many more are left
            out (`v + v // every * extra`); (0, 0) for no such pad.
        lookup: element offset of every element, by row-major index, where no formula serves; the
            digits are then empty. Of the first elements only where those come again and again, so many
            elements further on. Empty for a formula.
    """

    shape: Annotated[tuple[Extent, ...], Meta(min_length=1, max_length=8)]
    element_bytes: Annotated[int, Meta(ge=1, le=16)]
    digits: Annotated[tuple[Digit, ...], Meta(max_length=64)]
    swizzle: Annotated[tuple[Target, ...], Meta(max_length=MAX_BITS)] = ()
    turn: Offset = 0
    packed: Annotated[int, Meta(ge=1, le=8)] = 1
    lookup: tuple[Offset, ...] = ()
    interval: tuple[Offset, Offset] = (0, 0)

    def __post_init__(self) -> None:
        if self.shape[-1] % self.packed:
            raise LayoutError(f"{self.packed} elements share a unit, and a line has {self.shape[-1]}")
        if self.lookup:
            if (
                self.digits
                or self.swizzle
                or self.turn
                or math.prod(self.shape) % (self.packed * len(self.lookup))
            ):
                raise LayoutError("a lookup holds one offset for each element, or of one period")
            if self.is_periodic and max(self.lookup) >= len(self.lookup):
                raise LayoutError("the offsets of a period lie in its own elements")
            return
        if not self.digits or any(digit.dim >= len(self.shape) for digit in self.digits):
            raise LayoutError(f"expected digits of x0 to x{len(self.shape) - 1}")
        for target in self.swizzle:
            if target.mask & ((2 << target.bit) - 1) or target.mask < 0:
                raise LayoutError(
                    f"swizzle target {target.bit}: the mask must hold only higher bits, not {target.mask:#x}"
                )
        inner = self.digits[-1]
        if self.turn and (
            inner.stride != 1
            or self.pitch < inner.size
            or any(d.stride % self.pitch for d in self.digits[:-1])
        ):
            raise LayoutError(
                "lines can be rotated only where they are whole and lie at multiples of one pitch"
            )
        if min(self.interval) < 0 or (self.interval[0] == 0) != (self.interval[1] == 0):
            raise LayoutError(f"an interval pad has a length and a pad of 1 or more, not {self.interval}")
        for d, extent in enumerate((*self.shape[:-1], self.shape[-1] // self.packed)):
            pieces = sorted((digit.divide, digit.size) for digit in self.digits if digit.dim == d)
            reach = 1
            for divide, size in pieces:
                if divide != reach:
                    raise LayoutError(f"the digits of x{d} must cover it without gap or overlap")
                reach *= size
            if reach < extent:
                raise LayoutError(f"the digits of x{d} reach {reach} values, but its extent is {extent}")

    @property
    def is_periodic(self) -> bool:
        """Whether a table of some elements serves all."""
        return 0 < self.packed * len(self.lookup) < math.prod(self.shape)

    @property
    def pitch(self) -> int:
        """Elements from one line (a run of the innermost digit) to the next."""
        return self.digits[-2].stride if len(self.digits) > 1 else self.digits[-1].size

    def element_offset(self, *coordinates: npt.ArrayLike) -> IntArray:
        """Offset in elements; coordinates are integers or arrays that broadcast.

        Raises:
            LayoutError: not one coordinate per dimension, no integer, or none of the tile.
        """
        unit = self._unit_offset(self._inside(coordinates))
        return unit * self.packed + _integers(coordinates[-1]) % self.packed

    def _inside(self, coordinates: tuple[npt.ArrayLike, ...]) -> list[IntArray]:
        if len(coordinates) != len(self.shape):
            raise LayoutError(f"expected {len(self.shape)} coordinates, got {len(coordinates)}")
        x = [_integers(c) for c in coordinates]
        for d, (values, extent) in enumerate(zip(x, self.shape, strict=True)):
            if (outside := values[(values < 0) | (values >= extent)]).size:
                raise LayoutError(f"x{d}: expected 0 to {extent - 1}, got {outside[0]}")
        return x

    def _unit_offset(self, coordinates: Sequence[IntArray]) -> IntArray:
        """Offset in units."""
        x = [*coordinates[:-1], coordinates[-1] // self.packed]
        if self.lookup:
            units = (*self.shape[:-1], self.shape[-1] // self.packed)
            index = np.ravel_multi_index(np.broadcast_arrays(*x), units)
            in_period, count = np.array(self.lookup, np.int64), len(self.lookup)
            return in_period[index % count] + index // count * count
        values = [x[d.dim] // d.divide % d.size for d in self.digits]
        linear = np.zeros(np.broadcast_shapes(*(c.shape for c in x)), np.int64)
        for digit, value in zip(self.digits[:-1], values[:-1], strict=True):
            linear = linear + value * digit.stride
        inner = self.digits[-1]
        turned = (values[-1] + linear // self.pitch * self.turn) % inner.size if self.turn else values[-1]
        linear = linear + turned * inner.stride
        if self.interval[0]:
            linear = linear + linear // self.interval[0] * self.interval[1]
        offset = linear
        for target in self.swizzle:
            odd = (np.bitwise_count(linear & target.mask) & 1).astype(np.int64)
            offset = offset ^ (odd << target.bit)
        return offset

    def byte_offset(self, *coordinates: npt.ArrayLike) -> IntArray:
        """Offset in bytes; coordinates are integers or arrays that broadcast.

        Raises:
            LayoutError: not one coordinate per dimension, no integer, or none of the tile.
        """
        return self._unit_offset(self._inside(coordinates)) * self.element_bytes

    def table(self) -> IntArray:
        """Byte offset of every element, int64, in the shape of the tile."""
        return self._unit_offset(np.indices(self.shape, sparse=True)) * self.element_bytes

    def linear_bases(self) -> Form:
        """What each bit of each coordinate adds to the offset in elements, by XOR: a list a dimension."""
        columns = linear_columns(self._elements())
        return Form(columns) if columns is not None else Form(None, "the offset is not linear over F2")

    def cute(self) -> Form:
        """CuTe's `shape` and `stride`, nested where a coordinate is cut, and `swizzle`, (B, M, S) or None.

        The first digit of a mode is its fastest, as in CuTe.
        """
        if not self.digits or self.turn or self.interval[0] or self.packed > 1:
            what = "bytes of packed elements" if self.packed > 1 else "tables, turned lines and interval pads"
            return Form(None, f"{what} are no shape and stride")
        shape: list[Any] = []
        stride: list[Any] = []
        for d in range(len(self.shape)):
            digits = sorted((g for g in self.digits if g.dim == d), key=lambda g: g.divide)
            digits = [g for g in digits if g.size > 1] or digits[:1]
            shape.append(digits[0].size if len(digits) == 1 else [g.size for g in digits])
            stride.append(digits[0].stride if len(digits) == 1 else [g.stride for g in digits])
        swizzle = self.swizzle_triple()
        if self.swizzle and swizzle is None:
            return Form(None, "no Swizzle<B, M, S> flips these bits")
        return Form({"shape": shape, "stride": stride, "swizzle": swizzle})

    def swizzle_triple(self) -> tuple[int, int, int] | None:
        """B, M, S such that CuTe's `Swizzle<B, M, S>` of the linearisation is the layout, or None."""
        if self.packed > 1 or not self.swizzle or self.turn or self.interval[0]:
            return None
        linear = Layout(self.shape, self.element_bytes, self.digits)
        return swizzle_between(linear._elements(), self._elements())

    def padded(self) -> Form:
        """Triton's padded layout: `interval_padding_pairs`, and `offset_bases`, the place's bits."""
        return padded_form(self._elements())

    def _elements(self) -> IntArray:
        return self.element_offset(*np.indices(self.shape, sparse=True))

    @property
    def declared_bytes(self) -> int:
        """Bytes of an array declared with every pitch in full: `rows * pitch`, last pad included."""
        if self.is_periodic:
            return math.prod(self.shape) // self.packed * self.element_bytes
        count = max(self.lookup) + 1 if self.lookup else max(d.size * d.stride for d in self.digits)
        if self.interval[0]:
            every, extra = self.interval
            count = -(-count // every) * (every + extra)
        return count * self.element_bytes


def row_major(shape: tuple[int, ...], element_bytes: int) -> Layout:
    """The tile in its own bytes, the last dimension fastest."""
    digits = tight_digits([Digit(d, 1, extent, 1) for d, extent in enumerate(shape)])
    return Layout(shape, element_bytes, digits)


def tight_digits(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    """The digits, slowest first, with the strides that they have without pads."""
    stride, tight = 1, []
    for digit in reversed(digits):
        tight.append(replace(digit, stride=stride))
        stride *= digit.size
    return tuple(reversed(tight))


def _integers(coordinate: npt.ArrayLike) -> IntArray:
    try:
        given = np.asarray(coordinate)
    except ValueError:  # lists of different lengths
        given = np.asarray(None)
    if given.size and given.dtype.kind not in "iub":
        raise LayoutError(f"expected integers as coordinates, got {described(coordinate)}")
    return given.astype(np.int64, copy=False)
