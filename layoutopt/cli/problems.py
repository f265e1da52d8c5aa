"""`layoutopt problems`."""

import json
from pathlib import Path
from typing import Any, Literal, TypedDict

import click

from layoutopt.cli.files import FileCommand
from layoutopt.cli.options import ProblemPath, form_options
from layoutopt.cli.output import form, say, say_file, say_json
from layoutopt.ground.json_data import parse


class Listed(TypedDict):
    """A problem of the catalogue."""

    name: str
    tile: str
    target: str
    notes: str


class Catalogue(TypedDict):
    """What --json prints of all of them."""

    schema: Literal["layoutopt.problems/1"]
    problems: list[Listed]


@click.command("problems", cls=FileCommand)
@click.argument("problem", required=False, type=ProblemPath())
@click.option("--expanded", is_flag=True, help="Write fragments and copies out as index expressions.")
@form_options()
def command(problem: Path | None, expanded: bool) -> int:
    """List the problems that ship with layoutopt, or print one of them.

    Without PROBLEM it is a list of names, which every command takes in the place of a file. PROBLEM is one of
    them, or a file: its text is printed, to be copied and edited; with --expanded, what its fragments and
    copies stand for; with --json, on one line. `layoutopt new` starts a file of your own shape instead.

    \b
    Examples:
      layoutopt problems
      layoutopt problems transpose_32x32_f32
      layoutopt problems tile.json --expanded
    """
    if problem is not None:
        _print(problem, expanded)
    elif expanded:
        raise click.UsageError("--expanded needs a problem")
    else:
        _list()
    return 0


def _print(problem: Path, expanded: bool) -> None:
    from layoutopt.files.file import from_data, read, written_out
    from layoutopt.files.templates import single
    from layoutopt.problems.text import problem_text
    from layoutopt.problems.types import SCHEMA

    text = read(problem)
    data = parse(text)
    from_data(data)
    if expanded:
        data = written_out(single(data))
    if form() == "json":
        say_json({"schema": SCHEMA, **data})
    else:
        say_file(problem_text(data) if expanded else text.decode("utf-8-sig"))


def _list() -> None:
    from layoutopt.files.catalogue import short_names

    rows: list[Listed] = []
    for name, path in short_names().items():
        data = json.loads(path.read_bytes())
        tile = f"{len(data['tiles'])} tiles" if "tiles" in data else _tile(data["tile"])
        notes = data.get("notes", "").partition(". ")[0].rstrip(".")
        rows.append({"name": name, "tile": tile, "target": data.get("target", "sm_90"), "notes": notes})
    if form() == "json":
        say_json({"schema": "layoutopt.problems/1", "problems": rows})
        return
    wide, most = max(len(row["name"]) for row in rows), max(len(row["tile"]) for row in rows)
    for r in rows:
        say(f"{r['name']:<{wide}}  {r['tile']:<{most}}  {r['notes']}".rstrip() + "\n")


def _tile(tile: dict[str, Any]) -> str:
    element = tile["element"]
    kind = element if isinstance(element, str) else f"{element['bytes']}-byte"
    return f"{'x'.join(map(str, tile['shape']))} {kind}"
