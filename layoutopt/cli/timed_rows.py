"""The rows of a comparison on the GPU of this machine, all in one program: cycles and counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from layoutopt.cli.output import note

if TYPE_CHECKING:
    from layoutopt.codegen.plan import Plan
    from layoutopt.hardware.machine import Gpu
    from layoutopt.problems.types import Problem
    from layoutopt.study.comparison import Comparison


def with_measured(problem: Problem, comparison: Comparison, card: Gpu) -> Comparison:
    """The comparison with what was measured; rows that a program cannot run keep nothing.

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
    found: dict[str, dict[str, Any]] = {
        offset: {"measured": took.once, "measured_together": took.once_together}
        for offset, took in zip(plans, times, strict=True)
    }
    if not isinstance(counted, str):
        for (offset, plan), read in zip(plans.items(), counted, strict=True):
            found[offset] |= _counters(plan, read)
    rows = tuple(
        row if row.wavefronts is None else msgspec.structs.replace(row, **found.get(row.offset or "", {}))
        for row in comparison.rows
    )
    return msgspec.structs.replace(comparison, rows=rows, measured_on=card.name, not_counted=missing)


def _counters(plan: Plan, read: dict[str, int]) -> dict[str, Any]:
    """The profiler's counters of a pass, beside what is predicted for all its accesses."""
    from layoutopt.hardware.counters import BANK_CONFLICTS, WAVEFRONTS, counters
    from layoutopt.hardware.machine import compared

    predicted: dict[str, int] = {}
    for access in plan.accesses:
        wavefronts, conflicts = int(access.report.wavefronts), int(access.report.bank_conflicts)
        for name, value in counters(plan.device, access.lanes.operation, wavefronts, conflicts).items():
            predicted[name] = predicted.get(name, 0) + value
    if not predicted:
        return {}
    seen = compared(predicted, read)
    return {
        "counted_wavefronts": seen[WAVEFRONTS],
        "counted_bank_conflicts": seen[BANK_CONFLICTS],
        "counted_as_predicted": seen == predicted,
    }


def plans_of(problem: Problem, comparison: Comparison, card: Gpu) -> dict[str, Plan]:
    """The code of every row that can be used, by its formula, each formula once."""
    from layoutopt.accesses.lower import with_widths
    from layoutopt.codegen.languages import run_plan
    from layoutopt.errors import LayoutoptError
    from layoutopt.hardware.devices import device

    gpu = device(f"sm_{card.compute_capability.replace('.', '')}")
    problem = msgspec.structs.replace(with_widths(problem, comparison.widths), target=gpu.name)
    plans: dict[str, Plan] = {}
    for row in comparison.rows:
        if row.wavefronts is None or row.offset is None or row.offset in plans:
            continue
        named = msgspec.structs.replace(problem, name=f"row {len(plans)}")
        try:
            plans[row.offset] = run_plan(named, gpu, row.offset)
        except LayoutoptError as error:
            note(f"{row.title} is not run: {error}")
    return plans
