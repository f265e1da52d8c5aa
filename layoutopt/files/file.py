"""JSON to `Problem`, with errors that name the field."""

from __future__ import annotations

import keyword
import os
from pathlib import Path
from typing import Any

import msgspec

from layoutopt.accesses import named_accesses
from layoutopt.accesses.array_access import ArrayAccess, BasesAccess
from layoutopt.accesses.copy_access import CopyAccess
from layoutopt.accesses.cover_access import CoverAccess
from layoutopt.accesses.fragment_access import FragmentAccess
from layoutopt.accesses.hardware_access import HardwareAccess, check_cluster, check_target, check_use
from layoutopt.errors import ProblemFileError
from layoutopt.files import catalogue, templates
from layoutopt.ground import json_data
from layoutopt.ground.escape import described
from layoutopt.problems.types import ELEMENT_BYTES, PACKED_BITS, Access, Problem, Tile, TileSet

MAX_FILE_BYTES = 8 << 20
MAX_ELEMENTS = 1 << 21
MAX_PITCH_MULTIPLE_BYTES = 1 << 20  # more than any GPU has shared memory
_RESERVED = frozenset(("tid", "lane", "warp", "min", "max"))


def load(path: str | Path) -> Problem:
    """Read a problem file, or the problem of that name in the catalogue if there is no such file.

    Raises:
        ProblemFileError: the file cannot be read or does not hold a problem; `field` says where.
    """
    return decode(read(path))


def read(path: str | Path) -> bytes:
    """The text of a problem file, or of the problem of that name in the catalogue.

    Raises:
        ProblemFileError: there is neither, or it cannot be read.
    """
    if not isinstance(path, str | os.PathLike):
        raise ProblemFileError("", f"expected the name of a file, got {described(path)}")
    name = str(path)
    if Path(path).suffix != ".json" and _is_missing(name):
        found = catalogue.find(name)
        if found is None:
            near = catalogue.near(name)
            hint = f"did you mean {' or '.join(near)}?" if near else "`layoutopt problems` lists them"
            raise ProblemFileError("", f"no file and no problem of the catalogue is called {name!r}; {hint}")
        path = found
    return json_data.read(path, MAX_FILE_BYTES)


def _is_missing(path: str) -> bool:
    """Whether there is nothing of that name; what is there and cannot be reached is not missing."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # whoever reads it says why
        return False
    return False


def decode(data: bytes) -> Problem:
    """Read a problem from JSON text (UTF-8).

    Raises:
        ProblemFileError: the text does not hold a problem.
    """
    return from_data(parsed(data))


def parsed(data: bytes) -> Any:
    """JSON data of a problem file from its text.

    Raises:
        ProblemFileError: the text is too long, or no JSON.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ProblemFileError("", f"a problem file has at most {MAX_FILE_BYTES:,} bytes")
    return json_data.parse(data)


def from_data(raw: Any) -> Problem:
    """A problem of one tile from decoded JSON data.

    Raises:
        ProblemFileError: the data is not a problem; `field` says where.
    """
    raw = templates.single(raw)
    if isinstance(raw, dict) and "tiles" in raw and "tile" not in raw:
        raise ProblemFileError("tiles", "one `tile` is expected here, not several")
    problem = json_data.convert(written_out(raw), Problem)
    check(problem)
    return problem


