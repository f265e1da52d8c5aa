"""`layoutopt check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.cli.options import ProblemPath, device_file_option, problem_device

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@click.command("check")
@click.argument("problem", type=ProblemPath())
@click.option("--offset", metavar="EXPR", help="The layout: element offset over x0, x1, ...")
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The layout: byte offsets as .npy, in the tile's shape.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the audit as one JSON object.")
@click.option("--no-fix", is_flag=True, help="Do not search for a better layout.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds for each search for a better layout.",
)
@device_file_option
def command(
    problem: Path,
    offset: str | None,
    table: Path | None,
    as_json: bool,
    no_fix: bool,
    time_limit: float,
    device_file: Path | None,
) -> int:
    """Audit a layout that is in use: what it costs, what is wrong with it, what would mend it.

    Without --offset or --table it is the file's layout.offset, else its published.offset.
    Exit code 1: there are conflicts, or the layout cannot hold the tile.

    \b
    Example:
      layoutopt check problems/basics/transpose_32x32_f32.json --offset "x0*32 + x1"
    """
    if offset is not None and table is not None:
        raise click.UsageError("--offset and --table both give the layout; use one")
    from layoutopt.problems.answer import Result, Status
    from layoutopt.problems.file import load
    from layoutopt.problems.types import Problem
    from layoutopt.study.check import check

    loaded = load(problem)
    gpu = problem_device(loaded, device_file)

    def solver(changed: Problem) -> Result:
        from layoutopt.synthesis.solve import solve

        return solve(changed, time_limit=time_limit, target=gpu)

    layout = read_table(table) if table is not None else offset
    audit = check(loaded, layout, target=gpu, solver=None if no_fix else solver)
    if as_json:
        click.echo(json.dumps(audit.to_json()))
    else:
        from layoutopt.report.text import audit_report

        click.echo(audit_report(loaded, audit), nl=False)
    return 1 if audit.excess or audit.status is Status.INFEASIBLE else 0


def read_table(path: Path) -> npt.NDArray[np.integer[Any]]:
    """The array in an .npy file.

    Raises:
        ProblemFileError: there is none.
    """
    import numpy as np

    from layoutopt.errors import ProblemFileError

    try:
        table = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ProblemFileError("--table", f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except ValueError as error:
        raise ProblemFileError("--table", f"{str(path)!r} is not an .npy array: {error}") from None
    if not isinstance(table, np.ndarray):
        raise ProblemFileError("--table", f"{str(path)!r} holds several arrays; expected one .npy array")
    return table
