"""Integers of which some bits are not known, over warps and lanes.

A `Value` is what one register holds: for every warp (rows) and lane (columns) a number of at most 64 bits,
and which of its bits are unknown. Axes along which nothing differs have length 1, so that a constant costs
nothing: shapes are those that numpy broadcasts to (warps, lanes). Where a bit is unknown, `bits` has 0 in it.

What a function says is known is known for every value of the unknown bits; it may say too little. Widths are
in bits; a value fits its width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_ONE: Final = np.uint64(1)
_ZERO: Final = np.uint64(0)


class Value(NamedTuple):
    """One register of every lane.

    Attributes:
        bits: uint64, broadcastable to (warps, lanes).
        unknown: which bits are unknown; None where all are known.
    """

    bits: Bits
    unknown: Bits | None = None


def mask(width: int) -> np.uint64:
    """The lowest `width` bits."""
    return np.uint64((1 << width) - 1)


def constant(number: int, width: int = 32) -> Value:
    """A number that every lane knows."""
    return Value(np.array([[number & ((1 << width) - 1)]], np.uint64))


ZERO: Final = constant(0)
TRUE: Final = constant(1)


def known(numbers: npt.NDArray[np.integer], width: int = 32) -> Value:
    """Numbers of lanes, negative ones in two's complement."""
    return Value(numbers.astype(np.int64).view(np.uint64) & mask(width))


def unknown(width: int = 32) -> Value:
    """Nothing is known."""
    return Value(np.zeros((1, 1), np.uint64), np.array([[mask(width)]], np.uint64))


def signed(bits: Bits, width: int) -> npt.NDArray[np.int64]:
    """The numbers read in two's complement."""
    shift = np.uint64(64 - width)
    return (bits << shift).view(np.int64) >> shift.astype(np.int64)


def whole(value: Value) -> Bools | None:
    """Which lanes have an unknown bit; None where none has."""
    return None if value.unknown is None else value.unknown != 0


def made(bits: Bits, hidden: Bits | None, width: int) -> Value:
    """A value cut to its width, unknown bits 0."""
    keep = mask(width)
    if hidden is None:
        return Value(bits & keep)
    hidden = hidden & keep
    if not hidden.any():
        return Value(bits & keep)
    return Value(bits & keep & ~hidden, hidden)


def mapped(function: Callable[..., Bits], width: int, *values: Value) -> Value:
    """`function` of the numbers where all of them are known, else unknown as a whole."""
    bits = function(*(value.bits for value in values))
    hidden: Bools | None = None
    for value in values:
        lanes = whole(value)
        if lanes is not None:
            hidden = lanes if hidden is None else hidden | lanes
    return made(bits, None if hidden is None else np.where(hidden, mask(width), _ZERO), width)


def _upward(hidden: Bits) -> Bits:
    """The lowest unknown bit and all above it."""
    return ~(_lowest(hidden) - _ONE)


def _downward(bits: Bits) -> Bits:
    """The highest bit that is set and all below it."""
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> np.uint64(shift))
    return bits


def _lowest(bits: Bits) -> Bits:
    return bits & (~bits + _ONE)


def _union(a: Value, b: Value) -> Bits | None:
    """Bits that are unknown in one of two."""
    if a.unknown is None or b.unknown is None:
        return b.unknown if a.unknown is None else a.unknown
    return a.unknown | b.unknown


def add(*values: Value, width: int = 32) -> Value:
    """The sum; the carry out of `width` bits is `shift_right` of a sum at a larger width."""
    total = values[0]
    for value in values[1:]:
        total = _sum(total, value)
    return made(total.bits, total.unknown, width)


def _sum(a: Value, b: Value) -> Value:
    """The sum modulo 2**64.

    Carries rise with the numbers: where the least and the greatest numbers carry alike into a bit, all do.
    """
    least = a.bits + b.bits
    if a.unknown is None and b.unknown is None:
        return Value(least)
    top_a = a.bits if a.unknown is None else a.bits | a.unknown
    top_b = b.bits if b.unknown is None else b.bits | b.unknown
    greatest = top_a + top_b
    hidden = (least ^ a.bits ^ b.bits) ^ (greatest ^ top_a ^ top_b)
    for one in (a.unknown, b.unknown):
        if one is not None:
            hidden = hidden | one
    return Value(least & ~hidden, hidden)


def negate(value: Value, width: int = 32) -> Value:
    """Two's complement."""
    return add(invert(value, width), TRUE, width=width)


def invert(value: Value, width: int = 32) -> Value:
    """Every bit the other way."""
    return made(~value.bits, value.unknown, width)


