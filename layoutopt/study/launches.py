"""Launches of kernels, checked: what each does to shared memory and what would mend it, the worst first.

What bank conflicts there may be is in a baseline file, which `check --update-baseline` wrote.
"""

import contextlib
import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.errors import LayoutoptError, ProblemFileError
from layoutopt.files.file import tile_from_data
from layoutopt.ground import json_data
from layoutopt.ground.budget import Budget, OutOfTime, spending
from layoutopt.ground.escape import writable
from layoutopt.ground.json_data import Versioned
from layoutopt.ground.log import LOG, Progress
from layoutopt.ground.processes import KilledWorker, Processes, cores
from layoutopt.ground.temporary import temporary_folder
from layoutopt.kernels.launches import NOTHING_MISSED, LaunchOptions, Missed, evaluated
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.question.arrays import UsedArray, moved_by_itself, used_arrays
from layoutopt.kernels.question.problem_data import array_problem
from layoutopt.kernels.question.summary import KernelAccess, KernelReport, given_by, summary
from layoutopt.problems.types import Problem
from layoutopt.study.check import Audit, check
from layoutopt.study.solve import other_instructions

MAX_BYTES: Final = 64 << 20  # of a baseline


class CheckedLaunch(Struct, frozen=True):
    """One launch."""

    launch: LaunchOptions  # what was asked
    report: KernelReport | None = None  # what it costs; None where it could not be evaluated
    fixes: dict[str, dict[str, Any]] = {}  # what to change of an array with conflicts, by its name
    instructions: dict[str, str] = {}  # what an array takes less with vectors or matrices, by its name
    failure: str | None = None  # why there is no report

    @property
    def conflicts(self) -> int:
        """Wavefronts that are bank conflicts, of all such launches together."""
        return self._total("bank_conflicts")

    @property
    def wavefronts(self) -> int:
        """Wavefronts of shared memory, of all such launches together."""
        return self._total("wavefronts")

    @property
    def reason(self) -> str | None:
        """Why its totals are not certainly those of the hardware."""
        return self.failure if self.report is None else self.report.doubt

    def _total(self, figure: str) -> int:
        return self.launch.launches * self.report.totals[figure] if self.report is not None else 0


def check_launch(
    launch: LaunchOptions, time_limit: float, mend: bool = True, given: Launch | None = None
) -> CheckedLaunch:
    """Execute a launch, and look for layouts without its conflicts.

    Args:
        launch: the kernel, its shape and arguments.
        time_limit: seconds to evaluate it, and as many again to look for layouts.
        mend: look for layouts.
        given: shape and arguments in the place of those of `launch`.

    Raises:
        LayoutoptError: the file cannot be read, or there can be no such launch.
        OutOfTime: it cannot be evaluated within the limit.
    """
    evaluation = evaluated(launch, time_limit, given)
    arrays = used_arrays(evaluation)
    # A recorded launch, which has its parameters as bytes, has the symbol for its entry: no name for people.
    name = launch.entry if launch.parameters is None else None
    report = summary(evaluation, name, arrays)
    if not mend:
        return CheckedLaunch(launch, report)
    budget = Budget(time_limit)
    fixes = _fixes(evaluation, arrays, budget)
    return CheckedLaunch(launch, report, fixes, _other_instructions(evaluation, arrays, budget))


def check_kernel(
    kernel: str | Path | bytes,
    launch: Launch,
    *,
    entry: str | None = None,
    target: str | None = None,
    time_limit: float = 10.0,
    mend: bool = True,
) -> CheckedLaunch:
    """Execute a launch of a kernel on the CPU, and look for layouts without its conflicts.

    Args:
        kernel: a file (cubin, CUDA source, PTX, listing, executable), or the bytes of a cubin.
        launch: the block, the grid, arguments, buffers.
        entry: the kernel's name, where there are several.
        target: the GPU to compile or assemble for, such as sm_90.
        time_limit: seconds to evaluate it, and as many again to look for layouts.
        mend: look for layouts.

    Raises:
        LayoutoptError: the file cannot be read, or there can be no such launch.
        OutOfTime: it cannot be evaluated within the limit.
    """
    with temporary_folder() as folder:
        if isinstance(kernel, bytes):
            (folder / "kernel.cubin").write_bytes(kernel)
            kernel = folder / "kernel.cubin"
        asked = LaunchOptions(file=str(kernel), entry=entry, target=target)
        return check_launch(asked, time_limit, mend, launch)


