"""JSON files to checked data, with errors that name the field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from layoutopt.errors import ProblemFileError

T = TypeVar("T")


def read(path: str | Path, max_bytes: int) -> bytes:
    """The bytes of a file; one more than `max_bytes` at most.

    Raises:
        ProblemFileError: it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes + 1)
    except OSError as error:
        raise ProblemFileError("", f"cannot read {str(path)!r}: {error.strerror}") from None


def parse(data: bytes) -> Any:
    """Decode JSON text (UTF-8); no key may stand twice in one object.

    Raises:
        ProblemFileError: it is no JSON.
    """

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
        raise ProblemFileError("", "not JSON that layoutopt reads: nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ProblemFileError("", f"not JSON: {str(error).split(';')[0]}") from None


def convert(raw: Any, kind: type[T], place: str = "") -> T:
    """Decoded JSON data, found at `place` in its file, as a `kind`, checked field by field.

    Raises:
        ProblemFileError: `field` is the path of the first one that is wrong.
    """
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        inside = located(error, raw)
        field = ".".join(part for part in (place, inside.field) if part)
        raise ProblemFileError(field, inside.reason) from None


def located(error: msgspec.ValidationError, raw: Any) -> ProblemFileError:
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
