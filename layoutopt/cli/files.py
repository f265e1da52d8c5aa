"""Output files: written whole, all of them, or not at all; none is an input or another output."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from layoutopt.cli.output import note
from layoutopt.errors import ProblemFileError
from layoutopt.ground.temporary import discard, temporary_beside, undisturbed

STANDARD_INPUT: Final = Path("/dev/stdin")
_INPUTS: Final = f"{__name__}.inputs"

Content = bytes | Callable[[BinaryIO], None]
"""What a file shall hold, or what writes it piece by piece."""


class InputPath(click.Path):
    """A file to read."""

    def __init__(self, allow_dash: bool = False) -> None:
        super().__init__(path_type=Path, allow_dash=allow_dash)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. An empty one is a shell variable that is not set; nobody means this folder."""
        if value == "":
            self.fail("expected the name of a file or folder, got ''", param, ctx)
        return super().convert(value, param, ctx)

    def files(self, value: Any) -> Iterable[Path]:
        """The files that are read for a value."""
        return (Path(value),)


class TextOrFile(InputPath):
    """A text that may be the name of a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        return str(value)

    def files(self, value: str) -> Iterable[Path]:
        """The file, if there is one of that name."""
        return (Path(value),) if os.path.exists(value) else ()


class OutputPath(click.Path):
    """A file to write; `-` is standard output where the command can print it, else refused.

    Args:
        or_print: without the option the command prints what it would write; `-` is the same.
        folder: it is a folder, for several files.
    """

    def __init__(self, or_print: bool = False, folder: bool = False) -> None:
        super().__init__(path_type=Path, file_okay=not folder)
        self._or_print, self._folder = or_print, folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or None for standard output. An empty one is a shell variable that is not set."""
        if value == "":
            self.fail("expected the name of a file or folder, got ''", param, ctx)
        if self._folder and value != "-":
            return super().convert(value, param, ctx)
        if str(value).endswith("/"):
            self.fail(f"expected the name of a file, got the folder {value!r}", param, ctx)
        if value != "-":
            return Path(value)
        if not self._or_print:
            self.fail("expected a file: standard output (-) has the answer", param, ctx)
        return None


class FileCommand(click.Command):
    """A command with outputs: before it starts, none of them may be one of its inputs, or another one."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check, then call. What is written later, in a folder, `write_all` checks by itself."""
        given = [(p, ctx.params.get(p.name or "")) for p in self.params]
        outputs = [(p, path) for p, path in given if isinstance(p.type, OutputPath) and path is not None]
        if outputs:
            inputs = {
                identity: _option(param)
                for param, value in given
                if isinstance(param.type, InputPath)
                for one in _each(value)
                for read in param.type.files(one)
                if (identity := _identity(read)) is not None
            }
            ctx.meta[_INPUTS] = inputs
            written: dict[object, str] = {}
            for param, path in outputs:
                _refuse_inputs({path: _option(param)}, inputs | written)
                written[_identity(path)] = _option(param)
        return super().invoke(ctx)


def _each(value: Any) -> Iterable[Any]:
    """The values of a parameter that may have none, several, or named ones."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _refuse_inputs(outputs: Mapping[Path, str], inputs: Mapping[object, str]) -> None:
    """Refuse outputs, named by their options, that are inputs."""
    for path, option in outputs.items():
        identity = _identity(path)
        if identity is not None and identity in inputs:
            raise ProblemFileError("", f"{option} would overwrite {inputs[identity]}, {str(path)!r}")


def _check_outputs(paths: Iterable[Path]) -> None:
    """That none of them is an input of the command that runs."""
    running = click.get_current_context(silent=True)
    if running is not None:
        _refuse_inputs(dict.fromkeys(paths, "-o"), running.meta.get(_INPUTS, {}))


def _option(param: click.Parameter) -> str:
    return param.opts[-1] if isinstance(param, click.Option) else f"the {param.name}"


def _identity(path: Path) -> object:
    """Equal for two names of one file; None for what is no regular file and can be written twice."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def write_all(outputs: Mapping[Path, Content]) -> None:
    """Write every output, or none; a signal leaves neither a part nor a temporary file.

    A regular file, which may be the end of links, is replaced by a new one with its mode when all of them
    are written; what is no regular file, and a stream of this process, is written to before that.

    Raises:
        ProblemFileError: a file cannot be written; old ones are left as they were.
    """
    _check_outputs(outputs)
    path = Path()
    made: dict[Path, str] = {}
    try:
        for path, content in outputs.items():
            mode = _mode(path)
            if _is_replaced(path, mode):
                made[path] = temporary_beside(path)
                _write(_new(path, made[path], mode), content)
        for path, content in outputs.items():
            if path not in made:
                stream = _stream(path)  # of this process, which goes on where it is
                _write(path if stream is None else os.dup(stream), content)
        with undisturbed():
            _replace({temporary: os.path.realpath(path) for path, temporary in made.items()})
    except OSError as error:
        raise ProblemFileError("", f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        discard(made.values())


def write_folder(folder: Path, outputs: Mapping[Path, Content]) -> None:
    """Write files into a folder, which is made, and say which.

    Raises:
        ProblemFileError: the folder cannot be made, or as for `write_all`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProblemFileError("-o", f"cannot make {str(folder)!r}: {error.strerror}") from None
    write_all(outputs)
    for path in outputs:
        note(f"wrote {path}")


def _write(where: Path | int, content: Content) -> None:
    with open(where, "wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)


def _new(path: Path, temporary: str, mode: int | None) -> int:
    """The descriptor of a file that takes the place of `path`, which has that mode or is not there."""
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    if mode is not None:
        os.fchmod(descriptor, stat.S_IMODE(mode))
    return descriptor


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
        for path in old.values():
            with contextlib.suppress(OSError):
                os.unlink(path)


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
        ProblemFileError: there is one, or there can be none of that name.
    """
    try:
        mode = _mode(output)
    except OSError as error:
        raise ProblemFileError("", f"cannot write {str(output)!r}: {error.strerror}") from None
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
