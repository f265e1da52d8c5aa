"""Random members of the families, as the documentation describes them: byte offsets of every element.

Held against what is claimed of a family. That they keep accesses whole and aligned is for the caller to see.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from oracle.problem_file import Tile


@dataclass(frozen=True)
class Member:
    """A layout: the families it needs, what it is, its byte offsets, and what it is made of.

    `steps`: bytes of the stride of each dimension; `extra`: of a turn or of a pad after every so many.
    """

    families: frozenset[str]
    what: str
    flat: list[int]
    steps: dict[int, int]
    extra: int = 0


# What it is, the place of every element, the stride of each dimension, and the turn or further pad.
Made = tuple[str, list[int], dict[int, int], int]


def family_members(
    tile: Tile, rng: random.Random, families: set[str], banks: tuple[int, int], many: int
) -> Iterator[Member]:
    """Random members of what `families` allow; `banks`: bytes of a word and of a row of all banks."""
    for _ in range(many):
        used: set[str] = set()
        dims = list(range(len(tile.shape)))
        if "order" in families and rng.random() < 0.5 and tile.packed == 1:
            rng.shuffle(dims)
        if dims != sorted(dims):
            used.add("order")
        makers = [f for f in (_pad, _interval, _rotate) if f.__name__[1:] in families]
        maker = rng.choice([_dense, *makers, *makers])
        what, places, steps, extra = maker(tile, rng, dims, banks[1] // tile.size or 1)
        if maker is not _dense:
            used.add(maker.__name__[1:])
        swizzled = maker in (_dense, _pad, _rotate)
        if "xor" in families and swizzled and tile.size & (tile.size - 1) == 0 and rng.random() < 0.5:
            mask, places = _xor(tile, rng, places, banks)
            used.add("xor")
            what += f", xor {mask}"
        flat = [v * tile.size for v in places]
        sizes = {d: step * tile.size for d, step in steps.items()}
        what = f"order {dims}, {what}"
        yield Member(frozenset(used or {"none"}), what, flat, sizes, extra * tile.size)


def _sizes(tile: Tile) -> list[int]:
    """Extents in units that move together: elements, or the bytes that packed ones share."""
    return [*tile.shape[:-1], tile.shape[-1] // tile.packed]


def _places(tile: Tile, steps: dict[int, int]) -> list[int]:
    """The sum of x_d * steps[d], at every element."""
    places = [0]
    for d, extent in enumerate(tile.shape):
        packed = tile.packed if d == len(tile.shape) - 1 else 1
        places = [p + x // packed * steps[d] for p in places for x in range(extent)]
    return places


def _steps(tile: Tile, dims: list[int], pads: dict[int, int]) -> dict[int, int]:
    stride, steps = 1, {}
    for d in reversed(dims):
        steps[d] = stride
        stride = stride * _sizes(tile)[d] + pads.get(d, 0)
    return steps


def _dense(tile: Tile, rng: random.Random, dims: list[int], row: int) -> Made:
    steps = _steps(tile, dims, {})
    return "dense", _places(tile, steps), steps, 0


def _pad(tile: Tile, rng: random.Random, dims: list[int], row: int) -> Made:
    pads = {d: rng.randint(1, row) for d in rng.sample(dims[1:], min(1, len(dims) - 1))}
    steps = _steps(tile, dims, pads)
    return f"pads {pads}", _places(tile, steps), steps, 0


def _interval(tile: Tile, rng: random.Random, dims: list[int], row: int) -> Made:
    every, extra = rng.choice([8, 16, 32, 64]), rng.randint(1, row)
    steps = _steps(tile, dims, {})
    places = [v + v // every * extra for v in _places(tile, steps)]
    return f"{extra} after every {every}", places, steps, extra


def _rotate(tile: Tile, rng: random.Random, dims: list[int], row: int) -> Made:
    line = _sizes(tile)[dims[-1]]
    turn = rng.randrange(line)
    steps = _steps(tile, dims, {})
    places = [v // line * line + (v % line + turn * (v // line)) % line for v in _places(tile, steps)]
    return f"lines turned by {turn}", places, steps, turn


def _xor(tile: Tile, rng: random.Random, places: list[int], banks: tuple[int, int]) -> tuple[dict, list[int]]:
    """Bits of the bank field flipped by parities of bits above it."""
    first, low = ((b // tile.size or 1).bit_length() - 1 for b in banks)
    sources = range(low, max(places).bit_length())
    masks = {
        bit: sum(1 << s for s in sources if rng.random() < 0.4)
        for bit in range(first, low)
        if rng.random() < 0.6
    }
    flips = [sum((v & mask).bit_count() % 2 << bit for bit, mask in masks.items()) for v in places]
    return masks, [v ^ flip for v, flip in zip(places, flips, strict=True)]
