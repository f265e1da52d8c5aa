"""What is known of a problem: its answer, held against it, and the lanes and widths that the answer chose."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from layoutopt.accesses.free_lanes import is_free
from layoutopt.accesses.lower import assigned, stored
from layoutopt.engine.case import Case, case_of
from layoutopt.engine.claims import check_claims
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget
from layoutopt.ground.escape import described
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Problem
from layoutopt.search.dictated import named_candidate
from layoutopt.search.solve import solve


def check_result(problem: Problem, gpu: Device, result: Result) -> None:
    """Check that a result, read from a file or given by a caller, is one of this problem.

    Raises:
        ProblemFileError: it is no result, what `check_claims` names, or its layout or alignment is not what
            `layout.must_be` asks for.
    """
    if not isinstance(result, Result):
        raise ProblemFileError("", f"expected the result of solve, got {described(result)}")
    check_claims(problem, gpu, result)
    if problem.layout.must_be is None or result.layout is None:
        return
    table = result.layout.table().ravel()[:: problem.tile.packed]
    same = named_candidate(stored(problem), table)
    if same is None:
        raise ProblemFileError("layout", "is none of those that layout.must_be names")
    if (result.alignment_bytes or 0) < same.alignment_bytes:
        raise ProblemFileError(
            "alignment_bytes",
            f"{same.name} needs a base aligned to {same.alignment_bytes}, not {result.alignment_bytes}",
        )


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
