"""Many problems: files, folders, JSON lines and templates as one row of problem data, in the order given."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
# Of a line that is too long, so many times that are read to find the next one.
_SKIPPED_PIECES: Final = 32


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
    over: Mapping[str, Sequence[Value]] | None = None,
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
            yield from _of_folder(Path(path), over)
        else:
            yield from _of_file(path, over)


def files(folder: Path) -> list[Path]:
    """The problem files in a folder and in those inside it, by name, and the folders that cannot be read."""
    found: list[Path] = []
    for inside, _, names in os.walk(folder, onerror=lambda error: found.append(Path(error.filename))):
        paths = (Path(inside, name) for name in names if name.endswith((".json", *_LINES)))
        found.extend(path for path in paths if path.stem != catalogue.SCHEMA_NAME and os.path.isfile(path))
    return sorted(found)


def _of_folder(folder: Path, over: Mapping[str, Sequence[Value]] | None) -> Iterator[Input]:
    found = files(folder)
    if not found:
        yield Input(writable(str(folder)), error=ProblemFileError("", "no problem file in this folder"))
    for path in found:
        yield from _of_file(path, over)


def _of_file(path: str | Path, over: Mapping[str, Sequence[Value]] | None) -> Iterator[Input]:
    label = writable(str(path))
    if Path(path).suffix in _LINES:
        try:
            with open(path, "rb") as file:
                yield from _of_stream(file, label, over, lines=True)
        except OSError as error:
            yield Input(label, error=ProblemFileError("", f"cannot read {label!r}: {error.strerror}"))
        except ValueError:
            yield Input(label, error=ProblemFileError("", f"{label!r} is no name of a file"))
        return
    try:
        raw = parsed(read(path))
    except ProblemFileError as error:
        yield Input(label, error=error)
        return
    yield from _expanded(raw, label, over)


def _of_stream(
    stream: BinaryIO, label: str, over: Mapping[str, Sequence[Value]] | None, *, lines: bool = False
) -> Iterator[Input]:
    """Problems of a stream: of its lines, if the first one is JSON by itself, else one.

    Each line is answered before the next one is read, so that another program may write and wait.
    """
    first = stream.readline(_MOST)
    if lines or _is_whole(first):
        yield from _of_lines(_lines(stream, first), label, over)
        return
    text = first + stream.read(_MOST - len(first))
    *following, last = text.split(b"\n")[1:] or [b""]
    if any(map(_is_problem, (*following, last))) and not _is_whole(text):  # the first is wrong
        last += stream.readline(_MOST - len(last))
        yield from _of_lines(itertools.chain((first,), following, _lines(stream, last)), label, over)
    else:
        yield from _of_text(text, label, over)


def _of_lines(
    lines: Iterable[bytes], label: str, over: Mapping[str, Sequence[Value]] | None
) -> Iterator[Input]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield from _of_text(line, f"{label}, line {number}", over)


def _lines(stream: BinaryIO, line: bytes) -> Iterator[bytes]:
    """A line, and those that follow it; of one that is too long, more than a problem may have."""
    while line:
        yield line
        pieces = 0
        while len(line) == _MOST and not line.endswith(b"\n"):
            if pieces == _SKIPPED_PIECES:
                return  # it has no end
            pieces += 1
            line = stream.readline(_MOST)
        line = stream.readline(_MOST)


def _is_problem(text: bytes) -> bool:
    """Whether a line is JSON by itself and no part of a problem that is written on several."""
    return b'"accesses"' in text and _is_whole(text)


def _is_whole(text: bytes) -> bool:
    """Whether a text is JSON by itself."""
    try:
        json_data.parse(text)
    except ProblemFileError:
        return False
    return True


def _of_text(text: bytes, label: str, over: Mapping[str, Sequence[Value]] | None) -> Iterator[Input]:
    try:
        raw = parsed(text)
    except ProblemFileError as error:
        yield Input(label, error=error)
        return
    yield from _expanded(raw, label, over)


def _expanded(raw: Any, source: str, over: Mapping[str, Sequence[Value]] | None) -> Iterator[Input]:
    label = source
    try:
        for instance in templates.expand(raw, over):
            label = f"{source} ({instance.label})" if instance.values else source
            yield Input(label, instance.data, source=source, values=instance.values)
    except ProblemFileError as error:
        yield Input(label, error=error)
