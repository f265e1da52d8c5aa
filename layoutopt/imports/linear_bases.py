"""Layouts that are linear over F2: a basis vector for each bit of a register, lane, warp or offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from layoutopt.ground.arrays import IntArray

Vector = tuple[int, ...]

PARTS: Final = ("register", "lane", "warp")


@dataclass
class Bases:
    """A linear layout under construction.

    Attributes:
        dims: dimensions in the order in which registers are added to cover the tile.
        size: how far the layout reaches along each dimension.
        bases: vectors of each part.
    """

    dims: list[int]
    size: dict[int, int] = field(default_factory=dict)
    bases: dict[str, list[Vector]] = field(default_factory=lambda: {part: [] for part in PARTS})

    def grow(self, part: str, dim: int, count: int) -> None:
        """`count` consecutive values of `part` step along `dim` in units of what is there."""
        for _ in range(count.bit_length() - 1):
            self.bases[part].append(self._unit(dim, self.size.get(dim, 1)))
            self.size[dim] = self.size.get(dim, 1) * 2

    def repeat(self, part: str, count: int) -> None:
        """`count` consecutive values of `part` hold the same."""
        self.bases[part] += [self._unit(0, 0)] * (count.bit_length() - 1)

    def _unit(self, dim: int, step: int) -> Vector:
        return tuple(step if d == dim else 0 for d in sorted(self.dims))


def fitted(bases: dict[str, list[Vector]], tile: Vector, dims: list[int]) -> dict[str, list[Vector]]:
    """Bases within the tile: those beyond it zero, and registers for what they do not reach."""
    cut = {
        part: [v if all(x < e for x, e in zip(v, tile, strict=True)) else (0,) * len(tile) for v in vectors]
        for part, vectors in bases.items()
    }
    registers = list(cut["register"])
    every = [v for vectors in bases.values() for v in vectors]
    for dim in dims:
        reach = 1 << max((v[dim].bit_length() for v in every), default=0)
        while reach < tile[dim]:
            registers.append(tuple(reach if d == dim else 0 for d in range(len(tile))))
            reach *= 2
    return {**cut, "register": registers}


def combinations(vectors: list[Vector], rank: int) -> IntArray:
    """The XOR of the vectors of each number's bits: int64, shape (2**len(vectors), rank)."""
    total = np.zeros((1, rank), np.int64)
    for vector in vectors:
        total = np.concatenate([total, total ^ np.array(vector, np.int64)])
    return total
