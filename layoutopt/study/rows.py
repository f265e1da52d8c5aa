"""The rows of a comparison of one tile: the best layout of each family, what it costs, and which to take.

A row is the best of its family: proved by the solver, or, where the family is small, by counting every
layout of it (`layoutopt.study.counted`). The guesses are what people write without looking. The problem is
traced once, and the XOR row is not searched again where the best layout of all is one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from layoutopt.accesses.lower import chosen_widths, offset_formula, over_elements
from layoutopt.accesses.trace import Trace
from layoutopt.engine.estimate import block_occupancy, estimate
from layoutopt.engine.witness import witness, worst_instruction
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.grammar import Const, Node, Op, Var, to_text
from layoutopt.expressions.simplify import operations, simplify
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.layout.families import Family, comparison_rows
from layoutopt.layout.formula import coordinate_ranges, element_expression, has_xor, offset_expression
from layoutopt.layout.layout import Layout
from layoutopt.model.space import Space, space_of
from layoutopt.problems.answer import Estimate, Result, Status
from layoutopt.problems.types import FAMILIES, Problem
from layoutopt.search.dictated import ranked_candidates, reach
from layoutopt.search.proposal import Ask
from layoutopt.search.scene import searched_families
from layoutopt.search.solve import solve_cases, solve_widths
from layoutopt.study.advice import advised
from layoutopt.study.comparison import Comparison, Row, RowAccess
from layoutopt.study.counted import COUNTED, Counter, best, plainly
from layoutopt.study.edits import strides_obey, strides_of
from layoutopt.study.known import known_case, with_known_lanes
from layoutopt.study.nearest_edit import nearest_edit

ALL: Final = "all"
# What is in use, and what it is most likely to be replaced by.
_ESTIMATED_FIRST: Final = ("in_use", "published", "edit", "pad", ALL)
_NOT_ALLOWED: Final = "not allowed by the problem's layout constraints"
# Share of the time for everything but the first search that estimates of time have at least.
_ESTIMATE_SHARE: Final = 0.25


class TileRows:
    """A problem and its best layout of all, from which rows are made.

    Raises:
        ProblemFileError: the problem contradicts itself.
    """

    def __init__(
        self,
        problem: Problem,
        gpu: Device,
        time_limit: float | None,
        progress: Callable[[str], None],
        known: Result | None,
    ) -> None:
        problem = with_known_lanes(problem, gpu, Budget.of_limit(time_limit), known)
        source = msgspec.structs.replace(
            problem, layout=msgspec.structs.replace(problem.layout, offset=None, minimise="excess")
        )
        self.gpu = gpu
        # The search over everything may use half, the other rows the rest.
        self.budget = Budget(None if time_limit is None else 2 * time_limit)
        self.progress = progress
        self.allowed = problem.layout.families or FAMILIES
        self.in_use = problem.layout.offset
        self.case = known_case(source, gpu, budget=self.budget)
        self.widths: dict[str, int] | None = None  # not chosen yet
        self.everything, self.seconds = _timed(lambda: known or self._solve(FAMILIES))
        self.solved: list[Result] = []  # of rows, those without pads first
        self.widths = chosen_widths(problem, self.everything)
        if self.widths:
            self.case = known_case(source, gpu, self.widths)
        # Layouts are sought and counted over bytes, and shown over elements.
        self.problem = self.case.lowered
        rules = [gpu.rule(a.operation) for a in self.case.lanes.accesses]
        period = max(rule.banks * rule.bank_bytes for rule in rules)
        self.space: Space = space_of(self.problem, self.case.lanes, period, ("none",), self.budget)
        self.counter = Counter(self.case.lanes, gpu)
        self.formulas: dict[str, Node] = {}  # of all rows that can be used, by their text

    def run(self) -> Comparison:
        """All rows."""
        problem, whole = self.problem, self.budget
        self.budget = whole.part(1 - _ESTIMATE_SHARE)
        given = self._dictated() if problem.is_dictated else self._families()
        given += self.used_rows()
        given += self._edits()
        self.budget = whole
        return advised(
            problem, self.gpu, self._estimated(given), self.widths or {}, dictated=problem.is_dictated
        )

    def _families(self) -> list[Row]:
        """The best of each family, and the guesses."""
        found = {name: self._family_row(name, families) for name, families in comparison_rows().items()}
        found["xor"] = _at_least(found["xor"], [found["cute"]])
        if found["pad+xor"].status is not Status.INFEASIBLE:
            found["pad+xor"] = _at_least(found["pad+xor"], [found["xor"], found["pad"]])
        guesses = list(self._guesses())
        of_family = {"guess_pad": self._guessed_pad, "guess_xor": "xor"}
        for row in guesses:
            found[of_family[row.family]] = _at_least(found[of_family[row.family]], [row])
        everything = self._solved_row(ALL, "everything", self.everything, self.seconds)
        found[ALL] = _at_least(everything, [row for name, row in found.items() if name != ALL])
        return [found.pop("none"), *guesses, *found.values()]

    def _dictated(self) -> list[Row]:
        """Layouts the hardware knows, in the order of `solve`: each mode's best, and its fewest boxes."""
        listed = ranked_candidates(self.case, self.budget)
        fewest = {c.name: c for c in sorted(listed, key=lambda c: -c.instructions)}
        best = {c.name: c for c in reversed(listed)}
        rows: list[Row] = []
        for c in listed:
            if c in (best[c.name], fewest[c.name]):
                mode = c.name.partition(",")[0]
                family = mode if mode not in [row.family for row in rows] else c.title
                rows.append(self._layout_row(Row(family, c.title, Status.OPTIMAL, label=c.name), c.layout))
        return [*rows, self._solved_row(ALL, "everything", self.everything, self.seconds)]

    def used_rows(self) -> list[Row]:
        """The layout in use and the published one, where the file has them; without estimates."""
        given = []
        if self.in_use is not None:
            row = Row("in_use", "in use", "given")
            given.append(self._given_row(row, "layout.offset", self.in_use, None))
        if (published := self.case.problem.published) is not None:
            row = Row("published", "published", "given")
            given.append(self._given_row(row, "published.offset", published.offset, published.bytes))
        return given

    def solved_row(self, family: str, title: str, result: Result) -> Row:
        """The row, with its estimate, of an answer of `solve` to the problem under more constraints."""
        return self._estimated([self._solved_row(family, title, result, 0.0)])[0]

    def _estimated(self, rows: list[Row]) -> list[Row]:
        """The rows with their estimated time, as far as the time limit goes, what is in use first."""
        found: dict[str, tuple[Estimate, list[int]]] = {}
        first = [row.offset for row in rows if row.family in _ESTIMATED_FIRST]
        for offset in self.budget.while_left(dict.fromkeys([*first, *self.formulas])):
            if offset is not None and offset in self.formulas:
                node = self.formulas[offset]
                took = estimate(self.case, node, self.case.count(self.case.table(node)))
                found[offset] = took, [code.instructions.total for code in self.case.index_code(node)]
        filled = []
        for row in rows:
            if row.wavefronts is not None and row.offset in found:
                took, each = found[row.offset]
                accesses = zip(row.accesses, each, strict=True)
                row = msgspec.structs.replace(
                    row,
                    instructions=took.instructions,
                    index_ops=took.instructions,
                    cycles=took.cycles,
                    time=took.time,
                    accesses=tuple(msgspec.structs.replace(a, index_ops=n) for a, n in accesses),
                )
            filled.append(row)
        return filled

    def _solve(self, families: tuple[str, ...]) -> Result:
        """The best layout of these families, as far as the problem allows them."""
        chosen = tuple(f for f in families if f in self.allowed) or ("none",)
        if self.case.asked.is_dictated:
            return solve_cases([self.case], Ask(self.budget.part(0.5), progress=self.progress))
        # Without time there is a layout, and no more.
        ask = Ask(self.budget.part(0.5), progress=self.progress, every_layout=not self.budget.spent)
        layout = msgspec.structs.replace(self.case.asked.layout, families=chosen)
        if self.widths is not None or not self.case.widths:
            # No row tells what the index of a proof costs.
            return solve_cases([replace(self.case.constrained(layout), indexed=False)], ask)
        return solve_widths(msgspec.structs.replace(self.case.asked, layout=layout), self.gpu, ask)

    # Rows --------------------------------------------------------------------------------------

    def _family_row(self, name: str, families: tuple[Family, ...]) -> Row:
        """The best layout of the families that share a row."""
        title = families[0].title
        mine = [f for f in families if {*f.allowed_by} <= {*self.allowed, "none"}]
        if not mine or (mine[0].orders and self.problem.layout.order is not None):
            return Row(name, title, Status.INFEASIBLE, _NOT_ALLOWED)
        beside = [other for family in mine for other in family.beside]
        together = tuple(f for f in FAMILIES if f in beside or f in [family.name for family in mine])
        if mine[0].counted:
            return self._counted_row(name, mine[0], together)
        result, seconds = self._best_solved(together)
        return self._solved_row(name, title, result, seconds)

    def _best_solved(self, families: tuple[str, ...]) -> tuple[Result, float]:
        """The best layout of families, and the seconds; none where an answer that is there is the best."""
        if _is_best_of(self.everything, families):
            return self.everything, 0.0
        tight = next(filter(_needs_no_pad, self.solved), None)
        if "pad" in families and tight is not None:
            return tight, 0.0
        result, seconds = _timed(partial(self._solve, families))
        self.solved.append(result)
        return result, seconds

    def _solved_row(self, family: str, title: str, result: Result, seconds: float) -> Row:
        row = Row(family, title, result.status, result.reason, seconds=seconds)
        if result.layout is None:
            return row
        row = msgspec.structs.replace(row, label=result.family or "")
        return self._layout_row(row, self.case.as_bytes(result.layout))

    def _counted_row(self, name: str, family: Family, together: tuple[str, ...]) -> Row:
        """The best layout of few families by counting each."""
        self.progress(family.title)
        space = replace(self.space, families=frozenset(f for f in together if f in ("none", *self.allowed)))
        flips = (most := self.problem.layout.alignment_bytes) is None or most >= self.case.alignment(True)
        layouts = (COUNTED.get(name, plainly) if flips else plainly)(space, self.problem.tile.element_bytes)
        limits = _least_excess(self.everything, self.case.lanes), self.problem.layout.max_bytes, self.budget
        layout, seconds = _timed(partial(best, layouts, self.counter, *limits))
        if layout is None:
            reason = "no layout of the family keeps the vectors whole and the constraints"
            row = Row(name, family.title, Status.INFEASIBLE, reason, seconds=seconds)
        else:
            label = family.label(layout) + (" (in bytes)" if self.case.problem.tile.packed > 1 else "")
            row = Row(name, family.title, Status.OPTIMAL, seconds=seconds, label=label)
            row = self._layout_row(row, layout)
        if self.budget.spent:
            status = Status.UNKNOWN if layout is None else Status.FEASIBLE
            row = msgspec.structs.replace(row, status=status, reason="out of time")
        return row

    def _layout_row(self, row: Row, layout: Layout) -> Row:
        formula = over_elements(offset_expression(layout), self.case.problem.tile)
        return self._row(row, formula, layout.table().ravel(), layout.declared_bytes, bool(layout.swizzle))

    def _given_row(self, row: Row, field: str, text: str, declared: int | None) -> Row:
        """The row of a formula out of a field of the file."""
        try:
            node = offset_formula(text, self.problem.tile)
            table = self.case.table(node)
        except ProblemFileError as error:
            raise ProblemFileError(field, error.reason) from None
        except LayoutError as error:
            return msgspec.structs.replace(row, status=Status.INFEASIBLE, reason=str(error), offset=text)
        return self._row(row, node, table, declared or 0, has_xor(node))

    def _edits(self) -> Iterator[Row]:
        """The nearest edit of the layout in use, else of the published one, where one is better."""
        published = self.case.problem.published
        text = self.in_use or (published.offset if published is not None else None)
        if text is None:
            return
        node = offset_formula(text, self.problem.tile)
        found, seconds = _timed(partial(nearest_edit, node, self.case, self.budget, by_time=True))
        if found is not None:
            row = Row("edit", "nearest edit", "given", edit=found.edit.text, seconds=seconds)
            after = found.edit.node
            yield self._row(row, after, self.case.table(after), self._declared(after), has_xor(after))

    def _declared(self, node: Node) -> int:
        """Bytes of an array with every pitch in full, where the formula has pitches; 0 elsewhere."""
        tile = self.case.problem.tile
        strides = strides_of(node, len(tile.shape)) or ()
        full = max((s * n for s, n in zip(strides, tile.shape, strict=False)), default=0)
        return full * tile.element_bits // 8

    @property
    def _guessed_pad(self) -> str:
        """The family of a pad on every row: where there are no rows, a period of the banks is one."""
        return "pad" if len(self.problem.tile.shape) > 1 else "interval"

    def _guesses(self) -> Iterator[Row]:
        """One vector of pad, and column ^ row: what people write without looking."""
        tile, vector = self.problem.tile, self.space.vector
        *outer, columns = tile.shape
        column: Node = Var(f"x{len(outer)}")
        row: Node = Var("x0")
        for d, extent in enumerate(outer[1:], 1):
            row = _row_and(row, extent, Var(f"x{d}"))
        if not outer:
            columns = self.space.period
            row, column = Op("//", (row, Const(columns))), Op("%", (row, Const(columns)))
        allowed, slots = searched_families(self.problem), columns // vector
        if self._guessed_pad in allowed:
            padded = _row_and(row, columns + vector, column)
            title = f"pad {vector * self.case.problem.tile.packed}"
            yield self._guess(Row("guess_pad", title, "given"), padded, columns, vector)
        if "xor" in allowed and slots > 1:
            turns = 1 << (slots.bit_length() - 1)
            flip = Op("*", (Op("%", (row, Const(turns))), Const(vector)))
            flipped = _row_and(row, columns, Op("^", (column, flip)))
            yield self._guess(Row("guess_xor", "column ^ row", "given"), flipped, columns, 0)

    def _guess(self, row: Row, offset: Node, columns: int, pad: int) -> Row:
        """The row of offsets of rows of so many columns, each with a pad."""
        tile, pitch = self.problem.tile, columns + pad
        node = simplify(offset, coordinate_ranges(tile.shape))
        text = to_text(over_elements(node, self.case.problem.tile))
        strides = [*(pitch * math.prod(tile.shape[d:-1]) for d in range(1, len(tile.shape))), 1]
        if not strides_obey(strides, self.problem.layout, tile):
            return msgspec.structs.replace(row, status=Status.INFEASIBLE, reason=_NOT_ALLOWED, offset=text)
        rows = -(-tile.elements // columns)
        return self._given_row(row, row.family, text, rows * pitch * tile.element_bytes)

    def _row(self, row: Row, formula: Node, table: IntArray, declared: int, swizzled: bool) -> Row:
        """Fill in what a layout costs, or why it cannot be used."""
        case, problem = self.case, self.problem
        size = case.size(table)
        text = to_text(formula)
        filled = {"offset": text, "bytes": size, "declared_bytes": max(declared, size)}
        limit = problem.layout.max_bytes
        wrong = f"{size:,} bytes; max_bytes is {limit:,}" if limit is not None and size > limit else ""
        alignment, given = case.alignment(swizzled), problem.layout.alignment_bytes
        try:
            case.check(table)
            reached = reach(problem, table)
            alignment = max(alignment, reached.alignment_bytes)
        except LayoutError as error:
            wrong = str(error)
        if given is not None and alignment > given:
            wrong = wrong or f"needs a base aligned to {alignment} bytes; alignment_bytes is {given}"
        if wrong:
            return msgspec.structs.replace(row, **filled, status=Status.INFEASIBLE, reason=wrong)
        accesses, weighted = self._cost(table)
        self.formulas[text] = formula
        fits = block_occupancy(self.case, size, alignment)
        return msgspec.structs.replace(
            row,
            **filled,
            alignment_bytes=alignment,
            wavefronts=sum(a.wavefronts for a in accesses),
            ideal=sum(a.ideal for a in accesses),
            excess=sum(a.excess for a in accesses),
            ways=max(a.ways for a in accesses),
            weighted_wavefronts=weighted,
            blocks_per_sm=fits.blocks if fits else None,
            blocks_by_shared_memory=fits.by_shared_memory if fits else None,
            limited_by=fits.limited_by if fits else None,
            pipeline_stages=fits.stages if fits else None,
            by_hardware=reached.instructions if problem.is_dictated else None,
            accesses=accesses,
        )

    def _cost(self, table: IntArray) -> tuple[tuple[RowAccess, ...], float]:
        """Every access at every lane, and the weighted wavefronts."""
        counts = self.case.count(table)
        accesses = []
        for access, count in zip(self.case.lanes.accesses, counts, strict=True):
            _, worst = worst_instruction(count)
            address = table[access.element[worst]]
            phases = witness(address.tolist(), access.active[worst].tolist(), access.operation, self.gpu)
            accesses.append(
                RowAccess(
                    access.name,
                    access.op,
                    wavefronts=int(count.wavefronts.sum()),
                    ideal=int(count.ideal.sum()),
                    excess=int((count.wavefronts - count.ideal).sum()),
                    bank_conflicts=int(count.bank_conflicts.sum()),
                    ways=max((phase.wavefronts for phase in phases), default=0),
                )
            )
        return tuple(accesses), self.case.weighted_wavefronts(counts) / self.case.lanes.weight_unit


def _least_excess(everything: Result, lanes: Trace) -> int:
    """Weighted excess, in the trace's unit, that no layout of any kind undercuts."""
    bound = everything.proof.objective
    return int(bound.lower_bound * lanes.weight_unit) if bound.everywhere else 0


def _at_least(row: Row, members: list[Row]) -> Row:
    """The row, or the best of its family's `members` where the search ended before it found as much.

    That is where time ran out, or where an interval pad cuts no coordinate evenly.
    """
    usable = [member for member in members if member.wavefronts is not None]
    better = min(usable, key=lambda member: member.rank, default=row)
    if better is row or (row.wavefronts is not None and better.rank >= row.rank):
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


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    answer = work()
    return answer, time.perf_counter() - start


def _is_best_of(everything: Result, families: tuple[str, ...]) -> bool:
    """Whether the best layout of all families lies in these, and so is their best.

    Where its formula is longer than those of its kind need be, the search of these may find a cheaper index.
    """
    layout = everything.layout
    if everything.status is not Status.OPTIMAL or layout is None or everything.family is None:
        return False
    shortest = 2 * max(0, sum(extent > 1 for extent in layout.shape) - 1) + bool(layout.swizzle)
    if operations(element_expression(layout)) > shortest:
        return False
    return set(everything.family.split("+")) <= set(families)


def _row_and(row: Node, pitch: int, column: Node) -> Node:
    return Op("+", (Op("*", (row, Const(pitch))), column))


def _needs_no_pad(found: Result) -> bool:
    """Whether pads cannot make it better: it is the best of its families, and nothing is of any families."""
    proof = found.proof
    return found.status is Status.OPTIMAL and proof.objective.everywhere and proof.bytes.everywhere
