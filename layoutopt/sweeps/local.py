"""Tasks on the cores of this machine: a process each, that is started anew when it dies.

A worker is a program that reads tasks from one socket and writes outcomes to it, in order, so that the driver
knows which task a dead one was at. A worker whose driver is gone reads the end of its tasks and leaves.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Final

from layoutopt.hardware.devices import Device
from layoutopt.sweeps.task import LOST, Outcome, Task, outcome_of

MAX_ATTEMPTS: Final = 3
# Tasks that a worker has beside the one it is at, so that it never waits for the driver.
_AHEAD: Final = 3
# Beyond its limit a task may evaluate accesses, load libraries, and share the machine with others.
_GRACE_SECONDS: Final = 60.0
_GRACE_FACTOR: Final = 3.0
# A worker is replaced after so many tasks: libraries keep memory.
_TASKS_OF_A_PROCESS: Final = 2000


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def outcomes(
    tasks: Iterator[Task], workers: int | None = None, devices: Sequence[Device] = ()
) -> Iterator[list[Outcome]]:
    """Outcomes of all tasks, as they come, those that are there at a time together.

    Args:
        tasks: taken as workers get free.
        workers: processes; None for one a core.
        devices: those beside the package's.

    Raises:
        MachineError: the workers have another version of layoutopt.
    """
    first = next(tasks, None)
    if first is None:
        return
    waiting: deque[Task] = deque((first,))
    attempts: Counter[str] = Counter()
    pool = [_Worker(devices) for _ in range(workers or cores())]
    try:
        while True:
            for worker in pool:
                worker.fill(waiting, tasks)
            busy = [worker for worker in pool if worker.at]
            if not busy:
                return
            ready = wait([worker.connection for worker in busy], timeout=1.0)
            found: list[Outcome] = []
            for worker in busy:
                if worker.connection in ready:
                    found += worker.read()
                if worker.overdue:
                    worker.kill()
                if worker.dead:
                    found += _blamed(worker, waiting, attempts)
            if found:
                yield found
    finally:
        for worker in pool:
            worker.kill()


def _blamed(worker: _Worker, waiting: deque[Task], attempts: Counter[str]) -> list[Outcome]:
    """What is lost with a worker: the task it was at, if that happened too often; the others wait again."""
    left = list(worker.at)
    worker.kill()
    worker.start()
    if not left:
        return []
    attempts[left[0].hash] += 1
    given_up = attempts[left[0].hash] >= MAX_ATTEMPTS
    waiting.extendleft(reversed(left[1:] if given_up else left))
    text = f"the process that worked on it ended {MAX_ATTEMPTS} times"
    return [Outcome(left[0].hash, LOST, error=text)] if given_up else []


class _Worker:
    """One process and the tasks that it has."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        self.start()

    def start(self) -> None:
        """Start a process; it has no tasks yet."""
        mine, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from layoutopt.sweeps.local import serve; "
        with theirs:
            # Of a group of its own: Ctrl-C is for the driver, which keeps what is there and ends the workers.
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{code}serve({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.connection: Connection = Connection(mine.detach())
        self.at: deque[Task] = deque()
        self.dead = False
        self.begun = time.monotonic()
        self.left = _TASKS_OF_A_PROCESS
        self._send(self.devices)

    def fill(self, waiting: deque[Task], tasks: Iterator[Task]) -> None:
        """Give it tasks, until it has enough; those that wait come first."""
        if self.left <= 0 and not self.at:
            self.kill()
            self.start()
        while len(self.at) <= _AHEAD and self.left > 0:
            task = waiting.popleft() if waiting else next(tasks, None)
            if task is None:
                return
            if not self.at:
                self.begun = time.monotonic()
            self.at.append(task)
            self.left -= 1
            self._send(task)

    def read(self) -> list[Outcome]:
        """The outcomes that it has written."""
        found = []
        try:
            while self.at and self.connection.poll():
                outcome = self.connection.recv()
                if isinstance(outcome, BaseException):
                    raise outcome
                found.append(outcome)
                self.at.popleft()
                self.begun = time.monotonic()
        except (EOFError, OSError):
            self.dead = True
        return found

    @property
    def overdue(self) -> bool:
        """Whether it takes far longer for a task than it may."""
        if not self.at:
            return False
        allowed = _GRACE_FACTOR * self.at[0].time_limit + _GRACE_SECONDS
        return time.monotonic() - self.begun > allowed

    def kill(self) -> None:
        """End the process at once."""
        self.dead = True
        self.process.kill()
        self.process.wait()
        self.connection.close()

    def _send(self, what: object) -> None:
        with contextlib.suppress(OSError):  # a dead one is noticed where it is read
            self.connection.send(what)


def serve(descriptor: int) -> None:
    """Be a worker: tasks come from a socket, outcomes go to it."""
    connection: Connection = Connection(descriptor)
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    try:
        devices: tuple[Device, ...] = connection.recv()
    except (EOFError, OSError):
        return  # the driver was ended while it started this process

    def read() -> None:
        # Read at once, so that a driver that writes waits for nobody.
        while True:
            try:
                tasks.put(connection.recv())
            except (EOFError, OSError):
                os._exit(0)  # the driver is gone, or done

    threading.Thread(target=read, daemon=True).start()
    for number in itertools.count():
        if number == 1:
            gc.freeze()  # what the first task has loaded stays, so that no collection looks at it again
        try:
            outcome: object = outcome_of(tasks.get(), devices)
        except Exception as error:  # a bug, or another version: the driver says what
            outcome = error
        try:
            connection.send(outcome)
        except OSError:
            return  # the driver is gone
