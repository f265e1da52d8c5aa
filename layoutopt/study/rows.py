"""The rows of a comparison of one tile: the best layout of each family, and what is in use.

A row is the best of its family: proved by the solver, or, where the family is small, by counting every
layout of it (`layoutopt.search.counted`). The problem is traced once, and a row is not searched where the
best layout of all is of its families.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from layoutopt.accesses.instructions import with_given_instructions
from layoutopt.accesses.lower import assigned, offset_formula, over_elements
from layoutopt.engine.by_hardware import descriptors
from layoutopt.engine.case import Case, case_of, case_of_result
from layoutopt.engine.conflicts import Counts
from layoutopt.engine.estimate import block_occupancy, estimate, why_no_estimate
from layoutopt.engine.referee import rounded_count
from layoutopt.engine.witness import Instruction, worst_instruction
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.expressions.simplify import operations
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget, current, spending, unhurried
from layoutopt.ground.json_data import named_by
from layoutopt.ground.log import Progress
from layoutopt.hardware.devices import Device
from layoutopt.layout.families import Family, comparison_rows
from layoutopt.layout.formula import element_expression, has_xor, offset_expression
from layoutopt.layout.layout import Layout
from layoutopt.model.space import space_of
from layoutopt.problems.answer import Estimate, Result, Status
from layoutopt.problems.types import FAMILIES, Problem, constrained
from layoutopt.search.block import solve
from layoutopt.search.counted import Counter, best, cute_swizzles, plain_layouts
from layoutopt.search.dictated import ranked
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import solve_cases
from layoutopt.study.comparison import Row, RowAccess
from layoutopt.study.edits import declared_bytes, nearest_edit
from layoutopt.study.in_use import node_in_use, without_formulas

ALL: Final = "all"
# The layout in use, and the rows that are most likely to replace it.
_ESTIMATED_FIRST: Final = ("in_use", "published", "edit", "pad", ALL)
NOT_ALLOWED: Final = "not allowed by the problem's layout constraints"
# Share of the time for everything but the first search that estimates of time have at least.
_ESTIMATE_SHARE: Final = 0.25
_SEARCH_SHARE: Final = 0.5  # of the time left, that each search may use


class TileRows:
    """A problem of one tile and its best layout, and the rows of the other families.

    Attributes:
        asked: the problem as the file has it.
        case: the same with the lanes and widths of the best layout.
        everything: the best layout of all families that the problem allows; `seconds`: that it took.
        problem: that of `case` over bytes, for which layouts are sought and counted.
        formulas: the formula of every row that can be used, by its text.

    Raises:
        ProblemFileError: the problem contradicts itself.
    """

    def __init__(
        self,
        problem: Problem,
        gpu: Device,
        time_limit: float | None,
        progress: Progress,
        known: Result | None = None,
    ) -> None:
        self.asked, self.gpu, self.time_limit, self.progress = problem, gpu, time_limit, progress
        # Half of it is for the search over everything: `solved` takes half of what is in force.
        self.budget = Budget(None if time_limit is None else 2 * time_limit)
        self.allowed = problem.layout.families or FAMILIES
        layout: dict[str, Any] = {"minimise": "excess"}
        if not problem.is_dictated:
            layout["families"] = tuple(f for f in FAMILIES if f in self.allowed)
        search = partial(solved, problem, gpu, progress=progress, known=known, **layout)
        with spending(self.budget):
            (self.case, self.everything), self.seconds = _timed(search)
        self.problem = self.case.lowered
        self.counter = Counter(self.case)
        self.formulas: dict[str, Node] = {}

    def rows(self) -> list[Row]:
        """All rows, with their estimates as far as the time goes."""
        whole, self.budget = self.budget, self.budget.part(1 - _ESTIMATE_SHARE)
        rows = self._dictated_modes() if self.problem.is_dictated else self._family_rows()
        rows += [*self._rows_in_use(), *self._edit_rows()]
        self.budget = whole
        return [*self._with_estimates(rows), *self._rows_as_given()]

    def dictated_rows(self) -> list[Row]:
        """Of a tile whose layout the hardware dictates: the best layout, and the layout in use."""
        return [self.solved_row(ALL, "dictated", self.everything), *self._rows_in_use()]

    def solved_row(self, family: str, title: str, result: Result) -> Row:
        """The row, with its estimate, of an answer of `solve` to the problem under more constraints."""
        return self._with_estimates([self._result_row(family, title, result)])[0]

    # Estimates ---------------------------------------------------------------------------------

    def _with_estimates(self, rows: list[Row]) -> list[Row]:
        """The rows with their estimated times, as far as the time limit goes, those of layouts in use first.

        Rows without a layout, and those for which no time was left, stay as they are.
        """
        if why_no_estimate(self.case) is not None:
            return rows
        # By offset: the estimate, and the index instructions of each access.
        estimates: dict[str | None, tuple[Estimate, list[int]]] = {}
        for row in self.budget.while_left(sorted(rows, key=lambda r: r.family not in _ESTIMATED_FIRST)):
            if row.wavefronts is not None and row.offset not in estimates:
                node = self.formulas[row.offset or ""]
                index_ops = [code.instructions.total for code in self.case.index_code(node)]
                estimates[row.offset] = estimate(self.case, node), index_ops
        for number, row in enumerate(rows):
            if row.wavefronts is not None and row.offset in estimates:
                whole, index_ops = estimates[row.offset]
                pairs = zip(row.accesses, index_ops, strict=True)
                accesses = tuple(replace(access, index_ops=count) for access, count in pairs)
                rows[number] = replace(row, accesses=accesses).timed(whole)
        return rows

    # Where layouts come from -------------------------------------------------------------------

    def _solve(self, families: tuple[str, ...]) -> Result:
        """The best layout of these families, as far as the problem allows them."""
        allowed = tuple(f for f in families if f in self.allowed) or ("none",)
        layout = replace(self.case.asked.layout, families=allowed)
        ask = Ask(progress=self.progress, every_layout=not self.budget.spent)
        with spending(self.budget.part(_SEARCH_SHARE)):
            return solve_cases([self.case.constrained(layout)], ask).result

    def _family_rows(self) -> list[Row]:
        """The best of each family; a wider family's row is no worse than those of the families within it."""
        rows = {name: self._family_row(name, families) for name, families in comparison_rows().items()}
        rows["xor"] = _no_worse(rows["xor"], [rows["cute"]])
        if rows["pad+xor"].status is not Status.INFEASIBLE:
            rows["pad+xor"] = _no_worse(rows["pad+xor"], [rows["xor"], rows["pad"]])
        everything = self._result_row(ALL, "everything", self.everything, self.seconds)
        rows[ALL] = _no_worse(everything, [row for name, row in rows.items() if name != ALL])
        return list(rows.values())

    def _dictated_modes(self) -> list[Row]:
        """Layouts the hardware knows, in the order of `solve`: each mode's best, and its fewest boxes."""
        with spending(self.budget):  # direct loads have too many to list
            listed = ranked(self.case).served if any(a.hardware for a in self.problem.accesses) else []
        rows: list[Row] = []
        for candidate in listed:
            name, title = candidate.name, candidate.title
            of_mode = [other for other in listed if other.name == name]  # the best first
            if candidate in (of_mode[0], min(reversed(of_mode), key=lambda other: other.instructions)):
                mode = name.partition(",")[0]
                family = mode if mode not in [row.family for row in rows] else title
                rows.append(self._costed(Row(family, title, Status.OPTIMAL, label=name), candidate.layout))
        return [*rows, self._result_row(ALL, "everything", self.everything, self.seconds)]

    def _family_row(self, name: str, families: tuple[Family, ...]) -> Row:
        """The best layout of the families that share the row `name`, as far as the problem allows them."""
        if name == "none" and self.case.view is not None:  # the vectors say which dimension runs fastest
            families = tuple(replace(f, title="dense, no pad") for f in families)
        title = families[0].title
        allowed = [f for f in families if {*(f.special_case_of or (f.name,))} <= {*self.allowed, "none"}]
        order_is_given = self.problem.layout.order is not None  # which families of orders would choose
        if not allowed or (allowed[0].orders and order_is_given):
            return Row(name, title, Status.INFEASIBLE, reason=NOT_ALLOWED)
        names = {name for family in allowed for name in (*family.beside, family.name)}
        searched = tuple(f for f in FAMILIES if f in names)
        if allowed[0].counted:
            return self._counted_row(name, allowed[0], searched)
        if _is_best_of(self.everything, searched):
            return self._result_row(name, title, self.everything)
        return self._result_row(name, title, *_timed(partial(self._solve, searched)))

    def _result_row(self, family: str, title: str, result: Result, seconds: float = 0.0) -> Row:
        """The row of an answer of `solve`, without an estimate."""
        row = Row(family, title, result.status, result.reason, seconds=seconds, label=result.family or "")
        return row if result.layout is None else self._costed(row, self.case.as_bytes(result.layout))

    def _counted_row(self, name: str, family: Family, searched: tuple[str, ...]) -> Row:
        """The row `name`: the best layout of `family`, which is so small that every layout of it is counted.

        `searched` names the family and those that may be combined with it, whether the problem allows them
        or not.
        """
        self.progress(family.title)
        case, limits = self.case, self.problem.layout
        period_bytes = max(access.rule.banks * access.rule.bank_bytes for access in case.lanes.accesses)
        allowed = tuple(f for f in searched if f in ("none", *self.allowed))
        needed = case.alignment(swizzled=True)
        may_swizzle = limits.alignment_bytes is None or limits.alignment_bytes >= needed
        bound = self.everything.proof.objective
        # Of the weighted excess, in the trace's unit: a layout that has it ends the counting.
        floor = int(bound.lower_bound * case.lanes.weight_unit) if bound.everywhere else 0
        with spending(self.budget):
            space = space_of(self.problem, case.lanes, period_bytes, allowed)
            # Where none may swizzle, those of CuTe's layouts that have no swizzle are left.
            every_layout = cute_swizzles if name == "cute" and may_swizzle else plain_layouts
            layouts = every_layout(space, self.problem.tile.element_bytes)
            found, seconds = _timed(partial(best, layouts, self.counter, floor, limits.max_bytes))
        out_of_time = "out of time" if self.budget.spent else ""
        if found is None:
            reason = out_of_time or "no layout of the family keeps the vectors whole and the constraints"
            status = Status.UNKNOWN if out_of_time else Status.INFEASIBLE
            return Row(name, family.title, status, reason, seconds=seconds)
        label = family.label(found) + (" (in bytes)" if case.problem.tile.packed > 1 else "")
        status = Status.FEASIBLE if out_of_time else Status.OPTIMAL
        row = Row(name, family.title, status, reason=out_of_time, label=label, seconds=seconds)
        # Found in the coordinates of `case.lowered`, it is costed in the tile's own, and over bytes.
        return self._costed(row, case.as_bytes(case.as_elements(found)))

    def _rows_in_use(self) -> Iterator[Row]:
        """The layout in use and the published one, where the file has them."""
        in_use, published = self.asked.layout.offset, self.asked.published
        if in_use is not None:
            yield self._formula_row(Row("in_use", "in use", status="given"), "layout.offset", in_use)
        if published is not None:
            row = Row("published", "published", status="given")
            yield self._formula_row(row, "published.offset", published.offset, published.bytes)

    def _edit_rows(self) -> Iterator[Row]:
        """The nearest edit of the layout in use, else of the published one, where one is better."""
        if (node := node_in_use(self.asked)) is None:
            return
        with spending(self.budget):
            edit, seconds = _timed(partial(nearest_edit, node, self.case))
        if edit is not None:
            row = Row("edit", "nearest edit", status="given", edit=edit.text, seconds=seconds)
            yield self._costed(row, edit.node)

    def _rows_as_given(self) -> Iterator[Row]:
        """The best layout for the instructions that the file gives, where others may be chosen."""
        if self.asked.chooses_instructions:
            accesses = tuple(with_given_instructions(a) if a.instructions else a for a in self.asked.accesses)
            as_is = TileRows(replace(self.asked, accesses=accesses), self.gpu, self.time_limit, self.progress)
            yield as_is.solved_row("given", "instructions as given", as_is.everything)
            self.formulas |= as_is.formulas

    def _formula_row(self, row: Row, field: str, text: str, declared: int | None = None) -> Row:
        """The row of a formula, which stands in a field of the file, in an array of `declared` bytes."""
        try:
            with named_by(field):
                node = offset_formula(text, self.case.problem.tile)
                self.case.table(node)
        except LayoutError as error:
            return replace(row, status=Status.INFEASIBLE, reason=str(error), offset=text)
        return self._costed(row, node, declared)

    # What they cost ----------------------------------------------------------------------------

    def _costed(self, row: Row, layout: Layout | Node, declared: int | None = None) -> Row:
        """The row with a layout's costs, or the reason why the layout cannot be used.

        The formula of a layout that can be used is kept in `formulas`.

        Args:
            row: the family, title and status of the layout.
            layout: a layout over bytes, or a formula over elements.
            declared: bytes of the array that a formula is for; None for what its pitches say.
        """
        case, limits = self.case, self.problem.layout
        if isinstance(layout, Layout):
            formula = over_elements(offset_expression(layout), case.problem.tile)
            declared, swizzled = layout.declared_bytes, bool(layout.swizzle)
        else:
            formula, swizzled = layout, has_xor(layout)
            declared = declared_bytes(layout, case.problem.tile) if declared is None else declared
        table = case.table(layout)
        size, text = case.size(table), to_text(formula)
        row = replace(row, offset=text, bytes=size, declared_bytes=max(declared, size))

        def refused(reason: str) -> Row:
            return replace(row, status=Status.INFEASIBLE, reason=reason)

        try:  # how the hardware reaches the tile where it does so by itself, an access each
            by_itself = descriptors(self.problem, table).values()
            case.check_lanes(table)
        except LayoutError as error:
            return refused(str(error))
        alignment = max(case.alignment(swizzled), *(d.alignment_bytes for d in by_itself), 1)
        if limits.max_bytes is not None and size > limits.max_bytes:
            return refused(f"{size:,} bytes; max_bytes is {limits.max_bytes:,}")
        if limits.alignment_bytes is not None and alignment > limits.alignment_bytes:
            given = f"alignment_bytes is {limits.alignment_bytes}"
            return refused(f"needs a base aligned to {alignment} bytes; {given}")
        counts = case.count(table)
        accesses = tuple(self._row_access(k, count, table) for k, count in enumerate(counts))
        self.formulas[text] = formula
        ways = [access.ways for access in accesses if access.ways is not None]
        return replace(
            costed(row, case, counts, size, alignment),
            ways=max(ways) if len(ways) == len(accesses) else None,
            by_hardware=sum(d.instructions for d in by_itself) if self.problem.is_dictated else None,
            accesses=accesses,
        )

    def _row_access(self, number: int, counts: Counts, table: IntArray) -> RowAccess:
        """The totals of an access, and the conflict of its worst instruction."""
        access, ways = self.case.accesses[number], None
        if access.any_is is None:
            _, row = worst_instruction(counts)
            phases = Instruction(self.case, number, row).served(table)
            ways = max((phase.wavefronts for phase in phases), default=0)
        total = access.report(counts)
        return RowAccess(
            total.name, total.op, total.wavefronts, total.ideal, total.excess, total.bank_conflicts, ways
        )


