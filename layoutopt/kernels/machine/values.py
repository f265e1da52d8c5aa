"""A register of every lane, as bits of which some are not known, and what instructions make of such numbers.

A `Value` is what one register holds: for every warp (rows) and lane (columns) a number of at most 64 bits,
and which of its bits are unknown. Axes along which nothing differs have length 1, so that a constant costs
nothing: shapes are those that numpy broadcasts to (warps, lanes). Where a bit is unknown, `bits` has 0 in it.
Widths are in bits; a value fits its width. What a function says is known is known for every value of the
unknown bits; it may say too little.

Of numbers that differ between the blocks of a box of a grid, more is said where it follows from the indices
of the blocks: between which numbers they lie, and how they rise with the indices, so that their differences
are known. In blocks 1 to 41, 8 times the index is 8 to 328, and 8 less than that of the next one.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from layoutopt.ground.arrays import IntArray

_ONE: Final = np.uint64(1)
_ZERO: Final = np.uint64(0)

Bits = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_MASKS: Final = [np.uint64((1 << width) - 1) for width in range(65)]
NO_BITS: Final[Bits] = np.zeros((1, 1), np.uint64)


class Line(NamedTuple):
    """Numbers that rise evenly with the index of a block: the first ones, and by how much along each axis."""

    first: Bits
    slopes: tuple[int, ...]


class Bounds(NamedTuple):
    """The least and the greatest number that a value may be, unsigned, and in which lanes that is so."""

    first: Bits
    last: Bits
    holds: Bools | bool = True


class Value(NamedTuple):
    """One register of every lane."""

    bits: Bits  # uint64, broadcastable to (warps, lanes)
    unknown: Bits = NO_BITS  # which bits are unknown, likewise; `NO_BITS` itself where all are known
    within: Bounds | None = None  # likewise, in all lanes; None where the bits say it
    # What it is in the first block of the box, likewise, and by how much it rises with each index along x, y,
    # z, modulo 2**width; None where it is not known to rise so
    line: Line | None = None
    # In which warps all lanes that live have the same, shape (warps, 1), also where bits are unknown
    alike: Bools | None = None

    @property
    def sure(self) -> bool:
        """Whether all bits are known."""
        return self.unknown is NO_BITS

    @property
    def most(self) -> Bits:
        """The number with all unknown bits set."""
        return self.bits if self.sure else self.bits | self.unknown

    @property
    def span(self) -> tuple[Bits, Bits]:
        """The least and the greatest number that it may be, unsigned."""
        return self.within[:2] if self.within is not None else (self.bits, self.most)

    @property
    def parts(self) -> tuple[Bits, ...]:
        """All that is said of it, as tables."""
        first, slopes = self.line or (self.bits, (0, 0, 0))
        alike = NO_BITS if self.sure or self.alike is None else self.alike.astype(np.uint64)
        return (self.bits, self.unknown, *self.span, first, np.array([slopes], np.uint64), alike)

    def each(self, function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> "Value":
        """The same said of other lanes or rows, which `function` takes out of a table."""
        within = self.within and Bounds(*map(function, self.span))
        line = self.line and self.line._replace(first=function(self.line.first))
        alike = None if self.alike is None else function(self.alike)
        return Value(
            function(self.bits), NO_BITS if self.sure else function(self.unknown), within, line, alike
        )


def mask(width: int) -> np.uint64:
    """The lowest `width` bits."""
    return _MASKS[width]


def constant(number: int, width: int = 32) -> Value:
    """A number that every lane knows."""
    return Value(np.array([[number & ((1 << width) - 1)]], np.uint64))


ZERO: Final = constant(0)
TRUE: Final = constant(1)


def known(numbers: npt.NDArray[Any], width: int = 32) -> Value:
    """Numbers of lanes, negative ones in two's complement."""
    return Value(numbers.astype(np.int64).view(np.uint64) & mask(width))


def unknown(width: int = 32) -> Value:
    """Nothing is known."""
    return Value(NO_BITS, np.array([[mask(width)]], np.uint64))


def signed(bits: Bits, width: int) -> npt.NDArray[np.int64]:
    """The numbers read in two's complement."""
    shift = np.uint64(64 - width)
    return (bits << shift).view(np.int64) >> shift.astype(np.int64)


