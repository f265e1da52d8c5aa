"""A register of every lane, as bits of which some are not known, and what instructions make of such numbers.

A `Value` is what one register holds: for every warp (rows) and lane (columns) a number of at most 64 bits,
and which of its bits are unknown. Axes along which nothing differs have length 1, so that a constant costs
nothing: shapes are those that numpy broadcasts to (warps, lanes). Where a bit is unknown, `bits` has 0 in it.
Widths are in bits; a value fits its width. What a function says is known is known for every value of the
unknown bits; it may say too little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine import lines
from layoutopt.kernels.machine.lines import Line, Span

_FLAT: Final = np.zeros((1, 1), np.int64)
_ONE: Final = np.uint64(1)
_ZERO: Final = np.uint64(0)

Bits = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


class Value(NamedTuple):
    """One register of every lane.

    Attributes:
        bits: uint64, broadcastable to (warps, lanes).
        unknown: which bits are unknown; None where all are known.
        line: how the number goes from round to round of a loop of which all rounds are evaluated at once;
            None where nothing is told. It says more than the bits, which hold in every round.
    """

    bits: Bits
    unknown: Bits | None = None
    line: Line | None = None


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


def of_line(start: IntArray, slope: IntArray, span: Span, width: int) -> Value | None:
    """Numbers that go evenly from round to round, cut to a width; None where that is not even."""
    line = lines.fits(start, slope, span)
    line = None if line is None else lines.cut(line, width)
    if line is None:
        return None
    if not line.slope.any():
        return Value(line.start.astype(np.uint64))
    # Bits above the highest one in which the ends differ stay, as do those below the lowest of the slope.
    moving = downward((line.start ^ line.end).astype(np.uint64))
    hidden = moving & upward(lowest(line.slope.astype(np.uint64)))
    return Value(line.start.astype(np.uint64) & ~hidden, hidden if hidden.any() else None, line)


def cut(value: Value, width: int) -> Value:
    """The lowest bits."""
    if value.line is not None:
        found = of_line(*value.line, width)
        if found is not None:
            return found
    return made(value.bits, value.unknown, width)


def of_lane(value: Value, lane: IntArray, shape: tuple[int, ...]) -> Value:
    """What one lane of each warp has.

    Args:
        value: of all lanes.
        lane: shape (warps, 1).
        shape: (warps, 32).
    """

    def chosen(table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.take_along_axis(np.broadcast_to(table, shape), lane, axis=1)

    line = value.line
    if line is not None:
        line = Line(chosen(line.start), chosen(line.slope), line.span)
    return Value(chosen(value.bits), None if value.unknown is None else chosen(value.unknown), line)


def upward(hidden: Bits) -> Bits:
    """The lowest unknown bit and all above it."""
    return ~(lowest(hidden) - _ONE)


def downward(bits: Bits) -> Bits:
    """The highest bit that is set and all below it."""
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> np.uint64(shift))
    return bits


def lowest(bits: Bits) -> Bits:
    """The lowest bit that is set."""
    return bits & (~bits + _ONE)


def nothing() -> Bits:
    """No bit."""
    return np.zeros((1, 1), np.uint64)


def _linear(*values: Value) -> tuple[Span, list[tuple[IntArray, IntArray]]] | None:
    """Starts and slopes of values of which at least one is a line and the others are known."""
    span: Span | None = None
    parts = []
    for value in values:
        if value.line is not None:
            if span is not None and value.line.span is not span:
                return None
            span = value.line.span
            parts.append((value.line.start, value.line.slope))
        elif value.unknown is None and not (value.bits >> np.uint64(60)).any():
            parts.append((value.bits.astype(np.int64), _FLAT))
        else:
            return None
    return None if span is None else (span, parts)


def mapped(function: Callable[..., Bits], width: int, *values: Value) -> Value:
    """`function` of the numbers where all of them are known, else unknown as a whole."""
    bits = function(*(value.bits for value in values))
    hidden: Bools | None = None
    for value in values:
        lanes = whole(value)
        if lanes is not None:
            hidden = lanes if hidden is None else hidden | lanes
    return made(bits, None if hidden is None else np.where(hidden, mask(width), _ZERO), width)


def _union(a: Value, b: Value) -> Bits | None:
    """Bits that are unknown in one of two."""
    if a.unknown is None or b.unknown is None:
        return b.unknown if a.unknown is None else a.unknown
    return a.unknown | b.unknown


def add(*values: Value, width: int = 32) -> Value:
    """The sum; the carry out of `width` bits is `shift_right` of a sum at a larger width."""
    if any(value.line is not None for value in values) and (found := _linear(*values)) is not None:
        span, parts = found
        start, slope = parts[0]
        for more, steeper in parts[1:]:
            start, slope = start + more, slope + steeper
        even = of_line(start, slope, span, width)
        if even is not None:
            return even
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
    if value.line is not None and width < 60:
        start, slope, span = value.line
        even = of_line((1 << width) - 1 - start, -slope, span, width)
        if even is not None:
            return even
    return made(~value.bits, value.unknown, width)


def subtract(a: Value, b: Value, width: int = 32) -> Value:
    """The difference."""
    if (a.line is not None or b.line is not None) and (found := _linear(a, b)) is not None:
        span, ((start, slope), (less_, fall)) = found
        even = of_line(start - less_, slope - fall, span, width)
        if even is not None:
            return even
    return add(a, invert(b, width), TRUE, width=width)


def multiply(a: Value, b: Value, width: int = 32) -> Value:
    """The low bits of the product; low and high bits that must be 0 are known."""
    bits = a.bits * b.bits
    for one, other in ((a, b), (b, a)):
        even = None if one.line is None or other.unknown is not None else _scaled(one.line, other, width)
        if even is not None:
            return even
    if a.unknown is None and b.unknown is None:
        return Value(bits & mask(width))
    for one, other in ((a, b), (b, a)):
        if other.unknown is None and not (other.bits & (other.bits - _ONE)).any():
            assert one.unknown is not None
            return made(bits, one.unknown * other.bits, width)  # a shift
    left = a.unknown if a.unknown is not None else nothing()
    right = b.unknown if b.unknown is not None else nothing()
    # a*b - known*known = known_a*hidden_b + hidden_a*known_b + hidden_a*hidden_b, each a multiple of the
    # product of the lowest bits that may be set in its factors. One beyond bit 63 is 0 here, as it should be.
    set_a, set_b, hidden_a, hidden_b = (lowest(one) for one in (a.bits, b.bits, left, right))
    hidden = upward(set_a * hidden_b | hidden_a * set_b | hidden_a * hidden_b)
    top_a, top_b = a.bits | left, b.bits | right
    fits = top_a.astype(np.float64) * top_b.astype(np.float64) < 2.0**63
    hidden = hidden & np.where(fits, downward(top_a * top_b), ~_ZERO)
    return made(bits, hidden, width)


def _scaled(line: Line, factor: Value, width: int) -> Value | None:
    """A line times known numbers, the large ones taken as negative, as the width allows."""
    if factor.line is not None:
        return None
    by = signed(factor.bits & mask(width), width)
    start, slope, span = line
    largest = int(np.abs(by).max()) if by.min() > -(1 << 62) else 1 << 62
    steepest = max(int(np.abs(start).max()), int(np.abs(slope).max()))
    if largest * steepest >= 1 << 62:
        return None
    return of_line(start * by, slope * by, span, width)


def extend(value: Value, width: int, to: int = 64) -> Value:
    """Sign extension from `width` bits."""
    if value.line is not None and (line := lines.as_signed(value.line, width)) is not None:
        even = of_line(*line, to)
        if even is not None:
            return even
    bits = signed(value.bits, width).view(np.uint64)
    hidden = None if value.unknown is None else signed(value.unknown, width).view(np.uint64)
    return made(bits, hidden, to)


def join(low: Value, high: Value) -> Value:
    """64 bits out of two registers."""
    if (low.line is not None or high.line is not None) and (found := _linear(low, high)) is not None:
        span, ((start, slope), (upper_start, upper_slope)) = found
        if int(np.abs(upper_start).max()) < 1 << 28 and int(np.abs(upper_slope).max()) < 1 << 28:
            even = of_line(start + (upper_start << 32), slope + (upper_slope << 32), span, 64)
            if even is not None:
                return even
    shift = np.uint64(32)
    hidden = low.unknown
    if high.unknown is not None:
        upper = high.unknown << shift
        hidden = upper if hidden is None else hidden | upper
    return made(low.bits | (high.bits << shift), hidden, 64)


def low(value: Value) -> Value:
    """The low register of a pair."""
    return cut(value, 32)


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
    if value.line is not None and amount.unknown is None and int(amount.bits.max()) < 32:
        even = _scaled(value.line, Value(_ONE << amount.bits), width)
        if even is not None:
            return even

    def move(bits: Bits, by: Bits) -> Bits:
        return np.where(by >= np.uint64(width), _ZERO, bits << np.minimum(by, np.uint64(63)))

    return _shifted(value, amount, move, width)


def shift_right(value: Value, amount: Value, width: int = 32) -> Value:
    """Shifted towards lower bits, zeros coming in; amounts from `width` on leave 0."""
    even = _shifted_line(value, amount, width)
    if even is not None:
        return even

    def move(bits: Bits, by: Bits) -> Bits:
        return np.where(by >= np.uint64(width), _ZERO, bits >> np.minimum(by, np.uint64(63)))

    return _shifted(value, amount, move, width)


def shift_right_signed(value: Value, amount: Value, width: int = 32) -> Value:
    """Shifted towards lower bits, copies of the sign coming in."""
    if value.line is not None and (line := lines.as_signed(value.line, width)) is not None:
        even = _shifted_line(value._replace(line=line), amount, width)
        if even is not None:
            return even

    def move(bits: Bits, by: Bits) -> Bits:
        places = np.minimum(by, np.uint64(width - 1)).astype(np.int64)
        return (signed(bits, width) >> places).view(np.uint64) & mask(width)

    return _shifted(value, amount, move, width)


def _shifted_line(value: Value, amount: Value, width: int) -> Value | None:
    if value.line is None or amount.unknown is not None or amount.bits.size > 1:
        return None
    line = lines.divided(value.line, 1 << min(int(amount.bits.flat[0]), 61))
    return None if line is None else of_line(*line, width)


def quotient(a: Value, b: Value, width: int) -> Value | None:
    """A number that goes evenly and fits a width, divided by one that all lanes know; None if not even."""
    if a.line is None or b.unknown is not None or b.bits.size > 1 or not 0 < int(b.bits.flat[0]) < 1 << 31:
        return None
    line = lines.cut(a.line, width)
    if line is None or (line.start != a.line.start).any():
        return None
    line = lines.divided(line, int(b.bits.flat[0]))
    return None if line is None else of_line(*line, width)


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
    may = [nothing(), nothing()]  # where the result may be 0, and where it may be 1
    for case in range(8):
        here = options[0][1 - (case >> 2 & 1)] & options[1][1 - (case >> 1 & 1)] & options[2][1 - (case & 1)]
        may[lut >> case & 1] = may[lut >> case & 1] | here
    return made(may[1], may[1] & may[0], width)


def select(condition: Value, yes: Value, no: Value) -> Value:
    """`yes` where the condition is 1; where it is unknown, what both agree on."""
    taken = condition.bits != 0
    if condition.unknown is None and taken.size == 1:
        return yes if taken.all() else no
    if condition.unknown is None and (yes.line is not None or no.line is not None):
        even = _chosen(taken, yes, no)
        if even is not None:
            return even
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


def _chosen(taken: Bools, yes: Value, no: Value) -> Value | None:
    found = _linear(yes, no)
    if found is None:
        return None
    span, ((start, slope), (other, fall)) = found
    return of_line(np.where(taken, start, other), np.where(taken, slope, fall), span, 64)


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


def _difference(a: Value, b: Value, width: int, is_signed: bool) -> Line | None:
    """How far apart two numbers are from round to round, if one of them moves."""
    if a.line is None and b.line is None:
        return None
    found = _linear(a, b)
    if found is None:
        return None
    span, parts = found
    both_: list[Line] = []
    for start, slope in parts:
        start, slope = np.broadcast_arrays(start, slope)
        line = Line(start, slope, span)
        signed_ = lines.as_signed(line, width) if is_signed else line
        if signed_ is None:
            return None
        both_.append(signed_)
    return lines.fits(both_[0].start - both_[1].start, both_[0].slope - both_[1].slope, span)


def _decided(surely: Bools, undecided: Bools) -> Value:
    return made((surely & ~undecided).astype(np.uint64), undecided.astype(np.uint64), 1)


def less(a: Value, b: Value, width: int = 32, is_signed: bool = True, or_equal: bool = False) -> Value:
    """a < b, or a <= b: 1, 0, or unknown where the unknown bits decide."""
    if (apart := _difference(a, b, width, is_signed)) is not None:
        line = apart._replace(start=apart.start - 1) if or_equal else apart
        return _decided(*lines.below(line))
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
    if (line := _difference(a, b, 64, is_signed=False)) is not None:
        return _decided(*lines.zero(line))
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
