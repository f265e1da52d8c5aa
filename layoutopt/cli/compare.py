"""`layoutopt compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.cli.options import form_options, store_option, time_limit_option
from layoutopt.cli.output import end_progress, note, progress, tell, terminal_width
from layoutopt.cli.several import problems_command
from layoutopt.hardware.machine import gpu_present

if TYPE_CHECKING:
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.types import Block, Problem
    from layoutopt.sweeps.store import Store


@problems_command("compare", one_only=("csv",))
@form_options("Print one JSON object.", "csv", "markdown")
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
) -> int:
    """Padding or swizzle? The best layout of each family, what it costs, and which to take.

    Exit code 0: the recommended layout has no conflicts; 1: it has some, or there is no layout.

    PROBLEMS are files, folders, - for standard input, or names of the catalogue, each compared on its own.

    \b
    Example:
      layoutopt compare problems/basics/transpose_32x32_f32.json
    """
    from layoutopt.problems.types import Problem, constrained
    from layoutopt.report import comparison_text
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
        card = gpu_present()  # or refused before the search
    known = None if store is None else store.answer(problem, gpu, time_limit=time_limit)
    result = compare(problem, target=gpu, time_limit=time_limit, progress=progress("comparing"), known=known)
    end_progress()
    if card is not None:
        from layoutopt.codegen.passes import with_measured

        result = with_measured(problem, result, card, note)
    tell(
        result.to_json,
        csv=lambda: comparison_text.csv_text(result),
        markdown=lambda: comparison_text.markdown(problem, result),
        text=lambda: comparison_text.text(problem, result, min(comparison_text.MAX_WIDTH, terminal_width())),
    )
    if result.recommendation is None:
        return 3 if any(row.status == "unknown" for row in result.rows) else 1
    taken = next(row for row in result.rows if row.family == result.recommendation.family)
    return 1 if taken.excess else 0
