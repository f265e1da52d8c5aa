"""Functions called in processes of this machine, which end with whatever they began when their owner does.

Each process is a program behind a thread that hands it calls and replaces it when it dies. It is of a session
of its own: Ctrl-C is for the owner. Where the owner closes its end of the socket, or dies, the process ends
the compiler that it waits for and removes its temporary files.
"""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

from layoutopt.ground.temporary import remove_left

MAX_ATTEMPTS: Final = 3  # of processes at one call
_CALLS_OF_A_PROCESS: Final = 2000  # libraries keep memory
_ENDING_S: Final = 1.0  # for what asks no signal, such as a solver


class KilledWorker(Exception):
    """The processes that worked on a call ended; Dask's exception has the same name."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Processes:
    """So many processes, started as there are calls; `close` ends them at once."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count)
        self._own = threading.local()
        self._started: set[Process] = set()
        self._closed = False

    def submit(
        self, function: Callable[..., Any], *arguments: object, seconds: float | None = None
    ) -> Future[Any]:
        """Call a function of a module in a process that is free.

        The future raises `KilledWorker` where processes die of it, or take longer than so many seconds.
        """
        return self._threads.submit(self._called, (function, arguments), seconds)

    def close(self) -> None:
        """End the processes."""
        self._closed = True
        for process in tuple(self._started):
            process.hang_up()
        self._threads.shutdown(cancel_futures=True)
        for process in tuple(self._started):
            process.end()

    def _called(self, call: object, seconds: float | None) -> Any:
        for _ in range(MAX_ATTEMPTS):
            process: Process | None = getattr(self._own, "process", None)
            if process is None:
                process = self._own.process = Process()
                self._started.add(process)
            if self._closed:
                process.hang_up()
            answer = process.answer(call, seconds)
            if answer is None or process.left <= 0:
                process.end()
                self._started.discard(process)
                self._own.process = None
            if answer is not None:
                found, error = answer
                if error is not None:
                    raise error
                return found
            if self._closed:
                break
        raise KilledWorker


class Process:
    """A program that reads calls from a socket and writes what came of them."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from layoutopt.ground.processes import serve; "
        with theirs:
            self.program = subprocess.Popen(
                [sys.executable, "-c", f"{code}serve({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._connection: Connection = Connection(os.dup(self._socket.fileno()))
        self.left = _CALLS_OF_A_PROCESS

    def answer(self, call: object, seconds: float | None) -> tuple[Any, Exception | None] | None:
        """What came of a call, or its error; None where the program dies, or takes longer than it may."""
        self.left -= 1
        try:
            self._connection.send(call)
            return self._connection.recv() if self._connection.poll(seconds) else None
        except (EOFError, OSError):
            return None

    def hang_up(self) -> None:
        """Let it end; from any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """End it, and wait for that."""
        self.hang_up()
        try:
            self.program.wait(2 * _ENDING_S)
        except subprocess.TimeoutExpired:
            self.program.kill()
            self.program.wait()
        self._connection.close()
        self._socket.close()


class _Gone(BaseException):
    """The owner is: what is open, as a compiler that runs, is ended on the way out."""


def serve(descriptor: int) -> NoReturn:
    """Be a process that does what comes from a socket, until its owner closes it or is gone."""
    connection: Connection = Connection(descriptor)
    calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple[object, ...]]] = queue.SimpleQueue()

    def gone(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Gone

    def read() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                calls.put(connection.recv())
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ENDING_S)
        remove_left()
        os._exit(0)

    signal.signal(signal.SIGTERM, gone)
    try:
        threading.Thread(target=read, daemon=True).start()  # the owner may be gone by now
        while True:
            function, arguments = calls.get()
            answer: tuple[object, Exception | None]
            try:
                answer = function(*arguments), None
            except Exception as error:  # a bug, or another version: the owner says what
                answer = None, error
            connection.send(answer)
    except (_Gone, OSError):
        remove_left()
        os._exit(0)
