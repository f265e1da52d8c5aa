"""The case of a problem whose lanes are all known, which is what can be drawn and compared."""

from __future__ import annotations

from collections.abc import Mapping

from layoutopt.engine.case import Case, case_of
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.problems.types import Problem


def known_case(
    problem: Problem, gpu: Device, widths: Mapping[str, int] | None = None, budget: Budget | None = None
) -> Case:
    """The problem with widths by access name, the widest where left out; traced within the budget.

    Raises:
        OutOfTime: the time was over before the end.
        ProblemFileError: some values are known only at run time, or as for `case_of`.
    """
    for i, access in enumerate(problem.accesses):
        if access.any:
            raise ProblemFileError(
                f"accesses[{i}].any",
                "values known only at run time are not supported here; "
                "`layoutopt solve` and `check` count them",
            )
    return case_of(problem, gpu, widths, budget)
