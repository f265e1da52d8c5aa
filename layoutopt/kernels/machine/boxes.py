"""Boxes of a grid: blocks whose indices agree in all but their lowest bits.

One block of which those bits are unknown stands for all of them, where its evaluation does not need the bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Box(NamedTuple):
    """Blocks.

    Attributes:
        origin: of the first one; multiples of the sizes.
        bits: along each axis, 2**bits blocks.
    """

    origin: tuple[int, int, int]
    bits: tuple[int, int, int]

    @property
    def blocks(self) -> int:
        """How many."""
        return 1 << sum(self.bits)

    def indices(self) -> Iterator[tuple[int, int, int]]:
        """Of every block, along x first."""
        x, y, z = (range(o, o + (1 << b)) for o, b in zip(self.origin, self.bits, strict=True))
        return ((i, j, k) for k, j, i in itertools.product(z, y, x))

    def halves(self, axis: int) -> tuple[Box, Box]:
        """Both halves along an axis, the lower first."""
        bits = tuple(b - (k == axis) for k, b in enumerate(self.bits))
        upper = tuple(o + ((1 << bits[k]) if k == axis else 0) for k, o in enumerate(self.origin))
        return self._replace(bits=bits), Box(upper, bits)  # type: ignore[arg-type]


def boxes(grid: tuple[int, int, int]) -> list[Box]:
    """Boxes that together are a grid, the largest first."""
    parts = [
        [(size & ~((2 << bit) - 1), bit) for bit in range(size.bit_length() - 1, -1, -1) if size >> bit & 1]
        for size in grid
    ]
    found = [Box((x[0], y[0], z[0]), (x[1], y[1], z[1])) for z, y, x in itertools.product(*reversed(parts))]
    return sorted(found, key=lambda box: -box.blocks)


def batches(left: Sequence[Box], size: int) -> Iterator[npt.NDArray[np.int64]]:
    """The indices of all blocks of some boxes, so many at a time; int64, shape (blocks, 3)."""
    every = (index for box in left for index in box.indices())
    while batch := list(itertools.islice(every, size)):
        yield np.array(batch, np.int64)
