"""What loads, stores, atomics and copies do: who is told, what registers and memories hold afterwards."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Final

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.counts import Counter
from layoutopt.kernels.machine.groups import Group
from layoutopt.kernels.machine.launch import Arguments
from layoutopt.kernels.machine.memory import Bytes, Writers, check_reach
from layoutopt.kernels.machine.registers import Registers
from layoutopt.kernels.machine.values import Bools, Value, extend, made, mask, unknown, whole
from layoutopt.kernels.program import LOCAL_WINDOW, SHARED_WINDOW, STACK_BYTES, Memory, Step

# Lanes that are off may have any address: so many bytes there are to look at for them.
LEAST_BYTES: Final = 16
MOST_COPIED_BYTES: Final = 16 << 20


@dataclass(slots=True)
class _Access:
    """One memory instruction of a group.

    Attributes:
        group, index, step, action: who does what.
        space: the memory that it is.
        address: int64, shape (rows, 32), or broadcastable to it in constant memory.
        lanes, unsure: whose guard is true, and whose is not known.
        hidden: lanes whose address is not known; None where all are.
        maybe: lanes of which it is not known whether they came here.
    """

    group: Group
    index: int
    step: Step
    action: Memory
    space: str
    address: IntArray
    lanes: Bools
    unsure: Bools | None
    hidden: Bools | None = None
    maybe: Bools | None = None

    @property
    def nowhere(self) -> Bools | None:
        """Lanes that take part at an address that is not known; None where none does."""
        if self.hidden is None or not (self.lanes & self.hidden).any():
            return None
        return self.lanes & self.hidden

    @property
    def sure(self) -> Bools:
        """Lanes that take part at a known address."""
        return self.lanes if self.hidden is None else self.lanes & ~self.hidden


class MemorySteps:
    """The memories of the blocks of a launch.

    What they hold is only kept where something that matters is loaded from them.
    """

    def __init__(self, cells: Registers, recorder: Counter, given: Arguments, kept: frozenset[str]) -> None:
        self._cells, self._recorder = cells, recorder
        self._kept = kept
        self._end = cells.program.shared_end(cells.launch.shared_bytes)
        self._size = max(self._end, LEAST_BYTES)
        self._shared = Bytes(cells.blocks, self._size) if "shared" in kept else None
        self._writers = Writers(cells.blocks, cells.warps, self._size) if "shared" in kept else None
        self._local = Bytes(cells.rows * 32, STACK_BYTES) if "local" in kept else None
        self._global = [(base, Bytes(1, len(data), data)) for base, data in given.buffers.items()]

    @property
    def is_large(self) -> bool:
        """Whether a copy of what is held is too much."""
        return sum(memory.bytes for memory in self._held()) > MOST_COPIED_BYTES

    def _held(self) -> list[Bytes]:
        return [m for m in (self._shared, self._local, *(b for _, b in self._global)) if m is not None]

    def fork(self, cells: Registers, recorder: Counter) -> MemorySteps:
        """The same memories, of which a change changes nothing here."""
        other = copy.copy(self)
        other._cells, other._recorder = cells, recorder
        other._shared, other._local = copy.deepcopy(self._shared), copy.deepcopy(self._local)
        other._writers, other._global = copy.deepcopy(self._writers), copy.deepcopy(self._global)
        return other

    def holds_like(self, other: MemorySteps) -> bool:
        """Whether the memories hold the same, and what warps may rely on is the same."""
        same = all(a.same(b) for a, b in zip(self._held(), other._held(), strict=True))
        if self._writers is None or other._writers is None:
            return same
        return same and self._writers.same(other._writers)

    def merge(self, one: MemorySteps, other: MemorySteps) -> None:
        """What is held after either of two ways that began here: what differs between them is unknown."""
        for mine, first, second in zip(self._held(), one._held(), other._held(), strict=True):
            mine.merge(first, second)
        if self._writers is not None and one._writers is not None and other._writers is not None:
            self._writers.merge(one._writers, other._writers)

    def met(self, block: int, warps: IntArray) -> None:
        """Warps of a block waited for each other."""
        if self._writers is not None:
            self._writers.met(block, warps)

    def lose(self, group: Group) -> None:
        """What the blocks of a group hold in shared memory is unknown."""
        for block in np.unique(group.rows // self._cells.warps).tolist() if self._shared is not None else ():
            assert self._shared is not None
            self._shared.hide(block, 0, self._size)

    def forget(self, group: Group, spaces: frozenset[str]) -> None:
        """What these memories hold, of local memory that of the group's lanes, becomes unknown."""
        if "local" in spaces and self._local is not None:
            self._local.hide((group.rows[:, None] * 32 + np.arange(32))[group.lanes], 0, self._local.size)
        if "global" in spaces:
            for _, buffer in self._global:
                buffer.hide(0, 0, buffer.size)

    def execute(
        self,
        group: Group,
        index: int,
        step: Step,
        lanes: Bools,
        unsure: Bools | None,
        maybe: Bools | None = None,
    ) -> None:
        """One memory instruction of a group.

        Args:
            group, index, step: who does what.
            lanes, unsure: whose guard is true, and whose is not known.
            maybe: lanes of which it is not known whether they came here.
        """
        action = step.action
        assert isinstance(action, Memory)
        place = self._place(group, step, action)
        space: str = action.space
        if space == "generic":
            space, place, here = self._where(group, index, place, lanes, unsure)
            if not (here | ~lanes).all():
                # The other lanes reach other memory, of which nothing is known.
                self._forget(group, step, lanes, unsure)
                rows = (here & lanes).any(axis=1)
                group = Group(group.at, group.rows[rows], (group.lanes & here)[rows])
                place = self._place(group, step, action)
                place = made(place.bits, place.unknown, 32)
                lanes, unsure = (lanes & here)[rows], None if unsure is None else (unsure & here)[rows]
                maybe = None if maybe is None else maybe[rows]
        address = place.bits.astype(np.int64)
        if space != "constant":
            address = np.broadcast_to(address, lanes.shape)
        one = _Access(group, index, step, action, space, address, lanes, unsure, whole(place), maybe)
        if space == "shared":
            self._tell(one)
        if not self._holds(space):
            self._forget(group, step, lanes, unsure)
        elif action.kind in ("load", "ldmatrix"):
            self._load(one)
        else:
            self._change(one)

    def _place(self, group: Group, step: Step, action: Memory) -> Value:
        parts = [self._cells.read(group, source) for source in step.sources[: action.places]]
        return parts[0] if action.place is None else action.place(*parts)

    def _tell(self, one: _Access) -> None:
        """Let the counter know, and say what is not known of it."""
        lanes, unsure, action, told = one.lanes, one.unsure, one.action, self._recorder
        named = self._cells.named(one.index)
        sure, perhaps = lanes, unsure
        if one.maybe is not None and (lanes & one.maybe).any():
            late = lanes & one.maybe
            sure, perhaps = lanes & ~one.maybe, late if unsure is None else unsure | late
        nowhere = one.nowhere
        told.access(one.index, one.group.rows, one.address, sure, perhaps, nowhere)
        if action.operation is not None and (nowhere is not None or unsure is not None):
            what = "the address of" if nowhere is not None else "which lanes execute"
            told.uncertain(one.index, f"{what} {named} is not known")
        addressing = one.sure
        if action.operation is not None and action.operation.matrices:
            addressing = addressing & (np.arange(32) < 8 * action.operation.matrices)
        used = one.address[addressing]
        if used.size and int(np.bitwise_or.reduce(used)) & (action.width_bytes - 1):
            told.uncertain(one.index, f"{named} has a misaligned address")
        if used.size:
            check_reach(named, int(used.max()), action.width_bytes, self._end)

    def _holds(self, space: str) -> bool:
        match space:
            case "shared":
                return self._shared is not None
            case "local":
                return self._local is not None
            case "global":
                return bool(self._global) and "global" in self._kept
        return True

    def _rows(self, one: _Access) -> IntArray:
        """Rows of the memory that each lane of the group uses."""
        match one.space:
            case "shared":
                return (one.group.rows // self._cells.warps)[:, None]
            case "local":
                return one.group.rows[:, None] * 32 + np.arange(32)
        return np.zeros((1, 1), np.int64)

    def _where(
        self, group: Group, index: int, place: Value, lanes: Bools, unsure: Bools | None
    ) -> tuple[str, Value, Bools]:
        """Which memory generic addresses are in, the addresses there, and the lanes that use it.

        A warp whose lanes use several memories counts with those in shared memory.
        """
        some = lanes if unsure is None else lanes | unsure
        word = np.broadcast_to(place.bits >> np.uint64(32), lanes.shape)
        if place.unknown is not None:
            hidden = np.broadcast_to(place.unknown >> np.uint64(32), lanes.shape) != 0
            if (hidden & some).any():
                named = self._cells.named(index)
                self._recorder.uncertain(index, f"whether {named} reaches shared memory is not known")
                return "unknown", place, lanes
        used = np.unique(word[some]).tolist()
        low = made(place.bits, place.unknown, 32)
        if SHARED_WINDOW in used:
            here = word == SHARED_WINDOW
            if (some & here).any(axis=1)[(some & ~here).any(axis=1)].any():
                named = self._cells.named(index)
                self._recorder.uncertain(index, f"lanes of a warp reach shared and other memory in {named}")
            return "shared", low, here
        return (
            ("local" if used == [LOCAL_WINDOW] else "global"),
            (low if used == [LOCAL_WINDOW] else place),
            some,
        )

    def _forget(self, group: Group, step: Step, lanes: Bools, unsure: Bools | None) -> None:
        for cell in step.dests:
            self._cells.write(group, cell, unknown(64), lanes, unsure)

    def _load(self, one: _Access) -> None:
        action = one.action
        if action.kind == "ldmatrix" or one.space not in ("shared", "local", "constant", "global"):
            self._forget(one.group, one.step, one.lanes, one.unsure)
            return
        width = min(action.unit_bytes, action.width_bytes)
        everything = mask(8 * action.unit_bytes)
        for k, cell in enumerate(one.step.dests):
            value = self._loaded(one, one.address + k * action.unit_bytes, width)
            if action.signed and width < action.unit_bytes:
                value = extend(value, 8 * width, 8 * action.unit_bytes)
            if one.hidden is not None:
                before = np.uint64(0) if value.unknown is None else value.unknown
                hidden = np.where(one.hidden, everything, before)
                value = made(value.bits, hidden, 8 * action.unit_bytes)
            self._cells.write(one.group, cell, value, one.lanes, one.unsure)

    def _loaded(self, one: _Access, address: IntArray, width: int) -> Value:
        row = self._rows(one)
        match one.space:
            case "shared":
                assert self._shared is not None
                value = self._shared.load(row, address, width)
                late = self._late(one, address, width)
                if late.any():
                    before = np.uint64(0) if value.unknown is None else value.unknown
                    value = made(value.bits, np.where(late, mask(8 * width), before), 8 * width)
                return value
            case "local":
                assert self._local is not None
                return self._local.load(row, address, width)
            case "constant":
                bank = self._cells.banks.get(one.action.bank)
                return bank.load(row, address, width) if bank is not None else unknown(8 * width)
        value = unknown(8 * width)
        for base, buffer in self._global:
            here = buffer.inside(address - base, width)
            if here.any():
                found = buffer.load(row, address - base, width)
                before, now = (np.uint64(0) if v.unknown is None else v.unknown for v in (value, found))
                value = made(np.where(here, found.bits, value.bits), np.where(here, now, before), 8 * width)
        return value

    def _late(self, one: _Access, address: IntArray, width: int) -> Bools:
        """Where another warp wrote shared memory and nobody waited for it since."""
        if self._writers is None:
            return np.zeros(address.shape, bool)
        warps = self._cells.warps
        inside = np.clip(address, 0, self._size - width)
        return self._writers.unsure(one.group.rows // warps, one.group.rows % warps, inside, width)

    def _change(self, one: _Access) -> None:
        """A store, atomic or copy: where it is unknown whether or what, the bytes become unknown."""
        action, address = one.action, one.address
        memory = {"shared": self._shared, "local": self._local}.get(one.space)
        nowhere = one.nowhere
        if memory is None:
            if one.space == "global":
                self._change_global(one, one.unsure if nowhere is None else nowhere)
            self._forget(one.group, one.step, one.lanes, None)
            return
        row = self._rows(one)
        if nowhere is not None:
            # An unknown address may be any byte of the row.
            for some in np.unique(np.broadcast_to(row, one.lanes.shape)[nowhere]).tolist():
                memory.hide(some, 0, memory.size)
        if one.unsure is not None:
            for k in range(0, action.width_bytes, 8):
                memory.store(row, address + k, min(8, action.width_bytes), unknown(64), one.unsure)
            self._wrote(one, one.unsure)
        match action.kind:
            case "stmatrix":
                # Rows of matrices take bytes of other lanes' registers, which are not followed.
                assert action.operation is not None
                used = one.lanes & (np.arange(32) < 8 * action.operation.matrices)
                for k in range(2):
                    memory.store(row, address + 8 * k, 8, unknown(64), used)
            case "atomic":
                self._atomic(one, memory, row)
            case _:
                self._store(one, memory, row)

    def _store(self, one: _Access, memory: Bytes, row: IntArray) -> None:
        action, sure = one.action, one.sure
        sources = one.step.sources[action.places :] if action.kind == "store" else ()
        width = min(action.unit_bytes, action.width_bytes)
        for k in range(max(1, action.width_bytes // action.unit_bytes)):
            value = self._cells.read(one.group, sources[k]) if k < len(sources) else unknown(8 * width)
            at = one.address + k * action.unit_bytes
            torn = self._torn(one, at, width, value)
            memory.store(row, at, width, value, sure)
            if torn is not None:
                memory.store(row, at, width, unknown(8 * width), torn)
        self._wrote(one, sure)

    def _torn(self, one: _Access, address: IntArray, width: int, value: Value) -> Bools | None:
        """Where another warp wrote another value and nobody waited: which one stays is not known."""
        if one.space != "shared" or self._shared is None:
            return None
        late = one.sure & self._late(one, address, width)
        if not late.any():
            return None
        old = self._shared.load(self._rows(one), address, width)
        apart = old.bits != (value.bits & mask(8 * width))
        for either in (old, value):
            if either.unknown is not None:
                apart = apart | (either.unknown != 0)
        torn: Bools = late & apart
        return torn

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
        late = self._late(one, address, width)
        old = memory.load(row, address, width)
        crowded = _crowded(np.broadcast_to(row, address.shape), address, sure)
        if action.combine is None or (not action.commutes and (late | crowded).any()):
            memory.store(row, address, width, unknown(64), sure)
        else:
            places = np.broadcast_to(row, address.shape) * self._size + address
            left = sure.copy()
            while left.any():
                turn = _firsts(places, left)
                before = memory.load(row, address, width)
                memory.store(row, address, width, action.combine(before, *sources), turn)
                left &= ~turn
        self._wrote(one, sure)
        hidden = np.uint64(0) if old.unknown is None else old.unknown
        result = made(old.bits, np.where(late | crowded, mask(8 * width), hidden), 8 * width)
        if len(one.step.dests) == 1:
            self._cells.write(one.group, one.step.dests[0], result, sure, None)
        else:
            self._forget(one.group, one.step, sure, None)

    def _change_global(self, one: _Access, doubt: Bools | None) -> None:
        """What the kernel writes is not followed: those bytes are unknown to later loads."""
        width = one.action.width_bytes
        zero = np.zeros((1, 1), np.int64)
        for base, buffer in self._global:
            at = one.address - base
            here = one.lanes & buffer.inside(at, width)
            if doubt is not None:
                buffer.hide(0, 0, buffer.size)
            elif here.any():
                for k in range(0, width, 8):
                    buffer.store(zero, at + k, min(8, width), unknown(64), here)


def _firsts(places: IntArray, lanes: Bools) -> Bools:
    """The first lane at each place."""
    flat = np.flatnonzero(lanes)
    _, first = np.unique(places.ravel()[flat], return_index=True)
    chosen = np.zeros(lanes.size, bool)
    chosen[flat[first]] = True
    return chosen.reshape(lanes.shape)


def _crowded(rows: IntArray, address: IntArray, lanes: Bools) -> Bools:
    """Lanes that share their address with another lane of the instruction, in any warp of the block."""
    places = rows * (int(address.max()) + 1) + address
    flat = np.flatnonzero(lanes)
    _, inverse, counts = np.unique(places.ravel()[flat], return_inverse=True, return_counts=True)
    crowded = np.zeros(lanes.size, bool)
    crowded[flat] = counts[inverse] > 1
    return crowded.reshape(lanes.shape)
