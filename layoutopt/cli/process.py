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
from layoutopt.cli.failures import FAILURES, INTERRUPTED, MAX_LINE_CHARACTERS, USAGE_ERROR, failure, one_line
from layoutopt.cli.output import note
from layoutopt.ground.escape import shown


class _Terminated(BaseException):
    """A signal asked the process to end; what is open is cleaned up on the way out."""


def call() -> int:
    """Run the command that the arguments name; its exit code, with errors as one line on stderr."""
    _open_streams()
    _end_by_exception()
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
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        _fail(f"cannot write the output: {error.strerror}")
        return USAGE_ERROR
    except FAILURES as error:
        message, code = failure(error)
        _fail(message)
        return code
    except _Terminated as end:
        number = end.args[0]
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return int(code or 0)


def leave(code: int) -> NoReturn:
    """Exit, at once where a search still runs: no thread may outlive the interpreter that it calls."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what there was to interrupt is over
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
    def end(number: int, _: FrameType | None) -> None:
        raise _Terminated(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not where nohup has it ignored
            signal.signal(number, end)


def _drop_output() -> None:
    """Let nothing more be written to a stream that failed, not even at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
