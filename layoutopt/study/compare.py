"""Padding or swizzle? The best layout of each family side by side, what each costs, and which to take.

A row is the best of its family: proved by the solver, or, where the family is small, by counting every
member (`layoutopt.study.small_families`). The guesses are what people write without looking. The problem is
traced once, and the XOR row is not searched again where the best layout of all is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct

from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.engine.referee import check_table
from layoutopt.engine.witness import witness
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.grammar import Const, Node, Op, Var, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.hardware.devices import Device, device
from layoutopt.hardware.occupancy import Occupancy, occupancy
from layoutopt.layout.formula import offset_expression
from layoutopt.problems.alignment import base_alignment
from layoutopt.problems.answer import Result, Status
from layoutopt.problems.lower import byte_table, chosen_widths, over_elements, stored, whole, with_widths
from layoutopt.problems.trace import IntArray, Trace, expression_ranges, trace
from layoutopt.problems.types import FAMILIES, Access, Problem
from layoutopt.study.small_families import (
    Counter,
    Member,
    bank_period,
    best,
    cute_swizzles,
    dimension_pads,
    interval_pads,
    operations,
    orders_and_splits,
    plain,
    widest_vector,
)
from layoutopt.synthesis.solve import solve

SCHEMA: Final = "layoutopt.comparison/1"


class RowAccess(Struct, frozen=True):
    """One access under one layout.

    Attributes:
        wavefronts, ideal, excess, bank_conflicts: over all its warp instructions.
        ways: wavefronts of the worst phase of its worst instruction (2: a 2-way conflict).
        index_ops: integer operations from tid, lane, warp and loop variables to the element offset.
    """

    name: str
    op: str
    wavefronts: int
    ideal: int
    excess: int
    bank_conflicts: int
    ways: int
    index_ops: int


class Row(Struct, frozen=True):
    """One family's best layout. Without one (`status`, `reason`) the figures are null.

    Attributes:
        family: short name, stable.
        title: the same for people.
        status: optimal (proved best in its family), feasible (found, not proved), infeasible, unknown
            (out of time) or given (a layout that was not searched for).
        reason: why there is no layout, or what is left unproved.
        offset: element offset over x0, x1, ...
        label: what the layout is called, such as Swizzle<3,3,3>; may be empty.
        bytes: last offset plus element size.
        declared_bytes: of an array declared with every pitch in full.
        alignment_bytes: of the base.
        wavefronts, ideal, excess: summed over all warp instructions, weights not applied.
        ways: of the worst conflict.
        weighted_wavefronts: with the weights.
        index_ops: integer operations from coordinates to offset, at every access.
        blocks_per_sm: resident blocks of the multiprocessor, by shared memory, threads and block slots.
        blocks_by_shared_memory: by shared memory alone.
        limited_by: what decides blocks_per_sm.
        pipeline_stages: copies of the tile that fit in one block.
        seconds: time that the row took.
        pareto: no other row is better in wavefronts or bytes and as good in the other.
        accesses: one by one.
    """

    family: str
    title: str
    status: str
    reason: str = ""
    offset: str | None = None
    label: str = ""
    bytes: int | None = None
    declared_bytes: int | None = None
    alignment_bytes: int | None = None
    wavefronts: int | None = None
    ideal: int | None = None
    excess: int | None = None
    ways: int | None = None
    weighted_wavefronts: float | None = None
    index_ops: int | None = None
    blocks_per_sm: int | None = None
    blocks_by_shared_memory: int | None = None
    limited_by: str | None = None
    pipeline_stages: int | None = None
    seconds: float = 0.0
    pareto: bool = False
    accesses: tuple[RowAccess, ...] = ()


class Recommendation(Struct, frozen=True):
    """The row to take and the reason, in one sentence."""

    family: str
    text: str


class Comparison(Struct, frozen=True, rename={"schema_": "schema"}):
    """All rows, from the plainest to the most general.

    Attributes:
        widths: where the file leaves widths open, those of the best layout of all, in bytes by access
            name; every row is counted with them.
    """

    problem: str
    target: str
    threads: int
    rows: tuple[Row, ...]
    recommendation: Recommendation | None
    widths: dict[str, int]
    schema_: str = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON-ready data, the schema first."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": data.pop("schema"), **data}


_ALL: Final = "all"
# Rows whose best is found by counting every member: title, members, families that must be allowed.
_COUNTED: Final = {
    "none": ("row-major, no pad", plain, ()),
    "order/split": ("order or split", orders_and_splits, ("order", "split")),
    "pad": ("best pad", dimension_pads, ("pad",)),
    "interval": ("best interval pad", interval_pads, ("pad", "split")),
    "cute": ("best CuTe swizzle", cute_swizzles, ("xor",)),
}
# Pipelines are not deeper than this, so one more stage is then worth no word.
_STAGES_THAT_MATTER: Final = 8
_XOR_FAMILIES: Final = ("none", "order", "xor")
_ORDER: Final = (
    "none", "guess_pad", "guess_xor", "order/split", "pad", "interval", "cute", "xor", "all",
    "in_use", "published",
)  # fmt: skip


def compare(
    problem: Problem,
    *,
    target: Device | None = None,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """The best layout of each family, the guesses, and the layout in use.

    Args:
        problem: the tile and its accesses.
        target: the device, where it is not the one the problem names.
        time_limit: seconds for each search; None for no limit.
        progress: called with a line of text from time to time.

    Raises:
        ProblemFileError: the problem contradicts itself.
    """
    return _Compare(problem, target or device(problem.target), time_limit, progress).run()


class _Compare:
    def __init__(
        self, problem: Problem, gpu: Device, time_limit: float | None, progress: Callable[[str], None]
    ) -> None:
        self.source = msgspec.structs.replace(
            problem, layout=msgspec.structs.replace(problem.layout, offset=None, minimise="excess")
        )
        self.gpu = gpu
        self.time_limit = time_limit
        self.progress = progress
        self.allowed = problem.layout.families or FAMILIES
        self.in_use = problem.layout.offset
        self.problem = stored(self.source)  # layouts are sought and counted over bytes, shown over elements
        self.lanes: Trace = trace(whole(self.source, {}), gpu)
        self.everything, self.seconds = _timed(partial(self._solve, FAMILIES))
        self.widths = chosen_widths(problem, self.everything)
        if self.widths:
            self.source = with_widths(self.source, [self.widths.get(a.name) for a in problem.accesses])
            self.problem = stored(self.source)
            self.lanes = trace(self.problem, gpu)
        self.indices = _Indices(self.source, gpu)

    def run(self) -> Comparison:
        problem, everything, seconds = self.problem, self.everything, self.seconds
        rows = [self._solved_row(_ALL, "everything", everything, seconds)]
        if "xor" not in self.allowed:
            rows.append(_left_out("xor", "best XOR"))
        elif _is_best_of(everything, _XOR_FAMILIES):
            rows.append(self._solved_row("xor", "best XOR", everything, 0.0))
        else:
            rows.append(self._solved_row("xor", "best XOR", *_timed(partial(self._solve, _XOR_FAMILIES))))
        counter = Counter(self.lanes, self.gpu)
        least = _least_excess(everything, self.lanes)
        for family, (title, members, needs) in _COUNTED.items():
            if not self._allows(needs):
                rows.append(_left_out(family, title))
                continue
            self.progress(title)
            stream = members(problem, self.lanes, self.gpu)
            found, seconds = _timed(partial(best, stream, counter, least, problem.layout.max_bytes))
            rows.append(self._counted_row(family, title, found, seconds))
        rows[1] = _at_least(rows[1], [row for row in rows if row.family == "cute"])
        rows[0] = _at_least(rows[0], rows[1:])
        rows += self._guesses()
        if self.in_use is not None:
            rows.append(self._given_row("in_use", "in use", "layout.offset", self.in_use, None))
        if (published := self.source.published) is not None:
            rows.append(
                self._given_row(
                    "published", "published", "published.offset", published.offset, published.bytes
                )
            )
        rows.sort(key=lambda row: _ORDER.index(row.family))
        marked = _mark_pareto(rows)
        return Comparison(
            problem.name, self.gpu.name, problem.threads, marked, _recommend(marked), self.widths
        )

    def _allows(self, needs: tuple[str, ...]) -> bool:
        if needs == ("order", "split"):
            return self.problem.layout.order is None and bool(set(needs) & set(self.allowed))
        return set(needs) <= set(self.allowed)

    def _solve(self, families: tuple[str, ...]) -> Result:
        chosen = tuple(f for f in families if f in self.allowed) or ("none",)
        changed = msgspec.structs.replace(self.problem.layout, families=chosen)
        return solve(
            msgspec.structs.replace(self.problem, layout=changed),
            target=self.gpu,
            time_limit=self.time_limit,
            progress=self.progress,
        )

    # Rows --------------------------------------------------------------------------------------

    def _solved_row(self, family: str, title: str, result: Result, seconds: float) -> Row:
        if result.layout is None or result.offset is None:
            return Row(family, title, result.status, result.reason, seconds=seconds)
        layout = result.layout
        return self._row(
            Row(family, title, result.status, result.reason, seconds=seconds, label=result.family or ""),
            self._over_elements(offset_expression(layout)),
            layout.table().ravel(),
            result.declared_bytes or 0,
            bool(layout.swizzle),
        )

    def _counted_row(self, family: str, title: str, member: Member | None, seconds: float) -> Row:
        if member is None:
            reason = "no layout of the family keeps the vectors whole and the constraints"
            return Row(family, title, Status.INFEASIBLE, reason, seconds=seconds)
        label = member.label + (" (in bytes)" if self.source.tile.packed > 1 else "")
        row = Row(family, title, Status.OPTIMAL, seconds=seconds, label=label)
        formula = self._over_elements(member.formula())
        return self._row(row, formula, member.table, member.declared_bytes, member.swizzled)

    def _given_row(self, family: str, title: str, field: str, text: str, declared: int | None) -> Row:
        try:
            node = parse(text, self._names)
            table = byte_table(node, self.source.tile)
        except ProblemFileError as error:
            raise ProblemFileError(field, error.reason) from None
        except LayoutError as error:
            return Row(family, title, Status.INFEASIBLE, str(error), offset=text)
        return self._row(Row(family, title, "given"), node, table, declared or 0, _has_xor(node))

    def _guesses(self) -> Iterable[Row]:
        """One vector of pad, and column ^ row: what people write without looking."""
        tile = self.problem.tile
        vector = widest_vector(self.lanes)
        columns = tile.shape[-1]
        if len(tile.shape) == 1:
            columns = bank_period(self.problem, self.lanes, self.gpu)
            row: Node = Op("//", (Var("x0"), Const(columns)))
            column: Node = Op("%", (Var("x0"), Const(columns)))
            rows = -(-tile.elements // columns)
        else:
            row = Var("x0")
            for d in range(1, len(tile.shape) - 1):
                row = Op("+", (Op("*", (row, Const(tile.shape[d]))), Var(f"x{d}")))
            column = Var(f"x{len(tile.shape) - 1}")
            rows = tile.elements // columns
        ranges = {f"x{d}": (0, extent - 1) for d, extent in enumerate(tile.shape)}
        if "pad" in self.allowed:
            pitch = columns + vector
            node = simplify(_row_and(row, pitch, column), ranges)
            yield self._guess("guess_pad", f"pad {vector * self.source.tile.packed}", node, rows * pitch)
        slots = columns // vector
        if "xor" in self.allowed and slots > 1:
            turns = 1 << (slots.bit_length() - 1)
            flip = Op("*", (Op("%", (row, Const(turns))), Const(vector)))
            node = simplify(_row_and(row, columns, Op("^", (column, flip))), ranges)
            yield self._guess("guess_xor", "column ^ row", node, rows * columns)

    def _guess(self, family: str, title: str, node: Node, declared_elements: int) -> Row:
        declared = declared_elements * self.problem.tile.element_bytes
        return self._given_row(family, title, family, to_text(self._over_elements(node)), declared)

    def _row(self, row: Row, formula: Node, table: IntArray, declared: int, swizzled: bool) -> Row:
        """Fill in what a layout costs, or why it cannot be used."""
        tile = self.problem.tile
        size = int(table.max()) + tile.element_bytes
        filled = {"offset": to_text(formula), "bytes": size, "declared_bytes": max(declared, size)}
        limit = self.problem.layout.max_bytes
        wrong = f"{size:,} bytes; max_bytes is {limit:,}" if limit is not None and size > limit else ""
        try:
            check_table(table, tile.element_bytes, self.lanes, tile.element_alignment)
        except LayoutError as error:
            wrong = str(error)
        if wrong:
            return msgspec.structs.replace(row, **filled, status=Status.INFEASIBLE, reason=wrong)
        accesses, weighted = self._cost(table, formula)
        alignment = base_alignment(self.lanes, self.gpu, swizzled=swizzled)
        fits: Occupancy | None = occupancy(
            size, alignment, self.problem.threads, self.gpu, self.problem.target
        )
        return msgspec.structs.replace(
            row,
            **filled,
            alignment_bytes=alignment,
            wavefronts=sum(a.wavefronts for a in accesses),
            ideal=sum(a.ideal for a in accesses),
            excess=sum(a.excess for a in accesses),
            ways=max(a.ways for a in accesses),
            weighted_wavefronts=weighted,
            index_ops=operations(formula),
            blocks_per_sm=fits.blocks if fits else None,
            blocks_by_shared_memory=fits.by_shared_memory if fits else None,
            limited_by=fits.limited_by if fits else None,
            pipeline_stages=fits.stages if fits else None,
            accesses=accesses,
        )

    def _cost(self, table: IntArray, formula: Node) -> tuple[tuple[RowAccess, ...], float]:
        """Every access at every lane, and the weighted wavefronts."""
        accesses, weighted = [], 0
        for k, access in enumerate(self.lanes.accesses):
            address = table[access.element]
            counts = count_wavefronts(address, access.active, access.operation, self.gpu)
            weighted += int((counts.wavefronts * access.weight).sum())
            over = counts.wavefronts - counts.ideal
            worst = int(over.argmax())
            phases = witness(
                address[worst].tolist(), access.active[worst].tolist(), access.operation, self.gpu
            )
            accesses.append(
                RowAccess(
                    access.name,
                    access.op,
                    wavefronts=int(counts.wavefronts.sum()),
                    ideal=int(counts.ideal.sum()),
                    excess=int(over.sum()),
                    bank_conflicts=int(counts.bank_conflicts.sum()),
                    ways=max((phase.wavefronts for phase in phases), default=0),
                    index_ops=self.indices.operations(k, formula),
                )
            )
        return tuple(accesses), weighted / self.lanes.weight_unit

    @property
    def _names(self) -> frozenset[str]:
        return frozenset(f"x{d}" for d in range(len(self.source.tile.shape)))

    def _over_elements(self, formula: Node) -> Node:
        return over_elements(formula, self.source.tile)


def _least_excess(everything: Result, lanes: Trace) -> int:
    """Weighted excess, in the trace's unit, that no layout of any kind undercuts."""
    bound = everything.proof.objective
    return int(bound.lower_bound * lanes.weight_unit) if bound.everywhere else 0


