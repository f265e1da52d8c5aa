"""`layoutopt sweep`."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from layoutopt.cli.files import FileCommand, InputPath, OutputPath, TextOrFile, write_all
from layoutopt.cli.options import (
    ProblemPath,
    device_file_option,
    form_options,
    more_devices,
    time_limit_option,
)
from layoutopt.cli.output import USAGE_ERROR, end_progress, fault, note, one_line, progress, tell
from layoutopt.cli.several import over_option, sources
from layoutopt.problems.answer import METHODS, Method

if TYPE_CHECKING:
    from layoutopt.files.templates import Value
    from layoutopt.sweeps.store import Store
    from layoutopt.sweeps.sweep import Sweep

_NAMED: Final = 20


@click.command("sweep", cls=FileCommand)
@click.argument("problems", type=ProblemPath(), nargs=-1)
@over_option
@click.option(
    "-o", "--store", "output", type=OutputPath(), metavar="STORE", help="The store, an SQLite file."
)
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N", help="Processes  [default: one a core]")
@click.option(
    "--scheduler",
    type=TextOrFile(),
    metavar="ADDRESS",
    help="Address or file of a Dask scheduler, instead of --workers.",
)
@time_limit_option("Seconds for each problem.")
@click.option("--method", type=click.Choice(METHODS), default="auto", show_default=True, help="As for solve.")
@click.option("--conflict-free", is_flag=True, help="Accept only layouts without conflicts.")
@device_file_option
@click.option("--report", type=InputPath(), metavar="STORE", help="Report on a store, and solve nothing.")
@click.option(
    "--export",
    type=OutputPath(),
    metavar="FILE",
    help="Write a .parquet, .csv, .json, .cuh or .h.",
)
@form_options("Print the report as one JSON object.", output=False)
def command(
    problems: tuple[Path, ...],
    over: dict[str, tuple[Value, ...]],
    output: Path | None,
    workers: int | None,
    scheduler: str | None,
    time_limit: float,
    method: Method,
    conflict_free: bool,
    device_file: Path | None,
    report: Path | None,
    export: Path | None,
) -> int:
    """Solve many problems, on all cores or a cluster, into a store that a later call continues.

    PROBLEMS are files, folders, templates, names of the catalogue, or - for standard input. Each different
    question is solved once, and every answer is kept as soon as it is there: after a crash or Ctrl-C, the
    same command goes on.

    \b
    Example:
      layoutopt sweep gemm.json --over M=64,128,256 -o gemm.sqlite --export gemm.cuh
      layoutopt sweep --report gemm.sqlite
    """
    from layoutopt.sweeps.export import EXPORTS
    from layoutopt.sweeps.store import Store

    if export is not None and export.suffix not in EXPORTS:
        raise click.UsageError(f"--export: expected a name in {', '.join(EXPORTS)}, not {str(export)!r}")
    path = report if report is not None else output
    if path is None:
        raise click.UsageError("a store is needed: -o STORE to solve, --report STORE to look")
    if report is not None and (problems or output is not None):
        raise click.UsageError("--report solves nothing; leave out the problems and -o")
    if not problems:
        with Store(path, write=False) as store:
            _report(store, export, {})
        return 0
    if workers is not None and scheduler is not None:
        raise click.UsageError("--workers are of this machine, --scheduler of a cluster; use one of them")
    from layoutopt.sweeps.sweep import sweep

    if scheduler is not None:  # what Dask logs of a scheduler that is gone is a line of ours
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
    asked: dict[str, Any] = {"workers": workers, "scheduler": scheduler, "time_limit": time_limit}
    asked |= {"method": method, "conflict_free": conflict_free, "devices": more_devices(device_file)}
    show = progress("sweep")

    def told(now: Sweep) -> None:
        answered = now.answered_before + now.solved.total()
        show(f"{answered:,} of {now.questions:,}, {now.rate:.1f} a second")

    with sweep(*sources(problems), store=path, over=over, progress=told, **asked) as done:
        end_progress()
        _tell(done)
        _report(done.store, export, _numbers(done))
        codes = {"infeasible": 1, "error": USAGE_ERROR, "unknown": 3, "missing": 3}
        worst = [codes.get(status, 1 if conflicts else 0) for status, conflicts in done.outcomes]
        return max([*worst, USAGE_ERROR if done.wrong else 0])


def _tell(done: Sweep) -> None:
    """What is wrong, or was lost, on stderr."""
    for line in done.wrong[:_NAMED]:
        fault(one_line(line))
    if len(done.wrong) > _NAMED:
        fault(f"and {len(done.wrong) - _NAMED:,} more that are wrong")
    for outcome in done.lost[:_NAMED]:
        fault(f"{outcome.hash[:12]}: {one_line(outcome.error)}")
    note(
        f"{done.problems:,} problems, {done.questions:,} different: {done.answered_before:,} were answered, "
        f"{done.solved.total():,} solved in {done.seconds:.1f} s ({done.rate:.1f} a second)"
    )


def _numbers(done: Sweep) -> dict[str, Any]:
    return {
        "problems": done.problems,
        "questions": done.questions,
        "answered_before": done.answered_before,
        "solved": done.solved.total(),
        "lost": len(done.lost),
        "elapsed_seconds": round(done.seconds, 3),
    }


def _report(store: Store, export: Path | None, more: dict[str, Any]) -> None:
    """Write the export and print the report."""
    from layoutopt.sweeps.export import EXPORTS
    from layoutopt.sweeps.report import summary_of, text_of

    found = summary_of(store)
    if export is not None:
        write_all({export: partial(EXPORTS[export.suffix], store, export.stem)})
    tell(lambda: vars(found) | more, text=lambda: text_of(found))
