"""The best layout of a tile, with the lanes and widths that it chose."""

from typing import Any, Final

from layoutopt.accesses.lower import assigned
from layoutopt.engine.case import Case, case_of, case_of_result
from layoutopt.ground.budget import current, spending, unhurried
from layoutopt.ground.log import LOG, Progress
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Problem, constrained
from layoutopt.search.block import solve
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import solve_cases

_SHARE: Final = 0.5


def solved(
    problem: Problem,
    gpu: Device,
    *,
    progress: Progress = LOG.debug,
    known: Result | None = None,
    **constraints: Any,
) -> tuple[Case, Result]:
    """The best layout, and the problem with the lanes and widths chosen for it; in half of the time in force.

    Free lanes are chosen in half of the time before that.

    Args:
        problem, gpu, progress: as for `layoutopt.solve`.
        known: the answer, if it is known: then nothing is searched.
        constraints: fields of `Constraints` that replace the file's, once the lanes are chosen.

    Raises:
        OutOfTime: the time was over before the first layout.
        ProblemFileError: the problem contradicts itself.
    """
    asked = constrained(problem, offset=None)
    if problem.is_free:
        with spending(current().part(_SHARE)):
            asked = assigned(asked, known or solve(asked, target=gpu, time_limit=None))
    asked = constrained(asked, **constraints)
    case = case_of(asked, gpu)
    ask = Ask(progress=progress, every_layout=not current().spent)  # without time, no proof is sought
    with spending(current().part(_SHARE)):
        if known is not None:
            result = known
        elif case.widths:
            result = solve(asked, target=gpu, progress=progress, time_limit=None)
        else:
            result = solve_cases([case], ask)
    if case.widths:
        with unhurried():
            case = case_of_result(asked, gpu, result)
    return case, result
