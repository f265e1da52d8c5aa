"""JSON files to checked data, with errors that name the field.

Stricter than JSON: no key twice, no number that 64 bits or a float cannot hold, no lone surrogate, so that
whatever was read can be counted with and printed.
"""

import contextlib
import difflib
import json
import math
import re
import threading
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from layoutopt.errors import ProblemFileError, under
from layoutopt.ground.escape import shown

T = TypeVar("T")

_MAX_INTEGER_CHARACTERS: Final = 20
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


def read(path: str | Path, max_bytes: int) -> bytes:
    """The bytes of a file.

    Raises:
        ProblemFileError: it cannot be read, or has more than `max_bytes`.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ProblemFileError("", f"cannot read {str(path)!r}: {error.strerror}") from None
    except ValueError:
        raise ProblemFileError("", f"{str(path)!r} is no name of a file") from None
    if len(data) > max_bytes:
        raise ProblemFileError("", f"{str(path)!r} has more than {max_bytes:,} bytes")
    return data


@contextlib.contextmanager
def named_by(option: str) -> Iterator[None]:
    """Errors inside are about a file that an option names, beside the one that a command is about."""
    try:
        yield
    except ProblemFileError as error:
        raise ProblemFileError(option, str(error)) from None


class _TooLarge:
    """Stands for a number that no 64 bits hold, until its place is known."""

    def __init__(self, text: str) -> None:
        self.text = text


def parse(data: bytes) -> Any:
    """Decode JSON text (UTF-8); no key may stand twice in one object.

    Raises:
        ProblemFileError: it is no JSON, or holds what the text of the module says.
    """
    large: list[_TooLarge] = []

    def integer(digits: str) -> Any:
        value = int(digits) if len(digits) <= _MAX_INTEGER_CHARACTERS else _MOST + 1
        return value if _LEAST <= value <= _MOST else noted(digits)

    def number(digits: str) -> Any:
        value = float(digits)
        return value if math.isfinite(value) else noted(digits)

    def noted(digits: str) -> _TooLarge:
        large.append(_TooLarge(digits))
        return large[-1]

    try:
        text = data.decode("utf-8-sig")
        raw = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=integer,
            parse_float=number,
        )
    except UnicodeDecodeError as error:
        raise ProblemFileError("", f"not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ProblemFileError(
            "", f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except RecursionError:
        raise ProblemFileError("", "not JSON that layoutopt reads: nested too deeply") from None
    if large or "\\ud" in text or "\\uD" in text:
        _check_values(raw)
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ProblemFileError("", f"the key {shown(key)!r} stands twice in one object")
            seen.add(key)
    return found


def _refuse_constant(text: str) -> Any:
    raise ProblemFileError("", f"{text} is not a JSON number")


def _check_values(raw: Any) -> None:
    """Refuse numbers that are too large, and halves of surrogate pairs, which no encoding writes."""
    waiting = [("", raw)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, _TooLarge):
            raise ProblemFileError(
                shown(place, 200), f"a number has at most 64 bits; given {shown(value.text)}"
            )
        if isinstance(value, str):
            if any("\ud800" <= c <= "\udfff" for c in value):
                raise ProblemFileError(
                    shown(place, 200), f"half of a surrogate pair is no character; given {shown(value)}"
                )
        elif isinstance(value, list):
            waiting += ((f"{place}[{k}]", item) for k, item in enumerate(value))
        elif isinstance(value, dict):
            waiting += ((place, key) for key in value)
            waiting += ((f"{place}.{key}".lstrip("."), item) for key, item in value.items())


_prepared: set[Any] = set()
_one_at_a_time = threading.Lock()


def prepare(kind: Any) -> None:
    """Let msgspec look at a type, before anything is converted to it.

    It does so when it first meets one, and the process crashes where two threads let it.
    """
    if kind not in _prepared:
        with _one_at_a_time:
            msgspec.json.Decoder(kind)
            _prepared.add(kind)


def packaged(room: str, name: str, kind: type[T]) -> T:
    """A data file of a room of the package."""
    prepare(kind)
    return msgspec.json.decode(resources.files(f"layoutopt.{room}").joinpath(name).read_bytes(), type=kind)


def convert(raw: Any, kind: type[T], place: str = "") -> T:
    """Decoded JSON data, found at `place` in its file, as a `kind`, checked field by field.

    Raises:
        ProblemFileError: `field` is the path of the first one that is wrong.
    """
    prepare(kind)
    with under(place):
        try:
            return msgspec.convert(raw, kind)
        except msgspec.ValidationError as error:
            raise _located(error, raw, kind) from None


def line(data: bytes, decoder: msgspec.json.Decoder[T], number: int) -> T:
    """One line of a file of JSON lines, as what the decoder gives.

    Args:
        data: the line.
        decoder: strict about types; what it refuses is read anew to say why.
        number: of the line, from 1.

    Raises:
        ProblemFileError: the line is wrong; `field` is such as `line 7, byte_address[3]`.
    """
    place = f"line {number}"
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        try:
            convert(parse(data), decoder.type)
        except ProblemFileError as found:
            reason = re.sub(r"\(line \d+, (column \d+)\)$", r"(\1)", found.reason)
            raise ProblemFileError(f"{place}, {found.field}" if found.field else place, reason) from None
        raise ProblemFileError(place, f"not JSON that layoutopt reads: {shown(str(error), 200)}") from None


def _located(error: msgspec.ValidationError, raw: Any, kind: Any) -> ProblemFileError:
    """Turn msgspec's "... - at `$.a[0].b`" into a field path, a requirement and what was given."""
    reason, _, path = str(error).rpartition(" - at `$") if " - at `$" in str(error) else (str(error), "", "")
    path = path.rstrip("`").removeprefix(".")
    place, reason = shown(path, 200), shown(reason[:1].lower() + reason[1:], 300)
    if unknown := re.search(r"unknown field `(.*)`", reason):
        known = _fields(kind)
        near = difflib.get_close_matches(unknown[1], known, n=1)
        # A name that is known elsewhere is meant there.
        reason += f"; did you mean {known[near[0]] if near[0] == unknown[1] else near[0]}?" if near else ""
    given, types = raw, [msgspec.inspect.type_info(kind)]
    for step in re.findall(r"[^.\[\]]+", path):
        inner = _opened(types)
        fields = [field for one in inner for field in getattr(one, "fields", ())]
        types = [field.type for field in fields if field.encode_name == step] or inner
        try:
            given = given[int(step)] if isinstance(given, list) else given[step]
        except (KeyError, IndexError, ValueError, TypeError):
            return ProblemFileError(place, reason)
    if reason.startswith("invalid enum value"):
        values = [repr(value) for one in _opened(types) for value in getattr(one, "values", ())]
        reason += f"; expected {' or '.join(values)}"
    if not isinstance(given, dict):
        reason += f", given {shown(json.dumps(given, default=repr))}"
    return ProblemFileError(place, reason)


def _fields(kind: Any) -> dict[str, str]:
    """The names of all fields within, and where one of that name is, such as `convert.max_bytes`."""
    todo, found = [(msgspec.inspect.type_info(kind), "")], dict[str, str]()
    for one, place in todo:
        for field in (field for inner in _opened([one]) for field in getattr(inner, "fields", ())):
            if field.encode_name not in found:
                found[field.encode_name] = f"{place}.{field.encode_name}".lstrip(".")
                todo.append((field.type, found[field.encode_name]))
    return found


def _opened(types: list[Any]) -> list[Any]:
    """Types, and those of members of unions and of items within."""
    found = [*types]
    for one in found:
        found += [*getattr(one, "types", ()), *getattr(one, "item_types", ())]
        found += [getattr(one, name) for name in ("item_type", "value_type", "type") if hasattr(one, name)]
    return found


class Versioned(Struct, frozen=True, rename={"schema_": "schema"}):
    """Data with a schema: its last field, `schema_`, which stands first in JSON."""

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": data.pop("schema"), **data}
