"""Launches of kernels, checked: what each does to shared memory and what would mend it, the worst first."""

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from layoutopt.errors import LayoutoptError, ProblemFileError
from layoutopt.files.file import tile_from_data
from layoutopt.ground.budget import Budget, OutOfTime, spending
from layoutopt.ground.json_data import Versioned
from layoutopt.ground.log import LOG, Progress
from layoutopt.ground.processes import KilledWorker, Processes, cores
from layoutopt.ground.temporary import temporary_folder
from layoutopt.kernels.launches import NOTHING_MISSED, LaunchOptions, Missed, evaluated
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.question.arrays import UsedArray, moved_by_itself, used_arrays
from layoutopt.kernels.question.problem_data import array_problem
from layoutopt.kernels.question.summary import KernelReport, given_by, summary
from layoutopt.problems.types import Problem
from layoutopt.study.check import Audit, check
from layoutopt.study.hints import other_instructions


class CheckedLaunch(Struct, frozen=True):
    """One launch.

    Attributes:
        launch: what was asked.
        report: what it costs; None where it could not be evaluated.
        fixes: what to change of an array with conflicts, by its name.
        instructions: what an array takes less with vectors or matrices, by its name.
        failure: why there is no report.
    """

    launch: LaunchOptions
    report: KernelReport | None = None
    fixes: dict[str, dict[str, Any]] = {}
    instructions: dict[str, str] = {}
    failure: str | None = None

    @property
    def conflicts(self) -> int:
        """Wavefronts that are bank conflicts, of all such launches together."""
        return self.launch.launches * self.report.totals["bank_conflicts"] if self.report is not None else 0

    @property
    def wavefronts(self) -> int:
        """Wavefronts of shared memory, of all such launches together."""
        return self.launch.launches * self.report.totals["wavefronts"] if self.report is not None else 0


def check_launch(
    launch: LaunchOptions, time_limit: float, mend: bool = True, given: Launch | None = None
) -> CheckedLaunch:
    """Execute a launch, and look for layouts without its conflicts.

    Args:
        launch: the kernel, its shape and arguments.
        time_limit: seconds to evaluate it, and again for layouts.
        mend: look for layouts.
        given: shape and arguments in the place of those.

    Raises:
        LayoutoptError: the file cannot be read, or there can be no such launch.
        OutOfTime: it cannot be evaluated within the limit.
    """
    evaluation = evaluated(launch, time_limit, given)
    arrays = used_arrays(evaluation)
    report = summary(evaluation, launch.entry if launch.parameters is None else None, arrays)
    if not mend:
        return CheckedLaunch(launch, report)
    budget = Budget(time_limit)
    return CheckedLaunch(
        launch, report, _fixes(evaluation, arrays, budget), _wider(evaluation, arrays, budget)
    )


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
        time_limit: seconds to evaluate it, and again for layouts.
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
    found = {}
    for used in used_arrays(evaluation):
        with contextlib.suppress(ProblemFileError):
            found[used.array.name] = _problem_of(evaluation, used)
    return found


class Fix(Struct, frozen=True):
    """A layout to take for an array, and what it saves over all launches if all blocks are as the first."""

    kernel: str
    array: str
    offset: str
    saved_wavefronts: int
    message: str


