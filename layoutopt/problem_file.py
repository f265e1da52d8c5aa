"""JSON to `Problem`, with errors that name the field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from layoutopt.errors import ProblemFileError
from layoutopt.model import ELEMENT_BYTES, Problem

MAX_FILE_BYTES = 8 << 20
MAX_ELEMENTS = 1 << 21


def load(path: str | Path) -> Problem:
    """Read a problem file.

    Raises:
        ProblemFileError: the file cannot be read or does not hold a problem; `field` says where.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ProblemFileError("", f"cannot read {str(path)!r}: {error.strerror}") from None
    return decode(data)


def decode(data: bytes) -> Problem:
    """Read a problem from JSON text (UTF-8).

    Raises:
        ProblemFileError: the text does not hold a problem.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ProblemFileError("", f"a problem file has at most {MAX_FILE_BYTES} bytes")
    return from_data(_parse(data))


def from_data(raw: Any) -> Problem:
    """A problem from decoded JSON data.

    Raises:
        ProblemFileError: the data is not a problem; `field` says where.
    """
    try:
        problem = msgspec.convert(raw, Problem)
    except msgspec.ValidationError as error:
        raise _located(error, raw) from None
    _check(problem)
    return problem


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a problem file, generated from the types."""
    (schema,), components = msgspec.json.schema_components([Problem], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "layoutopt problem",
        **schema,
        "$defs": components,
    }


def _parse(data: bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ProblemFileError("", f"the key {twice!r} stands twice in one object")
        return dict(pairs)

    def refuse(text: str) -> Any:
        raise ProblemFileError("", f"{text} is not a JSON number")

    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=unique, parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise ProblemFileError("", f"not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ProblemFileError(
            "", f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except RecursionError:
        raise ProblemFileError("", "not a problem: nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ProblemFileError("", f"not JSON: {str(error).split(';')[0]}") from None


def _located(error: msgspec.ValidationError, raw: Any) -> ProblemFileError:
    """Turn msgspec's "... - at `$.a[0].b`" into a field path, a requirement and what was given."""
    reason, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").removeprefix(".")
    given = raw
    for step in re.findall(r"[^.\[\]]+", path):
        try:
            given = given[int(step)] if isinstance(given, list) else given[step]
        except (KeyError, IndexError, ValueError, TypeError):
            return ProblemFileError(path, _lower(reason))
    if not isinstance(given, dict):
        shown = json.dumps(given)
        reason += f", given {shown if len(shown) <= 60 else shown[:57] + '...'}"
    return ProblemFileError(path, _lower(reason))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _check(problem: Problem) -> None:
    """What types cannot say."""
    tile, dims = problem.tile, len(problem.tile.shape)
    if isinstance(tile.element, str) and tile.element not in ELEMENT_BYTES:
        known = ", ".join(ELEMENT_BYTES)
        raise ProblemFileError(
            "tile.element", f'unknown type {tile.element!r}; known: {known}, or {{"bytes": n}}'
        )
    if tile.elements > MAX_ELEMENTS:
        raise ProblemFileError("tile.shape", f"at most {MAX_ELEMENTS} elements, not {tile.elements}")
    seen: dict[str, int] = {}
    for i, access in enumerate(problem.accesses):
        if access.name in seen:
            raise ProblemFileError(
                f"accesses[{i}].name", f"{access.name!r} is already the name of accesses[{seen[access.name]}]"
            )
        seen[access.name] = i
        if len(access.index) != dims:
            raise ProblemFileError(
                f"accesses[{i}].index",
                f"expected one expression for each of {dims} dimensions, got {len(access.index)}",
            )
        if reserved := {"tid", "lane", "warp", "min", "max"} & access.loops.keys():
            raise ProblemFileError(
                f"accesses[{i}].for", f"{min(reserved)!r} is reserved; choose another variable"
            )
    order = problem.layout.order
    if order is not None and sorted(order) != list(range(dims)):
        raise ProblemFileError("layout.order", f"expected each of 0..{dims - 1} once, got {list(order)}")
    alignment = problem.layout.alignment_bytes
    if alignment is not None and alignment & (alignment - 1):
        raise ProblemFileError("layout.alignment_bytes", f"expected a power of two, got {alignment}")