def made(bits: Bits, hidden: Bits, width: int, within: Bounds | None = None) -> Value:
    """A value cut to its width, unknown bits 0.

    Bounds are of the number before it is cut, modulo 2**64: where both have the same bits above the width,
    the value lies between what is left of them. Bits above the first in which they differ are then known.
    """
    keep = mask(width)
    if hidden is NO_BITS:
        return Value(bits & keep)
    hidden = hidden & keep
    if not hidden.any():
        return Value(bits & keep)
    bits = bits & keep & ~hidden
    if within is None:
        return Value(bits, hidden)
    first, last, holds = within
    holds = holds & ((first ^ last) & ~keep == 0)
    first = np.where(holds, np.maximum(first & keep, bits), bits)
    last = np.where(holds, np.minimum(last & keep, bits | hidden), bits | hidden)
    common = hidden & ~downward(first ^ last)
    bits, hidden = bits | first & common, hidden & ~common
    if not hidden.any():
        return Value(bits)
    is_closer = ((first > bits) | (last < bits | hidden)).any()
    return Value(bits, hidden, Bounds(first, last) if is_closer else None)


def _spanned(*values: Value) -> bool:
    """Whether more is said of one than its bits."""
    return any(value.within is not None or value.line is not None for value in values)


def lined(value: Value, line: Line | None, width: int) -> Value:
    """The value, which lies on a line, too."""
    if value.sure or line is None:
        return value
    slopes = tuple(slope & int(mask(width)) for slope in line.slopes)
    first = line.first & mask(width)
    return value._replace(line=Line(first, slopes)) if any(slopes) else Value(first)


def _line(value: Value) -> Line | None:
    return Line(value.bits, (0, 0, 0)) if value.sure else value.line


def _scaled(line: Line | None, by: Value) -> Line | None:
    """A line times a number that all lanes have."""
    if line is None or not by.sure or by.bits.size > 1:
        return None
    return Line(line.first * by.bits, tuple(slope * int(by.bits[0, 0]) for slope in line.slopes))


def hidden_where(where: Bools, value: Value, width: int) -> Value:
    """The value, unknown as a whole in these lanes; the same where there are none."""
    return made(value.bits, np.where(where, mask(width), value.unknown), width) if where.any() else value


def cut(value: Value, width: int = 32) -> Value:
    """The lowest bits; of a pair, its low register."""
    return lined(made(value.bits, value.unknown, width, value.within), value.line, width)


def of_lane(value: Value, lane: IntArray, shape: tuple[int, ...]) -> Value:
    """The value of another lane in each lane of each warp.

    Args:
        value: of all lanes.
        lane: which, shape (warps, 1) or (warps, 32).
        shape: (warps, 32).
    """

    def chosen(table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.take_along_axis(np.broadcast_to(table, shape), lane, axis=1)

    return value._replace(alike=None).each(chosen)


def mask_of(lanes: Bools) -> Bits:
    """Lanes as bits, along the last axis, which stays with length 1."""
    every = np.broadcast_to(lanes, (*lanes.shape[:-1], 32))
    return np.packbits(every, axis=-1, bitorder="little").view("<u4").astype(np.uint64)


def downward(bits: Bits) -> Bits:
    """The highest bit that is set and all below it."""
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> np.uint64(shift))
    return bits


def lowest(bits: Bits) -> Bits:
    """The lowest bit that is set."""
    return bits & (~bits + _ONE)


def mapped(function: Callable[..., Bits], width: int, *values: Value) -> Value:
    """`function` of the numbers where all of them are known, else unknown as a whole."""
    found = made(function(*(value.bits for value in values)), NO_BITS, width)
    for value in values:
        if not value.sure:
            found = hidden_where(value.unknown != 0, found, width)
    return found


def add(*values: Value, width: int = 32) -> Value:
    """The sum; the carry out of `width` bits is `shift_right` of a sum at a larger width."""
    total = reduce(_sum, values)
    return cut(total, width)


