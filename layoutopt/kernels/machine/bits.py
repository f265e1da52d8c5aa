"""A register of every lane, as bits of which some are not known.

A `Value` is what one register holds: for every warp (rows) and lane (columns) a number of at most 64 bits,
and which of its bits are unknown. Axes along which nothing differs have length 1, so that a constant costs
nothing: shapes are those that numpy broadcasts to (warps, lanes). Where a bit is unknown, `bits` has 0 in it.
Widths are in bits; a value fits its width.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine import lines
from layoutopt.kernels.machine.lines import Line, Span

Bits = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

_ONE: Final = np.uint64(1)


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
