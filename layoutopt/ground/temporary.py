"""Folders and files that do not outlive their use, whatever signals arrive.

A signal that is raised as an exception may arrive at every instruction, also in what cleans up after an
earlier one. So what is made is noted before it is there, and `remove_left` at the end of the process removes
what is still noted.
"""

import contextlib
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_left: set[str] = set()


CACHE_VARIABLE: Final = "LAYOUTOPT_CACHE"


def cache_folder() -> Path | None:
    """Where what took long to make is kept: $LAYOUTOPT_CACHE, else `layoutopt` in the user's cache folder.

    None where nothing is to be kept: the variable is empty.
    """
    given = os.environ.get(CACHE_VARIABLE)
    if given is not None:
        return Path(given) if given else None
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder, "layoutopt") if os.path.isabs(folder) else None


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """An empty folder, removed at the end with all that is in it."""
    import tempfile  # what most commands need not wait for

    path = os.path.join(tempfile.gettempdir(), f"layoutopt-{secrets.token_hex(8)}")
    _left.add(path)
    try:
        os.mkdir(path, 0o700)
        yield Path(path)
    finally:
        with undisturbed():
            _remove(path)


def temporary_beside(path: str | Path) -> str:
    """A name for a file, in the folder of `path`, never longer than the system allows; see `discard`."""
    name = os.path.join(os.path.dirname(os.path.realpath(path)), f".layoutopt-{secrets.token_hex(6)}")
    _left.add(name)
    return name


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A name beside `path` to write to, which takes its place at the end; nothing is left of a failure."""
    temporary = temporary_beside(path)
    try:
        yield Path(temporary)
        os.replace(temporary, path)
    finally:
        discard([temporary])


def discard(paths: Iterable[str]) -> None:
    """Remove temporary files, those that have not got another name."""
    with undisturbed():
        for path in paths:
            _remove(path)


def remove_left() -> None:
    """Remove what is left of a process that ends; no signal may be raised as an exception any more."""
    for path in tuple(_left):
        _remove(path)


def _remove(path: str) -> None:
    for _ in range(3):  # a tool that was killed may still have been at a file
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)
        if not os.path.lexists(path):
            break
    _left.discard(path)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals inside wait until the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def wait(number: int, _: FrameType | None) -> None:
        waiting.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if callable(handler):  # neither ignored nor left to the system
            signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, handler)
    if waiting:
        signal.raise_signal(waiting[0])