def written_out(raw: Any) -> Any:
    """Problem data in which named accesses (`layoutopt.accesses.named_accesses`) are ordinary ones.

    Raises:
        ProblemFileError: a named access, or what it depends on, is wrong.
    """
    accesses = raw.get("accesses") if isinstance(raw, dict) else None
    if not isinstance(accesses, list) or not any(map(named_accesses.is_named, accesses)):
        return raw
    others = {"accesses": [{"name": "any", "op": "load", "index": ["0"]}]}
    head = json_data.convert({**raw, **others}, Problem)
    check_element(head.tile)
    return {**raw, "accesses": named_accesses.expand(accesses, head)}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a problem file, generated from the types."""
    kinds = [
        Problem,
        TileSet,
        FragmentAccess,
        CopyAccess,
        CoverAccess,
        ArrayAccess,
        BasesAccess,
        HardwareAccess,
    ]
    (one, several, *named), components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    items = components["Problem"]["properties"]["accesses"]
    items["items"] = {"anyOf": [items["items"], *named]}
    tile = components["TileAccess"]["properties"]["tile"]
    for reference in named:  # the same of one of several tiles
        name = reference["$ref"].rpartition("/")[2]
        own = components[name]
        properties, required = {"tile": tile, **own["properties"]}, ["tile", *own["required"]]
        components[f"Tile{name}"] = {
            **own, "title": f"Tile{name}", "properties": properties, "required": required
        }  # fmt: skip
    items = components["TileSet"]["properties"]["accesses"]
    of_tiles = [{"$ref": reference["$ref"].replace("/$defs/", "/$defs/Tile")} for reference in named]
    items["items"] = {"anyOf": [items["items"], *of_tiles]}
    components["Template"] = templates.JSON_SCHEMA
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "layoutopt problem",
        "anyOf": [one, several, {"$ref": "#/$defs/Template"}],
        "$defs": components,
    }
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return data


def check(problem: Problem) -> None:
    """Check what types cannot say.

    Raises:
        ProblemFileError: a field contradicts another, or names what there is not.
    """
    tile, dims = problem.tile, len(problem.tile.shape)
    check_element(tile)
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
        _check_freedom(access, f"accesses[{i}]")
        check_use(access, f"accesses[{i}]", tile)
    check_target(problem)
    check_cluster(problem)
    check_dictated(problem)
    order = problem.layout.order
    if order is not None and sorted(order) != list(range(dims)):
        raise ProblemFileError("layout.order", f"expected each of 0..{dims - 1} once, got {list(order)}")
    alignment = problem.layout.alignment_bytes
    if alignment is not None and alignment & (alignment - 1):
        raise ProblemFileError("layout.alignment_bytes", f"expected a power of two, got {alignment}")
    pitch = problem.layout.pitch_multiple_bytes
    if pitch is not None and pitch > MAX_PITCH_MULTIPLE_BYTES:
        raise ProblemFileError(
            "layout.pitch_multiple_bytes", f"expected at most {MAX_PITCH_MULTIPLE_BYTES} bytes, got {pitch}"
        )


def _check_freedom(access: Access, field: str) -> None:
    """Check that free lanes leave nothing else open, and that nothing is asked of lanes that are not free.

    Raises:
        ProblemFileError: it does.
    """
    for name, given in (("global", access.global_), ("order", access.order)):
        if given is not None and access.lanes is None:
            raise ProblemFileError(f"{field}.{name}", 'is for accesses with "lanes": "free"')
    if not access.is_free:
        return
    freedom = "lanes" if access.lanes is not None else "values"
    if isinstance(access.bytes, tuple):
        raise ProblemFileError(f"{field}.bytes", f"one width is expected where {freedom} are free")
    if access.any:
        raise ProblemFileError(f"{field}.any", f"no value is left to run time where {freedom} are free")


def check_dictated(problem: Problem) -> None:
    """Check that nothing is left open beside a layout that the hardware dictates.

    Raises:
        ProblemFileError: what the hardware knows and another constraint contradict each other.
    """
    if not problem.is_dictated:
        return
    why = "must_be" if problem.layout.must_be is not None else "an access of the hardware by itself"
    for field in ("families", "pitch_multiple_bytes"):
        if getattr(problem.layout, field) is not None:
            raise ProblemFileError(f"layout.{field}", f"{why} leaves no choice of this; remove one of them")


def check_element(tile: Tile) -> None:
    """Check that a tile's element is one that there is.

    Raises:
        ProblemFileError: it is not, or its alignment does not divide its size.
    """
    named = {*ELEMENT_BYTES, *PACKED_BITS}
    if isinstance(tile.element, str) and tile.element not in named:
        known = ", ".join((*ELEMENT_BYTES, *PACKED_BITS))
        raise ProblemFileError(
            "tile.element", f'unknown type {tile.element!r}; known: {known}, or {{"bytes": n}}'
        )
    size, alignment = tile.storage.element_bytes, tile.element_alignment
    if size % alignment:
        raise ProblemFileError(
            "tile.element.align", f"expected a divisor of the {size} bytes of an element, got {alignment}"
        )
