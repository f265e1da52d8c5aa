"""A layout that somebody already uses: where it puts every element."""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from layoutopt.accesses.lower import byte_table, bytes_formula, offset_formula
from layoutopt.engine.by_hardware import check_direct_loads, descriptors
from layoutopt.engine.case import Case
from layoutopt.engine.conflicts import Counts
from layoutopt.engine.referee import rounded_count
from layoutopt.engine.witness import place_text
from layoutopt.errors import ExpressionError, LayoutError, ProblemFileError
from layoutopt.expressions.grammar import Node
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.json_data import named_by
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import AccessReport, Result
from layoutopt.problems.types import Problem

AnyLayout = str | Layout | Result | npt.NDArray[np.integer[Any]]


def formula_in_use(problem: Problem) -> tuple[str, str] | None:
    """The field and the text of `layout.offset`, else `published.offset`; None where the file has neither."""
    if problem.layout.offset is not None:
        return "layout.offset", problem.layout.offset
    return ("published.offset", problem.published.offset) if problem.published else None


def node_in_use(problem: Problem) -> Node | None:
    """The same formula, read: element offset over x0, x1, ...

    Raises:
        ProblemFileError: it cannot be read.
    """
    formula = formula_in_use(problem)
    if formula is None:
        return None
    field, text = formula
    with named_by(field):
        return offset_formula(text, problem.tile)


class InUse(Struct, frozen=True, dict=True):
    """A layout under the accesses of a problem; it may be one that cannot hold the tile."""

    case: Case  # the tile and its accesses, with one width for each
    node: Node | None  # the formula; None of a layout that is none, such as a table
    table: IntArray  # byte offsets by row-major index, of packed elements those of their bytes
    array: int | None = None  # bytes that the source declares; None where that is not known

    @property
    def size(self) -> int:
        """Bytes to the end of the last element."""
        return self.case.size(self.table)

    @cached_property
    def counts(self) -> tuple[Counts, ...]:
        """What every warp instruction costs, access by access; OutOfTime where the time in force is over."""
        return self.case.count(self.table)

    @cached_property
    def reports(self) -> tuple[AccessReport, ...]:
        """The totals of each access."""
        reports = self.case.reports(self.counts)
        return reports if self.refused else self.case.described(reports, self.table)

    @property
    def excess(self) -> int | float:
        """Wavefronts above ideal, of all accesses."""
        return rounded_count(sum(report.excess for report in self.reports))

    @property
    def weighted_excess(self) -> float:
        """The same with the weights."""
        return self.case.weighted_excess(self.counts) / self.case.lanes.weight_unit

    @cached_property
    def refused(self) -> str:
        """Why the hardware by itself does not reach the tile; empty where it does."""
        try:
            descriptors(self.case.lowered, self.table)
            check_direct_loads(self.case.lanes, self.table)
        except LayoutError as error:
            return str(error)
        return ""

    @property
    def alignment(self) -> int:
        """Bytes of which the base must be a multiple."""
        by_itself = (r.descriptor.alignment_bytes for r in self.reports if r.descriptor is not None)
        return max([self.case.alignment(False), *by_itself])

    def at(self, element: int) -> str:
        """The coordinates of an element, by row-major index, as text."""
        return place_text(self.case.coordinates(element))


def in_use(case: Case, layout: AnyLayout | None) -> InUse:
    """A layout under the accesses of a case; None for the layout in use that the file names.

    Raises:
        ProblemFileError: the file names none, or the layout cannot be read.
    """
    field, array = "layout", None
    if layout is None:
        formula = formula_in_use(case.problem)
        if formula is None:
            raise ProblemFileError("", "no layout to check: no layout.offset and no published.offset")
        field, layout = formula
        if field == "published.offset" and case.problem.published is not None:
            array = case.problem.published.bytes
    if isinstance(layout, str):
        return InUse(case, *_node_and_table(case, layout, field), array)
    if isinstance(layout, Result):
        if layout.layout is None:
            raise ProblemFileError(field, f"a result without a layout: {layout.status}")
        layout = layout.layout
    if isinstance(layout, Layout):
        try:
            return InUse(case, None, case.table(layout))
        except LayoutError as error:
            raise ProblemFileError(field, str(error)) from None
    return InUse(case, None, _array_table(case, layout))


def _node_and_table(case: Case, text: str, field: str) -> tuple[Node, IntArray]:
    """A formula in a field of the file, read; and `InUse.table` of it."""
    tile = case.problem.tile
    try:
        node = offset_formula(text, tile)
        return node, byte_table(bytes_formula(node, tile), tile.storage)
    except ExpressionError as error:
        at = "" if error.position is None else f" (at {place_text(case.coordinates(error.position))})"
        raise ExpressionError(error.reason + at, error.position, field) from None


def _array_table(case: Case, layout: object) -> IntArray:
    """`InUse.table` of an integer array of byte offsets, one an element, in the shape of the tile."""
    tile, field = case.problem.tile, "layout"
    if not isinstance(layout, np.ndarray):
        raise ProblemFileError(field, f"expected an expression, a layout or a table, got {layout!r:.40}")
    if layout.shape != tile.shape:
        raise ProblemFileError(field, f"expected a table of shape {tile.shape}, got {layout.shape}")
    if not np.issubdtype(layout.dtype, np.integer):
        raise ProblemFileError(field, f"expected a table of integers, got {layout.dtype}")
    offsets = layout.astype(np.int64).reshape(-1, tile.packed)
    if (offsets != offsets[:, :1]).any():
        raise ProblemFileError(field, f"the {tile.packed} elements of a byte do not stay together")
    table: IntArray = offsets[:, 0]
    return table
