"""What a result out of a file says of a problem's accesses, counted anew."""

from __future__ import annotations

from typing import Final

from layoutopt.accesses.free_lanes import check_lanes
from layoutopt.accesses.lower import assigned, named_lanes
from layoutopt.engine.case import case_of
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Problem

_ROUNDING: Final = 1e-6  # of sums of weights and expectations


def check_claims(problem: Problem, gpu: Device, result: Result) -> None:
    """Check that a result, read from a file, is one of this problem, and that its counts hold.

    Raises:
        ProblemFileError: it is of another problem or target, its layout does not serve the accesses, or
            what it says of one is not what the conflict engine counts.
    """
    layout = result.layout
    if result.problem != problem.name:
        raise ProblemFileError("problem", f"the result is of {result.problem!r}, not of {problem.name!r}")
    if result.target != gpu.name:
        raise ProblemFileError("target", f"the result is for {result.target!r}, not for {gpu.name!r}")
    if layout is None:
        return
    if [a.name for a in problem.accesses] != [a.name for a in result.accesses]:
        raise ProblemFileError("accesses", "are not those of the problem")
    chosen = assigned(problem, result)
    if chosen is not problem:
        check_lanes(problem, chosen, gpu)
    case = case_of(chosen, gpu, {a.name: a.bytes for a in result.accesses if a.bytes is not None})
    try:
        table = case.table(layout)
        case.check(table)
    except LayoutError as error:
        raise ProblemFileError("layout", str(error)) from None
    counts = case.count(table)
    weighted = case.weighted_excess(counts) / case.lanes.weight_unit
    stated = result.weighted_excess if result.weighted_excess is not None else result.excess
    if stated is None or abs(weighted - stated) > _ROUNDING:
        raise ProblemFileError("weighted_excess", f"the layout gives {weighted:g}, the result says {stated}")
    reports = named_lanes(case.described(case.reports(counts), table), problem, chosen)
    for k, (given, counted) in enumerate(zip(result.accesses, reports, strict=True)):
        if given.descriptor != counted.descriptor:
            raise ProblemFileError(f"accesses[{k}].descriptor", "is not how the hardware reaches the layout")
        if given != counted:
            raise ProblemFileError(
                f"accesses[{k}]",
                f"the layout gives {counted.wavefronts} wavefronts, {counted.ideal} of them ideal, and "
                f"{counted.bank_conflicts} bank conflicts for op {counted.op!r}; the result says otherwise",
            )
    needed, given_bytes = case.needed_alignment(layout, reports), result.alignment_bytes or 0
    if given_bytes < needed or (given_bytes > needed and not problem.is_dictated):
        raise ProblemFileError(
            "alignment_bytes", f"the counts need a base aligned to {needed}, not {result.alignment_bytes}"
        )
