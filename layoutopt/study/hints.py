"""What would do better than an answer that leaves conflicts, in a line that says what to write into the file.

A file fixes more than a kernel needs: the width of an access, which thread moves what, the order of lanes.
Where conflicts remain, each is asked about in turn, until one leaves fewer wavefronts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

import msgspec

from layoutopt.accesses.free_lanes import is_free
from layoutopt.accesses.lower import MAX_WIDTH_CHOICES, chosen_widths
from layoutopt.engine.case import Case, case_of
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Arrangement, Result
from layoutopt.problems.types import Access, Block, Problem
from layoutopt.search.solve import solve
from layoutopt.study.relaxations import Relaxations

_MOST_SECONDS: Final = 2.0
_SHARE: Final = 0.5  # of the time, for other widths


def with_hints(
    problem: Problem | Block, found: Result | Arrangement, gpu: Device, seconds: float
) -> Result | Arrangement:
    """The answer, with what would do better than it where it leaves conflicts.

    Args:
        problem: what was solved.
        found: its answer.
        gpu: the device.
        seconds: what is left of the time limit.
    """
    if (
        isinstance(problem, Block)
        or isinstance(found, Arrangement)
        or found.layout is None
        or not found.excess
    ):
        return found
    fixed = not any(access.any or isinstance(access.bytes, tuple) for access in problem.accesses)
    if problem.is_dictated or is_free(problem) or not fixed:
        return found  # what could be chosen was
    budget = Budget(min(_MOST_SECONDS, max(0.0, seconds)))
    try:
        case = case_of(problem, gpu, budget=budget)
        hint = next(_hints(case, found, found.layout, budget), None)
    except OutOfTime:
        return found
    return found if hint is None else msgspec.structs.replace(found, hints=(*found.hints, hint))


def _hints(case: Case, found: Result, layout: Layout, budget: Budget) -> Iterator[str]:
    yield from _other_widths(case, layout, budget)
    over = {report.name for report in found.accesses if report.excess}
    ask = Relaxations(case, budget)
    yield from (r.message for r in ask.free_lanes([a for a in ask.accesses if a.name in over]))
    yield from (r.message for r in ask.lane_orders(case.as_bytes(layout), ()))


def _other_widths(case: Case, layout: Layout, budget: Budget) -> Iterator[str]:
    """Narrower accesses with fewer wavefronts in all."""
    choices = {a.name: widths for a in case.asked.accesses if len(widths := _widths(a, case)) > 1}
    while math.prod(map(len, choices.values())) > MAX_WIDTH_CHOICES:
        choices.popitem()
    if not choices:
        return
    accesses = (msgspec.structs.replace(a, bytes=choices.get(a.name, a.bytes)) for a in case.asked.accesses)
    asked = msgspec.structs.replace(case.asked, accesses=tuple(accesses))
    try:
        other = solve(asked, target=case.device, budget=budget.part(_SHARE))
    except ProblemFileError:
        return  # a constraint contradicts what an access becomes
    if other.layout is None:
        return
    chosen = chosen_widths(asked, other)
    saved = _wavefronts(case, layout) - _wavefronts(case_of(asked, case.device, chosen), other.layout)
    narrower = {name: width for name, width in chosen.items() if width != choices[name][0]}
    if saved > 0 and narrower:
        typed = " and ".join(
            f'"bytes": [{choices[name][0]}, {width}] for `{name}`' for name, width in narrower.items()
        )
        yield f"{typed}: {saved:,g} fewer wavefronts, {other.offset}"


def _widths(access: Access, case: Case) -> tuple[int, ...]:
    """The width of an access and those below it that serve it as well, in bytes."""
    operation = parse_operation(access.op, access.single_width)
    if not isinstance(access.bytes, int) or not operation.does.narrows or not operation.does.by_pointer:
        return ()
    least = max(case.problem.tile.storage.element_bytes, case.device.bank_bytes)
    halves = itertools.takewhile(lambda width: width >= least, (access.bytes >> k for k in range(4)))
    return tuple(halves)


def _wavefronts(case: Case, layout: Layout) -> float:
    """Of all accesses, weights applied."""
    return case.weighted_wavefronts(case.count(case.table(layout))) / case.lanes.weight_unit
