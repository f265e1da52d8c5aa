"""Padding or swizzle? The best layout of each family side by side, what each costs, and which to take.

Several tiles are compared by themselves and under one budget: a row of the block is the same row of all its
tiles, one behind the other as tightly as they go. Where that is more than the budget, the tiles are arranged
again with the families of the row, so that the row is the least excess that fits.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from layoutopt.engine.estimate import timing_of, why_no_estimate
from layoutopt.files.checks import fields_of
from layoutopt.ground.budget import Budget, spending
from layoutopt.ground.log import Progress, told
from layoutopt.hardware.devices import Device
from layoutopt.hardware.occupancy import occupancy
from layoutopt.layout.families import comparison_rows
from layoutopt.problems.answer import Arrangement, Result, Status
from layoutopt.problems.same_layout import within_room
from layoutopt.problems.target import target_of
from layoutopt.problems.text import count_text
from layoutopt.problems.types import FAMILIES, Access, Block, Problem, TileAccess, constrained
from layoutopt.search.block import solve
from layoutopt.search.fronts import Unit, own_alignment, plan_of, units_of
from layoutopt.search.packing import pack, rounded_up
from layoutopt.search.proposal import of_tile
from layoutopt.study.advice import recommend
from layoutopt.study.check import check
from layoutopt.study.comparison import Comparison, Row, TileOfRow, room
from layoutopt.study.known import check_answer
from layoutopt.study.rows import ALL, NOT_ALLOWED, TileRows

# What is taken of a tile that has no such row: its layout in use, else the best of all.
_INSTEAD: Final = {"edit": ("in_use", "published"), "in_use": ("published",), "given": (ALL,)}
_ADDED: Final = (
    "wavefronts", "ideal", "excess", "weighted_wavefronts", "index_ops", "instructions", "cycles", "seconds",
)  # fmt: skip
_ALIGNED: Final = "bytes are lost to alignment, which other layouts of the tiles may not lose"


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
            first, it stands in the place of the search over everything; of a block, for those tiles alone
            whose layout is proved best of every layout.

    Raises:
        ProblemFileError: the problem contradicts itself, or `known` is no answer to it.
    """
    gpu, progress = target_of(problem, target), told(progress)
    if known is not None:
        check_answer(problem, gpu, known)
    answer: Any = known if problem.layout.objective.excess_first else None
    if isinstance(problem, Block):
        block = _BlockRows(problem, gpu, time_limit, progress, answer)
        rows, tiles = block.rows(), [member.found for member in block.members]
    else:
        tile = TileRows(problem, gpu, time_limit, progress, answer)
        rows, tiles = tile.rows(), [tile]
    marked = tuple(replace(row, pareto=_is_pareto(row, rows)) for row in rows)
    dictated = all(tile.problem.is_dictated for tile in tiles)
    why = next(filter(None, (why_no_estimate(tile.case) for tile in tiles)), None)
    widths = {name: width for tile in tiles for name, width in tile.case.widths.items()}
    advice = recommend(marked, dictated=dictated, no_estimate=why)
    about = problem.name, gpu.name, problem.threads
    return Comparison(*about, marked, advice, widths, timing_of(gpu)[1], no_estimate=why)


def _is_pareto(row: Row, rows: Sequence[Row]) -> bool:
    """Whether no other row has less of weighted wavefronts or bytes and no more of the other."""
    if row.wavefronts is None:
        return False
    mine, others = row.rank[:2], {other.rank[:2] for other in rows if other.wavefronts is not None}
    return not any(all(a <= b for a, b in zip(other, mine, strict=True)) for other in others - {mine})


# A block -----------------------------------------------------------------------------------------


