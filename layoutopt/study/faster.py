"""A layout that is faster than the smallest without conflicts, where an estimate of time knows one.

An XOR in no more bytes costs instructions that a pad does not. Where bytes buy nothing, blocks on a
multiprocessor the same, the answer of `solve` is not what a kernel wants, and it says so.
"""

from __future__ import annotations

from typing import Final

import msgspec

from layoutopt.accesses.lower import assigned, chosen_widths
from layoutopt.engine.case import case_of
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, FasterLayout, Result
from layoutopt.problems.types import FAMILIES, Block, Constraints, Problem
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import Under, estimated

_SHARE: Final = 0.2  # of the time left after the search, for estimates and what is faster
_PADS: Final = ("none", "order", "pad")
# Estimates of equal wavefronts differ by their instructions alone, so that less tells them apart.
_FASTER: Final = 1.005


def with_faster(problem: Problem, result: Result, gpu: Device, budget: Budget) -> Result:
    """The result with its estimate, and with a padded layout where that is estimated faster.

    Args:
        problem: what was solved.
        result: its answer.
        gpu: the device.
        budget: the time there is; without any, the result stays as it is.
    """
    if result.layout is None or budget.spent or problem.layout.objective.time_first:
        return result
    if any(access.any for access in problem.accesses):
        return result
    case = case_of(assigned(problem, result), gpu, chosen_widths(problem, result))
    result = estimated(case, result)
    allowed = tuple(f for f in _PADS if f in (problem.layout.families or FAMILIES))
    if problem.is_dictated or "pad" not in allowed or budget.spent:
        return result
    if result.family in _PADS:
        return result  # the search among pads would find the same again
    constraints = msgspec.structs.replace(problem.layout, families=allowed, minimise="excess")
    padded = _padded(case.asked, gpu, constraints, budget)
    if padded is None or padded.offset == result.offset or budget.spent:
        return result
    return msgspec.structs.replace(result, faster=_faster(result, padded))


def _padded(problem: Problem, gpu: Device, layout: Constraints, budget: Budget) -> Result | None:
    """The best layout under these constraints, with its estimate; None where time does not allow one."""
    try:
        under = Under(problem, gpu, budget)
        result = under.solve(layout, Ask(budget, every_layout=False))
    except OutOfTime:
        return None
    return under.estimated(result) if result.layout is not None else None


def timed(
    problem: Problem | Block,
    result: Result | Arrangement,
    gpu: Device,
    time_limit: float,
    seconds: float,
) -> Result | Arrangement:
    """The same in a share of what a search of so many seconds left of its limit: what `solve` prints.

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


def _faster(result: Result, other: Result) -> FasterLayout | None:
    now, then = result.estimate, other.estimate
    if now is None or then is None or (then.blocks_per_sm or 0) < (now.blocks_per_sm or 0):
        return None
    if then.cycles * _FASTER > now.cycles or then.time * _FASTER > now.time:
        return None
    more = (other.bytes or 0) - (result.bytes or 0)
    parts = [_difference(more, "byte")] if more else []
    saved = then.instructions - now.instructions
    parts += [_difference(saved, "index instruction")] if saved else []
    conflicts = (other.excess or 0) - (result.excess or 0)
    parts += [_difference(conflicts, "wavefront")] if conflicts else []
    share = f"{1 - then.cycles / now.cycles:.1%}"
    text = f"{other.offset}: {share} faster, {', '.join(parts)}; --minimise time is as fast"
    return FasterLayout(other.offset or "", other.bytes or 0, then.cycles, text)


def _difference(value: int | float, noun: str) -> str:
    return f"{abs(value):,} {noun}{'s' if abs(value) != 1 else ''} {'more' if value > 0 else 'fewer'}"
