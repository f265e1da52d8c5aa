"""`layoutopt new`."""

from __future__ import annotations

from pathlib import Path

import click

from layoutopt.cli.files import FileCommand, OutputPath, check_new, write_all
from layoutopt.cli.options import TargetName
from layoutopt.cli.output import note, say_file
from layoutopt.ground.escape import shown

KINDS = ("transpose", "gemm", "attention", "conv", "stencil", "blank", "hopper")


@click.command("new", cls=FileCommand)
@click.argument("kind", type=click.Choice(KINDS))
@click.option("-o", "--output", type=OutputPath(or_print=True), metavar="FILE", help="Write to a new file.")
@click.option("--tile", metavar="RxC", help="Extents of the tile, such as 128x64.")
@click.option("--element", metavar="T", help="Type of an element, such as f16.")
@click.option("--threads", type=click.IntRange(1, 1024), metavar="N", help="Threads of the block.")
@click.option("--mma", metavar="SHAPE", help="Matrix instruction, such as m16n8k16 (gemm, attention, conv).")
@click.option(
    "--operand",
    type=click.Choice(["A", "B", "C"], case_sensitive=False),
    default="A",
    show_default=True,
    help="Which matrix of a gemm the tile holds.",
)
@click.option(
    "--stages",
    type=click.IntRange(1, 16),
    metavar="N",
    help="Buffers of a pipeline (gemm, hopper)  [default: 1; hopper: as many as fit].",
)
@click.option("--target", type=TargetName(), default="sm_90", show_default=True, metavar="T", help="The GPU.")
@click.option("--name", metavar="NAME", help="Name of the problem.")
def command(
    kind: str,
    output: Path | None,
    tile: str | None,
    element: str | None,
    threads: int | None,
    mma: str | None,
    operand: str,
    stages: int | None,
    target: str,
    name: str | None,
) -> int:
    """Start a problem file that solves as it is, to edit into your own.

    \b
    Examples:
      layoutopt new transpose -o tile.json
      layoutopt new gemm --tile 128x64 --element f16 --stages 3 -o a.json
      layoutopt new gemm --operand B --element i8 --mma m16n8k32
      layoutopt new hopper --tile 128x256 --element bf16 -o block.json
    """
    _check_meant(kind, mma, operand, stages)
    from layoutopt.accesses.trace import trace
    from layoutopt.files.file import from_data
    from layoutopt.files.starters import Options, starter
    from layoutopt.hardware.devices import device
    from layoutopt.problems.text import problem_text

    options = Options(name, extents(tile), element, threads, mma, operand.upper(), stages, target)
    data = starter(kind, options)
    for problem in from_data(data).each:
        trace(problem, device(target))
    text = problem_text(data)
    if output is None:
        say_file(text)
    else:
        check_new(output)
        write_all({output: text.encode()})
        note(f"wrote {output}; next: layoutopt solve {output}")
    return 0


def _check_meant(kind: str, mma: str | None, operand: str, stages: int | None) -> None:
    if mma is not None and kind not in ("gemm", "attention", "conv"):
        raise click.UsageError(f"--mma goes with gemm, attention and conv, not with {kind}")
    if kind != "gemm" and operand.upper() != "A":
        raise click.UsageError(f"--operand goes with gemm, not with {kind}")
    if kind not in ("gemm", "hopper") and (stages or 1) != 1:
        raise click.UsageError(f"--stages goes with gemm and hopper, not with {kind}")
    if operand.upper() == "C" and (stages or 1) != 1:
        raise click.UsageError("--stages goes with operands A and B")


def extents(text: str | None) -> tuple[int, ...] | None:
    """Extents such as 128x64; None for None.

    Raises:
        click.BadParameter: the text is something else.
    """
    if text is None:
        return None
    parts = text.lower().replace(",", "x").split("x")
    if not all(part.isdecimal() and len(part) <= 7 and 0 < int(part) <= 1 << 21 for part in parts):
        raise click.BadParameter(f"expected extents such as 128x64, got {shown(text)!r}", param_hint="--tile")
    return tuple(map(int, parts))
