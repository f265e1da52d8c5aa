"""Registers and predicates of all lanes: what a group of lanes reads and writes."""

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.groups import NOBODY, Group
from layoutopt.kernels.machine.launch import Arguments, Launch, constant_banks
from layoutopt.kernels.machine.values import (
    NO_BITS,
    ZERO,
    Bools,
    Bounds,
    Line,
    Value,
    constant,
    downward,
    known,
    lined,
    made,
    mask_of,
    of_lane,
    select,
    unknown,
)
from layoutopt.kernels.program import MOST_CLUSTER, Program, Source, Step


class Stopped(Exception):
    """The evaluation cannot go on; the argument says why, for the verdict."""


class Registers:
    """What every lane of some blocks has in its cells.

    Args:
        program: the kernel.
        launch: sizes.
        given: its arguments.
        blocks: int64, shape (blocks, 3): block indices.
        last: int64, shape (3,): the indices are unknown, from those of the only block to these.

    Attributes:
        rows: warps in all; those of a block stand together.
        live: bool, shape (rows, 32): lanes that have not exited.
        banks: constant memory.
        in_clusters: blocks may be those of clusters.
    """

    def __init__(
        self,
        program: Program,
        launch: Launch,
        given: Arguments,
        blocks: IntArray,
        last: IntArray | None = None,
    ) -> None:
        self.program, self.launch = program, launch
        self.blocks, self.warps = len(blocks), launch.warps
        self.rows = self.blocks * self.warps
        thread = np.arange(self.warps * 32).reshape(self.warps, 32)
        self.live: Bools = np.tile(thread < launch.threads, (self.blocks, 1))
        last = blocks[0] if last is None else last
        self._cells = _special(launch, blocks, last, thread)
        self.in_clusters = program.in_clusters
        if self.in_clusters:
            self._cells["$ctarank"] = _rank(program.cluster, blocks, last, launch.warps)
        self.banks = constant_banks(program, launch, given)

    def named(self, index: int) -> str:
        """A step, for people."""
        return self.program.steps[index].named

    def _whole(self, cell: str) -> Value:
        """A cell in all rows; one that nobody wrote yet is constant memory, no lanes, or unknown."""
        value = self._cells.get(cell)
        if value is None:
            value = ZERO if cell.startswith("B") else unknown(64)
            if cell.startswith("$c"):
                bank, _, offset = cell[2:].partition(".")
                memory = self.banks.get(int(bank))
                if memory is not None:
                    zero = np.zeros((1, 1), np.int64)
                    value = self._cells[cell] = memory.load(zero, zero + int(offset), 4)
        return value

    def _of(self, group: Group, cell: str) -> Value:
        """What the rows of a group have in a cell."""
        value = self._whole(cell)
        if group.full or (len(value.bits) == len(value.unknown) == 1 and value.alike is None):
            return value
        return in_rows(value, group.rows)

    def read(self, group: Group, source: Source) -> Value:
        """What an operand is in the rows of a group."""
        return source.value(*[self._of(group, cell) for cell in source.cells])

    def alike(self, group: Group, cells: Iterable[str]) -> Bools:
        """In which rows of a group all lanes have the same in these cells, known or not; shape (rows, 1)."""
        found = np.ones((len(group.rows), 1), bool)
        for cell in cells:
            value = self._of(group, cell)
            if value.sure and value.bits.shape[1] > 1:
                first = of_lane(value, group.lanes.argmax(axis=1)[:, None], group.lanes.shape)
                found &= ((value.bits == first.bits) | ~group.lanes).all(axis=1, keepdims=True)
            elif not value.sure and not cell.startswith(("U", "$")):
                found &= False if value.alike is None else value.alike
        return found

    def held(self, cells: frozenset[str], group: Group | None = None) -> dict[str, Value]:
        """What all rows, or those of a group, have in these cells, of those that steps have written."""
        some = (cell for cell in cells if cell[0] != "$" and cell in self._cells)
        return {cell: self._cells[cell] if group is None else self._of(group, cell) for cell in some}

    def merge(self, one: "Registers", other: "Registers", first: Bools, second: Bools) -> None:
        """What lanes have after one of two ways that began here, and the lanes that may have gone each.

        Whom lanes will meet is what it was before: what a way tells is done with where it ends.
        """
        some, mixed = _any(first), _any(second)
        lanes, warps = _doubted(first, first & second), _doubted(some, some & mixed)
        for cell in (c for c in {**one._cells, **other._cells} if not c.startswith("B")):
            a, b = one._whole(cell), other._whole(cell)
            self._cells[cell] = a if a is b else select(warps if cell.startswith("U") else lanes, a, b)

    def fork(self) -> "Registers":
        """The same registers, of which a change changes nothing here."""
        other = copy.copy(self)
        other._cells, other.live = self._cells.copy(), self.live.copy()
        return other

    def rounds(
        self, group: Group, begin: dict[str, Value], count: int, as_one_block: bool = False
    ) -> "Registers":
        """So many copies of the rows of some blocks, one after another, with these values and no others.

        Or one block, which knows what all of them have alike; the same lanes of each are to live.
        """
        other, rows = copy.copy(self), len(group.rows)
        other.blocks, other.rows = rows // self.warps * count, rows * count
        other.live = np.tile(self.live[group.rows], (count, 1))
        special = {cell: self._of(group, cell) for cell in self._cells if cell.startswith("$")}
        other._cells = {cell: repeated(value, rows, count) for cell, value in special.items()} | begin
        if as_one_block:
            other._cells = {cell: other._alike_in_blocks(value) for cell, value in other._cells.items()}
            other.live, other.blocks, other.rows = other.live[: self.warps], 1, self.warps
        return other

    def _alike_in_blocks(self, value: Value) -> Value:
        if self.blocks == 1:
            return value
        alike = value.alike
        if alike is not None and len(alike) > 1:
            alike = np.logical_and.reduce(alike.reshape(self.blocks, self.warps, 1))
        if len(value.bits) == len(value.unknown) == 1:
            return value._replace(alike=alike)
        bits, hidden = (
            np.broadcast_to(part, (self.rows, part.shape[1])).reshape(self.blocks, self.warps, -1)
            for part in value[:2]
        )
        apart = np.bitwise_or.reduce(bits ^ bits[0], axis=0)
        return made(bits[0], apart | np.bitwise_or.reduce(hidden, axis=0), 64)._replace(alike=alike)

    def write(
        self,
        group: Group,
        cell: str,
        value: Value,
        lanes: Bools,
        unsure: Bools = NOBODY,
        alike: Bools = NOBODY,
    ) -> None:
        """Give a cell a value in these lanes; where that is unsure, what the old and the new agree on.

        In rows that are `alike`, shape (rows, 1), it is the same number in all of these lanes. A cell without
        a name is none.
        """
        if not cell:
            return
        everybody, before, told = lanes is group.lanes, self._cells.get(cell, ZERO).alike, None
        if before is not None or (alike is not NOBODY and alike.any()):
            told = np.zeros((self.rows, 1), bool) | (NOBODY if before is None else before)
            told[group.rows] = alike & (lanes | ~self.live[group.rows]).all(axis=1, keepdims=True)
        value = value._replace(alike=None) if value.alike is not None else value
        if cell.startswith("U"):
            if value.bits.shape[1] > 1 or value.unknown.shape[1] > 1:
                value = of_lane(value, lanes.argmax(axis=1)[:, None], lanes.shape)
            lanes, unsure = _any(lanes), unsure if unsure is NOBODY else _any(unsure)
        if not group.full or unsure is not NOBODY or not (everybody or (lanes | ~self.live).all()):
            if len(group.rows) < self.rows:
                value = value.each(lambda part: part if len(part) == 1 else self._spread(group, part))
                lanes = self._spread(group, lanes)
                unsure = unsure if unsure is NOBODY else self._spread(group, unsure)
            value = select(_doubted(lanes, unsure), value, self._whole(cell))
        self._cells[cell] = value._replace(alike=told) if told is not value.alike else value

    def _spread(self, group: Group, part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A table of the rows of a group as one of all rows, zeros elsewhere."""
        every = np.zeros((self.rows, part.shape[1]), part.dtype)
        every[group.rows] = part
        return every

    def taking(self, group: Group, step: Step) -> tuple[Bools, Bools]:
        """Lanes whose guard is true, and those whose guard is unknown."""
        if step.guard is None:
            return group.lanes, NOBODY
        value = self.read(group, step.guard)
        true = value.bits != 0
        if value.sure:
            return (group.lanes if true.all() else group.lanes & true), NOBODY
        unsure = group.lanes & (value.unknown != 0)
        return group.lanes & true, unsure if unsure.any() else NOBODY

    def number(self, group: Group, source: Source, lanes: Bools) -> IntArray:
        """Known numbers of the lanes that take part, shape (rows, 32).

        Raises:
            Stopped: one is unknown.
        """
        value = self.read(group, source)
        if (lanes & (value.unknown != 0)).any():
            raise Stopped(f"an operand of {self.named(group.at)} is unknown")
        return np.broadcast_to(value.bits, lanes.shape).astype(np.int64)


def in_rows(value: Value, rows: IntArray | Bools) -> Value:
    """What some rows have."""
    return value.each(lambda part: part if len(part) == 1 else part[rows])


def repeated(value: Value, rows: int, count: int, move: IntArray | None = None, first: int = 0) -> Value:
    """A register in so many copies of the rows, one after another.

    Copy k is moved on by (first + k) * move, of numbers of 32 bits that are all known.
    """
    if move is None:
        return value.each(lambda part: part if len(part) == 1 else np.tile(part, (count, 1)))
    times = first + np.arange(count, dtype=np.int64)[:, None, None]
    found = value.bits.astype(np.int64) + times * move
    return known(np.broadcast_to(found, (count, rows, found.shape[2])).reshape(count * rows, -1))


def _any(lanes: Bools) -> Bools:
    """Which rows have a lane; shape (rows, 1)."""
    some: Bools = np.asarray(lanes.any(axis=1, keepdims=True))
    return some


def _doubted(lanes: Bools, unsure: Bools) -> Value:
    """Lanes as a predicate, unknown where unsure."""
    hidden = NO_BITS if unsure is NOBODY else unsure.astype(np.uint64)
    return made(lanes.astype(np.uint64), hidden, 1)


def _rank(cluster: tuple[int, int, int] | None, blocks: IntArray, last: IntArray, warps: int) -> Value:
    """Which block of its cluster each warp is of, x first; of blocks in a box, or some cluster, unknown."""
    x, y, z = cluster or (MOST_CLUSTER, 1, 1)
    if cluster is None or (last > blocks[0]).any():
        return made(np.zeros((1, 1), np.uint64), downward(np.array([[x * y * z - 1]], np.uint64)), 32)
    place = blocks % (x, y, z)
    return known(np.repeat(place @ np.array([1, x, x * y]), warps)[:, None])


def _special(launch: Launch, blocks: IntArray, last: IntArray, thread: IntArray) -> dict[str, Value]:
    """Cells that are set before the first step."""
    x, y, _ = launch.block
    count = len(blocks)
    place = {"x": thread % x, "y": thread // x % y, "z": thread // (x * y)}
    found = {f"$tid.{axis}": known(np.tile(table, (count, 1))) for axis, table in place.items()}
    for k, axis in enumerate("xyz"):
        found[f"$ntid.{axis}"] = constant(launch.block[k])
        found[f"$nctaid.{axis}"] = constant(launch.grid[k])
        found[f"$ctaid.{axis}"] = known(np.repeat(blocks[:, k], launch.warps)[:, None])
        if last[k] > blocks[0, k]:
            first, end = (np.array([[number]], np.uint64) for number in (blocks[0, k], last[k]))
            index = made(first, downward(first ^ end), 32, Bounds(first, end))
            found[f"$ctaid.{axis}"] = lined(index, Line(first, tuple(int(j == k) for j in range(3))), 32)
    found["$ctarank"] = ZERO
    found["$laneid"] = known(thread[:1] % 32)
    found["$warpid"] = known(np.tile(thread[:, :1] // 32, (count, 1)))
    orders = {"eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
    for name, order in orders.items():
        found[f"$lanemask.{name}"] = Value(mask_of(order(np.arange(32), np.arange(32)[:, None])).T)
    return found
