"""JSON to `Problem`, with errors that name the field."""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Any

import msgspec

from layoutopt import json_data
from layoutopt.errors import ProblemFileError
from layoutopt.model import ELEMENT_BYTES, PACKED_BITS, Problem

MAX_FILE_BYTES = 8 << 20
MAX_ELEMENTS = 1 << 21
_RESERVED = frozenset(("tid", "lane", "warp", "min", "max"))


def load(path: str | Path) -> Problem:
    """Read a problem file.

    Raises:
        ProblemFileError: the file cannot be read or does not hold a problem; `field` says where.
    """
    return decode(json_data.read(path, MAX_FILE_BYTES))


def decode(data: bytes) -> Problem:
    """Read a problem from JSON text (UTF-8).

    Raises:
        ProblemFileError: the text does not hold a problem.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ProblemFileError("", f"a problem file has at most {MAX_FILE_BYTES} bytes")
    return from_data(json_data.parse(data))


def from_data(raw: Any) -> Problem:
    """A problem from decoded JSON data.

    Raises:
        ProblemFileError: the data is not a problem; `field` says where.
    """
    problem = json_data.convert(raw, Problem)
    check(problem)
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


def check(problem: Problem) -> None:
    """Check what types cannot say.

    Raises:
        ProblemFileError: a field contradicts another, or names what there is not.
    """
    tile, dims = problem.tile, len(problem.tile.shape)
    if (
        isinstance(tile.element, str)
        and tile.element not in ELEMENT_BYTES
        and tile.element not in PACKED_BITS
    ):
        known = ", ".join((*ELEMENT_BYTES, *PACKED_BITS))
        raise ProblemFileError(
            "tile.element", f'unknown type {tile.element!r}; known: {known}, or {{"bytes": n}}'
        )
    if tile.elements > MAX_ELEMENTS:
        raise ProblemFileError("tile.shape", f"at most {MAX_ELEMENTS} elements, not {tile.elements}")
    if tile.shape[-1] % tile.packed:
        raise ProblemFileError(
            f"tile.shape[{dims - 1}]",
            f"{tile.packed} {tile.element} elements share a byte, so that the last extent is a multiple "
            f"of {tile.packed}, not {tile.shape[-1]}",
        )
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
        for place, variables in (("for", access.loops), ("any", access.any)):
            reserved = {v for v in variables if v in _RESERVED or keyword.iskeyword(v)}
            if reserved:
                raise ProblemFileError(
                    f"accesses[{i}].{place}", f"{min(reserved)!r} is reserved; choose another variable"
                )
        if twice := access.loops.keys() & access.any.keys():
            raise ProblemFileError(f"accesses[{i}].any", f"{min(twice)!r} is a variable of `for`, too")
    order = problem.layout.order
    if order is not None and sorted(order) != list(range(dims)):
        raise ProblemFileError("layout.order", f"expected each of 0..{dims - 1} once, got {list(order)}")
    alignment = problem.layout.alignment_bytes
    if alignment is not None and alignment & (alignment - 1):
        raise ProblemFileError("layout.alignment_bytes", f"expected a power of two, got {alignment}")
