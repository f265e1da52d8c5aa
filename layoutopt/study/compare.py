"""Padding or swizzle? The best layout of each family side by side, what each costs, and which to take.

Several tiles are compared by themselves and under one budget: a row of the block is the same row of all its
tiles, one behind the other as tightly as they go. Where that is more than the budget, the tiles are arranged
again with the families of the row, so that the row is the least excess that fits.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.lower import with_widths
from layoutopt.engine.estimate import timing_of, why_no_estimate
from layoutopt.files.checks import fields_of
from layoutopt.ground.budget import Budget, spending
from layoutopt.ground.log import Progress, told
from layoutopt.hardware.devices import Device
from layoutopt.hardware.occupancy import occupancy
from layoutopt.layout.families import comparison_rows
from layoutopt.problems.answer import Arrangement, PlacedTile, Result, Status
from layoutopt.problems.same_layout import alike, groups, within_room
from layoutopt.problems.target import target_of
from layoutopt.problems.text import count_text
from layoutopt.problems.types import FAMILIES, Access, Block, Problem, TileAccess, constrained
from layoutopt.search.block import solve
from layoutopt.search.fronts import Unit, own_alignment, plan_of, units_of
from layoutopt.search.packing import least_bytes, pack, rounded_up
from layoutopt.search.proposal import Ask, of_tile
from layoutopt.study.block import check_answer
from layoutopt.study.check import PlacedAudit, check
from layoutopt.study.comparison import Comparison, Row, TileOfRow, recommend
from layoutopt.study.in_use import without_formulas
from layoutopt.study.rows import ALL, NOT_ALLOWED, TileRows

# The rows that stand in for one that a tile does not have: that of its layout in use, else the best of all.
_STANDS_IN: Final = {"edit": ("in_use", "published"), "in_use": ("published",), "given": (ALL,)}
_SUMMED: Final = (
    "wavefronts", "ideal", "excess", "weighted_wavefronts", "index_ops", "instructions", "cycles", "seconds",
)  # fmt: skip
_ALIGNMENT_LOSS: Final = "bytes are lost to alignment, which other layouts of the tiles may not lose"


def compare(
    problem: Problem | Block,
    *,
    target: Device | str | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
    known: Result | Arrangement | None = None,
) -> Comparison:
    """The best layout of each family, and the layout in use; of a block, each row is of all its tiles.

    Args:
        problem: a tile and its accesses, or several.
        target: the device or its name, where it is not the one the problem names.
        time_limit: seconds for the search over everything, and as many for the rest; None for no limit.
        progress: called with a line of text from time to time.
        known: an answer of `solve` to the problem, which is checked. Where the problem minimises excess
            first, as rows do, it stands in the place of the search over everything; of a block, for those
            tiles alone whose layout is proved best of every layout.

    Raises:
        ProblemFileError: the problem contradicts itself, or `known` is no answer to it.
    """
    gpu, progress = target_of(problem, target), told(progress)
    if known is not None:
        check_answer(problem, gpu, known)
    answer: Any = known if problem.layout.objective.excess_first else None  # of the problem's kind: checked
    if isinstance(problem, Block):
        block = _BlockRows(problem, gpu, time_limit, progress, answer)
        rows, tiles = block.rows(), [unit_rows.tile_rows for unit_rows in block.units]
    else:
        tile = TileRows(problem, gpu, time_limit, progress, answer)
        rows, tiles = tile.rows(), [tile]
    marked = tuple(replace(row, pareto=_is_pareto(row, rows)) for row in rows)
    dictated = all(tile.problem.is_dictated for tile in tiles)
    no_estimate = next(filter(None, (why_no_estimate(tile.case) for tile in tiles)), None)
    widths = {name: width for tile in tiles for name, width in tile.case.widths.items()}
    advice = recommend(marked, dictated=dictated, no_estimate=no_estimate)
    _, borrowed = timing_of(gpu)  # the device whose coefficients estimates take, if they are not its own
    return Comparison(
        problem.name, gpu.name, problem.threads, marked, advice, widths,
        borrowed=borrowed, no_estimate=no_estimate,
    )  # fmt: skip


def _is_pareto(row: Row, rows: Sequence[Row]) -> bool:
    """Whether no other row has less of weighted wavefronts or bytes and no more of the other."""
    if row.wavefronts is None:
        return False
    costs = row.rank[:2]
    other_costs = {other.rank[:2] for other in rows if other.wavefronts is not None} - {costs}
    return not any(all(a <= b for a, b in zip(other, costs, strict=True)) for other in other_costs)


# A block -----------------------------------------------------------------------------------------


class _Laid(NamedTuple):
    """A unit (a tile, or the tiles that share a layout) under the layout of one of its rows."""

    unit: Unit
    row: Row
    alignment: int  # least alignment of the base, in bytes, at which the counts hold and elements are aligned
    sizes: tuple[int, ...]  # bytes of one stage of each of the unit's copies

    def bytes_at(self, alignment: int, stages: int | None = None) -> int:
        """Bytes of all stages at an alignment of their bases, or of another number of `stages`."""
        return self.unit.bytes_at(self.sizes, alignment, stages)

    def placed(self, base_bytes: int, stage_bytes: int) -> TileOfRow:
        """The unit where its first stage begins at `base_bytes`, and each further one `stage_bytes` on."""
        row = self.row
        return TileOfRow(
            tiles=tuple(tile.name for tile in self.unit.tiles),
            offset=row.offset or "",
            bytes=row.bytes or 0,
            base_bytes=base_bytes,
            stages=self.unit.stages,
            stage_bytes=stage_bytes,
            wavefronts=row.wavefronts or 0,
            excess=row.excess or 0,
        )

    def declared_end(self, placed: TileOfRow) -> int:
        """The byte behind the last stage, where its array is declared with every pitch in full."""
        before = (placed.stages - 1) * placed.stage_bytes
        if self.unit.several_sizes:
            before = self.bytes_at(self.alignment) - placed.bytes
        return placed.base_bytes + before + (self.row.declared_bytes or 0)


class _UnitRows(Struct, frozen=True):
    """The rows of a unit by family, as if there were no other tiles."""

    unit: Unit
    tile_rows: TileRows
    rows: dict[str, Row]

    def row(self, family: str) -> Row | None:
        """What the unit has in the block's row of a family; None where nothing stands in for its own."""
        best = self.rows[ALL]
        if self.unit.asked.is_dictated:  # its best layout belongs to no family, and stands in for all
            return self.rows.get(family, best)
        names = (family, *_STANDS_IN.get(family, ()))
        row = next((self.rows[name] for name in names if name in self.rows), None)
        return best if row is not None and row.reason == NOT_ALLOWED else row

    def chosen(self, block: Block) -> Iterator[Access]:
        """The accesses that the file leaves open, with the widths and lanes of the rows, in their own tiles.

        Not lanes chosen in the coordinates of another tile that shares the layout: those stay open.
        """
        case = self.tile_rows.case
        by_name = {access.name: access for access in case.problem.accesses}
        for tile in self.unit.tiles:
            asked = block.problem(tile)
            for access, own in zip(asked.accesses, with_widths(asked, case.widths).accesses, strict=True):
                if isinstance(access.bytes, tuple):
                    yield own
                elif access.is_free and alike(tile, self.unit.asked.tile):
                    yield by_name[access.name]

    def laid(self, row: Row) -> _Laid:
        """The unit under the layout of one of its rows."""
        unit, formula = self.unit, self.tile_rows.formulas[row.offset or ""]
        alignment = max(row.alignment_bytes or 1, unit.least_alignment)
        if not unit.asked.is_dictated:  # what lanes execute may have the same counts at finer bases
            alignment = own_alignment(unit, formula, row.alignment_bytes or 1)
        sizes = (row.bytes or 0,) * len(unit.copies)
        if unit.several_sizes:
            sizes = unit.sizes(unit.case.table(formula))
        return _Laid(unit, row, alignment, sizes)


