"""`layoutopt emit`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from layoutopt.cli.answer import answer_of, answer_options
from layoutopt.cli.files import FileCommand, OutputPath, write_all
from layoutopt.cli.options import ProblemPath
from layoutopt.cli.output import note, say_json
from layoutopt.codegen.registry import LANGUAGES
from layoutopt.ground.escape import identifier, shown

_LIST = "\b\nLanguages:\n" + "\n".join(
    f"  {known.name:<9} {known.title}, {known.suffix}: {known.summary}" for known in LANGUAGES.values()
)


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
    self_test: bool,
    problem: Path | None,
    offset: str | None,
    time_limit: float,
    workers: int,
    device_file: Path | None,
    as_json: bool,
) -> int:
    """Print a layout as code: the offset, and for each access its address, hoisted out of its loops.

    FILE is a problem, which is solved first: a file, or a name in the catalogue; or it is what
    `solve --json` printed. A result alone does not know the accesses: name its problem with --problem,
    or get the offset only.

    \b
    Examples:
      layoutopt emit problems/basics/gemm_a_128x64_f16.json --lang cute
      layoutopt solve P.json --json > R.json; layoutopt emit R.json --problem P.json -o tile.cuh
    """
    if self_test and (name is not None or only != "all"):
        raise click.UsageError("--self-test is a whole program; --name and --only are for code")
    if self_test and lang != "cuda":
        raise click.UsageError(f"--self-test is a CUDA program; --lang {lang} has none")
    found = answer_of(file, problem, offset, time_limit, workers, device_file)()
    if found.code is not None:
        note(f"no layout: {found.reason}")
        return found.code
    from layoutopt.codegen.languages import emit, run_plan

    if self_test:
        from layoutopt.codegen.selftest import program

        text = program(run_plan(found.problem, found.device, found.answer))
    else:
        text = emit(lang, found.problem, found.device, found.answer, name=name, only=only)
    if output is not None:
        write_all({output: text.encode()})
    if as_json:
        data = {"schema": "layoutopt.code/1", "problem": found.problem.name, "lang": lang, "code": text}
        say_json(data)
    elif output is None:
        click.echo(text, nl=False)
    return 0
