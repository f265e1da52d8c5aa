"""What loads, stores, atomics and copies do: who is told, what registers and memories hold afterwards."""

from __future__ import annotations

import copy
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
        parts = [self._cells.read(group, source) for source in step.sources[: action.places]]
        place = parts[0] if action.place is None else action.place(*parts)
        space: str = action.space
        if space == "generic":
            space, place, here = self._where(group, index, place, lanes, unsure)
            if not (here | ~lanes).all():
                # The other lanes reach other memory, of which nothing is known.
                self._forget(group, step, lanes, unsure)
                rows = (here & lanes).any(axis=1)
                group = Group(group.at, group.rows[rows], (group.lanes & here)[rows])
                parts = [self._cells.read(group, source) for source in step.sources[: action.places]]
                place = parts[0] if action.place is None else action.place(*parts)
                place = made(place.bits, place.unknown, 32)
                lanes, unsure = (lanes & here)[rows], None if unsure is None else (unsure & here)[rows]
                maybe = None if maybe is None else maybe[rows]
        hidden = whole(place)
        nowhere = None if hidden is None or not (lanes & hidden).any() else lanes & hidden
        address = place.bits.astype(np.int64)
        if space != "constant":
            address = np.broadcast_to(address, lanes.shape)
        if space == "shared":
            self._tell(group, index, action, address, lanes, unsure, nowhere, maybe)
        if not self._holds(space):
            self._forget(group, step, lanes, unsure)
            return
        row = self._rows(group, space)
        if action.kind in ("load", "ldmatrix"):
            self._load(group, step, action, space, row, address, lanes, unsure, hidden)
        else:
            self._change(group, step, action, space, row, address, lanes, unsure, nowhere)

    def _tell(
        self,
        group: Group,
        index: int,
        action: Memory,
        address: IntArray,
        lanes: Bools,
        unsure: Bools | None,
        nowhere: Bools | None,
        maybe: Bools | None,
    ) -> None:
        told, perhaps = lanes, unsure
        if maybe is not None and (lanes & maybe).any():
            told, perhaps = lanes & ~maybe, (lanes & maybe) if unsure is None else unsure | (lanes & maybe)
        self._recorder.access(index, group.rows, address, told, perhaps, nowhere)
        if action.operation is not None and (nowhere is not None or unsure is not None):
            what = "the address of" if nowhere is not None else "which lanes execute"
            self._recorder.uncertain(index, f"{what} {self._cells.named(index)} is not known")
        sure = lanes if nowhere is None else lanes & ~nowhere
        if action.operation is not None and action.operation.matrices:
            sure = sure & (np.arange(32) < 8 * action.operation.matrices)
        used = address[sure]
        if used.size and int(np.bitwise_or.reduce(used)) & (action.width_bytes - 1):
            self._recorder.uncertain(index, f"{self._cells.named(index)} has a misaligned address")
        if used.size:
            check_reach(self._cells.named(index), int(used.max()), action.width_bytes, self._end)

    def _holds(self, space: str) -> bool:
        match space:
            case "shared":
                return self._shared is not None
            case "local":
                return self._local is not None
            case "global":
                return bool(self._global) and "global" in self._kept
        return True

    def _rows(self, group: Group, space: str) -> IntArray:
        """Rows of the memory that each lane of the group uses."""
        match space:
            case "shared":
                return (group.rows // self._cells.warps)[:, None]
            case "local":
                return group.rows[:, None] * 32 + np.arange(32)
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

    def _load(
        self,
        group: Group,
        step: Step,
        action: Memory,
        space: str,
        row: IntArray,
        address: IntArray,
        lanes: Bools,
        unsure: Bools | None,
        hidden: Bools | None,
    ) -> None:
        if action.kind == "ldmatrix" or space not in ("shared", "local", "constant", "global"):
            self._forget(group, step, lanes, unsure)
            return
        for k, cell in enumerate(step.dests):
            width = min(action.unit_bytes, action.width_bytes)
            at = address + k * action.unit_bytes
            value = self._loaded(action, space, row, at, width, group)
            if action.signed and width < action.unit_bytes:
                value = extend(value, 8 * width, 8 * action.unit_bytes)
            if hidden is not None:
                everything = mask(8 * action.unit_bytes)
                before = np.uint64(0) if value.unknown is None else value.unknown
                value = made(value.bits, np.where(hidden, everything, before), 8 * action.unit_bytes)
            self._cells.write(group, cell, value, lanes, unsure)

    def _loaded(
        self, action: Memory, space: str, row: IntArray, address: IntArray, width: int, group: Group
    ) -> Value:
        match space:
            case "shared":
                assert self._shared is not None
                assert self._writers is not None
                value = self._shared.load(row, address, width)
                inside = np.clip(address, 0, self._size - width)
                late = self._writers.unsure(row[:, 0], group.rows % self._cells.warps, inside, width)
                if late.any():
                    before = np.uint64(0) if value.unknown is None else value.unknown
                    value = made(value.bits, np.where(late, mask(8 * width), before), 8 * width)
                return value
            case "local":
                assert self._local is not None
                return self._local.load(row, address, width)
            case "constant":
                bank = self._cells.banks.get(action.bank)
                return bank.load(row, address, width) if bank is not None else unknown(8 * width)
        value = unknown(8 * width)
        for base, buffer in self._global:
            here = buffer.inside(address - base, width)
            if here.any():
                found = buffer.load(row, address - base, width)
                before, now = (np.uint64(0) if v.unknown is None else v.unknown for v in (value, found))
                value = made(np.where(here, found.bits, value.bits), np.where(here, now, before), 8 * width)
        return value

    def _change(
        self,
        group: Group,
        step: Step,
        action: Memory,
        space: str,
        row: IntArray,
        address: IntArray,
        lanes: Bools,
        unsure: Bools | None,
        nowhere: Bools | None,
    ) -> None:
        """A store, atomic or copy: where it is unknown whether or what, the bytes become unknown."""
        memory = {"shared": self._shared, "local": self._local}.get(space)
        if memory is None:
            if space == "global":
                doubt = unsure if nowhere is None else nowhere
                self._change_global(action, address, lanes, doubt)
            self._forget(group, step, lanes, None)
            return
        if nowhere is not None:
            # An unknown address may be any byte of the row.
            for one in np.unique(np.broadcast_to(row, lanes.shape)[nowhere]).tolist():
                memory.hide(one, 0, memory.size)
        if unsure is not None:
            for k in range(0, action.width_bytes, 8):
                memory.store(row, address + k, min(8, action.width_bytes), unknown(64), unsure)
            self._wrote(group, space, address, action.width_bytes, unsure)
        sure = lanes if nowhere is None else lanes & ~nowhere
        if action.kind == "stmatrix":
            self._hide_matrix(memory, row, address, action, lanes)
            return
        if action.kind == "atomic":
            self._atomic(group, step, action, memory, row, address, sure)
            return
        sources = step.sources[action.places :] if action.kind == "store" else ()
        for k in range(max(1, action.width_bytes // action.unit_bytes)):
            width = min(action.unit_bytes, action.width_bytes)
            value = self._cells.read(group, sources[k]) if k < len(sources) else unknown(8 * width)
            at = address + k * action.unit_bytes
            torn = self._torn(group, space, row, at, width, value, sure)
            memory.store(row, at, width, value, sure)
            if torn is not None:
                memory.store(row, at, width, unknown(8 * width), torn)
        self._wrote(group, space, address, action.width_bytes, sure)

    def _torn(
        self,
        group: Group,
        space: str,
        row: IntArray,
        address: IntArray,
        width: int,
        value: Value,
        sure: Bools,
    ) -> Bools | None:
        """Where another warp wrote another value and nobody waited: which one stays is not known."""
        if space != "shared" or self._writers is None:
            return None
        at = np.clip(address, 0, self._size - width)
        late = sure & self._writers.unsure(row[:, 0], group.rows % self._cells.warps, at, width)
        if not late.any():
            return None
        assert self._shared is not None
        old = self._shared.load(row, address, width)
        apart = old.bits != (value.bits & mask(8 * width))
        for one in (old, value):
            if one.unknown is not None:
                apart = apart | (one.unknown != 0)
        torn: Bools = late & apart
        return torn

    def _wrote(self, group: Group, space: str, address: IntArray, width: int, where: Bools) -> None:
        if space == "shared" and self._writers is not None:
            warps = self._cells.warps
            where = where & (address >= 0) & (address <= self._size - width)
            self._writers.wrote(group.rows // warps, group.rows % warps, address, width, where)

    def _hide_matrix(
        self, memory: Bytes, row: IntArray, address: IntArray, action: Memory, lanes: Bools
    ) -> None:
        """Rows of matrices take bytes of other lanes' registers, which are not followed."""
        assert action.operation is not None
        used = lanes & (np.arange(32) < 8 * action.operation.matrices)
        for k in range(2):
            memory.store(row, address + 8 * k, 8, unknown(64), used)

    def _atomic(
        self,
        group: Group,
        step: Step,
        action: Memory,
        memory: Bytes,
        row: IntArray,
        address: IntArray,
        sure: Bools,
    ) -> None:
        """Lanes one after another; what is returned is unknown where the order decides it."""
        width = action.width_bytes
        sources = [self._cells.read(group, source) for source in step.sources[action.places :]]
        late = (
            self._writers.unsure(
                np.broadcast_to(row, (len(group.rows), 1))[:, 0],
                group.rows % self._cells.warps,
                np.clip(address, 0, self._size - width),
                width,
            )
            if self._writers is not None
            else np.zeros(address.shape, bool)
        )
        old = memory.load(row, address, width)
        everything = mask(8 * width)
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
        self._wrote(group, "shared", address, width, sure)
        vague = late | crowded
        hidden = np.uint64(0) if old.unknown is None else old.unknown
        result = made(old.bits, np.where(vague, everything, hidden), 8 * width)
        if len(step.dests) == 1:
            self._cells.write(group, step.dests[0], result, sure, None)
        else:
            self._forget(group, step, sure, None)

    def _change_global(self, action: Memory, address: IntArray, lanes: Bools, doubt: Bools | None) -> None:
        """What the kernel writes is not followed: those bytes are unknown to later loads."""
        for base, buffer in self._global:
            if doubt is not None:
                buffer.hide(0, 0, buffer.size)
            else:
                at = address - base
                here = lanes & buffer.inside(at, action.width_bytes)
                if here.any():
                    zero = np.zeros((1, 1), np.int64)
                    for k in range(0, action.width_bytes, 8):
                        buffer.store(zero, at + k, min(8, action.width_bytes), unknown(64), here)


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
