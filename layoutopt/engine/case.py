"""One problem on one device with one choice of widths, lowered once, able to count and check any layout.

A problem file may leave widths open, pack elements in bytes and have values known only at run time.
Whoever asks about layouts (solve, compare, check, explain, show, emit) wants none of that, and takes a case:

    problem file ── one width for each access ── bytes for packed elements ── lanes, or what they may choose
       asked                 problem                     lowered                    lanes, accesses

`cases` gives one for every choice of widths, `case_of` the one with widths that are known,
`case_of_result` the one with the lanes and widths that a result chose, `case_under` the one with the widths
that cost least under a layout that is given. Then, for any layout:

    case = case_of(problem, gpu)
    table = case.table(layout)        # byte offsets of `lowered`, by row-major index: a Layout or a formula
    case.check(table)                 # LayoutError where elements overlap, or an access is misaligned or torn
    counts = case.count(table)        # one a warp instruction, access by access, run-time values included
    reports = case.reports(counts)    # totals for people, under the widths that the file leaves open
    case.weighted_excess(counts)      # what comes first in the objective, in units of `lanes.weight_unit`

`case.lowered` is what is searched and `case.problem` what is shown: `as_elements` and `as_lowered` take a
layout from the one to the other, and `constrained` puts other constraints in the place of the file's (nothing
is traced again).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.alignment import base_alignment
from layoutopt.accesses.free_lanes import check_lanes
from layoutopt.accesses.instructions import check_instructions
from layoutopt.accesses.lower import (
    Lowered,
    assigned,
    byte_table,
    bytes_formula,
    chosen_widths,
    lowered,
    named_choices,
    width_choices,
    with_loops,
    with_widths,
)
from layoutopt.accesses.trace import Trace, trace
from layoutopt.accesses.view import View
from layoutopt.engine.by_hardware import check_direct_loads, descriptors
from layoutopt.engine.conflicts import Counts
from layoutopt.engine.referee import CountedAccess, check_table, rounded_count
from layoutopt.engine.run_time_values import choices
from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.expressions.grammar import Node
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import unhurried
from layoutopt.hardware.devices import Device
from layoutopt.index.index_code import IndexCode, index_code, least_instructions
from layoutopt.layout.families import families_of
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import AccessReport, Result, TensorMap
from layoutopt.problems.types import Constraints, Problem

_ROUNDING: Final = 1e-6  # of sums of weights and expectations


class Case(Struct, frozen=True):
    """See the module."""

    asked: Problem  # the problem as its file has it
    problem: Problem  # the same with one width for each access; its elements may share bytes
    # The same over whole bytes, with vectors along the last dimension: layouts are sought and counted for it
    lowered: Problem
    view: View | None  # how `lowered` has the coordinates, where that is another order; else None
    device: Device
    # What the accesses of `lowered` touch; where lanes choose, in an iteration for each value
    lanes: Trace
    # The same, each able to count; where lanes choose, over all their values
    accesses: tuple[CountedAccess, ...]

    # Layouts -----------------------------------------------------------------------------------

    def table(self, layout: Layout | Node) -> IntArray:
        """Byte offsets by row-major index, int64, of the elements of `lowered`.

        Args:
            layout: a layout of `problem` or what `as_bytes` makes of it, or its element offsets as a formula.

        Raises:
            ExpressionError: the formula cannot be evaluated.
            LayoutError: the layout is made for another tile, or tears elements that share a byte.
        """
        return self.seen(self.own_table(layout))

    def seen(self, own: IntArray) -> IntArray:
        """A table over the elements of the problem's own coordinates, over those of `lowered`."""
        return own if self.view is None else own[self.view.tile_index]

    def own_table(self, layout: Layout | Node) -> IntArray:
        """`table` of the elements, or the bytes that hold them, in the problem's own coordinates."""
        if not isinstance(layout, Layout):
            return byte_table(layout, self.problem.tile)
        tile = self.problem.tile.storage
        made_for = (*layout.shape[:-1], layout.shape[-1] // layout.packed), layout.element_bytes
        if made_for != (tile.shape, tile.element_bytes):
            raise LayoutError(f"made for a tile of shape {layout.shape}, not {self.problem.tile.shape}")
        table: IntArray = layout.table()[..., :: layout.packed].ravel()
        return table

    def as_elements(self, layout: Layout) -> Layout:
        """A layout of `lowered` as one of `problem`."""
        if self.view is not None:
            return self.view.tile_layout(layout)
        return replace(layout, shape=self.problem.tile.shape, packed=self.problem.tile.packed)

    def as_bytes(self, layout: Layout) -> Layout:
        """A layout of `problem` over the bytes that elements share, in the problem's own coordinates."""
        return replace(layout, shape=self.problem.tile.storage.shape, packed=1)

    def as_lowered(self, layout: Layout) -> Layout:
        """A layout of `problem` as one of `lowered`; a table where no digits say it."""
        return self.as_bytes(layout) if self.view is None else self.view.inverse.tile_layout(layout)

    def size(self, table: IntArray) -> int:
        """Bytes from the base to the end of the last element."""
        return int(table.max()) + self.lowered.tile.element_bytes

    def check(self, table: IntArray) -> None:
        """Check that the tile fits and that every access is served, whatever lanes choose.

        Raises:
            LayoutError: elements overlap, an element or an access is misaligned, a vector is torn, or the
                hardware by itself cannot reach the tile.
        """
        descriptors(self.lowered, table)
        self.check_lanes(table)

    def check_lanes(self, table: IntArray) -> None:
        """`check` of all but the accesses that the hardware executes by itself."""
        tile = self.lowered.tile
        check_table(table, tile.element_bytes, self.lanes, self.problem.tile.element_alignment)
        check_direct_loads(self.lanes, table)

    def index_code(self, layout: Layout | Node) -> tuple[IndexCode, ...]:
        """The index code of every access of `lowered`, with the instructions that it takes.

        Raises:
            ExpressionError: the formula cannot be evaluated.
            LayoutError: as for `table`.
        """
        table = self.table(layout)
        if isinstance(layout, Layout):
            offset = offset_expression(self.as_bytes(layout))
        else:
            offset = bytes_formula(layout, self.problem.tile)
        if self.view is None:
            return index_code(with_loops(self.lowered), self.lanes, offset, table)
        with unhurried():  # code is over the problem's own coordinates, as its accesses are traced there
            own = trace(with_loops(self.problem), self.device)
        return index_code(with_loops(self.problem), own, offset, self.own_table(layout))

    def index_cost(self, layout: Layout | Node) -> int:
        """Integer instructions of the index code of all accesses; arguments, errors as for `index_code`."""
        return sum(code.instructions.total for code in self.index_code(layout))

    @property
    def least_instructions(self) -> int:
        """What the index code of no layout undercuts."""
        return least_instructions(with_loops(self.lowered), self.lanes)

    def alignment(self, swizzled: bool) -> int:
        """Bytes of which the base must be a multiple: see `layoutopt.accesses.alignment.base_alignment`."""
        return base_alignment(self.lanes, swizzled=swizzled)

    def needed_alignment(self, layout: Layout, reports: Iterable[AccessReport]) -> int:
        """The same of a layout, with what the hardware needs where it reaches the tile by itself."""
        by_itself = (r.descriptor.alignment_bytes for r in reports if r.descriptor is not None)
        return max([self.alignment(bool(layout.swizzle)), *by_itself])

    # Counts ------------------------------------------------------------------------------------

    def count(self, table: IntArray) -> tuple[Counts, ...]:
        """What every warp instruction costs, access by access; base offsets may be added to the table.

        Raises:
            OutOfTime: lanes choose, in so many ways that the time was over before the end.
        """
        return tuple(access.count(table) for access in self.accesses)

    def reports(self, counts: Sequence[Counts]) -> tuple[AccessReport, ...]:
        """The totals of each access, with its width where the file leaves it open."""
        totals = (access.report(count) for access, count in zip(self.accesses, counts, strict=True))
        return named_choices(totals, self.asked, self.problem)

    def measure(self, layout: Layout | Node, base_bytes: int = 0) -> tuple[AccessReport, ...]:
        """The totals of each access under a layout that begins at byte `base_bytes`."""
        table = self.table(layout)
        return self.described(self.reports(self.count(table + base_bytes)), table)

    def described(self, reports: Sequence[AccessReport], table: IntArray) -> tuple[AccessReport, ...]:
        """Reports with how the hardware reaches the tile by itself, under byte offsets that it can reach."""
        found, packed = descriptors(self.lowered, table), self.problem.tile.packed
        for name, reached in found.items():
            if packed > 1 and isinstance(reached, TensorMap):  # the box in elements
                box = (*reached.box[:-1], reached.box[-1] * packed)
                found[name] = replace(reached, box=box)
        return tuple(replace(r, descriptor=found.get(r.name, r.descriptor)) for r in reports)

    def weighted_excess(self, counts: Sequence[Counts]) -> float:
        """The sum over all instructions, in units of `lanes.weight_unit`; whole unless it is expected."""
        return rounded_count(self._weighted([count.excess for count in counts]))

    def weighted_wavefronts(self, counts: Sequence[Counts]) -> float:
        """The same for wavefronts."""
        return rounded_count(self._weighted([count.wavefronts for count in counts]))

    def _weighted(self, costs: Sequence[IntArray]) -> float:
        return sum(float((c * a.weight).sum()) for c, a in zip(costs, self.accesses, strict=True))

    # Accesses ----------------------------------------------------------------------------------

    @property
    def chooses(self) -> bool:
        """Whether some lanes choose at run time."""
        return any(access.any_is is not None for access in self.accesses)

    @property
    def certain(self) -> Trace:
        """The lanes; those that choose have weight 0, so that they bind vectors and cost nothing."""
        if not self.chooses:
            return self.lanes
        accesses = (
            replace(lanes, weight=np.zeros_like(lanes.weight)) if a.any_is is not None else lanes
            for lanes, a in zip(self.lanes.accesses, self.accesses, strict=True)
        )
        return replace(self.lanes, accesses=tuple(accesses))

    @property
    def has_weights(self) -> bool:
        """Whether the weighted excess is another number than the excess."""
        return any((access.weight != self.lanes.weight_unit).any() for access in self.accesses)

    def in_weights(self, total: float) -> float:
        """A sum in units of `lanes.weight_unit` as the file's weights give it."""
        unit = self.lanes.weight_unit
        return total // unit if total % unit == 0 else total / unit

    @property
    def widths(self) -> dict[str, int]:
        """Bytes of every access whose width the file leaves open, by name."""
        taken = zip(self.asked.accesses, self.problem.accesses, strict=True)
        return {a.name: b.single_width or 0 for a, b in taken if isinstance(a.bytes, tuple)}

    def coordinates(self, element: int) -> tuple[int, ...]:
        """Of an element of `lowered`, by row-major index; of the first in it where elements share bytes."""
        tile = self.problem.tile
        element = element if self.view is None else int(self.view.tile_index[element])
        return tuple(int(c) for c in np.unravel_index(element * tile.packed, tile.shape))

    # Others like it ----------------------------------------------------------------------------

    def constrained(self, layout: Constraints) -> Self:
        """The same accesses under other constraints on the layout."""
        asked = replace(self.asked, layout=layout)
        problem = replace(self.problem, layout=layout)
        return replace(self, asked=asked, problem=problem, lowered=lowered(problem).lowered)


def cases(problem: Problem, device: Device) -> Iterator[Case]:
    """The problem under every choice of its widths, the widest first.

    Raises:
        OutOfTime: the time was over before the end.
        ProblemFileError: the problem contradicts itself, or the device has no rule for an access.
    """
    for option in width_choices(problem):
        yield _traced(problem, lowered(option), device)


def case_of(problem: Problem, device: Device, widths: Mapping[str, int] | None = None) -> Case:
    """The problem with widths by access name, the widest where left out.

    Raises:
        OutOfTime: the time was over before the end.
        ProblemFileError: as for `cases`, or a width is not one that the file allows.
    """
    return _traced(problem, lowered(with_widths(problem, widths or {})), device)


def case_of_result(problem: Problem, device: Device, result: Result) -> Case:
    """The problem with the lanes and the widths that a result of it chose; as for `case_of`."""
    return case_of(assigned(problem, result), device, chosen_widths(problem, result))


def case_under(problem: Problem, device: Device, layout: Layout | Node) -> Case:
    """The problem with the widths that cost least under a layout that is given.

    Raises:
        ExpressionError: the formula cannot be evaluated.
        LayoutError: the layout serves the accesses with no choice of widths.
        ProblemFileError: as for `cases`.
    """
    best, least = None, math.inf
    for case in cases(problem, device):
        table = case.table(layout)
        try:
            case.check(table)
        except LayoutError as error:
            wrong = error
            continue
        wavefronts = case.weighted_wavefronts(case.count(table)) / case.lanes.weight_unit
        if wavefronts < least:
            best, least = case, wavefronts
    if best is None:
        raise wrong
    return best


_LATEST: Final[list[Case]] = []  # one at most


def _traced(asked: Problem, option: Lowered, device: Device) -> Case:
    """The case; that of the latest problem is kept, as whoever has an answer asks about it at once.

    `option`: the problem as `asked` has it, under one choice of its widths.
    """
    for known in _LATEST:
        if (known.asked, known.problem, known.device) == (asked, option.problem, device):
            return known
    if option.lowered is not option.problem:  # checks that the accesses start at whole bytes and vectors
        trace(with_loops(option.problem), device)
    lanes = trace(with_loops(option.lowered), device)
    chosen = choices(option.lowered, lanes, device)
    accesses = tuple(chosen.get(access.name) or CountedAccess(access) for access in lanes.accesses)
    _LATEST[:] = [Case(asked, *option, device, lanes, accesses)]
    return _LATEST[0]


def check_claims(problem: Problem, gpu: Device, result: Result) -> None:
    """Check that a result, read from a file, is one of this problem, and that its counts hold.

    Raises:
        ProblemFileError: it is of another problem or target, its layout does not serve the accesses or is not
            one that the problem allows, or what it says of one is not what the conflict engine counts.
    """
    layout = result.layout
    if result.problem != problem.name:
        raise ProblemFileError("problem", f"the result is of {result.problem!r}, not of {problem.name!r}")
    if result.target != gpu.name:
        raise ProblemFileError("target", f"the result is for {result.target!r}, not for {gpu.name!r}")
    if layout is None:
        return
    if [a.name for a in problem.accesses] != [a.name for a in result.accesses]:
        raise ProblemFileError("accesses", "are not those of the problem")
    chosen = assigned(problem, result)  # with the result's lanes, where the problem leaves them free
    if chosen is not problem:
        check_lanes(problem, chosen, gpu)
        check_instructions(problem, chosen, gpu)
    case = case_of(chosen, gpu, {a.name: a.bytes for a in result.accesses if a.bytes is not None})
    try:
        table = case.table(layout)
        case.check(table)
    except LayoutError as error:
        raise ProblemFileError("layout", str(error)) from None
    _check_allowed(problem, result, layout)
    counts = case.count(table)
    weighted = case.weighted_excess(counts) / case.lanes.weight_unit
    stated = result.weighted_excess if result.weighted_excess is not None else result.excess
    if stated is None or abs(weighted - stated) > _ROUNDING:
        raise ProblemFileError("weighted_excess", f"the layout gives {weighted:g}, the result says {stated}")
    reports = named_choices(case.described(case.reports(counts), table), problem, chosen)
    for k, (given, counted) in enumerate(zip(result.accesses, reports, strict=True)):
        if given.descriptor != counted.descriptor:
            raise ProblemFileError(f"accesses[{k}].descriptor", "is not how the hardware reaches the layout")
        if given != counted:
            raise ProblemFileError(
                f"accesses[{k}]",
                f"the layout gives {counted.wavefronts} wavefronts, {counted.ideal} of them ideal, and "
                f"{counted.bank_conflicts} bank conflicts for op {counted.op!r}; the result says otherwise",
            )
    # What the hardware by itself reads may have been given more than this layout needs.
    needed, given_bytes = case.needed_alignment(layout, reports), result.alignment_bytes or 0
    if given_bytes < needed or (given_bytes > needed and not problem.is_dictated):
        wrong = f"the counts need a base aligned to {needed}, not {result.alignment_bytes}"
        raise ProblemFileError("alignment_bytes", wrong)


def _check_allowed(problem: Problem, result: Result, layout: Layout) -> None:
    """Check that a layout is one of those that the problem allows: ProblemFileError."""
    limits = problem.layout
    for field, limit in (("bytes", "max_bytes"), ("alignment_bytes", "alignment_bytes")):
        most, given = getattr(limits, limit), getattr(result, field) or 0
        if most is not None and given > most:
            raise ProblemFileError(field, f"layout.{limit} of the problem is {most}, the result has {given}")
    if problem.is_dictated:  # by the hardware: families, orders and pitches are those of its modes
        return
    used = {*families_of(layout), *(result.family or "none").split("+")} - {"none"}
    allowed = {*(limits.families or used)}
    if "matrix" in allowed:  # it flips bits, which `families_of` calls xor
        allowed.add("xor")
    if limits.order is not None:
        allowed.add("order")
    if other := sorted(used - allowed):
        given, has = ", ".join(limits.families or ()), ", ".join(other)
        wrong = f"layout.families of the problem allows {given}; the result has {has}"
        raise ProblemFileError("family", wrong)
    digits = [digit for digit in layout.digits if digit.size > 1]
    order = [dim for dim in limits.order or () if any(digit.dim == dim for digit in digits)]
    if limits.order is not None and (layout.lookup or order != [digit.dim for digit in digits]):
        raise ProblemFileError("layout", f"layout.order of the problem is {list(limits.order)}, not its own")
    pitch = limits.pitch_multiple_bytes or 1
    step = pitch // math.gcd(pitch, layout.element_bytes)  # elements
    no_pitches = bool(layout.lookup or layout.interval[1])  # a table, or a pad that is not of rows
    # Strides of all digits but the last, which runs along a row, are pitches.
    if step > 1 and (no_pitches or any(digit.stride % step for digit in digits[:-1])):
        required = f"layout.pitch_multiple_bytes of the problem is {pitch}"
        raise ProblemFileError("layout", f"{required}, of which its pitches, in bytes, are no multiples")
