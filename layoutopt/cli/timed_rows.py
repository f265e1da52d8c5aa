"""The rows of a comparison on the GPU of this machine, all in one program: cycles and counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from layoutopt.cli.output import note

if TYPE_CHECKING:
    from layoutopt.codegen.plan import Plan
    from layoutopt.hardware.machine import Gpu
    from layoutopt.problems.types import Block, Problem
    from layoutopt.study.comparison import Comparison, Row

Layout = tuple[int, str]
"""What gets one layout, by its number, and the formula."""


def with_measured(problem: Problem | Block, comparison: Comparison, card: Gpu) -> Comparison:
    """The comparison with what was measured; rows that a program cannot run keep nothing.

    Of several tiles, each is run by itself, and a row has the sum of its tiles.

    Raises:
        MachineError: a tool is missing or fails.
    """
    from layoutopt.codegen.passes import program
    from layoutopt.hardware.machine import run_passes

    plans = plans_of(problem, comparison, card)
    if not plans:
        return comparison
    times, counted = run_passes(program(list(plans.values())), len(plans), card)
    missing = counted if isinstance(counted, str) else None
    took = dict(zip(plans, times, strict=True))
    read = {} if isinstance(counted, str) else dict(zip(plans, counted, strict=True))
    rows = []
    for row in comparison.rows:
        layouts = _layouts(row)
        if layouts and all(layout in took for layout in layouts):
            found: dict[str, Any] = {"measured": sum(took[layout].once for layout in layouts)}
            if len(layouts) == 1:
                found["measured_together"] = took[layouts[0]].once_together
            if read:
                found |= _counters(
                    [plans[layout] for layout in layouts], [read[layout] for layout in layouts]
                )
            row = msgspec.structs.replace(row, **found)
        rows.append(row)
    return msgspec.structs.replace(comparison, rows=tuple(rows), measured_on=card.name, not_counted=missing)


def _layouts(row: Row) -> list[Layout]:
    """The layouts of a row that can be used: one for each tile, or for tiles that share it."""
    from layoutopt.study.comparison import BlockRow

    if row.wavefronts is None:
        return []
    if isinstance(row, BlockRow):
        return [(k, tile.offset) for k, tile in enumerate(row.tiles)]
    return [] if row.offset is None else [(0, row.offset)]


def _counters(plans: list[Plan], read: list[dict[str, int]]) -> dict[str, Any]:
    """The profiler's counters of a pass over all tiles, beside what is predicted for their accesses."""
    from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS, counters
    from layoutopt.hardware.machine import compared

    found = {"counted_wavefronts": 0, "counted_bank_conflicts": 0, "counted_as_predicted": True}
    for plan, own in zip(plans, read, strict=True):
        predicted: dict[str, int] = {}
        for access in plan.accesses:
            wavefronts, conflicts = int(access.report.wavefronts), int(access.report.bank_conflicts)
            for name, value in counters(plan.device, access.lanes.operation, wavefronts, conflicts).items():
                predicted[name] = predicted.get(name, 0) + value
        if not predicted:
            return {}
        seen = compared(predicted, own)
        found["counted_wavefronts"] += seen[WAVEFRONTS]
        found["counted_bank_conflicts"] += seen[BANK_CONFLICTS]
        found["counted_as_predicted"] &= seen == predicted
    return found


def plans_of(problem: Problem | Block, comparison: Comparison, card: Gpu) -> dict[Layout, Plan]:
    """The code of every row that can be used, each layout once."""
    from layoutopt.accesses.lower import with_widths
    from layoutopt.codegen.languages import run_plan
    from layoutopt.errors import LayoutoptError
    from layoutopt.hardware.devices import device
    from layoutopt.problems.types import Problem
    from layoutopt.search.same_layout import groups

    gpu = device(f"sm_{card.compute_capability.replace('.', '')}")
    asked = [problem] if isinstance(problem, Problem) else [shared for _, shared in groups(problem)]
    own = [msgspec.structs.replace(with_widths(one, comparison.widths), target=gpu.name) for one in asked]
    plans: dict[Layout, Plan] = {}
    for row in comparison.rows:
        for number, offset in _layouts(row):
            if (number, offset) in plans:
                continue
            named = msgspec.structs.replace(own[number], name=f"row {len(plans)}")
            try:
                plans[number, offset] = run_plan(named, gpu, offset)
            except LayoutoptError as error:
                note(f"{row.title} is not run: {error}")
    return plans
