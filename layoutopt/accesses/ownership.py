"""Who moves which elements, as arrays: from these the instructions of an access are chosen and written.

A set of elements of one thread is a vector if a layout makes them consecutive. Which way it runs is a list of
*steps*, the distance to the second element, to the third and fourth, and so on, each a power of two in one
dimension. Instructions deliver what lies at a lane's address to that lane, or, of matrices, to several.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

from layoutopt.accesses.trace import expression_ranges
from layoutopt.accesses.view import Step
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.fit import fit_threads, guard
from layoutopt.expressions.grammar import MAX_ENTRIES, Const, Node, Op, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.hardware.operations import Operation

WIDTHS: Final = (16, 8, 4, 2, 1)  # bytes of an access, widest first
ROW_BYTES: Final = 16  # of a matrix's row, and of the widest vector
WORD_BYTES: Final = 4  # that each lane has of a matrix
ROWS: Final = 8  # of a matrix
TR_LANES: Final = 16  # lanes between which AMD's ds_read_b64_tr_b16, b8 and b4 exchange elements
# Looking for a formula takes time that grows with the table: seconds for so many entries.
_MAX_FITTED: Final = 1 << 18


class Ownership(Struct, frozen=True):
    """The elements of each thread."""

    shape: tuple[int, ...]  # of the tile
    # int64, shape (threads, count): row-major indices, each element of a thread once, in the order in which
    # it has them; rows are filled with -1. Threads may be listed again, round after round
    element: IntArray

    def last_dim_steps(self, count: int) -> list[Step]:
        """The steps of a vector of `count` elements along the last dimension: 1, 2, 4, ..."""
        return [Step(len(self.shape) - 1, 1 << k) for k in range(count.bit_length() - 1)]

    def is_closed(self, step: Step) -> bool:
        """Whether each thread's elements pair up: to each it has the one a step after, or before, too."""
        if self.shape[step.dim] % (2 * step.distance):
            return False
        stride = step.distance * self._stride(step.dim)
        to_partner = np.where(self._in_second_half(step, self.element), -stride, stride)
        partner = np.where(self.element >= 0, self.element + to_partner, -1)
        return bool((np.sort(partner, axis=1) == np.sort(self.element, axis=1)).all())

    def order_distance(self, step: Step) -> int:
        """How many places a step leads on in a thread's order: from its first element to that one's partner.

        The thread is the first that has elements; `is_closed(step)`.
        """
        elements = self.element[int((self.element[:, 0] >= 0).argmax())]
        stride = step.distance * self._stride(step.dim)
        to_partner = -stride if self._in_second_half(step, elements[:1])[0] else stride
        return int(np.flatnonzero(elements == elements[0] + to_partner)[0])

    def vector_starts(self, steps: Sequence[Step]) -> IntArray:
        """The first element of each vector of these steps: shape (threads, vectors), order as `element`."""
        return distinct_in_order(self._vector_start(steps, self.element))

    def last_dim_starts(self, count: int) -> IntArray | None:
        """The first elements of vectors of `count` along the last dimension; None where not all are whole.

        Shape (threads, vectors): in the thread's order where each vector's elements follow one another in
        it, else rising.
        """
        steps = self.last_dim_steps(count)
        if count & (count - 1) or not all(map(self.is_closed, steps)):
            return None
        starts = self.vector_starts(steps)
        vectors = (starts[..., None] + np.arange(count)).reshape(len(starts), -1)
        return starts if np.array_equal(vectors, self.element) else starts[:, np.argsort(starts[0])]

    def matrix_row_starts(
        self, operation: Operation, bits: int, lanes: int, row: Sequence[Step], word: Sequence[Step]
    ) -> IntArray | None:
        """The elements whose addresses lanes give, so that instructions hand every thread its own elements.

        Args:
            operation: of the instructions: matrices, or AMD's transposing loads.
            bits: of an element.
            lanes: of a warp.
            row: steps from the element at an address to those behind it.
            word: steps between the elements that one register holds.

        Returns:
            int64, shape (threads, instructions), row-major indices; lanes that give no address repeat those
            of the lanes that do. None where instructions deliver other elements, or in another order.
        """
        source_lane, position = register_sources(operation, bits, lanes)  # of each lane's values
        values = position.shape[1]  # that one instruction moves for a lane
        # The elements of each thread in the order of its registers: words in its order, each word's together.
        held = self.vector_starts(word)[..., None] + vector_offsets(word, self.shape)
        if (self.element < 0).any() or len(held) % lanes or held[0].size % values:
            return None
        instructions = held[0].size // values
        # Shape (warps, instructions, lanes, values)
        held = held.reshape(-1, lanes, instructions, values).swapaxes(1, 2)
        # In memory, an element lies in the row of its vector, at the position that the steps to it count.
        row_start, position_held = self._vector_start(row, held), np.zeros_like(held)
        for k, step in enumerate(row):
            position_held |= self._in_second_half(step, held) << k
        if (position_held != position).any():
            return None
        # The lane at whose address a value is read has to give the address of its row. Of the several values
        # of one lane's row the last writes that row here; then all are compared with it.
        starts = np.full(held.shape[:3], -1, np.int64)
        starts[..., source_lane] = row_start
        if (starts[..., source_lane] != row_start).any():
            return None
        starts = starts[..., np.arange(lanes) % operation.address_lanes(lanes)]
        return starts.swapaxes(1, 2).reshape(len(self.element), instructions)

    def _stride(self, dim: int) -> int:
        return math.prod(self.shape[dim + 1 :])

    def _in_second_half(self, step: Step, element: IntArray) -> BoolArray:
        """Whether each element is the second of the pair that a step makes; undefined for -1."""
        return (element // self._stride(step.dim) % self.shape[step.dim] & step.distance) > 0

    def _vector_start(self, steps: Sequence[Step], element: IntArray) -> IntArray:
        """The first element of the vector of these steps that holds each element; -1 stays."""
        for step in steps:
            second = self._in_second_half(step, element) & (element >= 0)
            element = element - second * step.distance * self._stride(step.dim)
        return element


def distinct_in_order(values: IntArray) -> IntArray:
    """The distinct values of each row by first occurrence, -1 left out: [5, -1, 3, 5] -> [5, 3].

    Rows are filled with -1 to the length of the longest.
    """
    # In stable order of the values, all but the first of equal ones are repetitions.
    order = np.argsort(values, axis=1, kind="stable")
    rising = np.take_along_axis(values, order, axis=1)
    repeated = np.zeros(values.shape, bool)
    repeated[:, 1:] = rising[:, 1:] == rising[:, :-1]
    left_out = np.empty_like(repeated)
    np.put_along_axis(left_out, order, repeated | (rising < 0), axis=1)
    kept_first = np.argsort(left_out, axis=1, kind="stable")
    distinct = np.take_along_axis(np.where(left_out, -1, values), kept_first, axis=1)
    return distinct[:, : int((~left_out).sum(axis=1).max(initial=0))]


def vector_offsets(steps: Sequence[Step], shape: Sequence[int]) -> IntArray:
    """Row-major offset of each element of a vector from its first: shape (2**len(steps),)."""
    offsets = np.zeros(1, np.int64)
    for dim, distance in steps:
        offsets = np.concatenate([offsets, offsets + distance * math.prod(shape[dim + 1 :])])
    return offsets


def register_sources(operation: Operation, bits: int, lanes: int) -> tuple[IntArray, IntArray]:
    """Where each register value comes from: the lane whose address it is read at, and its position there.

    A row of an 8x8 matrix is 16 bytes; lane 8 * j + r gives the address of row r of matrix j. Lane l receives
    bytes 4 * (l % 4) .. of row l // 4, or with .trans elements l // 4 of rows 2 * (l % 4) and the next (PTX
    ISA, ldmatrix and stmatrix). Of AMD's ds_read_b64_tr_b16, b8 and b4, 16 lanes address as many rows of 16
    elements as 64 bits hold elements, 64 bits each, and lane l receives column l % 16 (AMD CDNA4 ISA, 11.4;
    HIP documentation, CDNA4 MFMA transpose load intrinsics; b16: Triton, chooseDsReadTrLayout; b8:
    HipKittens' loads of columns).

    Returns:
        (source lane, position in elements of `bits` bits from its address), both int64 of shape (lanes,
        values); lanes are those of a warp.
    """
    values = 8 * operation.lane_bytes // bits
    lane, value = np.broadcast_arrays(*np.indices((lanes, values), sparse=True))
    if operation.kind == "load.tr":  # value v is in row v, of which each lane addresses `values` elements
        lanes_of_row, column = TR_LANES // values, lane % TR_LANES
        return lane - column + lanes_of_row * value + column // values, column % values
    if not operation.matrices:
        return lane, value
    values_per_matrix = values // operation.matrices
    matrix, in_word = np.divmod(value, values_per_matrix)
    across = values_per_matrix * (lane % 4) + in_word  # the place along what four lanes hold together
    row, position = (across, lane // 4) if operation.transposed else (lane // 4, across)
    return ROWS * matrix + row, position


def element_destinations(operation: Operation, bits: int, lanes: int) -> tuple[IntArray, IntArray]:
    """The inverse of `register_sources`: the lane, and its value, that each element at an address goes to.

    Returns:
        (destination lane, value), both int64 of shape (lanes, elements at an address); lanes without an
        address of their own repeat the others.
    """
    source_lane, position = register_sources(operation, bits, lanes)
    lane, value = np.indices(source_lane.shape)
    destination = np.zeros((2, lanes, int(position.max()) + 1), np.int64)
    destination[:, source_lane, position] = lane, value
    to_lane, to_value = destination[:, np.arange(lanes) % (int(source_lane.max()) + 1)]
    return to_lane, to_value


def widest_access(
    table: IntArray,
    shape: Sequence[int],
    element_bytes: int,
    name: str,
    op: str,
    width_bytes: int | None,
    *,
    lanes: int = 32,
    bytes_field: str = "--bytes",
) -> dict[str, Any]:
    """The access, as data of a problem file, in which threads touch all their values by vectors of one width.

    Args:
        table: int64, shape (threads, values, dimensions): the element that each value is.
        shape: of the tile; accesses are wide along the last dimension.
        element_bytes: of an element.
        name: of the access.
        op: of the access; of a matrix op, the values are the elements of the rows that each lane addresses.
        width_bytes: bytes a thread moves at once (a matrix op: a row's, whatever is given); None for the most
            that its values fill. Where it is less than an element's, a part of each is moved.
        lanes: of a warp.
        bytes_field: the option or field that gives the width, for errors.

    Raises:
        ProblemFileError: the values do not lie `width_bytes` together, or follow no formula.
    """
    if op.startswith(("ldmatrix", "stmatrix")):
        width_bytes = ROW_BYTES
    widths = [width_bytes] if width_bytes is not None else [w for w in WIDTHS if w % element_bytes == 0]
    if not widths:
        wrong = f"no access moves whole elements of {element_bytes} bytes; say how many bytes one moves"
        raise ProblemFileError(bytes_field, wrong)
    element = np.ravel_multi_index(tuple(np.moveaxis(table, -1, 0)), tuple(shape)).astype(np.int64)
    ownership = Ownership(tuple(shape), distinct_in_order(element))  # a value twice is moved once
    for width in widths:  # one that is no whole number of elements is refused where the access is read
        starts = ownership.last_dim_starts(max(1, width // element_bytes))
        if starts is not None:
            break
    else:  # of a given width: one element by itself is always together
        wrong = f"the values of {name!r} do not lie {width_bytes} bytes together along the last dimension"
        raise ProblemFileError(bytes_field, wrong)
    access: dict[str, Any] = {"name": name, "op": op}
    if op in ("load", "store", "cp.async"):  # the names of other operations say their width
        access["bytes"] = width
    return access | index_fields(starts, shape, lanes)


def index_fields(
    starts: IntArray,
    shape: Sequence[int],
    lanes: int,
    *,
    active: BoolArray | None = None,
    address_lanes: int | None = None,
    fields: tuple[str, str] = ("", ""),
) -> dict[str, Any]:
    """`index` of an access, `for` where there are several iterations, and `where` if some lanes are inactive.

    Keys and values are those of a problem file. Each coordinate of `index` is a formula by itself, or out of
    one for the row-major (or column-major) number of the element, or else a table.

    Args:
        starts: int64, shape (threads, iterations): row-major index of the element at each thread's address;
            -1 for none.
        shape: of the tile.
        lanes: of a warp.
        active: bool, same shape: who takes part; if left out, who has an address.
        address_lanes: so many lanes of a warp, the first, give addresses; None for all.
        fields: the fields that gave `starts` and `active`, for errors.

    Raises:
        ProblemFileError: no lane takes part, or no formula is found and a table would be too long.
    """
    threads, iterations = starts.shape
    active = starts >= 0 if active is None else active
    starts_field, active_field = fields
    address_lanes = address_lanes or lanes
    # Only these addresses count: formulas may give others anything.
    known = active & (starts >= 0) & (np.arange(threads) % lanes < address_lanes)[:, None]
    if not known.any():
        raise ProblemFileError(active_field, "no lane with an address takes part")
    may_fit = starts.size <= _MAX_FITTED
    loops = {"i": iterations} if iterations > 1 else {}

    def formula(values: IntArray) -> Node | None:
        return fit_threads(np.where(known, values, 0), lanes, known, address_lanes) if may_fit else None

    coordinates = np.unravel_index(np.where(known, starts, 0), tuple(shape))
    nodes = [formula(values) for values in coordinates]
    ranges = expression_ranges(threads, lanes, loops)
    if any(node is None for node in nodes):
        nodes = _from_one_index(coordinates, shape, formula, ranges) or nodes
    index = [
        _table(values, starts_field) if node is None else to_text(node)
        for node, values in zip(nodes, coordinates, strict=True)
    ]
    data: dict[str, Any] = {"index": index} | ({"for": loops} if loops else {})
    if not active.all():
        node = guard(np.ascontiguousarray(active), lanes) if may_fit else None
        data["where"] = _table(active.astype(np.int64), active_field) if node is None else to_text(node)
    return data


def _table(values: IntArray, field: str) -> str:
    """An expression for values of shape (threads, iterations): all of them listed, and the thread's place."""
    if values.size > MAX_ENTRIES:
        wrong = f"no formula gives them, and a table has at most {MAX_ENTRIES:,} entries"
        raise ProblemFileError(field, wrong)
    threads, iterations = values.shape
    place = f"tid + {threads}*i" if iterations > 1 else "tid"
    return f"{values.T.ravel().tolist()}[{place}]"


def index_fields_by_warp(
    starts: IntArray,
    active: BoolArray,
    shape: Sequence[int],
    threads: int,
    address_lanes: int,
    fields: tuple[str, str],
) -> dict[str, Any]:
    """`index_fields` of arrays of shape (iterations, warps, lanes); lanes beyond `threads` are left out."""
    iterations, _, lanes = starts.shape
    by_thread = starts.reshape(iterations, -1).T[:threads]
    active = active.reshape(iterations, -1).T[:threads]
    return index_fields(by_thread, shape, lanes, active=active, address_lanes=address_lanes, fields=fields)


def _from_one_index(
    coordinates: Sequence[IntArray],
    shape: Sequence[int],
    formula: Callable[[IntArray], Node | None],
    ranges: Mapping[str, tuple[int, int]],
) -> list[Node | None] | None:
    """The coordinates as quotients and remainders of a formula for the row- or column-major index.

    None where `formula` finds none. `[tid // 8, tid % 8]` from an index `tid` in a tile of lines of 8.
    """
    for order in (range(len(shape)), range(len(shape))[::-1]):
        element = formula(np.ravel_multi_index([coordinates[d] for d in order], [shape[d] for d in order]))
        if element is None:
            continue
        index: dict[int, Node] = {}
        stride = 1
        for d in reversed(order):
            index[d] = simplify(Op("%", (Op("//", (element, Const(stride))), Const(shape[d]))), ranges)
            stride *= shape[d]
        return [index[d] for d in range(len(shape))]
    return None
