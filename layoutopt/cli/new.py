"""`layoutopt new`."""

from pathlib import Path
from typing import Any

import click

from layoutopt.cli.files import FileCommand, OutputPath, write_new
from layoutopt.cli.options import Extents
from layoutopt.hardware.devices import device

KINDS = ("transpose", "gemm", "attention", "conv", "stencil", "convert", "blank", "hopper")


@click.command("new", cls=FileCommand)
@click.argument("kind", type=click.Choice(KINDS))
@click.option("-o", "--output", type=OutputPath(or_print=True), metavar="FILE", help="Write to a new file.")
@click.option("--tile", type=Extents(), metavar="RxC", help="Extents of the tile, such as 128x64.")
@click.option("--element", metavar="T", help="Type of an element, such as f16.")
@click.option("--threads", type=click.IntRange(1, 1024), metavar="N", help="Threads of the block.")
@click.option("--mma", metavar="SHAPE", help="Matrix instruction, such as m16n8k16 (gemm, attention, conv).")
@click.option(
    "--operand",
    type=click.Choice(["A", "B", "C"], case_sensitive=False),
    help="Which matrix of a gemm the tile holds  [default: A]",
)
@click.option(
    "--stages",
    type=click.IntRange(1, 16),
    metavar="N",
    help="Buffers of a pipeline (gemm, hopper)  [default: 1; hopper: as many as fit].",
)
@click.option(
    "--free",
    is_flag=True,
    default=None,
    help="Leave open by which instructions fragments move (gemm, attention, conv).",
)
@click.option("--target", default="sm_90", show_default=True, metavar="T", help="The GPU.")
@click.option("--name", metavar="NAME", help="Name of the problem.")
def command(kind: str, output: Path | None, target: str, **given: Any) -> int:
    """Start a problem file that solves as it is, to edit into your own.

    \b
    Examples:
      layoutopt new transpose -o tile.json
      layoutopt new gemm --tile 128x64 --element f16 --stages 3 -o a.json
      layoutopt new gemm --operand B --element i8 --mma m16n8k32
      layoutopt new attention --free
      layoutopt new convert --tile 64x128 -o conversion.json
      layoutopt new hopper --tile 128x256 --element bf16 -o block.json
    """
    from layoutopt.accesses.trace import trace
    from layoutopt.files.file import from_data
    from layoutopt.files.starters import starter
    from layoutopt.ownership.conversion import convert_data
    from layoutopt.problems.text import problem_text

    data = starter(kind, target, **given)
    if kind == "convert":
        convert_data(data)
    else:
        for problem in from_data(data).each:
            trace(problem, device(target))
    write_new(
        output,
        problem_text(data),
        f"; next: layoutopt {'convert' if kind == 'convert' else 'solve'} {output}",
    )
    return 0
