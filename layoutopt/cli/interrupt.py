"""Work that is shown on a terminal, and that Ctrl-C ends with the best so far."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final, TypeVar

from layoutopt.cli.output import LatestProgress, end_progress, note

Answer = TypeVar("Answer")
_SHOWN_EVERY_SECONDS: Final = 0.1


def interruptibly(
    work: Callable[..., Answer], time_limit: float, stopped: threading.Event | None = None
) -> Answer:
    """Call `work(budget=..., progress=...)`, so that Ctrl-C ends the budget and gives the best so far.

    It is called in a thread: the solver is interrupted in mid-search, and no terminal can hold it up.
    `stopped` is set where somebody stopped it; a second Ctrl-C is raised.
    """
    from layoutopt.ground.budget import Budget

    budget = Budget(time_limit)
    outcome: list[Answer | BaseException] = []
    done = threading.Event()

    shown = LatestProgress("searching", lambda: f"{budget.elapsed:.0f} of {time_limit:g} s, ")

    def run() -> None:
        try:
            outcome.append(work(budget=budget, progress=shown))
        except BaseException as error:  # handed to the main thread
            outcome.append(error)
        finally:
            done.set()

    with _asked_to_stop() as asked:
        threading.Thread(target=run, daemon=True).start()
        while not done.wait(_SHOWN_EVERY_SECONDS):
            shown.show()
            if asked.is_set() and not budget.stopped:
                budget.stop()
                if stopped is not None:
                    stopped.set()
                note("stopping with the best layout so far")
    end_progress()
    answer = outcome[0]
    if isinstance(answer, BaseException):
        raise answer
    return answer


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Inside, the first Ctrl-C sets the event; every other one is what Ctrl-C was before.

    It raises nothing: an exception out of a signal is lost where Python happens to be in a destructor.
    """
    asked, usual = threading.Event(), signal.getsignal(signal.SIGINT)
    if not callable(usual):  # ignored, as where a shell runs it in the background
        yield asked
        return

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, usual)
        asked.set()

    signal.signal(signal.SIGINT, first)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, usual)
