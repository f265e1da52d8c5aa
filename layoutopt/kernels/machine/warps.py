"""The machine: all warps of some blocks, step by step, as arrays over warps and lanes.

The group at the lowest step goes first, so that warps stay together. Only steps that matter are executed
(`relevance`). What shared memory is asked goes to a `Counter`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final, Self

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.kernels.machine import groups as converged
from layoutopt.kernels.machine.branches import Detours
from layoutopt.kernels.machine.counts import ONE_ROUND, Counter
from layoutopt.kernels.machine.groups import Barriers, Group, Meetings
from layoutopt.kernels.machine.launch import Arguments
from layoutopt.kernels.machine.loops import Loops, TooManySteps
from layoutopt.kernels.machine.memory_steps import MemorySteps
from layoutopt.kernels.machine.registers import Registers, Stopped
from layoutopt.kernels.machine.relevance import Relevance, return_places
from layoutopt.kernels.machine.values import Bools, Value, unknown, whole
from layoutopt.kernels.machine.ways import MOST_WAYS, Turns, both_ways
from layoutopt.kernels.program import (
    Across,
    Barrier,
    Compute,
    Exit,
    Forget,
    Jump,
    Leave,
    Lose,
    Mark,
    Meet,
    Memory,
    Refused,
    Restore,
    Save,
    Step,
)

ASK_THE_CLOCK_EVERY: Final = 256


class Machine:
    """Some blocks of a launch.

    Args:
        cells: the registers of the blocks.
        relevance: which steps to execute, which memories to keep.
        given: the arguments of the launch.
        counter: who is told.
        most_steps: steps that may be executed.
        budget: the time there is.
        every_round: of loops is executed; else rounds that do the same may be counted at once.
    """

    def __init__(
        self,
        cells: Registers,
        relevance: Relevance,
        given: Arguments,
        counter: Counter,
        most_steps: int,
        budget: Budget,
        every_round: bool = False,
    ) -> None:
        self.steps_left = self._most_steps = most_steps
        # Steps that may be spent on seeing that rounds of loops do the same.
        self.trials = [most_steps]
        self.at = 0
        self.recorder = counter
        self._budget = budget
        self._cells = self.registers = cells
        self._steps = cells.program.steps
        self._next = _following(relevance.matters)
        self._detours = Detours(self._steps, relevance.kept, budget)
        self._shortcuts = relevance.shortcuts
        self._meetings = Meetings(self._cells.rows)
        self._barriers = Barriers(self._cells.blocks, self._cells.warps)
        self._ready: list[Group] = []
        self._returns = frozenset(return_places(self._steps))
        self._by_address = {step.address: k for k, step in enumerate(self._steps)}
        self.memory = MemorySteps(self._cells, counter, given, relevance.kept)
        self._loops = None if every_round or self.memory.is_large else Loops(relevance.live)
        # Lanes of which it is not known whether they came where they are.
        self.maybe: Bools = np.zeros(self._cells.live.shape, bool)
        self.turns = Turns([MOST_WAYS], {})
        # Groups that come to this step stay there.
        self.park: int | None = None
        self.parked: list[Group] = []

    def run(self) -> None:
        """Execute until every lane has exited.

        Raises:
            Stopped: it cannot be known how to go on.
            TooManySteps: the limit is reached.
            ProblemFileError: an instruction that matters is not known.
        """
        self.go_on(Group(0, np.arange(self._cells.rows), self._cells.live.copy()))

    def go_on(self, first: Group) -> None:
        """Execute until every lane has exited, one more group than there are being ready."""
        self._put(first)
        while self._ready:
            self._ready.sort(key=lambda group: group.at)
            group = self._ready.pop(0)
            until = self._ready[0].at if self._ready else len(self._steps)
            self._advance(group, until)
            if not self._ready:
                self._release()
        if self._meetings.waiting or self._barriers.waiting:
            at = min([*self._meetings.waiting, *(group.at for group in self._barriers.waiting)])
            raise Stopped(f"lanes wait for ever at {self._cells.named(at)}")

    @property
    def _parking(self) -> int | None:
        return None if self.park is None else self._next[self.park]

    @property
    def used(self) -> int:
        """Steps that were executed."""
        return self._most_steps - self.steps_left

    def alone(self) -> None:
        """Forget all groups."""
        self._ready = []
        self._meetings.alone()
        self._barriers = Barriers(self._cells.blocks, self._cells.warps)

    def fork(self, counter: Counter, loops: Loops | None, most_steps: int) -> Self:
        """A machine that stands where this one does and changes nothing of it.

        Args:
            counter: who is told.
            loops: its own.
            most_steps: it may execute.
        """
        other = copy.copy(self)
        other.steps_left = other._most_steps = most_steps
        other.recorder, other._loops = counter, loops
        other._cells = other.registers = self._cells.fork()
        other._ready = [copy.copy(group) for group in self._ready]
        other._meetings = copy.deepcopy(self._meetings)
        other._barriers = copy.deepcopy(self._barriers)
        other.memory = self.memory.fork(other._cells, counter)
        other.maybe = self.maybe.copy()
        return other

    def waits_like(self, other: Self) -> bool:
        """Whether the same lanes stand and wait at the same steps and memories hold the same."""
        return self._standing() == other._standing() and self.memory.holds_like(other.memory)

    def _standing(self) -> tuple[object, ...]:
        groups = sorted((g.at, g.rows.tobytes(), g.lanes.tobytes()) for g in self._ready)
        waiting = (self._meetings.state(), self._barriers.state())
        return (groups, self._cells.live.tobytes(), *waiting)

    def mattering(self, live: Sequence[frozenset[str]], at: int) -> frozenset[str]:
        """Cells that matter where a group stands that is at a step, and where the others stand."""
        places = {at, *(group.at for group in (*self._ready, *self._barriers.waiting))}
        return frozenset().union(*(live[place] for place in places | self._meetings.waiting.keys()))

    def _put(self, group: Group | None) -> None:
        if group is None:
            return
        if self._next[group.at] == self._parking:
            self.parked.append(group)
            return
        group.at = self._next[group.at]
        converged.joined(self._ready, group)

    def _release(self) -> None:
        """Let those go on for whom everybody has come."""
        for group in self._meetings.complete(self._cells.live):
            self._put(group)
        for group, met in self._barriers.complete(self._cells.live):
            for block, warps in met:
                self.memory.met(block, warps)
                self.recorder.met(block, warps)
            self._put(group)

    def _advance(self, group: Group, until: int) -> None:
        """Execute a group up to a step where others stand, or until it parts, waits or ends."""
        group.full = len(group.rows) == self._cells.rows and bool((group.lanes | ~self._cells.live).all())
        at, park = group.at, self._parking
        while at < len(self._steps):
            if self.steps_left <= 0:
                raise TooManySteps(self._cells.named(at))
            self.steps_left -= 1
            if self.steps_left % ASK_THE_CLOCK_EVERY == 0:
                self._budget.check()
            step = self._steps[at]
            self.at = group.at = at
            match step.action:
                case Compute() | Across() | Forget():
                    self._compute(group, step)
                case Memory():
                    lanes, unsure = self._cells.taking(group, step)
                    maybe = self.maybe[group.rows] if self.maybe.any() else None
                    self.memory.execute(group, at, step, lanes, unsure, maybe)
                case Lose():
                    self.memory.lose(group)
                case Save(name):
                    self._save(group, step, name)
                case Refused(what):
                    raise ProblemFileError("", what)
                case _:
                    following = self._control(group, step)
                    if following is None:
                        return
                    if following <= at and self._loops is not None:
                        self._loops.back(self, group, following)
                    at = self._next[following]
                    if at >= until or at == park:
                        break
                    continue
            at = self._next[at + 1]
            if at >= until or at == park:
                break
        if at < len(self._steps):
            group.at = at
            self._put(group)
        else:
            raise Stopped("the code ends without EXIT")

    def _compute(self, group: Group, step: Step) -> None:
        lanes, unsure = self._cells.taking(group, step)
        if not lanes.any() and unsure is None and lanes is not group.lanes:
            return
        match step.action:
            case Compute(function):
                results = function(*(self._cells.read(group, source) for source in step.sources))
            case Across(function):
                taking = lanes if unsure is None else lanes | unsure
                results = function(taking, *(self._cells.read(group, source) for source in step.sources))
                if unsure is not None:
                    results = tuple(unknown(64) for _ in results)
            case Forget(why, counts=True):
                self.recorder.uncertain(group.at, f"{why}; what it does is not counted")
                results = tuple(unknown(64) for _ in step.dests)
            case _:
                results = tuple(unknown(64) for _ in step.dests)
        for cell, value in zip(step.dests, results, strict=True):
            self._cells.write(group, cell, value, lanes, unsure)

    def _save(self, group: Group, step: Step, name: str) -> None:
        lanes, _ = self._cells.taking(group, step)
        saved = self._meetings.saved(name, group)
        self._meetings.restore(name, Group(group.at, group.rows, lanes), np.zeros((1, 1), np.uint64))
        for cell in step.dests:
            self._cells.write(group, cell, Value(saved), lanes, None)

    def _control(self, group: Group, step: Step) -> int | None:
        """The step after a step of control where the whole group goes on, else None."""
        at = group.at
        if at in self._shortcuts:
            return self._shortcuts[at]
        lanes, unsure = self._cells.taking(group, step)
        action = step.action
        if unsure is not None and isinstance(action, Exit):
            why = f"whether {self._cells.named(at)} is executed depends on an unknown value"
            self.recorder.uncertain(at, f"{why}: lanes that may have ended are counted as such")
            self.maybe[group.rows] |= unsure
        elif unsure is not None and not isinstance(action, Jump):
            raise Stopped(f"whether {self._cells.named(at)} is executed depends on an unknown value")
        if not lanes.any() and not isinstance(action, Jump):
            return at + 1
        match action:
            case Jump():
                return self._jump(group, step, lanes, unsure)
            case Exit():
                self._exit(group, lanes)
                self._put(converged.part(group, group.lanes & ~lanes, at + 1))
                return None
            case Mark(name):
                self._meetings.mark(name, Group(at, group.rows, lanes))
            case Restore(name):
                whom = self._cells.number(group, step.sources[0], lanes).astype(np.uint64)
                self._meetings.restore(name, Group(at, group.rows, lanes), whom)
            case Leave(name):
                self._meetings.leave(name, Group(at, group.rows, lanes))
                self._release()
            case Meet(name):
                return self._meet(group, step, name, lanes)
            case Barrier():
                self._arrive(group, step, action, lanes)
                self._put(converged.part(group, group.lanes & ~lanes, at + 1))
                self._release()
                return None
        return at + 1

    def _meet(self, group: Group, step: Step, name: str | None, lanes: Bools) -> int | None:
        here = converged.part(group, lanes, group.at)
        assert here is not None
        if name is not None:
            whom = self._meetings.saved(name, here)
        else:
            asked = self._cells.number(group, step.sources[0], lanes)
            whom = asked[lanes.any(axis=1)].astype(np.uint64)
        passes = self._meetings.arrive(here, name, whom, self._cells.live)
        if passes and lanes is group.lanes:
            return group.at + 1
        if passes:
            here.at += 1
            self._put(here)
        self._put(converged.part(group, group.lanes & ~lanes, group.at + 1))
        self._release()
        return None

    def _exit(self, group: Group, lanes: Bools) -> None:
        self._cells.live[group.rows] &= ~lanes
        self._release()

    def _arrive(self, group: Group, step: Step, action: Barrier, lanes: Bools) -> None:
        numbers, counts = np.zeros(len(group.rows), np.int64), np.full(len(group.rows), -1)
        first = lanes.argmax(axis=1)[:, None]
        for k, source in enumerate(step.sources):
            column = np.take_along_axis(self._cells.number(group, source, lanes), first, axis=1)[:, 0]
            numbers, counts = (column, counts) if k == 0 else (numbers, column)
        for number, count in {*zip(numbers.tolist(), counts.tolist(), strict=True)}:
            here = lanes & ((numbers == number) & (counts == count))[:, None]
            some = converged.part(group, here, group.at)
            if some is None:
                continue
            self._barriers.arrive(some, int(number), None if count < 0 else int(count), action.waits)
            if not action.waits:
                self._put(Group(group.at + 1, some.rows, some.lanes))

    def _jump(self, group: Group, step: Step, lanes: Bools, unsure: Bools | None) -> int | None:
        action = step.action
        assert isinstance(action, Jump)
        at = group.at
        if action.target is None:
            return self._return(group, step, lanes)
        if action.none_left or action.all_there:
            masks = self._cells.number(group, step.sources[0], lanes)
            whole_group = converged.masks(group.lanes) == masks.astype(np.uint64)
            lanes = lanes & (whole_group == action.all_there)
        else:
            asked = tuple(self._cells.read(group, source) for source in step.sources)
            for value in asked if action.condition is None else action.condition(*asked):
                hidden = whole(value)
                if hidden is not None:
                    maybe = (lanes if unsure is None else lanes | unsure) & hidden
                    unsure = maybe if maybe.any() or unsure is not None else None
                    lanes = lanes & ~hidden
                lanes = lanes & (value.bits != 0)
        if action.together and unsure is None:
            lanes = group.lanes & lanes.any(axis=1, keepdims=True)
        if unsure is not None and unsure.any():
            following = self._unknown(group, action.target, lanes & ~unsure, unsure)
            if following is None or following != at:
                return following
            lanes = (lanes & ~unsure) | unsure if not self.turns.taken[at] else lanes & ~unsure
        stay = group.lanes & ~lanes
        if not lanes.any():
            return at + 1
        if not stay.any():
            return action.target
        self._put(converged.part(group, stay, at + 1))
        self._put(converged.part(group, lanes, action.target))
        return None

    def _unknown(self, group: Group, target: int, lanes: Bools, unsure: Bools) -> int | None:
        """A branch on an unknown value: where all lanes go on together, None where they do not.

        If nothing between matters, that is where its ways meet; else both ways are followed. The branch
        itself says that it is being followed: then those that came back to it leave the other way.
        """
        at = group.at
        detour = self._detours.around(at, together=bool((group.lanes.sum(axis=1) == 1).all()))
        if detour is not None:
            for cell in detour.cells:
                self._cells.write(group, cell, unknown(64), group.lanes, None)
            self.memory.forget(group, detour.memories)
            return detour.meet
        why = f"{self._cells.named(at)} depends on an unknown value"
        if at in self.turns.taken:
            self.recorder.uncertain(at, f"{why}: {ONE_ROUND}")
            return at
        meet = self._detours.meet(at)
        self._put(both_ways(self, group, target, lanes, unsure, meet, why))
        self._release()
        return None

    def _return(self, group: Group, step: Step, lanes: Bools) -> int | None:
        """Go where the source says, each group of lanes with one address together."""
        parts = [self._cells.number(group, source, lanes) for source in step.sources]
        addresses = sum(parts[1:], start=parts[0]) & 0xFFFFFFFF
        assert isinstance(step.action, Jump)
        places = self._returns if step.action.places is None else frozenset(step.action.places)
        self._put(converged.part(group, group.lanes & ~lanes, group.at + 1))
        for address in np.unique(addresses[lanes]).tolist():
            if self._by_address.get(address) not in places:
                raise Stopped(f"{self._cells.named(group.at)} leaves the kernel")
            here = lanes & (addresses == address)
            self._put(converged.part(group, here, self._by_address[address]))
        return None


def _following(matters: Sequence[bool]) -> list[int]:
    """For each index, and the end, the first step from there on that matters."""
    found = [len(matters)] * (len(matters) + 1)
    for k in range(len(matters) - 1, -1, -1):
        found[k] = k if matters[k] else found[k + 1]
    return found
