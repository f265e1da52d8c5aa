"""What a result out of a file says of its problem: counted anew, and a layout of `must_be`."""

from __future__ import annotations

from layoutopt.accesses.lower import stored
from layoutopt.engine.claims import check_claims
from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import described
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Problem
from layoutopt.search.dictated import named_candidate


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
