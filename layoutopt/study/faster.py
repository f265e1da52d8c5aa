"""A layout that is faster than the smallest without conflicts, where an estimate of time knows one.

An XOR in no more bytes costs instructions that a pad does not. Where bytes buy nothing, blocks on a
multiprocessor the same, the answer of `solve` is not what a kernel wants, and it says so.
"""

from __future__ import annotations

from typing import Final

import msgspec

from layoutopt.accesses.lower import assigned, chosen_widths
from layoutopt.engine.case import case_of
from layoutopt.engine.estimate import why_no_estimate
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, FasterLayout, Result
from layoutopt.problems.types import FAMILIES, Block, Problem
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import Under, estimated
from layoutopt.study.advice import difference

_SHARE: Final = 0.2  # of the time left after the search, for estimates and what is faster
_PADS: Final = ("none", "order", "pad")
# Estimates of equal wavefronts differ by their instructions alone, so that less tells them apart.
_FASTER: Final = 1.005


def timed(
    problem: Problem | Block,
    result: Result | Arrangement,
    gpu: Device,
    time_limit: float,
    seconds: float,
) -> Result | Arrangement:
    """What `solve` prints, in a share of what a search of so many seconds left of its limit.

    Args:
        problem: what was solved.
        result: its answer; one that has an estimate, or is of several tiles, stays as it is.
        gpu: the device.
        time_limit: of the search, in seconds.
        seconds: that it took.
    """
    if isinstance(problem, Block) or isinstance(result, Arrangement) or result.estimate is not None:
        return result
    return with_faster(problem, result, gpu, Budget(_SHARE * (time_limit - seconds)))


def with_faster(problem: Problem, result: Result, gpu: Device, budget: Budget) -> Result:
    """The result with its estimate, and with a padded layout where that is estimated faster.

    Without time the result stays as it is; where nothing is estimated, it says so.
    """
    if result.layout is None or budget.spent:
        return result
    case = case_of(assigned(problem, result), gpu, chosen_widths(problem, result))
    if (why := why_no_estimate(case)) is not None:
        said = () if case.chooses else (f"no time is estimated, as {why}",)
        return msgspec.structs.replace(result, hints=said)
    if problem.layout.objective.time_first:
        return result
    result = estimated(case, result)
    allowed = tuple(f for f in _PADS if f in (problem.layout.families or FAMILIES))
    # Of a layout with pads, the search among pads would find the same again.
    if problem.is_dictated or "pad" not in allowed or result.family in _PADS or budget.spent:
        return result
    try:
        under = Under(case.asked, gpu, budget)
        constraints = msgspec.structs.replace(problem.layout, families=allowed, minimise="excess")
        padded = under.solve(constraints, Ask(budget, every_layout=False))
    except OutOfTime:
        return result
    if padded.layout is None or padded.offset == result.offset or budget.spent:
        return result
    return msgspec.structs.replace(result, faster=_faster(result, under.estimated(padded)))


def _faster(result: Result, other: Result) -> FasterLayout | None:
    now, then = result.estimate, other.estimate
    if now is None or then is None or (then.blocks_per_sm or 0) < (now.blocks_per_sm or 0):
        return None
    if then.cycles * _FASTER > now.cycles or then.time * _FASTER > now.time:
        return None
    differences = (
        f"{1 - then.cycles / now.cycles:.1%} faster",
        difference((other.bytes or 0) - (result.bytes or 0), "byte"),
        difference(then.instructions - now.instructions, "index instruction"),
        difference((other.excess or 0) - (result.excess or 0), "wavefront"),
    )
    text = f"{other.offset}: {', '.join(filter(None, differences))}; --minimise time is as fast"
    return FasterLayout(other.offset or "", other.bytes or 0, then.cycles, text)
