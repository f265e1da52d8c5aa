"""The time there is: one clock, asked by everything that loops.

A limit is kept by asking, never by being interrupted: a loop asks `spent` or goes `while_left`, work that
cannot be left half done asks `check` between its pieces, and a piece that cannot ask asks beforehand
whether the budget `affords` it. Without a limit every answer is that there is time, so that no result
depends on the clock unless the clock ran out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import described

T = TypeVar("T")


# As many as a person waits.
DEFAULT_SECONDS: Final = 10.0
_MOST_SECONDS = 366 * 86400.0
"""A year is as good as no limit, and waiting for more than some hundred years is an error of its own."""


class OutOfTime(Exception):
    """The budget was spent before there was anything to answer with; its text says while what happened."""


class Budget:
    """Time left; its parts end with it, and all stop together."""

    def __init__(self, seconds: float | None = None, effort: float | None = None) -> None:
        seconds = None if seconds is None else min(seconds, _MOST_SECONDS)
        self._began = time.monotonic()
        self._end = None if seconds is None else time.monotonic() + seconds
        self._stop = _Stop()
        self.effort = effort

    @classmethod
    def of_limit(cls, time_limit: float | None) -> Budget:
        """The budget that a caller asks for.

        Raises:
            ProblemFileError: the limit is below 0 or no number.
        """
        number = time_limit is None or isinstance(time_limit, (int, float))
        if not number or (time_limit is not None and not time_limit >= 0):
            raise ProblemFileError("time_limit", f"expected seconds, 0 or more, got {described(time_limit)}")
        return cls(time_limit)

    def part(self, share: float, effort: float | None = None) -> Budget:
        """A budget of `share` of the time left, which stops when this one is stopped.

        With `effort`, and a limit, it also ends after so much work: seconds of a quiet machine, as those who
        work count them with `charge`. It should end first, for it is the same on every machine.
        """
        part = Budget() if self.seconds is None else Budget(self.seconds * share, effort)
        part._stop = self._stop
        return part

    def at_least(self, seconds: float) -> Budget:
        """A budget of the time left, or of so many seconds where that is more: for what every answer needs.

        It goes on where this one is stopped.
        """
        return Budget(None if self.seconds is None else max(seconds, self.seconds))

    def stop(self) -> None:
        """Nothing is left from now on, here and in every part; from any thread."""
        self._stop.give()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Inside, no time goes by: a compiler works, which takes what it takes."""
        left = self.seconds
        try:
            yield
        finally:
            if left is not None:
                self._end = time.monotonic() + left

    @contextmanager
    def telling(self, call: Callable[[], None]) -> Iterator[None]:
        """Inside, `call` is called when the budget is stopped, at once if it was."""
        self._stop.tell(call)
        try:
            yield
        finally:
            self._stop.forget(call)

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped it, be time left or not."""
        return self._stop.given

    @property
    def spent(self) -> bool:
        """Whether no time or effort is left."""
        if self.effort is not None and self.effort <= 0:
            return True
        if self._end is not None and time.monotonic() >= self._end:
            self.cut_short()
            return True
        return self._stop.given

    def charge(self, effort: float) -> None:
        """Count work that was done, in seconds of a quiet machine."""
        if self.effort is not None:
            self.effort -= effort

    def cut_short(self) -> None:
        """Remember that something ended for want of time."""
        self._stop.ran_out = True

    @property
    def ran_out(self) -> bool:
        """Whether something ended for want of time, here or in a part: with more, it might have gone on."""
        return self._stop.ran_out

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @property
    def seconds(self) -> float | None:
        """Seconds left; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def affords(self, seconds: float) -> bool:
        """Whether work of about so many seconds, which asks no clock, may begin."""
        if self._end is not None and time.monotonic() + seconds > self._end:
            self.cut_short()
            return False
        return not self._stop.given

    def while_left(self, items: Iterable[T]) -> Iterator[T]:
        """The items, as long as time is left before each, and for what lists them."""
        iterator = iter(items)
        while not self.spent:
            try:
                item = next(iterator)
            except (StopIteration, OutOfTime):
                return
            yield item

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """All of the items.

        Raises:
            OutOfTime: no time was left before one of them.
        """
        for item in items:
            self.check()
            yield item

    def check(self) -> None:
        """Go on only if time is left.

        Raises:
            OutOfTime: none is.
        """
        if self.spent:
            raise OutOfTime


class _Stop:
    """A flag that a budget and its parts share, and who is told when it is set."""

    def __init__(self) -> None:
        self.given = self.ran_out = False
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] = []

    def give(self) -> None:
        with self._lock:
            self.given = True
            calls = tuple(self._calls)
        for call in calls:
            call()

    def tell(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.append(call)
            given = self.given
        if given:
            call()

    def forget(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._calls.remove(call)
