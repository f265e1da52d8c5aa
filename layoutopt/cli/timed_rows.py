"""The rows of a comparison timed on the GPU of this machine, all in one program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutopt.cli.output import note

if TYPE_CHECKING:
    from layoutopt.codegen.plan import Plan
    from layoutopt.hardware.machine import Gpu
    from layoutopt.problems.types import Problem
    from layoutopt.study.comparison import Comparison


def with_measured(problem: Problem, comparison: Comparison, card: Gpu) -> Comparison:
    """The comparison with measured cycles; rows that a program cannot run keep none.

    Raises:
        MachineError: a tool is missing or fails.
    """
    from layoutopt.codegen.passes import program
    from layoutopt.hardware.machine import run_times

    plans = plans_of(problem, comparison, card)
    if not plans:
        return comparison
    times = run_times(program(list(plans.values())), len(plans), card)
    found = dict(zip(plans, times, strict=True))
    rows = []
    for row in comparison.rows:
        took = found.get(row.offset or "")
        if took is not None:
            row = msgspec.structs.replace(row, measured=took.once, measured_together=took.once_together)
        rows.append(row)
    return msgspec.structs.replace(comparison, rows=tuple(rows))


def plans_of(problem: Problem, comparison: Comparison, card: Gpu) -> dict[str, Plan]:
    """The code of every row that can be used, by its formula, each formula once."""
    from layoutopt.codegen.languages import run_plan
    from layoutopt.errors import LayoutoptError
    from layoutopt.hardware.devices import device
    from layoutopt.problems.lower import with_widths

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
