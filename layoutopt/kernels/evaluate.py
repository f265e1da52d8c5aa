"""One launch of a program, counted: blocks that do the same are evaluated once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.kernels.counts import Counter, Execution, Tally
from layoutopt.kernels.launch import Arguments, Launch, arguments, checked
from layoutopt.kernels.machine import Machine, TooManySteps
from layoutopt.kernels.program import Program
from layoutopt.kernels.registers import Stopped
from layoutopt.kernels.relevance import Relevance, constant_bytes, relevance

DEFAULT_MOST_STEPS: Final = 1_000_000
# Warps that are evaluated at once.
MOST_ROWS: Final = 256


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
    """

    program: Program
    launch: Launch
    tallies: dict[int, Tally]
    doubts: dict[str, int]
    traces: dict[int, list[Execution]]
    missing: tuple[int, ...]
    evaluated_blocks: int

    @property
    def certain(self) -> bool:
        """Whether the totals are what runs."""
        return not self.doubts


def evaluate(
    program: Program,
    launch: Launch,
    gpu: Device,
    *,
    most_steps: int = DEFAULT_MOST_STEPS,
    budget: Budget | None = None,
) -> Evaluation:
    """Execute a launch.

    Raises:
        ProblemFileError: the launch is impossible, an argument names no parameter, an instruction that
            matters is not known, or more steps than `most_steps` are needed.
        OutOfTime: the budget is spent.
    """
    checked(launch)
    given = arguments(program, launch)
    spaces = ("shared", "local", *(("global",) if launch.buffers else ()))
    slice_ = relevance(program, spaces)
    run = _Run(program, slice_, launch, given, gpu, most_steps, budget or Budget())
    counter = run.blocks(None) if launch.blocks > 1 else None
    if counter is not None and not counter.doubts:
        return _evaluation(program, slice_, launch, given, [(counter, launch.blocks)], 1)
    parts = []
    done = 0
    for blocks in _batches(launch, max(1, MOST_ROWS // launch.warps)):
        parts.append((run.blocks(blocks, traced=done == 0), 1))
        done += len(blocks)
        if parts[-1][0].doubts and done < launch.blocks:
            # What is unknown in these blocks is unknown in the others.
            parts = [(parts[-1][0], launch.blocks // len(blocks))]
            break
    return _evaluation(program, slice_, launch, given, parts, done)


@dataclass(slots=True)
class _Run:
    program: Program
    relevance: Relevance
    launch: Launch
    given: Arguments
    gpu: Device
    steps_left: int
    budget: Budget

    def blocks(self, blocks: npt.NDArray[np.int64] | None, traced: bool = True) -> Counter:
        """Execute some blocks, or one whose indices are unknown."""
        counter = Counter(self.program, self.gpu, self.launch.warps, traced, strict=blocks is None)
        machine = Machine(
            self.program,
            self.relevance,
            self.launch,
            self.given,
            blocks,
            counter,
            self.steps_left,
            self.budget,
        )
        try:
            machine.run()
        except Stopped as stop:
            counter.doubts.setdefault(str(stop), machine.at)
        except TooManySteps as stop:
            raise ProblemFileError(
                "--max-steps",
                f"more steps are needed, {stop} comes next; give a larger limit or a smaller launch",
            ) from None
        if blocks is not None:
            self.steps_left = machine.steps_left
        counter.finish()
        return counter


def _batches(launch: Launch, size: int) -> Iterator[npt.NDArray[np.int64]]:
    x, y, z = (range(n) for n in launch.grid)
    every = ((i, j, k) for k, j, i in itertools.product(z, y, x))
    while batch := list(itertools.islice(every, size)):
        yield np.array(batch, np.int64)


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
    return Evaluation(program, launch, tallies, doubts, parts[0][0].traces, given.missing, done)


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
            size = parameters[k].size
            pointer = ", or --arg {k}=pointer" if size == 8 else ""
            yield f"parameter {k} ({size} bytes) is not given: --arg {k}=VALUE{pointer.format(k=k)}"