class _Member(Struct, frozen=True):
    """What gets one layout, and its rows by family.

    The best layout of what the hardware dictates stands in the row of every family.
    """

    unit: Unit
    found: TileRows
    rows: dict[str, Row]

    @property
    def dictated(self) -> bool:
        return self.unit.case.asked.is_dictated

    def row(self, family: str) -> Row | None:
        """Its row, or what is taken in its place; None where there is neither."""
        if self.dictated:
            return self.rows.get(family, self.rows[ALL])
        name = next((f for f in (family, *_INSTEAD.get(family, ())) if f in self.rows), None)
        if name is None:
            return None
        return self.rows[ALL] if self.rows[name].reason == NOT_ALLOWED else self.rows[name]

    def part(self, row: Row) -> "_Part":
        """Its part of a row of all."""
        unit, formula = self.unit, self.found.formulas[row.offset or ""]
        alignment = max(row.alignment_bytes or 1, unit.least_alignment)
        if not self.dictated:
            alignment = own_alignment(unit, formula, row.alignment_bytes or 1)
        several = unit.several_sizes
        sizes = unit.sizes(unit.case.table(formula)) if several else (row.bytes or 0,) * len(unit.copies)
        return _Part(unit, row, alignment, sizes)


class _Part(Struct, frozen=True):
    """A tile, or tiles that share a layout, in a row of all: of one copy of each, its bytes.

    `alignment` is the least of a base at which the layout has its counts, and elements are aligned.
    """

    unit: Unit
    row: Row
    alignment: int
    sizes: tuple[int, ...]

    def bytes_at(self, alignment: int, stages: int | None = None) -> int:
        """Bytes of all stages, or of so many."""
        return self.unit.bytes_at(self.sizes, alignment, stages)

    def placed(self, base: int, step: int) -> TileOfRow:
        """Where it lies."""
        names, row = tuple(tile.name for tile in self.unit.tiles), self.row
        counts = row.wavefronts or 0, row.excess or 0
        return TileOfRow(names, row.offset or "", row.bytes or 0, base, self.unit.stages, step, *counts)

    def declared_end(self, placed: TileOfRow) -> int:
        """Where the last array ends that is declared with every pitch in full."""
        before = (placed.stages - 1) * placed.stage_bytes
        if self.unit.several_sizes:
            before = self.bytes_at(self.alignment) - placed.bytes
        return placed.base_bytes + before + (self.row.declared_bytes or 0)


# Bytes of all tiles, and where each lies.
_Places = tuple[int, tuple[TileOfRow, ...]]


