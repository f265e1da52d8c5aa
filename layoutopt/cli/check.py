"""`layoutopt check`."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import Meta, Struct

from layoutopt.cli.files import InputPath, OutputPath
from layoutopt.cli.kernel import LAUNCH, check_kernels, given_option, is_kernel, is_launches, launch_options
from layoutopt.cli.options import form_options, time_limit_option
from layoutopt.cli.output import form, tell
from layoutopt.cli.several import problems_command
from layoutopt.errors import ProblemFileError
from layoutopt.ground import json_data
from layoutopt.ground.budget import deadline
from layoutopt.ground.escape import shown

if TYPE_CHECKING:
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.types import Block, Problem


def _kernels(paths: tuple[Path, ...], options: dict[str, Any]) -> tuple[Path, ...] | int:
    """Check kernels, which are no problems; the problems where there are none."""
    if not paths:
        paths, baseline = _configured(Path())
        options["baseline"] = options["baseline"] or baseline
    kernels = [path for path in paths if is_kernel(path) or is_launches(path)]
    of_tiles = {name: options[name] for name in ("offset", "table", "over")}
    if of_tiles["offset"] is not None and of_tiles["table"] is not None:
        raise click.UsageError("--offset and --table both give the layout; use one")
    if kernels:
        other = next((path for path in paths if path not in kernels), None)
        if other is not None and str(other).isdecimal():
            raise click.UsageError(f"unexpected {other}; extents are one word, such as --block 32,{other}")
        if other is not None:
            raise click.UsageError(f"{kernels[0]} is a kernel, and {other} is none; check them one by one")
        if any(value not in (None, {}) for value in of_tiles.values()):
            raise click.UsageError(f"--offset, --table and --over are for tiles; {kernels[0]} is a kernel")
        how = {option: options[option] for option in (*_TOGETHER, "no_fix", "time_limit")}
        return check_kernels(kernels, {option: options[option] for option in LAUNCH}, **how)
    for path in paths:
        _check_kind(path)
    if (needless := given_option()) is not None:
        raise click.UsageError(f"{needless} is for kernels; {paths[0]} is none")
    if form() not in ("text", "json") or any(options[option] for option in _TOGETHER):
        raise click.UsageError(f"--format, --html and --baseline are for kernels; {paths[0]} is none")
    return paths


class _Checked(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of such a file, whose names are relative to its folder."""

    check: Annotated[tuple[str, ...], Meta(min_length=1)]
    baseline: str | None = None


def _configured(folder: Path) -> tuple[tuple[Path, ...], Path | None]:
    """The paths to check where nothing is named, and the baseline, as a file of a folder has them.

    That is layoutopt.toml, or [tool.layoutopt] of pyproject.toml.

    Raises:
        ProblemFileError: the file is wrong.
        UsageError: there is none, or it names nothing.
    """
    for name, table in (("layoutopt.toml", ()), ("pyproject.toml", ("tool", "layoutopt"))):
        path = folder / name
        if not path.is_file():
            continue
        try:
            found: Any = tomllib.loads(json_data.read(path, _MAX_BYTES).decode())
        except (ValueError, RecursionError) as error:
            raise ProblemFileError(name, f"no TOML: {shown(str(error), 200)}") from None
        for key in table:
            found = found.get(key, {}) if isinstance(found, dict) else {}
        if found:
            with json_data.named_by(name):
                asked = json_data.convert(found, _Checked, ".".join(table))
            baseline = folder / asked.baseline if asked.baseline is not None else None
            return tuple(folder / path for path in asked.check), baseline
    raise click.UsageError("nothing to check: name files, or write check = [...] into layoutopt.toml")


