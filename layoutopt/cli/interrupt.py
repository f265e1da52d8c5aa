"""Work that is shown on a terminal, and that Ctrl-C ends with the best so far."""

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

import click

from layoutopt.cli.output import end_progress, note, progress
from layoutopt.ground.budget import Budget
from layoutopt.ground.interrupt import interruptibly
from layoutopt.ground.log import LOG

Answer = TypeVar("Answer")
_STOPPED: Final = f"{__name__}.stopped"


def searching(work: Callable[..., Answer], time_limit: float) -> Answer:
    """Call `work(progress=...)` in the time limit, and show what it tells; Ctrl-C gives the best so far.

    It is shown by another thread than that of the work, which a terminal that takes no more text thus does
    not hold up.
    """
    budget, told, show = Budget(time_limit), deque[str](maxlen=1), progress("searching")

    def look() -> None:
        for text in tuple(told):
            show(f"{budget.elapsed:.0f} of {time_limit:g} s, {text}")

    def stopping() -> None:
        running = click.get_current_context(silent=True)
        if running is not None:
            running.meta[_STOPPED] = True
        note("stopping with the best layout so far")

    try:
        tell = show if LOG.isEnabledFor(logging.DEBUG) else told.append
        return interruptibly(lambda: work(progress=tell), budget, look, stopping)
    finally:
        end_progress()


def stopped() -> bool:
    """Whether Ctrl-C has ended a search of the command that runs."""
    return _STOPPED in click.get_current_context().meta