class _Placement(NamedTuple):
    """Where the units of a block lie."""

    bytes: int  # of all units together
    units: tuple[TileOfRow, ...]  # one by one


class _BlockRows:
    """The rows of a block: each sums a row of every unit, and says where the units lie."""

    def __init__(
        self,
        block: Block,
        gpu: Device,
        time_limit: float | None,
        progress: Progress,
        known: Arrangement | None,
    ) -> None:
        self.block, self.gpu, self.progress = block, gpu, progress
        sharing, self.limit = groups(block), within_room(block, gpu).layout.max_bytes
        units = units_of(block, sharing, gpu)
        self.plan = plan_of(block, units)
        # Each unit has as much time as the rows that are beyond the budget of bytes.
        seconds = None if time_limit is None else time_limit / (len(units) + 1)
        if not all(unit.is_settled for unit in units):
            known = None  # the rows of each tile have its own lanes and widths
        results = [_if_best_alone(tile.result) for tile in known.tiles] if known is not None else []
        pairs = zip(units, results or [None] * len(units), strict=True)
        self.units = [self._rows_of(unit, result, seconds) for unit, result in pairs]
        self.budget = Budget(None if seconds is None else 2 * seconds)
        # Answers within the budget of bytes, by the families that were searched.
        self.arranged = {self._searched_families(ALL): known} if known is not None else {}

    def _rows_of(self, unit: Unit, known: Result | None, seconds: float | None) -> _UnitRows:
        """The rows of a unit by itself, whose best layout is that of `known`, if given."""
        with fields_of(self.block, *unit.tiles):
            progress = of_tile(unit.tiles[0].name, self.progress)
            tile_rows = TileRows(unit.asked, self.gpu, seconds, progress, known)
            rows = tile_rows.dictated_rows() if unit.asked.is_dictated else tile_rows.rows()
        return _UnitRows(unit, tile_rows, {row.family: row for row in rows})

    def rows(self) -> list[Row]:
        """The rows of the block, in the order in which its units have them."""
        families = dict.fromkeys(family for unit_rows in self.units for family in unit_rows.rows)
        # Everything is searched first: its answer serves every row whose families the answer uses.
        by_family = {name: self._row(name) for name in dict.fromkeys((ALL, *families))}
        return [row for name in families if (row := by_family[name]) is not None]

    def _row(self, family: str) -> Row | None:
        """The block's row of a family; None where a unit has no row for it."""
        own = [unit_rows.rows[family] for unit_rows in self.units if family in unit_rows.rows]
        if all(row.reason == NOT_ALLOWED for row in own):
            return own[0]
        title, rows = own[0].title, [row for unit in self.units if (row := unit.row(family)) is not None]
        if len(rows) < len(self.units):
            return None
        if any(row.wavefronts is None for row in rows):
            unknown = any(row.status == Status.UNKNOWN for row in rows)
            reasons = self._by_tile([row.reason if row.wavefronts is None else "" for row in rows])
            return Row(family, title, Status.UNKNOWN if unknown else Status.INFEASIBLE, reasons)
        layouts = [unit_rows.laid(row) for unit_rows, row in zip(self.units, rows, strict=True)]
        row = self._combined(family, title, layouts, self._placement(family, layouts))
        return row if self.limit is None or (row.bytes or 0) <= self.limit else self._within_budget(row)

    def _by_tile(self, texts: Sequence[str]) -> str:
        """`A: text; B, C: text`: the text of each unit behind its tiles' names, empty ones left out."""
        names = (", ".join(tile.name for tile in unit_rows.unit.tiles) for unit_rows in self.units)
        return "; ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True) if text)

    # Where tiles lie ---------------------------------------------------------------------------

    def _placement(self, family: str, layouts: Sequence[_Laid]) -> _Placement:
        """Layouts in use where the file places them; any others packed as tightly as they go."""
        all_in_use = all(tile.published or tile.layout.offset for tile in self.block.tiles)
        if family not in ("in_use", "published") or not all_in_use or self.block.same_layout:
            return self._packed(layouts)
        audit = check(self.block, target=self.gpu)
        return _Placement(audit.bytes, _placed(layouts, audit.tiles))

    def _packed(self, layouts: Sequence[_Laid], stages: Sequence[int | None] | None = None) -> _Placement:
        """The units as tightly as they go, with the file's stages, or as many of each as `stages` says."""
        counts = stages or [None] * len(layouts)
        sizes = [layout.bytes_at(layout.alignment, n) for layout, n in zip(layouts, counts, strict=True)]
        total, bases = pack(self.plan, sizes, [layout.alignment for layout in layouts])
        units = (
            layout.placed(bases[k], rounded_up(layout.row.bytes or 0, layout.alignment))
            for k, layout in enumerate(layouts)
        )
        return _Placement(total, tuple(units))

    def _most_stages(self, layouts: Sequence[_Laid]) -> int | None:
        """Stages that fit a block of the GPU, of every unit with more than one, else of all units.

        None where the limit of bytes is not known.
        """
        if self.limit is None:
            return None
        staged = [max(tile.stages for tile in layout.unit.tiles) > 1 for layout in layouts]

        def bytes_of(stages: int) -> int:  # which rise with the stages
            return self._packed(layouts, [stages if own or not any(staged) else 1 for own in staged]).bytes

        return bisect_right(range(1, self.limit + 1), self.limit, key=bytes_of)

    # Rows of all -------------------------------------------------------------------------------

    def _combined(self, family: str, title: str, layouts: Sequence[_Laid], placement: _Placement) -> Row:
        """The block's row of a family: sums over its units, whose `layouts` lie as `placement` says."""
        block, size, rows = self.block, placement.bytes, [layout.row for layout in layouts]
        statuses, reason = {row.status for row in rows}, ""
        # The row claims what the weakest of its units does; a unit has a layout, given, found or proved best.
        status = next((s for s in ("given", Status.FEASIBLE) if s in statuses), str(Status.OPTIMAL))
        # Each unit's layout is proved best by itself; others, aligned to less, may pack into fewer bytes.
        unaligned = least_bytes(self.plan, [layout.bytes_at(alignment=1) for layout in layouts])
        if status == Status.OPTIMAL and unaligned < size and family != "none":  # which has but one layout
            status, reason = str(Status.FEASIBLE), _ALIGNMENT_LOSS
        alignment = max(layout.alignment for layout in layouts)
        fits = occupancy(  # on a multiprocessor; None where its limits are not known
            size, alignment, block.threads, self.gpu, block.target,
            other_bytes=block.block.other_shared_bytes, registers=block.block.registers,
        )  # fmt: skip
        ends = [layout.declared_end(unit) for layout, unit in zip(layouts, placement.units, strict=True)]
        row = Row(
            family,
            title,
            status,
            reason,
            offset=self._by_tile([row.offset or "" for row in rows]),
            label=self._by_tile([row.label for row in rows]),
            bytes=size,
            declared_bytes=max(*ends, size),
            alignment_bytes=alignment,
            ways=None if any(row.ways is None for row in rows) else max(row.ways or 0 for row in rows),
            # Some units may be dictated by the hardware, and others not.
            by_hardware=_sum([row for row in rows if row.by_hardware is not None], "by_hardware"),
            time=_time(rows, blocks=max(1, fits.blocks if fits else 1)),
            edit=self._by_tile([row.edit or "" for row in rows]) or None,
            accesses=tuple(access for row in rows for access in row.accesses),
            tiles=placement.units,
            **{field: _sum(rows, field) for field in _SUMMED},
        )
        return replace(row.resident(fits), pipeline_stages=self._most_stages(layouts))

    # The budget --------------------------------------------------------------------------------

    def _within_budget(self, row: Row) -> Row:
        """The best of the row's families within the budget of bytes, in place of a row that is beyond it."""
        needs = f"{row.bytes:,} bytes with {row.excess:,} excess wavefronts, and {self.limit:,} are there"
        if row.pipeline_stages:
            needs += f"; {count_text(row.pipeline_stages, 'stage')} fit"
        families = self._searched_families(row.family)
        answer = self._solved_within_budget(families) if families else None
        if answer is None or answer.bytes is None:
            status = Status.INFEASIBLE if answer is None else answer.status
            return Row(row.family, row.title, status, needs, row.offset, bytes=row.bytes)
        layouts = [
            unit_rows.laid(unit_rows.tile_rows.solved_row(row.family, row.title, tile.result))
            for unit_rows, tile in zip(self.units, answer.tiles, strict=True)
        ]
        placement = _Placement(answer.bytes, _placed(layouts, answer.tiles))
        within = self._combined(row.family, row.title, layouts, placement)
        return replace(within, status=answer.status, reason=f"without the limit {needs}")

    def _searched_families(self, row_family: str) -> tuple[str, ...]:
        """Families to search for a row under the budget, of those that the block allows.

        Empty for rows that are not searched: of layouts in use, edits and instructions as given.
        """
        by_row = comparison_rows()
        if row_family != ALL and row_family not in by_row:
            return ()
        of_row = {name for f in by_row.get(row_family, ()) for name in (f.name, *f.beside)} | {"none"}
        allowed = self.block.layout.families or FAMILIES
        return tuple(f for f in FAMILIES if f in allowed and (row_family == ALL or f in of_row))

    def _solved_within_budget(self, families: tuple[str, ...]) -> Arrangement:
        """The best of these families within the budget of bytes, with the lanes and widths of the rows.

        A proved answer of more families, which uses none but these, is theirs as well.
        """
        for searched, answer in self.arranged.items():
            used = {name for tile in answer.tiles for name in (tile.result.family or "none").split("+")}
            is_theirs = used <= {*families} <= {*searched} and answer.status is Status.OPTIMAL
            if searched == families or (answer.tiles and is_theirs):
                return answer
        chosen = {access.name: access for unit_rows in self.units for access in unit_rows.chosen(self.block)}

        def settled(access: TileAccess) -> TileAccess:
            """The access with what the rows of its tile chose for it, where the file leaves it open."""
            own = chosen.get(access.name)
            fields = Access.__struct_fields__ if own is not None else ()
            return replace(access, **{field: getattr(own, field) for field in fields})

        constraints = {"families": families, "max_bytes": self.limit, "minimise": "excess"}
        accesses = tuple(map(settled, self.block.accesses))
        asked = constrained(without_formulas(replace(self.block, accesses=accesses)), **constraints)
        with spending(self.budget.part(0.5)):  # the next row gets half of what is left then
            answer = solve(asked, self.gpu, Ask(progress=self.progress))
        self.arranged[families] = answer
        return answer


def _placed(layouts: Sequence[_Laid], places: Sequence[PlacedTile | PlacedAudit]) -> tuple[TileOfRow, ...]:
    """Layouts at places of another answer, in the same order."""
    pairs = zip(layouts, places, strict=True)
    return tuple(layout.placed(place.base_bytes, place.stage_bytes) for layout, place in pairs)


def _if_best_alone(result: Result) -> Result | None:
    """The result of one of several tiles where no layout of the tile is better; None where that is open."""
    proof = result.proof
    proved = result.status is Status.OPTIMAL and proof.objective.everywhere and proof.bytes.everywhere
    return result if proved else None


def _sum(rows: Sequence[Row], field: str) -> Any:
    """A figure summed over the rows; None where a row does not have it."""
    values = [getattr(row, field) for row in rows]
    return sum(values) if values and None not in values else None


def _time(rows: Sequence[Row], blocks: int) -> float | None:
    """Estimated cycles of a multiprocessor for all tiles: for each, `time`, or `cycles / blocks` if more."""
    if any(row.time is None or row.cycles is None for row in rows):
        return None
    return sum(max(row.time or 0.0, (row.cycles or 0.0) / blocks) for row in rows)
