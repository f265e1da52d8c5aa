"""Why several tiles come out as they do: what decides each of them, and what the common budget costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct

from layoutopt.files.checks import fields_of
from layoutopt.files.result_file import MAX_BYTES
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import EVERY_LAYOUT, Arrangement, Bound, PlacedTile, Status
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Block
from layoutopt.search.block import solve
from layoutopt.search.packing import Plan, pack
from layoutopt.search.proposal import Progress
from layoutopt.search.tile_groups import groups, within_room
from layoutopt.study.explain import explain
from layoutopt.study.explanation import ALLOWED, Explanation, Relaxation

TILE_SET_EXPLANATION_SCHEMA: Final = "layoutopt.tile_set_explanation/1"
# Share of the time for the search over all tiles, and of what is left, for the same without the budget.
_SEARCH_SHARE: Final = 0.3


class ExplainedTile(Struct, frozen=True):
    """A tile, or tiles that share a layout, as if there were no others."""

    tiles: tuple[str, ...]
    explanation: Explanation


class TileSetExplanation(Struct, frozen=True, rename={"schema_": "schema"}):
    """Why.

    Attributes:
        conflict_free: whether all tiles without conflicts fit; None where that is open.
        scope: the layouts for which that holds when it is false, and `lower_bound`.
        lower_bound: of the weighted excess of all tiles together.
        excess, weighted_excess, bytes: of the best layouts found; None without one.
        max_bytes: the budget.
        clashing_accesses: of single tiles, accesses that cannot all be served without conflicts.
        relaxations: what to give up of what all tiles share.
        reasons: sentences about all tiles together.
        tiles: one by one, without the budget.
    """

    problem: str
    target: str
    conflict_free: bool | None
    scope: str
    lower_bound: int | float
    excess: int | float | None
    weighted_excess: float | None
    bytes: int | None
    max_bytes: int | None
    clashing_accesses: tuple[str, ...]
    relaxations: tuple[Relaxation, ...]
    reasons: tuple[str, ...]
    tiles: tuple[ExplainedTile, ...]
    schema_: str = TILE_SET_EXPLANATION_SCHEMA

    def to_json(self) -> dict[str, Any]:
        """The explanation as JSON-ready data, the schema first."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": data.pop("schema"), **data}


def explain_tiles(
    tile_set: Block,
    *,
    time_limit: float | None = None,
    target: Device | str | None = None,
    budget: Budget | None = None,
    progress: Progress = lambda _: None,
) -> TileSetExplanation:
    """Solve for all tiles and say why the answer is what it is.

    Args:
        tile_set: what to explain.
        time_limit: seconds for everything; None for no limit.
        target: the device or its name, where it is not the one the file names.
        budget: replaces `time_limit`, for callers that stop the search from another thread.
        progress: called with a line of text from time to time.

    Raises:
        ProblemFileError: the file contradicts itself.
    """
    gpu, time = target_of(tile_set, target, Block), budget or Budget.of_limit(time_limit)
    found = solve(tile_set, target=gpu, budget=time.part(_SEARCH_SHARE), progress=progress)
    room = within_room(_with(tile_set, max_bytes=None), gpu).layout.max_bytes
    tile_set = within_room(tile_set, gpu)
    free = None
    if tile_set.layout.max_bytes is not None and found.excess != 0:
        free = solve(_with(tile_set, max_bytes=MAX_BYTES), target=gpu, budget=time.part(_SEARCH_SHARE))
    wide = None
    if tile_set.layout.families is not None and found.excess != 0:
        wide = solve(_with(tile_set, families=None), target=gpu, budget=time.part(_SEARCH_SHARE))
    members = groups(tile_set)
    explained = []
    for k, (tiles, problem) in enumerate(members):
        named = _telling(progress, tiles[0].name)
        with fields_of(tile_set, *tiles):
            own = explain(problem, target=gpu, budget=time.part(1 / (len(members) - k)), progress=named)
        explained.append(ExplainedTile(tuple(tile.name for tile in tiles), own))
    bound = _bound(found, explained)
    verdict = True if found.tiles and found.excess == 0 else False if bound.lower_bound > 0 else None
    if verdict is None and found.status is Status.INFEASIBLE:
        verdict = False
    together = _Together(tile_set, room, found, free, wide)
    return TileSetExplanation(
        tile_set.name,
        gpu.name,
        verdict,
        ALLOWED if verdict is False and not bound.lower_bound else bound.scope,
        bound.lower_bound,
        found.excess,
        found.weighted_excess,
        found.bytes,
        tile_set.layout.max_bytes,
        tuple(name for part in explained for name in part.explanation.clashing_accesses),
        tuple(together.relaxations()),
        tuple(together.reasons(explained)),
        tuple(explained),
    )


def _telling(progress: Progress, name: str) -> Progress:
    return lambda text: progress(f"{name}: {text}")


