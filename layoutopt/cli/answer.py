"""The layouts that a command works on: solved, read from a result file, given as a formula, or in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from layoutopt.cli.options import (
    ProblemPath,
    added,
    device_file_option,
    problem_device,
    time_limit_option,
    workers_option,
)
from layoutopt.cli.output import note, searching
from layoutopt.cli.solve import CODES
from layoutopt.errors import ProblemFileError
from layoutopt.ground.json_data import named_by
from layoutopt.ground.log import Progress
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, Result
from layoutopt.problems.types import Block, Problem, Structure, Tile

if TYPE_CHECKING:
    from layoutopt.study.block import Placed

PUBLISHED = "published"
answer_options = added(
    click.option("--problem", type=ProblemPath(), help="The problem of a result file."),
    click.option(
        "--offset",
        metavar="EXPR",
        help="A layout instead of the solver's: element offset over x0, x1, ..., or 'published'.",
    ),
    time_limit_option("Stop the search after S seconds with the best layout so far."),
    workers_option,
    device_file_option,
)
"""Adds the options that `answer_of` takes."""


def answer_of(
    file: Path,
    *,
    problem: Path | None,
    offset: str | None,
    time_limit: float,
    workers: int,
    device_file: Path | None,
    before_search: Callable[[], object] = lambda: None,
) -> Placed:
    """The tiles of a problem with a layout each.

    Args:
        file: a problem, or what `solve --json` prints; the others are those of `answer_options`.
        before_search: called when all files are read, before the search.

    Raises:
        ProblemFileError: a file is wrong.
    """
    from layoutopt.files.file import from_data, load, parsed, read
    from layoutopt.files.result_file import answer_from_data, is_answer
    from layoutopt.search.block import solve
    from layoutopt.search.proposal import Ask
    from layoutopt.study.block import check_answer, placed

    raw = parsed(read(file))
    if is_answer(raw):
        if offset is not None:
            raise click.UsageError("--offset needs a problem file, not a result")
        found = answer_from_data(raw)
        if problem is None:
            asked: Problem | Block = _bare(found)
            gpu = problem_device(asked, device_file)
        else:
            with named_by("--problem"):
                asked = load(problem)
            gpu = problem_device(asked, device_file)
            check_answer(asked, gpu, found)
        before_search()
    else:
        if problem is not None:
            raise click.UsageError("--problem belongs to a result file")
        asked = from_data(raw)
        gpu = problem_device(asked, device_file)
        given = _given(asked, offset, gpu)
        before_search()
        if given is not None:
            return given

        def work(progress: Progress) -> Result | Arrangement:
            return solve(asked, gpu, Ask(workers=workers, progress=progress))

        found = searching(work, time_limit)
    return placed(asked, gpu, found) if found.has_layout else _none(found)


def _given(problem: Problem | Block, offset: str | None, gpu: Device) -> Placed | None:
    """The tiles with the layouts that --offset or the file gives; None where they are to be sought."""
    from layoutopt.study.block import placed, placed_in_use

    if isinstance(problem, Block):
        if offset not in (None, PUBLISHED):
            raise click.UsageError(
                f"--offset: of several tiles, the file says each tile's layout (tiles[i].published.offset); "
                f"--offset {PUBLISHED} takes those"
            )
        return placed_in_use(problem, gpu) if offset is not None else None
    text = problem.layout.offset if offset is None else offset
    if text == PUBLISHED:
        if problem.published is None:
            raise ProblemFileError("published", "the file names no published layout")
        text = problem.published.offset
    return placed(problem, gpu, text) if text is not None else None


def _bare(found: Result | Arrangement) -> Problem:
    """A problem of the tile of a result, without accesses."""
    if not isinstance(found, Result):
        raise click.UsageError("an answer for several tiles needs its --problem")
    if found.layout is None:
        _none(found)
    layout = found.layout
    element = f"b{8 // layout.packed}" if layout.packed > 1 else Structure(layout.element_bytes)
    return Problem(found.problem, Tile(layout.shape, element), 1, (), target=found.target)


def _none(found: Result | Arrangement) -> NoReturn:
    """End the command where there is no layout, and say why."""
    note(f"no layout: {found.reason}")
    raise click.exceptions.Exit(CODES[found.status])
