"""Padding or swizzle for several tiles under one budget: what fits, in how many stages and blocks.

Every tile is compared by itself; a row of the block is the same row of all its tiles, one behind the other as
tightly as they go. Where that is more than the budget, the tiles are arranged again with the families of the
row, so that the row is the least excess that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from layoutopt.engine.estimate import timing_of
from layoutopt.expressions.grammar import parse
from layoutopt.files.checks import fields_of
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.hardware.occupancy import occupancy
from layoutopt.layout.families import comparison_rows
from layoutopt.problems.answer import Arrangement, Status
from layoutopt.problems.target import target_of
from layoutopt.problems.types import FAMILIES, Block
from layoutopt.search.block import solve as solve_all
from layoutopt.search.fronts import Unit, own_alignment, plan_of, units_of
from layoutopt.search.packing import Plan, pack, rounded_up
from layoutopt.search.solve import solve
from layoutopt.search.tile_groups import within_room
from layoutopt.study.advice import mark_pareto, recommend, recommend_dictated
from layoutopt.study.check_tiles import check_tiles
from layoutopt.study.compare import ALL, Comparer
from layoutopt.study.comparison import BlockRow, Comparison, Row, TileOfRow

# What is taken of a tile that has no such row: its layout in use, or row-major.
_INSTEAD: Final = {
    "edit": ("in_use", "published"),
    "in_use": ("published",),
    "guess_pad": ("none",),
    "guess_xor": ("none",),
}
_MAX_STAGES: Final = 64  # as in a file
_ALIGNED: Final = "bytes are lost to alignment, which other layouts of the tiles may not lose"


def compare_tiles(
    tile_set: Block,
    *,
    target: Device | str | None = None,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """The best layouts of each family for all tiles together; rows are `BlockRow`.

    Args:
        tile_set: the tiles and their accesses.
        target: the device or its name, where it is not the one the file names.
        time_limit: seconds for the searches over everything, and as many for the rest; None for no limit.
        progress: called with a line of text from time to time.

    Raises:
        ProblemFileError: the file contradicts itself.
    """
    return _TileComparer(tile_set, target_of(tile_set, target, Block), time_limit, progress).run()


@dataclass(slots=True)
class _Member:
    """What gets one layout, and its rows by family.

    The best layout of what the hardware dictates stands in the row of every family.
    """

    unit: Unit
    comparer: Comparer
    rows: dict[str, Row]

    @property
    def dictated(self) -> bool:
        return self.unit.case.asked.is_dictated

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tile.name for tile in self.unit.tiles)

    @property
    def label(self) -> str:
        return ", ".join(self.names)

    def row(self, family: str) -> Row | None:
        """Its row, or what is taken in its place; None where there is neither."""
        if self.dictated:
            return self.rows.get(family, self.rows[ALL])
        for name in (family, *_INSTEAD.get(family, ())):
            if name in self.rows:
                return self.rows[name] if self.may_be(name) else self.rows[ALL]
        return None

    def may_be(self, family: str) -> bool:
        """Whether the constraints let the tile be of the family; what is no family may be."""
        allowed, known = self.unit.case.problem.layout.families, comparison_rows()
        if self.dictated or allowed is None or family not in known:
            return not self.dictated
        return any({*f.allowed_by} <= {*allowed, "none"} for f in known[family])


class _TileComparer:
    def __init__(
        self, tile_set: Block, gpu: Device, time_limit: float | None, progress: Callable[[str], None]
    ) -> None:
        self.tile_set, self.gpu, self.progress = tile_set, gpu, progress
        self.units = units_of(tile_set, gpu)
        self.plan: Plan = plan_of(tile_set, self.units)
        # As much for what does not fit as for one tile.
        share = None if time_limit is None else time_limit / (len(self.units) + 1)
        self.members = [self._member(unit, share) for unit in self.units]
        self.budget = Budget(None if share is None else 2 * share)
        self.arranged: dict[tuple[str, ...], Arrangement] = {}
        self.limit = within_room(tile_set, gpu).layout.max_bytes

    def _member(self, unit: Unit, share: float | None) -> _Member:
        name = unit.tiles[0].name
        problem = unit.case.asked
        with fields_of(self.tile_set, *unit.tiles):
            if problem.is_dictated:
                result = solve(problem, target=self.gpu, time_limit=share)
                known = Comparer(problem, self.gpu, share, self.progress, result)
                dictated = known.solved_row(ALL, "dictated", result)
                return _Member(unit, known, {row.family: row for row in (dictated, *known.used_rows())})
            comparer = Comparer(problem, self.gpu, share, lambda text: self.progress(f"{name}: {text}"), None)
            return _Member(unit, comparer, {row.family: row for row in comparer.run().rows})

    def run(self) -> Comparison:
        """All rows."""
        families = dict.fromkeys(family for member in self.members for family in member.rows)
        # Everything is searched first: what it finds is the answer of every row that it belongs to.
        everything = self._row(ALL)
        rows = [everything if name == ALL else self._row(name) for name in families]
        marked = mark_pareto([row for row in rows if row is not None])
        dictated = all(member.dictated for member in self.members)
        return Comparison(
            self.tile_set.name,
            self.gpu.name,
            self.tile_set.threads,
            marked,
            recommend_dictated(marked) if dictated else recommend(marked),
            {},
            timing_of(self.gpu)[1],
        )

    def _row(self, family: str) -> Row | None:
        """The row of all tiles; None where one has nothing to put into it."""
        if family in comparison_rows() and not any(member.may_be(family) for member in self.members):
            return next(m.rows[family] for m in self.members if family in m.rows)
        rows = [member.row(family) for member in self.members]
        found = [row for row in rows if row is not None]
        if len(found) < len(rows):
            return None
        title = next((m.rows[family].title for m in self.members if family in m.rows), "dictated")
        missing = [
            f"{member.label}: {row.reason}"
            for member, row in zip(self.members, found, strict=True)
            if row.wavefronts is None
        ]
        if missing:
            status = Status.UNKNOWN if any(r.status == Status.UNKNOWN for r in found) else Status.INFEASIBLE
            return Row(family, title, status, "; ".join(missing))
        row = self._block_row(family, title, found, self._places(family, found))
        if self.limit is None or (row.bytes or 0) <= self.limit:
            return row
        return self._within(row)

    def _places(self, family: str, rows: Sequence[Row]) -> tuple[int, list[tuple[int, int]]]:
        """Bytes of all tiles, and base and bytes from stage to stage of each."""
        said = all(tile.published or tile.layout.offset for tile in self.tile_set.tiles)
        if family in ("in_use", "published") and said and not self.tile_set.same_layout:
            audit = check_tiles(self.tile_set, target=self.gpu)
            return audit.bytes, [(part.base_bytes, part.stage_bytes) for part in audit.tiles]
        return self._packed(rows)

    def _packed(
        self, rows: Sequence[Row], stages: Sequence[int | None] | None = None
    ) -> tuple[int, list[tuple[int, int]]]:
        """As the file has it, or with so many stages of each tile."""
        units = list(zip(self.units, rows, stages or [None] * len(rows), strict=True))
        alignments = [self._alignment(unit, row) for unit, row, _ in units]
        sizes = [
            unit.bytes_at(_sizes(unit, row), self._alignment(unit, row), stages)
            for unit, row, stages in units
        ]
        total, bases = pack(self.plan, sizes, alignments)
        steps = [rounded_up(row.bytes or 0, one) for row, one in zip(rows, alignments, strict=True)]
        return total, [(bases[i], step) for i, step in enumerate(steps)]

    def _alignment(self, unit: Unit, row: Row) -> int:
        """The least of a base at which the row's layout has its counts, and elements are aligned."""
        member = next(one for one in self.members if one.unit is unit)
        formula = member.comparer.formulas.get(row.offset or "")
        given = row.alignment_bytes or 1
        if formula is None or member.dictated:
            return max(given, unit.least_alignment)
        return own_alignment(unit, formula, given)

    def _stages(self, rows: Sequence[Row]) -> int | None:
        """Stages that fit: of the tiles that have some, else of all."""
        if self.limit is None:
            return None
        staged = [max(tile.stages for tile in unit.tiles) > 1 for unit in self.units]
        staged = staged if any(staged) else [True for _ in staged]
        best = 0
        for n in range(1, _MAX_STAGES + 1):
            if self._packed(rows, [n if some else 1 for some in staged])[0] > self.limit:
                break
            best = n
        return best

    def _block_row(
        self, family: str, title: str, rows: Sequence[Row], places: tuple[int, list[tuple[int, int]]]
    ) -> BlockRow:
        total, placed = places
        status, reason = _status(rows), ""
        sizes = [unit.bytes_at(_sizes(unit, row), 1) for unit, row in zip(self.units, rows, strict=True)]
        if (
            status == Status.OPTIMAL
            and family != "none"
            and pack(self.plan, sizes, [1] * len(sizes))[0] < total
        ):
            status, reason = str(Status.FEASIBLE), _ALIGNED
        alignment = max(map(self._alignment, self.units, rows))
        fits = occupancy(
            total,
            alignment,
            self.tile_set.threads,
            self.gpu,
            self.tile_set.target,
            other_bytes=self.tile_set.block.other_shared_bytes,
            registers=self.tile_set.block.registers,
        )
        blocks = fits.blocks if fits else None
        timed = [(row.cycles, row.time) for row in rows if row.cycles is not None and row.time is not None]
        whole = len(timed) == len(rows)
        dictated = any(row.by_hardware is not None for row in rows)
        return BlockRow(
            family,
            title,
            status,
            reason,
            self._each(rows, [row.offset or "" for row in rows]),
            self._each(rows, [row.label for row in rows]),
            total,
            max(self._declared(rows, placed), total),
            alignment,
            wavefronts=sum(row.wavefronts or 0 for row in rows),
            ideal=sum(row.ideal or 0 for row in rows),
            excess=sum(row.excess or 0 for row in rows),
            ways=max(row.ways or 0 for row in rows),
            weighted_wavefronts=sum(row.weighted_wavefronts or 0.0 for row in rows),
            index_ops=_sum([row.index_ops for row in rows]),
            blocks_per_sm=blocks,
            blocks_by_shared_memory=fits.by_shared_memory if fits else None,
            limited_by=fits.limited_by if fits else None,
            pipeline_stages=self._stages(rows),
            by_hardware=sum(row.by_hardware or 0 for row in rows) if dictated else None,
            instructions=_sum([row.instructions for row in rows]),
            cycles=sum(cycles for cycles, _ in timed) if whole else None,
            # A tile's time is that of its memory, or its cycles shared by as many blocks as run.
            time=sum(max(time, cycles / max(1, blocks or 1)) for cycles, time in timed) if whole else None,
            edit=self._each(rows, [row.edit or "" for row in rows]) or None,
            seconds=sum(row.seconds for row in rows),
            accesses=tuple(access for row in rows for access in row.accesses),
            tiles=tuple(self._tiles(rows, placed)),
        )

    def _tiles(self, rows: Sequence[Row], placed: Sequence[tuple[int, int]]) -> Iterator[TileOfRow]:
        for member, row, (base, step) in zip(self.members, rows, placed, strict=True):
            yield TileOfRow(
                member.names,
                row.offset or "",
                row.bytes or 0,
                base,
                member.unit.stages,
                step,
                row.wavefronts or 0,
                row.excess or 0,
            )

    def _declared(self, rows: Sequence[Row], placed: Sequence[tuple[int, int]]) -> int:
        """To the end of the last array, declared with every pitch in full."""
        ends = []
        for unit, row, (base, step) in zip(self.units, rows, placed, strict=True):
            before = (unit.stages - 1) * step
            if unit.several_sizes:
                before = unit.bytes_at(_sizes(unit, row), self._alignment(unit, row)) - (row.bytes or 0)
            ends.append(base + before + (row.declared_bytes or 0))
        return max(ends)

    def _each(self, rows: Sequence[Row], texts: Sequence[str]) -> str:
        """The text of each tile that has one."""
        said = zip(self.members, texts, strict=True)
        return "; ".join(f"{member.label}: {text}" for member, text in said if text)

    def _within(self, row: BlockRow) -> Row:
        """The best of the row's families within the budget, where the row itself is beyond it."""
        needs = f"{row.bytes:,} bytes with {row.excess:,} excess wavefronts, and {self.limit:,} are there"
        if row.pipeline_stages:
            needs += f"; {row.pipeline_stages} stage{'s' * (row.pipeline_stages > 1)} fit"
        families = self._families(row.family)
        nothing = Row(row.family, row.title, Status.INFEASIBLE, needs, row.offset, bytes=row.bytes)
        if not families:
            return nothing
        found = self._arranged(families)
        if not found.tiles or found.bytes is None:
            return msgspec.structs.replace(nothing, status=found.status)
        rows = [
            member.comparer.solved_row(row.family, row.title, part.result)
            for member, part in zip(self.members, found.tiles, strict=True)
        ]
        placed = [(part.base_bytes, part.stage_bytes) for part in found.tiles]
        within = self._block_row(row.family, row.title, rows, (found.bytes, placed))
        return msgspec.structs.replace(within, status=found.status, reason=f"without the limit {needs}")

    def _arranged(self, families: tuple[str, ...]) -> Arrangement:
        """The best of these families within the budget, each question asked once."""
        for searched, found in self.arranged.items():
            used = {name for part in found.tiles for name in (part.result.family or "none").split("+")}
            best = found.status is Status.OPTIMAL and used <= {*families} <= {*searched}
            if searched == families or (found.tiles and best):
                return found
        layout = msgspec.structs.replace(self.tile_set.layout, families=families, max_bytes=self.limit)
        asked = msgspec.structs.replace(self.tile_set, layout=layout)
        budget = self.budget.part(0.5)
        self.arranged[families] = solve_all(asked, target=self.gpu, budget=budget, progress=self.progress)
        return self.arranged[families]

    def _families(self, family: str) -> tuple[str, ...]:
        """Families to search for a row under the budget, as far as every tile allows them."""
        known = comparison_rows()
        if family != ALL and family not in known:
            return ()
        mine = known.get(family, ())
        together = {other for f in mine for other in (f.name, *f.beside)} | {"none"}
        allowed = self.tile_set.layout.families or FAMILIES
        return tuple(f for f in FAMILIES if f in allowed and (family == ALL or f in together))


def _sizes(unit: Unit, row: Row) -> tuple[int, ...]:
    """Bytes of one stage of each of the unit's copies under the layout of a row."""
    if not unit.several_sizes or row.offset is None:
        return (row.bytes or 0,) * len(unit.copies)
    names = frozenset(f"x{d}" for d in range(len(unit.case.problem.tile.shape)))
    return unit.sizes(unit.case.table(parse(row.offset, names)))


def _status(rows: Sequence[Row]) -> str:
    """Proved best where every tile's row is; given where one is."""
    found = {row.status for row in rows}
    for status in ("given", Status.FEASIBLE):
        if status in found:
            return str(status)
    return str(Status.OPTIMAL)


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
