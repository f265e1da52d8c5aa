"""`layoutopt patch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from layoutopt.cli.files import FileCommand, InputPath, OutputPath, write_all
from layoutopt.cli.fix import change_options, conflicts_remain, fix_data, raced
from layoutopt.cli.kernel import asked
from layoutopt.cli.options import form_options
from layoutopt.cli.output import tell
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.ground import json_data
from layoutopt.ground.budget import Budget, deadline
from layoutopt.ground.escape import shown

if TYPE_CHECKING:
    from layoutopt.source.moves import Move

_MAX_BYTES: Final = 64 << 20
# Names of files that hold something else.
_NO_PTX: Final = (".cubin", ".fatbin", ".o", ".cu", ".sass")


@click.command("patch", cls=FileCommand)
@click.argument("kernel", type=InputPath())
@click.option(
    "-o", "--output", type=OutputPath(), required=True, metavar="OUT.ptx", help="Write the PTX there."
)
@click.option(
    "--result", type=InputPath(), metavar="R.json", help="Put in the layout that solve --json printed."
)
@form_options("Print what changed as one JSON object.", output=False)
@change_options
def command(
    kernel: Path,
    output: Path,
    result: Path | None,
    run: bool,
    array: str | None,
    minimise: Any,
    time_limit: float,
    **launch: Any,
) -> int:
    """Put conflict-free layouts into a compiled kernel: PTX with every access of an array at its new place.

    KERNEL is PTX, or a CUDA source, which is compiled first, or a file of launches, of which --entry chooses
    one by its kernel or number. Layouts and checks are those of `fix`: ptxas assembles what is written. It
    stays only if the launch takes fewer wavefronts, every thread reaches the same elements between the same
    barriers, and blocks that differ in what they do to shared memory, a few at most, write the same bytes to
    global memory. Exit code 1: conflicts remain, or may remain.

    \b
    Example:
      layoutopt patch transpose.cu --block 32,8 --arg 2=64 -o fixed.ptx
    """
    search = Budget(time_limit)  # begins before the imports, which take most of a second
    from layoutopt.kernels.launches import READING_S, launch_of, with_memory
    from layoutopt.kernels.read.files import ptx_text
    from layoutopt.report.fix_text import fix_report
    from layoutopt.study.patch import PtxCode
    from layoutopt.study.source_fix import Request, fix

    if output.suffix.lower() in _NO_PTX:
        raise click.UsageError(f"-o: PTX is written, so the name must end in .ptx, got {shown(str(output))}")
    if result is not None and array is None:
        raise click.UsageError("--result is the layout of one array: name it with --array")
    move = _move(result) if result is not None else None
    options, driver = raced(asked(kernel, launch), run)
    kernel = Path(options.file)
    with deadline(time_limit + READING_S):
        text, program = ptx_text(kernel, options.target, options.entry, options.compiler)
        planned, gpu = launch_of(program, options)
        code = PtxCode(text, shown(str(kernel)), program.name, options.target, move)
        minimise = minimise if move is None else "excess"
        request = Request(with_memory(planned, options), gpu, array, minimise, options.max_steps, driver)
        found = fix(code, program, request, search)
    write_all({output: next(iter(found.after.files.values()))})
    data = {"schema": "layoutopt.patch/1"} | fix_data(found)
    tell(lambda: data, text=lambda: fix_report(found, driver))
    return conflicts_remain(found)


def _move(path: Path) -> Move:
    """What the layout of a result file does."""
    from layoutopt.files.result_file import answer_from_data
    from layoutopt.problems.answer import Result
    from layoutopt.source.moves import move_of

    with json_data.named_by("--result"):
        found = answer_from_data(json_data.parse(json_data.read(path, _MAX_BYTES)))
        layout = found.layout if isinstance(found, Result) else None
        if layout is None:
            raise ProblemFileError("", f"expected a result of one layout, got {shown(str(path))}")
        try:
            return move_of(layout)
        except LayoutError as error:
            raise ProblemFileError("", str(error)) from None
