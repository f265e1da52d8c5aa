"""What a launch costs, as data: totals as the profiler prints them, instructions, arrays, doubts."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from layoutopt.kernels.machine.counts import NOT_GIVEN, Evaluation, Tally
from layoutopt.kernels.program import Array
from layoutopt.kernels.question.arrays import UsedArray, memory, used_arrays
from layoutopt.kernels.read.declarations import base_name

SCHEMA: Final = "layoutopt.kernel/1"


class KernelAccess(Struct, frozen=True):
    """One instruction that touches shared memory, over the whole grid.

    `array` names all that it touches; one that touches several counts in each of them.
    `wavefronts` and `bank_conflicts` are those that are known; where lanes' addresses are not, `best` and
    `worst` bound what the other executions take. `counter` is the profiler's total that they enter.
    """

    file: str | None
    line: int | None
    address: int
    instruction: str
    op: str
    bytes: int
    array: str | None
    executions: int
    wavefronts: int
    ideal: int
    bank_conflicts: int
    data_dependent: bool
    unknown_executions: int
    best: int
    worst: int
    counter: str | None


class KernelArray(Struct, frozen=True):
    """One array: its bytes and what its accesses cost together."""

    name: str
    start: int
    bytes: int
    wavefronts: int
    ideal: int
    bank_conflicts: int
    data_dependent: bool


class WorstInstruction(Struct, frozen=True):
    """The warp instruction with the most conflicts: the byte address of each lane, None where it is off."""

    address: int
    byte_address: tuple[int | None, ...]
    wavefronts: int


class KernelReport(Struct, frozen=True):
    """A launch. `certain`: the totals are those of the hardware; else `unknown` says why they may not be.

    `bounded`: there is a worst case; else a loop may go round any number of times, or the evaluation ended
    before the kernel does, and worst is null in JSON. `by_hardware`: instructions of the kernel by which
    TMA or tensor cores reach shared memory; no counter holds what these take.
    """

    entry: str
    name: str
    title: str
    form: str
    target: str
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    shared_bytes: int
    certain: bool
    totals: dict[str, int]
    accesses: tuple[KernelAccess, ...]
    arrays: tuple[KernelArray, ...]
    unknown: tuple[str, ...]
    worst: WorstInstruction | None
    evaluated_blocks: int
    bounded: bool = True
    by_hardware: tuple[str, ...] = ()

    @property
    def doubt(self) -> str | None:
        """What to do first about counts that are not certain: give options; else why they are not."""
        options = given_by(self.unknown)
        if options:
            return f"not certain: give {options}"
        more = f" (and {len(self.unknown) - 1} more reasons)" if len(self.unknown) > 1 else ""
        return None if self.certain else f"not certain: {self.unknown[0]}{more}"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data, the schema first."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        if not self.bounded:
            data["totals"] |= {name: None for name in self.totals if name.startswith("wavefronts_worst")}
            for access in data["accesses"]:
                access["worst"] = None if access["data_dependent"] else access["worst"]
        return {"schema": SCHEMA, **data}


def summary(
    evaluation: Evaluation, entry: str | None = None, arrays: Sequence[UsedArray] | None = None
) -> KernelReport:
    """Put together what an evaluation counted.

    Args:
        evaluation: of one launch.
        entry: the name that the user gave.
        arrays: its `used_arrays`, where the caller has them: of long traces that takes seconds.
    """
    program, launch = evaluation.program, evaluation.launch
    arrays = used_arrays(evaluation) if arrays is None else arrays
    homes: dict[int, list[str]] = {}
    for used in arrays:
        for k in used.steps:
            homes.setdefault(k, []).append(used.array.name)
    accesses = {
        k: _access(evaluation, k, tally, ", ".join(homes[k]) if k in homes else None)
        for k, tally in sorted(evaluation.tallies.items())
        if memory(evaluation, k).operation is not None and (tally.phases or tally.unknown)
    }
    return KernelReport(
        entry=entry or base_name(program.title),
        name=program.name,
        title=program.title,
        form="sass",
        target=program.target,
        block=launch.block,
        grid=launch.grid,
        shared_bytes=launch.shared_bytes,
        certain=evaluation.certain,
        totals=_totals(evaluation),
        accesses=tuple(accesses.values()),
        arrays=tuple(_array(u.array, [accesses[k] for k in u.steps if k in accesses]) for u in arrays),
        unknown=tuple(evaluation.doubts),
        worst=_worst(evaluation),
        evaluated_blocks=evaluation.evaluated_blocks,
        bounded=evaluation.bounded,
        by_hardware=tuple(
            sorted({match[0] for step in program.steps if (match := _BY_HARDWARE.search(step.text))})
        ),
    )


def given_by(doubts: Iterable[str]) -> str:
    """The options for parameters whose values are missing, as they are typed; empty where none is."""
    ways = (why.partition(NOT_GIVEN)[2].partition(", or ")[0] for why in doubts)
    return " ".join(filter(None, ways))


_BY_HARDWARE: Final = re.compile(r"\b(UTMA(LDG|STG|REDG)|UBLK(CP|RED)|[HIQB]GMMA|UTC[A-Z]*MMA)\b")


def _array(array: Array, accesses: Sequence[KernelAccess]) -> KernelArray:
    wavefronts, ideal = sum(a.wavefronts for a in accesses), sum(a.ideal for a in accesses)
    conflicts, depends = sum(a.bank_conflicts for a in accesses), any(a.data_dependent for a in accesses)
    return KernelArray(array.name, array.start, array.size, wavefronts, ideal, conflicts, depends)


def _access(evaluation: Evaluation, k: int, tally: Tally, array: str | None) -> KernelAccess:
    step = evaluation.program.steps[k]
    action = memory(evaluation, k)
    assert action.operation is not None
    times, place = action.counted_times, step.place
    return KernelAccess(
        file=None if place is None else place.file,
        line=None if place is None else place.line,
        address=step.address,
        instruction=step.text,
        op=action.operation.text,
        bytes=action.width_bytes,
        array=array,
        executions=tally.executions,
        wavefronts=times * tally.wavefronts,
        ideal=tally.ideal,
        bank_conflicts=tally.wavefronts - tally.phases,
        data_dependent=tally.unknown > 0,
        unknown_executions=tally.unknown,
        best=times * tally.best,
        worst=times * tally.worst,
        counter=action.counter,
    )


def _totals(evaluation: Evaluation) -> dict[str, int]:
    """Sums under the names of the profiler's parts: op_ld, op_st, op_atom."""
    parts = ("ld", "st", "atom")
    totals = {"wavefronts": 0, **{f"wavefronts_{part}": 0 for part in parts}}
    totals |= {"bank_conflicts": 0, **{f"bank_conflicts_{part}": 0 for part in parts}}
    totals |= {f"executed_{part}": 0 for part in parts}
    totals |= {"ideal": 0, "wavefronts_worst": 0, **{f"wavefronts_worst_{part}": 0 for part in parts}}
    for k, tally in evaluation.tallies.items():
        action = memory(evaluation, k)
        if action.executed is not None:
            totals[f"executed_{action.executed}"] += tally.executions
        if action.counter is None:
            continue
        times = action.counted_times
        conflicts = tally.wavefronts - tally.phases
        for suffix in ("", f"_{action.counter}"):
            totals[f"wavefronts{suffix}"] += times * (tally.wavefronts + tally.best)
            totals[f"bank_conflicts{suffix}"] += conflicts
            totals[f"wavefronts_worst{suffix}"] += times * (tally.wavefronts + tally.worst)
        totals["ideal"] += times * (tally.ideal + tally.best)
    return totals


def _worst(evaluation: Evaluation) -> WorstInstruction | None:
    found = [(k, tally.worst_one) for k, tally in evaluation.tallies.items() if tally.worst_one is not None]
    k, worst = max(found, key=lambda pair: pair[1].conflicts, default=(0, None))
    if worst is None or worst.conflicts <= 0:
        return None
    return WorstInstruction(
        evaluation.program.steps[k].address,
        tuple(int(a) if on else None for a, on in zip(worst.address, worst.lanes, strict=True)),
        worst.wavefronts,
    )