def _at_least(row: Row, members: list[Row]) -> Row:
    """The row, or the best of its family's `members` where the search ended before it found as much.

    That is where time ran out, or where an interval pad cuts no coordinate evenly.
    """
    usable = [member for member in members if member.wavefronts is not None]
    better = min(usable, key=_rank, default=row)
    if better is row or (row.wavefronts is not None and _rank(better) >= _rank(row)):
        return row
    return msgspec.structs.replace(
        better,
        family=row.family,
        title=row.title,
        status=Status.FEASIBLE,
        reason="not found by the family's own search, so not proved best",
        label=better.label or better.family,
        seconds=row.seconds,
    )


def _rank(row: Row) -> tuple[float, int]:
    """Weighted wavefronts, then bytes, of a row with a layout."""
    return row.weighted_wavefronts or 0.0, row.bytes or 0


def _left_out(family: str, title: str) -> Row:
    return Row(family, title, Status.INFEASIBLE, "not allowed by the problem's layout constraints")


class _Indices:
    """What each access computes, to count the operations of its address."""

    def __init__(self, problem: Problem, gpu: Device) -> None:
        self._accesses = []
        for access in problem.accesses:
            ranges = expression_ranges(access, problem, gpu.lanes)
            self._accesses.append((_index(access, frozenset(ranges)), ranges))

    def operations(self, k: int, formula: Node) -> int:
        """Operations from tid, lane, warp and loop variables to the element offset of access `k`."""
        index, ranges = self._accesses[k]
        return operations(simplify(substituted(formula, index), ranges))


