"""The tiles of a set that get one layout, and their accesses as one problem.

What tiles of a list share is one function of the byte that an element has in row-major order. The layout is
that of the largest tile, in the smallest elements, and a smaller tile is its beginning:

    C 32x16 f16, D 32x8 f32: D's element (i, j) is where C's (i, 2*j) and (i, 2*j + 1) are
    A 128x64 f16, B 256x64 f16: A's element (i, j) is where B's (i, j) is: one formula of the coordinates
    E 64x64 f16, F 64x64 f32: the layout is that of 64x128 f16
"""

import itertools
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device
from layoutopt.layout.layout import Layout, Target, row_major
from layoutopt.problems.types import FAMILIES, Block, NamedTile, Problem, Tile, constrained

# Families of what a tile's own order of dimensions leaves no choice of.
_OTHER_ORDERS: Final = ("order", "split", "matrix")


def side_by_side(block: Block) -> bool:
    """Whether tiles that share a layout lie one behind the other, and not in the same bytes."""
    return isinstance(block.same_layout, tuple)


Groups = tuple[tuple[tuple[NamedTile, ...], Problem], ...]
"""The tiles that get one layout, and their accesses as one problem."""


def groups(block: Problem | Block) -> Groups:
    """The tiles that get one layout, and their accesses as one problem, in the order of the file.

    One tile by itself is a problem of no named tile.

    The problem's tile has the bytes of the largest of them in the smallest elements; where one of them is so,
    it is the first. Tiles of several sizes side by side keep the order of their dimensions, where the file
    gives none: each is then the beginning of the layout, without holes.
    """
    if isinstance(block, Problem):
        return (((), block),)
    tiles = {tile.name: tile for tile in block.tiles}
    lists = block.same_layout  # of tiles that share a layout
    if not isinstance(lists, tuple):
        lists = (tuple(itertools.chain.from_iterable(block.overlay)),) if lists else ()
    shared = [[tiles[name] for name in names] for names in lists]
    shared += [[tile] for tile in block.tiles if not any(tile in group for group in shared)]
    shared.sort(key=lambda group: min(map(block.tiles.index, group)))
    problems = []
    for group in (tuple(sorted(group, key=lambda t: (t.element_bits, -t.bytes))) for group in shared):
        problem, whole = block.problem(group[0]), _whole(group)
        accesses = tuple(
            access if alike(tile, whole) else replace(access, index=viewed_index(access.index, tile, whole))
            for tile in group
            for access in block.problem(tile).accesses
        )
        layout, published = problem.layout, problem.published
        if not alike(group[0], whole):  # what is in use is in other coordinates
            layout, published = replace(layout, offset=None), None
        several_sizes = len({tile.bytes for tile in group}) > 1
        order_open = layout.order is None and not problem.is_dictated
        if several_sizes and side_by_side(block) and order_open:
            families = tuple(f for f in layout.families or FAMILIES if f not in _OTHER_ORDERS) or ("none",)
            order = tuple(range(len(whole.shape)))
            layout = replace(layout, families=families, order=order)
        problem = replace(problem, tile=whole, accesses=accesses, layout=layout, published=published)
        problems.append((group, problem))
    return tuple(problems)


