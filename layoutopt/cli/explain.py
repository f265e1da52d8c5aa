"""`layoutopt explain`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from layoutopt.cli.interrupt import interruptibly
from layoutopt.cli.options import (
    ProblemPath,
    device_file_option,
    json_option,
    problem_device,
    time_limit_option,
)
from layoutopt.cli.output import say, say_json


@click.command("explain")
@click.argument("problem", type=ProblemPath())
@json_option("Print the explanation as one JSON object.")
@time_limit_option("Seconds for the search, and as many again for the questions after it.")
@device_file_option
def command(problem: Path, as_json: bool, time_limit: float, device_file: Path | None) -> int:
    """Say why the best layout works, or why none is free of conflicts and what to give up.

    Of several tiles, it is each of them, and what their common budget costs.

    Exit code 1: no layout is known to be free of conflicts. 3: that stays open.

    \b
    Example:
      layoutopt explain problems/transposes/leimao_vectorised_swizzled_f32.json
    """
    from layoutopt.files.file import load
    from layoutopt.report.explanation_text import explanation_report
    from layoutopt.study.explain import explain

    loaded = load(problem)
    gpu = problem_device(loaded, device_file)
    explanation: Any = interruptibly(partial(explain, loaded, target=gpu), 2 * time_limit)
    if as_json:
        say_json(explanation.to_json())
    else:
        say(explanation_report(loaded, explanation))
    if explanation.conflict_free:
        return 0
    return 1 if explanation.conflict_free is False or explanation.excess is not None else 3