def subtract(a: Value, b: Value, width: int = 32) -> Value:
    """The difference."""
    return add(a, invert(b, width), TRUE, width=width)


def multiply(a: Value, b: Value, width: int = 32) -> Value:
    """The low bits of the product; low and high bits that must be 0 are known."""
    bits = a.bits * b.bits
    if a.unknown is None and b.unknown is None:
        return Value(bits & mask(width))
    for one, other in ((a, b), (b, a)):
        if other.unknown is None and not (other.bits & (other.bits - _ONE)).any():
            assert one.unknown is not None
            return made(bits, one.unknown * other.bits, width)  # a shift
    left = a.unknown if a.unknown is not None else _nothing()
    right = b.unknown if b.unknown is not None else _nothing()
    # a*b - known*known = known_a*hidden_b + hidden_a*known_b + hidden_a*hidden_b, each a multiple of the
    # product of the lowest bits that may be set in its factors. One beyond bit 63 is 0 here, as it should be.
    set_a, set_b, hidden_a, hidden_b = (_lowest(one) for one in (a.bits, b.bits, left, right))
    hidden = _upward(set_a * hidden_b | hidden_a * set_b | hidden_a * hidden_b)
    top_a, top_b = a.bits | left, b.bits | right
    fits = top_a.astype(np.float64) * top_b.astype(np.float64) < 2.0**63
    hidden = hidden & np.where(fits, _downward(top_a * top_b), ~_ZERO)
    return made(bits, hidden, width)


def extend(value: Value, width: int, to: int = 64) -> Value:
    """Sign extension from `width` bits."""
    bits = signed(value.bits, width).view(np.uint64)
    hidden = None if value.unknown is None else signed(value.unknown, width).view(np.uint64)
    return made(bits, hidden, to)


def join(low: Value, high: Value) -> Value:
    """64 bits out of two registers."""
    shift = np.uint64(32)
    hidden = low.unknown
    if high.unknown is not None:
        upper = high.unknown << shift
        hidden = upper if hidden is None else hidden | upper
    return made(low.bits | (high.bits << shift), hidden, 64)


def low(value: Value) -> Value:
    """The low register of a pair."""
    return made(value.bits, value.unknown, 32)


def high(value: Value) -> Value:
    """The high register of a pair."""
    return shift_right(value, constant(32), 64)


def _shifted(value: Value, amount: Value, move: Callable[[Bits, Bits], Bits], width: int) -> Value:
    bits = move(value.bits, amount.bits)
    hidden = None if value.unknown is None else move(value.unknown, amount.bits)
    lanes = whole(amount)
    if lanes is not None:
        may = value.bits if value.unknown is None else value.bits | value.unknown
        hidden = np.where(lanes & (may != 0), mask(width), _ZERO if hidden is None else hidden)
    return made(bits, hidden, width)


def shift_left(value: Value, amount: Value, width: int = 32) -> Value:
    """Shifted towards higher bits; amounts from `width` on leave 0."""

    def move(bits: Bits, by: Bits) -> Bits:
        return np.where(by >= np.uint64(width), _ZERO, bits << np.minimum(by, np.uint64(63)))

    return _shifted(value, amount, move, width)


def shift_right(value: Value, amount: Value, width: int = 32) -> Value:
    """Shifted towards lower bits, zeros coming in; amounts from `width` on leave 0."""

    def move(bits: Bits, by: Bits) -> Bits:
        return np.where(by >= np.uint64(width), _ZERO, bits >> np.minimum(by, np.uint64(63)))

    return _shifted(value, amount, move, width)


def shift_right_signed(value: Value, amount: Value, width: int = 32) -> Value:
    """Shifted towards lower bits, copies of the sign coming in."""

    def move(bits: Bits, by: Bits) -> Bits:
        places = np.minimum(by, np.uint64(width - 1)).astype(np.int64)
        return (signed(bits, width) >> places).view(np.uint64) & mask(width)

    return _shifted(value, amount, move, width)


def both(a: Value, b: Value, width: int = 32) -> Value:
    """AND; a known 0 decides."""
    if a.unknown is None and b.unknown is None:
        return Value(a.bits & b.bits)
    first, second = (_ZERO if v.unknown is None else v.unknown for v in (a, b))
    hidden = (first | second) & (a.bits | first) & (b.bits | second)
    return made(a.bits & b.bits, hidden, width)


def either(a: Value, b: Value, width: int = 32) -> Value:
    """OR; a known 1 decides."""
    return invert(both(invert(a, width), invert(b, width), width), width)


def differ(a: Value, b: Value, width: int = 32) -> Value:
    """XOR."""
    return made(a.bits ^ b.bits, _union(a, b), width)