def _check_kind(path: Path) -> None:
    """Refuse sources that are nothing to check, and a folder of kernels, with what to give instead."""
    from layoutopt.files.inputs import files

    if path.suffix.lower() in _SOURCES and path.is_file():
        way = f"{path}: expected a kernel (.cu, .ptx, .cubin), launches or a problem file (.json)"
        if path.suffix == ".py":
            way += f"; of a Python program: layoutopt capture -o launches -- python {path}"
        raise click.UsageError(way)
    if path.is_dir() and (given_option() is not None or not files(path)):
        found = sorted(inside for inside in os.listdir(path) if is_kernel(path / inside))
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        if found:
            named = f"{', '.join(found[:_MOST_NAMED])}{more}"
            raise click.UsageError(f"{path} is a folder of kernels; give one of them: {named}")


_MAX_BYTES = 16 << 20  # of a file that says what is checked
_SOURCES = (".py", ".c", ".cc", ".cpp", ".cxx", ".cuh", ".h", ".hpp", ".hip")
_MOST_NAMED = 5
_TOGETHER = ("html", "baseline", "update_baseline")
_SECTIONS = {
    "Options for tiles": ("over", "device_file", "offset", "table"),
    "Options for kernels": (*LAUNCH, "cache", "html", "baseline", "update_baseline"),
}


@problems_command("check", before=_kernels, sections=_SECTIONS)
@click.option("--offset", metavar="EXPR", help="The layout: element offset over x0, x1, ...")
@click.option(
    "--table",
    type=InputPath(),
    metavar="FILE",
    help="The layout: byte offsets as .npy, in the tile's shape.",
)
@form_options("Print the audit as one JSON object.", "github", "sarif", "junit")
@click.option("--html", type=OutputPath(), metavar="FILE", help="Also write a page with all kernels.")
@click.option(
    "--baseline",
    type=OutputPath(),
    metavar="FILE",
    help="Exit with 1 only if a kernel has more bank conflicts than in this file.",
)
@click.option("--update-baseline", is_flag=True, help="Write the counts of now to the --baseline file.")
@click.option("--no-fix", is_flag=True, help="Do not search for better layouts.")
@time_limit_option("Seconds to evaluate a kernel, and to search for better layouts.")
@launch_options
def command(
    problem: Problem | Block,
    gpu: Device,
    *,
    offset: str | None,
    table: Path | None,
    no_fix: bool,
    time_limit: float,
    **_: Any,
) -> int:
    """Count the bank conflicts of a kernel, or of a layout in use, and find what would remove them.

    A kernel (.cu, .ptx, .cubin, .sass, an executable): one launch is evaluated on the CPU. The report has the
    lines that touch shared memory, what the profiler will count for them, and a better layout for each array.

    A folder that `layoutopt capture` wrote, or launches.toml: all launches, the kernels with the most bank
    conflicts first.

    A problem file, a folder of them, - for standard input, or a name of the catalogue: the layout that
    --offset or --table gives, else the file's layout.offset, else its published.offset.

    Without PROBLEMS, layoutopt.toml or [tool.layoutopt] of pyproject.toml says what is checked:
    check = ["launches.toml"], baseline = "conflicts.json".

    Exit code 1: there are conflicts, or the layout cannot hold the tile; 3: none is known of a kernel, and
    it is not certain that there is none.

    \b
    Example:
      layoutopt check problems/basics/transpose_32x32_f32.json --offset "x0*32 + x1"
      layoutopt check transpose.cu --block 32,8 --grid 32,32 --arg n=1024
      layoutopt check launches.toml --format github --baseline conflicts.json
    """
    from layoutopt.files.array_file import read_offsets
    from layoutopt.problems.types import Problem
    from layoutopt.report.text import audit_report
    from layoutopt.study.check import AuditStatus, check

    layout: Any = offset
    if not isinstance(problem, Problem) and (offset is not None or table is not None):
        raise click.UsageError(
            f"{'--offset' if table is None else '--table'} is one tile's; of several, the file says each "
            "tile's layout: tiles[i].published.offset"
        )
    if isinstance(problem, Problem) and table is not None:
        layout = read_offsets(table, problem.tile.shape, "--table")
    with deadline(time_limit):
        audit = check(problem, layout, target=gpu, mend=not no_fix)
    tell(audit.to_json, text=lambda: audit_report(problem, audit))
    return 0 if audit.status is AuditStatus.CONFLICT_FREE else 1
