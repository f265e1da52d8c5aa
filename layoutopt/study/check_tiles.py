"""Audit the block that somebody already uses: each tile's layout, where it lies, and what all of it takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.accesses.lower import byte_table
from layoutopt.expressions.grammar import parse
from layoutopt.files.checks import fields_of
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Result, Status
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Block, NamedTile, Problem
from layoutopt.search.tile_groups import groups, within_room
from layoutopt.study.check import Audit, check
from layoutopt.study.findings import Finding

TILE_SET_AUDIT_SCHEMA: Final = "layoutopt.tile_set_audit/1"


class PlacedAudit(Struct, frozen=True):
    """One tile of a block.

    Attributes:
        base_bytes: where its first stage begins, as the file says, else behind the tiles before it.
        stage_bytes: from one stage to the next.
        audit: of one stage.
    """

    tile: str
    base_bytes: int
    stages: int
    stage_bytes: int
    audit: Audit


class TileSetAudit(Struct, frozen=True, rename={"schema_": "schema"}):
    """The outcome.

    Attributes:
        status: infeasible where a layout cannot hold its tile, or where tiles do not lie as they must.
        bytes: to the end of the last tile as declared, all stages.
        max_bytes: what the file allows, else what a block of the GPU may take; None where not known.
        findings: about the block; those about one layout stand with its tile.
    """

    problem: str
    target: str
    status: Status
    bytes: int
    max_bytes: int | None
    excess: int | float
    tiles: tuple[PlacedAudit, ...]
    findings: tuple[Finding, ...]
    schema_: str = TILE_SET_AUDIT_SCHEMA

    def to_json(self) -> dict[str, Any]:
        """The audit as JSON-ready data, the schema first."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": data.pop("schema"), **data}


def check_tiles(
    tile_set: Block,
    *,
    target: Device | str | None = None,
    solver: Callable[[Problem], Result] | None = None,
    budget: Budget | None = None,
    counting: Budget | None = None,
) -> TileSetAudit:
    """Audit every tile's `layout.offset`, else its `published.offset`, and how the tiles lie.

    Args:
        tile_set: the tiles; `base_bytes` and `stage_bytes` say where they lie.
        target: the device or its name, where it is not the one the file names.
        solver: as for `check`.
        budget, counting: likewise.

    Raises:
        ProblemFileError: a tile has no layout to check, or one that cannot be read.
    """
    gpu = target_of(tile_set, target, Block)
    audits = {}
    for tile in tile_set.tiles:
        with fields_of(tile_set, tile):
            audits[tile.name] = check(
                tile_set.problem(tile), target=gpu, solver=solver, budget=budget, counting=counting
            )
    placed = tuple(_placed(tile_set, audits))
    size = max(_ranges(part)[-1][0] + part.audit.declared_bytes for part in placed)
    budget_bytes = within_room(tile_set, gpu).layout.max_bytes
    wrong = [
        *_misplaced(placed),
        *_overlaps(tile_set, placed),
        *_too_large(size, budget_bytes),
        *_different(tile_set, audits),
    ]
    sound = not wrong and all(part.audit.status is not Status.INFEASIBLE for part in placed)
    return TileSetAudit(
        tile_set.name,
        gpu.name,
        Status.FEASIBLE if sound else Status.INFEASIBLE,
        size,
        budget_bytes,
        sum(part.audit.excess for part in placed),
        placed,
        tuple(wrong),
    )


