"""Lanes of a warp that execute the same access apart though nothing says that they must.

In PTX lanes that parted go on together at the first step that all their ways must pass. Where a way leaves
the middle of a loop (return, break, goto), that is far behind, often the end; where two conditions lead to
one place (`||`), it is behind that place. The assembler may let lanes meet earlier: then what some lanes
execute without the others the hardware may execute once for all of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from layoutopt.kernels.groups import Group, masks
from layoutopt.kernels.values import Bits, Bools

APART: Final = (
    "PTX does not say where lanes of a warp meet after an early return, break or goto, or a condition with "
    "||: what they access apart is counted apart, and takes less where the hardware lets them meet before"
)


class Apart:
    """What lanes executed without others since they were together.

    Args:
        warps: rows in all.
    """

    def __init__(self, warps: int) -> None:
        self._warps = warps
        # By step, shape (warps, 32): for each lane those that executed it without this one.
        self._without: dict[int, Bits] = {}

    def execute(self, index: int, group: Group, lanes: Bools, live: Bools) -> bool:
        """Lanes of a group execute a step; whether others did since they parted from them.

        Args:
            index, group, lanes: who does what.
            live: lanes of the group's rows that have not exited.
        """
        table = self._without.get(index)
        others = live & ~group.lanes
        if table is None and not others.any():
            return False
        if table is None:
            table = self._without[index] = np.zeros((self._warps, 32), np.uint64)
        before = table[group.rows]
        table[group.rows] = np.where(others, before | masks(lanes), before)
        return bool((((before & ~masks(group.lanes)) != 0) & lanes).any())

    def met(self, group: Group) -> None:
        """The lanes of each row are together."""
        for index, table in list(self._without.items()):
            before = table[group.rows]
            table[group.rows] = np.where(group.lanes, before & ~masks(group.lanes), before)
            if not table.any():
                del self._without[index]

    def fork(self) -> Apart:
        """The same, to change."""
        other = Apart(self._warps)
        other._without = {index: table.copy() for index, table in self._without.items()}
        return other