def _index(access: Access, names: frozenset[str]) -> dict[str, Node]:
    return {f"x{d}": parse(str(text), names) for d, text in enumerate(access.index)}


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    answer = work()
    return answer, time.perf_counter() - start


def _is_best_of(everything: Result, families: tuple[str, ...]) -> bool:
    """Whether the best layout of all families lies in these, and so is their best."""
    cost = everything.proof.index_cost
    if (
        everything.status is not Status.OPTIMAL
        or cost is None
        or not cost.proved
        or everything.family is None
    ):
        return False
    return set(everything.family.split("+")) <= set(families)


def _has_xor(node: Node) -> bool:
    return isinstance(node, Op) and (node.symbol == "^" or any(map(_has_xor, node.args)))


def _row_and(row: Node, pitch: int, column: Node) -> Node:
    return Op("+", (Op("*", (row, Const(pitch))), column))


def _mark_pareto(rows: list[Row]) -> tuple[Row, ...]:
    """Mark the rows that no other beats in weighted wavefronts or bytes while matching the other."""
    points = [(r.weighted_wavefronts, r.bytes) if r.wavefronts is not None else None for r in rows]
    marked = []
    for row, mine in zip(rows, points, strict=True):
        best_there_is = mine is not None and not any(
            other is not None and other != mine and all(a <= b for a, b in zip(other, mine, strict=True))  # type: ignore[operator]
            for other in points
        )
        marked.append(msgspec.structs.replace(row, pareto=best_there_is))
    return tuple(marked)


