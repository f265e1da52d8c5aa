"""The layout that a command works on: solved, read from a result file, or given as a formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from layoutopt.cli.options import (
    ProblemPath,
    device_file_option,
    more_devices,
    problem_device,
    time_limit_option,
)
from layoutopt.cli.solve import CODES, solve_interruptibly

if TYPE_CHECKING:
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.answer import Result
    from layoutopt.problems.types import Problem

Command = TypeVar("Command", bound=Callable[..., object])

PUBLISHED = "published"


@dataclass(frozen=True)
class Answer:
    """What was found. `code` is the exit code where there is no layout, and `reason` says why."""

    problem: Problem
    device: Device
    answer: Result | str
    code: int | None = None
    reason: str = ""


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
    problem: Path | None,
    offset: str | None,
    time_limit: float,
    workers: int,
    device_file: Path | None,
    in_use: bool = True,
) -> Callable[[], Answer]:
    """What gives the problem, its device and a layout: files are read at once, the call solves.

    `raw` is the data of a problem or a result. With `in_use`, a layout in use that it names is the answer
    where no other is given.

    Raises:
        ProblemFileError: a file is wrong.
    """
    from layoutopt.errors import ProblemFileError
    from layoutopt.files.file import parsed, read, tile_from_data
    from layoutopt.ground.json_data import named_by
    from layoutopt.problems.answer import RESULT_SCHEMA

    if isinstance(raw, dict) and raw.get("schema") == RESULT_SCHEMA:
        if offset is not None:
            raise click.UsageError("--offset needs a problem file, not a result")
        with named_by("--problem"):
            named = tile_from_data(parsed(read(problem))) if problem is not None else None
        found = _from_result(raw, named, device_file)
        return lambda: found
    if problem is not None:
        raise click.UsageError("--problem belongs to a result file")
    loaded = tile_from_data(raw)
    gpu = problem_device(loaded, device_file)
    if offset == PUBLISHED:
        if loaded.published is None:
            raise ProblemFileError("published", "the file names no published layout")
        offset = loaded.published.offset
    if in_use and offset is None:
        offset = loaded.layout.offset
    if offset is not None:
        given = Answer(loaded, gpu, offset)
        return lambda: given
    return partial(_solved, loaded, gpu, time_limit, workers)


def _solved(problem: Problem, gpu: Device, time_limit: float, workers: int) -> Answer:
    result = solve_interruptibly(problem, gpu, time_limit, workers, False)
    return Answer(problem, gpu, result, *_missing(result))


def _from_result(raw: dict[str, Any], problem: Problem | None, device_file: Path | None) -> Answer:
    from layoutopt.files.result_file import result_from_data
    from layoutopt.hardware.devices import device
    from layoutopt.problems.types import Problem, Structure, Tile
    from layoutopt.study.known import check_result

    result = result_from_data(raw)
    more = more_devices(device_file)
    if problem is not None:
        gpu = device(problem.target, more)
        check_result(problem, gpu, result)
        return Answer(problem, gpu, result, *_missing(result))
    if result.layout is None:
        tile = Tile((1,), Structure(1))
    else:
        packed = result.layout.packed
        element = f"b{8 // packed}" if packed > 1 else Structure(result.layout.element_bytes)
        tile = Tile(result.layout.shape, element)
    bare = Problem(result.problem, tile, 1, (), target=result.target)
    return Answer(bare, device(result.target, more), result, *_missing(result))


def _missing(result: Result) -> tuple[int | None, str]:
    return (None, "") if result.layout is not None else (CODES[result.status], result.reason)
