"""Registers and predicates of all lanes: what a group of lanes reads and writes."""

from __future__ import annotations

import copy

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.groups import Group
from layoutopt.kernels.machine.launch import Arguments, Launch, constant_bank
from layoutopt.kernels.machine.lines import Line
from layoutopt.kernels.machine.memory import Bytes
from layoutopt.kernels.machine.values import (
    Bools,
    Value,
    constant,
    known,
    made,
    of_lane,
    select,
    unknown,
    whole,
)
from layoutopt.kernels.program import Operand, Program, Step


class Stopped(Exception):
    """The evaluation cannot go on; the argument says why, for the verdict."""


class Registers:
    """What every lane of some blocks has in its cells.

    Args:
        program: the kernel.
        launch: sizes.
        given: its arguments.
        blocks: int64, shape (blocks, 3): block indices.
        hidden: along each axis, bits of the indices that are unknown.

    Attributes:
        rows: warps in all; those of a block stand together.
        live: bool, shape (rows, 32): lanes that have not exited.
        banks: constant memory.
    """

    def __init__(
        self,
        program: Program,
        launch: Launch,
        given: Arguments,
        blocks: IntArray,
        hidden: tuple[int, ...] = (0, 0, 0),
    ) -> None:
        self.program, self.launch = program, launch
        self.blocks = len(blocks)
        self.warps = launch.warps
        self.rows = self.blocks * self.warps
        thread = np.arange(self.warps * 32).reshape(self.warps, 32)
        self.live: Bools = np.tile(thread < launch.threads, (self.blocks, 1))
        self._cells = _special(launch, blocks, hidden, thread)
        content, certain = constant_bank(program, launch, given)
        self.banks = {0: Bytes(1, len(content), content)}
        for start in np.flatnonzero(~certain).tolist():
            self.banks[0].hide(0, start, 1)
        self.banks |= {n: Bytes(1, len(c), c) for n, c in program.constants.items() if n}
        for bank, places in program.unset.items():
            for start, size in places if bank in self.banks else ():
                self.banks[bank].hide(0, start, size)

    def named(self, index: int) -> str:
        """A step, for people."""
        step = self.program.steps[index]
        place = f" ({step.place.file}:{step.place.line})" if step.place is not None else ""
        words = [word for word in step.text.split() if not word.startswith("@")]
        return f"{words[0] if words else '?'} at 0x{step.address:x}{place}"

    def read(self, group: Group, operand: Operand) -> Value:
        """What the rows of a group have in a cell."""
        if not isinstance(operand, str):
            return operand
        value = self._cells.get(operand)
        if value is None:
            value = self._first(operand)
        if group.full or len(value.bits) == 1:
            return value
        hidden = value.unknown
        if hidden is not None and len(hidden) > 1:
            hidden = hidden[group.rows]
        line = value.line
        if line is not None:
            line = line._replace(start=line.start[group.rows], slope=line.slope[group.rows])
        return Value(value.bits[group.rows], hidden, line)

    def held(self, cells: frozenset[str]) -> dict[str, Value]:
        """What all rows have in these cells, of those that were written."""
        return {cell: self._cells[cell] for cell in cells if cell in self._cells}

    def put(self, cell: str, value: Value) -> None:
        """Give a cell a value in all rows."""
        self._cells[cell] = value

    def merge(self, one: Registers, other: Registers, first: Bools, second: Bools) -> None:
        """What lanes have after one of two ways that began here.

        Args:
            one, other: after each way.
            first, second: bool, shape (rows, 32): lanes that went, or may have gone, each way.
        """
        unsure = first & second
        lanes = made(first.astype(np.uint64), unsure.astype(np.uint64), 1)
        some: Bools = np.asarray(first.any(axis=1, keepdims=True))
        mixed: Bools = some & np.asarray(second.any(axis=1, keepdims=True))
        warps = made(some.astype(np.uint64), mixed.astype(np.uint64), 1)
        for cell in {**one._cells, **other._cells}:
            a, b = one._cells.get(cell, unknown(64)), other._cells.get(cell, unknown(64))
            if a is not b:
                self._cells[cell] = select(warps if cell.startswith("U") else lanes, a, b)
            else:
                self._cells[cell] = a

    def fork(self) -> Registers:
        """The same registers, of which a change changes nothing here."""
        other = copy.copy(self)
        other._cells, other.live = self._cells.copy(), self.live.copy()
        return other

    def _first(self, cell: str) -> Value:
        """A cell that nobody wrote yet: constant memory, or unknown."""
        if cell.startswith("$c"):
            bank, _, offset = cell[2:].partition(".")
            memory = self.banks.get(int(bank))
            if memory is not None:
                zero = np.zeros((1, 1), np.int64)
                value = memory.load(zero, zero + int(offset), 4)
                self._cells[cell] = value
                return value
        return unknown(64)

    def write(self, group: Group, cell: str, value: Value, lanes: Bools, unsure: Bools | None) -> None:
        """Give a cell a value in these lanes; where that is unsure, what the old and the new agree on."""
        uniform = cell.startswith("U")
        if uniform:
            value = _of_first(value, lanes)
            sure: Bools = np.asarray(lanes.any(axis=1, keepdims=True))
            unsure = None if unsure is None else np.asarray(unsure.any(axis=1, keepdims=True))
        else:
            sure = lanes
        if group.full and unsure is None and (lanes is group.lanes or bool((sure | ~self.live).all())):
            self._cells[cell] = value
            return
        doubt = None if unsure is None else unsure.astype(np.uint64)
        condition = made(sure.astype(np.uint64), doubt, 1)
        old = self.read(group, cell)
        new = select(condition, value, old)
        shape = (self.rows, 1 if uniform else 32)
        whole_old = self._cells.get(cell) or unknown(64)
        bits = np.array(np.broadcast_to(whole_old.bits, shape))
        bits[group.rows] = new.bits
        hidden = None
        if whole_old.unknown is not None or new.unknown is not None:
            zero = np.zeros((1, 1), np.uint64)
            hidden = np.array(
                np.broadcast_to(zero if whole_old.unknown is None else whole_old.unknown, shape)
            )
            hidden[group.rows] = zero if new.unknown is None else new.unknown
        self._cells[cell] = made(bits, hidden, 64)._replace(line=_merged(whole_old, new, group.rows, shape))

    def taking(self, group: Group, step: Step) -> tuple[Bools, Bools | None]:
        """Lanes whose guard is true, and those whose guard is unknown (None: no such lane)."""
        if step.guard is None:
            return group.lanes, None
        value = self.read(group, step.guard.cell)
        hidden = whole(value)
        true = (value.bits == 0) if step.guard.negated else (value.bits != 0)
        if hidden is None:
            if true.all():
                return group.lanes, None
            return group.lanes & true, None
        unsure = group.lanes & hidden
        return group.lanes & true & ~hidden, unsure if unsure.any() else None

    def number(self, group: Group, operand: Operand, lanes: Bools) -> IntArray:
        """Known numbers of the lanes that take part, shape (rows, 32).

        Raises:
            Stopped: one is unknown.
        """
        value = self.read(group, operand)
        hidden = whole(value)
        if hidden is not None and (hidden & lanes).any():
            raise Stopped(f"an operand of {self.named(group.at)} is unknown")
        return np.broadcast_to(value.bits, lanes.shape).astype(np.int64)


