"""What each shared-memory instruction of a launch costs, counted by the conflict engine.

Addresses are gathered and counted some executions at a time, which are up to hundreds of warps each.
"""

import collections
import hashlib
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.engine.conflicts import Counts, addressing_lanes, count_wavefronts
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation
from layoutopt.kernels.machine.groups import NOBODY
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.machine.registers import Stopped
from layoutopt.kernels.machine.values import Bools
from layoutopt.kernels.program import Memory, Program

BATCH: Final = 1024  # warp instructions
# A doubt that leaves open how often anything behind it happens ends so.
ONE_ROUND: Final = "of rounds that it may begin one is counted"
# Doubts that leave open how much there is end with one of these.
OPEN: Final = (ONE_ROUND, "is not counted", "reaches shared memory is not known", "bytes is not known")
# What stands between a parameter and the options that give it.
NOT_GIVEN: Final = " is not given: "
# Rounds of a loop that are traced as one where they do the same.
_MANY: Final = 64
# The same of rounds with loops in them that were traced so.
_FEW: Final = 3
# Warp instructions whose addresses are kept for imports, an instruction of the program.
MOST_TRACED_ROWS: Final = 1 << 16


class Worst(NamedTuple):
    """The warp instruction with most conflicts: addresses and lanes."""

    conflicts: int
    wavefronts: int
    address: IntArray
    lanes: Bools


@dataclass(slots=True)
class Tally:
    """Totals of one instruction."""

    executions: int = 0  # warp instructions, with those of which every lane is off
    # `wavefronts, ideal, phases`: of those that are known
    wavefronts: int = 0
    ideal: int = 0
    phases: int = 0
    unknown: int = 0  # warp instructions with a lane of which it is unknown where or whether
    # `best, worst`: wavefronts that those may take
    best: int = 0
    worst: int = 0
    worst_one: Worst | None = None  # that with most conflicts, the first of those; None before one is counted
    # `low, high`: first byte and end of what is touched
    low: int = 1 << 62
    high: int = 0

    def add(self, other: "Tally", times: int) -> None:
        """Add what another part of the launch did, so many times."""
        for name in ("executions", "wavefronts", "ideal", "phases", "unknown", "best", "worst"):
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        if other.worst_one is not None:
            self.meet(other.worst_one)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)

    def meet(self, other: Worst) -> None:
        """Keep the worst one."""
        if self.worst_one is None or other.conflicts > self.worst_one.conflicts:
            self.worst_one = other


class Execution(Struct, frozen=True):
    """One step of some warps of the first block: warp numbers, addresses, lanes, how often it happened."""

    warps: IntArray
    address: IntArray
    lanes: Bools
    order: int
    times: int = 1


