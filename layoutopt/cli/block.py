"""The layouts of several tiles that a command works on: solved, read from a result file, or in use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from layoutopt.cli.answer import PUBLISHED
from layoutopt.cli.options import problem_device
from layoutopt.cli.output import note
from layoutopt.cli.solve import CODES, arrange_interruptibly

if TYPE_CHECKING:
    from layoutopt.hardware.devices import Device
    from layoutopt.problems.answer import Arrangement
    from layoutopt.problems.types import Block
    from layoutopt.study.block import PlacedBlock


class NoBlock(Exception):
    """There is no layout, which has been said; `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


def tiles_in(raw: Any) -> bool:
    """Whether decoded data is a problem of several tiles, or the answer to one."""
    from layoutopt.problems.answer import ARRANGEMENT_SCHEMA

    return isinstance(raw, dict) and ("tiles" in raw or raw.get("schema") == ARRANGEMENT_SCHEMA)


def block_of(
    raw: Any,
    problem: Path | None,
    offset: str | None,
    time_limit: float,
    workers: int,
    device_file: Path | None,
) -> Callable[[], PlacedBlock]:
    """What gives the tiles of decoded data with a layout each, where they lie: solved, read, or in use.

    Files are read at once, the call solves; it raises `NoBlock` where there is no layout.

    Args:
        raw: data of a problem of several tiles, or of what `solve --json` prints for one.
        problem: the problem of such an answer.
        offset: `published` for the layouts in the file.
        time_limit: seconds to solve.
        workers: solver threads.
        device_file: more devices.

    Raises:
        ProblemFileError: a file is wrong.
    """
    from layoutopt.files.file import block_from_data, parsed, read
    from layoutopt.ground.json_data import named_by
    from layoutopt.problems.answer import ARRANGEMENT_SCHEMA
    from layoutopt.study.block import PlacedBlock, block_in_use, read_block

    answered = raw.get("schema") == ARRANGEMENT_SCHEMA
    if answered and problem is None:
        raise click.UsageError("an answer for several tiles needs its --problem")
    if not answered and problem is not None:
        raise click.UsageError("--problem belongs to a result file")
    if offset is not None and (answered or offset != PUBLISHED):
        raise click.UsageError(
            f"--offset: of several tiles, the file says each tile's layout (tiles[i].published.offset); "
            f"--offset {PUBLISHED} takes those"
        )
    if problem is not None:
        with named_by("--problem"):
            tiles = block_from_data(parsed(read(problem)))
    else:
        tiles = block_from_data(raw)
    gpu = problem_device(tiles, device_file)
    if offset == PUBLISHED:
        in_use = block_in_use(tiles, gpu)
        return lambda: in_use
    if not answered:
        return partial(_solved, tiles, gpu, time_limit, workers)
    found = read_block(raw, tiles, gpu)
    return lambda: found if isinstance(found, PlacedBlock) else _none(found)


def _solved(tiles: Block, gpu: Device, time_limit: float, workers: int) -> PlacedBlock:
    from layoutopt.study.block import solved_block

    found = arrange_interruptibly(tiles, gpu, time_limit, workers)
    return solved_block(tiles, gpu, found) if found.tiles else _none(found)


def _none(found: Arrangement) -> NoReturn:
    note(f"no layout: {found.reason}")
    raise NoBlock(CODES[found.status])