def import_kernel(
    kernel: str | Path,
    launch: Launch,
    *,
    entry: str | None = None,
    target: str | None = None,
    time_limit: float = 10.0,
) -> dict[str, Problem]:
    """The arrays in shared memory of a kernel as problems, by name; as `layoutopt import kernel`.

    Arrays that cannot be moved, or of which nothing is known, are left out. Arguments are those of
    `check_kernel`.

    Raises:
        LayoutoptError: the file cannot be read, or there can be no such launch.
        OutOfTime: it cannot be evaluated within the limit.
    """
    asked = LaunchOptions(file=str(kernel), entry=entry, target=target)
    evaluation = evaluated(asked, time_limit, launch)
    problems = {}
    for used in used_arrays(evaluation):
        with contextlib.suppress(ProblemFileError):
            problems[used.array.name] = _problem_of(evaluation, used)
    return problems


class Fix(Struct, frozen=True):
    """A layout to take for an array, and what it saves over all launches if all blocks are as the first."""

    kernel: str
    array: str
    offset: str
    saved_wavefronts: int
    message: str


class Application(Versioned, frozen=True):
    """All launches of a program: those with the most conflicts first, then those that failed."""

    # `wavefronts, bank_conflicts`: of shared memory, over all launches
    wavefronts: int
    bank_conflicts: int
    launches: int  # how many there were, of how many distinct ones
    not_recorded: int  # launches with parameters that nobody wrote down; they are not counted
    missed: Missed  # launches that are in no file
    kernels: tuple[CheckedLaunch, ...]
    schema_: Literal["layoutopt.application/1"] = "layoutopt.application/1"

    @property
    def totals(self) -> dict[str, int | None]:
        """Those of all launches that were evaluated together; None: there is no worst case."""
        bounded = all(one.report is not None and one.report.bounded for one in self.kernels)
        totals: dict[str, int | None] = {"wavefronts": 0, "bank_conflicts": 0}
        for one in self.kernels:
            for name, n in one.report.totals.items() if one.report is not None else ():
                known = bounded or not name.startswith("wavefronts_worst")
                totals[name] = (totals.get(name) or 0) + one.launch.launches * n if known else None
        return totals

    @property
    def fixes(self) -> list[Fix]:
        """What to change, once for each kernel, array and layout; what saves most first."""
        fixes: dict[tuple[str, str, str], Fix] = {}
        for kernel in self.kernels:
            for array in kernel.report.arrays if kernel.report is not None else ():
                fields = kernel.fixes.get(array.name, {})
                of_block = fields.get("saved_wavefronts", 0)
                if kernel.report is None or of_block <= 0:
                    continue
                of_launch = min(array.wavefronts, of_block * math.prod(kernel.report.grid))
                key = (kernel.report.title, array.name, fields["offset"])
                before = fixes[key].saved_wavefronts if key in fixes else 0
                saved = before + kernel.launch.launches * of_launch
                fixes[key] = Fix(*key, saved, fields["message"])
        return sorted(fixes.values(), key=lambda fix: -fix.saved_wavefronts)

    @property
    def failed(self) -> list[CheckedLaunch]:
        """What could not be evaluated."""
        return [one for one in self.kernels if one.report is None]