def _with(tile_set: Block, **changes: int | None) -> Block:
    layout = msgspec.structs.replace(tile_set.layout, **changes)
    return msgspec.structs.replace(tile_set, layout=layout)


def _bound(found: Arrangement, explained: list[ExplainedTile]) -> Bound:
    """Of the excess of all tiles: what the search proved, or what single tiles have in any layout."""
    everywhere = sum(
        part.explanation.lower_bound for part in explained if part.explanation.scope == EVERY_LAYOUT
    )
    proved = found.proof.objective
    return Bound(everywhere, EVERY_LAYOUT) if everywhere >= proved.lower_bound else proved


@dataclass(frozen=True, slots=True)
class _Together:
    """What holds of all tiles: `free` and `wide` are answers without the budget, and in every family.

    `room` is what a block of the GPU has, where that is known; the budget may be less.
    """

    tile_set: Block
    room: int | None
    found: Arrangement
    free: Arrangement | None
    wide: Arrangement | None

    def reasons(self, explained: list[ExplainedTile]) -> Iterator[str]:
        limit, found, free = self.tile_set.layout.max_bytes, self.found, self.free
        if not found.tiles:
            yield f"{found.status}: {found.reason}"
        else:
            best = f"{found.excess:g} excess wavefronts" if found.excess else "no bank conflicts"
            of = f" of {limit:,}" if limit is not None else ""
            yield f"all tiles together: {best} in {found.bytes:,} bytes{of}"
        for part in explained:
            if part.explanation.conflict_free is False:
                names = " and ".join(part.tiles)
                has = "has conflicts in" if part.explanation.lower_bound else "is held by none of"
                yield f"tile {names} {has} {part.explanation.scope}, whatever the others take"
        if self._budget_costs(free):
            assert free is not None
            least = f"{free.excess:g} excess wavefronts" if free.excess else "no bank conflicts"
            yield (
                f"the budget costs {self._more():g} excess wavefronts: with {least} the tiles take "
                f"{free.bytes:,} bytes, and {self._budget()}"
                if found.tiles
                else f"with {least} the tiles take {free.bytes:,} bytes, and {self._budget()}"
            )

    def _budget(self) -> str:
        limit = self.tile_set.layout.max_bytes
        if limit == self.room:
            return f"a block of {self.tile_set.target} has {limit:,}"
        return f"layout.max_bytes is {limit:,}"

    def relaxations(self) -> Iterator[Relaxation]:
        wide, free = self.wide, self.free
        if wide is not None and wide.tiles and (not self.found.tiles or self._less(wide)):
            least = f"{wide.excess:g} excess wavefronts" if wide.excess else "no conflicts"
            yield Relaxation("families", f"with all families there are {least} in {wide.bytes:,} bytes")
        if not self._budget_costs(free):
            return
        assert free is not None
        least = f"{free.excess:g} excess wavefronts" if free.excess else "no conflicts"
        if self.room is None or (free.bytes or 0) <= self.room:
            yield Relaxation("max_bytes", f"with layout.max_bytes {free.bytes:,} there are {least}")
        yield from self._fewer_stages(free, least)

    def _fewer_stages(self, free: Arrangement, least: str) -> Iterator[Relaxation]:
        """The most stages in which the layouts of `free` fit, where the file has more."""
        limit = self.tile_set.layout.max_bytes
        assert limit is not None
        if self.tile_set.overlay:
            return
        tiles = {tile.name: tile for tile in self.tile_set.tiles}
        alignments = [
            max(part.result.alignment_bytes or 1, *(tiles[name].element_alignment for name in part.tiles))
            for part in free.tiles
        ]
        most = max(place.stages for part in free.tiles for place in part.places)
        for stages in range(most - 1, 0, -1):
            sizes = [_bytes_in(part, stages) for part in free.tiles]
            if pack(Plan(tuple(range(len(sizes)))), sizes, alignments)[0] <= limit:
                yield Relaxation("stages", f"with {stages} in place of {most} stages there are {least}")
                return

    def _budget_costs(self, free: Arrangement | None) -> bool:
        limit = self.tile_set.layout.max_bytes
        if free is None or free.bytes is None or limit is None or free.bytes <= limit:
            return False
        return not self.found.tiles or (self._less(free) and self._more() > 0)

    def _less(self, other: Arrangement) -> bool:
        """Whether another answer, which the time may have cut off, is better than the one found."""
        return (other.weighted_excess or 0) < (self.found.weighted_excess or 0)

    def _more(self) -> float:
        """Excess that the budget costs."""
        assert self.free is not None
        return (self.found.excess or 0) - (self.free.excess or 0)


def _bytes_in(part: PlacedTile, stages: int) -> int:
    """Bytes of tiles with one layout in so many stages at most, one behind the other."""
    last = part.places[-1]
    return sum(min(p.stages, stages) * p.stage_bytes for p in part.places) - last.stage_bytes + last.bytes
