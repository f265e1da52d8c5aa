"""`layoutopt fix`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs, to_builtins

from layoutopt.cli.files import FileCommand, InputPath, write_changed
from layoutopt.cli.kernel import asked, launch_options
from layoutopt.cli.options import added, form_options, minimise_option, time_limit_option
from layoutopt.cli.output import form, note, say_diff, say_json
from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget, deadline
from layoutopt.ground.escape import shown

if TYPE_CHECKING:
    from layoutopt.hardware.driver import Driver
    from layoutopt.kernels.launches import LaunchOptions
    from layoutopt.study.source_fix import SourceFix


change_options = added(
    click.option(
        "--run",
        is_flag=True,
        help="Also time each change on the GPU of this machine; take none that is slower.",
    ),
    click.option(
        "--array", metavar="NAME", help="Change this array only  [default: all that have conflicts]"
    ),
    minimise_option(
        ["time", "excess", "bytes"],
        "What the best change has the least of; all but 'time' may take more time than now.",
        "time",
    ),
    time_limit_option("Seconds; then the best layout that was compared is taken.", 60.0),
    launch_options,
)
"""The options of commands that change layouts: which, what for, in which time, for which launch."""


def raced(options: LaunchOptions, run: bool) -> tuple[LaunchOptions, Driver | None]:
    """The options for the GPU of this machine, and its driver, where changes are timed on it.

    Raises:
        MachineError: there is no GPU.
    """
    from layoutopt.hardware.driver import Driver

    if not run:
        return options, None
    driver = Driver()
    return structs.replace(options, target=options.target or driver.gpu.target), driver


@click.command("fix", cls=FileCommand)
@click.argument("kernel", type=InputPath())
@click.argument("launches", type=InputPath(), required=False)
@click.option("--write", is_flag=True, help="Also change the files.")
@form_options("Print the diff and what it does as one JSON object.")
@change_options
def command(
    kernel: Path,
    launches: Path | None,
    run: bool,
    write: bool,
    array: str | None,
    minimise: Any,
    time_limit: float,
    **launch: Any,
) -> int:
    """Put conflict-free layouts into a CUDA source: print a diff whose machine code was checked.

    Rows are padded in declarations, or every index of the array goes through a function that moves its
    elements. The changed source is compiled. Its diff is printed only if the launch takes fewer wavefronts,
    every thread reaches the same elements between the same barriers, and blocks that differ in what they do
    to shared memory, a few at most, write the same bytes to global memory. Where an array cannot be changed,
    the line that stands in the way is named. The diff goes to stdout, what it does to stderr. LAUNCHES is a
    file of launches, or a folder that `capture` wrote, of which --entry chooses one, by its kernel or number.
    Exit code 1: conflicts remain, or may remain.

    \b
    Example:
      layoutopt fix transpose.cu --block 32,8 --grid 2,2 --arg n=64 | patch -p1
    """
    search = Budget(time_limit)  # begins before the imports, which take most of a second
    from layoutopt.kernels.launches import READING_S, launch_of, with_memory
    from layoutopt.kernels.read.files import chosen, kernels
    from layoutopt.study.source_fix import Request, fix
    from layoutopt.study.source_plans import SourceCode

    options, driver = raced(asked(launches or kernel, launch, None if launches is None else kernel), run)
    kernel = Path(options.file)
    if kernel.suffix.lower() != ".cu":
        raise ProblemFileError("", f"expected a CUDA source (.cu), got {shown(str(kernel))}")
    with deadline(time_limit + READING_S):
        program = chosen(kernels(kernel, options.target, options.compiler), options.entry).read()
        planned, gpu = launch_of(program, options)
        planned = with_memory(planned, options)
        code = SourceCode(kernel, options.target, options.compiler, options.include)
        request = Request(planned, gpu, array, minimise, options.max_steps, driver)
        found = fix(code, program, request, search)
    if write and found.files:
        write_changed({Path(name): data for name, data in found.files.items()})
        for name in found.files:
            note(f"wrote {name}")
    if form() == "json":
        told = fix_data(found)
        say_json({"schema": "layoutopt.fix/1", "diff": found.diff, "verified": bool(found.files)} | told)
    else:
        from layoutopt.report.fix_text import fix_report

        say_diff(found.diff)
        note(fix_report(found, driver).rstrip("\n"))
        if found.root == os.sep:
            note(f"\na file is outside of this folder: apply the diff with patch -p1 -d {found.root}")
    return conflicts_remain(found)


def conflicts_remain(found: SourceFix) -> int:
    """The exit code."""
    told = any(one.offset and one.reason for one in found.arrays)
    return int(found.totals[1]["bank_conflicts"] > 0 or told or not found.after.evaluation.certain)


def fix_data(found: SourceFix) -> dict[str, Any]:
    """What changed, as JSON-ready data."""
    before, after = found.totals
    return {
        "entry": found.before.program.title,
        "compared_bytes": max(found.compared_bytes, 0),
        "unknown_bytes": found.unknown_bytes,
        "out_of_time": found.out_of_time,
        "certain": found.before.evaluation.certain and found.after.evaluation.certain,
        "chosen_for": found.chosen_for,
        "race": found.race and to_builtins(found.race),
        "shared_bytes": found.after.evaluation.launch.shared_bytes,
        "before": before,
        "after": after,
        "arrays": [to_builtins(one) | {"reason": one.reason or None} for one in found.arrays],
    }
