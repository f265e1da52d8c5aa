"""`layoutopt report`."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from layoutopt.cli.files import FileCommand, OutputPath, write_new
from layoutopt.cli.options import (
    ProblemPath,
    device_file_option,
    problem_device,
    time_limit_option,
    workers_option,
)
from layoutopt.cli.output import searching
from layoutopt.ground.version import __version__

if TYPE_CHECKING:
    from layoutopt.problems.answer import Arrangement, Result

_SOLVED_BY: Final = ("ortools", "numpy", "numba", "msgspec", "click")


@click.command("report", cls=FileCommand)
@click.argument("problem", type=ProblemPath())
@click.option("-o", "--output", type=OutputPath(or_print=True), metavar="FILE", help="Write to a new file.")
@time_limit_option("Stop the search after S seconds with the best layout so far.")
@workers_option
@device_file_option
def command(
    problem: Path, output: Path | None, time_limit: float, workers: int, device_file: Path | None
) -> int:
    """Write everything that reproduces a wrong answer into one JSON file.

    It holds the problem, the answer that `solve` gives, what the conflict engine counts of it, the versions,
    and, where something failed, how. Nothing is sent anywhere.

    \b
    Example:
      layoutopt report tile.json -o report.json
    """
    from layoutopt.files.file import from_data, parsed, read
    from layoutopt.study.solve import solve

    found: dict[str, Any] = {
        "schema": "layoutopt.report/1",
        "versions": {
            "layoutopt": __version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _SOLVED_BY},
        },
        "system": platform.platform(),
        "time_limit": time_limit,
        "workers": workers,
        "problem": parsed(read(problem)),
    }
    try:
        asked = from_data(found["problem"])
        gpu = problem_device(asked, device_file)
        answer = searching(partial(solve, asked, target=gpu, workers=workers, time_limit=None), time_limit)
        found |= {"answer": answer.to_json(), "counts": _counts(asked, gpu, answer)}
    except Exception:  # whatever it is, it is what shall be reported
        found["failure"] = traceback.format_exc()
    write_new(output, json.dumps(found, indent=1) + "\n", "; look through it before you send it to anybody")
    return 0


def _counts(asked: Any, gpu: Any, answer: Result | Arrangement) -> dict[str, Any]:
    """What the conflict engine counts of each tile's layout, by tile; of one tile, its name is empty."""
    from layoutopt.study.block import placed
    from layoutopt.study.check import check

    if not answer.has_layout:
        return {}
    return {
        part.tile: check(part.problem, part.answer, target=gpu).to_json()
        for part in placed(asked, gpu, answer).parts
    }
