"""Padding or swizzle? The best layout of each family side by side, what each costs, and which to take.

Several tiles are compared by themselves and under one budget: a row of the block is the same row of all its
tiles, one behind the other as tightly as they go. Where that is more than the budget, the tiles are arranged
again with the families of the row, so that the row is the least excess that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from layoutopt.accesses.lower import offset_formula
from layoutopt.files.checks import fields_of
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.hardware.occupancy import occupancy
from layoutopt.layout.families import comparison_rows
from layoutopt.problems.answer import Arrangement, Result, Status
from layoutopt.problems.target import target_of
from layoutopt.problems.types import FAMILIES, Access, Block, Problem, TileAccess
from layoutopt.search.block import solve
from layoutopt.search.fronts import Unit, own_alignment, plan_of, units_of
from layoutopt.search.packing import pack, rounded_up
from layoutopt.search.proposal import Progress
from layoutopt.search.same_layout import within_room
from layoutopt.study.advice import advised
from layoutopt.study.check import check
from layoutopt.study.comparison import BlockRow, Comparison, Row, TileOfRow
from layoutopt.study.rows import ALL, TileRows

Known = Callable[[Problem], Result | None]

# What is taken of a tile that has no such row: its layout in use, or row-major.
_INSTEAD: Final = {
    "edit": ("in_use", "published"),
    "in_use": ("published",),
    "guess_pad": ("none",),
    "guess_xor": ("none",),
}
_MAX_STAGES: Final = 64  # as in a file
_ALIGNED: Final = "bytes are lost to alignment, which other layouts of the tiles may not lose"


def compare(
    problem: Problem | Block,
    *,
    target: Device | str | None = None,
    time_limit: float | None = None,
    progress: Progress = lambda _: None,
    known: Result | Known | None = None,
) -> Comparison:
    """The best layout of each family, the guesses, and the layout in use; of several tiles, rows are of all.

    Args:
        problem: a tile and its accesses, or several.
        target: the device or its name, where it is not the one the problem names.
        time_limit: seconds for the search over everything, and as many for the rest; None for no limit.
        progress: called with a line of text from time to time.
        known: the answer of `solve` to the problem of one tile, or what has that of each tile where it is
            known; everything is not searched again.

    Raises:
        ProblemFileError: the problem contradicts itself, or `known` is no answer to it.
    """
    gpu = target_of(problem, target)
    if isinstance(problem, Block):
        answers = known if callable(known) else lambda _: None
        return _BlockRows(problem, gpu, time_limit, progress, answers).run()
    return TileRows(problem, gpu, time_limit, progress, known(problem) if callable(known) else known).run()


# A block -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Member:
    """What gets one layout, and its rows by family.

    The best layout of what the hardware dictates stands in the row of every family.
    """

    unit: Unit
    found: TileRows
    rows: dict[str, Row]

    @property
    def dictated(self) -> bool:
        return self.unit.case.asked.is_dictated

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tile.name for tile in self.unit.tiles)

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

    def alignment(self, row: Row) -> int:
        """The least of a base at which the row's layout has its counts, and elements are aligned."""
        formula = self.found.formulas.get(row.offset or "")
        given = row.alignment_bytes or 1
        if formula is None or self.dictated:
            return max(given, self.unit.least_alignment)
        return own_alignment(self.unit, formula, given)

    def bytes_of(self, row: Row, alignment: int, stages: int | None = None) -> int:
        """Bytes of all stages under the layout of a row, or of so many."""
        unit = self.unit
        sizes: tuple[int, ...] = (row.bytes or 0,) * len(unit.copies)
        if unit.several_sizes and row.offset is not None:
            sizes = unit.sizes(unit.case.table(offset_formula(row.offset, unit.case.problem.tile)))
        return unit.bytes_at(sizes, alignment, stages)


@dataclass(frozen=True, slots=True)
class _Places:
    """Bytes of all tiles; where each begins, and bytes from stage to stage of each."""

    bytes: int
    bases: tuple[int, ...]
    steps: tuple[int, ...]


