"""The machine: all warps of some blocks, step by step, as arrays over warps and lanes.

The group at the lowest step goes first, so that warps stay together. Only steps that matter are executed
(`relevance`). What shared memory is asked goes to an `Evaluation`.

Of a branch on an unknown value both ways are followed to where they meet. Each way is a machine of its own,
in which only the lanes that go it are alive. Of lanes whose way is unknown it is counted what they may do;
what they have afterwards is known where both ways agree.
"""

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import checkpoint
from layoutopt.kernels.machine import groups as converged
from layoutopt.kernels.machine.counts import ONE_ROUND, Evaluation
from layoutopt.kernels.machine.groups import NOBODY, Barriers, Group, Meetings
from layoutopt.kernels.machine.launch import Arguments
from layoutopt.kernels.machine.memory_steps import MemorySteps
from layoutopt.kernels.machine.registers import Registers, Stopped, in_rows
from layoutopt.kernels.machine.relevance import Relevance
from layoutopt.kernels.machine.values import ZERO, Bools, Value, mask_of, unknown
from layoutopt.kernels.program import Barrier, Compute, Exit, Forget, Jump, Memory, Reconverge, Step, read_by

ASK_THE_CLOCK_EVERY: Final = 256
# Ways that an evaluation may follow, and the steps of each.
MOST_WAYS: Final = 200
MOST_STEPS_A_WAY: Final = 20_000
# Steps that may be spent on many rounds of loops side by side, of those that may be executed one by one.
_TRIALS: Final = 4


class TooManySteps(Exception):
    """More steps than allowed; the argument is the step that was to be executed, for people."""


class Part(NamedTuple):
    """What is executed of a program."""

    steps: Sequence[Step]  # all of them
    matters: Sequence[bool]  # one a step
    stays: Mapping[int, bool]  # by index of a branch, whether lanes jump there of which it is not known


