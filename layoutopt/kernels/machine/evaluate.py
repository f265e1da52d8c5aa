"""One launch of a program, counted: blocks that do the same are evaluated once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.kernels.machine.boxes import Box, batches, boxes
from layoutopt.kernels.machine.branches import sliced
from layoutopt.kernels.machine.counts import OPEN, Counter, Execution, Tally
from layoutopt.kernels.machine.launch import Arguments, Launch, arguments, checked
from layoutopt.kernels.machine.loops import TooManySteps
from layoutopt.kernels.machine.registers import Registers, Stopped
from layoutopt.kernels.machine.relevance import Relevance, constant_bytes
from layoutopt.kernels.machine.warps import Machine
from layoutopt.kernels.program import STACK_BYTES, Program

DEFAULT_MOST_STEPS: Final = 250_000
# Warps that are evaluated at once.
MOST_ROWS: Final = 512
# What their memories may take; a byte of shared memory takes 12 with who wrote it when, one of local memory
# 2.
MOST_BYTES: Final = 256 << 20
_SHARED_COST: Final = 12
_LOCAL_COST: Final = 2
# Where the first block is not certain, the others may take so many times its steps, or so many steps.
_MOST_TIMES: Final = 32
_FEW_STEPS: Final = 10_000
_LIKE_THE_FIRST: Final = (
    "blocks that may differ from the first one count as it does: what each of them does is not counted"
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a launch does to shared memory.

    Attributes:
        program, launch: what ran.
        tallies: by index of the step, over the whole grid.
        doubts: why the totals may differ from what runs; empty if they are certain.
        traces: executions of the first block, by index of the step.
        missing: positions of parameters without a value.
        evaluated_blocks: how many blocks were executed; the others do the same.
        barriers: of the first block: the order of the last execution before each.
        ended: the evaluation ended before the kernel does: what comes after is not counted.
    """

    program: Program
    launch: Launch
    tallies: dict[int, Tally]
    doubts: dict[str, int]
    traces: dict[int, list[Execution]]
    missing: tuple[int, ...]
    evaluated_blocks: int
    barriers: tuple[int, ...] = ()
    ended: bool = False

    @property
    def certain(self) -> bool:
        """Whether the totals are what runs."""
        return not self.doubts

    @property
    def bounded(self) -> bool:
        """Whether there is a worst case: no loop whose rounds are unknown, and nothing left out."""
        return not self.ended and not any(why.endswith(OPEN) for why in self.doubts)


def evaluate(
    program: Program,
    launch: Launch,
    gpu: Device,
    *,
    most_steps: int = DEFAULT_MOST_STEPS,
    budget: Budget | None = None,
    every_round: bool = False,
) -> Evaluation:
    """Execute a launch.

    With `every_round` no rounds of loops are counted at once, so that traces hold each.

    Raises:
        ProblemFileError: the launch is impossible, an argument names no parameter, an instruction that
            matters is not known, or blocks that are evaluated together need more steps than `most_steps`.
        OutOfTime: the budget is spent.
    """
    checked(launch)
    given = arguments(program, launch)
    spaces = ("shared", "local", *(("global",) if launch.buffers else ()))
    budget = budget or Budget()
    slice_ = sliced(program, spaces, budget)
    run = _Run(program, slice_, launch, given, gpu, most_steps, budget, every_round)
    return _evaluation(program, slice_, launch, given, *_cover(run, launch))


