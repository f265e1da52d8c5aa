"""Rows of a store as values: a file that something else has written to is refused, not believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from layoutopt.errors import ProblemFileError
from layoutopt.files.result_file import arrangement_from_data
from layoutopt.files.templates import Value
from layoutopt.ground import json_data
from layoutopt.problems.answer import Arrangement, Result, Status
from layoutopt.sweeps.canonical import Spelling, restored
from layoutopt.sweeps.task import ERROR, LOST


@dataclass(frozen=True, slots=True)
class Tile:
    """One problem of a sweep.

    Attributes:
        source: file and line.
        params: values of the parameters.
        name: of the problem.
        target: the device's name.
        shape: extents; empty for several tiles.
        hash: of what it asks; None where it is wrong.
        device: digest of the device's data.
        spelling: names of its accesses.
        error: what is wrong with it.
    """

    source: str
    params: Mapping[str, Any]
    name: str
    target: str = ""
    shape: tuple[int, ...] = ()
    hash: str | None = None
    device: str | None = None
    spelling: Spelling | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """A problem of a sweep and the answer that the store has for it.

    Attributes:
        tile: the problem.
        status: of the answer; `error` where the problem is wrong, `missing` where nothing is known yet.
        excess, bytes, seconds: of the answer.
        answer: as `solve --json` prints it; None where there is none.
        error: why there is none.
    """

    tile: Tile
    status: str
    excess: float | None
    bytes: int | None
    seconds: float | None
    answer: dict[str, Any] | None
    error: str


_Number = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Parameter = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z")]
_Named = tuple[tuple[str, ...], tuple[_Count, ...]]


_STATUSES: Final = rf"\A({'|'.join((*Status, ERROR, LOST))})\Z"


class _Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What `Store.answered` selects."""

    source: str
    params: str
    name: str
    target: str
    shape: str
    hash: str | None
    device: str | None
    spelling: str
    wrong: str
    status: Annotated[str, msgspec.Meta(pattern=_STATUSES)] | None
    excess: _Number | None
    bytes: _Count | None
    seconds: _Number | None
    answer: str | None
    error: str | None


# What every answer with a layout has, besides.
_OF_A_LAYOUT: Final = ("bytes", "declared_bytes", "alignment_bytes", "excess")

_PARAMS: Final = msgspec.json.Decoder(dict[_Parameter, Value])
_SHAPE: Final = msgspec.json.Decoder(tuple[_Count, ...])
_SPELLING: Final = msgspec.json.Decoder(_Named | None)
_ANSWER: Final = msgspec.json.Decoder(dict[str, Any])


def answered(row: tuple[Any, ...]) -> Answered:
    """A problem and its answer out of what `Store.answered` selects.

    Raises:
        ProblemFileError: no store of this version holds such a row.
    """
    json_data.prepare(_Row)
    try:
        read = msgspec.convert(row, _Row)
        both = _SPELLING.decode(read.spelling)
        spelling = Spelling(*both) if both is not None else None
        tile = Tile(
            read.source, _PARAMS.decode(read.params), read.name, read.target, _SHAPE.decode(read.shape),
            read.hash, read.device, spelling, read.wrong,
        )  # fmt: skip
    except msgspec.MsgspecError as error:
        raise ProblemFileError("", f"the store holds a row that is none: {error}") from None
    found = None
    if read.answer and spelling is not None:
        found = spelled(parsed(read.answer), read.name, spelling)
        typed(found)
    status = "error" if read.wrong else read.status or "missing"
    return Answered(
        tile, str(status), read.excess, read.bytes, read.seconds, found, read.wrong or read.error or ""
    )


def parsed(text: str | bytes) -> dict[str, Any]:
    """The JSON of an answer.

    Raises:
        ProblemFileError: it is none.
    """
    try:
        return _ANSWER.decode(text)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ProblemFileError("", f"the store holds an answer that is none: {error}") from None


def spelled(answer: dict[str, Any], name: str, spelling: Spelling) -> dict[str, Any]:
    """What was kept, as the answer to the problem called `name`.

    Raises:
        ProblemFileError: it does not fit the problem.
    """
    try:
        return restored(answer, name, spelling)
    except (LookupError, TypeError, ValueError):
        wrong = f"the store holds an answer that does not fit {name!r}"
        raise ProblemFileError("", wrong) from None


def typed(answer: dict[str, Any]) -> Result | Arrangement:
    """An answer as the typed result that it is.

    Raises:
        ProblemFileError: it is none.
    """
    if answer.get("tiles"):
        return arrangement_from_data(answer)
    kind: type[Result | Arrangement] = Arrangement if "tiles" in answer else Result
    json_data.prepare(kind)
    try:
        found = msgspec.convert(answer, kind)
    except msgspec.MsgspecError as error:
        raise ProblemFileError("", f"the store holds an answer that is none: {error}") from None
    if isinstance(found, Result) and found.layout is not None:
        missing = [field for field in _OF_A_LAYOUT if getattr(found, field) is None]
        if missing:
            raise ProblemFileError("", f"the store holds a layout without its {', '.join(missing)}")
    return found
