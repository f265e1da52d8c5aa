"""Free assignments made as small as the tile: every position holds as many chunks as its column has rows.

A layout with pads has positions in which too many chunks lie and others with holes. Between two positions a
and b, chunks are in one **component** where a phase could cost more if only one of them changed places
(Kempe chains of a colouring). To swap a and b for a whole component changes the cost of no phase:

    phases {u v} {v w}    u in a, v in b, w in a    ->    u in b, v in a, w in b: one chunk less in a

So the loads of the positions are evened out while the wavefronts stay what they are. Positions may be
renamed freely, so that those with one chunk more become the columns with one row more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layoutopt.ground.budget import Budget

IntArray = npt.NDArray[np.int64]

_SEED = 20261122
# Pairs of positions tried, and those without any gain after which it ends; a pair takes half a millisecond.
_MOST_PAIRS, _PATIENCE = 1500, 120
_ANY_PAIR = 0.3  # of them not between one that is too full and one that is not


@dataclass(frozen=True, slots=True)
class Row:
    """Units of one phase at the same place of their chunks: in one bank exactly if in one position.

    Attributes:
        chunks: which.
        times: how often each counts.
        most: wavefronts that the phase may cost.
    """

    chunks: Sequence[int]
    times: Sequence[int]
    most: int


def balanced(
    rows: Sequence[Row], position: IntArray, rooms: IntArray, budget: Budget
) -> tuple[IntArray, int]:
    """Positions under which no row costs more, and how many chunks lie in none of the `rooms`.

    Args:
        rows: what is counted; under `position` none costs more than its `most`.
        position: int64, shape (chunks,), of each chunk.
        rooms: int64, shape (positions,): chunks that each position may hold, falling.
        budget: the time there is.
    """
    swaps = _Swaps(rows, position, rooms)
    least, since = swaps.outside, 0
    for _ in budget.while_left(range(_MOST_PAIRS)):
        if not least or since == _PATIENCE:
            break
        swaps.step()
        since = 0 if swaps.outside < least else since + 1
        least = swaps.outside
    return swaps.renamed(), swaps.outside


class _Swaps:
    """One assignment, changed a pair of positions at a time."""

    def __init__(self, rows: Sequence[Row], position: IntArray, rooms: IntArray) -> None:
        self.row = np.repeat(np.arange(len(rows)), [len(row.chunks) for row in rows])
        self.chunk = np.array([c for row in rows for c in row.chunks], np.int64)
        self.times = np.array([n for row in rows for n in row.times], np.int64)
        self.most = np.array([row.most for row in rows], np.int64)
        self.position, self.rooms = position.copy(), rooms
        self.load = np.bincount(position, minlength=len(rooms))
        self.outside = self._outside(self.load)
        self.chance = np.random.default_rng(_SEED)

    def _outside(self, load: IntArray) -> int:
        return int(np.maximum(np.sort(load)[::-1] - self.rooms, 0).sum())

    def step(self) -> None:
        """Even two positions out, as far as their components allow, unless that makes more lie outside."""
        a, b = self._pair()
        parts = self._components(a, b)
        gains = [int((self.position[part] == b).sum() - (self.position[part] == a).sum()) for part in parts]
        wanted = (self.load[a] + self.load[b] + int(self.chance.integers(2))) // 2 - self.load[a]
        moved, chosen = 0, []
        for k in self.chance.permutation(len(parts)).tolist():
            nearer = abs(wanted - moved) - abs(wanted - moved - gains[k])
            if nearer > 0 or (nearer == 0 and self.chance.random() < 0.5):
                moved += gains[k]
                chosen.append(k)
        load = self.load.copy()
        load[[a, b]] += (moved, -moved)
        outside = self._outside(load)
        if outside > self.outside:
            return
        for k in chosen:
            self.position[parts[k]] = a + b - self.position[parts[k]]
        self.load, self.outside = load, outside

    def _pair(self) -> tuple[int, int]:
        """Two positions, most often one that is too full and one that is not full."""
        rank = np.empty(len(self.load), np.int64)
        rank[np.argsort(-self.load, kind="stable")] = np.arange(len(rank))
        over = self.load - self.rooms[rank]
        full, free = np.flatnonzero(over > 0), np.flatnonzero(over < 0)
        if len(full) and len(free) and self.chance.random() >= _ANY_PAIR:
            return int(self.chance.choice(full)), int(self.chance.choice(free))
        a, b = self.chance.choice(len(self.load), 2, replace=False).tolist()
        return a, b

    def _components(self, a: int, b: int) -> list[IntArray]:
        """Chunks in `a` and `b`, by what has to change places together."""
        here = np.flatnonzero((self.position[self.chunk] == a) | (self.position[self.chunk] == b))
        row = self.row[here]
        bound = np.bincount(row, self.times[here], len(self.most)) > self.most
        here = here[bound[row]]
        same = np.flatnonzero(self.row[here[1:]] == self.row[here[:-1]])
        chunks = np.flatnonzero((self.position == a) | (self.position == b)).tolist()
        parent = dict(zip(chunks, chunks, strict=True))

        def root(c: int) -> int:
            while parent[c] != c:
                parent[c] = c = parent[parent[c]]
            return c

        pairs = zip(self.chunk[here[same]].tolist(), self.chunk[here[same + 1]].tolist(), strict=True)
        for u, v in pairs:
            parent[root(u)] = root(v)
        parts: dict[int, list[int]] = {}
        for c in chunks:
            parts.setdefault(root(c), []).append(c)
        return [np.array(part) for part in parts.values()]

    def renamed(self) -> IntArray:
        """The positions, named by how many chunks they hold, the fullest first."""
        name = np.empty(len(self.load), np.int64)
        name[np.argsort(-self.load, kind="stable")] = np.arange(len(name))
        renamed: IntArray = name[self.position]
        return renamed
