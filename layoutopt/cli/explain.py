"""`layoutopt explain`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from layoutopt.cli.options import form_options, time_limit_option
from layoutopt.cli.output import searching, tell
from layoutopt.cli.several import problems_command

if TYPE_CHECKING:
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.types import Block, Problem


@problems_command("explain")
@form_options("Print the explanation as one JSON object.")
@time_limit_option("Seconds for the search, and as many again for the questions after it.")
def command(problem: Problem | Block, gpu: Device, *, time_limit: float) -> int:
    """Say why the best layout works, or why none is free of conflicts and what to give up.

    With several tiles, each is explained, and what it costs that they share the memory of a block.

    Exit code 1: no conflict-free layout was found; 3: the time limit left it open.

    PROBLEMS are files, folders, - for standard input, or names of the catalogue, each explained on its own.

    \b
    Example:
      layoutopt explain problems/transposes/leimao_vectorised_swizzled_f32.json
    """
    from layoutopt.report.explanation_text import explanation_report
    from layoutopt.study.explain import explain

    explanation: Any = searching(partial(explain, problem, target=gpu), 2 * time_limit)
    tell(explanation.to_json, text=lambda: explanation_report(problem, explanation))
    if explanation.conflict_free:
        return 0
    return 1 if explanation.conflict_free is False or explanation.excess is not None else 3
