"""Groups of converged lanes: who runs together, who waits for whom.

A `Group` stands for many warps at once: each of its rows is one group of converged lanes of one warp, and all
rows stand at the same step. Groups of one warp never join because they happen to meet; they join where lanes
that were remembered together meet (`Reconverge`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.values import Bits, Bools, Value, made, mask, mask_of
from layoutopt.kernels.program import Barrier

# No lane of any row.
NOBODY: Final[Bools] = np.zeros((1, 1), bool)


@dataclass(slots=True)
class Group:
    """Lanes of several warps at one step."""

    at: int  # index of the step
    rows: IntArray  # which warps, ascending
    lanes: Bools  # bool, shape (rows, 32): which of their lanes, at least one each
    full: bool = False  # these are all warps, with all of their lanes that have not exited


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


def lanes_of(bits: Bits) -> Bools:
    """Bits as lanes; shape (rows, 1) to (rows, 32)."""
    lanes: Bools = ((bits >> np.arange(32, dtype=np.uint64)) & np.uint64(1)) != 0
    return lanes


@dataclass(slots=True)
class Meetings:
    """Lanes that wait for lanes of their own warp."""

    warps: int  # how many
    # By step and the cell that told whom they meet (empty for none): of each lane that waits the mask of
    # those who meet, itself among them, else 0; shape (warps, 32)
    waiting: dict[tuple[int, str], Bits]

    def leave(self, cell: str, group: Group) -> None:
        """The lanes of the group are no longer waited for by those whom this cell told."""
        for (_, told), needed in self.waiting.items():
            if told == cell:
                needed[group.rows] &= ~mask_of(group.lanes)

    def arrive(self, group: Group, cell: str, whom: Bits, live: Bools) -> bool:
        """The group comes to its step to meet `whom`; whether all are there already, so that it goes on."""
        here, rows, key = mask_of(group.lanes), group.rows, (group.at, cell)
        if key not in self.waiting or not self.waiting[key][rows].any():
            absent = whom & mask_of(live[rows]) & ~here
            if not (absent * group.lanes).any():
                return True
        needed = self.waiting.setdefault(key, np.zeros((self.warps, 32), np.uint64))
        needed[rows] = np.where(group.lanes, whom | here, needed[rows])
        return False

    def complete(self, live: Bools) -> list[Group]:
        """Groups that wait for nobody any more, one step on.

        A lane waits for those of its mask that live and do not wait at the same step for the same mask: lanes
        that came there in a deeper call wait for each other only. Each time round, one mask a warp is looked
        at.
        """
        found = []
        for key, needed in list(self.waiting.items()):
            left = needed.copy()
            while (rows := np.flatnonzero(left.any(axis=1))).size:
                first = (left[rows] != 0).argmax(axis=1)
                whom = left[rows, first][:, None]
                here, meant = needed[rows] == whom, lanes_of(whom) & live[rows]
                left[rows] = np.where(here, np.uint64(0), left[rows])
                ready = (here | ~meant).all(axis=1)
                if ready.any():
                    done, lanes = rows[ready], meant[ready]
                    found.append(Group(key[0] + 1, done, lanes))
                    needed[done] = np.where(lanes, np.uint64(0), needed[done])
            if not needed.any():
                del self.waiting[key]
        return found


@dataclass(slots=True)
class _Barrier:
    """One barrier of every block."""

    arrived: IntArray  # threads that came without waiting, by warp, shape (blocks, warps)
    expected: IntArray  # threads, 0 for all that live, shape (blocks,)
    waiting: list[Group]  # who came to wait
    predicate: IntArray  # of lanes, shape (warps of all blocks, 32): bit 0 where it holds, bit 1 where it may

    def reduced(self, how: str, here: Bools) -> Value:
        """The predicates of each block's lanes reduced by `how`, repeated for each warp, shape (warps, 1)."""
        blocks, warps = self.arrived.shape
        # Of each block: the lanes, those where the predicate holds, and those where it may.
        tables = (here, here & (self.predicate == 1), here & (self.predicate == 2))
        every, least, unsure = (table.reshape(blocks, -1).sum(axis=1) for table in tables)
        true, false = (
            (least > 0, least + unsure == 0) if how == "OR" else (least == every, least + unsure < every)
        )
        if how == "POPC":
            bits, hidden = least, np.where(unsure > 0, mask(32), np.uint64(0))
        else:  # some number, where it is not 0
            bits = true * 1
            hidden = np.where(true, mask(32) - np.uint64(1), np.where(false, np.uint64(0), mask(32)))
        bits, hidden = (np.repeat(part.astype(np.uint64), warps)[:, None] for part in (bits, hidden))
        return made(bits, hidden, 32)


