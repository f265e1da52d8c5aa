"""`layoutopt emit`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import click

from layoutopt.cli.answer import answer_of, answer_options
from layoutopt.cli.files import FileCommand, OutputPath, write_all
from layoutopt.cli.options import ProblemPath, problem_device
from layoutopt.cli.output import say_json
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.ground.escape import identifier, shown

if TYPE_CHECKING:
    from layoutopt.codegen.plan import Plan
    from layoutopt.study.block import Placed

_LIST = "\b\nLanguages:\n" + "\n".join(
    f"  {known.name:<9} {known.title}, {known.suffix}: {known.summary}" for known in LANGUAGES.values()
)


class _Named(TypedDict):
    schema: Literal["layoutopt.code/1"]
    problem: str
    lang: str


class Emitted(_Named, total=False):
    """What --json prints, as far as it is asked for; of several tiles, `tiles` has the figures of each."""

    code: str
    instructions: int
    accesses: list[dict[str, Any]]
    edit: dict[str, Any]
    tiles: list[dict[str, Any]]
    offset: str
    sizes: list[dict[str, Any]]


class _Identifier(click.types.StringParamType):
    """A name that every language takes."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if len(value) > 100 or identifier(value) != value:
            required = "a letter, then letters, digits and single underscores, at most 100"
            self.fail(f"expected {required}, got {shown(value)}", param, ctx)
        return value


@click.command("emit", cls=FileCommand, epilog=_LIST)
@click.argument("file", type=ProblemPath())
@click.option(
    "--lang", type=click.Choice(list(LANGUAGES)), default="cuda", show_default=True, help="The language."
)
@click.option("-o", "--output", type=OutputPath(or_print=True), help="Write the code to this file.")
@click.option("--name", type=_Identifier(), help="What every name in the code starts with.")
@click.option(
    "--only",
    type=click.Choice(["offset", "access", "all"]),
    default="all",
    show_default=True,
    help="Print the offset of an element, the addresses of the accesses, or all.",
)
@click.option(
    "--edit",
    "as_edit",
    is_flag=True,
    help="What to change in the kernel: declaration and indices under the layout in use, and under this.",
)
@click.option(
    "--self-test", is_flag=True, help="A whole CUDA program that tests itself on the GPU (cuda only)."
)
@answer_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object that holds the code.")
def command(
    file: Path,
    lang: str,
    output: Path | None,
    name: str | None,
    only: Literal["offset", "access", "all"],
    as_edit: bool,
    self_test: bool,
    as_json: bool,
    **how: Any,
) -> int:
    """Print a layout as code: the offset, and for each access its address, hoisted out of its loops.

    FILE is a problem, which is solved first: a file, or a name in the catalogue; or it is what
    `solve --json` printed. A result alone does not know the accesses: name its problem with --problem,
    or get the offset only. Of several tiles, one text says where each lies and holds the code of all.

    \b
    Examples:
      layoutopt emit problems/basics/gemm_a_128x64_f16.json --lang cute
      layoutopt solve P.json --json > R.json; layoutopt emit R.json --problem P.json -o tile.cuh
    """
    from layoutopt.files.file import parsed, read

    _check_options(lang, name, only, as_edit, self_test)
    raw = parsed(read(file))
    if (several := _sizes(raw, lang, name, how["device_file"], how["time_limit"])) is not None:
        if as_edit or self_test or only != "all" or how["offset"] is not None:
            raise click.UsageError("a file with `sizes` gives one header, without other parts")
        return _done(*several, output, as_json)
    tiles = answer_of(raw, **how, in_use=not as_edit)()
    return _done(*_code(tiles, lang, name, only, as_edit, self_test), output, as_json)


def _code(
    tiles: Placed,
    lang: str,
    name: str | None,
    only: Literal["offset", "access", "all"],
    as_edit: bool,
    self_test: bool,
) -> tuple[str, dict[str, Any]]:
    """The text, and its figures: of one tile, or of all with those of each under `tiles`."""
    from layoutopt.codegen import block

    if name is not None and not tiles.alone:
        tiles = replace(tiles, name=name)
    data: dict[str, Any] = {"schema": "layoutopt.code/1", "problem": tiles.name, "lang": lang}
    figures = [data]
    if not tiles.alone:
        fields = "tile", "base_bytes", "stages", "stage_bytes"
        data["tiles"] = figures = [{f: getattr(part, f) for f in fields} for part in tiles.parts]
    if as_edit:
        edits = block.edits_of(tiles)
        for own, (_, change) in zip(figures, edits, strict=True):
            own["edit"] = change
        return "\n".join(text for text, _ in edits), data
    if self_test:
        return block.self_test(tiles), data
    plans = block.plans_of(lang, tiles, name=name, only=only)
    if LANGUAGES[lang].unit == "byte":
        for own, plan in zip(figures, plans, strict=True):
            own |= _instructions(plan)
        data["instructions"] = sum(plan.instructions for plan in plans)
    return block.text_of(tiles, plans), data


def _done(text: str, data: dict[str, Any], output: Path | None, as_json: bool) -> int:
    """Write and print what was found."""
    if output is not None:
        write_all({output: text.encode()})
    if as_json:
        say_json({**data, "code": text})
    elif output is None:
        click.echo(text, nl=False)
    return 0


def _sizes(
    raw: Any, lang: str, name: str | None, device_file: Path | None, time_limit: float
) -> tuple[str, dict[str, Any]] | None:
    """The header of a file that lists sizes, and its figures; None for other files."""
    from layoutopt.files.file import tile_from_data
    from layoutopt.files.templates import expand, has_sizes

    if not has_sizes(raw):
        return None
    from layoutopt.codegen.sizes import MACROS, sizes_header

    if lang not in MACROS:
        raise click.UsageError(f"one header for many sizes is CUDA C++ or HIP; --lang {lang} has none")
    from layoutopt.expressions.grammar import to_text
    from layoutopt.ground.budget import Budget
    from layoutopt.search.sizes import common_formula

    budget = Budget.of_limit(time_limit)
    problems = [(instance.values, tile_from_data(instance.data)) for instance in expand(raw)]
    gpu = problem_device(problems[0][1], device_file)
    found = common_formula(raw["tile"]["shape"], problems, gpu, budget)
    title = str(raw.get("name", "tile"))
    figures = [{"values": size.values, "bytes": size.bytes, "excess": size.excess} for size in found.sizes]
    data = {"schema": "layoutopt.code/1", "problem": title, "lang": lang, "offset": to_text(found.offset)}
    return sizes_header(raw, found, name or title, lang), {**data, "sizes": figures}


def _check_options(lang: str, name: str | None, only: str, as_edit: bool, self_test: bool) -> None:
    """Refuse what does not go together."""
    for flag, given in (("--self-test", self_test), ("--edit", as_edit)):
        if given and (name is not None or only != "all"):
            raise click.UsageError(f"--name and --only are for code, not for {flag}")
        if given and lang != "cuda":
            raise click.UsageError(f"{flag} is CUDA C++; --lang {lang} has none")
    if as_edit and self_test:
        raise click.UsageError("either --edit or --self-test")


def _instructions(planned: Plan) -> dict[str, Any]:
    """The cost of the index code, as `solve` and `compare` count it, and of each access."""
    accesses = [
        {
            "name": access.access.name,
            "once": access.instructions.once,
            "looped": access.instructions.looped,
            "iterations": access.instructions.iterations,
        }
        for access in planned.accesses
    ]
    return {"instructions": planned.instructions, "accesses": accesses}
