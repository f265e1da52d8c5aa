"""`layoutopt capture`."""

import os
import signal
import subprocess
from pathlib import Path

import click

from layoutopt.cli.files import FileCommand, OutputPath
from layoutopt.cli.output import note
from layoutopt.errors import ProblemFileError
from layoutopt.ground.escape import shown
from layoutopt.ground.temporary import temporary_folder


@click.command(
    "capture",
    cls=FileCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "-o",
    "--output",
    type=OutputPath(folder=True),
    default="launches",
    show_default=True,
    metavar="FOLDER",
    help="A new folder for what is recorded.",
)
@click.option(
    "--data",
    type=click.IntRange(0, 1 << 28),
    default=0,
    metavar="BYTES",
    help="Also keep the contents of allocations of up to BYTES, for kernels whose addresses depend "
    "on data  [default: none]",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)  # fmt: skip
def command(output: Path, data: int, program: tuple[str, ...]) -> int:
    """Record what a program launches on NVIDIA GPUs: machine code, shapes, parameters, and how often.

    PROGRAM is its command line, after --. `layoutopt check FOLDER` then audits the folder, with or without a
    GPU. No counters are read, and no privileges are needed; a launch takes some microseconds longer.
    If the program crashes, what it launched until then is kept.

    Exit code: that of the program.

    \b
    Example:
      layoutopt capture -o launches -- python train.py --steps 2
      layoutopt check launches
    """
    from layoutopt.kernels.capture.recorder import compress, environment, new_folder, recorder
    from layoutopt.kernels.launches import read_launches

    folder = new_folder(output)
    with temporary_folder() as scratch:
        around = os.environ | environment(recorder(scratch), folder, data)
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the program, which may save its work
        try:
            code = subprocess.call(program, env=around)
        except OSError as error:
            folder.rmdir()
            raise ProblemFileError("", f"cannot run {shown(program[0])}: {error.strerror}") from None
    compress(folder)
    found = read_launches(folder)
    kernels = len({one.entry for one in found.launches})
    total = sum(one.launches + one.not_recorded for one in found.launches)
    note(f"{total:,} launches of {kernels:,} kernels, {len(found.launches):,} distinct: {shown(str(output))}")
    if total:
        each = found.spent_us / total
        note(f"recording took {found.spent_us / 1e6:.2f} s of the program's time, {each:.1f} us a launch")
    else:
        note("nothing was launched, or the driver did not load the recorder")
    if missed := str(found.missed):
        note(f"not all was recorded: {missed}")
    return code if code >= 0 else 128 - code
