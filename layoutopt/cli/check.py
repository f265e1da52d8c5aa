"""`layoutopt check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.cli.files import InputPath
from layoutopt.cli.kernel import LaunchOptions, check_kernels, given_option, is_kernel, launch_options
from layoutopt.cli.options import json_option, time_limit_option
from layoutopt.cli.output import tell
from layoutopt.cli.several import problems_command

if TYPE_CHECKING:
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.types import Block, Problem
    from layoutopt.study.check import Audit, BlockAudit


def _kernels(
    paths: tuple[Path, ...],
    *,
    over: dict[str, Any],
    offset: str | None,
    table: Path | None,
    device_file: Path | None,
    **options: Any,
) -> int | None:
    """Check kernels, which are no problems; None where there are none."""
    kernels = [path for path in paths if is_kernel(path)]
    if offset is not None and table is not None:
        raise click.UsageError("--offset and --table both give the layout; use one")
    if kernels:
        if len(kernels) != len(paths) or offset is not None or table is not None or over:
            raise click.UsageError("a kernel is checked without problems, --offset, --table and --over")
        how = {option: options.pop(option) for option in ("as_json", "no_fix", "time_limit")}
        return check_kernels(kernels, LaunchOptions(**options), **how)
    if (needless := given_option()) is not None:
        raise click.UsageError(f"{needless} is for kernels; {paths[0]} is none")
    return None


@problems_command("check", before=_kernels)
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
@launch_options
def command(
    problem: Problem | Block,
    gpu: Device,
    *,
    offset: str | None,
    table: Path | None,
    as_json: bool,
    no_fix: bool,
    time_limit: float,
    **_: Any,
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
    with deadline(time_limit):
        audit: Audit | BlockAudit = (
            check(problem, **how) if isinstance(problem, Block) else check(problem, layout, **how)
        )
    tell(as_json, audit.to_json, lambda: audit_report(problem, audit))
    return 0 if audit.status is AuditStatus.CONFLICT_FREE else 1
