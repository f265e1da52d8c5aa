"""The time there is: one clock, asked by everything that loops.

A limit is kept by asking, never by being interrupted: a loop asks `spent` or goes `while_left`, work that
cannot be left half done asks `check` between its pieces, and a piece that cannot ask asks beforehand
whether the budget `affords` it. Without a limit every answer is that there is time, so that no result
depends on the clock unless the clock ran out.

A search that must leave something to others gets a `portion` of the work that the limit allows. Those who
work `charge` it, in seconds of a quiet machine, so that what is searched does not depend on the machine; the
clock ends it with everything else.

Whoever owns the time puts its budget in force (`spending`), and all that is called inside finds it there
(`current`, `checkpoint`): none of it passes a budget on. A generator asks the one in force where it is
resumed. Another thread starts without any.
"""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import described

T = TypeVar("T")


# As many as a person waits.
DEFAULT_SECONDS: Final = 10.0
_RESERVE: Final = 0.1  # of the work that a limit allows, to have portions of where more was charged
_MOST_SECONDS = 366 * 86400.0
"""A year is as good as no limit, and waiting for more than some hundred years is an error of its own."""


class OutOfTime(Exception):
    """The budget was spent before there was anything to answer with; its text says while what happened."""


class Budget:
    """Time left; its parts end with it, and all stop together."""

    def __init__(self, seconds: float | None = None) -> None:
        seconds = None if seconds is None else min(seconds, _MOST_SECONDS)
        self._began = time.monotonic()
        self._end = None if seconds is None else time.monotonic() + seconds
        self._stop = _Stop()
        self._wholes: tuple[Budget, ...] = ()  # of which it is a part, the nearest first
        self._limit = self._work = seconds
        self._ends_with_work = self._is_of_limit = False

    def at_most(self, seconds: float | None) -> "Budget":
        """A budget of the time left, or of so many seconds where that is less; None for any number."""
        left = [limit for limit in (self.seconds, seconds) if limit is not None]
        part = Budget(min(left, default=None))
        part._stop, part._wholes = self._stop, (self, *self._wholes)
        return part

    def part(self, share: float) -> "Budget":
        """A budget of `share` of the time left, which stops when this one is stopped."""
        return self.at_most(None if self.seconds is None else self.seconds * share)

    def portion(self, share: float, most: float = math.inf) -> "Budget":
        """A budget of all the time left, but only of `share` of the work that it allows, or `most` of it."""
        part = self.at_most(None)
        if self._work is not None and self._limit is not None:
            work = share * max(self._work, _RESERVE * self._limit)
            part._limit = part._work = min(work, most)
            part._ends_with_work, part._is_of_limit = True, work < most
        return part

    def at_least(self, seconds: float) -> "Budget":
        """A budget of the time left, or of so many seconds where that is more: for what every answer needs.

        It goes on where this one is stopped.
        """
        return Budget(None if self.seconds is None else max(seconds, self.seconds))

    def stop(self) -> None:
        """Nothing is left from now on, here and in every part; from any thread."""
        self._stop.given = True

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Inside, no time goes by and no budget is in force: a compiler works, which takes what it takes."""
        left = self.seconds
        try:
            with unhurried():
                yield
        finally:
            if left is not None:
                self._end = time.monotonic() + left

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped it, be time left or not."""
        return self._stop.given

    @property
    def spent(self) -> bool:
        """Whether no time or effort is left."""
        for budget in (self, *self._wholes):
            if budget._ends_with_work and budget._work is not None and budget._work <= 0:
                if budget._is_of_limit:  # with more time there would have been more
                    self.cut_short()
                return True
        if self._end is not None and time.monotonic() >= self._end:
            self.cut_short()
            return True
        return self._stop.given

    @property
    def effort(self) -> float | None:
        """Work left, where that ends it before the time does."""
        ending = (budget._work for budget in (self, *self._wholes) if budget._ends_with_work)
        return min((left for left in ending if left is not None), default=None)

    def charge(self, effort: float) -> None:
        """Count work that was done, in seconds of a quiet machine."""
        for budget in (self, *self._wholes):
            if budget._work is not None:
                budget._work -= effort

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
    """What a budget and its parts share: whether somebody stopped it, and whether time ended something."""

    given = ran_out = False


_IN_FORCE: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current() -> Budget:
    """The budget in force; without any, one that has no limit."""
    return _IN_FORCE.get() or Budget()


def checkpoint() -> None:
    """Go on only if there is time.

    Raises:
        OutOfTime: the budget in force is spent.
    """
    current().check()


@contextmanager
def spending(budget: Budget) -> Iterator[Budget]:
    """Inside, this budget is in force."""
    before = _IN_FORCE.set(budget)
    try:
        yield budget
    finally:
        _IN_FORCE.reset(before)


def deadline(time_limit: float | None) -> AbstractContextManager[Budget]:
    """Inside, a budget of so many seconds is in force, or of what there is where that is less.

    Raises:
        ProblemFileError: the limit is below 0 or no number.
    """
    number = time_limit is None or isinstance(time_limit, (int, float))
    if not number or (time_limit is not None and not time_limit >= 0):
        raise ProblemFileError("time_limit", f"expected seconds, 0 or more, got {described(time_limit)}")
    return spending(current().at_most(time_limit))


def unhurried() -> AbstractContextManager[Budget]:
    """Inside, no budget is in force: an answer needs what is done there, be it late."""
    return spending(Budget())