def _placed(tile_set: Block, audits: Mapping[str, Audit]) -> Iterator[PlacedAudit]:
    """Where each tile lies: as the file says, else behind those before it that live at the same time."""
    ends: dict[str, int] = {}
    for tile in tile_set.tiles:
        audit = audits[tile.name]
        given = tile_set.problem(tile).layout.alignment_bytes
        unit = max(audit.alignment_bytes, min(tile.element_alignment, given or tile.element_alignment))
        stage = tile.stage_bytes or -(-audit.declared_bytes // unit) * unit
        before = [end for name, end in ends.items() if _together(tile_set, name, tile.name)]
        base = tile.base_bytes if tile.base_bytes is not None else -(-max(before, default=0) // unit) * unit
        ends[tile.name] = base + (tile.stages - 1) * stage + audit.declared_bytes
        yield PlacedAudit(tile.name, base, tile.stages, stage, audit)


def _together(tile_set: Block, one: str, other: str) -> bool:
    """Whether two tiles live at the same time."""
    times = [next((t for t, time in enumerate(tile_set.overlay) if n in time), None) for n in (one, other)]
    return None in times or times[0] == times[1]


def _ranges(part: PlacedAudit) -> list[tuple[int, int]]:
    """The bytes of each stage."""
    starts = (part.base_bytes + stage * part.stage_bytes for stage in range(part.stages))
    return [(start, start + part.audit.bytes) for start in starts]


def _misplaced(placed: tuple[PlacedAudit, ...]) -> Iterator[Finding]:
    """Stages that do not begin at a multiple of what the layout needs."""
    for part in placed:
        unit = part.audit.alignment_bytes
        starts = [start for start, _ in _ranges(part) if start % unit]
        if starts:
            yield Finding(
                "misplaced",
                f"tile {part.tile}: a stage begins at byte {starts[0]:,}; counts hold at multiples of {unit}",
                details={"tile": part.tile, "byte_offset": starts[0], "alignment_bytes": unit},
            )


def _overlaps(tile_set: Block, placed: tuple[PlacedAudit, ...]) -> Iterator[Finding]:
    """Stages that share bytes while both live."""
    for one, other in itertools.combinations_with_replacement(placed, 2):
        if one is not other and not _together(tile_set, one.tile, other.tile):
            continue
        mine, theirs = _ranges(one), _ranges(other)
        pairs = itertools.combinations(mine, 2) if one is other else itertools.product(mine, theirs)
        shared = next(((max(a, c), min(b, d)) for (a, b), (c, d) in pairs if max(a, c) < min(b, d)), None)
        if shared is not None:
            whose = f"two stages of tile {one.tile}" if one is other else f"tiles {one.tile} and {other.tile}"
            yield Finding(
                "overlap",
                f"{whose} share bytes {shared[0]:,} to {shared[1] - 1:,}",
                details={"tiles": [one.tile, other.tile], "bytes": list(shared)},
            )


def _different(tile_set: Block, audits: Mapping[str, Audit]) -> Iterator[Finding]:
    """Tiles that are to share a layout, and lie otherwise: by the bytes of their elements, row-major."""
    for tiles, _ in groups(tile_set):
        if len(tiles) < 2 or any(audits[tile.name].status is Status.INFEASIBLE for tile in tiles):
            continue
        first, *others = (_byte_offsets(tile, audits[tile.name]) for tile in tiles)
        for tile, offsets in zip(tiles[1:], others, strict=True):
            count = min(len(first), len(offsets))
            apart = np.flatnonzero(first[:count] != offsets[:count])
            if len(apart):
                at = int(apart[0])
                yield Finding(
                    "layouts_differ",
                    f"tiles {tiles[0].name} and {tile.name} are to share a layout (same_layout): byte {at:,} "
                    f"of their elements lies at {first[at]:,} in one and at {offsets[at]:,} in the other",
                    details={"tiles": [tiles[0].name, tile.name], "byte": at},
                )


def _byte_offsets(tile: NamedTile, audit: Audit) -> IntArray:
    """Where each byte of the elements lies, row-major."""
    node = parse(audit.offset or "0", frozenset(f"x{d}" for d in range(len(tile.shape))))
    size = tile.storage.element_bytes
    offsets: IntArray = (byte_table(node, tile)[:, None] + np.arange(size)).ravel()
    return offsets


def _too_large(size: int, limit: int | None) -> Iterator[Finding]:
    if limit is not None and size > limit:
        yield Finding(
            "budget",
            f"the block takes {size:,} bytes of shared memory; {limit:,} are allowed",
            details={"bytes": size, "max_bytes": limit},
        )
