"""Lanes that parted at a branch and go on together where its ways meet.

Every lane has a stack of places to meet and of those whom it meets there: pushed when a branch really parts
a group, popped when all have come or exited. The lanes of a group have the same stack.
"""

from __future__ import annotations

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.groups import Group, lanes_of, masks
from layoutopt.kernels.values import Bits, Bools


class Rejoins:
    """Stacks of all lanes.

    Args:
        warps: rows in all.
    """

    def __init__(self, warps: int) -> None:
        self._depth = np.zeros((warps, 32), np.int64)
        self._places: IntArray = np.full((warps, 32, 4), -1, np.int64)
        self._masks: Bits = np.zeros((warps, 32, 4), np.uint64)
        self._waiting: dict[int, Bools] = {}

    def part(self, group: Group, parted: Bools, place: int) -> None:
        """Rows of a group (`parted`, bool of each) split; their lanes will meet at a step."""
        rows, lanes = group.rows[parted], group.lanes[parted]
        top, _ = self._top(rows, lanes)
        new = top != place
        rows, lanes = rows[new], lanes[new]
        if not len(rows):
            return
        if int(self._depth[rows].max()) >= self._places.shape[2]:
            room = ((0, 0), (0, 0), (0, self._places.shape[2]))
            self._places = np.pad(self._places, room, constant_values=-1)
            self._masks = np.pad(self._masks, room)
        which, lane = np.nonzero(lanes)
        row = rows[which]
        depth = self._depth[row, lane]
        self._places[row, lane, depth] = place
        self._masks[row, lane, depth] = masks(lanes)[which, 0]
        self._depth[row, lane] += 1

    def _top(self, rows: IntArray, lanes: Bools) -> tuple[IntArray, Bits]:
        """Where the lanes of each row meet next (-1: nowhere), and who."""
        first = lanes.argmax(axis=1)
        depth = self._depth[rows, first]
        last = np.maximum(depth - 1, 0)
        places = np.where(depth > 0, self._places[rows, first, last], -1)
        return places, self._masks[rows, first, last]

    def arrive(self, group: Group) -> Bools:
        """A group comes to a step where lanes meet; which of its rows wait there."""
        top, _ = self._top(group.rows, group.lanes)
        waits: Bools = top == group.at
        if waits.any():
            waiting = self._waiting.setdefault(group.at, np.zeros(self._depth.shape, bool))
            waiting[group.rows[waits]] |= group.lanes[waits]
        return waits

    def complete(self, live: Bools) -> list[Group]:
        """Groups of which everybody has come, at the step where they met."""
        found = []
        for at, waiting in list(self._waiting.items()):
            rows = np.flatnonzero(waiting.any(axis=1))
            _, whom = self._top(rows, waiting[rows])
            wanted = lanes_of(whom[:, None]) & live[rows]
            done = ~(wanted & ~waiting[rows]).any(axis=1)
            rows, wanted = rows[done], wanted[done]
            if not len(rows):
                continue
            waiting[rows] &= ~wanted
            which, lane = np.nonzero(wanted)
            self._depth[rows[which], lane] -= 1
            some = wanted.any(axis=1)
            if some.any():
                found.append(Group(at, rows[some], wanted[some]))
            if not waiting.any():
                del self._waiting[at]
        return found

    def alone(self) -> None:
        """Nobody waits."""
        self._waiting = {}

    def state(self) -> tuple[object, ...]:
        """The stacks, and who waits, to compare."""
        used = np.arange(self._places.shape[2]) < self._depth[..., None]
        stacks = (self._depth, np.where(used, self._places, -1), np.where(used, self._masks, 0))
        waiting = {at: lanes.tobytes() for at, lanes in self._waiting.items()}
        return (*(table.tobytes() for table in stacks), waiting)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Steps where lanes wait."""
        return tuple(self._waiting)
