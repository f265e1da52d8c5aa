"""What loads, stores, atomics and copies do: who is told, what registers and memories hold afterwards."""

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.groups import NOBODY, Group
from layoutopt.kernels.machine.launch import Arguments
from layoutopt.kernels.machine.memory import Bytes, check_reach
from layoutopt.kernels.machine.registers import Registers, Stopped
from layoutopt.kernels.machine.values import (
    TRUE,
    ZERO,
    Bools,
    Value,
    chosen,
    constant,
    cut,
    differ,
    either,
    equal,
    extend,
    hidden_where,
    made,
    mask,
    select,
    shift_left,
    shift_right,
    unknown,
)
from layoutopt.kernels.program import (
    CLUSTER_BITS,
    LOCAL_WINDOW,
    SHARED_WINDOW,
    STACK_BYTES,
    Memory,
    Source,
    Step,
)

# Lanes that are off may have any address: so many bytes there are to look at for them.
LEAST_BYTES: Final = 16
MOST_COPIED_BYTES: Final = 16 << 20


@dataclass(slots=True)
class _Access:
    """One memory instruction of a group."""

    # `group, step, action`: who does what
    group: Group
    step: Step
    action: Memory
    space: str  # the memory that it is
    address: IntArray  # int64, shape (rows, 32), or broadcastable to it in constant memory
    # `lanes, unsure`: whose guard is true, and whose is not known
    lanes: Bools
    unsure: Bools
    hidden: Bools  # lanes whose address is not known
    # `row, warp`: of the memory, and of its block, that each lane uses
    row: IntArray
    warp: IntArray
    memories: Sequence[tuple[int, Bytes]]  # with their first addresses, those that may be meant

    @property
    def sure(self) -> Bools:
        """Lanes that take part at a known address."""
        return self.lanes if self.hidden is NOBODY else self.lanes & ~self.hidden

    @property
    def addressing(self) -> Bools:
        """Those of them whose address counts: of matrices, the first lanes."""
        operation = self.action.operation
        if operation is None or not operation.matrices:
            return self.sure
        return self.sure & (np.arange(32) < 8 * operation.matrices)

    def half(self, matrix: int, half: int) -> tuple[IntArray, Bools]:
        """Where the half of a word that each lane has of a matrix lies, and who has one of a known row."""
        operation, lane = self.action.operation, np.arange(32)
        assert operation is not None
        first, second = 2 * (lane % 4) + half, lane // 4
        row, column = (first, second) if operation.transposed else (second, first)
        lanes = self.lanes & self.sure[:, 8 * matrix + row]
        return self.address[:, 8 * matrix + row] + 2 * column, lanes


class _Stored(NamedTuple):
    """Numbers of so many bytes that lanes store at their addresses."""

    width_bytes: int
    value: Value
    address: IntArray
    lanes: Bools


