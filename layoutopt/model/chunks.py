"""Chunks: what every layout keeps whole and aligned, and the phases over them.

Free assignments (`layoutopt.model.placement`) put chunks in banks; what they are is the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layoutopt.accesses.alignment import blocks
from layoutopt.accesses.trace import Trace
from layoutopt.ground.arrays import IntArray
from layoutopt.model.phases import PhaseSet
from layoutopt.problems.types import Tile


@dataclass(frozen=True, slots=True)
class Chunks:
    """What every layout keeps whole.

    Attributes:
        of: int64, shape (elements,): chunk of each element.
        place: int64, shape (elements,): byte of the chunk at which the element starts.
        size: int64, shape (chunks,): bytes that matter, a power of two, also the chunk's alignment.
        loose: bool, shape (chunks,): a word packed with narrower elements; others may pack otherwise.
    """

    of: IntArray
    place: IntArray
    size: IntArray
    loose: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FreePhase:
    """A phase as units: what the access's width covers at one place of a chunk.

    Attributes:
        units: (chunk, byte in the chunk, how often), sorted.
        unit_bytes: bytes of a unit.
        banks: banks of such units.
        weight: weighted number of times that it is served.
        floor: wavefronts that no layout undercuts.
        ideal: wavefronts if spread evenly.
    """

    units: tuple[tuple[int, int, int], ...]
    unit_bytes: int
    banks: int
    weight: int
    floor: int
    ideal: int

    @property
    def least(self) -> int:
        """Wavefronts that no positions undercut."""
        return max(self.floor, -(-sum(n for _, _, n in self.units) // self.banks))

    @property
    def alone(self) -> int:
        """Wavefronts of a phase of one unit, or of none that the model sees."""
        return max(self.least, *(n for _, _, n in self.units)) if self.units else self.floor

    def bank(self, address: int) -> int:
        """The bank of a unit at this byte."""
        return address // self.unit_bytes % self.banks

    def cost(self, position: dict[int, int], chunks: Chunks) -> int:
        """Wavefronts under given positions."""
        load: dict[int, int] = {}
        for c, place, n in self.units:
            bank = self.bank(position[c] * int(chunks.size[c]) + place)
            load[bank] = load.get(bank, 0) + n
        return max(self.floor, *load.values())

    def loads(self, at: dict[int, list[int]], chunks: Chunks) -> list[list[tuple[int, int]]]:
        """For each bank that could be overloaded, the literals that put something there."""
        loads: dict[int, list[tuple[int, int]]] = {}
        for c, place, n in self.units:
            for position, literal in enumerate(at[c]):
                bank = self.bank(position * int(chunks.size[c]) + place)
                loads.setdefault(bank, []).append((literal, n))
        return [load for _, load in sorted(loads.items()) if len(load) > 1]


def bound_chunks(trace: Trace, tile: Tile, word_bytes: int, element_alignment: int | None = None) -> Chunks:
    """Cut the tile into what every layout keeps whole (`layoutopt.accesses.alignment.blocks`).

    With an element alignment: what layouts keep that start every element at multiples of it.
    """
    size = tile.element_bytes
    held_by = blocks(trace, tile, element_alignment)
    widest, head, place = held_by.width, held_by.head, held_by.place
    loose = widest < word_bytes
    # Loose elements fill words, the widest vectors first, so that each is aligned.
    order = np.flatnonzero(loose)
    order = order[np.argsort(-widest[order], kind="stable")]
    start = np.arange(len(order)) * size
    head[order] = order[start // word_bytes * word_bytes // size] if len(order) else 0
    place[order] = start % word_bytes
    heads, of = np.unique(head, return_inverse=True)
    return Chunks(of.reshape(-1), place, np.maximum(widest[heads], word_bytes), loose[heads])


def free_phases(sets: Sequence[PhaseSet], chunks: Chunks, *, drop_loose: bool) -> list[FreePhase]:
    """The phases over chunks, equal ones merged; with `drop_loose`, without the loose elements.

    A phase that drops some keeps the largest ideal that any packing of them gives, so that its
    excess is a lower bound.
    """
    merged: dict[tuple[object, ...], int] = {}
    for s in sets:
        unit_bytes = max(s.width_bytes, s.rule.bank_bytes)
        chunk_words = unit_bytes // s.rule.bank_bytes
        banks = s.rule.banks // chunk_words
        requests = chunk_words if s.rule.split_words else 1
        for row, weight, floor in zip(s.elements.tolist(), s.weight.tolist(), s.floor.tolist(), strict=True):
            seen: dict[tuple[int, int], int] = {}
            dropped = 0
            for e in row:
                if e < 0:
                    continue
                chunk = int(chunks.of[e])
                if drop_loose and chunks.loose[chunk]:
                    dropped += 1
                    continue
                unit = chunk, int(chunks.place[e]) // unit_bytes * unit_bytes
                seen[unit] = seen.get(unit, 0) + 1
            distinct = len(seen) + dropped
            ideal = max(1, -(-distinct * chunk_words // (s.rule.banks * requests)))
            units = tuple((*u, n if s.rule.serialises_equal else 1) for u, n in sorted(seen.items()))
            key = units, unit_bytes, banks, max(1, floor), ideal
            merged[key] = merged.get(key, 0) + weight * requests
    return [
        FreePhase(units, unit_bytes, banks, weight, floor, ideal)  # type: ignore[arg-type]
        for (units, unit_bytes, banks, floor, ideal), weight in merged.items()
    ]