class Released(NamedTuple):
    """Those who waited at a barrier and may go on."""

    groups: list[Group]  # one step on
    met: Bools  # the warps of each block that came, shape (blocks, warps)
    barrier: _Barrier
    lanes: Bools  # who waited, of the warps of all blocks


@dataclass(slots=True)
class Barriers:
    """Warps that wait for warps of their block, by the number of the barrier."""

    blocks: int
    warps: int
    numbered: dict[int, _Barrier]

    @property
    def waiting(self) -> list[Group]:
        """Groups that wait."""
        return [group for barrier in self.numbered.values() for group in barrier.waiting]

    @property
    def arrived(self) -> Bools:
        """Warps of which somebody came without waiting."""
        tables = [barrier.arrived.ravel() > 0 for barrier in self.numbered.values()]
        found: Bools = np.any([np.zeros(self.blocks * self.warps, bool), *tables], axis=0)
        return found

    def arrive(self, group: Group, call: list[int], action: Barrier, predicate: Value) -> None:
        """The group comes to a barrier of a number, and perhaps a count of threads; else all that live."""
        number, *count = call
        if number not in self.numbered:
            table, lanes = np.zeros((self.blocks, self.warps), np.int64), (self.blocks * self.warps, 32)
            self.numbered[number] = _Barrier(table, table[:, 0].copy(), [], np.zeros(lanes, np.int64))
        barrier, blocks = self.numbered[number], group.rows // self.warps
        barrier.expected[blocks] = -(-count[0] // 32) * 32 if count else 0
        asked = np.where(predicate.unknown != 0, 2, predicate.bits.astype(np.int64))
        barrier.predicate[group.rows] = np.where(group.lanes, asked, barrier.predicate[group.rows])
        if action.waits:
            barrier.waiting.append(group)
        else:
            np.add.at(barrier.arrived, (blocks, group.rows % self.warps), 1)

    def complete(self, live: Bools) -> Iterator[Released]:
        """Those who may go on: all warps of their block that live have come, or as many as are expected."""
        for barrier in (one for one in self.numbered.values() if one.waiting):
            here = np.zeros((self.blocks * self.warps, 32), bool)
            for group in barrier.waiting:
                here[group.rows] |= group.lanes
            come = (here.any(axis=1) & (here | ~live).all(axis=1)).reshape(self.blocks, -1)
            arrived, alive = barrier.arrived, live.any(axis=1).reshape(self.blocks, -1)
            counted = 32 * (come.sum(axis=1) + arrived.sum(axis=1)) >= barrier.expected
            everyone = (come | (arrived > 0) | ~alive).all(axis=1)
            done = come.any(axis=1) & np.where(barrier.expected > 0, counted, everyone)
            if not done.any():
                continue
            met = (come | (arrived > 0)) & done[:, None]
            arrived[done] = 0
            waiting, barrier.waiting, gone = barrier.waiting, [], []
            for group in waiting:
                go = done[group.rows // self.warps]
                if go.any():
                    gone.append(Group(group.at + 1, group.rows[go], group.lanes[go]))
                if not go.all():
                    barrier.waiting.append(Group(group.at, group.rows[~go], group.lanes[~go]))
            yield Released(gone, met, barrier, here)
