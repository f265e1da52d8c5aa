"""Output files: written whole, all of them, or not at all; none is an input or another output."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Final

import click

from layoutopt.errors import ProblemFileError

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InputPath(click.Path):
    """A file to read."""

    def __init__(self, allow_dash: bool = False) -> None:
        super().__init__(path_type=Path, allow_dash=allow_dash)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. An empty one is a shell variable that is not set; nobody means this folder."""
        if value == "":
            self.fail("expected the name of a file or folder, got ''", param, ctx)
        return super().convert(value, param, ctx)

    def file(self, value: Any) -> Path | None:
        """The file that a value names, if it names one."""
        return Path(value)


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


class FileCommand(click.Command):
    """A command with outputs: before it starts, none of them may be one of its inputs, or another one."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check, then call."""
        given = [(p, ctx.params.get(p.name or "")) for p in self.params]
        outputs = [(p, path) for p, path in given if isinstance(p.type, OutputPath) and path is not None]
        if outputs:
            seen: dict[object, str] = {}
            for param, value in given:
                if isinstance(param.type, InputPath) and value is not None:
                    for one in value if isinstance(value, tuple) else (value,):
                        read = param.type.file(one)
                        if read is not None:
                            seen[_identity(read)] = _option(param)
            for param, path in outputs:
                identity = _identity(path)
                if identity is not None and identity in seen:
                    raise ProblemFileError(
                        "", f"{_option(param)} would overwrite {seen[identity]}, {str(path)!r}"
                    )
                seen[identity] = _option(param)
        return super().invoke(ctx)


def _option(param: click.Parameter) -> str:
    return param.opts[-1] if isinstance(param, click.Option) else f"the {param.name}"


def _identity(path: Path) -> object:
    """Equal for two names of one file; None for what is no regular file and can be written twice."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def write_all(outputs: Mapping[Path, bytes]) -> None:
    """Write every output, or none; a signal leaves neither a part nor a temporary file.

    A regular file, which may be the end of links, is replaced by a new one with its mode when all of them
    are written; what is no regular file, and a stream of this process, is written to before that.

    Raises:
        ProblemFileError: a file cannot be written; old ones are left as they were.
    """
    path = Path()
    made: dict[Path, str] = {}
    try:
        for path, data in outputs.items():
            mode = _mode(path)
            if _is_replaced(path, mode):
                made[path] = _beside(path)
                _write_new(path, made[path], data, mode)
        for path, data in outputs.items():
            if path not in made:
                stream = _stream(path)
                with open(path if stream is None else os.dup(stream), "wb") as file:
                    file.write(data)
        with _undisturbed():
            _replace({temporary: os.path.realpath(path) for path, temporary in made.items()})
    except OSError as error:
        raise ProblemFileError("", f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        with _undisturbed():
            _remove(made.values())


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write piece by piece, in the place of `path` when all of it is written; else nothing changes.

    Raises:
        ProblemFileError: it cannot be written.
    """
    temporary = _beside(path)
    try:
        mode = _mode(path)
        if not _is_replaced(path, mode):
            with open(path, "wb") as file:
                yield file
            return
        with open(temporary, "xb") as file:
            yield file
        if mode is not None:
            os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, os.path.realpath(path))
    except OSError as error:
        raise ProblemFileError("", f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        with _undisturbed():
            _remove([temporary])


def _beside(path: Path) -> str:
    """A name in the same folder that is never longer than the system allows."""
    return os.path.join(os.path.dirname(os.path.realpath(path)), f".layoutopt-{secrets.token_hex(6)}")


def _write_new(path: Path, temporary: str, data: bytes, mode: int | None) -> None:
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        file.write(data)
    if mode is not None:
        os.chmod(temporary, stat.S_IMODE(mode))


def _replace(names: Mapping[str, str]) -> None:
    """Give files their final names, or leave every old file in its place."""
    old: dict[str, str] = {}
    placed: list[str] = []
    try:
        for temporary, final in names.items():
            if len(names) > 1 and os.path.exists(final):
                old[final] = f"{temporary}-old"
                os.link(final, old[final])
            os.replace(temporary, final)
            placed.append(final)
    except OSError:
        for final in placed:
            if final in old:
                os.replace(old[final], final)
            else:
                os.unlink(final)
        raise
    finally:
        _remove(old.values())


def _remove(paths: Any) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals inside wait until the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def wait(number: int, _: FrameType | None) -> None:
        waiting.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in before:
        signal.signal(number, wait)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if waiting:
        signal.raise_signal(waiting[0])


@contextlib.contextmanager
def updating(path: Path) -> Iterator[None]:
    """Inside, no other process that asks for the same file is inside: what it wrote before can be read.

    Raises:
        ProblemFileError: the file cannot be opened or locked.
    """
    import fcntl

    try:
        while True:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    yield
                    return
            # Another process has put a new file in the place of the one that was locked.
    except OSError as error:
        raise ProblemFileError("", f"cannot update {str(path)!r}: {error.strerror}") from None


def check_new(output: Path) -> None:
    """Refuse an output that would replace a file.

    Raises:
        ProblemFileError: there is one.
    """
    mode = _mode(output)
    if mode is not None and _is_replaced(output, mode):
        raise ProblemFileError("-o", f"{str(output)!r} exists already; choose another name")


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
