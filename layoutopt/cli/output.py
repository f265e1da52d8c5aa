"""What commands print: answers on stdout, everything else on stderr, failures as a line with an exit code."""

import contextlib
import io
import json
import logging
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, TextIO, TypeVar

import click

from layoutopt.errors import LayoutoptError
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.ground.escape import json_text, shown, terminal
from layoutopt.ground.interrupt import interruptibly
from layoutopt.ground.log import LOG

Answer = TypeVar("Answer")

USAGE_ERROR: Final = 2
UNDECIDED: Final = 3
INTERRUPTED: Final = 130
MAX_LINE_CHARACTERS: Final = 600
_STOPPED: Final = f"{__name__}.stopped"
FORM: Final = f"{__name__}.form"
"""Of what the command prints: what was asked for, and by which option."""
FAILURES: Final = (LayoutoptError, MemoryError, OutOfTime, click.ClickException)


def say(text: str) -> None:
    """Print a report, which ends in a newline; names in it act on no terminal."""
    click.echo(terminal(text), nl=False)


def say_json(data: Any) -> None:
    """Print one JSON object on a line, in ASCII."""
    click.echo(json.dumps(data))


def form() -> str:
    """The form in which the command that runs shall answer: text, json or another that it has."""
    asked: str = click.get_current_context().meta.get(FORM, ("text", ""))[0]
    return asked


def tell(data: Callable[[], Any], **texts: Callable[[], str]) -> None:
    """Print an answer in the form asked for: as one JSON object, or as the text of that form."""
    if form() == "json":
        say_json(data())
    else:
        say(texts[form()]())


def say_file(text: str) -> None:
    """Print the text of a JSON file, in UTF-8 whatever the terminal has, as the file would be written."""
    click.echo(json_text(text).encode(), nl=False)


def say_diff(text: str) -> None:
    """Print a diff, of which patch(1) needs every byte; what acts on a terminal is escaped there alone."""
    if sys.stdout.isatty():
        say(text)
    else:
        click.echo(text.encode("utf-8", "surrogateescape"), nl=False)


def failure(error: BaseException) -> tuple[str, int]:
    """What one of `FAILURES` is to the user, in a line, and the exit code."""
    if isinstance(error, click.ClickException):  # its message quotes what the user typed
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
        hint = f" (try '{command} --help')" if command else ""
        return one_line(error.format_message()) + shown(hint, MAX_LINE_CHARACTERS), error.exit_code
    if isinstance(error, MemoryError):
        return "not enough memory for this problem", USAGE_ERROR
    if isinstance(error, OutOfTime):
        during = str(error) or "the accesses were evaluated"
        return f"out of time while {during}; give a longer --time-limit", UNDECIDED
    return one_line(str(error)), USAGE_ERROR


def one_line(message: str) -> str:
    """A message as one line that a terminal shows as it is."""
    return shown(" ".join(message.split()), MAX_LINE_CHARACTERS)


class _Lines(logging.Handler):
    """The log as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one of them."""
        _aside(f"{terminal(record.getMessage())}\n")


LOG.addHandler(_Lines())
LOG.setLevel(logging.INFO)
LOG.propagate = False


def note(text: str) -> None:
    """Print a line on stderr, unless -q is given."""
    LOG.info("%s", text)


def fault(text: str) -> None:
    """Print what is wrong on stderr."""
    LOG.error("error: %s", text)


@contextlib.contextmanager
def kept() -> Iterator[io.BytesIO]:
    """Inside, what is printed is kept, in UTF-8, and not printed."""
    buffer = io.BytesIO()
    text = io.TextIOWrapper(buffer, "utf-8", errors="backslashreplace", write_through=True)
    with contextlib.redirect_stdout(text):
        yield buffer
    text.detach()


def _aside(text: str) -> None:
    """Write to stderr; where that takes nothing, the answer is given all the same."""
    try:
        click.echo(text, nl=False, err=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Let nothing more be written to a stream that failed, not even at the end."""
    with contextlib.suppress(io.UnsupportedOperation):  # a stream that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def progress(what: str) -> Callable[[str], None]:
    """A function that shows how far the command is, where somebody watches, or with -v line by line."""
    if LOG.isEnabledFor(logging.DEBUG):
        return lambda text: LOG.debug("%s: %s", what, text)
    if not sys.stderr.isatty() or not LOG.isEnabledFor(logging.INFO):
        return lambda _: None

    def show(text: str) -> None:
        room = shutil.get_terminal_size().columns - len(what) - 3
        _aside(f"\r\x1b[K{what}: {terminal(text[:room])}")

    return show


def terminal_width() -> int:
    """Columns of the terminal; as many as there may be where the output goes elsewhere."""
    return shutil.get_terminal_size((sys.maxsize, 0)).columns if sys.stdout.isatty() else sys.maxsize


def end_progress() -> None:
    """Clear the line of `progress`."""
    if sys.stderr.isatty() and LOG.level == logging.INFO:
        _aside("\r\x1b[K")


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
