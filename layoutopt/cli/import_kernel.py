"""`layoutopt import kernel`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from layoutopt.cli.files import FileCommand, InputPath, OutputPath, write_folder
from layoutopt.cli.kernel import LaunchOptions, evaluated, launch_options
from layoutopt.cli.new import extents
from layoutopt.cli.options import time_limit_option
from layoutopt.cli.output import note
from layoutopt.errors import ProblemFileError


@click.command("kernel", cls=FileCommand)
@click.argument("kernel", type=InputPath())
@launch_options
@click.option("--array", metavar="NAME", help="Only this array, as `check` names it.")
@click.option("--shape", metavar="MxN", help="Extents of the array, where the source does not say them.")
@click.option(
    "-o",
    "--output",
    type=OutputPath(folder=True),
    required=True,
    metavar="FOLDER",
    help="Write one file an array.",
)
@time_limit_option("Seconds to evaluate the kernel.")
def command(
    kernel: Path, array: str | None, shape: str | None, output: Path, time_limit: float, **launch: Any
) -> int:
    """The arrays in shared memory of a compiled kernel, a problem file each.

    One launch is evaluated on the CPU; accesses are those of its first block.

    \b
    Example:
      layoutopt import kernel transpose.cu --block 32,8 --arg 2=1024 -o tiles
    """
    from layoutopt.files.file import from_data
    from layoutopt.ground.escape import identifier
    from layoutopt.kernels.question.arrays import used_arrays
    from layoutopt.kernels.question.problem_data import array_problem
    from layoutopt.problems.text import problem_text

    options = LaunchOptions(**launch)
    sizes = extents(shape) if shape is not None else None
    if sizes is not None and array is None:
        raise ProblemFileError("--shape", "it is the shape of one array: name it with --array")
    evaluation = evaluated(kernel, options, time_limit)
    found = [one for one in used_arrays(evaluation) if array in (None, one.array.name)]
    if not found:
        names = ", ".join(one.array.name for one in used_arrays(evaluation)) or "none"
        raise ProblemFileError("--array", f"the kernel touches no such array; there are: {names}")
    files: dict[Path, bytes] = {}
    left_out: dict[str, ProblemFileError] = {}
    for used in found:
        try:
            data = array_problem(evaluation, used, sizes)
        except ProblemFileError as error:
            if len(found) == 1:
                raise
            left_out[used.array.name] = error
            continue
        from_data(data)
        path = output / f"{identifier(used.array.name)}.json"
        if path in files:
            path = output / f"{identifier(used.array.name)}_{used.array.start}.json"
        files[path] = problem_text(data).encode()
    if not files:
        raise ProblemFileError("", f"nothing is known of any array: {'; '.join(map(str, left_out.values()))}")
    for name, unknown in left_out.items():
        note(f"{name} is left out: {unknown}")
    write_folder(output, files)
    for why in evaluation.doubts:
        note(f"not certain: {why}")
    return 0
