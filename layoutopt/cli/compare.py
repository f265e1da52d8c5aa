"""`layoutopt compare`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.cli.files import FileCommand, OutputPath, write_all
from layoutopt.cli.options import (
    device_file_option,
    opened_store,
    store_option,
    time_limit_option,
)
from layoutopt.cli.output import end_progress, progress, say, say_json, terminal_width
from layoutopt.cli.several import answer_each, problems_argument

if TYPE_CHECKING:
    from layoutopt.files.templates import Value
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.answer import Result
    from layoutopt.problems.types import Block, Problem
    from layoutopt.study.comparison import Comparison
    from layoutopt.sweeps.store import Store


@click.command("compare", cls=FileCommand)
@problems_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a Markdown table.")
@click.option(
    "--plot",
    type=OutputPath(),
    metavar="FILE",
    help="Draw bytes against wavefronts, with --run cycles, as .svg or .png (needs matplotlib).",
)
@click.option(
    "--run",
    is_flag=True,
    help="Run every row on the GPU of this machine: cycles, and counters with ncu (needs nvcc).",
)
@click.option("--offset", metavar="EXPR", help="The layout in use: element offset over x0, x1, ...")
@time_limit_option("Seconds for the search over everything, and as many for the rest.")
@store_option
@device_file_option
def command(
    problems: tuple[Path, ...],
    over: dict[str, tuple[Value, ...]],
    as_json: bool,
    as_csv: bool,
    as_markdown: bool,
    plot: Path | None,
    store: Path | None,
    device_file: Path | None,
    **how: Any,
) -> int:
    """Padding or swizzle? The best layout of each family, what it costs, and which to take.

    Exit code 0: the recommended layout has no conflicts; 1: it has, or there is none.

    PROBLEMS are files, folders, - for standard input, or names of the catalogue, each compared for itself.

    \b
    Example:
      layoutopt compare problems/basics/transpose_32x32_f32.json --plot front.svg
    """
    if as_json + as_csv + as_markdown > 1:
        raise click.UsageError("--json, --csv and --markdown are forms of one answer; use one of them")
    kind = plot.suffix.removeprefix(".").lower() if plot is not None else ""
    if plot is not None and kind not in ("svg", "png"):
        raise click.UsageError(f"--plot: expected a name in .svg or .png, not {str(plot)!r}")
    form = "json" if as_json else "csv" if as_csv else "markdown" if as_markdown else "text"
    work = partial(_compared, form=form, plot=plot, store=opened_store(store), **how)
    one_only = {"--plot": plot, "--csv": as_csv}
    return answer_each(problems, over, work, as_json=as_json, device_file=device_file, one_only=one_only)


def _compared(
    problem: Problem | Block,
    gpu: Device,
    *,
    form: str,
    plot: Path | None,
    store: Store | None,
    run: bool,
    offset: str | None,
    time_limit: float,
) -> int:
    """Compare the layouts of one problem and print them; the exit code."""
    from layoutopt.study.compare import compare

    loaded = _in_use(problem, offset) if offset is not None else problem
    card = None
    if run:
        from layoutopt.hardware.machine import gpu_present

        card = gpu_present()  # or refused before the search
    known = partial(_known, store, gpu, time_limit)
    result = compare(loaded, target=gpu, time_limit=time_limit, progress=progress("comparing"), known=known)
    end_progress()
    if card is not None:
        from layoutopt.cli.timed_rows import with_measured

        result = with_measured(loaded, result, card)
    return _printed(loaded, result, form, plot)


def _in_use(problem: Problem | Block, offset: str) -> Problem:
    """The problem with another layout in use."""
    import msgspec

    from layoutopt.problems.types import Block

    if isinstance(problem, Block):
        raise click.UsageError(
            "--offset is for one tile; of several, the file says each tile's layout "
            "(published, layout.offset)"
        )
    layout = msgspec.structs.replace(problem.layout, offset=offset)
    return msgspec.structs.replace(problem, layout=layout)


def _known(store: Store | None, gpu: Device, time_limit: float, problem: Problem) -> Result | None:
    """The answer to the problem of a tile that the store has."""
    if store is None:
        return None
    from layoutopt.problems.answer import Result
    from layoutopt.sweeps.store import known_answer

    found = known_answer(store, problem, gpu, time_limit=time_limit)
    return found if isinstance(found, Result) else None


def _printed(loaded: Problem | Block, result: Comparison, form: str, plot: Path | None) -> int:
    """Draw and print the rows; the exit code."""
    from layoutopt.report import comparison_text

    if plot is not None:
        _draw(result, plot)
    if form == "json":
        say_json(result.to_json())
    elif form == "csv":
        say(comparison_text.csv_text(result))
    elif form == "markdown":
        say(comparison_text.markdown(loaded, result))
    else:
        width = min(comparison_text.MAX_WIDTH, terminal_width())
        say(comparison_text.text(loaded, result, width))
    if result.recommendation is None:
        return 3 if any(row.status == "unknown" for row in result.rows) else 1
    taken = next(row for row in result.rows if row.family == result.recommendation.family)
    return 1 if taken.excess else 0


def _draw(result: Comparison, plot: Path) -> None:
    from layoutopt.report.plot import chart

    try:
        picture = chart(result, plot.suffix.removeprefix(".").lower())
    except ImportError as error:
        raise click.UsageError(f"--plot needs matplotlib ({error}): pip install 'layoutopt[plot]'") from None
    write_all({plot: picture})