def solved(
    problem: Problem, gpu: Device, *, progress: Progress, known: Result | None = None, **constraints: Any
) -> tuple[Case, Result]:
    """The problem with the lanes and widths chosen for its best layout, and that layout.

    Where lanes are free, a first search chooses them in half of the time in force. The search for the layout
    has half of what is left then.

    Args:
        problem, gpu, progress: as for `layoutopt.solve`.
        known: the answer, if it is known: then nothing is searched.
        constraints: fields of `Constraints` that replace the file's, once the lanes are chosen.

    Raises:
        OutOfTime: the time was over before the first layout.
        ProblemFileError: the problem contradicts itself.
    """
    asked = without_formulas(problem)  # without the layout that the file says is in use
    if problem.is_free:
        with spending(current().part(_SEARCH_SHARE)):
            asked = assigned(asked, known or solve(asked, gpu))
    asked = constrained(asked, **constraints)
    case = case_of(asked, gpu)
    # Without time, no proof is sought.
    ask = Ask(progress=progress, every_layout=not current().spent)
    with spending(current().part(_SEARCH_SHARE)):
        if known is not None:
            result = known
        elif case.widths:  # open in the file: `case` has the widest of several
            result = solve(asked, gpu, ask)
        else:
            result = solve_cases([case], ask).result
    if case.widths:  # those of the answer
        with unhurried():
            case = case_of_result(asked, gpu, result)
    return case, result