class _BlockRows:
    """Rows of all tiles, from those of each."""

    def __init__(
        self, tile_set: Block, gpu: Device, time_limit: float | None, progress: Progress, known: Known
    ) -> None:
        self.tile_set, self.gpu, self.progress = tile_set, gpu, progress
        units = units_of(tile_set, gpu)
        self.plan = plan_of(tile_set, units)
        # As much for what does not fit as for one tile.
        share = None if time_limit is None else time_limit / (len(units) + 1)
        self.members = [self._member(unit, share, known) for unit in units]
        self.budget = Budget(None if share is None else 2 * share)
        self.arranged: dict[tuple[str, ...], Arrangement] = {}
        self.limit = within_room(tile_set, gpu).layout.max_bytes

    def _member(self, unit: Unit, share: float | None, known: Known) -> _Member:
        problem = unit.asked
        with fields_of(self.tile_set, *unit.tiles):
            answer = known(problem)
            if problem.is_dictated:
                result = answer or solve(problem, target=self.gpu, time_limit=share)
                found = TileRows(problem, self.gpu, share, self.progress, result)
                rows = [found.solved_row(ALL, "dictated", result), *found.used_rows()]
            else:
                told = partial(_tell, self.progress, unit.tiles[0].name)
                found = TileRows(problem, self.gpu, share, told, answer)
                rows = list(found.run().rows)
        return _Member(unit, found, {row.family: row for row in rows})

    def run(self) -> Comparison:
        """All rows."""
        families = dict.fromkeys(family for member in self.members for family in member.rows)
        # Everything is searched first: what it finds is the answer of every row that it belongs to.
        everything = self._row(ALL)
        rows = [everything if name == ALL else self._row(name) for name in families]
        there = [row for row in rows if row is not None]
        dictated = all(member.dictated for member in self.members)
        widths = {k: width for m in self.members for k, width in (m.found.widths or {}).items()}
        return advised(self.tile_set, self.gpu, there, widths, dictated=dictated)

    def _row(self, family: str) -> Row | None:
        """The row of all tiles; None where one has nothing to put into it."""
        if family in comparison_rows() and not any(member.may_be(family) for member in self.members):
            return next(m.rows[family] for m in self.members if family in m.rows)
        rows = [member.row(family) for member in self.members]
        found = [row for row in rows if row is not None]
        if len(found) < len(rows):
            return None
        title = next((m.rows[family].title for m in self.members if family in m.rows), "dictated")
        missing = [row.reason if row.wavefronts is None else "" for row in found]
        if any(row.wavefronts is None for row in found):
            status = Status.UNKNOWN if any(r.status == Status.UNKNOWN for r in found) else Status.INFEASIBLE
            return Row(family, title, status, self._each(missing))
        row = self._block_row(family, title, found, self._places(family, found))
        if self.limit is None or (row.bytes or 0) <= self.limit:
            return row
        return self._within(row)

    def _places(self, family: str, rows: Sequence[Row]) -> _Places:
        """Where the tiles lie: as the file says of what is in use, else as tightly as they go."""
        said = all(tile.published or tile.layout.offset for tile in self.tile_set.tiles)
        if family in ("in_use", "published") and said and not self.tile_set.same_layout:
            audit = check(self.tile_set, target=self.gpu)
            bases = tuple(part.base_bytes for part in audit.tiles)
            return _Places(audit.bytes, bases, tuple(part.stage_bytes for part in audit.tiles))
        return self._packed(rows)

    def _packed(self, rows: Sequence[Row], stages: Sequence[int | None] | None = None) -> _Places:
        """As tightly as they go, with the stages of the file or so many of each tile."""
        parts = list(zip(self.members, rows, stages or [None] * len(rows), strict=True))
        alignments = [member.alignment(row) for member, row, _ in parts]
        sizes = [
            member.bytes_of(row, alignment, stages)
            for (member, row, stages), alignment in zip(parts, alignments, strict=True)
        ]
        total, bases = pack(self.plan, sizes, alignments)
        steps = (rounded_up(row.bytes or 0, one) for row, one in zip(rows, alignments, strict=True))
        return _Places(total, tuple(bases[i] for i in range(len(rows))), tuple(steps))

    def _stages(self, rows: Sequence[Row]) -> int | None:
        """Stages that fit: of the tiles that have some, else of all."""
        if self.limit is None:
            return None
        staged = [max(tile.stages for tile in member.unit.tiles) > 1 for member in self.members]
        staged = staged if any(staged) else [True for _ in staged]
        best = 0
        for n in range(1, _MAX_STAGES + 1):
            if self._packed(rows, [n if some else 1 for some in staged]).bytes > self.limit:
                break
            best = n
        return best

    def _block_row(self, family: str, title: str, rows: Sequence[Row], places: _Places) -> BlockRow:
        """One row of all tiles: what adds up is added, what a block has is that of all bytes."""
        total, common = places.bytes, self.tile_set.block
        status, reason = _status(rows), ""
        if status == Status.OPTIMAL and family != "none":
            sizes = [member.bytes_of(row, 1) for member, row in zip(self.members, rows, strict=True)]
            if pack(self.plan, sizes, [1] * len(sizes))[0] < total:
                status, reason = str(Status.FEASIBLE), _ALIGNED
        alignment = max(member.alignment(row) for member, row in zip(self.members, rows, strict=True))
        fits = occupancy(
            total,
            alignment,
            self.tile_set.threads,
            self.gpu,
            self.tile_set.target,
            other_bytes=common.other_shared_bytes,
            registers=common.registers,
        )
        timed = [(row.cycles, row.time) for row in rows if row.cycles is not None and row.time is not None]
        whole = len(timed) == len(rows)
        blocks = max(1, fits.blocks if fits else 1)
        dictated = any(row.by_hardware is not None for row in rows)
        costs = [row.instructions for row in rows if row.instructions is not None]
        cost = sum(costs) if len(costs) == len(rows) else None
        return BlockRow(
            family,
            title,
            status,
            reason,
            self._each([row.offset or "" for row in rows]),
            self._each([row.label for row in rows]),
            total,
            max(self._declared(rows, places), total),
            alignment,
            wavefronts=sum(row.wavefronts or 0 for row in rows),
            ideal=sum(row.ideal or 0 for row in rows),
            excess=sum(row.excess or 0 for row in rows),
            ways=max(row.ways or 0 for row in rows),
            weighted_wavefronts=sum(row.weighted_wavefronts or 0.0 for row in rows),
            index_ops=cost,
            blocks_per_sm=fits.blocks if fits else None,
            blocks_by_shared_memory=fits.by_shared_memory if fits else None,
            limited_by=fits.limited_by if fits else None,
            pipeline_stages=self._stages(rows),
            by_hardware=sum(row.by_hardware or 0 for row in rows) if dictated else None,
            instructions=cost,
            cycles=sum(cycles for cycles, _ in timed) if whole else None,
            # A tile's time is that of its memory, or its cycles shared by as many blocks as run.
            time=sum(max(time, cycles / blocks) for cycles, time in timed) if whole else None,
            edit=self._each([row.edit or "" for row in rows]) or None,
            seconds=sum(row.seconds for row in rows),
            accesses=tuple(access for row in rows for access in row.accesses),
            tiles=tuple(self._tiles(rows, places)),
        )

    def _tiles(self, rows: Sequence[Row], places: _Places) -> Iterator[TileOfRow]:
        for member, row, base, step in zip(self.members, rows, places.bases, places.steps, strict=True):
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

    def _declared(self, rows: Sequence[Row], places: _Places) -> int:
        """To the end of the last array, declared with every pitch in full."""
        ends = []
        for member, row, base, step in zip(self.members, rows, places.bases, places.steps, strict=True):
            before = (member.unit.stages - 1) * step
            if member.unit.several_sizes:
                before = member.bytes_of(row, member.alignment(row)) - (row.bytes or 0)
            ends.append(base + before + (row.declared_bytes or 0))
        return max(ends)

    def _each(self, texts: Sequence[str]) -> str:
        """The text of each tile that has one."""
        said = zip(self.members, texts, strict=True)
        return "; ".join(f"{', '.join(member.names)}: {text}" for member, text in said if text)

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
            member.found.solved_row(row.family, row.title, part.result)
            for member, part in zip(self.members, found.tiles, strict=True)
        ]
        bases = tuple(part.base_bytes for part in found.tiles)
        places = _Places(found.bytes, bases, tuple(part.stage_bytes for part in found.tiles))
        within = self._block_row(row.family, row.title, rows, places)
        return msgspec.structs.replace(within, status=found.status, reason=f"without the limit {needs}")

    def _arranged(self, families: tuple[str, ...]) -> Arrangement:
        """The best of these families within the budget, each question asked once."""
        for searched, found in self.arranged.items():
            used = {name for part in found.tiles for name in (part.result.family or "none").split("+")}
            best = found.status is Status.OPTIMAL and used <= {*families} <= {*searched}
            if searched == families or (found.tiles and best):
                return found
        constraints = {"families": families, "max_bytes": self.limit, "minimise": "excess"}
        layout = msgspec.structs.replace(self.tile_set.layout, **constraints)
        asked = msgspec.structs.replace(self.tile_set, layout=layout, accesses=self._settled_accesses())
        budget = self.budget.part(0.5)
        self.arranged[families] = solve(asked, target=self.gpu, budget=budget, progress=self.progress)
        return self.arranged[families]

    def _settled_accesses(self) -> tuple[TileAccess, ...]:
        """The accesses with the lanes and widths of the rows."""
        found = {a.name: a for member in self.members for a in member.found.case.problem.accesses}
        settled = []
        for access in self.tile_set.accesses:
            if access.is_free or isinstance(access.bytes, tuple):
                own = {field: getattr(found[access.name], field) for field in Access.__struct_fields__}
                access = msgspec.structs.replace(access, **own)
            settled.append(access)
        return tuple(settled)

    def _families(self, family: str) -> tuple[str, ...]:
        """Families to search for a row under the budget, as far as every tile allows them."""
        known = comparison_rows()
        if family != ALL and family not in known:
            return ()
        mine = known.get(family, ())
        together = {other for f in mine for other in (f.name, *f.beside)} | {"none"}
        allowed = self.tile_set.layout.families or FAMILIES
        return tuple(f for f in FAMILIES if f in allowed and (family == ALL or f in together))


def _status(rows: Sequence[Row]) -> str:
    """Proved best where every tile's row is; given where one is."""
    found = {row.status for row in rows}
    for status in ("given", Status.FEASIBLE):
        if status in found:
            return str(status)
    return str(Status.OPTIMAL)


def _tell(progress: Progress, name: str, text: str) -> None:
    progress(f"{name}: {text}")
