"""`layoutopt check`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.cli.files import InputPath
from layoutopt.cli.kernel import LaunchOptions, check_kernels, given_option, is_kernel, launch_options
from layoutopt.cli.options import ProblemPath, device_file_option, json_option, time_limit_option
from layoutopt.cli.output import say, say_json
from layoutopt.cli.several import answer_each, over_option

if TYPE_CHECKING:
    from layoutopt.files.templates import Value
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.types import Block, Problem
    from layoutopt.study.check import Audit, BlockAudit


@click.command("check")
@click.argument("problems", type=ProblemPath(allow_dash=True), nargs=-1, required=True)
@over_option
@click.option("--offset", metavar="EXPR", help="The layout: element offset over x0, x1, ...")
@click.option(
    "--table",
    type=InputPath(),
    metavar="FILE",
    help="The layout: byte offsets as .npy, in the tile's shape.",
)
@json_option("Print the audit as one JSON object.")
@click.option("--no-fix", is_flag=True, help="Do not search for a better layout.")
@time_limit_option("Seconds to search for a better layout.")
@device_file_option
@launch_options
def command(
    problems: tuple[Path, ...],
    over: dict[str, tuple[Value, ...]],
    offset: str | None,
    table: Path | None,
    as_json: bool,
    no_fix: bool,
    time_limit: float,
    device_file: Path | None,
    **launch: Any,
) -> int:
    """Audit a layout that is in use: what it costs, what is wrong with it, what would mend it.

    Without --offset or --table it is the file's layout.offset, else its published.offset.
    Exit code 1: there are conflicts, or the layout cannot hold the tile.

    A kernel (.cubin, .cu, .sass, .ptx, an executable) is evaluated on the CPU, one launch of it: its lines
    that touch shared memory, what the profiler will count for them, and what to change.

    PROBLEMS are files, folders, - for standard input, or names of the catalogue, each audited for itself.

    \b
    Example:
      layoutopt check problems/basics/transpose_32x32_f32.json --offset "x0*32 + x1"
      layoutopt check transpose.cu --block 32,8 --grid 32,32 --arg 2=1024
    """
    options = LaunchOptions(**launch)
    kernels = [path for path in problems if is_kernel(path)]
    if kernels:
        if len(kernels) != len(problems) or offset is not None or table is not None or over:
            raise click.UsageError("a kernel is checked without problems, --offset, --table and --over")
        return check_kernels(kernels, options, as_json=as_json, no_fix=no_fix, time_limit=time_limit)
    if (needless := given_option()) is not None:
        raise click.UsageError(f"{needless} is for kernels; {problems[0]} is none")
    if offset is not None and table is not None:
        raise click.UsageError("--offset and --table both give the layout; use one")
    work = partial(_audited, offset=offset, table=table, as_json=as_json, no_fix=no_fix, limit=time_limit)
    return answer_each(problems, over, work, as_json, device_file)


def _audited(
    problem: Problem | Block,
    gpu: Device,
    *,
    offset: str | None,
    table: Path | None,
    as_json: bool,
    no_fix: bool,
    limit: float,
) -> int:
    """Audit the layout of one problem and print what comes out; the exit code."""
    from layoutopt.files.array_file import read_offsets
    from layoutopt.ground.budget import deadline
    from layoutopt.problems.types import Block
    from layoutopt.report.text import audit_report
    from layoutopt.study.check import AuditStatus, check

    how: dict[str, Any] = {"target": gpu, "mend": not no_fix}
    layout: Any = offset
    if not isinstance(problem, Block):
        layout = read_offsets(table, problem.tile.shape, "--table") if table is not None else offset
    elif offset is not None or table is not None:
        raise click.UsageError(
            f"{'--offset' if table is None else '--table'} is one tile's; of several, the file says each "
            "tile's layout: tiles[i].published.offset"
        )
    with deadline(limit):
        audit: Audit | BlockAudit = (
            check(problem, **how) if isinstance(problem, Block) else check(problem, layout, **how)
        )
    if as_json:
        say_json(audit.to_json())
    else:
        say(audit_report(problem, audit))
    return 0 if audit.status is AuditStatus.CONFLICT_FREE else 1