class Machine:
    """Some blocks of a launch.

    Args:
        registers: of the blocks.
        relevance: which steps to execute, which memories to keep.
        given: the arguments of the launch.
        counter: who is told.
        most_steps: steps that may be executed.

    Attributes:
        back: called where a whole group goes back to where a round of a loop begins; None for nobody.
        maybe: bool, shape (rows, 32): lanes of which it is not known whether they came where they are.
        trials: steps that may be spent on rounds of loops side by side.
        at: the step that is executed.
    """

    def __init__(
        self,
        registers: Registers,
        relevance: Relevance,
        given: Arguments,
        counter: Evaluation,
        most_steps: int,
        follows_global: bool = False,
    ) -> None:
        self.issued = 0  # warp instructions of groups that stood together
        self.steps_left = self._most_steps = most_steps
        self.trials = _TRIALS * most_steps
        self.at = 0
        self.back: Callable[[Machine, Group, int], None] | None = None
        self.recorder, self.registers = counter, registers
        self._steps: Sequence[Step] = relevance.steps
        self._next = _following(relevance.matters)
        self._flow = relevance.flow
        self._kept = relevance.kept
        self._alone()
        self._by_address = {step.address: k for k, step in enumerate(registers.program.steps)}
        self.memory = MemorySteps(registers, counter, given, relevance.kept, follows_global)
        self.maybe: Bools = np.zeros(registers.live.shape, bool)
        # Ways that may still be followed; by index of a branch of which one is being followed, whether it is
        # the one that jumps: a loop whose end is unknown comes back to it, and then leaves the other way.
        self._ways = [MOST_WAYS]
        self._turns: dict[int, bool] = {}
        # By index of a branch, whether lanes jump of which it is not known.
        self._stays: Mapping[int, bool] = {}

    def run(self) -> None:
        """Execute until every lane has exited."""
        self._put(Group(0, np.arange(self.registers.rows), self.registers.live.copy()))
        self.go_on()

    def go_on(self) -> None:
        """Execute until nobody is ready any more."""
        while self._ready:
            self._ready.sort(key=lambda group: group.at)
            group = self._ready.pop(0)
            until = self._ready[0].at if self._ready else len(self._steps)
            self._advance(group, until)
            if not self._ready:
                self._release()
        waiting = [at for at, _ in self._meetings.waiting] + [group.at for group in self._barriers.waiting]
        if waiting:
            raise Stopped(f"lanes wait for ever at {self.registers.named(min(waiting))}")

    @property
    def used(self) -> int:
        """Steps that were executed."""
        return self._most_steps - self.steps_left

    def _copy(self, registers: Registers, memory: MemorySteps, most_steps: int) -> Self:
        """A machine of which a change changes nothing here, where nobody is ready or waits."""
        other = copy.copy(self)
        other.back, other.registers, other.memory = None, registers, memory
        other.steps_left = other._most_steps = most_steps
        other._alone()
        return other

    def _alone(self) -> None:
        self._ready: list[Group] = []
        # Groups that come to this step stay there.
        self._park: int | None = None
        self._parked: list[Group] = []
        self._meetings = Meetings(self.registers.rows, {})
        self._barriers = Barriers(self.registers.blocks, self.registers.warps, {})

    def stands_whole(self, group: Group) -> bool:
        """Whether a group is all lanes of some blocks, and none of these came to a barrier before."""
        warps, live = self.registers.warps, self.registers.live
        blocks = np.unique(group.rows // warps)
        every = (blocks[:, None] * warps + np.arange(warps)).ravel()
        held = np.zeros_like(live[every])
        held[np.isin(every, group.rows)] = group.lanes
        came = self._barriers.arrived[every].any() or self.maybe[every].any()
        return len(every) == len(group.rows) and not came and bool((held | ~live[every]).all())

    @property
    def left(self) -> int:
        """Steps that may still be executed, in trials or not."""
        return self.steps_left + self.trials

    def rounds(
        self,
        header: int,
        period: int,
        registers: Registers,
        counter: Evaluation,
        most_steps: int,
        part: Part,
        back: "Callable[[Machine, Group, int], None] | None" = None,
    ) -> Bools:
        """Execute rounds of a loop, by all lanes together.

        Args:
            header: where a round begins.
            period: rounds to go.
            registers: of those who go; afterwards what they have when they come back.
            counter: who is told.
            most_steps: it may take.
            part: what is executed.
            back: called where a round of a loop inside of it begins.

        Returns:
            Rows of which all lanes came back, to wait for the same.
        """
        other = self._copy(registers, self.memory.read_only(registers, counter), most_steps)
        other.recorder, other.back, other.trials = counter, back, most_steps
        other._steps, other._next, other._stays = part.steps, _following(part.matters), part.stays
        live = other.registers.live.copy()
        other.maybe = np.zeros_like(live)
        other._park, came = header, live
        apart = np.zeros(len(live), bool)
        for _ in range(period):
            rows = np.flatnonzero(came.any(axis=1))
            if not rows.size:
                break
            other._ready, other._parked = [Group(self._next[header], rows, came[rows])], []
            with contextlib.suppress(Stopped, TooManySteps, ProblemFileError):
                other.go_on()
            came = np.zeros_like(live)
            for group in other._parked:
                apart[group.rows] |= came[group.rows].any(axis=1)  # in several groups
                came[group.rows] |= group.lanes
        self.trials -= other.used + most_steps - other.trials
        whole: Bools = (came == live).all(axis=1) & ~apart
        return whole & ~other.maybe.any(axis=1) & ~other._barriers.arrived

    def _put(self, group: Group | None) -> None:
        if group is None:
            return
        if self._park is not None and self._next[group.at] == self._next[self._park]:
            self._parked.append(group)
            return
        group.at = self._next[group.at]
        converged.joined(self._ready, group)

    def _release(self) -> None:
        """Let those go on for whom everybody has come."""
        for group in self._meetings.complete(self.registers.live):
            self._put(group)
        for groups, met, barrier, lanes in self._barriers.complete(self.registers.live):
            self.memory.met(met)
            self.recorder.met(met)
            for group in groups:
                action = self._steps[group.at - 1].action
                if isinstance(action, Barrier) and action.reduces:
                    found = in_rows(barrier.reduced(action.reduces, lanes), group.rows)
                    self.registers.write(group, "$barrier", found, group.lanes)
                self._put(group)

    def _advance(self, group: Group, until: int) -> None:
        """Execute a group up to a step where others stand, or until it parts, waits or ends."""
        live = self.registers.live
        group.full = len(group.rows) == self.registers.rows and bool((group.lanes | ~live).all())
        at, park = group.at, None if self._park is None else self._next[self._park]
        while at < len(self._steps):
            if self.steps_left <= 0:
                raise TooManySteps(self.registers.named(at))
            self.steps_left -= 1
            self.issued += len(group.rows)
            if self.steps_left % ASK_THE_CLOCK_EVERY == 0:
                checkpoint()
            self.at = group.at = at
            following = self._execute(group, self._steps[at])
            if following is None:
                return
            if following <= at:
                self._begin_round(group, following)
            at = self._next[following]
            if at >= until or at == park:
                break
        if at >= len(self._steps):
            raise Stopped("the code ends without EXIT")
        group.at = at
        self._put(group)

    def _execute(self, group: Group, step: Step) -> int | None:
        """The step after this one where the whole group goes on, else None."""
        at, action = group.at, step.action
        lanes, unsure = self.registers.taking(group, step)
        if isinstance(action, Jump):
            return self._branch(group, step, lanes, unsure)
        if lanes is not group.lanes and unsure is NOBODY and not lanes.any():
            if isinstance(action, Memory):
                self.memory.execute(group, step, lanes)
            return at + 1
        match action:
            case Compute() | Forget():
                self._compute(group, step, lanes, unsure)
            case Memory():
                maybe = self.maybe[group.rows] if self.maybe.any() else NOBODY
                self.memory.execute(group, step, lanes, unsure, maybe)
            case Exit():
                return self._exit(group, lanes, unsure)
            case _ if unsure is not NOBODY:
                raise Stopped(f"whether {step.named} is executed depends on an unknown value")
            case Barrier():
                return self._arrive_at_barrier(group, step, action, lanes)
            case Reconverge():
                return self._reconverge(group, step, action, lanes)
        return at + 1

    def _compute(self, group: Group, step: Step, lanes: Bools, unsure: Bools) -> None:
        """Write what a step computes, or unknown values, in these lanes and those of which it is unsure.

        What other lanes take part in is not known where it is unsure who does.
        """
        results: Sequence[Value] = [unknown(64)] * len(step.dests)
        alike = NOBODY
        match step.action:
            case Compute(function, across):
                given = [self.registers.read(group, source) for source in step.sources]
                if not across:
                    results = function(*given)
                    if not all(value.sure for value in results):
                        alike = self.registers.alike(group, read_by(step.sources))
                elif unsure is NOBODY:
                    results = function(lanes, *given)
            case Forget(why, counts, fills, stand_in):
                if counts:
                    self.recorder.uncertain(group.at, f"{step.named} {why}; what it does is not counted")
                if fills:
                    self.memory.forget(group, frozenset({"shared"}))
                if stand_in is not None and unsure is NOBODY:
                    results = stand_in(lanes, *(self.registers.read(group, one) for one in step.sources))
        for cell, value in zip(step.dests, results, strict=True):
            self.registers.write(group, cell, value, lanes, unsure, alike)

    def _exit(self, group: Group, lanes: Bools, unsure: Bools) -> int | None:
        if unsure is not NOBODY:
            if self._flow.matters_after(group.at, self._kept):
                why = f"whether {self.registers.named(group.at)} is executed depends on an unknown value"
                self.recorder.uncertain(group.at, f"{why}: lanes that may have ended are counted as such")
            self.maybe[group.rows] |= unsure
        if not lanes.any():
            return group.at + 1
        self.registers.live[group.rows] &= ~lanes
        self._release()
        self._put(converged.part(group, group.lanes & ~lanes, group.at + 1))
        return None

    def _reconverge(self, group: Group, step: Step, action: Reconverge, lanes: Bools) -> int | None:
        """Let these lanes wait for those of the mask in the source, or no longer be waited for."""
        (source,) = step.sources
        cell = source.cells[0] if source.cells else ""
        if action.leaves:
            everybody = Group(group.at, group.rows, np.ones_like(lanes))
            waiting_for = self.registers.read(group, source)
            without = Value(waiting_for.bits & ~mask_of(lanes), waiting_for.unknown)
            self.registers.write(everybody, cell, without, everybody.lanes)
            self._meetings.leave(cell, Group(group.at, group.rows, lanes))
            self._release()
            return group.at + 1
        asked, left = self.registers.number(group, source, lanes), lanes
        while (some := left.any(axis=1)).any():
            together = left
            if action.parts:
                first = np.take_along_axis(asked, left.argmax(axis=1)[:, None], axis=1)
                together = left & (asked == first)
            here = converged.part(group, together, group.at)
            assert here is not None
            to_meet = asked[some].astype(np.uint64)
            passes = self._meetings.arrive(here, cell, to_meet, self.registers.live)
            if passes and (together == group.lanes).all():
                return group.at + 1
            if passes:
                here.at += 1
                self._put(here)
            left = left & ~together
        self._put(converged.part(group, group.lanes & ~lanes, group.at + 1))
        self._release()
        return None

    def _arrive_at_barrier(self, group: Group, step: Step, action: Barrier, lanes: Bools) -> int | None:
        """Let these lanes wait at the barriers that the first of each warp names; the others go on."""
        first = lanes.argmax(axis=1)[:, None]
        predicate, ends = ZERO, len(step.sources) - bool(action.reduces)
        if action.reduces:
            predicate = self.registers.read(group, step.sources[-1])
        asked = [self.registers.number(group, source, lanes) for source in step.sources[:ends]]
        calls = np.concatenate([np.take_along_axis(table, first, axis=1) for table in asked], axis=1)
        for call in np.unique(calls, axis=0):
            here = lanes & (calls == call).all(axis=1, keepdims=True)
            some = converged.part(group, here, group.at)
            if some is None:
                continue
            bits, hidden = (np.broadcast_to(p, lanes.shape)[here.any(axis=1)] for p in predicate[:2])
            self._barriers.arrive(some, call.tolist(), action, Value(bits, hidden))
            if not action.waits:
                self._put(Group(group.at + 1, some.rows, some.lanes))
        self._put(converged.part(group, group.lanes & ~lanes, group.at + 1))
        self._release()
        return None

    def _branch(self, group: Group, step: Step, lanes: Bools, unsure: Bools) -> int | None:
        """Send lanes to where a branch goes; the next step where the whole group goes to one.

        Args:
            lanes, unsure: whose guard is true, and whose is not known; the sources are still to be looked at.
        """
        action, at = step.action, group.at
        assert isinstance(action, Jump)
        if action.target is None:
            hidden = self.registers.read(group, step.sources[0]).unknown != 0
            decided = not action.places or not (unsure.any() or (hidden & lanes).any())
            if not decided and (meet := self._passed_over(group, step)) is not None:
                return meet
            return self._branch_to_address(group, step, lanes)
        if action.mask:
            given = self.registers.number(group, step.sources[0], lanes)
            # The guard chooses who is compared with the mask: R2UR leaves out lanes that have another one.
            whole = mask_of(lanes) == np.take_along_axis(given, lanes.argmax(axis=1)[:, None], axis=1)
            lanes = group.lanes & (whole == (action.mask == "CONV"))
        else:
            for source in step.sources:
                value = self.registers.read(group, source)
                hidden = value.unknown != 0
                unsure = (lanes | unsure) & hidden | unsure & (value.bits != 0)
                lanes = lanes & ~hidden & (value.bits != 0)
        unsure = unsure if unsure.any() else NOBODY
        if unsure is not NOBODY and at in self._stays:
            lanes, unsure = lanes | unsure if self._stays[at] else lanes, NOBODY
        if action.together and unsure is NOBODY:
            lanes = group.lanes & lanes.any(axis=1, keepdims=True)
        if unsure is not NOBODY:
            if (meet := self._passed_over(group, step)) is not None:
                return meet
            if (taken := self._turns.get(at)) is None:
                self._branch_both_ways(group, action.target, lanes, unsure)
                return None
            self.recorder.uncertain(at, f"{step.named} depends on an unknown value: {ONE_ROUND}")
            lanes = lanes if taken else lanes | unsure
        stay = group.lanes & ~lanes
        if not lanes.any():
            return at + 1
        if not stay.any():
            return action.target
        self._put(converged.part(group, stay, at + 1))
        jumping = converged.part(group, lanes, action.target)
        assert jumping is not None
        if action.target <= at:
            self._begin_round(jumping, action.target)
        self._put(jumping)
        return None

    def _passed_over(self, group: Group, step: Step) -> int | None:
        """Go on where all ways of a branch meet, what is written between unknown; None where that matters."""
        alone = group.lanes.sum(axis=1, keepdims=True) == 1
        together = alone | self.registers.alike(group, step.cells)
        detour = self._flow.around(group.at, bool(together.all()))
        if detour is None:
            return None
        for cell in detour.cells:
            self.registers.write(group, cell, unknown(64), group.lanes)
        self.memory.forget(group, detour.memories)
        return detour.meet

    def _begin_round(self, group: Group, header: int) -> None:
        if self.back is not None and header != self._park:
            self.back(self, group, header)

    def _branch_both_ways(self, group: Group, target: int, lanes: Bools, unsure: Bools) -> None:
        """Execute both ways of a branch on an unknown value up to where they meet, and merge their results.

        Args:
            group: at the branch.
            target: the step it jumps to.
            lanes, unsure: those that jump, and those that may.
        """
        at = group.at
        why = f"{self.registers.named(at)} depends on an unknown value"
        self._ways[0] -= 2
        if self._ways[0] < 0 or self.memory.is_large:
            raise Stopped(why)
        self.recorder.uncertain(at, f"{why}: both ways are counted")
        meet = self._flow.meet(at)
        ways = [
            self._way(group, begin, jumps, some, unsure, meet)
            for begin, jumps, some in ((target, True, lanes | unsure), (at + 1, False, group.lanes & ~lanes))
        ]
        self._put(self._merged(ways, meet))
        self._release()

    def _way(
        self, group: Group, begin: int, jumps: bool, lanes: Bools, unsure: Bools, meet: int | None
    ) -> tuple[Self, Bools]:
        """A machine that has followed one way of a branch, and the lanes of all rows that may go it.

        Args:
            group: stands at the branch; of its lanes, these may go, and of some of them it is `unsure`.
            begin: the first step of the way, which is the one that `jumps` or not.
            meet: the step where both ways meet; None where they end first.
        """
        registers = self.registers.fork()
        memory = self.memory.fork(registers)
        fork = self._copy(registers, memory, min(MOST_STEPS_A_WAY, self.steps_left))
        fork.maybe = self.maybe.copy()
        alive = np.zeros_like(fork.registers.live)
        alive[group.rows] = lanes
        fork.registers.live &= alive
        fork.maybe[group.rows] |= unsure
        fork._park = meet
        fork._turns = {**self._turns, group.at: jumps}
        fork._put(converged.part(group, lanes, begin))
        try:
            fork.go_on()
        except TooManySteps:
            raise Stopped(f"{self.registers.named(group.at)} depends on an unknown value") from None
        finally:
            self.steps_left -= fork.used
        return fork, alive

    def _merged(self, ways: Sequence[tuple[Self, Bools]], meet: int | None) -> Group | None:
        """The lanes that came to where both ways meet; the machine knows what it knows after either way.

        Args:
            ways: of lanes that jump and of those that stay, as `_way`.
        """
        (first, going), (second, staying) = ways
        came = np.zeros((2, *going.shape), bool)
        for lanes, (fork, _) in zip(came, ways, strict=True):
            for group in fork._parked:
                lanes[group.rows] |= group.lanes
        self.registers.merge(first.registers, second.registers, going, staying)
        self.memory.merge(first.memory, second.memory)
        everybody = came[0] | came[1]
        self.registers.live &= ~((going | staying) & ~everybody)
        self.maybe |= going & staying & (came[0] ^ came[1])
        rows = np.flatnonzero(everybody.any(axis=1))
        return None if meet is None or not rows.size else Group(meet, rows, everybody[rows])

    def _branch_to_address(self, group: Group, step: Step, lanes: Bools) -> int | None:
        """Go where the source says, each group of lanes with one address together."""
        addresses = self.registers.number(group, step.sources[0], lanes)
        assert isinstance(step.action, Jump)
        places = self._flow.returns if step.action.places is None else step.action.places
        self._put(converged.part(group, group.lanes & ~lanes, group.at + 1))
        for address in np.unique(addresses[lanes]).tolist():
            if self._by_address.get(address) not in places:
                raise Stopped(f"{step.named} leaves the kernel")
            here = lanes & (addresses == address)
            self._put(converged.part(group, here, self._by_address[address]))
        return None


def _following(matters: Sequence[bool]) -> list[int]:
    """For each index, and the end, the first step from there on that matters."""
    found = [len(matters)] * (len(matters) + 1)
    for k in range(len(matters) - 1, -1, -1):
        found[k] = k if matters[k] else found[k + 1]
    return found
