"""What can fail on the way to an answer: its line on stderr and its exit code."""

from __future__ import annotations

from typing import Final

from layoutopt.errors import LayoutoptError
from layoutopt.ground.budget import OutOfTime
from layoutopt.ground.escape import shown

USAGE_ERROR: Final = 2
OUT_OF_TIME: Final = 3
INTERRUPTED: Final = 130
MAX_LINE_CHARACTERS: Final = 600
FAILURES: Final = (LayoutoptError, MemoryError, OutOfTime)


def failure(error: BaseException) -> tuple[str, int]:
    """What one of `FAILURES` is to the user, and the exit code."""
    if isinstance(error, MemoryError):
        return "not enough memory for this problem", USAGE_ERROR
    if isinstance(error, OutOfTime):
        during = str(error) or "the accesses were evaluated"
        return f"out of time while {during}; give a longer --time-limit", OUT_OF_TIME
    return str(error), USAGE_ERROR


def one_line(message: str) -> str:
    """A message as one line that a terminal shows as it is."""
    return shown(" ".join(message.split()), MAX_LINE_CHARACTERS)
