"""A layout that somebody already uses: where it puts every element, and what is wrong with it."""

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.lower import byte_table, bytes_formula, offset_formula
from layoutopt.engine.by_hardware import check_direct_loads, descriptors
from layoutopt.engine.case import Case
from layoutopt.engine.conflicts import Counts
from layoutopt.engine.referee import rounded_count
from layoutopt.engine.witness import Instruction, place_text, worst_instruction
from layoutopt.errors import ExpressionError, LayoutError, ProblemFileError
from layoutopt.expressions.grammar import Const, Node
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current
from layoutopt.ground.json_data import named_by
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import AccessReport, Result
from layoutopt.problems.same_layout import room_bytes
from layoutopt.problems.types import Block, P, Problem, constrained
from layoutopt.study.edits import changed_at, declared_bytes, operands

_QUICK: Final = 1 << 17  # elements up to which offsets are computed whatever the clock says
_MOST_SHOWN: Final = 8  # lanes of a conflict, one a line
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


def without_formulas(problem: P) -> P:
    """The problem for a search, which takes none that `layout.offset` fixes; of a block, of each tile."""
    if isinstance(problem, Block):
        tiles = (replace(tile, layout=replace(tile.layout, offset=None)) for tile in problem.tiles)
        return replace(problem, tiles=tuple(tiles))
    return constrained(problem, offset=None)


class InUse(Struct, frozen=True, dict=True):
    """A layout under the accesses of a problem; it may be one that cannot hold the tile."""

    case: Case  # the tile and its accesses, with one width for each
    node: Node | None  # the formula; None of a layout that is none, such as a table
    table: IntArray  # byte offsets of the elements of `case.lowered`, by row-major index
    array_bytes: int | None = None  # that the source declares; None where that is not known

    @property
    def tile_table(self) -> IntArray:
        """The same in the tile's own coordinates, of packed elements those of their bytes."""
        if self.case.view is None:
            return self.table
        own = np.empty_like(self.table)
        own[self.case.view.tile_index] = self.table
        return own

    @property
    def size(self) -> int:
        """Bytes to the end of the last element."""
        return self.case.size(self.table)

    @property
    def declared(self) -> int:
        """Bytes of the array: as the source has it, else with every pitch in full where it is of pitches."""
        of_formula = declared_bytes(self.node, self.case.problem.tile) if self.node is not None else 0
        return max(self.array_bytes if self.array_bytes is not None else of_formula, self.size)

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
    """A layout, as for `layoutopt.check`, under the accesses of a case; None for that which the file names.

    Raises:
        ProblemFileError: the file names none, or the layout cannot be read.
    """
    # What is read is in the tile's own coordinates; `case.seen` has it in those of `case.lowered`.
    field, declared = "layout", None
    if layout is None:
        formula = formula_in_use(case.problem)
        if formula is None:
            raise ProblemFileError("", "no layout to check: no layout.offset and no published.offset")
        field, layout = formula
        if field == "published.offset" and case.problem.published is not None:
            declared = case.problem.published.bytes
    if isinstance(layout, str):
        node, tile_table = _node_and_table(case, layout, field)
        return InUse(case, node, case.seen(tile_table), array_bytes=declared)
    if isinstance(layout, Result):
        if layout.layout is None:
            raise ProblemFileError(field, f"a result without a layout: {layout.status}")
        layout = layout.layout
    if isinstance(layout, Layout):
        try:
            table = case.table(layout)
        except LayoutError as error:
            raise ProblemFileError(field, str(error)) from None
        # With every pitch in full, unless a swizzle reaches beyond.
        return InUse(case, None, table, array_bytes=max(layout.declared_bytes, case.size(table)))
    return InUse(case, None, case.seen(_array_table(case, layout)))


def _node_and_table(case: Case, text: str, field: str) -> tuple[Node, IntArray]:
    """A formula in a field of the file, read; and `InUse.tile_table` of it."""
    tile = case.problem.tile
    try:
        node = offset_formula(text, tile)
        return node, byte_table(bytes_formula(node, tile), tile.storage)
    except ExpressionError as error:
        place = np.unravel_index((error.position or 0) * tile.packed, tile.shape)
        at = "" if error.position is None else f" (at {place_text(tuple(map(int, place)))})"
        raise ExpressionError(error.reason + at, error.position, field) from None


