"""`layoutopt show`."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any, Literal

import click
from msgspec import UNSET, UnsetType

from layoutopt.cli.files import FileCommand, OutputPath, write_all
from layoutopt.cli.options import (
    ProblemPath,
    device_file_option,
    form_options,
    pairs,
    problem_device,
    time_limit_option,
)
from layoutopt.cli.output import form, say_json
from layoutopt.ground.escape import shown
from layoutopt.ground.json_data import Versioned

MIN_WIDTH, MAX_WIDTH = 80, 10_000
MAX_DIGITS = 9


class Shown(Versioned, frozen=True):
    """What --json prints; of several tiles, `tile` and where its first stage begins."""

    problem: str
    target: str
    access: str
    op: str
    warp: int
    iteration: dict[str, int]
    note: str | None
    widths: dict[str, int]
    pictures: list[dict[str, Any]]
    tile: str | UnsetType = UNSET
    base_bytes: int | UnsetType = UNSET
    schema_: Literal["layoutopt.show/1"] = "layoutopt.show/1"


def _iteration(ctx: click.Context, param: click.Parameter, text: str | None) -> dict[str, int]:
    values = pairs(ctx, param, text.split(",") if text else (), "NAME=NUMBER, ...")
    for number in values.values():
        if not number.isdecimal() or len(number) > MAX_DIGITS:
            raise click.BadParameter(f"expected NAME=NUMBER, ..., got {shown(number)!r}", ctx, param)
    return {name: int(number) for name, number in values.items()}


@click.command("show", cls=FileCommand)
@click.argument("problem", type=ProblemPath())
@click.option("--access", metavar="NAME", help="Which access  [default: the one with the worst conflict]")
@click.option("--warp", type=int, metavar="W", help="Which warp.")
@click.option(
    "--iteration", metavar="I=N,...", callback=_iteration, help="Values of loop variables, such as i=2,k=0."
)
@click.option(
    "--layout",
    "before",
    default="none",
    show_default=True,
    metavar="none|published|solved|EXPR",
    help="What to draw beside the solved layout; EXPR is an element offset over x0, x1, ...; solved draws "
    "that alone.",
)
@click.option(
    "--colour",
    "--color",
    "colour_by",
    type=click.Choice(["lane", "phase"]),
    help="Colour by lane or by phase.",
)
@click.option(
    "--width",
    type=click.IntRange(MIN_WIDTH, MAX_WIDTH),
    metavar="N",
    help="Columns  [default: the terminal's]",
)
@click.option("--svg", type=OutputPath(), metavar="FILE", help="Write an SVG picture instead.")
@click.option("--html", type=OutputPath(), metavar="FILE", help="Write a page to explore it in a browser.")
@form_options()
@time_limit_option("Seconds to look for the best layout.")
@device_file_option
def command(
    problem: Path,
    colour_by: str | None,
    width: int | None,
    svg: Path | None,
    html: Path | None,
    device_file: Path | None,
    **where: Any,
) -> int:
    """Draw the banks under one warp instruction, before and after.

    Columns are banks; a line is one word of every bank. Without options it is the instruction with the
    worst conflict in row-major order; of several tiles, it is drawn in its own.

    \b
    Examples:
      layoutopt show problems/basics/transpose_32x32_f32.json
      layoutopt show problems/basics/transpose_32x32_f32.json --layout published --html banks.html
    """
    from layoutopt.files.file import load
    from layoutopt.study.show import views

    loaded = load(problem)
    gpu = problem_device(loaded, device_file)
    found = views(loaded, gpu, **where)
    outputs = {}
    if svg is not None:
        from layoutopt.report.banks_svg import document

        outputs[svg] = document(found, colour_by).encode()
    if html is not None:
        from layoutopt.report.banks_page import page

        outputs[html] = page(found, colour_by).encode()
    write_all(outputs)
    if form() == "json":
        drawn, access = found.case.problem, found.case.problem.accesses[found.chosen.access]
        named = drawn.name, found.case.device.name, access.name, access.op
        pictures = [drawn.to_json() for drawn in found.pictures()]
        own = *found.chosen.at, found.note, found.widths, pictures, *found.tile
        say_json(Shown(*named, *own).to_json())
    elif svg is None and html is None:
        from layoutopt.report.banks_text import report

        columns = width or min(max(MIN_WIDTH, shutil.get_terminal_size().columns), MAX_WIDTH)
        # https://no-color.org: any value that is not empty turns colours off.
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        click.echo(report(found, columns, colour_by, colour))
    return 0
