"""A command as a process: its streams, its signals, and from errors to exit codes."""

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
from layoutopt.cli.output import FAILURES, INTERRUPTED, USAGE_ERROR, drop, failure, fault, note, one_line
from layoutopt.ground.log import LOG
from layoutopt.ground.temporary import remove_left

_raised: list[int] = []
"""The signals that were raised as exceptions."""


class _Ended(BaseException):
    """A signal ends the process; what is open, as a compiler that runs, is ended on the way out."""


def call() -> int:
    """Run the command that the arguments name; its exit code, with errors as one line on stderr."""
    _open_streams()
    _handle_signals()
    # Warnings, of disputed hardware rules, are one line without the place in our source.
    warnings.showwarning = lambda message, *_: LOG.warning("warning: %s", one_line(str(message)))
    try:
        code = int(main(standalone_mode=False) or 0)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:  # without a command, what there is
        note(error.format_message())
        return error.exit_code
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
    except (Exception, KeyboardInterrupt, _Ended) as error:
        # Libraries that are imported make other errors of a signal.
        if not _raised and not isinstance(error, click.Abort | KeyboardInterrupt):
            raise
        if _raised and (number := _raised[-1]) != signal.SIGINT:
            remove_left()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        note("interrupted")
        return INTERRUPTED
    finally:
        remove_left()
    return code


def leave(code: int) -> NoReturn:
    """Exit, at once where a search still runs: no thread may outlive the interpreter that it calls."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _handle_signals() -> None:
    """Let signals be exceptions, so that nothing is left of what the process has begun."""

    def end(number: int, _: FrameType | None) -> None:
        _raised.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else _Ended

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # nohup ignores one
            signal.signal(number, end)


def _fail(message: str) -> None:
    gone = ""
    try:
        os.getcwd()
    except OSError:
        gone = "the working directory was removed; "
    fault(gone + message)
