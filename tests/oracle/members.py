"""Random members of the families, as the documentation describes them: byte offsets of every element.

Held against what is claimed of a family. That they keep accesses whole and aligned is for the caller to see.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from oracle.problem_file import Tile


@dataclass(frozen=True)
class Member:
    """A layout: the families it needs, what it is, and its byte offsets."""

    families: frozenset[str]
    what: str
    flat: list[int]


def family_members(
    tile: Tile, rng: random.Random, families: set[str], banks: tuple[int, int], many: int
) -> Iterator[Member]:
    """Random members of what `families` allow; `banks`: bytes of a word and of a row of all banks."""
    row = banks[1] // tile.size or 1
    # In units that move together: elements, or the bytes that packed ones share.
    extents = [*tile.shape[:-1], tile.shape[-1] // tile.packed]
    for _ in range(many):
        dims = list(range(len(tile.shape)))
        if "order" in families and rng.random() < 0.5 and tile.packed == 1:
            rng.shuffle(dims)
        used = {"order"} if dims != sorted(dims) else set()
        makers = [family for family in ("pad", "interval", "rotate") if family in families]
        maker = rng.choice(["dense", *makers, *makers])
        used |= {maker} - {"dense"}
        pads = {rng.choice(dims[1:]): rng.randint(1, row)} if maker == "pad" and dims[1:] else {}
        what, places = f"order {dims}, {maker} {pads or ''}", _places(tile, extents, dims, pads)
        if maker == "interval":
            every, extra = rng.choice([8, 16, 32, 64]), rng.randint(1, row)
            places, what = [v + v // every * extra for v in places], f"{what}{extra} after every {every}"
        if maker == "rotate":
            line = extents[dims[-1]]
            turn = rng.randrange(line)
            places = [v // line * line + (v % line + turn * (v // line)) % line for v in places]
            what += f"by {turn}"
        swizzled = maker != "interval" and tile.size & (tile.size - 1) == 0
        if "xor" in families and swizzled and rng.random() < 0.5:
            mask, places = _xor(tile, rng, places, banks)
            used.add("xor")
            what += f", xor {mask}"
        yield Member(frozenset(used or {"none"}), what, [v * tile.size for v in places])


def _places(tile: Tile, extents: list[int], dims: list[int], pads: dict[int, int]) -> list[int]:
    """The sum of every coordinate times its stride, at every element; `dims` are the slowest first."""
    stride, steps = 1, {}
    for d in reversed(dims):
        steps[d] = stride
        stride = stride * extents[d] + pads.get(d, 0)
    places = [0]
    for d, extent in enumerate(tile.shape):
        packed = tile.packed if d == len(tile.shape) - 1 else 1
        places = [p + x // packed * steps[d] for p in places for x in range(extent)]
    return places


def _xor(tile: Tile, rng: random.Random, places: list[int], banks: tuple[int, int]) -> tuple[dict, list[int]]:
    """Bits of the bank field flipped by parities of bits above it."""
    first, low = ((b // tile.size or 1).bit_length() - 1 for b in banks)
    sources = range(low, max(places).bit_length())
    bits = (bit for bit in range(first, low) if rng.random() < 0.6)
    masks = {bit: sum(1 << s for s in sources if rng.random() < 0.4) for bit in bits}
    flips = [sum((v & mask).bit_count() % 2 << bit for bit, mask in masks.items()) for v in places]
    return masks, [v ^ flip for v, flip in zip(places, flips, strict=True)]
