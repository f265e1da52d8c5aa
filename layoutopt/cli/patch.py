"""`layoutopt patch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from layoutopt.cli.files import FileCommand, InputPath, OutputPath, write_all
from layoutopt.cli.kernel import asked, launch_options
from layoutopt.cli.options import Extents, json_option, time_limit_option
from layoutopt.cli.output import tell
from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import shown

if TYPE_CHECKING:
    from layoutopt.layout.layout import Layout
    from layoutopt.study.patch import Patch


MAX_RESULT_BYTES = 64 << 20


@click.command("patch", cls=FileCommand)
@click.argument("kernel", type=InputPath())
@click.option(
    "-o", "--output", type=OutputPath(), required=True, metavar="OUT.ptx", help="Write the PTX there."
)
@click.option("--array", metavar="NAME", help="Move this array only  [default: all that have conflicts]")
@click.option(
    "--shape", type=Extents(), metavar="MxN", help="Extents of the array  [default: as its accesses suggest]"
)
@click.option(
    "--result", type=InputPath(), metavar="R.json", help="Put in the layout that solve --json printed."
)
@json_option("Print what changed as one JSON object.")
@time_limit_option("Seconds to search for the layouts of the arrays.")
@launch_options
def command(
    kernel: Path,
    output: Path,
    array: str | None,
    shape: tuple[int, ...] | None,
    result: Path | None,
    as_json: bool,
    time_limit: float,
    **launch: Any,
) -> int:
    """Put conflict-free layouts into a compiled kernel: PTX with every access of an array at its new place.

    KERNEL is PTX, or a CUDA source, which is compiled first, or a file of launches, of which --entry chooses
    one by its kernel or number; what to change in the source is then printed,
    too. ptxas assembles it, and layouts are those for the machine code: pads and XORs of at most a quarter
    more bytes. An array whose address goes where it cannot be followed is refused. The patched kernel is
    assembled and evaluated, too: it takes no more wavefronts than the first one.
    Exit code 1: conflicts remain.

    \b
    Example:
      layoutopt patch transpose.cu --block 32,8 --arg 2=64 -o fixed.ptx
    """
    from layoutopt.ground.budget import deadline

    reading = deadline(2 * time_limit + 1)  # begins before the imports, which take most of a second
    from layoutopt.kernels.launches import launch_of
    from layoutopt.kernels.read.files import ptx_text
    from layoutopt.report.patch_text import patch_report
    from layoutopt.study.patch import Request, patch

    options = asked(kernel, launch)
    kernel = Path(options.file)
    if result is not None and array is None:
        raise click.UsageError("--result is the layout of one array: name it with --array")
    layout = _layout(result) if result is not None else None
    with reading:
        text, program = ptx_text(kernel, options.target, options.entry, options.compiler)
        planned, gpu = launch_of(program, options)
        request = Request(
            planned,
            gpu,
            target=options.target,
            array=array,
            shape=shape,
            layout=layout,
            time_limit=time_limit,
            most_steps=options.max_steps,
        )
        found = patch(text, shown(str(kernel)), program, request)
    write_all({output: found.text.encode()})
    edits = kernel.suffix.lower() == ".cu"
    tell(as_json, lambda: _data(found), lambda: patch_report(found, edits=edits))
    return int(any(tally.wavefronts > tally.phases for tally in found.after.tallies.values()))


def _layout(path: Path) -> Layout:
    from layoutopt.files.result_file import result_from_data
    from layoutopt.ground import json_data

    with json_data.named_by("--result"):
        layout = result_from_data(json_data.parse(json_data.read(path, MAX_RESULT_BYTES))).layout
    if layout is None:
        raise ProblemFileError(
            "--result", f"expected a result with a layout, got {shown(str(path))} without one"
        )
    return layout


def _data(found: Patch) -> dict[str, Any]:
    """What changed, as JSON-ready data."""
    import msgspec

    from layoutopt.kernels.question.summary import summary

    return {
        "schema": "layoutopt.patch/1",
        "entry": found.before.program.title,
        "shared_bytes": found.shared_bytes,
        "certain": found.after.certain,
        "before": summary(found.before).totals,
        "after": summary(found.after).totals,
        "arrays": [
            {
                "name": moved.name,
                "symbol": moved.symbol,
                "moved": moved.layout is not None,
                "reason": moved.reason or None,
                "layout": msgspec.to_builtins(moved.layout) if moved.layout is not None else None,
                "offset": moved.result.offset if moved.result is not None else None,
                "bytes_before": moved.bytes_before,
                "bytes_after": moved.bytes_after,
            }
            for moved in found.arrays
        ],
    }
