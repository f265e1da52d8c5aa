"""JSON to `Problem`, with errors that name the field."""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from layoutopt import json_data
from layoutopt.errors import ProblemFileError
from layoutopt.model import ELEMENT_BYTES, PACKED_BITS, NamedTile, Problem, TileSet

MAX_FILE_BYTES = 8 << 20
MAX_ELEMENTS = 1 << 21
_RESERVED = frozenset(("tid", "lane", "warp", "min", "max"))


def load(path: str | Path) -> Problem:
    """Read a problem file.

    Raises:
        ProblemFileError: the file cannot be read or does not hold a problem; `field` says where.
    """
    return decode(json_data.read(path, MAX_FILE_BYTES))


def load_any(path: str | Path) -> Problem | TileSet:
    """Read a problem file of one tile (`tile`) or of several (`tiles`).

    Raises:
        ProblemFileError: the file cannot be read or does not hold a problem; `field` says where.
    """
    raw = _parse(json_data.read(path, MAX_FILE_BYTES))
    return tiles_from_data(raw) if isinstance(raw, dict) and "tiles" in raw else from_data(raw)


def decode(data: bytes) -> Problem:
    """Read a problem from JSON text (UTF-8).

    Raises:
        ProblemFileError: the text does not hold a problem.
    """
    return from_data(_parse(data))


def _parse(data: bytes) -> Any:
    if len(data) > MAX_FILE_BYTES:
        raise ProblemFileError("", f"a problem file has at most {MAX_FILE_BYTES} bytes")
    return json_data.parse(data)


def from_data(raw: Any) -> Problem:
    """A problem of one tile from decoded JSON data.

    Raises:
        ProblemFileError: the data is not a problem; `field` says where.
    """
    if isinstance(raw, dict) and "tiles" in raw and "tile" not in raw:
        raise ProblemFileError("tiles", "one `tile` is expected here; `layoutopt solve` takes several")
    problem = json_data.convert(raw, Problem)
    check(problem)
    return problem


def tiles_from_data(raw: Any) -> TileSet:
    """A problem of several tiles from decoded JSON data.

    Raises:
        ProblemFileError: the data is not such a problem; `field` says where.
    """
    tile_set = json_data.convert(raw, TileSet)
    check_tiles(tile_set)
    return tile_set


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a problem file, generated from the types."""
    kinds, components = msgspec.json.schema_components([Problem, TileSet], ref_template="#/$defs/{name}")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "layoutopt problem",
        "anyOf": kinds,
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


def check_tiles(tile_set: TileSet) -> None:
    """Check what types cannot say of several tiles.

    Raises:
        ProblemFileError: a field contradicts another, or names what there is not.
    """
    names = [tile.name for tile in tile_set.tiles]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ProblemFileError(
                f"tiles[{i}].name", f"{name!r} is already the name of tiles[{names.index(name)}]"
            )
    named = [access.name for access in tile_set.accesses]
    for i, access in enumerate(tile_set.accesses):
        if access.tile not in names:
            raise ProblemFileError(
                f"accesses[{i}].tile", f"no tile is called {access.tile!r}; there are {', '.join(names)}"
            )
        if access.name in named[:i]:
            raise ProblemFileError(
                f"accesses[{i}].name",
                f"{access.name!r} is already the name of accesses[{named.index(access.name)}]",
            )
        if isinstance(access.bytes, tuple):
            raise ProblemFileError(
                f"accesses[{i}].bytes", f"one width is expected with several tiles, not {list(access.bytes)}"
            )
    for place, layout in (
        ("layout", tile_set.layout),
        *((f"tiles[{i}].layout", tile.layout) for i, tile in enumerate(tile_set.tiles)),
    ):
        if layout.minimise != "excess":
            raise ProblemFileError(
                f"{place}.minimise", f"several tiles are solved for excess first, not {layout.minimise}"
            )
    for field in ("order", "offset"):
        if getattr(tile_set.layout, field) is not None:
            raise ProblemFileError(
                f"layout.{field}", f"belongs to one tile; expected as tiles[i].layout.{field}"
            )
    for i, tile in enumerate(tile_set.tiles):
        if all(access.tile != tile.name for access in tile_set.accesses):
            raise ProblemFileError(f"tiles[{i}]", f"no access names the tile {tile.name!r}")
        with fields_of(tile_set, tile):
            problem = tile_set.problem(tile)
            if problem.layout.families == ():
                raise ProblemFileError(
                    "layout.families",
                    f"{', '.join(tile.layout.families or ())} are allowed here, of all tiles "
                    f"{', '.join(tile_set.layout.families or ())}: none remains",
                )
            check(problem)
    _check_overlay(tile_set)


def _check_overlay(tile_set: TileSet) -> None:
    tiles = {tile.name: tile for tile in tile_set.tiles}
    seen: dict[str, str] = {}
    for t, time in enumerate(tile_set.overlay):
        for k, name in enumerate(time):
            place = f"overlay[{t}][{k}]"
            if name not in tiles:
                raise ProblemFileError(place, f"no tile is called {name!r}; there are {', '.join(tiles)}")
            if name in seen:
                raise ProblemFileError(place, f"{name!r} already stands in {seen[name]}")
            seen[name] = place
    if not tile_set.same_layout:
        return
    if len(tile_set.overlay) < 2 or any(len(time) > 1 for time in tile_set.overlay):
        raise ProblemFileError("same_layout", "needs an overlay of two or more times, one tile at each")
    first, *others = (tiles[time[0]] for time in tile_set.overlay)
    for tile in others:
        for field in ("element", "elements", "stages", "layout"):
            mine, expected = getattr(tile, field), getattr(first, field)
            if mine != expected:
                what = "the same layout constraints" if field == "layout" else f"{expected} {field}"
                what = f"element {expected}" if field == "element" else what
                raise ProblemFileError(
                    f"tiles[{tile_set.tiles.index(tile)}]",
                    f"same_layout asks for {what}, as {first.name!r} has"
                    + (f", not {mine}" if field != "layout" else ""),
                )


@contextlib.contextmanager
def fields_of(tile_set: TileSet, tile: NamedTile, *others: NamedTile) -> Iterator[None]:
    """Errors about a problem made of `tile` name the fields of the file that holds all tiles.

    Args:
        tile_set: the file.
        tile: whose tile and constraints the problem has.
        others: whose accesses follow those of `tile`.
    """
    try:
        yield
    except ProblemFileError as error:
        i = tile_set.tiles.index(tile)
        mine = [
            k
            for member in (tile, *others)
            for k, access in enumerate(tile_set.accesses)
            if access.tile == member.name
        ]
        place = error.field
        if place.startswith("accesses["):
            place = re.sub(r"\d+", lambda match: str(mine[int(match[0])]), place, count=1)
        elif place.startswith("tile"):
            place = f"tiles[{i}]{place.removeprefix('tile')}"
        elif place.startswith("layout."):
            own = getattr(tile.layout, place.removeprefix("layout."), None)
            place = f"tiles[{i}].{place}" if own is not None else place
        elif place in ("", "accesses"):
            place = f"tiles[{i}]"
        error.field = place
        error.args = (f"{place}: {error.reason}",)
        raise
