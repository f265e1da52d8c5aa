"""Output files: written whole, all of them, or not at all; none is an input or another output."""

import errno
import logging
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from layoutopt.cli.output import kept, note, say_file
from layoutopt.errors import ProblemFileError
from layoutopt.ground.log import LOG
from layoutopt.ground.temporary import discard, temporary_beside, undisturbed

STANDARD_INPUT: Final = Path("/dev/stdin")
ANSWER_FILE: Final = "answer_file"
"""The parameter of what is printed."""
_TYPED = f"{__name__}.typed"
_INPUTS: Final = f"{__name__}.inputs"
_ANSWER: Final = f"{__name__}.answer"

Content = bytes | Callable[[BinaryIO], None]
"""What a file shall hold, or what writes it piece by piece."""


class _Named(click.Path):
    """The name of a file or folder, which the shell completes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. An empty one is a shell variable that is not set; nobody means this folder."""
        if value == "":
            self.fail("expected the name of a file or folder, got ''", param, ctx)
        return Path(value)


class InputPath(_Named):
    """A file to read."""

    def files(self, value: Any) -> Iterable[Path]:
        """The files that are read for a value."""
        return (Path(value),)


class TextOrFile(InputPath):
    """A text that may be the name of a file, after a prefix where there is one, such as @FILE."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it is."""
        return str(value)

    def files(self, value: str) -> Iterable[Path]:
        """The file, if there is one of that name."""
        name = value.removeprefix(self._prefix)
        named = value.startswith(self._prefix) and os.path.exists(name)
        return (Path(name),) if named else ()