def check_launches(
    launches: Sequence[LaunchOptions],
    time_limit: float,
    mend: bool = True,
    progress: Progress = LOG.debug,
    missed: Missed = NOTHING_MISSED,
) -> Application:
    """Check every launch, on all cores; one that fails has a reason in the place of its report.

    Args:
        launches: the kernels, their shapes and arguments.
        time_limit: seconds to evaluate each launch, and as many again to look for layouts.
        mend: look for layouts.
        progress: called with a line of text after each launch.
        missed: launches of the program that are in no file; the answer repeats them.
    """
    checked = []
    with contextlib.closing(Processes(min(cores(), len(launches)) or 1)) as processes:
        futures = [processes.submit(_check_or_failure, launch, time_limit, mend) for launch in launches]
        for done, (launch, future) in enumerate(zip(launches, futures, strict=True), 1):
            try:
                checked.append(future.result())
            except KilledWorker:
                checked.append(CheckedLaunch(launch, failure="its process was ended: not enough memory?"))
            progress(f"{done} of {len(launches)} launches")
    checked.sort(key=lambda launch: (-launch.conflicts, launch.report is None))  # what failed comes last
    return Application(
        wavefronts=sum(launch.wavefronts for launch in checked),
        bank_conflicts=sum(launch.conflicts for launch in checked),
        launches=sum(launch.launches + launch.not_recorded for launch in launches),
        not_recorded=sum(launch.not_recorded for launch in launches),
        missed=missed,
        kernels=tuple(checked),
    )


def _check_or_failure(launch: LaunchOptions, time_limit: float, mend: bool) -> CheckedLaunch:
    """`check_launch`, whose errors become the reason why there is no report."""
    try:
        return check_launch(launch, time_limit, mend)
    except LayoutoptError as error:
        return CheckedLaunch(launch, failure=str(error))
    except OutOfTime as error:
        return CheckedLaunch(launch, failure=f"out of time while {str(error) or 'it was evaluated'}")
    except MemoryError:
        return CheckedLaunch(launch, failure="not enough memory")
    except Exception as error:  # of one kernel: the others are answered
        return CheckedLaunch(launch, failure=f"an error of layoutopt itself: {error!r}")


def _problem_of(evaluation: Evaluation, used: UsedArray) -> Problem:
    """The accesses of an array as a problem.

    Raises:
        ProblemFileError: the array cannot be moved, or nothing is known of it.
    """
    if (why := moved_by_itself(evaluation, used)) is not None:
        raise ProblemFileError("", why)
    return tile_from_data(array_problem(evaluation, used))


def _whole_problem(evaluation: Evaluation, used: UsedArray) -> Problem:
    """The accesses of an array as a problem, if all of them are counted: without one, a layout is a guess.

    An access at an unknown address may be of any array; where no option makes it known, it is left out.

    Raises:
        ProblemFileError: as `_problem_of`; or an access is not counted.
    """
    options = given_by(evaluation.doubts)  # of the command line, which would make more known
    # Instructions of which no address is known have none between `low` and `high`.
    anywhere = (k for k, tally in evaluation.tallies.items() if options and tally.high <= tally.low)
    unknown = next((k for k in (*used.steps, *anywhere) if evaluation.tallies[k].unknown), None)
    if unknown is not None:
        why = f"an access of it is not counted, {evaluation.program.steps[unknown].named}"
        raise ProblemFileError("", f"{why}: give {options}" if options else why)
    return _problem_of(evaluation, used)


def _other_instructions(
    evaluation: Evaluation, arrays: Sequence[UsedArray], budget: Budget
) -> dict[str, str]:
    """By array, a hint to move the elements of a loop by vectors or matrices, where that saves wavefronts."""
    hints = {}
    for used in budget.while_left(arrays):
        with contextlib.suppress(ProblemFileError), spending(budget):
            if (hint := other_instructions(_whole_problem(evaluation, used))) is not None:
                hints[used.array.name] = hint
    return hints


def _fixes(evaluation: Evaluation, arrays: Sequence[UsedArray], budget: Budget) -> dict[str, dict[str, Any]]:
    """By array that has conflicts, the `_fix_fields` of a layout for all of its accesses."""
    tallies = evaluation.tallies
    conflicting = [
        used for used in arrays if any(tallies[k].wavefronts > tallies[k].ideal for k in used.steps)
    ]
    fixes: dict[str, dict[str, Any]] = {}
    for number, used in enumerate(conflicting):
        share = budget.part(1 / (len(conflicting) - number))
        try:
            problem = _whole_problem(evaluation, used)
            with spending(share):
                fixes[used.array.name] = _fix_fields(check(problem, mend=True))
        except ProblemFileError as error:
            fixes[used.array.name] = {"message": f"no fix is sought: {error}"}
    return fixes


