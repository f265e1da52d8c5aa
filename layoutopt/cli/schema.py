"""`layoutopt schema`."""

from importlib import import_module
from typing import Any, Final

import click

from layoutopt.cli.files import FileCommand
from layoutopt.cli.options import output_option
from layoutopt.cli.output import say_json

# The types of what a command prints with --json, by module.
ANSWERS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "solve": (("problems.answer", "Result"), ("problems.answer", "Arrangement")),
    "compare": (("study.comparison", "Comparison"),),
    "show": (("cli.show", "Shown"),),
    "check": (("study.check", "Audit"), ("study.check", "BlockAudit")),
    "emit": (("cli.emit", "Emitted"),),
    "run": (("cli.run", "Ran"), ("cli.run", "RanBlock")),
    "convert": (("cli.convert", "Converted"),),
    "explain": (("study.explain", "Explanation"), ("study.explain", "BlockExplanation")),
    "count": (("engine.records", "Totals"),),
    "targets": (("cli.targets", "Targets"), ("cli.targets", "Detail")),
    "sweep": (("sweeps.report", "Summary"),),
    "problems": (("cli.problems", "Catalogue"),),
}
PROBLEM: Final = "problem"


@click.command("schema", cls=FileCommand)
@click.argument("name", type=click.Choice((PROBLEM, *ANSWERS)))
@output_option
def command(name: str) -> int:
    """Print the JSON Schema of problem files, or of what a command prints with --json.

    \b
    Examples:
      layoutopt schema problem
      layoutopt schema solve
    """
    say_json(json_schema(name))
    return 0


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of problem files, or of the answers of a command, generated from their types."""
    import msgspec

    from layoutopt.files.file import json_schema as of_problems

    if name == PROBLEM:
        return of_problems()
    kinds = [getattr(import_module(f"layoutopt.{module}"), kind) for module, kind in ANSWERS[name]]
    found, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    if name == "problems":  # of one, its file
        one = of_problems()
        found, components = (*found, *one["anyOf"]), components | one["$defs"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"layoutopt {name} --json",
        "anyOf": list(found),
        "$defs": components,
    }
