"""A command as a process: its streams, its signals, and from errors to exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import warnings
from types import FrameType
from typing import NoReturn

import click

from layoutopt.cli.commands import main
from layoutopt.cli.output import (
    FAILURES,
    INTERRUPTED,
    MAX_LINE_CHARACTERS,
    USAGE_ERROR,
    drop,
    failure,
    note,
    one_line,
)
from layoutopt.ground.escape import shown
from layoutopt.ground.temporary import remove_left

_raised: list[int] = []
"""The signals that were raised as exceptions."""

_PATIENCE = 2
"""So often Ctrl-C is an exception."""


class _Terminated(BaseException):
    """A signal asked the process to end; what is open is cleaned up on the way out."""


def call() -> int:
    """Run the command that the arguments name; its exit code, with errors as one line on stderr.

    Afterwards, signals end the process as the system ends it, and SIGINT does not: it is over.
    """
    _open_streams()
    try:
        _end_by_exception()
        try:
            code = _called()
        except Exception:
            if not _raised:
                raise
            code = _interrupted()
        _end_as_the_system_does()
    except _Terminated as end:
        remove_left()
        number = end.args[0]
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return 128 + int(number)  # where somebody has it blocked
    remove_left()
    return code


def _interrupted() -> int:
    """The end after an error that a signal became on its way through a library, as while one is imported."""
    if _raised[-1] != signal.SIGINT:
        raise _Terminated(_raised[-1]) from None
    note("interrupted")
    return INTERRUPTED


def _called() -> int:
    # Warnings, of disputed hardware rules, are one line without the place in our source.
    warnings.showwarning = lambda message, *_: note(f"warning: {one_line(str(message))}")
    try:
        code = main(standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _show(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        note("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        drop(sys.stdout)
        return 0
    except OSError as error:
        drop(sys.stdout)
        _fail(f"cannot write the output: {error.strerror}")
        return USAGE_ERROR
    except FAILURES as error:
        message, code = failure(error)
        _fail(message)
        return code
    return int(code or 0)


def leave(code: int) -> NoReturn:
    """Exit, at once where a search still runs: no thread may outlive the interpreter that it calls."""
    if threading.active_count() == 1:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _open_streams() -> None:
    """Streams that take every text; those that the caller closed lead nowhere.

    Files that are opened later must not get the numbers of standard streams.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _end_by_exception() -> None:
    ends = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]

    def end(number: int, _: FrameType | None) -> None:
        for each in (*ends, signal.SIGINT):  # the way out is short, and is gone once
            signal.signal(each, _too_late)
        _raised.append(number)
        raise _Terminated(number)

    def interrupt(number: int, _: FrameType | None) -> None:
        _raised.append(number)
        if _raised.count(number) > _PATIENCE:  # no exception is sure to be caught by what catches another
            remove_left()
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)

    for number in ends:  # not where nohup has it ignored
        signal.signal(number, end)


def _too_late(number: int, _: FrameType | None) -> None:
    """Ignores a signal; of one that came together with another, SIG_IGN would make an error of Python's."""


def _end_as_the_system_does() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _show(error: click.ClickException) -> None:
    """The message, which quotes what the user typed, as one line; without a command, what there is."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        note(error.format_message())
        return
    help_of = (
        error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx is not None else None
    )
    hint = f" (try '{help_of} --help')" if help_of is not None else ""
    note(f"error: {one_line(error.format_message())}{shown(hint, MAX_LINE_CHARACTERS)}")


def _fail(message: str) -> None:
    gone = "" if _has_working_directory() else "the working directory was removed; "
    note(f"error: {gone}{one_line(message)}")


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True
