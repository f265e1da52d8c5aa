"""Work that is shown on a terminal, and that Ctrl-C ends with the best so far."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

import click

from layoutopt.cli.output import end_progress, note, progress

Answer = TypeVar("Answer")
_SHOWN_EVERY_SECONDS: Final = 0.1
_STOPPED: Final = f"{__name__}.stopped"


def interruptibly(work: Callable[..., Answer], time_limit: float) -> Answer:
    """Call `work(progress=...)` in the time limit, so that Ctrl-C ends it and gives the best so far.

    It is called in a thread: the solver is interrupted in mid-search, and a terminal that takes no more text
    does not hold it up. A second Ctrl-C is raised.
    """
    from layoutopt.ground.budget import Budget, spending

    budget = Budget(time_limit)
    outcome: list[Answer | BaseException] = []
    told: deque[str] = deque(maxlen=1)
    done = threading.Event()

    def run() -> None:
        try:
            with spending(budget):
                outcome.append(work(progress=told.append))
        except BaseException as error:  # handed to the main thread
            outcome.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True).start()
    show = progress("searching")
    while not done.is_set():
        try:
            done.wait(_SHOWN_EVERY_SECONDS)
            for text in tuple(told):
                show(f"{budget.elapsed:.0f} of {time_limit:g} s, {text}")
        except KeyboardInterrupt:
            if budget.stopped:
                raise
            budget.stop()
            running = click.get_current_context(silent=True)
            if running is not None:
                running.meta[_STOPPED] = True
            note("stopping with the best layout so far")
    end_progress()
    answer = outcome[0]
    if isinstance(answer, BaseException):
        raise answer
    return answer


def stopped() -> bool:
    """Whether Ctrl-C has ended a search of the command that runs."""
    return _STOPPED in click.get_current_context().meta
