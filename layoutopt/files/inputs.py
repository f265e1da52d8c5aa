"""Many problems: files, folders, JSON lines and templates as one row of problem data, in the order given."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from layoutopt.errors import ProblemFileError
from layoutopt.files import catalogue, templates
from layoutopt.files.file import MAX_FILE_BYTES, parsed, read
from layoutopt.files.templates import Value
from layoutopt.ground import json_data
from layoutopt.ground.escape import writable

STANDARD_INPUT: Final = "-"
_LINES: Final = (".jsonl", ".ndjson")
_MOST: Final = MAX_FILE_BYTES + 1

Over = Mapping[str, Sequence[Value]] | None


@dataclass(frozen=True, slots=True)
class Input:
    """The data of one problem, or why there is none.

    Attributes:
        label: where it comes from: file, line, values of parameters.
        data: decoded; not checked to be a problem.
        error: what is wrong with the file, the line or the template.
        source: file and line without the parameters.
        values: of the parameters.
    """

    label: str
    data: Any = None
    error: ProblemFileError | None = None
    source: str = ""
    values: dict[str, Value] = field(default_factory=dict)


def inputs(
    paths: Iterable[str | Path],
    over: Over = None,
    standard_input: BinaryIO | None = None,
) -> Iterator[Input]:
    """Every problem that files, folders and names of the catalogue hold; what is wrong stops nothing else.

    Args:
        paths: files of one problem or template; files in .jsonl of one a line; folders, whose .json and
            .jsonl files are taken by name, those inside folders too; names of the catalogue; `-` for
            `standard_input`.
        over: values of parameters, in the place of those in the files.
        standard_input: one JSON value, or one a line.
    """
    for path in paths:
        if str(path) == STANDARD_INPUT and standard_input is not None:
            yield from _of_stream(standard_input, STANDARD_INPUT, over)
        elif os.path.isdir(path):
            found = files(Path(path))
            if not found:
                wrong = ProblemFileError("", "no problem file in this folder")
                yield Input(writable(str(path)), error=wrong)
            for inside in found:
                yield from _of_file(inside, over)
        else:
            yield from _of_file(path, over)


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
        yield from expanded(lambda: parsed(read(path)), label, over)
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
            yield from expanded(lambda: parsed(text), label, over)
            return
        ahead[-1] += stream.readline(_MOST)
    for number, line in enumerate(itertools.chain(ahead, iter(lambda: stream.readline(_MOST), b"")), 1):
        if line.strip():
            yield from expanded(partial(parsed, line), f"{label}, line {number}", over)
        if len(line) >= _MOST:
            return  # the rest of the line is no problem, and it may have no end


def _is_whole(text: bytes) -> bool:
    """Whether a text is JSON by itself."""
    try:
        json_data.parse(text)
    except ProblemFileError:
        return False
    return True


def expanded(data: Callable[[], Any], source: str, over: Over) -> Iterator[Input]:
    """The problems that decoded data stands for, or what is wrong with it."""
    label = source
    try:
        for instance in templates.expand(data(), over):
            label = f"{source} ({instance.label})" if instance.values else source
            yield Input(label, instance.data, source=source, values=instance.values)
    except ProblemFileError as error:
        yield Input(label, error=error)