def _sum(a: Value, b: Value) -> Value:
    """The sum modulo 2**64.

    Carries rise with the numbers: where the least and the greatest numbers carry alike into a bit, all do.
    """
    least = a.bits + b.bits
    if a.sure and b.sure:
        return Value(least)
    greatest = a.most + b.most
    hidden = (least ^ a.bits ^ b.bits) ^ (greatest ^ a.most ^ b.most) | a.unknown | b.unknown
    if not _spanned(a, b):
        return Value(least & ~hidden, hidden)
    first, last = (x + y for x, y in zip(a.span, b.span, strict=True))
    total = made(least, hidden, 64, Bounds(first, last, (first < a.span[0]) == (last < a.span[1])))
    one, other = _line(a), _line(b)
    if one is None or other is None:
        return total
    slopes = tuple(x + y for x, y in zip(one.slopes, other.slopes, strict=True))
    return lined(total, Line(one.first + other.first, slopes), 64)


def negate(value: Value, width: int = 32) -> Value:
    """Two's complement."""
    return add(invert(value, width), TRUE, width=width)


def invert(value: Value, width: int = 32) -> Value:
    """Every bit the other way."""
    within = value.within and Bounds(~value.within.last, ~value.within.first)
    line = value.line and Line(~value.line.first, tuple(-slope for slope in value.line.slopes))
    return lined(made(~value.bits, value.unknown, width, within), line, width)


def subtract(a: Value, b: Value, width: int = 32) -> Value:
    """The difference."""
    return add(a, invert(b, width), TRUE, width=width)


def multiply(a: Value, b: Value, width: int = 32) -> Value:
    """The low bits of the product; low and high bits that must be 0 are known."""
    bits = a.bits * b.bits
    if a.sure and b.sure:
        return Value(bits & mask(width))
    one, other = (a, b) if b.sure else (b, a)
    if other.sure and not (other.bits & (other.bits - _ONE)).any():  # a shift
        hidden = one.unknown * other.bits
    else:
        # a*b - known*known = known_a*hidden_b + hidden_a*known_b + hidden_a*hidden_b, each a multiple of the
        # product of the lowest bits that may be set in its factors. One beyond bit 63 is 0, as it should be.
        set_a, set_b, hidden_a, hidden_b = map(lowest, (a.bits, b.bits, a.unknown, b.unknown))
        # Unknown are the lowest unknown bit and all above it.
        hidden = ~(lowest(set_a * hidden_b | hidden_a * set_b | hidden_a * hidden_b) - _ONE)
        fits = a.most.astype(np.float64) * b.most.astype(np.float64) < 2.0**63
        hidden = hidden & np.where(fits, downward(a.most * b.most), ~_ZERO)
    return lined(made(bits, hidden, width, _times(one, other, width)), _scaled(one.line, other), width)


def _times(a: Value, b: Value, width: int) -> Bounds | None:
    """Between which numbers lies a product with a number that is known."""
    if a.within is None or not b.sure:
        return None
    by = signed(b.bits, width)
    first, last = (end * by.view(np.uint64) for end in a.span)
    fits = a.within.last.astype(np.float64) * np.abs(by) < 2.0**62
    return Bounds(np.where(by < 0, last, first), np.where(by < 0, first, last), fits)


def extend(value: Value, width: int, to: int = 64) -> Value:
    """Sign extension from `width` bits."""
    if value.sure:
        return made(signed(value.bits, width).view(np.uint64), NO_BITS, to)
    bits, hidden, first, last = (signed(part, width).view(np.uint64) for part in value.parts[:4])
    alike = ((first ^ last) >> np.uint64(63) == 0) & (value.span[1] <= mask(width))
    return made(bits, hidden, to, value.within and Bounds(first, last, alike))


def join(low: Value, high: Value) -> Value:
    """64 bits out of two registers."""
    shift = np.uint64(32)
    hidden = low.unknown if high.sure else low.unknown | (high.unknown << shift)
    within = None
    if _spanned(low, high):
        within = Bounds(*(x | (y << shift) for x, y in zip(low.span, high.span, strict=True)))
    return made(low.bits | (high.bits << shift), hidden, 64, within)


def high(value: Value) -> Value:
    """The high register of a pair."""
    return shift_right(value, constant(32), 64)