def _recommend(rows: tuple[Row, ...]) -> Recommendation | None:
    """Fewest wavefronts, then bytes, then index operations; of equals the one in use, then the plainest."""
    usable = [r for r in rows if r.wavefronts is not None]
    if not usable:
        return None
    kept = ("published", "in_use")
    best_row = min(
        usable,
        key=lambda r: (
            r.weighted_wavefronts,
            r.bytes,
            r.index_ops,
            r.family not in kept,
            _ORDER.index(r.family),
        ),
    )
    conflicts = "no bank conflicts" if not best_row.excess else _count(best_row.excess, "excess wavefront")
    name = f"keep the layout {best_row.title}" if best_row.title == "in use" else best_row.title
    text = f"{name}: {best_row.offset} has {conflicts} in {best_row.bytes:,} bytes"
    rival = _rival(best_row, usable)
    if rival is not None:
        text += f"; against {rival.title}: {_against(best_row, rival)}"
    if best_row.status == Status.FEASIBLE:
        text += " (found, not proved best)"
    return Recommendation(best_row.family, text)


def _rival(chosen: Row, usable: list[Row]) -> Row | None:
    """What the reader would otherwise take: the layout in use, else the best pad, else row-major."""
    by_family = {r.family: r for r in usable if r.offset != chosen.offset}
    for family in ("in_use", "published", "pad", "interval", "xor", "none"):
        if family in by_family:
            return by_family[family]
    return None


