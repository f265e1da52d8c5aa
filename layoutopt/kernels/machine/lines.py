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
    """`start + slope * q`; `terms` is both, int64, shape (2, warps, lanes) of the value's."""

    terms: IntArray
    span: Span

    @property
    def end(self) -> IntArray:
        """The number of the last round."""
        found: IntArray = self.terms[0] + self.terms[1] * self.span.most
        return found


def fits(line: Line) -> bool:
    """Whether the numbers are small enough to be reckoned with."""
    start, steepest = (int(np.abs(part).max(initial=0)) for part in line.terms)
    if steepest * line.span.most >= _ROOM:
        line.span.wrapped = min(line.span.wrapped, _ROOM // steepest)
        return False
    return start < _ROOM


def _stays(line: Line, bound: int) -> bool:
    """Whether numbers stay in [0, bound)."""
    (start, slope), end, span = line.terms, line.end, line.span
    if (start < 0).any():
        return False
    if bool(((end >= 0) & (end < bound)).all()):
        return True
    leaves = np.full(start.shape, span.most + 1, np.int64)
    leaves = np.where(slope > 0, -((start - bound) // np.maximum(slope, 1)), leaves)
    leaves = np.where(slope < 0, start // np.maximum(-slope, 1) + 1, leaves)
    span.wrapped = min(span.wrapped, int(leaves.min()))
    return False


def cut(line: Line, width: int) -> Line | None:
    """The lowest bits of the numbers as unsigned ones, if what is cut off is the same in every round."""
    if width >= 63:
        return line if _stays(line, 1 << 62) else None
    rest = Line(np.stack([line.terms[0] & ((1 << width) - 1), line.terms[1]]), line.span)
    return rest if _stays(rest, 1 << width) else None


def divided(line: Line, by: int) -> Line | None:
    """The numbers divided and rounded down, if the remainders make no difference to how they rise."""
    return line._replace(terms=line.terms // by) if _stays(Line(line.terms % by, line.span), by) else None


def as_signed(line: Line, width: int) -> Line | None:
    """The numbers read in two's complement, if no sign changes."""
    if width >= 63:
        return line
    (start, slope), half = line.terms, 1 << (width - 1)
    rest = np.where(start >= half, start - half, start)
    if not _stays(Line(np.stack([rest, slope]), line.span), half):
        return None
    return Line(np.stack([np.where(start >= half, start - 2 * half, start), slope]), line.span)


def below(line: Line) -> tuple[Bools, Bools]:
    """Where the numbers are negative in every round, and where in some but not in all."""
    start, slope = line.terms
    first, last = start < 0, line.end < 0
    changes = first != last
    if changes.any():
        distance = np.where(first, -start, start + 1)
        turn = -(-distance // np.maximum(np.abs(slope), 1))
        line.span.compared = min(line.span.compared, int(turn[changes].min()))
    return first & last, changes


def zero(line: Line) -> tuple[Bools, Bools]:
    """Where the numbers are 0 in every round, and where in some but not in all."""
    start, slope = line.terms
    step = np.where(slope == 0, 1, slope)
    turn = -start // step
    meets = (slope != 0) & (start % step == 0) & (turn >= 0) & (turn <= line.span.most)
    if meets.any():
        first = np.where(turn == 0, 1, turn)
        line.span.compared = min(line.span.compared, int(first[meets].min()))
    return (slope == 0) & (start == 0), meets
