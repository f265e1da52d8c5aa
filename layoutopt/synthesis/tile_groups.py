"""The tiles of a set that get one layout, and their accesses as one problem."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from layoutopt.errors import ProblemFileError
from layoutopt.problems.types import Access, NamedTile, Problem, TileSet


def groups(tile_set: TileSet) -> tuple[tuple[tuple[NamedTile, ...], Problem], ...]:
    """The tiles that get one layout, and their accesses as one problem, in the order of the file.

    The problem is in the coordinates of the group's first tile.
    """
    tiles = {tile.name: tile for tile in tile_set.tiles}
    times = tile_set.overlay if tile_set.same_layout else ()
    shared = tuple(tiles[name] for time in times for name in time)
    members: list[tuple[NamedTile, ...]] = [(tile,) for tile in tile_set.tiles if tile not in shared]
    members += [shared] if shared else []
    members.sort(key=lambda group: min(map(tile_set.tiles.index, group)))
    found = []
    for group in members:
        accesses = tuple(
            _viewed(access, tile.shape, group[0].shape)
            for tile in group
            for access in tile_set.problem(tile).accesses
        )
        found.append((group, msgspec.structs.replace(tile_set.problem(group[0]), accesses=accesses)))
    return tuple(found)


def _viewed(access: Access, shape: tuple[int, ...], onto: tuple[int, ...]) -> Access:
    """The access in the coordinates of a tile of shape `onto` that holds the same elements, row-major."""
    if shape == onto:
        return access
    if access.hardware is not None:
        raise ProblemFileError(
            "same_layout", f"{access.name!r} is done by the hardware, which knows tiles of one shape only"
        )
    return msgspec.structs.replace(access, index=viewed_index(access.index, shape, onto))


def viewed_index(
    index: Sequence[str | int], shape: tuple[int, ...], onto: tuple[int, ...]
) -> tuple[str, ...]:
    """Coordinates in a tile of shape `onto` of what `index` says in one of shape `shape`, both row-major."""
    flat = "0"
    for extent, text in zip(shape, index, strict=True):
        flat = f"({flat})*{extent} + ({text})"
    found, inner = [], 1
    for d in reversed(range(len(onto))):
        found.append(f"({flat}) // {inner}" + (f" % {onto[d]}" if d else ""))
        inner *= onto[d]
    return tuple(reversed(found))