class Application(Versioned, frozen=True):
    """All launches of a program: those with the most conflicts first, then those that failed.

    Attributes:
        wavefronts, bank_conflicts: of shared memory, over all launches.
        launches: how many there were, of how many distinct ones.
        not_recorded: launches with parameters that nobody wrote down; they are not counted.
        missed: launches that are in no file.
    """

    wavefronts: int
    bank_conflicts: int
    launches: int
    not_recorded: int
    missed: Missed
    kernels: tuple[CheckedLaunch, ...]
    schema_: Literal["layoutopt.application/1"] = "layoutopt.application/1"

    @property
    def fixes(self) -> list[Fix]:
        """What to change, over all shapes of a kernel; what saves most first."""
        found: dict[tuple[str, str, str], Fix] = {}
        for one in self.kernels:
            for array in one.report.arrays if one.report is not None else ():
                told = one.fixes.get(array.name, {})
                if one.report is None or not (saved := told.get("saved_wavefronts", 0)) > 0:
                    continue
                saved = one.launch.launches * min(array.wavefronts, saved * math.prod(one.report.grid))
                key = (one.report.title, array.name, told["offset"])
                before = found[key].saved_wavefronts if key in found else 0
                found[key] = Fix(*key, before + saved, told["message"])
        return sorted(found.values(), key=lambda fix: -fix.saved_wavefronts)

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
    """Check every launch, on all cores; each has the time limit for itself. What was missed is told on."""
    found = []
    with contextlib.closing(Processes(min(cores(), len(launches)) or 1)) as processes:
        asked = [processes.submit(_tried, launch, time_limit, mend) for launch in launches]
        for done, (launch, answer) in enumerate(zip(launches, asked, strict=True), 1):
            try:
                found.append(answer.result())
            except KilledWorker:
                found.append(CheckedLaunch(launch, failure="its process was ended: not enough memory?"))
            progress(f"{done} of {len(launches)} launches")
    found.sort(key=lambda one: (-one.conflicts, one.report is None))
    return Application(
        sum(one.wavefronts for one in found),
        sum(one.conflicts for one in found),
        sum(one.launches + one.not_recorded for one in launches),
        sum(one.not_recorded for one in launches),
        missed,
        tuple(found),
    )


def _tried(launch: LaunchOptions, time_limit: float, mend: bool) -> CheckedLaunch:
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
    options = given_by(evaluation.doubts)
    anywhere = (k for k, tally in evaluation.tallies.items() if options and tally.high <= tally.low)
    unknown = next((k for k in (*used.steps, *anywhere) if evaluation.tallies[k].unknown), None)
    if unknown is not None:
        why = f"an access of it is not counted, {evaluation.program.steps[unknown].named}"
        raise ProblemFileError("", f"{why}: give {options}" if options else why)
    return _problem_of(evaluation, used)


def _wider(evaluation: Evaluation, arrays: Sequence[UsedArray], budget: Budget) -> dict[str, str]:
    """What each array takes less where the scalar accesses of a loop become vectors or matrices; by name."""
    found = {}
    for used in budget.while_left(arrays):
        with contextlib.suppress(ProblemFileError), spending(budget):
            if (text := other_instructions(_whole_problem(evaluation, used))) is not None:
                found[used.array.name] = text
    return found


def _fixes(evaluation: Evaluation, arrays: Sequence[UsedArray], budget: Budget) -> dict[str, dict[str, Any]]:
    """What to change of each array that has conflicts, found over all of its accesses; by name."""
    tallies = evaluation.tallies
    wanted = [used for used in arrays if any(tallies[k].wavefronts > tallies[k].ideal for k in used.steps)]
    found: dict[str, dict[str, Any]] = {}
    for number, used in enumerate(wanted):
        part = budget.part(1 / (len(wanted) - number))
        try:
            problem = _whole_problem(evaluation, used)
            with spending(part):
                found[used.array.name] = _advice(check(problem, mend=True))
        except ProblemFileError as error:
            found[used.array.name] = {"message": f"no fix is sought: {error}"}
    return found


def _advice(audit: Audit) -> dict[str, Any]:
    """The fix of an array, or why there is none."""
    said = {finding.kind: finding for finding in audit.findings}
    if (fix := said.get("fix")) is not None:
        return {"message": fix.message, **fix.details}
    if (keep := said.get("keep")) is not None:
        return {"message": f"{keep.message}; layoutopt patch tries what has the fewest conflicts"}
    if not audit.excess:
        return {"message": "no fix is sought: its first block has no conflicts"}
    return {"message": "no layout with fewer conflicts was found"}
