"""JSON to `TileSet`, with errors that name the field of the file that holds all tiles."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from layoutopt.accesses import named_accesses
from layoutopt.errors import ProblemFileError
from layoutopt.files import templates
from layoutopt.files.file import check, check_element, from_data, parsed, read
from layoutopt.ground import json_data
from layoutopt.problems.types import Constraints, NamedTile, Problem, Tile, TileSet

# Constraints that hold for all tiles; the others are of one tile.
_OF_ALL: Final = frozenset(("families", "max_bytes", "alignment_bytes", "pitch_multiple_bytes", "minimise"))


def load_any(path: str | Path) -> Problem | TileSet:
    """Read a problem of one tile (`tile`) or of several (`tiles`): a file, or a name of the catalogue.

    Raises:
        ProblemFileError: the file cannot be read or does not hold a problem; `field` says where.
    """
    return any_from_data(parsed(read(path)))


def any_from_data(raw: Any) -> Problem | TileSet:
    """A problem of one tile or of several from decoded JSON data.

    Raises:
        ProblemFileError: the data is not a problem; `field` says where.
    """
    return tiles_from_data(raw) if isinstance(raw, dict) and "tiles" in raw else from_data(raw)


def tiles_from_data(raw: Any) -> TileSet:
    """A problem of several tiles from decoded JSON data.

    Raises:
        ProblemFileError: the data is not such a problem; `field` says where.
    """
    tile_set = json_data.convert(written_out(templates.single(raw)), TileSet)
    check_tiles(tile_set)
    return tile_set


def written_out(raw: Any) -> Any:
    """Data of several tiles in which named accesses are ordinary ones of their tile.

    Raises:
        ProblemFileError: a named access, or what it depends on, is wrong.
    """
    accesses = raw.get("accesses") if isinstance(raw, dict) else None
    if not isinstance(accesses, list) or not any(map(named_accesses.is_named, accesses)):
        return raw
    head = json_data.convert({**raw, "accesses": [_ANY_ACCESS]}, TileSet)
    tiles = {tile.name: tile for tile in head.tiles}
    written = []
    for i, access in enumerate(accesses):
        if not named_accesses.is_named(access):
            written.append(access)
            continue
        name = access.get("tile")
        if not isinstance(name, str) or name not in tiles:
            raise ProblemFileError(
                f"accesses[{i}].tile", f"expected the name of a tile, one of {', '.join(tiles)}"
            )
        own = {key: value for key, value in access.items() if key != "tile"}
        with fields_of(head, tiles[name]):
            check_element(tiles[name])
        problem = Problem(
            name=head.name,
            tile=Tile(tiles[name].shape, tiles[name].element),
            threads=head.threads,
            accesses=(),
            target=head.target,
        )
        written.append({**named_accesses.expanded(own, f"accesses[{i}]", problem), "tile": name})
    return {**raw, "accesses": written}


_ANY_ACCESS: Final = {"name": "any", "op": "load", "index": ["0"], "tile": "any"}


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
        if access.is_free:
            raise ProblemFileError(
                f"accesses[{i}].{'lanes' if access.lanes is not None else 'values'}",
                "cannot be free with several tiles; solve the tile by itself",
            )
        if isinstance(access.bytes, tuple):
            raise ProblemFileError(
                f"accesses[{i}].bytes", f"one width is expected with several tiles, not {list(access.bytes)}"
            )
    for place, layout in (
        ("layout", tile_set.layout),
        *((f"tiles[{i}].layout", tile.layout) for i, tile in enumerate(tile_set.tiles)),
    ):
        if not layout.objective.excess_first:
            raise ProblemFileError(
                f"{place}.minimise", f"several tiles are solved for excess first, not {layout.minimise}"
            )
    for field, value in msgspec.structs.asdict(tile_set.layout).items():
        if field not in _OF_ALL and value != getattr(Constraints(), field):
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
            _check_named_once(name, place, tiles, seen)
    _check_shared(tile_set, tiles)


def _check_named_once(name: str, place: str, tiles: Mapping[str, NamedTile], seen: dict[str, str]) -> None:
    """Check that a name is a tile's and stands nowhere else; `seen` says where each stands."""
    if name not in tiles:
        raise ProblemFileError(place, f"no tile is called {name!r}; there are {', '.join(tiles)}")
    if name in seen:
        raise ProblemFileError(place, f"{name!r} already stands in {seen[name]}")
    seen[name] = place


def _check_shared(tile_set: TileSet, tiles: Mapping[str, NamedTile]) -> None:
    """Check what tiles that share a layout have in common."""
    shared = tile_set.same_layout
    if not shared:
        return
    if not isinstance(shared, tuple):
        if len(tile_set.overlay) < 2 or any(len(time) > 1 for time in tile_set.overlay):
            raise ProblemFileError("same_layout", "needs an overlay of two or more times, one tile at each")
        _check_alike(tile_set, [tiles[time[0]] for time in tile_set.overlay], ("stages",))
        return
    seen: dict[str, str] = {}
    for g, names in enumerate(shared):
        for k, name in enumerate(names):
            place = f"same_layout[{g}][{k}]"
            _check_named_once(name, place, tiles, seen)
        times = {next((t for t, time in enumerate(tile_set.overlay) if name in time), None) for name in names}
        if len(times) > 1:
            raise ProblemFileError(
                f"same_layout[{g}]", "lists tiles side by side, and the overlay has them at several times"
            )
        _check_alike(tile_set, [tiles[name] for name in names], ())


def _check_alike(tile_set: TileSet, shared: Sequence[NamedTile], fields: tuple[str, ...]) -> None:
    first, *others = shared
    for tile in others:
        place = f"tiles[{tile_set.tiles.index(tile)}]"

        def asked(what: str, given: object = None, place: str = place) -> ProblemFileError:
            but = "" if given is None else f", not {given}"
            return ProblemFileError(place, f"same_layout asks for {what}, as {first.name!r} has{but}")

        for field in fields:
            if getattr(tile, field) != getattr(first, field):
                raise asked(f"{getattr(first, field)} {field}", getattr(tile, field))
        if tile.layout != first.layout:
            raise asked("the same layout constraints")
        mixed = tile.element_bits != first.element_bits
        for member in (tile, first) if mixed else ():
            bits = member.element_bits
            if bits & (bits - 1) or bits < 8 or member.element_alignment * 8 != bits:
                raise ProblemFileError(
                    f"tiles[{tile_set.tiles.index(member)}].element",
                    "elements of several sizes share a layout where each is a power of two of bytes",
                )
        if mixed or tile.shape != first.shape:
            for i, access in enumerate(tile_set.accesses):
                if access.hardware is not None and access.tile in (tile.name, first.name):
                    raise ProblemFileError(
                        f"accesses[{i}]",
                        f"{access.op} needs tiles of one shape and element for same_layout; "
                        "with several, give such accesses one mode",
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
        elif place.startswith("published"):
            place = f"tiles[{i}].{place}"
        elif place in ("", "accesses"):
            place = f"tiles[{i}]"
        error.field = place
        error.args = (f"{place}: {error.reason}",)
        raise
