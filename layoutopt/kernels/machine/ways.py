"""Branches on unknown values: both ways are followed to where they meet.

Each way is a machine of its own, in which only the lanes that go it are alive. Of lanes whose way is unknown
it is counted what they may do; what they have afterwards is known where both ways agree.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from layoutopt.kernels.machine import loops
from layoutopt.kernels.machine.groups import Group, part
from layoutopt.kernels.machine.loops import TooManySteps
from layoutopt.kernels.machine.memory_steps import MemorySteps
from layoutopt.kernels.machine.registers import Stopped
from layoutopt.kernels.machine.values import Bools

# Ways that an evaluation may follow, and the steps of each.
MOST_WAYS: Final = 200
MOST_STEPS: Final = 20_000


class Turns:
    """Branches that are being followed both ways, and how many ways may still be followed.

    Attributes:
        left: ways.
        taken: by index of the branch, whether it is being taken: a loop whose end is unknown comes back to
            it, and then leaves the other way.
    """

    def __init__(self, left: list[int], taken: dict[int, bool]) -> None:
        self.left, self.taken = left, taken


class Machine(loops.Machine, Protocol):
    """What following both ways needs of a machine, beside what loops need."""

    memory: MemorySteps
    maybe: Bools
    park: int | None
    parked: list[Group]
    turns: Turns

    def alone(self) -> None:
        """Forget all groups."""


def both_ways(
    machine: Machine, group: Group, target: int, taking: Bools, unsure: Bools, meet: int | None, why: str
) -> Group | None:
    """Follow both ways of a branch of a group.

    Args:
        machine: changed as after either way.
        group: stands at the branch.
        target: the step that it goes to.
        taking, unsure: lanes that go there, and those that may.
        meet: the step where both ways meet; None where they end first.
        why: what is unknown.

    Returns:
        The lanes that came to the meeting point.

    Raises:
        Stopped: this is not known to end.
    """
    machine.turns.left[0] -= 2
    if machine.turns.left[0] < 0 or machine.memory.is_large:
        raise Stopped(why)
    machine.recorder.uncertain(group.at, f"{why}: both ways are counted")
    going = taking | unsure
    staying = group.lanes & ~taking
    ways = []
    for lanes, at, taken in ((going, target, True), (staying, group.at + 1, False)):
        fork = machine.fork(machine.recorder, None, min(MOST_STEPS, machine.steps_left))
        fork.alone()
        alive = np.zeros_like(fork.registers.live)
        alive[group.rows] = lanes
        fork.registers.live &= alive
        fork.maybe[group.rows] |= unsure
        fork.park, fork.parked = meet, []
        fork.turns = Turns(machine.turns.left, {**machine.turns.taken, group.at: taken})
        first = part(group, lanes, at)
        try:
            if first is not None:
                fork.go_on(first)
        except TooManySteps:
            raise Stopped(why) from None
        finally:
            machine.steps_left -= fork.used
        ways.append((fork, alive))
    return _merged(machine, ways[0], ways[1], meet)


def _merged(
    machine: Machine, one: tuple[Machine, Bools], other: tuple[Machine, Bools], meet: int | None
) -> Group | None:
    (first, going), (second, staying) = one, other
    came = []
    for fork in (first, second):
        lanes = np.zeros_like(going)
        for group in fork.parked:
            lanes[group.rows] |= group.lanes
        came.append(lanes)
    machine.registers.merge(first.registers, second.registers, going, staying)
    machine.memory.merge(first.memory, second.memory)
    everybody = came[0] | came[1]
    machine.registers.live &= ~((going | staying) & ~everybody)
    machine.maybe |= going & staying & (came[0] ^ came[1])
    rows = np.flatnonzero(everybody.any(axis=1))
    return None if meet is None or not rows.size else Group(meet, rows, everybody[rows])