class MemorySteps:
    """The memories of the blocks of a launch.

    What they hold is only kept where something that matters is loaded from them.
    """

    def __init__(
        self,
        cells: Registers,
        recorder: Evaluation,
        given: Arguments,
        kept: frozenset[str],
        follows_global: bool = False,
    ) -> None:
        self._cells, self._recorder, self._frozen = cells, recorder, False
        self._follows_global = follows_global
        self._rows_held = cells.rows
        self._size = max(cells.program.shared_end(cells.launch.shared_bytes), LEAST_BYTES)
        self._memories: dict[str, list[tuple[int, Bytes]]] = {}
        if "shared" in kept:
            self._memories["shared"] = [(0, Bytes(cells.blocks, self._size, warps=cells.warps))]
        if "local" in kept:
            self._memories["local"] = [(0, Bytes(cells.rows * 32, STACK_BYTES))]
        if "global" in kept and given.buffers:
            self._memories["global"] = [
                (base, Bytes(1, len(data), data)) for base, data in given.buffers.items()
            ]

    @property
    def is_large(self) -> bool:
        """Whether a copy of what is held is too much."""
        return sum(memory.bytes for memory in self._held()) > MOST_COPIED_BYTES

    @property
    def holds(self) -> bool:
        """Whether contents of any memory are known."""
        return bool(self._memories)

    def global_memory(self) -> dict[int, Bytes]:
        """The buffers of the launch, by their first addresses."""
        return dict(self._memories.get("global", ()))

    def _held(self) -> list[Bytes]:
        return [memory for memories in self._memories.values() for _, memory in memories]

    def fork(self, cells: Registers) -> "MemorySteps":
        """The same memories, of which a change changes nothing here."""
        other = copy.copy(self)
        other._cells = cells
        other._memories = copy.deepcopy(self._memories)
        return other

    def read_only(self, cells: Registers, recorder: Evaluation) -> "MemorySteps":
        """The same memories, for rows of which these are copies: what changes them ends the evaluation."""
        other = copy.copy(self)
        other._cells, other._recorder, other._frozen = cells, recorder, True
        return other

    def merge(self, first: "MemorySteps", other: "MemorySteps") -> None:
        """What is held after either of two ways that began here: what differs between them is unknown."""
        for mine, a, b in zip(self._held(), first._held(), other._held(), strict=True):
            mine.merge(a, b)

    def met(self, warps: Bools) -> None:
        """These warps of each block waited for each other."""
        for memory in [] if self._frozen else self._held():
            memory.met(warps)

    def forget(self, group: Group, spaces: frozenset[str]) -> None:
        """What these memories hold becomes unknown: of the group's blocks, or local memory of its lanes."""
        for space in spaces & self._memories.keys():
            self._check_frozen()
            row = np.broadcast_to(self._row(group, space), group.lanes.shape)
            for _, memory in self._memories[space]:
                memory.hide(np.unique(row[group.lanes]))

    def _check_frozen(self) -> None:
        if self._frozen:
            raise Stopped("what other rounds may read changes")

    def execute(
        self, group: Group, step: Step, lanes: Bools, unsure: Bools = NOBODY, maybe: Bools = NOBODY
    ) -> None:
        """Execute one memory instruction of a group.

        Args:
            group, step: who does what.
            lanes, unsure: whose guard is true, and whose is not known.
            maybe: lanes of which it is not known whether they came here.
        """
        action = step.action
        assert isinstance(action, Memory)
        place = self._cells.read(group, step.sources[0])
        space: str = action.space
        if space == "generic":
            space, here = self._where(group, place, lanes | unsure)
            if action.kind == "atomic" and space != "unknown":
                elsewhere = NOBODY if space == "shared" and not action.asks else here
                self._tell_of_other_memory(group, step, lanes, unsure, maybe, ~here | elsewhere)
            if space in ("shared", "local"):
                place = made(place.bits, place.unknown, 32)
            if not (here | ~lanes).all():
                # The other lanes reach other memory, of which nothing is known: go on with these alone.
                self._forget(group, step, lanes, unsure)
                rows = (here & lanes).any(axis=1)
                group = Group(group.at, group.rows[rows], (group.lanes & here)[rows])
                place = place.each(lambda part: np.broadcast_to(part, lanes.shape)[rows])
                lanes, unsure, maybe = (
                    part if part is NOBODY else (part & here)[rows] for part in (lanes, unsure, maybe)
                )
            if space == "shared" and action.asks:
                self._forget(group, step, lanes, unsure)
                self._answer(group, step, ZERO, lanes, unsure)
                return
        if space == "shared" and self._cells.in_clusters:
            place = self._of_own_block(group, place, action.space == "shared")
        address = place.bits.astype(np.int64)
        if space != "constant":
            address = np.broadcast_to(address, lanes.shape)
        nowhere = NOBODY if place.sure else place.unknown != 0
        memories: Sequence[tuple[int, Bytes]] = self._memories.get(space, ())
        if space == "constant" and action.bank in self._cells.banks:
            memories = [(0, self._cells.banks[action.bank])]
        row, warp = self._row(group, space), (group.rows % self._cells.warps)[:, None]
        one = _Access(group, step, action, space, address, lanes, unsure, nowhere, row, warp, memories)
        if space == "shared":
            self._tell(one, maybe)
        if memories and action.kind not in ("load", "ldmatrix"):
            self._check_frozen()
            self._change(one)
        elif memories:
            (self._load if action.kind == "load" else self._load_matrices)(one)
        else:
            self._forget(group, step, lanes, unsure)
        if action.asks and space == "global":
            # NVIDIA's compiler asks for shared memory (QSPC) and loops there where the predicate is false.
            self._answer(group, step, TRUE, lanes, unsure)

    def _of_own_block(self, group: Group, place: Value, always: bool) -> Value:
        """An address of shared memory without the rank of the block; of others, what differs stays.

        Only generic instructions reach other blocks; those that `always` reach their own need no rank.
        """
        if always:
            return cut(place, CLUSTER_BITS)
        rank = self._cells.read(group, Source.cell("$ctarank"))
        return differ(place, shift_left(rank, constant(CLUSTER_BITS)), 32)

    def _answer(self, group: Group, step: Step, done: Value, lanes: Bools, unsure: Bools) -> None:
        """The predicate of an atomic says whether it was done."""
        for cell in step.dests:
            if cell.startswith("P"):
                self._cells.write(group, cell, done, lanes, unsure)

    def _row(self, group: Group, space: str) -> IntArray:
        """Rows of a memory that the lanes of a group use."""
        rows = group.rows % self._rows_held
        match space:
            case "shared":
                return (rows // self._cells.warps)[:, None]
            case "local":
                return rows[:, None] * 32 + np.arange(32)
        return np.zeros((1, 1), np.int64)

    def _tell(self, access: _Access, maybe: Bools) -> None:
        """Let the counter know, and say what is not known of it.

        Of `maybe` lanes it is not known whether they came: they may take part.
        """
        action, told, at, named = access.action, self._recorder, access.group.at, access.step.named
        nowhere = NOBODY if access.hidden is NOBODY else access.lanes & access.hidden
        lanes, unsure = access.lanes, access.unsure
        if maybe is not NOBODY and (lanes & maybe).any():
            lanes, unsure = lanes & ~maybe, (lanes & maybe) | unsure
        told.access(at, access.group.rows, access.address, lanes, unsure, nowhere)
        if action.operation is not None and (nowhere.any() or access.unsure is not NOBODY):
            what = "the address of" if nowhere.any() else "which lanes execute"
            told.uncertain(at, f"{what} {named} is not known")
        used = access.address[access.addressing]
        if used.size and int(np.bitwise_or.reduce(used)) & (action.width_bytes - 1):
            told.uncertain(at, f"{named} has a misaligned address")
        if used.size:
            cells, width_bytes = self._cells, action.width_bytes
            check_reach(named, int(used.max()), width_bytes, cells.program, cells.launch.shared_bytes)

    def _tell_of_other_memory(
        self, group: Group, step: Step, lanes: Bools, unsure: Bools, maybe: Bools, elsewhere: Bools
    ) -> None:
        """Let the counter know of warps that do a generic atomic `elsewhere` with all of their lanes."""
        some = lanes | unsure
        whole = some.any(axis=1) & (elsewhere | ~some).all(axis=1)
        sure = whole & (lanes & ~maybe).any(axis=1)
        if (whole & ~sure).any():
            self._recorder.uncertain(group.at, f"which lanes execute {step.named} is not known")
        self._recorder.passed(group.at, int(sure.sum()), int((whole & ~sure).sum()))

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
                why = f"lanes of a warp reach shared and other memory in {named}"
                self._recorder.uncertain(group.at, why)
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
        return self._cells.alike(group, step.sources[0].cells)

    def _load(self, access: _Access) -> None:
        action = access.action
        width = min(action.unit_bytes, action.width_bytes)
        alike, address = self._alike(access.group, access.step), access.address
        for k, cell in enumerate(access.step.dests):
            if not cell:
                continue
            at = address + k * action.unit_bytes
            value = _held_at(access.memories, access.row, access.warp, at, width)
            if action.signed and width < action.unit_bytes:
                value = extend(value, 8 * width, 8 * action.unit_bytes)
            value = hidden_where(access.hidden, value, 8 * action.unit_bytes)
            self._cells.write(access.group, cell, value, access.lanes, access.unsure, alike)

    def _load_matrices(self, access: _Access) -> None:
        for matrix, cell in enumerate(access.step.dests):
            value = ZERO
            for half in range(2):
                at, sure = access.half(matrix, half)
                found = _held_at(access.memories, access.row, access.warp, at, 2)
                value = either(value, shift_left(hidden_where(~sure, found, 16), constant(16 * half)))
            self._cells.write(access.group, cell, value, access.lanes, access.unsure)

    def _change(self, access: _Access) -> None:
        """A store, atomic or copy: where it is unknown whether or what, the bytes become unknown."""
        nowhere, lost = access.lanes & access.hidden, access.unsure
        # Where only the accesses of shared memory are asked for, what is written to global memory is not.
        followed = access.space != "global" or self._follows_global
        # Nor what an atomic on more than 8 bytes leaves.
        followed &= access.action.kind != "atomic" or access.action.width_bytes <= 8
        if not followed:
            lost = lost | access.addressing
        for base, memory in access.memories:
            if nowhere.any():
                # An unknown address may be any byte of the row.
                memory.hide(np.unique(np.broadcast_to(access.row, nowhere.shape)[nowhere]))
            for k in range(0, access.action.width_bytes if lost.any() else 0, 8):
                width = min(8, access.action.width_bytes)
                memory.store(access.row, access.address - base + k, width, unknown(64), lost)
            memory.wrote(access.row, access.warp, access.address, access.action.width_bytes, lost)
        if access.step.dests and (access.space == "global" or not followed):
            self._forget(access.group, access.step, access.lanes, access.unsure)
        for base, memory in access.memories if followed else ():
            here = access
            if access.space == "global":
                address = access.address - base
                inside = memory.inside(address, access.action.width_bytes)
                here = replace(access, address=address, lanes=access.lanes & inside)
            if here.lanes.any():
                (self._atomic if access.action.kind == "atomic" else self._store)(here, memory)

    def _store(self, access: _Access, memory: Bytes) -> None:
        for width, value, at, lanes in self._stored(access):
            late = lanes & memory.late(access.row, access.warp, at, width)
            if late.any():
                # Another warp wrote and nobody waited: of values that differ, which one stays is not known.
                old = memory.load(access.row, at, width)
                apart = (old.bits != (value.bits & mask(8 * width))) | (old.unknown | value.unknown != 0)
                value = hidden_where(late & apart, value, 8 * width)
            memory.store(access.row, at, width, value, lanes)
        memory.wrote(access.row, access.warp, access.address, access.action.width_bytes, access.addressing)

    def _stored(self, access: _Access) -> Iterator[_Stored]:
        """What a store, a copy or stmatrix writes: a part of at most a register at a time, of all lanes."""
        action, sources = access.action, access.step.sources[1:]
        if action.kind == "stmatrix":
            for matrix, half in itertools.product(range(len(sources)), range(2)):
                value = shift_right(self._cells.read(access.group, sources[matrix]), constant(16 * half))
                yield _Stored(2, cut(value, 16), *access.half(matrix, half))
            return
        width = min(action.unit_bytes, action.width_bytes)
        for first in range(0, action.width_bytes, width):
            if action.kind == "copy":
                value = self._copied(access, first, width)
            else:
                value = self._cells.read(access.group, sources[first // width])
            yield _Stored(width, value, access.address + first, access.sure)

    def _copied(self, access: _Access, first: int, width: int) -> Value:
        """What a copy reads from global memory."""
        if len(access.step.sources) == 1:
            return unknown(8 * width)
        place, *reads = (self._cells.read(access.group, source) for source in access.step.sources[1:])
        at = np.broadcast_to(place.bits.astype(np.int64), access.lanes.shape) + first
        memories, row = self._memories.get("global", ()), np.zeros((1, 1), np.int64)
        found = hidden_where(place.unknown != 0, _held_at(memories, row, access.warp, at, width), 8 * width)
        return select(reads[0], found, ZERO) if reads else found

    def _atomic(self, access: _Access, memory: Bytes) -> None:
        """Lanes one after another; what is returned is unknown where the order decides it."""
        action, address, sure, row = access.action, access.address, access.sure, access.row
        width = action.width_bytes
        sources = [self._cells.read(access.group, source) for source in access.step.sources[1:]]
        old = memory.load(row, address, width)
        # One number for each byte of all rows.
        places = np.broadcast_to(row, address.shape) * (memory.size + int(address.max())) + address
        firsts, crowded = _firsts(places, sure)
        open_ = memory.late(row, access.warp, address, width) | crowded
        if action.combine is None or (not action.commutes and open_.any()):
            memory.store(row, address, width, unknown(64), sure)
        else:
            left = sure  # each time round, one lane at each place
            while left.any():
                before = memory.load(row, address, width)
                memory.store(row, address, width, action.combine(before, *sources), firsts)
                left = left & ~firsts
                firsts, _ = _firsts(places, left)
        memory.wrote(row, access.warp, address, width, sure)
        if len(access.step.dests) == 1:
            if action.retried:  # it returns whether it was done
                old = equal(old, sources[0]) if sources else unknown(32)
            result = hidden_where(open_ | access.hidden, old, 8 * width)
            self._cells.write(access.group, access.step.dests[0], result, access.lanes, access.unsure)
        else:
            self._forget(access.group, access.step, access.lanes, access.unsure)


def _held_at(
    memories: Sequence[tuple[int, Bytes]], row: IntArray, warp: IntArray, at: IntArray, width: int
) -> Value:
    """Numbers of so many bytes in the memory where they are; unknown where there is none, or that is late."""
    value = unknown(8 * width)
    for base, memory in memories:
        found = memory.load(row, at - base, width)
        value = found if len(memories) == 1 else chosen(memory.inside(at - base, width), found, value)
        value = hidden_where(memory.late(row, warp, at - base, width), value, 8 * width)
    return value


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