def _array_table(case: Case, layout: object) -> IntArray:
    """`InUse.tile_table` of an integer array of byte offsets, one an element, in the shape of the tile."""
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


# What is wrong with it ---------------------------------------------------------------------------


class Finding(Struct, frozen=True):
    """Something worth knowing about the layout."""

    # Conflict, overlap, misaligned, torn, out_of_bounds, unreached, unused_bytes, too_large, alignment, fix
    # or keep
    kind: str
    message: str  # one or more lines for people
    access: str | None = None  # the access concerned, if one is
    details: dict[str, Any] = {}  # the same for programs


def errors_of(used: InUse) -> Iterator[Finding]:
    """Why the layout cannot hold the tile: shared bytes, torn vectors, alignment, offsets out of bounds."""
    yield from _element_errors(used)
    for access in range(len(used.case.accesses)):
        yield from _vector_errors(used, access)
    allowed, needed = used.case.problem.layout.alignment_bytes, used.alignment
    if allowed is not None and allowed < needed:
        text = f"the base needs {needed} bytes of alignment, layout.alignment_bytes is {allowed}"
        yield Finding("alignment", text, details={"needed": needed, "given": allowed})
    yield from _bound_errors(used)
    if used.refused:
        yield Finding("unreached", used.refused)


def _element_errors(used: InUse) -> Iterator[Finding]:
    """Elements that overlap, that are not aligned as their type is, or whose shared byte is torn."""
    case, byte_offsets = used.case, used.table
    by_offset = np.argsort(byte_offsets, kind="stable")
    overlapping = np.flatnonzero(np.diff(byte_offsets[by_offset]) < case.lowered.tile.element_bytes)
    if len(overlapping):
        first = int(overlapping[0])
        a, b = int(by_offset[first]), int(by_offset[first + 1])
        byte, both = int(byte_offsets[b]), [case.coordinates(a), case.coordinates(b)]
        count = len(overlapping) * case.problem.tile.packed  # elements that share a byte have one offset
        text = f"{count} elements overlap: {used.at(a)} and {used.at(b)} both cover byte {byte}"
        details: dict[str, object] = {"elements": count, "first": both, "byte_offset": byte}
        yield Finding("overlap", text, details=details)
    alignment = case.problem.tile.element_alignment
    misaligned = np.flatnonzero(byte_offsets % alignment)
    if len(misaligned):
        first = int(misaligned[0])
        where = f"{used.at(first)} starts at byte {int(byte_offsets[first])}"
        text = f"{len(misaligned)} elements do not start at a multiple of {alignment}: {where}"
        details = {"elements": len(misaligned), "first": case.coordinates(first), "alignment": alignment}
        yield Finding("misaligned", text, details=details)
    if used.node is not None:
        try:  # this asks for the offset of every element, where several share a byte
            case.table(used.node)
        except LayoutError as error:
            yield Finding("torn", str(error))


def _vector_errors(used: InUse, number: int) -> Iterator[Finding]:
    """Vectors of an access that are misaligned, or torn (their elements do not follow one another)."""
    access, element_bytes = used.case.lanes.accesses[number], used.case.lowered.tile.element_bytes
    width, offsets = access.operation.width_bytes, used.table[access.starts]
    torn = (np.diff(used.table[access.vectors]) != element_bytes).any(axis=1)
    for kind, bad in (("misaligned", offsets % width != 0), ("torn", torn)):
        if not bad.any():
            continue
        bad_lanes = access.active & np.isin(access.element, access.starts[bad])
        count, (row, lane) = int(bad_lanes.sum()), (int(v) for v in np.argwhere(bad_lanes)[0])
        element = int(access.element[row, lane])
        byte = int(used.table[element])
        what = f"starts at byte {byte}" if kind == "misaligned" else "is not contiguous"
        noun = "vectors" if access.width_elements > 1 else "accesses"
        where = f"{Instruction(used.case, number, row).text}, lane {lane}, {used.at(element)}"
        details = {"vectors": count, "instruction": row, "lane": lane, "byte_offset": byte}
        text = f"{count} {noun} of {width} bytes are {kind}: {where} {what}"
        yield Finding(kind, text, access.name, details)