class OutputPath(_Named):
    """A file to write; `-` is standard output where the command can print it, else refused.

    Args:
        or_print: without the option the command prints what it would write; `-` is the same.
        folder: it is a folder, for several files.
    """

    def __init__(self, or_print: bool = False, folder: bool = False) -> None:
        super().__init__(file_okay=not folder)
        self._or_print, self._folder = or_print, folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or None for standard output."""
        if value == "-" and self._or_print:
            return None
        if value == "-":
            self.fail("expected a file: standard output (-) has the answer", param, ctx)
        if not self._folder and str(value).endswith("/"):
            self.fail(f"expected the name of a file, got the folder {value!r}", param, ctx)
        return super().convert(value, param, ctx)


def _logs(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given:
        LOG.setLevel(logging.ERROR if param.name == "quiet" else logging.DEBUG)


def typed_arguments() -> list[str]:
    """What the user typed behind the name of the command that runs."""
    found: list[str] = click.get_current_context().meta[_TYPED]
    return found


class FileCommand(click.Command):
    """A command: before it starts, none of its outputs may be one of its inputs, or another one.

    Every one has -q and -v. What one with `ANSWER_FILE` prints goes into that file.

    Args:
        sections: names of options that stand under a title of their own in the help.
    """

    def __init__(
        self, *args: Any, sections: Mapping[str, Collection[str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sections = {name: title for title, names in (sections or {}).items() for name in names}
        for name, said in (("quiet", "Print errors only on stderr."), ("verbose", "Say what is done.")):
            self.params.append(
                click.Option(
                    [f"-{name[0]}", f"--{name}"], is_flag=True, help=said, callback=_logs, expose_value=False
                )
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; what was typed is kept for `typed_arguments`."""
        ctx.meta[_TYPED] = [*args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, by their sections; those without one come last."""
        found: dict[str, list[tuple[str, str]]] = {title: [] for title in self._sections.values()}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
                found.setdefault(self._sections.get(param.name or "", "Options"), []).append(record)
        for title, records in found.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> Any:
        """Check, then call. What is written later, in a folder, `write_all` checks by itself."""
        given = [(p, ctx.params.get(p.name or "")) for p in self.params]
        outputs = {
            _option(p): path for p, path in given if isinstance(p.type, OutputPath) and path is not None
        }
        if outputs:
            taken = {
                _identity(read): _option(param)
                for param, value in given
                if isinstance(param.type, InputPath)
                for one in _each(value)
                for read in param.type.files(one)
            }
            ctx.meta[_INPUTS] = dict(taken)
            for option, path in outputs.items():
                _check_free(path, option, taken)
                taken[_identity(path)] = option
        answer = ctx.params.pop(ANSWER_FILE, None)
        ctx.meta[_ANSWER] = answer
        if answer is None:
            return super().invoke(ctx)
        with kept() as printed:
            code = super().invoke(ctx)
        write_all({answer: printed.getvalue()})
        return code


def reads(what: str, paths: Iterable[Path]) -> None:
    """Let no output of the command that runs take the place of these files, which its inputs name."""
    click.get_current_context().meta.setdefault(_INPUTS, {}).update((_identity(path), what) for path in paths)


def _each(value: Any) -> Iterable[Any]:
    """The values of a parameter that may have none, several, or named ones."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _check_free(path: Path, option: str, taken: Mapping[object, str]) -> None:
    """Refuse an output that is an input, or an output, of another option."""
    identity = _identity(path)
    if identity is not None and identity in taken:
        raise ProblemFileError("", f"{option} would overwrite {taken[identity]}, {str(path)!r}")


def _option(param: click.Parameter) -> str:
    return param.opts[-1] if isinstance(param, click.Option) else f"the {param.name}"


def _identity(path: Path) -> object:
    """Equal for two names of one file; None for what is no regular file and can be written twice."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def write_all(outputs: Mapping[Path, Content], *, new: bool = False) -> None:
    """Write every output, or none; a signal leaves neither a part nor a temporary file.

    A regular file, which may be the end of links, is replaced by a new one with its mode when all of them
    are written; what is no regular file, and a stream of this process, is written to before that.

    Raises:
        ProblemFileError: a file cannot be written, or is there where it shall be `new`.
    """
    running = click.get_current_context(silent=True)
    path = Path()
    made: dict[Path, str] = {}
    try:
        for path, content in outputs.items():
            _check_free(path, "-o", running.meta.get(_INPUTS, {}) if running is not None else {})
            mode = _mode(path)
            if mode is None or (stat.S_ISREG(mode) and _stream(path) is None):
                if new and mode is not None:
                    raise ProblemFileError("-o", f"{str(path)!r} exists already; choose another name")
                made[path] = temporary_beside(path)
                _write(_new(path, made[path], mode), content)
        for path, content in outputs.items():
            if path not in made:
                stream = _stream(path)  # of this process, which goes on where it is
                _write(path if stream is None else os.dup(stream), content)
        with undisturbed():
            for path, temporary in made.items():
                os.replace(temporary, os.path.realpath(path))
    except OSError as error:
        raise ProblemFileError("", f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        discard(made.values())


def write_changed(outputs: Mapping[Path, Content]) -> None:
    """Write inputs of the command that runs anew, as `write_all`; the answer goes into none of them.

    Raises:
        ProblemFileError: it shall, or as for `write_all`.
    """
    meta = click.get_current_context().meta
    for path in outputs:
        if (answer := meta[_ANSWER]) is not None:
            _check_free(answer, "-o", {_identity(path): "a file that changes"})
        meta.get(_INPUTS, {}).pop(_identity(path), None)
    write_all(outputs)


def write_folder(folder: Path, outputs: Mapping[str, Content], *, new: bool = False) -> None:
    """Write files, by their names, into a folder, which is made, and say which.

    Raises:
        ProblemFileError: the folder cannot be made, or as for `write_all`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProblemFileError("-o", f"cannot make {str(folder)!r}: {error.strerror}") from None
    write_all({folder / name: content for name, content in outputs.items()}, new=new)
    for name in outputs:
        note(f"wrote {folder / name}")


def write_new(output: Path | None, text: str, then: str = "") -> None:
    """Write a JSON file that is not there yet, and say so; without a name, print it."""
    if output is None:
        say_file(text)
        return
    write_all({output: text.encode()}, new=True)
    note(f"wrote {output}{then}")


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


def _mode(path: Path) -> int | None:
    """Kind and permissions of a file; None where there is none."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def _stream(path: Path) -> int | None:
    """The standard stream, such as /dev/stdout, that a path is: its other output must not be lost."""
    for stream in (1, 2):
        try:
            if os.path.samestat(os.stat(path), os.fstat(stream)):
                return stream
        except OSError:
            continue
    return None