def _cover(run: _Run, launch: Launch) -> tuple[list[tuple[Counter, int]], int]:
    """Evaluations with the number of blocks that each stands for, the first traced; how many were executed.

    Boxes of blocks are evaluated as one block of which the indices are partly unknown. Where that is not
    enough, boxes are split, as long as it is cheaper than to execute every block. What is unknown in the
    first block may be unknown in all of them, and is no reason to split.
    """
    first = np.zeros((1, 3), np.int64)
    if launch.blocks == 1:
        return [(run.blocks(first, traced=True), 1)], 1
    parts: list[tuple[Counter, int]] = []
    left: list[Box] = []
    for box in boxes(launch.grid):
        _try(run, box, parts, left)
    if not left:
        return parts, len(parts)
    traced = run.blocks(first, traced=True)
    run.excused = frozenset(traced.doubts)
    size = run.most_blocks()
    allowance = run.executed * sum(box.blocks for box in left) // (2 * size)
    times = max(_MOST_TIMES, _FEW_STEPS // max(run.executed, 1))
    if run.excused:
        end = run.probed + min(allowance, times * run.executed)
        again = left.copy()
        left.clear()
        for box in again:
            if run.probed < end and box.blocks > size:
                _try(run, box, parts, left)
            else:
                left.append(box)
        allowance = end - run.probed
    _split(run, parts, left, allowance)
    done = len(parts)
    if run.excused and sum(box.blocks for box in left) > times * size:
        traced.uncertain(-1, _LIKE_THE_FIRST)
        return [(traced, sum(box.blocks for box in left)), *parts], done + 1
    for blocks in batches(left, size):
        parts.append((run.blocks(blocks), 1))
        done += len(blocks)
    return [(traced, 0), *parts], done


def _split(run: _Run, parts: list[tuple[Counter, int]], left: list[Box], allowance: int) -> None:
    """Halve boxes until all are done or so many steps are spent; what is left then stays in `left`."""
    end = run.probed + allowance
    todo = left.copy()
    left.clear()
    while todo:
        box = todo.pop(0)
        axes = [axis for axis in range(3) if box.bits[axis]]
        if not axes or run.probed >= end:
            left.append(box)
            continue
        for axis in axes:
            lower, upper = box.halves(axis)
            if _try(run, lower, parts, []):
                _try(run, upper, parts, todo)
                break
        else:
            quarters = [box]
            for axis in axes:
                quarters = [half for one in quarters for half in one.halves(axis)]
            for one in quarters:
                _try(run, one, parts, todo)


def _try(run: _Run, box: Box, parts: list[tuple[Counter, int]], left: list[Box]) -> bool:
    """Evaluate a box as one block; whether that is as certain as the first block."""
    counter = run.box(box)
    if not counter.doubts.keys() <= run.excused:
        left.append(box)
        return False
    parts.append((counter, box.blocks))
    return True


@dataclass(slots=True)
class _Run:
    program: Program
    relevance: Relevance
    launch: Launch
    given: Arguments
    gpu: Device
    most_steps: int
    budget: Budget
    every_round: bool
    probed: int = 0
    executed: int = 0
    excused: frozenset[str] = frozenset()

    def most_blocks(self) -> int:
        """Blocks that are evaluated at once."""
        bytes_ = 0
        if "shared" in self.relevance.kept:
            bytes_ += _SHARED_COST * self.program.shared_end(self.launch.shared_bytes)
        if "local" in self.relevance.kept:
            bytes_ += _LOCAL_COST * STACK_BYTES * 32 * self.launch.warps
        return max(1, min(MOST_ROWS // self.launch.warps, MOST_BYTES // max(bytes_, 1)))

    def box(self, box: Box) -> Counter:
        """Execute one block that stands for all of a box; it ends at the first doubt that is not excused."""
        hidden = tuple((1 << bits) - 1 for bits in box.bits)
        counter, steps = self._execute(np.array([box.origin], np.int64), hidden, traced=True, strict=True)
        self.probed += steps
        return counter

    def blocks(self, blocks: npt.NDArray[np.int64], traced: bool = False) -> Counter:
        """Execute some blocks."""
        counter, steps = self._execute(blocks, (0, 0, 0), traced, strict=False)
        self.executed += steps
        return counter

    def _execute(
        self, blocks: npt.NDArray[np.int64], hidden: tuple[int, ...], traced: bool, strict: bool
    ) -> tuple[Counter, int]:
        excused = self.excused if strict else frozenset()
        counter = Counter(self.program, self.gpu, self.launch.warps, traced, strict, excused)
        cells = Registers(self.program, self.launch, self.given, blocks, hidden)
        machine = Machine(
            cells, self.relevance, self.given, counter, self.most_steps, self.budget, self.every_round
        )
        try:
            machine.run()
        except Stopped as stop:
            counter.doubts.setdefault(str(stop), machine.at)
            counter.ended = True
        except TooManySteps as stop:
            raise ProblemFileError("--max-steps", _too_many(stop)) from None
        counter.finish()
        return counter, self.most_steps - machine.steps_left


def _too_many(stop: TooManySteps) -> str:
    advice = "give a larger limit, or a launch with shorter loops"
    if stop.needed is None:
        return f"more steps are needed, {stop} comes next; {advice}"
    return f"about {stop.needed:,} steps are needed for the loop that goes round at {stop}; {advice}"


def _evaluation(
    program: Program,
    needed: Relevance,
    launch: Launch,
    given: Arguments,
    parts: list[tuple[Counter, int]],
    done: int,
) -> Evaluation:
    tallies: dict[int, Tally] = {}
    doubts: dict[str, int] = {}
    for counter, times in parts:
        for index, tally in counter.tallies.items():
            tallies.setdefault(index, Tally()).add(tally, times)
        for why, index in counter.doubts.items():
            doubts.setdefault(why, index)
    if doubts:
        doubts = dict.fromkeys(_not_given(program, needed, given), -1) | doubts
    ended = any(counter.ended for counter, _ in parts)
    first = parts[0][0]
    barriers = tuple(sorted(first.barriers))
    return Evaluation(program, launch, tallies, doubts, first.traces, given.missing, done, barriers, ended)


def _not_given(program: Program, needed: Relevance, given: Arguments) -> Iterator[str]:
    """Parameters without a value that something that matters reads."""
    parameters = program.parameters or ()
    read: set[int] = set()
    for step, matters in zip(program.steps, needed.matters, strict=True):
        if matters:
            read.update(constant_bytes(step))
    for k in given.missing:
        begin = program.parameter_base + parameters[k].offset
        if not read.isdisjoint(range(begin, begin + parameters[k].size)):
            size, at = parameters[k].size, parameters[k].offset
            if not parameters[k].whole:
                halves = f"--arg +{at}=VALUE --arg +{at + 4}=VALUE"
                yield f"parameter {k} (8 bytes) is not given: {halves}, or --arg {k}=pointer"
                continue
            member = "" if size in (1, 2, 4, 8) else "+BYTE"
            pointer = f", or --arg {k}=pointer" if parameters[k].may_point else ""
            yield f"parameter {k} ({size} bytes) is not given: --arg {k}{member}=VALUE{pointer}"
