"""The case of a problem whose lanes are all known, which is what can be drawn and compared."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from layoutopt.accesses.free_lanes import is_free
from layoutopt.accesses.lower import assigned
from layoutopt.engine.case import Case, case_of
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Problem
from layoutopt.search.solve import solve
from layoutopt.study.claims import check_result


def with_known_lanes(
    problem: Problem, gpu: Device, budget: Budget | None = None, known: Result | None = None
) -> Problem:
    """The problem with the lanes that `solve` chooses; itself where none is free.

    Args:
        problem: some of whose accesses may be free.
        gpu: its device.
        budget: the time there is, of which half is used; None for no limit.
        known: the answer of `solve`, where it is known.

    Raises:
        ProblemFileError: an access cannot be free, or `known` is no answer to the problem.
    """
    if known is not None:
        check_result(problem, gpu, known)
    if not is_free(problem):
        return problem
    if known is None:
        layout = msgspec.structs.replace(problem.layout, offset=None)
        part = budget.part(0.5) if budget is not None else None
        known = solve(msgspec.structs.replace(problem, layout=layout), target=gpu, budget=part)
    return assigned(problem, known)


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