def _shifted(value: Value, amount: Value, shift: Callable[[Bits, Bits], Bits], width: int) -> Value:
    by = amount.bits

    def move(bits: Bits) -> Bits:
        if by.size == 1:
            return shift(bits, by) if by[0, 0] < width else np.zeros_like(bits)
        return np.where(by >= np.uint64(width), _ZERO, shift(bits, np.minimum(by, np.uint64(63))))

    if shift is np.right_shift:
        return _moved(value, amount, move, width)
    fits = value.span[1].astype(np.float64) * 2.0 ** by.astype(np.float64) < 2.0**63
    line = _scaled(value.line, amount._replace(bits=move(_ONE + NO_BITS)))
    return lined(_moved(value, amount, move, width, fits), line, width)


def _moved(
    value: Value, amount: Value, move: Callable[[Bits], Bits], width: int, rises: Bools | bool = True
) -> Value:
    """The value moved; where that `rises`, a larger number never becomes a smaller one."""
    within = value.within and Bounds(move(value.span[0]), move(value.span[1]), rises)
    found = made(move(value.bits), NO_BITS if value.sure else move(value.unknown), width, within)
    return found if amount.sure else hidden_where((amount.unknown != 0) & (value.most != 0), found, width)


def shift_left(value: Value, amount: Value, width: int = 32) -> Value:
    """Shifted towards higher bits; amounts from `width` on leave 0."""
    return _shifted(value, amount, np.left_shift, width)


def shift_right(value: Value, amount: Value, width: int = 32) -> Value:
    """Shifted towards lower bits, zeros coming in; amounts from `width` on leave 0."""
    return _shifted(value, amount, np.right_shift, width)


def shift_right_signed(value: Value, amount: Value, width: int = 32) -> Value:
    """Shifted towards lower bits, copies of the sign coming in."""

    places = np.minimum(amount.bits, np.uint64(width - 1)).astype(np.int64)
    first, last = value.span
    alike = (first ^ last) >> np.uint64(width - 1) == 0
    return _moved(value, amount, lambda bits: (signed(bits, width) >> places).view(np.uint64), width, alike)


def both(a: Value, b: Value, width: int = 32) -> Value:
    """AND; a known 0 decides."""
    if a.sure and b.sure:
        return Value(a.bits & b.bits)
    return made(a.bits & b.bits, (a.unknown | b.unknown) & a.most & b.most, width)


def either(a: Value, b: Value, width: int = 32) -> Value:
    """OR; a known 1 decides."""
    return invert(both(invert(a, width), invert(b, width), width), width)


def differ(a: Value, b: Value, width: int = 32) -> Value:
    """XOR."""
    hidden = NO_BITS if a.sure and b.sure else a.unknown | b.unknown
    return made(a.bits ^ b.bits, hidden, width)


def table3(a: Value, b: Value, c: Value, lut: int, width: int = 32) -> Value:
    """Bit by bit, bit (a << 2 | b << 1 | c) of an 8-bit table; unknown only where it matters."""
    # Where each source may be 1, and where it may be 0.
    options = [(value.most, ~value.bits) for value in (a, b, c)]
    may = [NO_BITS, NO_BITS]  # where the result may be 0, and where it may be 1
    for case in range(8):
        here = options[0][1 - (case >> 2 & 1)] & options[1][1 - (case >> 1 & 1)] & options[2][1 - (case & 1)]
        may[lut >> case & 1] = may[lut >> case & 1] | here
    return made(may[1], may[1] & may[0], width)


def select(condition: Value, yes: Value, no: Value) -> Value:
    """`yes` where the condition is 1; where it is unknown, what both agree on."""
    found = chosen(condition.bits != 0, yes, no)
    if condition.sure:
        return found
    disagree = (yes.bits ^ no.bits) | yes.unknown | no.unknown
    within = None
    if _spanned(yes, no):
        (a, b), (c, d), open_ = yes.span, no.span, condition.unknown != 0
        first, last = found.span
        within = Bounds(np.where(open_, np.minimum(a, c), first), np.where(open_, np.maximum(b, d), last))
    return made(found.bits, np.where(condition.unknown != 0, disagree, found.unknown), 64, within)


