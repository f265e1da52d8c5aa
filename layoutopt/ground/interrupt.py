"""Ctrl-C ends a search with the best so far."""

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Final, TypeVar

from layoutopt.ground.budget import Budget, spending

Answer = TypeVar("Answer")
_ASKED_EVERY_SECONDS: Final = 0.1


def interruptibly(
    work: Callable[[], Answer],
    budget: Budget,
    meanwhile: Callable[[], object] = lambda: None,
    stopping: Callable[[], object] = lambda: None,
) -> Answer:
    """Call `work` with a budget in force, which Ctrl-C stops: the answer is then the best so far.

    It is called in a thread, so that Ctrl-C reaches the solver in mid-search. Where this is not the main
    thread, which alone Ctrl-C reaches, `work` is called as it is.

    Args:
        work: what searches.
        budget: the time that it has.
        meanwhile: called several times a second in this thread while it works.
        stopping: called when Ctrl-C stops it.

    Raises:
        KeyboardInterrupt: Ctrl-C came for the second time.
    """
    outcome: list[Answer | BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            with spending(budget):
                outcome.append(work())
        except BaseException as error:  # handed to the thread that waits
            outcome.append(error)
        finally:
            done.set()

    if threading.current_thread() is not threading.main_thread():
        run()
    else:
        try:
            threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
        except BaseException:  # Ctrl-C before anything is found
            budget.stop()
            raise
    while not done.is_set():
        try:
            done.wait(_ASKED_EVERY_SECONDS)
            meanwhile()
        except BaseException as error:  # of a signal, whatever the program makes of it
            before = budget.stopped
            budget.stop()
            if before or not isinstance(error, KeyboardInterrupt):
                raise
            stopping()
    answer = outcome[0]
    if isinstance(answer, BaseException):
        raise answer
    return answer
