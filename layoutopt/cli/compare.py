"""`layoutopt compare`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click
import msgspec

from layoutopt.cli.options import form_options, store_option, time_limit_option
from layoutopt.cli.output import end_progress, note, progress, tell, terminal_width
from layoutopt.cli.several import problems_command

if TYPE_CHECKING:
    from layoutopt.codegen.plan import Plan
    from layoutopt.hardware.devices import Device
    from layoutopt.hardware.machine import Gpu
    from layoutopt.problems.types import Block, Problem
    from layoutopt.study.comparison import Comparison, Row
    from layoutopt.sweeps.store import Store


@problems_command("compare")
@form_options()
@click.option(
    "--run",
    is_flag=True,
    help="Time whole passes of every row on the GPU of this machine, with counters where ncu is there (needs "
    "nvcc); `layoutopt run` checks one layout, access by access.",
)
@click.option("--offset", metavar="EXPR", help="The layout in use: element offset over x0, x1, ...")
@time_limit_option("Seconds for the search over everything, and as many for the rest.")
@store_option
def command(
    problem: Problem | Block,
    gpu: Device,
    *,
    run: bool,
    offset: str | None,
    time_limit: float,
    store: Store | None,
    as_json: bool,
) -> int:
    """Padding or swizzle? The best layout of each family, what it costs, and which to take.

    Exit code 0: the recommended layout has no conflicts; 1: it has, or there is none.

    PROBLEMS are files, folders, - for standard input, or names of the catalogue, each compared for itself.

    \b
    Example:
      layoutopt compare problems/basics/transpose_32x32_f32.json
    """
    from layoutopt.problems.types import Problem, constrained
    from layoutopt.report.comparison_text import MAX_WIDTH, text
    from layoutopt.study.compare import compare

    if offset is not None:
        if not isinstance(problem, Problem):
            raise click.UsageError(
                "--offset is for one tile; of several, the file says each tile's layout "
                "(published, layout.offset)"
            )
        problem = constrained(problem, offset=offset)
    card = None
    if run:
        from layoutopt.hardware.machine import gpu_present

        card = gpu_present()  # or refused before the search
    known = None if store is None else store.answer(problem, gpu, time_limit=time_limit)
    result = compare(problem, target=gpu, time_limit=time_limit, progress=progress("comparing"), known=known)
    end_progress()
    if card is not None:
        result = with_measured(problem, result, card)
    tell(as_json, result.to_json, lambda: text(problem, result, min(MAX_WIDTH, terminal_width())))
    if result.recommendation is None:
        return 3 if any(row.status == "unknown" for row in result.rows) else 1
    taken = next(row for row in result.rows if row.family == result.recommendation.family)
    return 1 if taken.excess else 0


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
    rows = list(comparison.rows)
    for k, row in enumerate(rows):
        layouts = _layouts(row)
        if layouts and all(layout in took for layout in layouts):
            found: dict[str, Any] = {"measured": sum(took[layout].once for layout in layouts)}
            if len(layouts) == 1:
                found["measured_together"] = took[layouts[0]].once_together
            if read:
                found |= _counters([(plans[layout], read[layout]) for layout in layouts])
            rows[k] = msgspec.structs.replace(row, **found)
    return msgspec.structs.replace(comparison, rows=tuple(rows), measured_on=card.name, not_counted=missing)


def _layouts(row: Row) -> list[Layout]:
    """The layouts of a row that can be used: one for each tile, or for tiles that share it."""
    from layoutopt.study.comparison import BlockRow

    if row.wavefronts is None:
        return []
    if isinstance(row, BlockRow):
        return [(k, tile.offset) for k, tile in enumerate(row.tiles)]
    return [] if row.offset is None else [(0, row.offset)]


def _counters(measured: list[tuple[Plan, dict[str, int]]]) -> dict[str, Any]:
    """The profiler's counters of a pass over all tiles, beside what is predicted for their accesses."""
    from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS
    from layoutopt.hardware.machine import compared

    total, as_predicted = Counter[str](), True
    for plan, own in measured:
        predicted = Counter[str]()
        for access in plan.accesses:
            predicted.update(access.counters(plan.device))
        if not predicted:
            return {}
        seen = compared(predicted, own)
        total.update(seen)
        as_predicted &= seen == predicted
    conflicts = {"counted_bank_conflicts": total[BANK_CONFLICTS], "counted_as_predicted": as_predicted}
    return {"counted_wavefronts": total[WAVEFRONTS], **conflicts}


def plans_of(problem: Problem | Block, comparison: Comparison, card: Gpu) -> dict[Layout, Plan]:
    """The code of every row that can be used, each layout once."""
    from layoutopt.accesses.lower import with_widths
    from layoutopt.codegen.languages import run_plan
    from layoutopt.errors import LayoutoptError
    from layoutopt.hardware.devices import device
    from layoutopt.problems.same_layout import groups
    from layoutopt.problems.types import Problem

    gpu = device(card.target)
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
