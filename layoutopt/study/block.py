"""A block: tiles with a layout each, and where they lie. What is done to a tile is done to each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from layoutopt.accesses.lower import offset_formula
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.grammar import Const, Op, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.files.result_file import arrangement_from_data
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import element_expression
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, PlacedTile, Proof, Result, Status
from layoutopt.problems.types import Block, Problem, Tile
from layoutopt.search.tile_groups import alike, beginning, groups, viewed_index
from layoutopt.study.check import BlockAudit, check
from layoutopt.study.known import check_result


@dataclass(frozen=True, slots=True)
class Part:
    """One tile of a block.

    Attributes:
        tile: its name.
        problem: the tile and its accesses.
        base_bytes: where its first stage begins.
        stages: how many copies there are.
        stage_bytes: from one copy to the next.
        answer: the layout: a result, or element offsets over x0, x1, ...
    """

    tile: str
    problem: Problem
    base_bytes: int
    stages: int
    stage_bytes: int
    answer: Result | str


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """All of them.

    Attributes:
        name: of the file.
        device: the target.
        parts: in the order of the file.
        bytes: to the end of the last.
        alignment_bytes: of the start of everything.
        summary: what is known of it, in a line.
        times: the tiles that lie in the same bytes at different times, time by time.
    """

    name: str
    device: Device
    parts: tuple[Part, ...]
    bytes: int
    alignment_bytes: int
    summary: str
    times: tuple[tuple[str, ...], ...]


def solved_block(tile_set: Block, gpu: Device, arrangement: Arrangement) -> PlacedBlock:
    """The block of an arrangement that holds layouts."""
    placed = {place.tile: (part, place) for part in arrangement.tiles for place in part.places}
    whole = {tile.name: problem.tile for tiles, problem in groups(tile_set) for tile in tiles}
    parts = []
    for tile in tile_set.tiles:
        (part, place), problem = placed[tile.name], tile_set.problem(tile)
        answer = own_answer(part.result, problem, whole[tile.name])
        parts.append(Part(tile.name, problem, place.base_bytes, place.stages, place.stage_bytes, answer))
    summary = f"{arrangement.bytes} bytes, {arrangement.excess} excess wavefronts; {arrangement.status}"
    assert arrangement.bytes is not None
    assert arrangement.alignment_bytes is not None
    return PlacedBlock(
        tile_set.name,
        gpu,
        tuple(parts),
        arrangement.bytes,
        arrangement.alignment_bytes,
        summary,
        tile_set.overlay,
    )


def own_answer(result: Result, problem: Problem, whole: Tile) -> Result | str:
    """A tile's part of a layout of the tile `whole`, which it shares with others."""
    assert result.layout is not None
    own = [access.name for access in problem.accesses]
    accesses = tuple(access for access in result.accesses if access.name in own)
    if accesses == result.accesses and alike(problem.tile, whole):
        return result
    if (layout := beginning(result.layout, problem.tile)) is not None:
        size = int(layout.table().max()) + layout.element_bytes
        excess = sum(access.excess for access in accesses)
        sure = excess == 0 and size == problem.tile.bytes
        return msgspec.structs.replace(
            result,
            problem=problem.name,
            status=Status.OPTIMAL if sure else Status.FEASIBLE,
            proof=Proof(Bound(0, EVERY_LAYOUT), Bound(problem.tile.bytes, EVERY_LAYOUT)),
            reason="" if sure else "proved with the tiles that share the layout, not alone",
            layout=layout,
            offset=to_text(element_expression(layout)),
            bytes=size,
            declared_bytes=layout.declared_bytes,
            accesses=accesses,
            excess=excess,
            weighted_excess=None,
        )
    coordinates = tuple(f"x{d}" for d in range(len(problem.tile.shape)))
    views = viewed_index(coordinates, problem.tile, whole)
    node = offset_formula(result.offset or "", whole)
    own_node = substituted(
        node, {f"x{d}": offset_formula(text, problem.tile) for d, text in enumerate(views)}
    )
    ratio = problem.tile.element_bits // whole.element_bits
    own_node = own_node if ratio == 1 else Op("//", (own_node, Const(ratio)))
    ranges = {name: (0, extent - 1) for name, extent in zip(coordinates, problem.tile.shape, strict=True)}
    return to_text(simplify(own_node, ranges))


def block_in_use(tile_set: Block, gpu: Device) -> PlacedBlock:
    """The block as the file says that it ships: each tile's layout, and where it lies.

    Raises:
        ProblemFileError: a tile says no layout, or the tiles cannot lie so.
    """
    audit = check(tile_set, target=gpu)
    for finding in audit.findings:
        raise ProblemFileError("tiles", f"the block cannot hold its tiles so: {finding.message}")
    return PlacedBlock(
        tile_set.name,
        gpu,
        tuple(_parts_in_use(tile_set, audit)),
        audit.bytes,
        max(part.audit.alignment_bytes for part in audit.tiles),
        f"{audit.bytes} bytes, {audit.excess} excess wavefronts; as the file has it",
        tile_set.overlay,
    )


def _parts_in_use(tile_set: Block, audit: BlockAudit) -> Iterator[Part]:
    for tile, part in zip(tile_set.tiles, audit.tiles, strict=True):
        assert part.audit.offset is not None
        problem = tile_set.problem(tile)
        yield Part(tile.name, problem, part.base_bytes, part.stages, part.stage_bytes, part.audit.offset)


def read_block(raw: dict[str, Any], tile_set: Block, gpu: Device) -> PlacedBlock | Arrangement:
    """The block of an arrangement as `solve --json` prints it; the arrangement, where that has no layouts.

    Raises:
        ProblemFileError: the data is no arrangement of these tiles, or says of a layout what does not hold.
    """
    arrangement = arrangement_from_data(raw)
    if arrangement.problem != tile_set.name:
        raise ProblemFileError(
            "problem", f"the result is of {arrangement.problem!r}, not of {tile_set.name!r}"
        )
    if not arrangement.tiles:
        return arrangement
    members = groups(tile_set)
    names = [tuple(tile.name for tile in tiles) for tiles, _ in members]
    if [part.tiles for part in arrangement.tiles] != names:
        raise ProblemFileError("tiles", f"expected layouts of {names}, in this order")
    for k, ((_, problem), part) in enumerate(zip(members, arrangement.tiles, strict=True)):
        try:
            check_result(problem, gpu, part.result)
        except ProblemFileError as error:
            raise ProblemFileError(f"tiles[{k}].result.{error.field}", error.reason) from None
        _check_places(tile_set, problem, part, f"tiles[{k}]")
    return solved_block(tile_set, gpu, arrangement)


def _check_places(tile_set: Block, problem: Problem, part: PlacedTile, field: str) -> None:
    """Check that there is room for each tile, in as many stages as the file has."""
    tiles = {tile.name: tile for tile in tile_set.tiles}
    offsets = part.result.table().ravel()
    for k, place in enumerate(part.places):
        tile = tiles[place.tile]
        if place.stages != tile.stages:
            raise ProblemFileError(
                f"{field}.places[{k}].stages", f"expected {tile.stages}, as the file has it"
            )
        count = tile.elements * tile.element_bits // problem.tile.element_bits
        least = int(offsets[:count].max()) + problem.tile.storage.element_bytes
        if place.bytes < least:
            raise ProblemFileError(
                f"{field}.places[{k}].bytes", f"{place.tile} takes {least}, not {place.bytes}"
            )
