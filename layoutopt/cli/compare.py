"""`layoutopt compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from layoutopt.cli.options import form_options, store_option, time_limit_option
from layoutopt.cli.output import end_progress, note, progress, say, say_json, terminal_width
from layoutopt.cli.several import problems_command
from layoutopt.hardware.machine import gpu_present

if TYPE_CHECKING:
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.types import Block, Problem
    from layoutopt.study.comparison import Comparison
    from layoutopt.sweeps.store import Store


@problems_command("compare", one_only=("as_csv",))
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
    **formed: bool,
) -> int:
    """Padding or swizzle? The best layout of each family, what it costs, and which to take.

    Exit code 0: the recommended layout has no conflicts; 1: it has some, or there is no layout.

    PROBLEMS are files, folders, - for standard input, or names of the catalogue, each compared on its own.

    \b
    Example:
      layoutopt compare problems/basics/transpose_32x32_f32.json
    """
    forms = [name for name, wanted in formed.items() if wanted]
    if len(forms) > 1:
        raise click.UsageError("--json, --csv and --markdown are forms of one answer; use one of them")
    from layoutopt.problems.types import Problem, constrained
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
    return _printed(problem, result, forms)


def _printed(problem: Problem | Block, result: Comparison, forms: list[str]) -> int:
    """Print the rows; the exit code."""
    from layoutopt.report import comparison_text

    if "as_json" in forms:
        say_json(result.to_json())
    elif "as_csv" in forms:
        say(comparison_text.csv_text(result))
    elif forms:
        say(comparison_text.markdown(problem, result))
    else:
        say(comparison_text.text(problem, result, min(comparison_text.MAX_WIDTH, terminal_width())))
    if result.recommendation is None:
        return 3 if any(row.status == "unknown" for row in result.rows) else 1
    taken = next(row for row in result.rows if row.family == result.recommendation.family)
    return 1 if taken.excess else 0