def costed(row: Row, case: Case, counts: Sequence[Counts], size: int, alignment: int) -> Row:
    """A row with what its layout costs, all but time.

    Args:
        row: the family, title and status of the layout.
        case: the tile and its accesses.
        counts: of each access, under the layout.
        size, alignment: bytes of the layout and of its base's alignment.
    """
    reports = [access.report(count) for access, count in zip(case.accesses, counts, strict=True)]
    sums = {
        field: rounded_count(sum(getattr(report, field) for report in reports))
        for field in ("wavefronts", "ideal", "excess")
    }
    weighted = case.weighted_wavefronts(counts) / case.lanes.weight_unit
    row = replace(row, **sums, bytes=size, alignment_bytes=alignment, weighted_wavefronts=weighted)
    return row.resident(block_occupancy(case, size, alignment))


def _no_worse(row: Row, within: list[Row]) -> Row:
    """The row, or the best one of families `within` its own where time ended its search before that one."""
    usable = [other for other in within if other.wavefronts is not None]
    better = min(usable, key=lambda other: other.rank, default=row)
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
    """What the call gives, and its seconds."""
    start = time.perf_counter()
    answer = work()
    return answer, time.perf_counter() - start


def _is_best_of(everything: Result, families: tuple[str, ...]) -> bool:
    """Whether the best layout of all families is also the best of these.

    It must lie in them, and have the shortest formula there is (a product and a sum for each dimension but
    the fastest): else the search of these families alone may find an index of fewer operations.
    """
    layout = everything.layout
    if everything.status is not Status.OPTIMAL or layout is None or everything.family is None:
        return False
    shortest = 2 * max(0, sum(extent > 1 for extent in layout.shape) - 1) + bool(layout.swizzle)
    is_shortest = operations(element_expression(layout)) <= shortest
    return is_shortest and set(everything.family.split("+")) <= set(families)
