"""Problems from Python: the fields of a problem file as dicts, arrays and typed parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.files.inputs import STANDARD_INPUT, Input, expanded, inputs
from layoutopt.files.templates import Value
from layoutopt.ground.escape import described, shown, writable
from layoutopt.problems import types
from layoutopt.problems.types import Block

Source = str | Path | BinaryIO | Mapping[str, Any] | types.Problem | Block

# Fields that are read as arrays.
_ARRAYS = frozenset(("coordinates", "active"))


def problem(data: Mapping[str, Any] | None = None, /, **fields: Any) -> types.Problem | Block:
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


class _Made(type):
    """The type of problems, called with plain data."""

    def __call__(cls, *data: Mapping[str, Any], **fields: Any) -> Any:
        return problem(*data, **fields)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, types.Problem)


class Problem(metaclass=_Made):
    """The type of every problem of one tile; called, it is `problem`.

    `Problem(name=..., tile={"shape": (32, 32), "element": "f32"}, threads=32, accesses=[...])` reads dicts,
    arrays and typed parts, checks them, and gives a `layoutopt.problems.types.Problem`, which is what all
    functions take and give: frozen, comparable, and data throughout.
    """


def load_all(
    *sources: Source, over: Mapping[str, Sequence[Value]] | None = None
) -> list[types.Problem | Block]:
    """Every problem that files, folders, names of the catalogue and dicts hold.

    Args:
        sources: as the commands take them; a stream of bytes that holds one problem, or one a line, such as
            `sys.stdin.buffer`; dicts of the file's form, templates included; problems.
        over: values of parameters, in the place of those of the templates.

    Raises:
        ProblemFileError: a source cannot be read, or holds something that is no problem.
    """
    return [checked(item) for source in sources for item in items(source, over)]


def items(source: Source, over: Mapping[str, Sequence[Value]] | None = None) -> Iterable[Input]:
    """The data of every problem of a source, or what is wrong with it; see `load_all`."""
    if isinstance(source, str | Path):
        yield from inputs([source], over)
        return
    if not isinstance(source, Mapping | types.Problem | Block):
        if not hasattr(source, "readline"):
            wanted = "a file, a folder, a stream of bytes, a dict or a problem"
            raise ProblemFileError("", f"expected {wanted}, got {described(source)}")
        yield from inputs([STANDARD_INPUT], over, source)
        return
    data = {"name": "tile", **plain(source)}
    yield from expanded(lambda: data, str(data["name"]), over)


def checked(item: Input) -> types.Problem | Block:
    """The problem of an input.

    Raises:
        ProblemFileError: there is none.
    """
    if item.error is not None:
        raise item.error
    return from_data(item.data)


def plain(data: Any) -> Any:
    """Data as it stands in a file: no tuples, typed parts and NumPy numbers; arrays of accesses stay."""
    if isinstance(data, Mapping):
        return {
            str(key): np.asarray(value) if key in _ARRAYS and value is not None else plain(value)
            for key, value in data.items()
        }
    if isinstance(data, np.ndarray | np.generic):
        return data.tolist()
    if isinstance(data, list | tuple | range):
        return [plain(item) for item in data]
    if isinstance(data, str) and writable(data) != data:
        raise ProblemFileError("", f"half of a surrogate pair is no character; given {shown(data)}")
    if isinstance(data, msgspec.Struct):
        return msgspec.to_builtins(data)
    return data