def _fix_fields(audit: Audit) -> dict[str, Any]:
    """The `message` and figures of an audit's fix; a message alone, why there is none, otherwise."""
    by_kind = {finding.kind: finding for finding in audit.findings}
    if (fix := by_kind.get("fix")) is not None:
        return {"message": fix.message, **fix.details}
    if (keep := by_kind.get("keep")) is not None:
        return {"message": f"{keep.message}; layoutopt patch tries what has the fewest conflicts"}
    if not audit.excess:
        return {"message": "no fix is sought: its first block has no conflicts"}
    return {"message": "no layout with fewer conflicts was found"}


# Baselines -----------------------------------------------------------------------------------------


class Baseline(Versioned, frozen=True, forbid_unknown_fields=True):
    """Bank conflicts of one launch, by `_key`; lines of sources move, and stand in none.

    Of schema 1, whose keys name no file, an entry is the most of all kernels that are called the same.
    """

    bank_conflicts: dict[str, int]
    schema_: Literal["layoutopt.baseline/1", "layoutopt.baseline/2"] = "layoutopt.baseline/2"

    def beside(self, file: Path) -> Path | None:
        """The folder from which it names files, where it is that file; None: it names none."""
        return file.parent if self.schema_ == "layoutopt.baseline/2" else None


def baseline_of(application: Application, folder: Path | None) -> Baseline:
    """The most bank conflicts of launches that differ in arguments alone.

    Args:
        application: what was counted.
        folder: of the baseline, from which it names files; None: it names none.
    """
    most: dict[str, int] = {}
    for kernel in application.kernels:
        conflicts: dict[str, int] = {}  # of this launch
        for access in kernel.report.accesses if kernel.report is not None else ():
            if access.bank_conflicts:
                key = _key(kernel, access, folder)
                conflicts[key] = conflicts.get(key, 0) + access.bank_conflicts
        for key, count in conflicts.items():
            most[key] = max(count, most.get(key, 0))
    return Baseline(dict(sorted(most.items())))


def _key(kernel: CheckedLaunch, access: KernelAccess, folder: Path | None) -> str:
    """File, kernel, block, grid, array and op.

    A recorded launch has no file in it: its code lies in one that is called by its bytes.
    """
    report, launch = kernel.report, kernel.launch
    assert report is not None
    shape = " ".join(",".join(map(str, sizes)) for sizes in (report.block, report.grid))
    key = f"{report.title} {shape} {access.array or '?'} {access.op}"
    if folder is None or launch.parameters is not None:
        return key
    file = os.path.relpath(os.path.realpath(launch.file), os.path.realpath(folder))
    return f"{writable(file)}: {key}"


def read_baseline(data: bytes) -> Baseline:
    """The baseline that a file holds.

    Raises:
        ProblemFileError: it holds something else.
    """
    return json_data.convert(json_data.parse(data), Baseline)


def worse(application: Application, baseline: Baseline, folder: Path | None) -> dict[str, tuple[int, int]]:
    """Bank conflicts in the baseline and now, of every key of `baseline_of` that has more now."""
    now, before = baseline_of(application, folder).bank_conflicts, baseline.bank_conflicts
    return {key: (before.get(key, 0), n) for key, n in now.items() if n > before.get(key, 0)}


def only(found: Application, keys: Collection[str], folder: Path | None) -> Application:
    """The same launches with the accesses of these keys of a baseline alone."""
    kernels = []
    for kernel in found.kernels:
        if (report := kernel.report) is not None:
            accesses = tuple(access for access in report.accesses if _key(kernel, access, folder) in keys)
            kernel = replace(kernel, report=replace(report, accesses=accesses))
        kernels.append(kernel)
    return replace(found, kernels=tuple(kernels))