def _whole(group: Sequence[Tile]) -> Tile:
    """The largest tile in the smallest elements, as aligned as any of that size are."""
    largest = max(group, key=lambda tile: tile.bytes)
    bits = min(tile.element_bits for tile in group)
    smallest = max((t for t in group if t.element_bits == bits), key=lambda tile: tile.element_alignment)
    if group[0].bytes == largest.bytes:
        return Tile(group[0].shape, smallest.element)
    return Tile((*largest.shape[:-1], largest.shape[-1] * (largest.element_bits // bits)), smallest.element)


def beginning(layout: Layout, tile: Tile) -> Layout | None:
    """The layout of a smaller tile that shares `layout`, in its coordinates; None where no digits say it."""
    element_bytes = tile.storage.element_bytes
    ratio = element_bytes // layout.element_bytes
    if layout.lookup:
        offsets = layout.table().ravel()[:: layout.packed] // layout.element_bytes
        lookup = tuple((offsets[::ratio][: tile.storage.elements] // ratio).tolist())
        return Layout(tile.shape, element_bytes, (), packed=layout.packed, lookup=lookup)
    if ratio == 1 and len(tile.shape) == len(layout.shape) and tile.shape[1:] == layout.shape[1:]:
        return _fewer_rows(layout, tile.shape)
    plain = layout.digits == row_major((*layout.shape[:-1], layout.shape[-1] // layout.packed), 1).digits
    low = ratio.bit_length() - 1
    bits = [target.bit for target in layout.swizzle] + [low]
    if not plain or layout.turn or min(bits) < low or any(n % ratio for n in layout.interval):
        return None
    # A function of the row-major index, which larger elements have in larger steps.
    swizzle = tuple(Target(target.bit - low, target.mask >> low) for target in layout.swizzle)
    return Layout(
        tile.shape,
        element_bytes,
        row_major(tile.storage.shape, element_bytes).digits,
        swizzle,
        packed=layout.packed,
        interval=(layout.interval[0] // ratio, layout.interval[1] // ratio),
    )


def beginning_bytes(offsets: IntArray, tile: Tile, whole: Tile) -> int:
    """Bytes to the end of a tile that shares the layout of `whole`, whose byte offsets are `offsets`.

    `offsets`: of the elements of `whole` by row-major index. The tile is their beginning; its own elements
    may be larger.
    """
    count = tile.elements * tile.element_bits // whole.element_bits
    return int(offsets[:count].max()) + whole.storage.element_bytes


def _fewer_rows(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """The layout of a tile with fewer rows: the slowest digit of dimension 0 is as long as they need."""
    slowest = max(digit.divide for digit in layout.digits if digit.dim == 0)
    digits = list(layout.digits)
    for k, digit in enumerate(digits[:-1]):
        if digit.dim == 0 and digit.divide == slowest:
            digits[k] = replace(digit, size=min(digit.size, -(-shape[0] // slowest)))
    return replace(layout, shape=shape, digits=tuple(digits))


def alike(tile: Tile, onto: Tile) -> bool:
    """Whether the coordinates of `tile` are those of `onto`, which is as large or larger."""
    return (
        len(tile.shape) == len(onto.shape)
        and tile.shape[1:] == onto.shape[1:]
        and tile.element_bits == onto.element_bits
    )


def viewed_index(index: Sequence[str | int], tile: Tile, onto: Tile) -> tuple[str, ...]:
    """Coordinates in `onto` of what `index` says in `tile`, whose elements are as large or larger."""
    row_major_index = "0"
    for extent, text in zip(tile.shape, index, strict=True):
        row_major_index = f"({row_major_index})*{extent} + ({text})"
    ratio = tile.element_bits // onto.element_bits
    row_major_index = row_major_index if ratio == 1 else f"({row_major_index})*{ratio}"
    coordinates, inner = [], 1
    for d in reversed(range(len(onto.shape))):
        coordinates.append(f"({row_major_index}) // {inner}" + (f" % {onto.shape[d]}" if d else ""))
        inner *= onto.shape[d]
    return tuple(reversed(coordinates))


def room_bytes(problem: Problem | Block, gpu: Device) -> int | None:
    """Bytes that a block of the GPU has beside other shared memory; None where its limits are not known."""
    limits = gpu.limits_of(problem.target)
    return (
        None if limits is None else max(0, limits.shared_bytes_per_block - problem.block.other_shared_bytes)
    )


def within_room(block: Block, gpu: Device) -> Block:
    """The tiles under a budget: the file's, else what a block of the GPU has beside other shared memory."""
    room = room_bytes(block, gpu)
    return (
        block
        if block.layout.max_bytes is not None or room is None
        else constrained(block, max_bytes=max(1, room))
    )
