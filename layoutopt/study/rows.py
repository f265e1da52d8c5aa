"""The rows of a comparison of one tile: the best layout of each family, and what is in use.

A row is the best of its family: proved by the solver, or, where the family is small, by counting every
layout of it (`layoutopt.study.counted`). The problem is traced once, and a row is not searched where the
best layout of all is of its families.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from layoutopt.accesses.instructions import as_given
from layoutopt.accesses.lower import offset_formula, over_elements
from layoutopt.engine.by_hardware import descriptors
from layoutopt.engine.case import Case
from layoutopt.engine.conflicts import Counts
from layoutopt.engine.estimate import block_occupancy, estimate, why_no_estimate
from layoutopt.engine.referee import rounded_count
from layoutopt.engine.witness import worst_instruction
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.expressions.simplify import operations
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget, spending
from layoutopt.ground.json_data import named_by
from layoutopt.hardware.devices import Device
from layoutopt.layout.families import Family, comparison_rows
from layoutopt.layout.formula import element_expression, has_xor, offset_expression
from layoutopt.layout.layout import Layout
from layoutopt.model.space import space_of
from layoutopt.problems.answer import Estimate, Result, Status
from layoutopt.problems.types import FAMILIES, Problem
from layoutopt.search.dictated import ranked
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import solve_cases
from layoutopt.study.comparison import Row, RowAccess, room
from layoutopt.study.counted import Counter, best, cute_swizzles, plainly
from layoutopt.study.edits import nearest_edit, strides_of
from layoutopt.study.in_use import node_in_use
from layoutopt.study.instruction import Instruction
from layoutopt.study.known import solved

ALL: Final = "all"
# What is in use, and what it is most likely to be replaced by.
_ESTIMATED_FIRST: Final = ("in_use", "published", "edit", "pad", ALL)
NOT_ALLOWED: Final = "not allowed by the problem's layout constraints"
# Share of the time for everything but the first search that estimates of time have at least.
_ESTIMATE_SHARE: Final = 0.25
_SEARCH_SHARE: Final = 0.5  # of the time left, that each search may use


class TileRows:
    """A problem and its best layout of all, from which rows are made.

    Attributes:
        case: with the lanes and widths of that layout.
        formulas: of all rows that can be used, by their text.

    Raises:
        ProblemFileError: the problem contradicts itself.
    """

    def __init__(
        self,
        problem: Problem,
        gpu: Device,
        time_limit: float | None,
        progress: Callable[[str], None],
        known: Result | None = None,
    ) -> None:
        self.asked, self.gpu, self.time_limit, self.progress = problem, gpu, time_limit, progress
        self.budget = Budget(None if time_limit is None else 2 * time_limit)
        self.allowed = problem.layout.families or FAMILIES
        families = tuple(f for f in FAMILIES if f in self.allowed)
        layout: dict[str, Any] = {"minimise": "excess"}
        if not problem.is_dictated:
            layout["families"] = families
        search = partial(solved, problem, gpu, progress=progress, known=known, **layout)
        with spending(self.budget):
            (self.case, self.everything), self.seconds = _timed(search)
        # Layouts are sought and counted over bytes, and shown over elements.
        self.problem = self.case.lowered
        self.counter = Counter(self.case)
        self.formulas: dict[str, Node] = {}

    def rows(self) -> list[Row]:
        """All rows, with their estimates as far as the time goes."""
        whole, self.budget = self.budget, self.budget.part(1 - _ESTIMATE_SHARE)
        found = self._dictated() if self.problem.is_dictated else self._families()
        found += [*self._used(), *self._edits()]
        self.budget = whole
        return [*self._estimated(found), *self._as_given()]

    def dictated_rows(self) -> list[Row]:
        """Of a tile whose layout the hardware dictates: the best layout, and what is in use."""
        return [self.solved_row(ALL, "dictated", self.everything), *self._used()]

    def solved_row(self, family: str, title: str, result: Result) -> Row:
        """The row, with its estimate, of an answer of `solve` to the problem under more constraints."""
        return self._estimated([self._solved_row(family, title, result)])[0]

    # Estimates ---------------------------------------------------------------------------------

    def _estimated(self, rows: list[Row]) -> list[Row]:
        """The rows with their estimated time, as far as the time limit goes, what is in use first."""
        if why_no_estimate(self.case) is not None:
            return rows
        found: dict[str | None, tuple[Estimate, list[int]]] = {}
        for row in self.budget.while_left(sorted(rows, key=lambda r: r.family not in _ESTIMATED_FIRST)):
            if row.wavefronts is not None and row.offset not in found:
                node = self.formulas[row.offset or ""]
                took = estimate(self.case, node)
                found[row.offset] = took, [code.instructions.total for code in self.case.index_code(node)]

        def timed(row: Row) -> Row:
            if row.wavefronts is None or row.offset not in found:
                return row
            took, each = found[row.offset]
            own = (replace(access, index_ops=n) for access, n in zip(row.accesses, each, strict=True))
            return replace(row, accesses=tuple(own), **_time_of(took))

        return [*map(timed, rows)]

    # Where layouts come from -------------------------------------------------------------------

    def _solve(self, families: tuple[str, ...]) -> Result:
        """The best layout of these families, as far as the problem allows them."""
        chosen = tuple(f for f in families if f in self.allowed) or ("none",)
        layout = replace(self.case.asked.layout, families=chosen)
        ask = Ask(progress=self.progress, every_layout=not self.budget.spent)
        with spending(self.budget.part(_SEARCH_SHARE)):
            return solve_cases([self.case.constrained(layout)], ask)

    def _families(self) -> list[Row]:
        """The best of each family."""
        found = {name: self._family_row(name, families) for name, families in comparison_rows().items()}
        found["xor"] = _at_least(found["xor"], [found["cute"]])
        if found["pad+xor"].status is not Status.INFEASIBLE:
            found["pad+xor"] = _at_least(found["pad+xor"], [found["xor"], found["pad"]])
        everything = self._solved_row(ALL, "everything", self.everything, self.seconds)
        found[ALL] = _at_least(everything, [row for name, row in found.items() if name != ALL])
        return list(found.values())

    def _dictated(self) -> list[Row]:
        """Layouts the hardware knows, in the order of `solve`: each mode's best, and its fewest boxes."""
        with spending(self.budget):  # direct loads have too many to list
            listed = ranked(self.case).served if any(a.hardware for a in self.problem.accesses) else []
        fewest = {c.name: c for c in sorted(listed, key=lambda c: -c.instructions)}
        first = {c.name: c for c in reversed(listed)}
        rows: list[Row] = []
        for c in listed:
            if c in (first[c.name], fewest[c.name]):
                mode = c.name.partition(",")[0]
                family = mode if mode not in [row.family for row in rows] else c.title
                rows.append(self._row(Row(family, c.title, Status.OPTIMAL, label=c.name), c.layout))
        return [*rows, self._solved_row(ALL, "everything", self.everything, self.seconds)]

    def _family_row(self, name: str, families: tuple[Family, ...]) -> Row:
        """The best layout of the families that share a row."""
        if name == "none" and self.case.view is not None:  # the vectors say which dimension runs fastest
            families = tuple(replace(f, title="dense, no pad") for f in families)
        title = families[0].title
        mine = [f for f in families if {*f.allowed_by} <= {*self.allowed, "none"}]
        if not mine or (mine[0].orders and self.problem.layout.order is not None):
            return Row(name, title, Status.INFEASIBLE, NOT_ALLOWED)
        together = {other for family in mine for other in (*family.beside, family.name)}
        chosen = tuple(f for f in FAMILIES if f in together)
        if mine[0].counted:
            return self._counted_row(name, mine[0], chosen)
        if _is_best_of(self.everything, chosen):
            return self._solved_row(name, title, self.everything)
        return self._solved_row(name, title, *_timed(partial(self._solve, chosen)))

    def _solved_row(self, family: str, title: str, result: Result, seconds: float = 0.0) -> Row:
        row = Row(family, title, result.status, result.reason, seconds=seconds)
        if result.layout is None:
            return row
        row = replace(row, label=result.family or "")
        return self._row(row, self.case.as_bytes(result.layout))

    def _counted_row(self, name: str, family: Family, together: tuple[str, ...]) -> Row:
        """The best layout of few families by counting each."""
        self.progress(family.title)
        case, layout = self.case, self.problem.layout
        rules = [a.rule for a in case.lanes.accesses]
        period = max(rule.banks * rule.bank_bytes for rule in rules)
        allowed = tuple(f for f in together if f in ("none", *self.allowed))
        flips = layout.alignment_bytes is None or layout.alignment_bytes >= case.alignment(True)
        bound = self.everything.proof.objective
        floor = int(bound.lower_bound * case.lanes.weight_unit) if bound.everywhere else 0
        with spending(self.budget):
            space = space_of(self.problem, case.lanes, period, allowed)
            every = cute_swizzles if name == "cute" and flips else plainly
            layouts = every(space, self.problem.tile.element_bytes)
            found, seconds = _timed(partial(best, layouts, self.counter, floor, layout.max_bytes))
        late = "out of time" if self.budget.spent else ""
        if found is None:
            reason = late or "no layout of the family keeps the vectors whole and the constraints"
            status = Status.UNKNOWN if late else Status.INFEASIBLE
            return Row(name, family.title, status, reason, seconds=seconds)
        label = family.label(found) + (" (in bytes)" if case.problem.tile.packed > 1 else "")
        status = Status.FEASIBLE if late else Status.OPTIMAL
        row = Row(name, family.title, status, late, label=label, seconds=seconds)
        return self._row(row, case.as_bytes(case.as_elements(found)))

    def _used(self) -> Iterator[Row]:
        """The layout in use and the published one, where the file has them."""
        in_use, published = self.asked.layout.offset, self.asked.published
        if in_use is not None:
            yield self._given(Row("in_use", "in use", "given"), "layout.offset", in_use)
        if published is not None:
            row = Row("published", "published", "given")
            yield self._given(row, "published.offset", published.offset, published.bytes)

    def _edits(self) -> Iterator[Row]:
        """The nearest edit of the layout in use, else of the published one, where one is better."""
        tile, node = self.case.problem.tile, node_in_use(self.asked)
        if node is None:
            return
        with spending(self.budget):
            found, seconds = _timed(partial(nearest_edit, node, self.case))
        if found is not None:
            strides = strides_of(found.node, len(tile.shape)) or ()
            full = max((s * n for s, n in zip(strides, tile.shape, strict=False)), default=0)
            row = Row("edit", "nearest edit", "given", edit=found.text, seconds=seconds)
            yield self._row(row, found.node, full * tile.element_bits // 8)

    def _as_given(self) -> Iterator[Row]:
        """The best layout for the instructions that the file gives, where others may be chosen."""
        if self.asked.chooses_instructions:
            accesses = tuple(as_given(a) if a.instructions else a for a in self.asked.accesses)
            asked = replace(self.asked, accesses=accesses)
            given = TileRows(asked, self.gpu, self.time_limit, self.progress)
            yield given.solved_row("given", "instructions as given", given.everything)
            self.formulas |= given.formulas

    def _given(self, row: Row, field: str, text: str, declared: int | None = None) -> Row:
        """The row of a formula out of a field of the file."""
        try:
            with named_by(field):
                node = offset_formula(text, self.case.problem.tile)
                self.case.table(node)
        except LayoutError as error:
            return replace(row, status=Status.INFEASIBLE, reason=str(error), offset=text)
        return self._row(row, node, declared)

    # What they cost ----------------------------------------------------------------------------

    def _row(self, row: Row, layout: Layout | Node, declared: int | None = None) -> Row:
        """Fill in what a layout, over bytes, or a formula costs, or why it cannot be used."""
        case, allowed, swizzled = self.case, self.problem.layout, False
        if isinstance(layout, Layout):
            formula = over_elements(offset_expression(layout), case.problem.tile)
            declared, swizzled = layout.declared_bytes, bool(layout.swizzle)
        else:
            formula, swizzled = layout, has_xor(layout)
        table = case.table(layout)
        size, text = case.size(table), to_text(formula)
        row = replace(row, offset=text, bytes=size, declared_bytes=max(declared or 0, size))
        limit = allowed.max_bytes
        wrong = f"{size:,} bytes; max_bytes is {limit:,}" if limit is not None and size > limit else ""
        alignment, given = case.alignment(swizzled), allowed.alignment_bytes
        try:
            case.check(table)
            reached = descriptors(self.problem, table).values()
            alignment = max(alignment, *(d.alignment_bytes for d in reached), 1)
        except LayoutError as error:
            wrong = str(error)
        if given is not None and alignment > given:
            wrong = wrong or f"needs a base aligned to {alignment} bytes; alignment_bytes is {given}"
        if wrong:
            return replace(row, status=Status.INFEASIBLE, reason=wrong)
        counts = case.count(table)
        accesses = tuple(self._access(k, count, table) for k, count in enumerate(counts))
        self.formulas[text] = formula
        ways = [access.ways for access in accesses if access.ways is not None]
        return replace(
            row,
            **costs_of(case, counts, size, alignment),
            ways=max(ways) if len(ways) == len(accesses) else None,
            by_hardware=sum(d.instructions for d in reached) if self.problem.is_dictated else None,
            accesses=accesses,
        )

    def _access(self, number: int, counts: Counts, table: IntArray) -> RowAccess:
        """The totals of an access, and the conflict of its worst instruction."""
        access, ways = self.case.accesses[number], None
        if access.any_is is None:
            worst = Instruction(self.case, number, worst_instruction(counts)[1])
            ways = max((phase.wavefronts for phase in worst.served(table)), default=0)
        found = access.report(counts)
        totals = found.wavefronts, found.ideal, found.excess, found.bank_conflicts
        return RowAccess(found.name, found.op, *totals, ways)


def costs_of(
    case: Case, counts: Sequence[Counts], size: int, alignment: int, took: Estimate | None = None
) -> dict[str, Any]:
    """The fields of a row about a layout of so many bytes: what it costs, and the time that it takes."""
    reports = [access.report(count) for access, count in zip(case.accesses, counts, strict=True)]
    return {
        **{
            field: rounded_count(sum(getattr(report, field) for report in reports))
            for field in ("wavefronts", "ideal", "excess")
        },
        "bytes": size,
        "alignment_bytes": alignment,
        "weighted_wavefronts": case.weighted_wavefronts(counts) / case.lanes.weight_unit,
        **room(block_occupancy(case, size, alignment)),
        **(_time_of(took) if took is not None else {}),
    }


def _time_of(took: Estimate) -> dict[str, Any]:
    both = {"instructions": took.instructions, "index_ops": took.instructions}
    return both | {"cycles": took.cycles, "time": took.time}


def _at_least(row: Row, members: list[Row]) -> Row:
    """The row, or the best of its family's `members` where the search ended before it found as much.

    That is where time ran out.
    """
    usable = [member for member in members if member.wavefronts is not None]
    better = min(usable, key=lambda member: member.rank, default=row)
    if better is row or (row.wavefronts is not None and better.rank >= row.rank):
        return row
    return replace(
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