def _against(mine: Row, other: Row) -> str:
    """The differences in what is paid and what is got, most important first."""
    parts = []
    saved = (other.wavefronts or 0) - (mine.wavefronts or 0)
    parts.append("same wavefronts" if not saved else _difference(-saved, "wavefront"))
    size = (mine.bytes or 0) - (other.bytes or 0)
    parts.append("same bytes" if not size else _difference(size, "byte"))
    if mine.blocks_per_sm is not None and other.blocks_per_sm is not None:
        blocks = mine.blocks_per_sm - other.blocks_per_sm
        memory = (mine.blocks_by_shared_memory, other.blocks_by_shared_memory)
        if blocks:
            parts.append(
                f"{_difference(blocks, 'block')} per SM ({mine.blocks_per_sm}, not {other.blocks_per_sm})"
            )
        else:
            alone = f", by shared memory alone {memory[0]}, not {memory[1]}" if memory[0] != memory[1] else ""
            parts.append(
                f"same {_count(mine.blocks_per_sm, 'block')} per SM (limited by {mine.limited_by}{alone})"
            )
    stages = (mine.pipeline_stages or 0) - (other.pipeline_stages or 0)
    if stages and (mine.pipeline_stages or 0) <= _STAGES_THAT_MATTER:
        parts.append(_difference(stages, "pipeline stage"))
    operations_more = (mine.index_ops or 0) - (other.index_ops or 0)
    if operations_more:
        parts.append(f"{_difference(operations_more, 'index operation')}")
    return ", ".join(parts)


def _difference(value: int, noun: str) -> str:
    word = "more" if value > 0 else "fewer"
    return f"{abs(value):,} {word} {noun}{'s' if abs(value) != 1 else ''}"


def _count(value: int, noun: str) -> str:
    return f"{value:,} {noun}{'s' if value != 1 else ''}"
