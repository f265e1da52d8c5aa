"""Output files: written whole, all of them, or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from layoutopt.errors import ProblemFileError


class OutputPath(click.Path):
    """A file to write; `-` is standard output where the command can print it, else refused.

    Args:
        or_print: without the option the command prints what it would write; `-` is the same.
    """

    def __init__(self, or_print: bool = False) -> None:
        super().__init__(path_type=Path)
        self._or_print = or_print

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or None for standard output."""
        if value != "-":
            return Path(value)
        if not self._or_print:
            self.fail("expected a file: standard output (-) has the answer", param, ctx)
        return None


def write_all(outputs: Mapping[Path, bytes]) -> None:
    """Write every output, or none.

    A regular file, which may be the end of links, is replaced by a new one with its mode when all of them
    are written; what is no regular file, and a stream of this process, is written to before that.

    Raises:
        ProblemFileError: a file cannot be written; old ones are left as they were.
    """
    umask = os.umask(0)
    os.umask(umask)
    temporary: dict[Path, str] = {}
    try:
        for path, data in outputs.items():
            mode = _mode(path)
            if not _is_replaced(path, mode):
                continue
            if mode is not None and not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            folder, name = os.path.split(os.path.realpath(path))
            handle, temporary[path] = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(temporary[path], 0o666 & ~umask if mode is None else stat.S_IMODE(mode))
        for path, data in outputs.items():
            if path not in temporary:
                stream = _stream(path)
                with open(path if stream is None else os.dup(stream), "wb") as file:
                    file.write(data)
        for path in list(temporary):
            os.replace(temporary[path], os.path.realpath(path))
            del temporary[path]
    except OSError as error:
        raise ProblemFileError("", f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        for left in temporary.values():
            os.unlink(left)


def check_new(output: Path) -> None:
    """Refuse an output that would replace a file.

    Raises:
        ProblemFileError: there is one.
    """
    mode = _mode(output)
    if mode is not None and _is_replaced(output, mode):
        raise ProblemFileError("-o", f"{str(output)!r} exists already; choose another name")


def check_distinct(problem: Path, **outputs: Path | None) -> None:
    """Refuse options that name one file twice, or the problem itself.

    Raises:
        ProblemFileError: two of them are the same file.
    """
    seen = {os.path.realpath(problem): "the problem"}
    for option, path in outputs.items():
        if path is not None:
            other = seen.setdefault(os.path.realpath(path), f"--{option}")
            if other != f"--{option}":
                raise ProblemFileError("", f"--{option} would overwrite {other}, {str(path)!r}")


def _mode(path: Path) -> int | None:
    """Kind and permissions of a file; None where there is none."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _is_replaced(path: Path, mode: int | None) -> bool:
    return mode is None or (stat.S_ISREG(mode) and _stream(path) is None)


def _stream(path: Path) -> int | None:
    """The standard stream, such as /dev/stdout, that a path is: its other output must not be lost."""
    for stream in (1, 2):
        try:
            if os.path.samestat(os.stat(path), os.fstat(stream)):
                return stream
        except OSError:
            continue
    return None
