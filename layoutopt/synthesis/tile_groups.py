"""The tiles of a set that get one layout, and their accesses as one problem.

Tiles of several shapes share the bytes that they have in row-major order. Where their elements are of several
sizes, the layout is in the coordinates of a tile of the smallest:

    C 32x16 f16, D 32x8 f32: D's element (i, j) is where C's (i, 2*j) and (i, 2*j + 1) are
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from layoutopt.hardware.devices import Device
from layoutopt.problems.types import Access, NamedTile, Problem, Tile, TileSet


def shared_tiles(tile_set: TileSet) -> tuple[tuple[str, ...], ...]:
    """Names of the tiles that share a layout, list by list."""
    if isinstance(tile_set.same_layout, tuple):
        return tile_set.same_layout
    return (tuple(name for time in tile_set.overlay for name in time),) if tile_set.same_layout else ()


def side_by_side(tile_set: TileSet) -> bool:
    """Whether tiles that share a layout lie one behind the other, and not in the same bytes."""
    return isinstance(tile_set.same_layout, tuple)


def groups(tile_set: TileSet) -> tuple[tuple[tuple[NamedTile, ...], Problem], ...]:
    """The tiles that get one layout, and their accesses as one problem, in the order of the file.

    The problem is in the coordinates of the group's first tile, whose elements are the smallest.
    """
    tiles = {tile.name: tile for tile in tile_set.tiles}
    lists = shared_tiles(tile_set)
    shared = [tuple(tiles[name] for name in names) for names in lists]
    members: list[tuple[NamedTile, ...]] = [
        (tile,) for tile in tile_set.tiles if not any(tile in group for group in shared)
    ]
    members += [tuple(sorted(group, key=lambda tile: tile.element_bits)) for group in shared]
    members.sort(key=lambda group: min(map(tile_set.tiles.index, group)))
    found = []
    for group in members:
        accesses = tuple(
            _viewed(access, tile, group[0]) for tile in group for access in tile_set.problem(tile).accesses
        )
        found.append((group, msgspec.structs.replace(tile_set.problem(group[0]), accesses=accesses)))
    return tuple(found)


def _viewed(access: Access, tile: Tile, onto: Tile) -> Access:
    """The access in the coordinates of the tile `onto` that holds the same bytes, row-major."""
    if alike(tile, onto):
        return access
    return msgspec.structs.replace(access, index=viewed_index(access.index, tile, onto))


def alike(tile: Tile, other: Tile) -> bool:
    """Whether two tiles have the same coordinates."""
    return tile.shape == other.shape and tile.element_bits == other.element_bits


def viewed_index(index: Sequence[str | int], tile: Tile, onto: Tile) -> tuple[str, ...]:
    """Coordinates in `onto` of what `index` says in `tile`, whose elements are as large or larger."""
    flat = "0"
    for extent, text in zip(tile.shape, index, strict=True):
        flat = f"({flat})*{extent} + ({text})"
    ratio = tile.element_bits // onto.element_bits
    flat = flat if ratio == 1 else f"({flat})*{ratio}"
    found, inner = [], 1
    for d in reversed(range(len(onto.shape))):
        found.append(f"({flat}) // {inner}" + (f" % {onto.shape[d]}" if d else ""))
        inner *= onto.shape[d]
    return tuple(reversed(found))


def within_room(tile_set: TileSet, gpu: Device) -> TileSet:
    """The tiles under a budget: the file's, else what a block of the GPU has beside other shared memory."""
    limits = gpu.limits_of(tile_set.target)
    if tile_set.layout.max_bytes is not None or limits is None:
        return tile_set
    room = max(1, limits.shared_bytes_per_block - tile_set.block.other_shared_bytes)
    return msgspec.structs.replace(tile_set, layout=msgspec.structs.replace(tile_set.layout, max_bytes=room))
