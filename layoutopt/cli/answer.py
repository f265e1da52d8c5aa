"""The layouts that a command works on: solved, read from a result file, given as a formula, or in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from layoutopt.cli.options import (
    ProblemPath,
    device_file_option,
    problem_device,
    time_limit_option,
)
from layoutopt.cli.output import note
from layoutopt.cli.solve import CODES, solve_interruptibly

if TYPE_CHECKING:
    from layoutopt.problems.answer import Arrangement, Result
    from layoutopt.problems.types import Block, Problem
    from layoutopt.study.block import Placed

Command = TypeVar("Command", bound=Callable[..., object])

PUBLISHED = "published"


def answer_options(command: Command) -> Command:
    """Add the options that `answer_of` takes."""
    options = [
        click.option("--problem", type=ProblemPath(), help="The problem of a result file."),
        click.option(
            "--offset",
            metavar="EXPR",
            help="A layout instead of the solver's: element offset over x0, x1, ..., or 'published'.",
        ),
        time_limit_option("Stop the solver after S seconds with the best so far."),
        click.option(
            "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Solver threads."
        ),
        device_file_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def answer_of(
    raw: Any,
    *,
    problem: Path | None,
    offset: str | None,
    time_limit: float,
    workers: int,
    device_file: Path | None,
    in_use: bool = True,
) -> Callable[[], Placed]:
    """What gives the tiles of a problem with a layout each: files are read at once, the call solves.

    Args:
        raw: data of a problem, or of what `solve --json` prints.
        problem: the problem of such an answer; one tile may do without.
        offset: a formula for one tile, or `published` for the layouts in the file.
        time_limit: seconds to solve.
        workers: solver threads.
        device_file: more devices.
        in_use: take `layout.offset` of one tile, where no other layout is given.

    Raises:
        ProblemFileError: a file is wrong.
    """
    from layoutopt.files.file import from_data, parsed, read
    from layoutopt.files.result_file import is_answer
    from layoutopt.ground.json_data import named_by
    from layoutopt.problems.types import Block
    from layoutopt.study.block import placed, placed_in_use

    answered = is_answer(raw)
    _check_given(answered, isinstance(raw, dict) and "tiles" in raw, problem, offset)
    if answered:
        with named_by("--problem"):
            asked = from_data(parsed(read(problem))) if problem is not None else None
        return _read(raw, asked, device_file)
    loaded = from_data(raw)
    gpu = problem_device(loaded, device_file)
    if isinstance(loaded, Block):
        given = placed_in_use(loaded, gpu) if offset is not None else None
    else:
        text = _published(loaded) if offset == PUBLISHED else offset
        text = loaded.layout.offset if in_use and text is None else text
        given = placed(loaded, gpu, text) if text is not None else None
    if given is not None:
        return lambda: given

    def solved() -> Placed:
        found = solve_interruptibly(loaded, gpu, time_limit, workers)
        return placed(loaded, gpu, found) if found.has_layout else _none(found)

    return solved


def _check_given(answered: bool, several: bool, problem: Path | None, offset: str | None) -> None:
    """Refuse options that do not go with a problem or an answer, of one tile or several."""
    if problem is not None and not answered:
        raise click.UsageError("--problem belongs to a result file")
    if offset is not None and several and (answered or offset != PUBLISHED):
        raise click.UsageError(
            f"--offset: of several tiles, the file says each tile's layout (tiles[i].published.offset); "
            f"--offset {PUBLISHED} takes those"
        )
    if offset is not None and answered:
        raise click.UsageError("--offset needs a problem file, not a result")
    if answered and several and problem is None:
        raise click.UsageError("an answer for several tiles needs its --problem")


def _published(problem: Problem) -> str:
    from layoutopt.errors import ProblemFileError

    if problem.published is None:
        raise ProblemFileError("published", "the file names no published layout")
    return problem.published.offset


def _read(
    raw: dict[str, Any], asked: Problem | Block | None, device_file: Path | None
) -> Callable[[], Placed]:
    """What an answer that was read gives, checked against its problem."""
    from layoutopt.files.result_file import answer_from_data
    from layoutopt.study.block import placed
    from layoutopt.study.known import check_answer

    found = answer_from_data(raw)
    checked = asked is not None
    problem = asked if asked is not None else _bare(found)
    gpu = problem_device(problem, device_file)
    if checked:
        check_answer(problem, gpu, found)
    if not found.has_layout:
        return lambda: _none(found)
    tiles = placed(problem, gpu, found)
    return lambda: tiles


def _bare(found: Result | Arrangement) -> Problem:
    """A problem of the tile of a result, without accesses."""
    from layoutopt.problems.types import Problem, Structure, Tile

    layout = getattr(found, "layout", None)
    if layout is None:
        tile = Tile((1,), Structure(1))
    else:
        element = f"b{8 // layout.packed}" if layout.packed > 1 else Structure(layout.element_bytes)
        tile = Tile(layout.shape, element)
    return Problem(found.problem, tile, 1, (), target=found.target)


def _none(found: Result | Arrangement) -> NoReturn:
    """End the command where there is no layout, and say why."""
    note(f"no layout: {found.reason}")
    raise click.exceptions.Exit(CODES[found.status])
