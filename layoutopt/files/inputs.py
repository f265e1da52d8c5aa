"""Problems from wherever: files, folders, JSON lines, templates and Python's dicts as one row of data."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.errors import ProblemFileError
from layoutopt.files import catalogue, templates
from layoutopt.files.file import MAX_FILE_BYTES, from_data, parsed, read
from layoutopt.files.templates import Value
from layoutopt.ground import json_data
from layoutopt.ground.escape import described, shown, writable
from layoutopt.problems.types import Block, Problem

STANDARD_INPUT: Final = "-"
_LINES: Final = (".jsonl", ".ndjson")
_MOST: Final = MAX_FILE_BYTES + 1

Over = Mapping[str, Sequence[Value]] | None
Source = str | Path | BinaryIO | Mapping[str, Any] | Problem | Block

# Fields of accesses that are read as arrays.
_ARRAYS: Final = frozenset(("coordinates", "active"))


class Input(Struct, frozen=True):
    """The data of one problem, or why there is none."""

    label: str  # where it comes from: file, line, values of parameters
    data: Any = None  # decoded; not checked to be a problem
    error: ProblemFileError | None = None  # what is wrong with the file, the line or the template
    source: str = ""  # file and line without the parameters
    values: dict[str, Value] = {}  # of the parameters


def problem(data: Mapping[str, Any] | None = None, /, **fields: Any) -> Problem | Block:
    """A problem of one tile or of several from the fields of a problem file.

    Args:
        data: the fields as a dict of the file's form. Numbers and arrays may be NumPy's, tuples are lists,
            and parts may be typed ones (`Tile`, `Access`). An access may have `coordinates`, integers of
            shape (instructions, lanes, dimensions), and `active`, of shape (instructions, lanes), in the
            place of `index`, `for` and `where`; or `bases`, the vectors of a linear layout.
        fields: the same by keyword; they come before those of `data`. `name` may be left out.

    Raises:
        ProblemFileError: the fields are no problem; `field` says which.
    """
    if data is not None and not isinstance(data, Mapping):
        raise ProblemFileError("", f"expected a dict of the fields of a problem, got {described(data)}")
    return from_data({"name": "tile", **plain({**(data or {}), **fields})})


def load_all(*sources: Source, over: Over = None) -> list[Problem | Block]:
    """Every problem that files, folders, names of the catalogue and dicts hold.

    Args:
        sources: files, folders, names of the catalogue, streams of bytes, dicts or problems.
        over: values of parameters, in the place of those of the templates.

    Raises:
        ProblemFileError: a source cannot be read, or holds something that is no problem.
    """
    return [checked(item) for item in inputs(sources, over)]


def checked(item: Input) -> Problem | Block:
    """The problem of an input.

    Raises:
        ProblemFileError: there is none.
    """
    if item.error is not None:
        raise item.error
    return from_data(item.data)


def inputs(sources: Iterable[Source], over: Over = None) -> Iterator[Input]:
    """The data of every problem that sources hold; what is wrong stops nothing else.

    Args:
        sources: files of one problem or template; files in .jsonl of one a line; folders, whose .json and
            .jsonl files are taken by name, those inside folders too; names of the catalogue; streams of bytes
            that hold one JSON value, or one a line, such as `sys.stdin.buffer`; dicts of the file's form,
            templates included; problems.
        over: values of parameters, in the place of those in the templates.

    Raises:
        ProblemFileError: a source is nothing of that.
    """
    for source in sources:
        if isinstance(source, Mapping | Problem | Block):
            data = {"name": "tile", **plain(source)}
            yield from _expanded(partial(dict, data), str(data["name"]), over)
        elif not isinstance(source, str | Path):
            if not hasattr(source, "readline"):
                wanted = "a file, a folder, a stream of bytes, a dict or a problem"
                raise ProblemFileError("", f"expected {wanted}, got {described(source)}")
            yield from _of_stream(source, STANDARD_INPUT, over)
        elif os.path.isdir(source):
            found = files(Path(source))
            if not found:
                said = "no problem file (.json) in this folder, and no launches that capture recorded"
                wrong = ProblemFileError("", said)
                yield Input(writable(str(source)), error=wrong)
            for inside in found:
                yield from _of_file(inside, over)
        else:
            yield from _of_file(source, over)


def files(folder: Path) -> list[Path]:
    """The problem files in a folder and in those inside it, by name, and the folders that cannot be read."""
    found: list[Path] = []
    for inside, _, names in os.walk(folder, onerror=lambda error: found.append(Path(error.filename))):
        paths = (Path(inside, name) for name in names if name.endswith((".json", *_LINES)))
        found.extend(path for path in paths if path.stem != catalogue.SCHEMA_NAME and os.path.isfile(path))
    return sorted(found)


def _of_file(path: str | Path, over: Over) -> Iterator[Input]:
    label = writable(str(path))
    if Path(path).suffix not in _LINES:
        yield from _expanded(lambda: parsed(read(path)), label, over)
        return
    try:
        with open(path, "rb") as file:
            yield from _of_stream(file, label, over, lines=True)
    except OSError as error:
        yield Input(label, error=ProblemFileError("", f"cannot read {label!r}: {error.strerror}"))
    except ValueError:
        yield Input(label, error=ProblemFileError("", f"{label!r} is no name of a file"))


def _of_stream(stream: BinaryIO, label: str, over: Over, *, lines: bool = False) -> Iterator[Input]:
    """Problems of a stream: of its lines, if the first one is JSON by itself, else one.

    Each line is answered before the next one is read, so that another program may write and wait.
    """
    first = stream.readline(_MOST)
    ahead = [first]
    if not lines and not _is_whole(first):
        text = first + stream.read(_MOST - len(first))
        ahead = text.splitlines(keepends=True)
        # Lines that are problems by themselves behind a first one that is wrong.
        if _is_whole(text) or not any(b'"accesses"' in line and _is_whole(line) for line in ahead[1:]):
            yield from _expanded(lambda: parsed(text), label, over)
            return
        ahead[-1] += stream.readline(_MOST)
    for number, line in enumerate(itertools.chain(ahead, iter(lambda: stream.readline(_MOST), b"")), 1):
        if line.strip():
            yield from _expanded(partial(parsed, line), f"{label}, line {number}", over)
        if len(line) >= _MOST:
            return  # the rest of the line is no problem, and it may have no end


def _is_whole(text: bytes) -> bool:
    """Whether a text is JSON by itself."""
    try:
        json_data.parse(text)
    except ProblemFileError:
        return False
    return True


def _expanded(data: Callable[[], Any], source: str, over: Over) -> Iterator[Input]:
    """The problems that decoded data stands for, or what is wrong with it."""
    label = source
    try:
        for instance in templates.expand(data(), over):
            label = f"{source} ({instance.label})" if instance.values else source
            yield Input(label, instance.data, source=source, values=instance.values)
    except ProblemFileError as error:
        yield Input(label, error=error)


def plain(data: Any) -> Any:
    """Data as it stands in a file: no tuples, typed parts and NumPy numbers; arrays of accesses stay."""
    if isinstance(data, Mapping):
        return {str(key): (_accesses if key == "accesses" else plain)(value) for key, value in data.items()}
    if isinstance(data, np.ndarray | np.generic):
        return data.tolist()
    if isinstance(data, list | tuple | range):
        return [plain(item) for item in data]
    if isinstance(data, str) and writable(data) != data:
        raise ProblemFileError("", f"half of a surrogate pair is no character; given {shown(data)}")
    if isinstance(data, msgspec.Struct):
        return msgspec.to_builtins(data)
    return data


def _accesses(data: Any) -> Any:
    """`plain` of the accesses of a tile, whose arrays stay."""
    if not isinstance(data, list | tuple):
        return plain(data)
    return [
        {str(k): np.asarray(v) if k in _ARRAYS and v is not None else plain(v) for k, v in access.items()}
        if isinstance(access, Mapping)
        else plain(access)
        for access in data
    ]
