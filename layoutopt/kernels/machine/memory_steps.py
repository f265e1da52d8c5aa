"""What loads, stores, atomics and copies do: who is told, what registers and memories hold afterwards."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Final

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.counts import Counter
from layoutopt.kernels.machine.groups import NOBODY, Group
from layoutopt.kernels.machine.launch import Arguments
from layoutopt.kernels.machine.memory import Bytes, Writers, check_reach
from layoutopt.kernels.machine.registers import Registers, Stopped
from layoutopt.kernels.machine.values import Bools, Value, extend, hidden_where, made, mask, unknown
from layoutopt.kernels.program import LOCAL_WINDOW, SHARED_WINDOW, STACK_BYTES, Memory, Step

# Lanes that are off may have any address: so many bytes there are to look at for them.
LEAST_BYTES: Final = 16
MOST_COPIED_BYTES: Final = 16 << 20


@dataclass(slots=True)
class _Access:
    """One memory instruction of a group.

    Attributes:
        group, step, action: who does what.
        space: the memory that it is.
        address: int64, shape (rows, 32), or broadcastable to it in constant memory.
        lanes, unsure: whose guard is true, and whose is not known.
        hidden: lanes whose address is not known.
    """

    group: Group
    step: Step
    action: Memory
    space: str
    address: IntArray
    lanes: Bools
    unsure: Bools
    hidden: Bools

    @property
    def sure(self) -> Bools:
        """Lanes that take part at a known address."""
        return self.lanes if self.hidden is NOBODY else self.lanes & ~self.hidden


class MemorySteps:
    """The memories of the blocks of a launch.

    What they hold is only kept where something that matters is loaded from them.
    """

    def __init__(self, cells: Registers, recorder: Counter, given: Arguments, kept: frozenset[str]) -> None:
        self._cells, self._recorder, self._frozen = cells, recorder, False
        self._rows_held = cells.rows
        self._end = cells.program.shared_end(cells.launch.shared_bytes)
        self._size = max(self._end, LEAST_BYTES)
        self._memories: dict[str, Bytes] = {}
        self._writers: Writers | None = None
        if "shared" in kept:
            self._memories["shared"] = Bytes(cells.blocks, self._size)
            self._writers = Writers(cells.blocks, cells.warps, self._size)
        if "local" in kept:
            self._memories["local"] = Bytes(cells.rows * 32, STACK_BYTES)
        self._buffers = [
            (base, Bytes(1, len(data), data)) for base, data in given.buffers.items() if "global" in kept
        ]

    @property
    def is_large(self) -> bool:
        """Whether a copy of what is held is too much."""
        return sum(memory.bytes for memory in self._held()) > MOST_COPIED_BYTES

    def _held(self) -> list[Bytes]:
        return [*self._memories.values(), *(buffer for _, buffer in self._buffers)]

    def fork(self, cells: Registers) -> MemorySteps:
        """The same memories, of which a change changes nothing here."""
        other = copy.copy(self)
        other._cells = cells
        other._memories, other._buffers = copy.deepcopy(self._memories), copy.deepcopy(self._buffers)
        other._writers = copy.deepcopy(self._writers)
        return other

    def read_only(self, cells: Registers, recorder: Counter) -> MemorySteps:
        """The same memories, for rows of which these are copies: what changes them ends the evaluation."""
        other = copy.copy(self)
        other._cells, other._recorder, other._frozen = cells, recorder, True
        return other

    def merge(self, one: MemorySteps, other: MemorySteps) -> None:
        """What is held after either of two ways that began here: what differs between them is unknown."""
        for mine, first, second in zip(self._held(), one._held(), other._held(), strict=True):
            mine.merge(first, second)
        if self._writers is not None and one._writers is not None and other._writers is not None:
            self._writers.merge(one._writers, other._writers)

    def met(self, warps: Bools) -> None:
        """These warps of each block waited for each other."""
        if self._writers is not None and not self._frozen:
            for block in np.flatnonzero(warps.any(axis=1)).tolist():
                self._writers.met(block, np.flatnonzero(warps[block]))

    def forget(self, group: Group, spaces: frozenset[str]) -> None:
        """What these memories hold becomes unknown: of the group's blocks, or local memory of its lanes."""
        if self._frozen and (spaces & self._memories.keys() or ("global" in spaces and self._buffers)):
            raise Stopped("memory changes")
        for space in spaces & self._memories.keys():
            rows = group.rows // self._cells.warps
            if space == "local":
                rows = (group.rows[:, None] * 32 + np.arange(32))[group.lanes]
            self._memories[space].hide(rows, 0, self._memories[space].size)
        if "global" in spaces:
            for _, buffer in self._buffers:
                buffer.hide(0, 0, buffer.size)

    def execute(
        self, group: Group, step: Step, lanes: Bools, unsure: Bools = NOBODY, maybe: Bools = NOBODY
    ) -> None:
        """One memory instruction of a group.

        Args:
            group, step: who does what.
            lanes, unsure: whose guard is true, and whose is not known.
            maybe: lanes of which it is not known whether they came here.
        """
        action = step.action
        assert isinstance(action, Memory)
        parts = [self._cells.read(group, source) for source in step.sources[: action.places]]
        place = parts[0] if action.place is None else action.place(*parts)
        space: str = action.space
        if space == "generic":
            space, here = self._where(group, place, lanes | unsure)
            if space in ("shared", "local"):
                place = made(place.bits, place.unknown, 32)
            if not (here | ~lanes).all():
                # The other lanes reach other memory, of which nothing is known.
                self._forget(group, step, lanes, unsure)
                rows = (here & lanes).any(axis=1)
                group = Group(group.at, group.rows[rows], (group.lanes & here)[rows])
                bits, hidden = (np.broadcast_to(part, lanes.shape)[rows] for part in place[:2])
                place = Value(bits, hidden)
                lanes, unsure, maybe = (
                    part if part is NOBODY else (part & here)[rows] for part in (lanes, unsure, maybe)
                )
        address = place.bits.astype(np.int64)
        if space != "constant":
            address = np.broadcast_to(address, lanes.shape)
        nowhere = NOBODY if place.sure else place.unknown != 0
        one = _Access(group, step, action, space, address, lanes, unsure, nowhere)
        if space == "shared":
            self._tell(one, maybe)
        changes = action.kind not in ("load", "ldmatrix")
        if self._frozen and changes and (space in self._memories or (space == "global" and self._buffers)):
            raise Stopped("memory changes")
        if space == "global" and changes:
            self._change_global(one)
        if space in self._memories and changes:
            self._change(one)
        elif action.kind == "load" and (space in ("constant", "global") or space in self._memories):
            self._load(one)
        else:
            self._forget(group, step, lanes, unsure)

    def _tell(self, one: _Access, maybe: Bools) -> None:
        """Let the counter know, and say what is not known of it."""
        action, told, at, named = one.action, self._recorder, one.group.at, one.step.named
        nowhere = NOBODY if one.hidden is NOBODY else one.lanes & one.hidden
        lanes, unsure = one.lanes, one.unsure
        if maybe is not NOBODY and (lanes & maybe).any():
            lanes, unsure = lanes & ~maybe, (lanes & maybe) | unsure
        told.access(at, one.group.rows, one.address, lanes, unsure, nowhere)
        if action.operation is not None and (nowhere.any() or one.unsure is not NOBODY):
            what = "the address of" if nowhere.any() else "which lanes execute"
            told.uncertain(at, f"{what} {named} is not known")
        addressing = one.sure
        if action.operation is not None and action.operation.matrices:
            addressing = addressing & (np.arange(32) < 8 * action.operation.matrices)
        used = one.address[addressing]
        if used.size and int(np.bitwise_or.reduce(used)) & (action.width_bytes - 1):
            told.uncertain(at, f"{named} has a misaligned address")
        if used.size:
            check_reach(named, int(used.max()), action.width_bytes, self._end)

    def _rows(self, one: _Access) -> IntArray:
        """Rows of the memory that each lane of the group uses."""
        rows = one.group.rows % self._rows_held
        match one.space:
            case "shared":
                return (rows // self._cells.warps)[:, None]
            case "local":
                return rows[:, None] * 32 + np.arange(32)
        return np.zeros((1, 1), np.int64)

    def _where(self, group: Group, place: Value, some: Bools) -> tuple[str, Bools]:
        """Which memory generic addresses are in, and the lanes that use it.

        A warp whose lanes use several memories counts with those in shared memory.
        """
        word, hidden = (np.broadcast_to(part >> np.uint64(32), some.shape) for part in place[:2])
        named = self._cells.named(group.at)
        if ((hidden != 0) & some).any():
            self._recorder.uncertain(group.at, f"whether {named} reaches shared memory is not known")
            return "unknown", np.ones_like(some)
        used = np.unique(word[some]).tolist()
        if SHARED_WINDOW in used:
            here = word == SHARED_WINDOW
            if (some & here).any(axis=1)[(some & ~here).any(axis=1)].any():
                self._recorder.uncertain(
                    group.at, f"lanes of a warp reach shared and other memory in {named}"
                )
            return "shared", here
        return "local" if used == [LOCAL_WINDOW] else "global", some

    def _forget(self, group: Group, step: Step, lanes: Bools, unsure: Bools) -> None:
        alike = self._alike(group, step)
        for cell in step.dests:
            self._cells.write(group, cell, unknown(64), lanes, unsure, alike)

    def _alike(self, group: Group, step: Step) -> Bools:
        """In which rows all lanes load the same, shape (rows, 1): from the same address of one memory."""
        action = step.action
        assert isinstance(action, Memory)
        if action.kind != "load" or action.space in ("local", "generic"):
            return NOBODY
        return self._cells.alike(group, step.sources[: action.places])

    def _load(self, one: _Access) -> None:
        action = one.action
        width = min(action.unit_bytes, action.width_bytes)
        alike = self._alike(one.group, one.step)
        for k, cell in enumerate(one.step.dests):
            value = self._loaded(one, one.address + k * action.unit_bytes, width)
            if action.signed and width < action.unit_bytes:
                value = extend(value, 8 * width, 8 * action.unit_bytes)
            value = hidden_where(one.hidden, value, 8 * action.unit_bytes)
            self._cells.write(one.group, cell, value, one.lanes, one.unsure, alike)

    def _loaded(self, one: _Access, address: IntArray, width: int) -> Value:
        row = self._rows(one)
        if one.space == "constant":
            bank = self._cells.banks.get(one.action.bank)
            return bank.load(row, address, width) if bank is not None else unknown(8 * width)
        if one.space != "global":
            value = self._memories[one.space].load(row, address, width)
            return hidden_where(self._late(one, address, width), value, 8 * width)
        value = unknown(8 * width)
        for base, buffer in self._buffers:
            here = buffer.inside(address - base, width)
            if here.any():
                found = buffer.load(row, address - base, width)
                bits, hidden = (np.where(here, a, b) for a, b in zip(found[:2], value[:2], strict=True))
                value = made(bits, hidden, 8 * width)
        return value

    def _late(self, one: _Access, address: IntArray, width: int) -> Bools:
        """Where another warp wrote shared memory and nobody waited for it since."""
        if one.space != "shared" or self._writers is None:
            return NOBODY
        warps, rows = self._cells.warps, one.group.rows % self._rows_held
        inside = np.clip(address, 0, self._size - width)
        return self._writers.unsure(rows // warps, rows % warps, inside, width)

    def _change(self, one: _Access) -> None:
        """A store, atomic or copy: where it is unknown whether or what, the bytes become unknown."""
        action, memory, row = one.action, self._memories[one.space], self._rows(one)
        nowhere = one.lanes & one.hidden
        if nowhere.any():
            # An unknown address may be any byte of the row.
            memory.hide(np.unique(np.broadcast_to(row, nowhere.shape)[nowhere]), 0, memory.size)
        if one.unsure is not NOBODY:
            self._lose(one, memory, one.unsure)
        if action.kind == "atomic":
            self._atomic(one, memory, row)
        elif action.kind == "stmatrix":
            # Rows of matrices take bytes of other lanes' registers, which are not followed.
            assert action.operation is not None
            self._lose(one, memory, one.lanes & (np.arange(32) < 8 * action.operation.matrices))
        else:
            self._store(one, memory, row)

    def _lose(self, one: _Access, memory: Bytes, lanes: Bools) -> None:
        """What these lanes write is not known."""
        for k in range(0, one.action.width_bytes, 8):
            width = min(8, one.action.width_bytes)
            memory.store(self._rows(one), one.address + k, width, unknown(64), lanes)
        self._wrote(one, lanes)

    def _store(self, one: _Access, memory: Bytes, row: IntArray) -> None:
        action, sure = one.action, one.sure
        sources = one.step.sources[action.places :] if action.kind == "store" else ()
        width = min(action.unit_bytes, action.width_bytes)
        for k in range(max(1, action.width_bytes // action.unit_bytes)):
            value = self._cells.read(one.group, sources[k]) if k < len(sources) else unknown(8 * width)
            at = one.address + k * action.unit_bytes
            late = sure & self._late(one, at, width)
            if late.any():
                # Another warp wrote and nobody waited: of values that differ, which one stays is not known.
                old = memory.load(row, at, width)
                apart = (old.bits != (value.bits & mask(8 * width))) | (old.unknown | value.unknown != 0)
                value = hidden_where(late & apart, value, 8 * width)
            memory.store(row, at, width, value, sure)
        self._wrote(one, sure)

    def _wrote(self, one: _Access, where: Bools) -> None:
        if one.space == "shared" and self._writers is not None:
            warps, rows, width = self._cells.warps, one.group.rows, one.action.width_bytes
            where = where & (one.address >= 0) & (one.address <= self._size - width)
            self._writers.wrote(rows // warps, rows % warps, one.address, width, where)

    def _atomic(self, one: _Access, memory: Bytes, row: IntArray) -> None:
        """Lanes one after another; what is returned is unknown where the order decides it."""
        action, address, sure = one.action, one.address, one.sure
        width = action.width_bytes
        sources = [self._cells.read(one.group, source) for source in one.step.sources[action.places :]]
        old = memory.load(row, address, width)
        places = np.broadcast_to(row, address.shape) * (self._size + int(address.max())) + address
        firsts, crowded = _firsts(places, sure)
        open_ = self._late(one, address, width) | crowded
        if action.combine is None or (not action.commutes and open_.any()):
            memory.store(row, address, width, unknown(64), sure)
        else:
            left = sure
            while left.any():
                before = memory.load(row, address, width)
                memory.store(row, address, width, action.combine(before, *sources), firsts)
                left = left & ~firsts
                firsts, _ = _firsts(places, left)
        self._wrote(one, sure)
        if len(one.step.dests) == 1:
            result = hidden_where(open_ | one.hidden, old, 8 * width)
            self._cells.write(one.group, one.step.dests[0], result, one.lanes, one.unsure)
        else:
            self._forget(one.group, one.step, one.lanes, one.unsure)

    def _change_global(self, one: _Access) -> None:
        """What the kernel writes is not followed: those bytes are unknown to later loads."""
        width = one.action.width_bytes
        doubtful = one.unsure is not NOBODY or (one.lanes & one.hidden).any()
        for base, buffer in self._buffers:
            if doubtful:
                buffer.hide(0, 0, buffer.size)
                continue
            for k in range(0, width, 8):
                at = one.address - base + k
                buffer.store(np.zeros((1, 1), np.int64), at, min(8, width), unknown(64), one.lanes)


def _firsts(places: IntArray, lanes: Bools) -> tuple[Bools, Bools]:
    """The first lane at each place, and lanes that share theirs with another one."""
    flat = np.flatnonzero(lanes)
    _, first, inverse, counts = np.unique(
        places.ravel()[flat], return_index=True, return_inverse=True, return_counts=True
    )
    chosen, crowded = np.zeros(lanes.size, bool), np.zeros(lanes.size, bool)
    chosen[flat[first]] = True
    crowded[flat] = counts[inverse] > 1
    return chosen.reshape(lanes.shape), crowded.reshape(lanes.shape)
