"""Numbers that rise or fall evenly from round to round of a loop.

A `Line` is `start + slope * q` in every lane, for the rounds q = 0 to `span.most`: exact integers, not cut to
a width. A register that holds one is never negative and fits its width in all of these rounds, so that what
cuts a number (a width, a shift, the sign) must cut alike in every round; otherwise there is no line, and the
span remembers before which round it would have been one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from layoutopt.ground.arrays import IntArray

Bools = npt.NDArray[np.bool_]

# Numbers below leave room for sums.
_ROOM: Final = 1 << 60


class Span:
    """The rounds that are evaluated at once.

    Attributes:
        most: the last of them.
        compared: the first round in which a comparison comes out otherwise than in round 0.
        wrapped: the first round in which a number is cut otherwise than in round 0.
    """

    __slots__ = ("compared", "most", "wrapped")

    def __init__(self, most: int) -> None:
        self.most = most
        self.compared = self.wrapped = most + 1


class Line(NamedTuple):
    """`start + slope * q`; both int64, of the shape of the value."""

    start: IntArray
    slope: IntArray
    span: Span

    @property
    def end(self) -> IntArray:
        """The number of the last round."""
        return self.start + self.slope * self.span.most


def fits(start: IntArray, slope: IntArray, span: Span) -> Line | None:
    """A line of any integers; None where they are too large to be reckoned with."""
    steepest = int(np.abs(slope).max(initial=0))
    if steepest * span.most >= _ROOM:
        span.wrapped = min(span.wrapped, _ROOM // steepest)
        return None
    if int(np.abs(start).max(initial=0)) >= _ROOM:
        return None
    start, slope = np.broadcast_arrays(start, slope)
    return Line(start, slope, span)


def cut(line: Line, width: int) -> Line | None:
    """The lowest bits of the numbers as unsigned ones, if what is cut off is the same in every round."""
    start, slope, span = line
    if width >= 63:
        return line if _stays(start, slope, span, 1 << 62) else None
    first = start >> width
    if _stays(start - (first << width), slope, span, 1 << width):
        return Line(start - (first << width), slope, span)
    return None


def _stays(rest: IntArray, slope: IntArray, span: Span, bound: int) -> bool:
    """Whether numbers stay in [0, bound)."""
    if (rest < 0).any():
        return False
    end = rest + slope * span.most
    if bool(((end >= 0) & (end < bound)).all()):
        return True
    rising, falling = slope > 0, slope < 0
    leaves = np.full(rest.shape, span.most + 1, np.int64)
    leaves = np.where(rising, -((rest - bound) // np.maximum(slope, 1)), leaves)
    leaves = np.where(falling, rest // np.maximum(-slope, 1) + 1, leaves)
    span.wrapped = min(span.wrapped, int(leaves.min()))
    return False


def divided(line: Line, by: int) -> Line | None:
    """The numbers divided and rounded down, if the remainders make no difference to how they rise."""
    start, slope, span = line
    return Line(start // by, slope // by, span) if _stays(start % by, slope % by, span, by) else None


def as_signed(line: Line, width: int) -> Line | None:
    """The numbers read in two's complement, if no sign changes."""
    start, slope, span = line
    if width >= 63:
        return line
    half = 1 << (width - 1)
    negative = start >= half
    rest = np.where(negative, start - half, start)
    if not _stays(rest, slope, span, 1 << (width - 1)):
        return None
    return Line(np.where(negative, start - 2 * half, start), slope, span)


def below(line: Line) -> tuple[Bools, Bools]:
    """Where the numbers are negative in every round, and where in some but not in all."""
    start, slope, span = line
    first, last = start < 0, line.end < 0
    changes = first != last
    if changes.any():
        distance = np.where(first, -start, start + 1)
        turn = -(-distance // np.maximum(np.abs(slope), 1))
        span.compared = min(span.compared, int(turn[changes].min()))
    return first & last, changes


def zero(line: Line) -> tuple[Bools, Bools]:
    """Where the numbers are 0 in every round, and where in some but not in all."""
    start, slope, span = line
    flat = slope == 0
    step = np.where(flat, 1, slope)
    turn = -start // step
    meets = ~flat & (start % step == 0) & (turn >= 0) & (turn <= span.most)
    if meets.any():
        first = np.where(turn == 0, 1, turn)
        span.compared = min(span.compared, int(first[meets].min()))
    return flat & (start == 0), meets