class _BlockRows:
    """Rows of all tiles, from those of each."""

    def __init__(
        self,
        block: Block,
        gpu: Device,
        time_limit: float | None,
        progress: Progress,
        known: Arrangement | None,
    ) -> None:
        self.block, self.gpu, self.progress = block, gpu, progress
        units = units_of(block, gpu)
        self.plan = plan_of(block, units)
        # As much for what does not fit as for one tile.
        share = None if time_limit is None else time_limit / (len(units) + 1)
        if not all(unit.is_settled for unit in units):
            known = None  # the rows of each tile have its own lanes and widths
        parts = known.tiles if known is not None else ()
        best = [_best_alone(part.result) for part in parts] or [None] * len(units)
        self.members = [self._member(*pair, share) for pair in zip(units, best, strict=True)]
        self.budget = Budget(None if share is None else 2 * share)
        # Answers within the budget, by the families that were searched.
        self.arranged = {self._families(ALL): known} if known is not None else {}
        self.limit = within_room(block, gpu).layout.max_bytes

    def _member(self, unit: Unit, known: Result | None, share: float | None) -> _Member:
        with fields_of(self.block, *unit.tiles):
            told = of_tile(unit.tiles[0].name, self.progress)
            found = TileRows(unit.asked, self.gpu, share, told, known)
            rows = found.dictated_rows() if unit.asked.is_dictated else found.rows()
        return _Member(unit, found, {row.family: row for row in rows})

    def rows(self) -> list[Row]:
        """All rows."""
        families = dict.fromkeys(family for member in self.members for family in member.rows)
        # Everything is searched first: what it finds is the answer of every row that it belongs to.
        found = {ALL: self._row(ALL)}
        found |= {name: self._row(name) for name in families if name != ALL}
        return [row for name in families if (row := found[name]) is not None]

    def _row(self, family: str) -> Row | None:
        """The row of all tiles; None where one has nothing to put into it."""
        own = [member.rows[family] for member in self.members if family in member.rows]
        if all(row.reason == NOT_ALLOWED for row in own):
            return own[0]
        found = [row for member in self.members if (row := member.row(family)) is not None]
        if len(found) < len(self.members):
            return None
        title = own[0].title
        if any(row.wavefronts is None for row in found):
            status = Status.UNKNOWN if any(r.status == Status.UNKNOWN for r in found) else Status.INFEASIBLE
            reasons = [row.reason if row.wavefronts is None else "" for row in found]
            return Row(family, title, status, self._each(reasons))
        parts = [member.part(row) for member, row in zip(self.members, found, strict=True)]
        row = self._combined(family, title, parts, self._places(family, parts))
        return row if self.limit is None or (row.bytes or 0) <= self.limit else self._within(row)

    def _each(self, texts: Sequence[str]) -> str:
        """The text of each tile that has one."""
        said = zip((m.unit.tiles for m in self.members), texts, strict=True)
        return "; ".join(f"{', '.join(tile.name for tile in tiles)}: {text}" for tiles, text in said if text)

    # Where tiles lie ---------------------------------------------------------------------------

    def _places(self, family: str, parts: Sequence[_Part]) -> _Places:
        """Where the tiles lie: as the file says of what is in use, else as tightly as they go."""
        said = all(tile.published or tile.layout.offset for tile in self.block.tiles)
        if family not in ("in_use", "published") or not said or self.block.same_layout:
            return self._packed(parts)
        audit = check(self.block, target=self.gpu)
        lie = zip(parts, audit.tiles, strict=True)
        return audit.bytes, tuple(part.placed(at.base_bytes, at.stage_bytes) for part, at in lie)

    def _packed(self, parts: Sequence[_Part], stages: Sequence[int | None] | None = None) -> _Places:
        """As tightly as they go, with the stages of the file or so many of each tile."""
        many = stages or [None] * len(parts)
        sizes = [part.bytes_at(part.alignment, n) for part, n in zip(parts, many, strict=True)]
        total, bases = pack(self.plan, sizes, [part.alignment for part in parts])
        steps = [rounded_up(part.row.bytes or 0, part.alignment) for part in parts]
        return total, tuple(part.placed(bases[k], steps[k]) for k, part in enumerate(parts))

    def _stages(self, parts: Sequence[_Part]) -> int | None:
        """Stages that fit: of the tiles that have some, else of all."""
        if self.limit is None:
            return None
        staged = [max(tile.stages for tile in part.unit.tiles) > 1 for part in parts]
        staged = staged if any(staged) else [True for _ in staged]

        def needed(n: int) -> int:
            return self._packed(parts, [n if some else 1 for some in staged])[0]

        return bisect_right(range(1, self.limit + 1), self.limit, key=needed)

    # Rows of all -------------------------------------------------------------------------------

    def _combined(self, family: str, title: str, parts: Sequence[_Part], places: _Places) -> Row:
        """A row for the whole block: sums over its tiles, and the occupancy of their bytes together."""
        block, rows, (size, tiles) = self.block, [part.row for part in parts], places
        statuses, reason = {row.status for row in rows}, ""
        status = next((s for s in ("given", Status.FEASIBLE) if s in statuses), str(Status.OPTIMAL))
        tight, _ = pack(self.plan, [part.bytes_at(1) for part in parts], [1] * len(parts))
        if status == Status.OPTIMAL and family != "none" and tight < size:
            status, reason = str(Status.FEASIBLE), _ALIGNED
        alignment = max(part.alignment for part in parts)
        fits = occupancy(
            size, alignment, block.threads, self.gpu, block.target,
            other_bytes=block.block.other_shared_bytes, registers=block.block.registers,
        )  # fmt: skip
        ends = [part.declared_end(tile) for part, tile in zip(parts, tiles, strict=True)]
        return Row(
            family,
            title,
            status,
            reason,
            self._each([row.offset or "" for row in rows]),
            self._each([row.label for row in rows]),
            size,
            max(*ends, size),
            alignment,
            ways=None if any(row.ways is None for row in rows) else max(row.ways or 0 for row in rows),
            by_hardware=_sum([row for row in rows if row.by_hardware is not None], "by_hardware"),
            time=_time(rows, max(1, fits.blocks if fits else 1)),
            edit=self._each([row.edit or "" for row in rows]) or None,
            accesses=tuple(access for row in rows for access in row.accesses),
            tiles=tiles,
            **{field: _sum(rows, field) for field in _ADDED},
            **room(fits) | {"pipeline_stages": self._stages(parts)},
        )

    # The budget --------------------------------------------------------------------------------

    def _within(self, row: Row) -> Row:
        """The best of the row's families within the budget, where the row itself is beyond it."""
        needs = f"{row.bytes:,} bytes with {row.excess:,} excess wavefronts, and {self.limit:,} are there"
        if row.pipeline_stages:
            needs += f"; {count_text(row.pipeline_stages, 'stage')} fit"
        families = self._families(row.family)
        found = self._arranged(families) if families else None
        if found is None or found.bytes is None:
            status = Status.INFEASIBLE if found is None else found.status
            return Row(row.family, row.title, status, needs, row.offset, bytes=row.bytes)
        parts, tiles = [], []
        for member, at in zip(self.members, found.tiles, strict=True):
            parts.append(member.part(member.found.solved_row(row.family, row.title, at.result)))
            tiles.append(parts[-1].placed(at.base_bytes, at.stage_bytes))
        within = self._combined(row.family, row.title, parts, (found.bytes, tuple(tiles)))
        return replace(within, status=found.status, reason=f"without the limit {needs}")

    def _families(self, family: str) -> tuple[str, ...]:
        """Families to search for a row under the budget, as far as every tile allows them."""
        known = comparison_rows()
        if family != ALL and family not in known:
            return ()
        together = {other for f in known.get(family, ()) for other in (f.name, *f.beside)} | {"none"}
        allowed = self.block.layout.families or FAMILIES
        return tuple(f for f in FAMILIES if f in allowed and (family == ALL or f in together))

    def _arranged(self, families: tuple[str, ...]) -> Arrangement:
        """The best of these families within the budget, with the lanes and widths of the rows."""
        for searched, found in self.arranged.items():
            used = {name for part in found.tiles for name in (part.result.family or "none").split("+")}
            best = found.status is Status.OPTIMAL and used <= {*families} <= {*searched}
            if searched == families or (found.tiles and best):
                return found
        chosen = {a.name: a for member in self.members for a in member.found.case.problem.accesses}

        def settled(access: TileAccess) -> TileAccess:
            own = {field: getattr(chosen[access.name], field) for field in Access.__struct_fields__}
            is_open = access.is_free or isinstance(access.bytes, tuple)
            return replace(access, **own) if is_open else access

        constraints = {"families": families, "max_bytes": self.limit, "minimise": "excess"}
        accesses = tuple(map(settled, self.block.accesses))
        asked = constrained(replace(self.block, accesses=accesses), **constraints)
        with spending(self.budget.part(0.5)):
            found = solve(asked, target=self.gpu, time_limit=None, progress=self.progress)
        self.arranged[families] = found
        return self.arranged[families]


def _best_alone(result: Result) -> Result | None:
    """The layout of one of several tiles, if no other is better for it, whatever there is room for."""
    proof = result.proof
    proved = result.status is Status.OPTIMAL and proof.objective.everywhere and proof.bytes.everywhere
    return result if proved else None


def _sum(rows: Sequence[Row], field: str) -> Any:
    """What the rows have of a figure together; None where one has none."""
    values = [getattr(row, field) for row in rows]
    return sum(values) if values and None not in values else None


def _time(rows: Sequence[Row], blocks: int) -> float | None:
    """The time of all tiles: each takes that of its memory, or its cycles shared by as many blocks as run."""
    total = 0.0
    for row in rows:
        if row.time is None or row.cycles is None:
            return None
        total += max(row.time, row.cycles / blocks)
    return total