def _bound_errors(used: InUse) -> Iterator[Finding]:
    """Elements before the base, past the limit or past the declared array."""
    low, high = int(used.table.argmin()), int(used.table.argmax())
    if used.table[low] < 0:
        yield Finding("out_of_bounds", f"{used.at(low)} lies at byte {int(used.table[low])}")
    limits = ("max_bytes", used.case.problem.layout.max_bytes), ("the declared array", used.array_bytes)
    for what, limit in limits:
        if limit is not None and used.size > limit:
            text = f"{used.at(high)} ends at byte {used.size}; {what} holds {limit}"
            yield Finding("out_of_bounds", text, details={"bytes": used.size, "limit": limit})


# What is worth knowing ---------------------------------------------------------------------------


def remarks_on(used: InUse) -> Iterator[Finding]:
    """Conflicts, waste, and what may be done otherwise, as far as the time goes."""
    for k, access in enumerate(used.case.accesses):
        if access.any_is is None:
            yield from _worst_conflict(used, k)
    yield from _space(used)
    yield from _address_form(used)


def _worst_conflict(used: InUse, access: int) -> Iterator[Finding]:
    """The instruction with the most excess, and in it the worst phase, lane by lane."""
    excess, row = worst_instruction(used.counts[access])
    if excess <= 0:
        return
    instruction = Instruction(used.case, access, row)
    address, phase = instruction.addresses(used.table), instruction.worst_phase(used.table)
    meeting, lines = [], []
    for touch in phase.touches:
        lane, byte, at = touch.lane, address[touch.lane], instruction.coordinates(touch.lane)
        meeting.append({"lane": lane, "coordinates": at, "byte_offset": byte, "word": touch.word})
        lines.append(f"    lane {lane:>2}  {place_text(at):<12} byte {byte:>6}  word {touch.word:>5}")
    if len(lines) > _MOST_SHOWN:
        lines = [*lines[: _MOST_SHOWN - 1], f"    and {len(lines) - _MOST_SHOWN + 1} more lanes"]
    words = len({touch.word for touch in phase.touches})
    meet = f"{words} words meet in bank {phase.bank}"
    if words == 1 < len(phase.passes):
        meet = f"{len(phase.passes)} of them touch one word, and are served one after the other"
    taken = phase.taken(instruction.lanes.rule, instruction.lanes.operation)
    text = f"{instruction.text}: {len(phase.lanes)} lanes are served together; {meet}, {taken}"
    figures = {"lanes": phase.lanes, "wavefronts": phase.wavefronts, "bank": phase.bank}
    details = {"instruction": row, **figures, "meeting": meeting}
    yield Finding("conflict", "\n".join([text, *lines]), access=instruction.lanes.name, details=details)


def _space(used: InUse) -> Iterator[Finding]:
    """Bytes that hold no element; and more bytes than a block of this GPU has."""
    problem, size = used.case.problem, used.size
    unused = size - problem.tile.bytes
    if unused > 0:
        text = f"{unused:,} of {size:,} bytes ({100 * unused / size:.0f} %) hold no element"
        yield Finding("unused_bytes", text, details={"bytes": unused})
    room = room_bytes(problem, used.case.device)
    if room is not None and size > room:
        text = f"{size:,} bytes; a block of {problem.target} has {room:,} for it"
        yield Finding("too_large", text, details={"bytes": size, "limit": room})


def _address_form(used: InUse) -> Iterator[Finding]:
    """The larger alignment of the base where a kernel XORs addresses (base + offset), not offsets.

    It is a multiple of every bit of the offset that any XOR of the formula changes. Bits of an element's
    number are bits of its address only where its bytes are a power of two.
    """
    element_bytes = used.case.lowered.tile.element_bytes
    if used.node is None or used.refused or element_bytes & (element_bytes - 1):
        return
    flipped_bits = 0
    # Without the second operand of an XOR, the bits that it changes are as they were.
    for path in (path for path, symbol, _ in operands(used.node) if symbol == "^" and path[-1] == 1):
        if used.case.problem.tile.elements > _QUICK and current().spent:
            return
        with suppress(LayoutError):
            without = used.case.table(changed_at(used.node, path, Const(0)))
            flipped_bits |= int(np.bitwise_or.reduce(without ^ used.table))
    of_addresses, of_offsets = 1 << max(flipped_bits, 0).bit_length(), used.alignment
    if of_addresses > of_offsets:
        needs = f"the base needs {of_offsets} bytes of alignment"
        text = f"{needs}; {of_addresses} if the XOR is applied to addresses"
        yield Finding("alignment", text, details={"offset_form": of_offsets, "address_form": of_addresses})
