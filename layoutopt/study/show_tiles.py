"""What `show` draws of several tiles: one of them, under the layout that it gets beside the others."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from layoutopt.engine.case import Case
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.grammar import parse
from layoutopt.files.checks import fields_of
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Arrangement, Result
from layoutopt.problems.types import Block, NamedTile
from layoutopt.search.block import solve
from layoutopt.study.block import Part, solved_block
from layoutopt.study.known import known_case
from layoutopt.study.show import NONE, PUBLISHED, SOLVED, Shown, Views, drawn


def tile_views(
    tile_set: Block,
    gpu: Device,
    *,
    before: str,
    access: str | None,
    warp: int | None,
    iteration: dict[str, int],
    time_limit: float | None,
) -> Views:
    """Gather what to draw: the tile of the access, else that whose first layout has the worst conflict.

    Args:
        tile_set: what to look at.
        gpu: the device.
        before: none (row-major), published or solved (only the best layout).
        access: name of the access; None for the one with the worst conflict.
        warp: as for `views`, where the access is named.
        iteration: likewise.
        time_limit: seconds to look for the best layouts.

    Raises:
        ProblemFileError: there is no such layout, access, warp or iteration.
    """
    owners = {a.name: a.tile for a in tile_set.accesses}
    if access is not None and access not in owners:
        raise ProblemFileError("--access", f"no access {access!r}; there are {', '.join(owners)}")
    if access is None and (warp is not None or iteration):
        raise ProblemFileError("--access", "--warp and --iteration need it where there are several tiles")
    if before not in (NONE, PUBLISHED, SOLVED):
        raise ProblemFileError("--layout", "a file holds the layout of one tile, and here are several")
    cases = {}
    for tile in tile_set.tiles:
        if access is None or owners[access] == tile.name:
            with fields_of(tile_set, tile):
                problem = tile_set.problem(tile)
                free = msgspec.structs.replace(problem.layout, offset=None)
                cases[tile.name] = known_case(msgspec.structs.replace(problem, layout=free), gpu)
    found = solve(tile_set, target=gpu, time_limit=time_limit)
    parts = {p.tile: p for p in solved_block(tile_set, gpu, found).parts} if found.tiles else {}
    where = access, warp, iteration
    # A tile that only the hardware touches has nothing to draw, and says so where it is asked for or alone.
    busy = [name for name, case in cases.items() if any(a.active.any() for a in case.lanes.accesses)]
    candidates = [
        _views(tile_set, tile, cases[tile.name], parts.get(tile.name), found, before, where)
        for tile in tile_set.tiles
        if tile.name in (busy or cases)
    ]
    return max(candidates, key=_worst)


def _views(
    tile_set: Block,
    tile: NamedTile,
    case: Case,
    part: Part | None,
    found: Arrangement,
    before: str,
    where: tuple[str | None, int | None, dict[str, int]],
) -> Views:
    """One tile, as if it were alone."""
    solved, notes = None, []
    if part is not None:
        solved = _solved(case, part.answer)
        notes = [
            f"tile {tile.name} of {len(tile_set.tiles)}; its first stage begins at byte {part.base_bytes:,}"
        ]
    with fields_of(tile_set, tile):
        problem = msgspec.structs.replace(case.problem, layout=tile_set.problem(tile).layout)
        views = drawn(case, problem, before, solved, found.reason, where, notes)
    return replace(views, tile=(tile.name, part.base_bytes if part is not None else 0))


def _solved(case: Case, answer: Result | str) -> Shown:
    if isinstance(answer, str):
        names = frozenset(f"x{d}" for d in range(len(case.problem.tile.shape)))
        return Shown("solved", answer, case.table(parse(answer, names)))
    assert answer.layout is not None
    return Shown("solved", answer.offset or "", case.table(answer.layout))


def _worst(views: Views) -> int:
    first = views.pictures()[0]
    return first.wavefronts - first.ideal