def _merged(old: Value, new: Value, rows: IntArray, shape: tuple[int, int]) -> Line | None:
    """The line of a cell of which some rows are new; None where either part has none."""
    line = new.line or old.line
    if line is None or (new.line is None and new.unknown is not None):
        return None
    if old.line is None and old.unknown is not None and len(rows) < shape[0]:
        return None
    if old.line is not None and old.line.span is not line.span:
        return None
    if any(part.line is None and (part.bits >> np.uint64(60)).any() for part in (old, new)):
        return None
    start, slope = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for part, where in ((old, slice(None)), (new, rows)):
        start[where] = part.bits.astype(np.int64) if part.line is None else part.line.start
        slope[where] = 0 if part.line is None else part.line.slope
    return Line(start, slope, line.span)


def _of_first(value: Value, lanes: Bools) -> Value:
    """What the first of the lanes of each warp has, as a uniform register takes it."""
    if value.bits.shape[1] == 1 and (value.unknown is None or value.unknown.shape[1] == 1):
        return value
    return of_lane(value, lanes.argmax(axis=1)[:, None], lanes.shape)


def _special(launch: Launch, blocks: IntArray, hidden: tuple[int, ...], thread: IntArray) -> dict[str, Value]:
    """Cells that are set before the first step."""
    x, y, _ = launch.block
    count = len(blocks)
    place = {"x": thread % x, "y": thread // x % y, "z": thread // (x * y)}
    found = {f"$tid.{axis}": known(np.tile(table, (count, 1))) for axis, table in place.items()}
    for k, axis in enumerate("xyz"):
        found[f"$ntid.{axis}"] = constant(launch.block[k])
        found[f"$nctaid.{axis}"] = constant(launch.grid[k])
        index = known(np.repeat(blocks[:, k], launch.warps)[:, None])
        unsure = None if not hidden[k] else np.array([[hidden[k]]], np.uint64)
        found[f"$ctaid.{axis}"] = made(index.bits, unsure, 32)
    found["$laneid"] = known(thread[:1] % 32)
    found["$warpid"] = known(np.tile(thread[:, :1] // 32, (count, 1)))
    found["$false"] = constant(0)
    return found