@dataclass(slots=True)
class Evaluation:
    """What a launch, or some of its blocks, does to shared memory: told and counted while it runs."""

    # `program, launch, gpu`: what runs where
    program: Program
    launch: Launch
    gpu: Device
    traced: bool = False  # addresses are kept of the first block
    strict: bool = False  # the first doubt ends the evaluation, except those that are excused
    excused: frozenset[str] = frozenset()  # doubts that there are anyway
    copies: int = 1  # of the first block, which stand for as many rounds of loops, side by side
    leapt: bool = False  # rounds of a loop were taken from a trial
    tallies: dict[int, Tally] = field(default_factory=dict)  # by index of the step
    # Why the counts may differ from what runs, by index of the step; empty if they are certain
    doubts: dict[str, int] = field(default_factory=dict)
    # Executions of the first block, by index of the step
    traces: dict[int, list[Execution]] = field(default_factory=dict)
    # Of the whole first block: the order of the last execution before each
    barriers: list[int] = field(default_factory=list)
    ended: bool = False  # the evaluation ended before the kernel did: what comes after is not counted
    evaluated_blocks: int = 0  # how many blocks of a launch were executed; the others do the same
    # Indices of the blocks that were executed, or the first of a box; of a launch whose blocks were told
    # apart, one of those that reach the same bytes alike, the first block first
    blocks: list[tuple[int, ...]] = field(default_factory=list)
    _batches: dict[int, list[tuple[IntArray, Bools]]] = field(default_factory=dict)
    _traced: collections.Counter[int] = field(default_factory=collections.Counter)
    _clock: int = 0

    @property
    def certain(self) -> bool:
        """Whether the totals are what runs."""
        return not self.doubts

    @property
    def counts(self) -> dict[int, tuple[int, ...]]:
        """What each instruction counts, and may count, by index of the step."""
        names = ("executions", "wavefronts", "phases", "unknown", "best", "worst")
        return {k: tuple(getattr(one, name) for name in names) for k, one in self.tallies.items()}

    @property
    def bounded(self) -> bool:
        """Whether there is a worst case: no loop whose rounds are unknown, and nothing left out."""
        return not self.ended and not any(why.endswith(OPEN) for why in self.doubts)

    def uncertain(self, index: int, why: str) -> None:
        """The counts may differ from what runs."""
        self.doubts.setdefault(why, index)
        if self.strict and why not in self.excused:
            raise Stopped(why)

    def trial(self, copies: int = 1, *, certain: bool = False) -> "Evaluation":
        """What may happen next, in so many copies of the first block; `certain`: without any doubt."""
        excused = frozenset[str]() if certain else self.excused | self.doubts.keys()
        return Evaluation(self.program, self.launch, self.gpu, self.traced, True, excused, copies)

    def add(self, other: "Evaluation", times: int = 1) -> None:
        """What another one counted happened so many times, too."""
        self.finish()
        other.finish()
        for index, tally in other.tallies.items():
            self.tallies.setdefault(index, Tally()).add(tally, times)
        for why, index in other.doubts.items():
            self.doubts.setdefault(why, index)
        self.ended |= other.ended

    def take(self, trial: "Evaluation", rows: IntArray, times: IntArray | None = None) -> None:
        """Add what a trial counted: the next rounds of a loop, which turned out to be right.

        Traces and barriers of the first block are written one round after the other.

        Args:
            trial: its rows are those that go through the loop, once a round; or, with `times`, those of one
                block that stands for each of theirs.
            rows: the warps that go through it here.
            times: rounds that the trial stands for, in each block; else one.
        """
        self.add(trial, 1 if times is None else int(times.sum()))
        if not self.traced:
            return
        begin = self._clock
        if times is not None:
            for warps, rounds in zip(rows.reshape(len(times), -1), times.tolist(), strict=True):
                self._trace(trial, 0, warps, rounds, begin)
        else:
            for k in range(trial.copies * self.launch.warps // len(rows)):
                self._trace(trial, k * len(rows), rows, 1, begin + k * trial._clock)
        if len(rows) == self.copies * self.launch.warps and (times is None or (times == times[0]).all()):
            starts = range(begin, self._clock, max(trial._clock, 1))
            self.barriers += [start + order for start in starts for order in trial.barriers]
        self.leapt = True

    def _trace(self, trial: "Evaluation", first_row: int, warps: IntArray, rounds: int, begin: int) -> None:
        """Write rounds of some warps into the traces, each as the trial's rows from `first_row` on did it.

        Many rounds are written as one, with how often it happened.

        Args:
            begin: the clock when the first of the rounds begins.
        """
        written = 1 if rounds >= (_FEW if trial.leapt else _MANY) else rounds
        executions = [
            (index, execution)
            for index, every in trial.traces.items()
            for one in every
            if (execution := _of(one, first_row, warps)) is not None
        ]
        for start in range(begin, begin + written * trial._clock, max(trial._clock, 1)):
            for index, one in executions:
                if self._traced[index] <= MOST_TRACED_ROWS:
                    times = one.times * (rounds // written)
                    self._keep(index, replace(one, order=start + one.order, times=times))
        self._clock = max(self._clock, begin + written * trial._clock)

    def met(self, warps: Bools) -> None:
        """These warps of each block waited for each other."""
        if warps[: self.copies].all():
            self.barriers.append(self._clock)

    def done_by_blocks(self) -> list[object]:
        """What each of the blocks did to shared memory, equal where that is; never where a trace is cut."""
        warps_of_block, done = self.launch.warps, [hashlib.sha256() for _ in self.blocks]
        if any(count > MOST_TRACED_ROWS for count in self._traced.values()):
            return [object() for _ in self.blocks]
        for index, every in sorted(self.traces.items()):
            rows = [
                np.column_stack(
                    [one.warps, np.full(len(one.warps), one.times), np.where(one.lanes, one.address, -1)]
                )
                for one in every
            ]
            table = np.concatenate(rows)
            table = table[np.argsort(table[:, 0], kind="stable")]
            ends = np.searchsorted(table[:, 0], np.arange(1, len(done)) * warps_of_block)
            table[:, 0] %= warps_of_block
            for digest, part in zip(done, np.split(table, ends), strict=True):
                digest.update(b"%d:" % index + part.tobytes())
        return [digest.digest() for digest in done]

    def access(
        self, index: int, rows: IntArray, address: IntArray, lanes: Bools, unsure: Bools, nowhere: Bools
    ) -> None:
        """Count a memory step, of which each row is a warp.

        `lanes` take part and `unsure` ones may; the addresses of `nowhere` lanes are unknown.
        """
        tally = self.tallies.setdefault(index, Tally())
        tally.executions += len(rows)
        self._clock += 1
        step = self.program.steps[index]
        action = step.action
        assert isinstance(action, Memory)
        if (operation := action.operation) is None:
            return
        if (operation.kind, operation.width_bytes) not in self.gpu.rules:
            tally.unknown += len(rows)
            self._touched(tally, operation, address, (lanes | unsure) & ~nowhere)
            how = f"how {self.gpu.name} serves {operation.kind} of {operation.width_bytes} bytes"
            self.uncertain(index, f"{step.named}: {how} is not known")
            return
        if nowhere is not NOBODY or unsure is not NOBODY:
            # Warps of which something is not known are bounded, the others counted.
            no_address = np.broadcast_to(nowhere.any(axis=1), len(lanes))
            unknown = no_address | unsure.any(axis=1)
            possible = (lanes | unsure)[unknown]
            self._bounded(tally, action, address[unknown], lanes[unknown], possible, no_address[unknown])
            rows, address, lanes = rows[~unknown], address[~unknown], lanes[~unknown]
        # One more than the most is kept, so that it is seen that some are missing.
        if self.traced and len(rows) and self._traced[index] <= MOST_TRACED_ROWS:
            self._keep(index, Execution(rows, address, lanes, self._clock))
        if action.retried:  # of what conflicts, only bounds are known
            conflicting = self._served(operation, address, lanes).bank_conflicts > 0
            if conflicting.any():
                possible = lanes[conflicting]
                no_address = np.zeros(len(possible), bool)
                self._bounded(tally, action, address[conflicting], possible, possible, no_address)
                what = "how many of the lanes that meet are served together is not known"
                self.uncertain(index, f"{step.named}: {what}")
            address, lanes = address[~conflicting], lanes[~conflicting]
        if not lanes.any():
            return
        waiting = self._batches.setdefault(index, [])
        waiting.append((address, lanes))
        if sum(len(some) for _, some in waiting) >= BATCH:
            self._count_batch(index)

    def passed(self, index: int, warps: int, perhaps: int) -> None:
        """Count a generic atomic of warps that reach no shared memory: it takes one wavefront of it."""
        if not warps + perhaps:
            return
        tally = self.tallies.setdefault(index, Tally())
        tally.executions += warps + perhaps
        tally.wavefronts, tally.ideal, tally.phases = (
            count + warps for count in (tally.wavefronts, tally.ideal, tally.phases)
        )
        tally.unknown, tally.worst = tally.unknown + perhaps, tally.worst + perhaps

    def _bounded(
        self, tally: Tally, action: Memory, address: IntArray, sure: Bools, possible: Bools, no_address: Bools
    ) -> None:
        """Bounds of warp instructions of which something is not known: none, or all, of the lanes take part.

        Without an address, between no conflicts, also where lanes of one word have them, and each lane at
        another word of one bank.
        """
        operation = action.operation
        assert operation is not None
        apart = np.arange(32) * self.gpu.banks * self.gpu.bank_bytes * 2
        least = self._served(operation, np.where(no_address[:, None], 0, address), sure)
        worst = self._served(operation, np.where(no_address[:, None], apart, address), possible)
        tally.unknown += len(no_address)
        tally.best += int(np.where(no_address | action.retried, least.phases, least.wavefronts).sum())
        tally.worst += int(worst.wavefronts.sum())
        self._touched(tally, operation, address[~no_address], possible[~no_address])

    def _served(self, operation: Operation, address: IntArray, lanes: Bools) -> Counts:
        """What warp instructions cost; addresses of lanes that take no part do not count."""
        used = addressing_lanes(lanes, operation)
        return count_wavefronts(np.where(used, address, 0), lanes, operation, self.gpu.rule(operation))

    def _touched(self, tally: Tally, operation: Operation, address: IntArray, lanes: Bools) -> None:
        touched = address[addressing_lanes(lanes, operation)]
        if touched.size:
            tally.low = min(tally.low, int(touched.min()))
            tally.high = max(tally.high, int(touched.max()) + operation.width_bytes)

    def _keep(self, index: int, execution: Execution) -> None:
        self._traced[index] += len(execution.warps)
        self.traces.setdefault(index, []).append(execution)

    def finish(self) -> None:
        """Count what is left."""
        for index in list(self._batches):
            self._count_batch(index)

    def _count_batch(self, index: int) -> None:
        waiting = self._batches.pop(index)
        action = self.program.steps[index].action
        assert isinstance(action, Memory)
        assert action.operation is not None
        address, lanes = (np.concatenate(tables) for tables in zip(*waiting, strict=True))
        counts = self._served(action.operation, address, lanes)
        tally = self.tallies[index]
        tally.wavefronts += int(counts.wavefronts.sum())
        tally.ideal += int(counts.ideal.sum())
        tally.phases += int(counts.phases.sum())
        k = int(counts.bank_conflicts.argmax())
        used = addressing_lanes(lanes[k : k + 1], action.operation)[0]
        tally.meet(Worst(int(counts.bank_conflicts[k]), int(counts.wavefronts[k]), address[k], used))
        self._touched(tally, action.operation, address, lanes)


def _of(one: Execution, first: int, rows: IntArray) -> Execution | None:
    """What as many warps of a trial as there are rows did, from the first on; None: nothing."""
    here = (one.warps >= first) & (one.warps < first + len(rows))
    if not here.any():
        return None
    return replace(one, warps=rows[one.warps[here] - first], address=one.address[here], lanes=one.lanes[here])
