"""What `solve` prints beside its answer: its estimate, what is faster, and what would leave fewer conflicts.

An XOR in no more bytes costs instructions that a pad does not. Where bytes buy nothing, blocks on a
multiprocessor the same, the answer of `solve` is not what a kernel wants, and it says so.

A file fixes more than a kernel needs: the width of an access, which thread moves what, the order of lanes.
Where conflicts remain, each is asked about in turn, until one leaves fewer wavefronts; the line says what to
write into the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from layoutopt.accesses.free_lanes import is_free
from layoutopt.accesses.lower import MAX_WIDTH_CHOICES, assigned, chosen_widths
from layoutopt.engine.case import Case, case_of
from layoutopt.engine.estimate import why_no_estimate
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Arrangement, FasterLayout, Result
from layoutopt.problems.text import instruction_text
from layoutopt.problems.types import FAMILIES, Access, Block, Problem
from layoutopt.search.instructions import with_free_instructions
from layoutopt.search.proposal import Ask, Progress
from layoutopt.search.solve import Under, estimated, solve
from layoutopt.study.advice import difference
from layoutopt.study.relaxations import Relaxations, narrower_widths

_SHARE: Final = 0.2  # of the time left after the search, for estimates and what is faster
_PADS: Final = ("none", "order", "pad")
# Estimates of equal wavefronts differ by their instructions alone, so that less tells them apart.
_FASTER: Final = 1.005
_WIDTHS_SHARE: Final = 0.5  # of the time for what would leave fewer conflicts, for other widths


def with_faster(
    problem: Problem | Block, found: Result | Arrangement, gpu: Device, left: float | None
) -> Result | Arrangement:
    """The answer with its estimate, and with a padded layout where that is estimated faster.

    Of several tiles, or with an estimate, the answer stays as it is, as it does where no time is left; where
    nothing is estimated, it says so.

    Args:
        problem: what was solved.
        found: its answer.
        gpu: the device.
        left: seconds that the search left, of which a share is used; None for no limit.
    """
    budget = Budget(None if left is None else _SHARE * left)
    if isinstance(problem, Block) or isinstance(found, Arrangement) or found.estimate is not None:
        return found
    if found.layout is None or budget.spent:
        return found
    case = case_of(assigned(problem, found), gpu, chosen_widths(problem, found))
    if (why := why_no_estimate(case)) is not None:
        said = () if case.chooses else (f"no time is estimated, as {why}",)
        return msgspec.structs.replace(found, hints=said)
    if problem.layout.objective.time_first:
        return found
    found = estimated(case, found)
    allowed = tuple(f for f in _PADS if f in (problem.layout.families or FAMILIES))
    # Of a layout with pads, the search among pads would find the same again.
    if problem.is_dictated or "pad" not in allowed or found.family in _PADS or budget.spent:
        return found
    try:
        under = Under(case.asked, gpu, budget)
        constraints = msgspec.structs.replace(problem.layout, families=allowed, minimise="excess")
        padded = under.solve(constraints, Ask(budget, every_layout=False))
    except OutOfTime:
        return found
    if padded.layout is None or padded.offset == found.offset or budget.spent:
        return found
    return msgspec.structs.replace(found, faster=_faster(found, under.estimated(padded)))


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


# What would leave fewer conflicts --------------------------------------------------------------


def with_hints(
    problem: Problem | Block,
    found: Result | Arrangement,
    gpu: Device,
    *,
    budget: Budget,
    progress: Progress = lambda _: None,
) -> Result | Arrangement:
    """The answer; where its layout has conflicts, with a line on what to change in the file to have fewer.

    Unchanged where the solver has chosen widths or lanes already, where values are known only at run time,
    where the hardware dictates the layout, and for several tiles.

    Args:
        problem: what was solved.
        found: its answer.
        gpu: the device.
        budget: the time to look for such a change.
        progress: called with a line of text before that starts.
    """
    if isinstance(problem, Block) or isinstance(found, Arrangement):
        return found
    chosen = is_free(problem) or any(a.any or isinstance(a.bytes, tuple) for a in problem.accesses)
    if found.layout is None or not found.excess or problem.is_dictated or chosen:
        return found
    progress("conflicts remain; what would leave fewer")
    try:
        case = case_of(problem, gpu, budget=budget)
        hint = next(_hints(case, found, found.layout, budget), None)
    except OutOfTime:
        return found
    return found if hint is None else msgspec.structs.replace(found, hints=(*found.hints, hint))


def _hints(case: Case, found: Result, layout: Layout, budget: Budget) -> Iterator[str]:
    yield from _other_widths(case, layout, budget)
    yield from other_instructions(case, layout, budget)
    over = {report.name for report in found.accesses if report.excess}
    ask = Relaxations(case, budget)
    yield from (r.message for r in ask.free_lanes([a for a in ask.accesses if a.name in over]))
    yield from (r.message for r in ask.lane_orders(case.as_bytes(layout), ()))


def other_instructions(case: Case, layout: Layout, budget: Budget) -> Iterator[str]:
    """Instructions with fewer wavefronts in all, of accesses whose own are given."""
    asked = with_free_instructions(case.problem)
    if asked is None or case.chooses:
        return
    try:
        other = solve(asked, target=case.device, budget=budget.part(_WIDTHS_SHARE))
    except ProblemFileError:
        return
    if other.layout is None:
        return
    chosen = assigned(asked, other)
    before = _wavefronts(case, layout)
    after = _wavefronts(case_of(chosen, case.device), other.layout)
    told = [
        f"`{new.name}`{instruction_text(free, new)}"
        for own, free, new in zip(case.problem.accesses, asked.accesses, chosen.accesses, strict=True)
        if (own.op, own.bytes) != (new.op, new.bytes)
    ]
    if after < before and told:
        yield f'with `"instructions": "free"` {after:,g} wavefronts instead of {before:,g}: {", ".join(told)}'


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
        other = solve(asked, target=case.device, budget=budget.part(_WIDTHS_SHARE))
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
    if not isinstance(access.bytes, int):
        return ()
    by_pointer = parse_operation(access.op, access.bytes).does.by_pointer
    return (access.bytes, *narrower_widths(access, case)) if by_pointer else ()


def _wavefronts(case: Case, layout: Layout) -> float:
    """Of all accesses, weights applied."""
    return case.weighted_wavefronts(case.count(case.table(layout))) / case.lanes.weight_unit
