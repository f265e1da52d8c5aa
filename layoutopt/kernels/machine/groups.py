"""Groups of converged lanes: who runs together, who waits for whom.

A `Group` stands for many warps at once: each of its rows is one group of converged lanes of one warp, and all
rows stand at the same step. Groups of one warp never join because they happen to meet; they join at a `Meet`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.values import Bits, Bools


@dataclass(slots=True)
class Group:
    """Lanes of several warps at one step.

    Attributes:
        at: index of the step.
        rows: which warps, ascending.
        lanes: bool, shape (rows, 32): which of their lanes, at least one each.
        full: these are all warps, with all of their lanes that have not exited.
    """

    at: int
    rows: IntArray
    lanes: Bools
    full: bool = False


def part(group: Group, lanes: Bools, at: int) -> Group | None:
    """Those lanes of a group, at another step; None if there are none."""
    some = lanes.any(axis=1)
    if not some.any():
        return None
    if some.all():
        return Group(at, group.rows, lanes)
    return Group(at, group.rows[some], lanes[some])


def joined(groups: list[Group], group: Group) -> None:
    """Put a group to the others, as more rows of one at the same step where no warp is in both."""
    for k, other in enumerate(groups):
        if other.at == group.at and not np.isin(group.rows, other.rows).any():
            rows = np.concatenate([other.rows, group.rows])
            order = np.argsort(rows)
            lanes = np.concatenate([other.lanes, group.lanes])[order]
            groups[k] = Group(group.at, rows[order], lanes)
            return
    groups.append(group)


def masks(lanes: Bools) -> Bits:
    """Lanes of each row as bits; shape (rows, 32) to (rows, 1)."""
    return np.packbits(lanes, axis=1, bitorder="little").view(np.uint32).astype(np.uint64)


def lanes_of(bits: Bits) -> Bools:
    """Bits as lanes; shape (rows, 1) to (rows, 32)."""
    lanes: Bools = ((bits >> np.arange(32, dtype=np.uint64)) & np.uint64(1)) != 0
    return lanes


class Meetings:
    """Lanes that wait for lanes of their own warp. A mask of lanes is a uint64.

    Args:
        warps: rows in all.
    """

    def __init__(self, warps: int) -> None:
        self._warps = warps
        self._expected: dict[str, Bits] = {}  # shape (warps, 32): whom each lane will meet
        self._waiting: dict[int, Bools] = {}  # at a step, shape (warps, 32)
        self._needed: dict[int, Bits] = {}  # at a step, shape (warps, 32)
        self._names: dict[int, str | None] = {}

    def saved(self, name: str, group: Group) -> Bits:
        """For every lane of the rows of a group, the lanes it will meet."""
        found: Bits = self._table(name)[group.rows]
        return found

    def _table(self, name: str) -> Bits:
        return self._expected.setdefault(name, np.zeros((self._warps, 32), np.uint64))

    def mark(self, name: str, group: Group) -> None:
        """The lanes of each row will meet."""
        self.restore(name, group, masks(group.lanes))

    def restore(self, name: str, group: Group, whom: Bits) -> None:
        """Every lane of the group will meet the lanes of its mask, broadcastable to (rows, 32)."""
        table = self._table(name)
        table[group.rows] = np.where(group.lanes, whom, table[group.rows])

    def leave(self, name: str, group: Group) -> None:
        """The lanes of the group are no longer waited for."""
        gone = masks(group.lanes)
        self._table(name)[group.rows] &= ~gone
        for at, needed in self._needed.items():
            if self._names[at] == name:
                needed[group.rows] &= ~gone

    def arrive(self, group: Group, name: str | None, whom: Bits, live: Bools) -> bool:
        """The group comes to its step to meet `whom`; whether all are there already, so that it goes on."""
        here = masks(group.lanes)
        waiting = self._waiting.get(group.at)
        if waiting is None or not waiting[group.rows].any():
            absent = whom & masks(live[group.rows]) & ~here
            if not (absent * group.lanes).any():
                return True
        if waiting is None:
            waiting = self._waiting[group.at] = np.zeros((self._warps, 32), bool)
            self._needed[group.at] = np.zeros((self._warps, 32), np.uint64)
            self._names[group.at] = name
        waiting[group.rows] |= group.lanes
        needed = self._needed[group.at]
        needed[group.rows] = np.where(group.lanes, whom | here, needed[group.rows])
        return False

    def complete(self, live: Bools) -> list[Group]:
        """Groups that wait for nobody any more, one step on."""
        found = []
        for at, waiting in list(self._waiting.items()):
            while (rows := np.flatnonzero(waiting.any(axis=1))).size:
                absent = masks(live[rows] & ~waiting[rows])
                ready = waiting[rows] & ((self._needed[at][rows] & absent) == 0)
                some = ready.any(axis=1)
                if not some.any():
                    break
                rows, first = rows[some], ready[some].argmax(axis=1)
                lanes = lanes_of(self._needed[at][rows, first][:, None]) & live[rows]
                found.append(Group(at + 1, rows, lanes))
                waiting[rows] &= ~lanes
            if not waiting.any():
                del self._waiting[at], self._needed[at], self._names[at]
        return found

    def alone(self) -> None:
        """Nobody waits."""
        self._waiting, self._needed, self._names = {}, {}, {}

    def state(self) -> tuple[object, ...]:
        """Who will meet whom, and who waits, to compare."""
        expected = {name: table.tobytes() for name, table in self._expected.items() if table.any()}
        waiting = {at: (w.tobytes(), self._needed[at].tobytes()) for at, w in self._waiting.items()}
        return expected, waiting, dict(self._names)

    @property
    def waiting(self) -> dict[int, Bools]:
        """Lanes that wait, by step."""
        return self._waiting


class Barriers:
    """Warps that wait for warps of their block.

    Args:
        blocks: of these launches.
        warps: of a block.
    """

    def __init__(self, blocks: int, warps: int) -> None:
        self._blocks, self._warps = blocks, warps
        # By number of the barrier: lanes that wait, threads that arrived without waiting, threads expected.
        self._waiting: dict[int, list[Group]] = {}
        self._arrived: dict[int, IntArray] = {}
        self._expected: dict[int, IntArray] = {}

    def arrive(self, group: Group, number: int, count: int | None, waits: bool) -> None:
        """The group comes to a barrier; `count` threads are expected, or all that live."""
        blocks = group.rows // self._warps
        expected = self._expected.setdefault(number, np.zeros(self._blocks, np.int64))
        expected[blocks] = 0 if count is None else -(-count // 32) * 32
        if waits:
            self._waiting.setdefault(number, []).append(group)
        else:
            arrived = self._arrived.setdefault(number, np.zeros((self._blocks, self._warps), np.int64))
            np.add.at(arrived, (blocks, group.rows % self._warps), 1)

    def complete(self, live: Bools) -> list[tuple[Group, list[tuple[int, IntArray]]]]:
        """Groups that may go on, each with the blocks and their warps that met."""
        found = []
        for number in list(self._waiting):
            groups = self._waiting[number]
            here = np.zeros((self._blocks * self._warps, 32), bool)
            for group in groups:
                here[group.rows] |= group.lanes
            come = (here.any(axis=1) & (here | ~live).all(axis=1)).reshape(self._blocks, -1)
            arrived = self._arrived.get(number, np.zeros((self._blocks, self._warps), np.int64))
            alive = live.any(axis=1).reshape(self._blocks, -1)
            expected = self._expected[number]
            counted = 32 * (come.sum(axis=1) + arrived.sum(axis=1)) >= expected
            everyone = (come | (arrived > 0) | ~alive).all(axis=1)
            done = come.any(axis=1) & np.where(expected > 0, counted, everyone)
            if not done.any():
                continue
            met = [(int(b), np.flatnonzero(come[b] | (arrived[b] > 0))) for b in np.flatnonzero(done)]
            arrived[done] = 0
            kept = []
            for group in groups:
                go = done[group.rows // self._warps]
                if go.any():
                    found.append((Group(group.at + 1, group.rows[go], group.lanes[go]), met))
                    met = []
                if not go.all():
                    kept.append(Group(group.at, group.rows[~go], group.lanes[~go]))
            self._waiting[number] = kept
            if not kept:
                del self._waiting[number]
        return found

    def state(self) -> tuple[object, ...]:
        """Who waits and who has come, to compare."""
        waiting = {
            number: sorted((g.at, g.rows.tobytes(), g.lanes.tobytes()) for g in groups)
            for number, groups in self._waiting.items()
        }
        arrived = {number: table.tobytes() for number, table in self._arrived.items() if table.any()}
        expected = {number: table.tobytes() for number, table in self._expected.items()}
        return waiting, arrived, expected

    @property
    def waiting(self) -> list[Group]:
        """Groups that wait."""
        return [group for groups in self._waiting.values() for group in groups]
