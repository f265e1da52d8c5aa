"""`layoutopt emit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

import click
from msgspec.structs import asdict, replace

from layoutopt.cli.answer import answer_of, answer_options
from layoutopt.cli.files import FileCommand, OutputPath, write_all
from layoutopt.cli.options import ProblemPath, form_options
from layoutopt.cli.output import form, say_json
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.ground.escape import identifier, shown

if TYPE_CHECKING:
    from layoutopt.codegen.plan import Plan
    from layoutopt.study.block import Placed

_LIST = "\b\nLanguages:\n" + "\n".join(
    f"  {known.name:<9} {known.title}, {known.suffix}: {known.summary}" for known in LANGUAGES.values()
)


class Emitted(TypedDict):
    """What --json prints, as far as it is asked for; of several tiles, `tiles` has the figures of each."""

    schema: Literal["layoutopt.code/1"]
    problem: str
    lang: str
    code: NotRequired[str]
    instructions: NotRequired[int]
    accesses: NotRequired[list[dict[str, Any]]]
    tiles: NotRequired[list[dict[str, Any]]]


def _identifier(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    if name is not None and (len(name) > 100 or identifier(name) != name):
        required = "a letter, then letters, digits and single underscores, at most 100"
        raise click.BadParameter(f"expected {required}, got {shown(name)}", ctx, param)
    return name


@click.command("emit", cls=FileCommand, epilog=_LIST)
@click.argument("file", type=ProblemPath())
@click.option(
    "--lang", type=click.Choice(list(LANGUAGES)), default="cuda", show_default=True, help="The language."
)
@click.option("-o", "--output", type=OutputPath(or_print=True), help="Write the code to this file.")
@click.option("--name", metavar="NAME", callback=_identifier, help="What every name in the code starts with.")
@click.option(
    "--self-test", is_flag=True, help="A whole CUDA program that tests itself on the GPU (cuda only)."
)
@answer_options
@form_options("Print one JSON object that holds the code.", output=False)
def command(
    file: Path,
    lang: str,
    output: Path | None,
    name: str | None,
    self_test: bool,
    **how: Any,
) -> int:
    """Print a layout as code: the offset, and for each access its address, hoisted out of its loops.

    FILE is a problem, which is solved first: a file, or a name in the catalogue; or it is what
    `solve --json` printed. (`solve --code` writes the CUDA or HIP of its answer without solving
    twice.) A result alone does not know the accesses: name its problem with --problem, or get the offset
    only. Of several tiles, one text says where each lies and holds the code of all.

    \b
    Examples:
      layoutopt emit problems/basics/gemm_a_128x64_f16.json --lang cute
      layoutopt solve P.json --json > R.json; layoutopt emit R.json --problem P.json -o tile.cuh
    """

    if self_test and name is not None:
        raise click.UsageError("--name is for code, not for --self-test")
    if self_test and lang != "cuda":
        raise click.UsageError(f"--self-test is CUDA C++; --lang {lang} has none")
    tiles = answer_of(file, **how)
    if name is not None and not tiles.alone:
        tiles = replace(tiles, name=name)
    text, data = _code(tiles, lang, name, self_test)
    if output is not None:
        write_all({output: text.encode()})
    if form() == "json":
        say_json({**data, "code": text})
    elif output is None:
        click.echo(text, nl=False)
    return 0


def _code(tiles: Placed, lang: str, name: str | None, self_test: bool) -> tuple[str, dict[str, Any]]:
    """The code, and what it costs: of several tiles, each under `tiles`, and all together."""
    from layoutopt.codegen import block

    plans = () if self_test else block.plans_of(lang, tiles if name is None else replace(tiles, name=name))
    text = block.self_test(tiles) if self_test else block.text_of(tiles, plans)
    counted = LANGUAGES[lang].unit == "byte" and not self_test
    each = [_instructions(plan) for plan in plans] if counted else [{} for _ in tiles.parts]
    data: dict[str, Any] = {"schema": "layoutopt.code/1", "problem": tiles.name, "lang": lang}
    if tiles.alone:
        return text, data | each[0]
    fields = "tile", "base_bytes", "stages", "stage_bytes"
    data["tiles"] = [
        {field: getattr(part, field) for field in fields} | own
        for part, own in zip(tiles.parts, each, strict=True)
    ]
    return text, data | ({"instructions": sum(plan.instructions for plan in plans)} if counted else {})


def _instructions(planned: Plan) -> dict[str, Any]:
    """The cost of the index code, as `solve` and `compare` count it, and of each access."""
    accesses = [{"name": a.access.name, **asdict(a.instructions)} for a in planned.accesses]
    return {"instructions": planned.instructions, "accesses": accesses}