def chosen(taken: Bools, yes: Value, no: Value) -> Value:
    """`yes` in these lanes, `no` in the others."""
    if taken.size == 1:
        return yes if taken[0, 0] else no
    hidden = NO_BITS if yes.sure and no.sure else np.where(taken, yes.unknown, no.unknown)
    bits = np.where(taken, yes.bits, no.bits)
    if not _spanned(yes, no):
        return Value(bits, hidden) if hidden is NO_BITS or hidden.any() else Value(bits)
    within = Bounds(*(np.where(taken, x, y) for x, y in zip(yes.span, no.span, strict=True)))
    found = made(bits, hidden, 64, within)
    one, other = _line(yes), _line(no)
    if one is None or other is None or one.slopes != other.slopes:
        return found
    return lined(found, Line(np.where(taken, one.first, other.first), one.slopes), 64)


def _range(value: Value, width: int, is_signed: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The least and the greatest number that the value may be."""
    first, last = value.span
    if not is_signed:
        return (first, last) if width > 32 else (first.view(np.int64), last.view(np.int64))
    unsure = value.unknown & np.uint64(1 << (width - 1))
    least, most = signed(value.bits | unsure, width), signed(value.most & ~unsure, width)
    if value.within is None:
        return least, most
    return np.where(unsure, least, signed(first, width)), np.where(unsure, most, signed(last, width))


def _decided(surely: Bools, undecided: Bools) -> Value:
    """A predicate: where it holds, and where it is not known."""
    return made((surely & ~undecided).astype(np.uint64), undecided.astype(np.uint64), 1)


def less(a: Value, b: Value, width: int = 32, is_signed: bool = True, or_equal: bool = False) -> Value:
    """a < b, or a <= b: 1, 0, or unknown where the unknown bits decide."""
    (a_least, a_most), (b_least, b_most) = (_range(value, width, is_signed) for value in (a, b))
    order = np.less_equal if or_equal else np.less
    surely = order(a_most, b_least)
    if a.sure and b.sure:
        return Value(surely.astype(np.uint64))
    perhaps = order(a_least, b_most)
    if (apart := _apart(a, b, width)) is not None:
        # a is b + apart modulo 2**width: where that sum is a number of the width for all b, apart decides.
        end = 1 << (width - 1) if is_signed else 1 << width
        fits = (b_least + apart >= (-end if is_signed else 0)) & (b_most + apart < end)
        surely, perhaps = (np.where(fits, order(apart, 0), one) for one in (surely, perhaps))
    return _decided(surely, perhaps & ~surely)


def _apart(a: Value, b: Value, width: int) -> npt.NDArray[np.int64] | None:
    """a - b, modulo 2**width, where both rise alike; None where that is not known."""
    if width > 32 or a.line is None or b.line is None or a.line.slopes != b.line.slopes:
        return None
    return signed((a.line.first - b.line.first) & mask(width), width)


def equal(a: Value, b: Value) -> Value:
    """a == b; two known bits that differ decide."""
    apart = a.bits ^ b.bits
    if a.sure and b.sure:
        return Value((apart == 0).astype(np.uint64))
    hidden = a.unknown | b.unknown
    open_: Bools = (hidden != 0) & ((apart & ~hidden) == 0)
    if _spanned(a, b):
        (a_first, a_last), (b_first, b_last) = a.span, b.span
        open_ = open_ & (a_first <= b_last) & (b_first <= a_last)
    return _decided((apart == 0) & (hidden == 0), open_)


def compare(name: str, a: Value, b: Value, width: int = 32, is_signed: bool = True) -> Value:
    """A comparison by its name: lt, le, gt, ge, eq, ne."""
    if name in ("eq", "ne"):
        return equal(a, b) if name == "eq" else invert(equal(a, b), 1)
    if name[0] == "g":
        a, b = b, a
    return less(a, b, width, is_signed, or_equal=name[1] == "e")


def least(a: Value, b: Value, width: int = 32, is_signed: bool = True) -> Value:
    """The smaller one."""
    return select(less(a, b, width, is_signed, or_equal=True), a, b)


def greatest(a: Value, b: Value, width: int = 32, is_signed: bool = True) -> Value:
    """The larger one."""
    return select(less(a, b, width, is_signed), b, a)