def table3(a: Value, b: Value, c: Value, lut: int, width: int = 32) -> Value:
    """Bit by bit, bit (a << 2 | b << 1 | c) of an 8-bit table; unknown only where it matters."""
    # Where each source may be 1, and where it may be 0.
    options = [
        (value.bits, ~value.bits) if value.unknown is None else (value.bits | value.unknown, ~value.bits)
        for value in (a, b, c)
    ]
    may = [_nothing(), _nothing()]  # where the result may be 0, and where it may be 1
    for case in range(8):
        here = options[0][1 - (case >> 2 & 1)] & options[1][1 - (case >> 1 & 1)] & options[2][1 - (case & 1)]
        may[lut >> case & 1] = may[lut >> case & 1] | here
    return made(may[1], may[1] & may[0], width)


def select(condition: Value, yes: Value, no: Value) -> Value:
    """`yes` where the condition is 1; where it is unknown, what both agree on."""
    taken = condition.bits != 0
    if condition.unknown is None and taken.size == 1:
        return yes if taken.all() else no
    bits = np.where(taken, yes.bits, no.bits)
    hidden = None
    if yes.unknown is not None or no.unknown is not None:
        hidden = np.where(
            taken,
            _ZERO if yes.unknown is None else yes.unknown,
            _ZERO if no.unknown is None else no.unknown,
        )
    lanes = whole(condition)
    if lanes is not None:
        disagree = yes.bits ^ no.bits
        for one in (yes.unknown, no.unknown):
            disagree = disagree if one is None else disagree | one
        hidden = np.where(lanes, disagree, _ZERO if hidden is None else hidden)
    return made(bits, hidden, 64)


def _nothing() -> Bits:
    return np.zeros((1, 1), np.uint64)


def _range(value: Value, width: int, is_signed: bool) -> tuple[npt.NDArray[np.generic], ...]:
    """The least and the greatest number that the value may be."""
    least, greatest = value.bits, value.bits
    if value.unknown is not None:
        least, greatest = value.bits, value.bits | value.unknown
        if is_signed:
            sign = np.uint64(1 << (width - 1))
            unsure = value.unknown & sign
            least, greatest = least | unsure, greatest & ~unsure
    if is_signed:
        return signed(least, width), signed(greatest, width)
    return least, greatest


def less(a: Value, b: Value, width: int = 32, is_signed: bool = True, or_equal: bool = False) -> Value:
    """a < b, or a <= b: 1, 0, or unknown where the unknown bits decide."""
    a_least, a_most = _range(a, width, is_signed)
    b_least, b_most = _range(b, width, is_signed)
    order = np.less_equal if or_equal else np.less
    surely = order(a_most, b_least)
    if a.unknown is None and b.unknown is None:
        return Value(surely.astype(np.uint64))
    possibly = order(a_least, b_most)
    return made(surely.astype(np.uint64), (possibly & ~surely).astype(np.uint64), 1)


def equal(a: Value, b: Value) -> Value:
    """a == b; two known bits that differ decide."""
    apart = a.bits ^ b.bits
    hidden = _union(a, b)
    if hidden is None:
        return Value((apart == 0).astype(np.uint64))
    sure_apart = (apart & ~hidden) != 0
    return made((apart == 0).astype(np.uint64), ((hidden != 0) & ~sure_apart).astype(np.uint64), 1)


def compare(name: str, a: Value, b: Value, width: int = 32, is_signed: bool = True) -> Value:
    """A comparison by its name: lt, le, gt, ge, eq, ne."""
    match name:
        case "lt":
            return less(a, b, width, is_signed)
        case "le":
            return less(a, b, width, is_signed, or_equal=True)
        case "gt":
            return less(b, a, width, is_signed)
        case "ge":
            return less(b, a, width, is_signed, or_equal=True)
        case "eq":
            return equal(a, b)
        case "ne":
            return invert(equal(a, b), 1)
    raise ValueError(name)


def least(a: Value, b: Value, width: int = 32, is_signed: bool = True) -> Value:
    """The smaller one."""
    return select(less(a, b, width, is_signed, or_equal=True), a, b)


def greatest(a: Value, b: Value, width: int = 32, is_signed: bool = True) -> Value:
    """The larger one."""
    return select(less(a, b, width, is_signed), b, a)


def as_floats(value: Value) -> npt.NDArray[np.float32]:
    """The 32 bits read as a float."""
    return value.bits.astype(np.uint32).view(np.float32)


def from_floats(numbers: npt.NDArray[np.float32], *sources: Value) -> Value:
    """Floats as bits; unknown as a whole where a source has an unknown bit."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.uint64)
    return mapped(lambda *_: bits, 32, *sources)
