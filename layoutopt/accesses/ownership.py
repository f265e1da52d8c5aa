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

WIDTHS: Final = (16, 8, 4, 2, 1)
ROW_BYTES: Final = 16  # of a matrix, and of the widest vector
WORD_BYTES: Final = 4  # that each lane has of a matrix
ROWS: Final = 8
TR_LANES: Final = 16  # lanes between which AMD's ds_read_b64_tr_b16, b8 and b4 exchange elements
# Looking for a formula takes time that grows with the table: seconds for so many entries.
_MAX_FITTED: Final = 1 << 18


class Ownership(Struct, frozen=True):
    """The elements of each thread.

    Attributes:
        shape: of the tile.
        element: int64, shape (threads, count): row-major index, each element of a thread once, in the order
            in which it has them; -1 behind the last. Threads may be listed again, round after round.
    """

    shape: tuple[int, ...]
    element: IntArray

    @classmethod
    def of_table(cls, table: IntArray, shape: Sequence[int]) -> "Ownership":
        """Of the coordinates of each thread and value, shape (threads, values, dimensions)."""
        flat = np.ravel_multi_index(tuple(np.moveaxis(table, -1, 0)), tuple(shape)).astype(np.int64)
        return cls(tuple(shape), each_once(flat))

    def along(self, count: int) -> list[Step]:
        """The steps of so many elements along the last dimension."""
        return [(len(self.shape) - 1, 1 << k) for k in range(count.bit_length() - 1)]

    def is_closed(self, step: Step) -> bool:
        """Whether each thread has the element a step further, or nearer, of every one it has."""
        dim, far = step
        if self.shape[dim] % (2 * far):
            return False
        apart = np.where(self._beyond(step, self.element), -far, far) * self._stride(dim)
        partner = np.where(self.element >= 0, self.element + apart, -1)
        return bool((np.sort(partner, axis=1) == np.sort(self.element, axis=1)).all())

    def distance(self, step: Step) -> int:
        """How many elements after the first one of a thread it has the one a step away."""
        dim, far = step
        first = self.element[int((self.element[:, 0] >= 0).argmax())]
        apart = (-far if self._beyond(step, first[:1])[0] else far) * self._stride(dim)
        return int(np.flatnonzero(first == first[0] + apart)[0])

    def heads(self, steps: Sequence[Step]) -> IntArray:
        """The first element of each vector of these steps, in the order of the elements; like `element`."""
        return each_once(self._head(steps, self.element))

    def starts(self, count: int) -> IntArray | None:
        """The first of each `count` elements along the last dimension; None where they do not go together.

        Rising where the elements of some do not follow one another.
        """
        steps = self.along(count)
        if count & (count - 1) or not all(map(self.is_closed, steps)):
            return None
        heads = self.heads(steps)
        vectors = (heads[..., None] + np.arange(count)).reshape(len(heads), -1)
        return heads if np.array_equal(vectors, self.element) else heads[:, np.argsort(heads[0])]

    def addressed(
        self, operation: Operation, bits: int, lanes: int, row: Sequence[Step], word: Sequence[Step]
    ) -> IntArray | None:
        """First elements that lanes address in matrix instructions that give every thread its own elements.

        Args:
            operation: of the instructions.
            bits: of an element.
            lanes: of a warp.
            row: steps from the element at an address to those behind it.
            word: steps under which values lie side by side in a register.

        Returns:
            int64, shape (threads, instructions); None where they deliver other elements, or in another order.
        """
        holder, behind = received(operation, bits, lanes)
        held = self.heads(word)[..., None] + distances(word, self.shape)
        count = held[0].size // behind.shape[1]
        if (self.element < 0).any() or len(held) % lanes or held[0].size % behind.shape[1]:
            return None
        held = held.reshape(-1, lanes, count, behind.shape[1]).swapaxes(1, 2)
        head, part = self._head(row, held), np.zeros_like(held)
        for k, step in enumerate(row):
            part |= self._beyond(step, held) << k
        start = np.full(held.shape[:3], -1, np.int64)
        start[..., holder] = np.where(part == behind, head, -1)
        start = start[..., np.arange(lanes) % (ROWS * operation.matrices or lanes)]
        if (part != behind).any() or (start[..., holder] != head).any():
            return None
        return start.swapaxes(1, 2).reshape(len(self.element), count)

    def _stride(self, dim: int) -> int:
        return math.prod(self.shape[dim + 1 :])

    def _beyond(self, step: Step, element: IntArray) -> BoolArray:
        """Whether elements are those that a step leads to."""
        dim, far = step
        return (element // self._stride(dim) % self.shape[dim] & far) > 0

    def _head(self, steps: Sequence[Step], element: IntArray) -> IntArray:
        for dim, far in steps:
            inside = self._beyond((dim, far), element) & (element >= 0)
            element = element - inside * far * self._stride(dim)
        return element


def each_once(values: IntArray) -> IntArray:
    """The values of each row in order, each once, -1 left out; rows are filled with -1."""
    order = np.argsort(values, axis=1, kind="stable")
    rising = np.take_along_axis(values, order, axis=1)
    again = np.zeros(values.shape, bool)
    again[:, 1:] = rising[:, 1:] == rising[:, :-1]
    left = np.empty_like(again)
    np.put_along_axis(left, order, again | (rising < 0), axis=1)
    kept = np.argsort(left, axis=1, kind="stable")
    found = np.take_along_axis(np.where(left, -1, values), kept, axis=1)
    return found[:, : int((~left).sum(axis=1).max(initial=0))]


def distances(steps: Sequence[Step], shape: Sequence[int]) -> IntArray:
    """From the first element of a vector to each, row by row of the tile."""
    found = np.zeros(1, np.int64)
    for dim, far in steps:
        found = np.concatenate([found, found + far * math.prod(shape[dim + 1 :])])
    return found


def received(operation: Operation, bits: int, lanes: int) -> tuple[IntArray, IntArray]:
    """Whose address the values of a lane come from, and how many elements behind it they lie.

    A row of an 8x8 matrix is 16 bytes; lane 8 * j + r gives the address of row r of matrix j. Lane l receives
    bytes 4 * (l % 4) .. of row l // 4, or with .trans elements l // 4 of rows 2 * (l % 4) and the next (PTX
    ISA, ldmatrix and stmatrix). Of AMD's ds_read_b64_tr_b16, b8 and b4, 16 lanes address as many rows of 16
    elements as 64 bits hold elements, 64 bits each, and lane l receives column l % 16 (AMD CDNA4 ISA, 11.4;
    HIP documentation, CDNA4 MFMA transpose load intrinsics; b16: Triton, chooseDsReadTrLayout; b8:
    HipKittens' loads of columns).

    Args:
        operation: what is executed.
        bits: of an element.
        lanes: of a warp.

    Returns:
        int64, both of shape (lanes, values).
    """
    count = 8 * (WORD_BYTES * operation.matrices or operation.width_bytes) // bits
    lane, value = np.broadcast_arrays(*np.indices((lanes, count), sparse=True))
    if operation.kind == "load.tr":
        within = lane % TR_LANES
        return lane - within + value * (TR_LANES // count) + within // count, within % count
    if not operation.matrices:
        return lane, value
    matrix, part = np.divmod(value, count // operation.matrices)
    across = count // operation.matrices * (lane % 4) + part
    row, behind = (across, lane // 4) if operation.transposed else (lane // 4, across)
    return ROWS * matrix + row, behind


def delivered(operation: Operation, bits: int, lanes: int) -> tuple[IntArray, IntArray]:
    """The inverse of `received`: by address and element there, the lane it goes to and its number there.

    Returns:
        int64, both of shape (lanes, elements); lanes without an address of their own repeat the others.
    """
    holder, behind = received(operation, bits, lanes)
    lane, value = np.indices(holder.shape)
    found = np.zeros((2, lanes, int(behind.max()) + 1), np.int64)
    found[:, holder, behind] = lane, value
    to, which = found[:, np.arange(lanes) % (int(holder.max()) + 1)]
    return to, which


def access_of(
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
    """The access in which every thread touches all its values, the widest pieces first.

    Args:
        table: int64, shape (threads, values, dimensions): the element that each value is.
        shape: of the tile; accesses are wide along the last dimension.
        element_bytes: of an element.
        name: of the access.
        op: of the access; of a matrix op, the values are the rows that each lane addresses.
        width_bytes: bytes a thread moves at once; None for the widest that the layout allows.
        lanes: of a warp.
        bytes_field: what gives the width, for errors.

    Raises:
        ProblemFileError: the values are not `width_bytes` together, or follow no formula.
    """
    if op.startswith(("ldmatrix", "stmatrix")):
        width_bytes = ROW_BYTES
    widths = [width_bytes] if width_bytes is not None else [w for w in WIDTHS if w >= element_bytes]
    own = Ownership.of_table(table, shape)
    for width in widths:
        starts = own.starts(max(1, width // element_bytes))
        if starts is not None:
            break
    else:
        raise ProblemFileError(
            bytes_field,
            f"the values of {name!r} do not lie {width_bytes} bytes together along the last dimension",
        )
    access: dict[str, Any] = {"name": name, "op": op}
    if op in ("load", "store", "cp.async"):
        access["bytes"] = width
    return access | written(starts, shape, lanes)


def written(
    starts: IntArray,
    shape: Sequence[int],
    lanes: int,
    *,
    taking: BoolArray | None = None,
    addressed: int | None = None,
    fields: tuple[str, str] = ("", ""),
) -> dict[str, Any]:
    """`index` of an access, `for` where there are several iterations, and `where` if some take no part.

    Each coordinate is a formula by itself, or out of one for the place in the tile, or else a table.

    Args:
        starts: int64, shape (threads, iterations): the element at each thread's address; -1 for none.
        shape: of the tile.
        lanes: of a warp.
        taking: bool, same shape: who takes part; if left out, who has an address.
        addressed: how many lanes of a warp, from its first, give an address; all, if left out.
        fields: what elements and who takes part are given by, for errors.

    Raises:
        ProblemFileError: no lane takes part, or no formula is found and a table would be too long.
    """
    threads, trips = starts.shape
    taking = starts >= 0 if taking is None else taking
    known = starts >= 0
    if not known.any():
        raise ProblemFileError(fields[1], "no lane with an address takes part")
    fits = starts.size <= _MAX_FITTED

    def formula(values: IntArray) -> Node | None:
        return fit_threads(np.where(known, values, 0), lanes, known, addressed) if fits else None

    def listed(values: IntArray, field: str) -> str:
        if values.size > MAX_ENTRIES:
            raise ProblemFileError(
                field, f"no formula gives them, and a table has at most {MAX_ENTRIES:,} entries"
            )
        return f"{values.T.ravel().tolist()}[tid{f' + {threads}*i' if trips > 1 else ''}]"

    coordinates = np.unravel_index(np.where(known, starts, 0), tuple(shape))
    nodes = [formula(values) for values in coordinates]
    if any(node is None for node in nodes):
        loops = {"i": trips} if trips > 1 else {}
        nodes = _out_of_place(coordinates, shape, formula, expression_ranges(threads, lanes, loops)) or nodes
    index = [
        listed(values, fields[0]) if node is None else to_text(node)
        for node, values in zip(nodes, coordinates, strict=True)
    ]
    found: dict[str, Any] = {"index": index} | ({"for": {"i": trips}} if trips > 1 else {})
    if not taking.all():
        node = guard(np.ascontiguousarray(taking), lanes) if fits else None
        found["where"] = listed(taking.astype(np.int64), fields[1]) if node is None else to_text(node)
    return found


def written_by_lanes(
    starts: IntArray,
    taking: BoolArray,
    shape: Sequence[int],
    threads: int,
    matrices: int,
    fields: tuple[str, str],
) -> dict[str, Any]:
    """`written` of tables by iteration, warp and lane; of matrices, the first lanes give addresses."""
    trips, _, lanes = starts.shape
    addressed = 8 * matrices or lanes
    known = np.where(taking & (np.arange(lanes) < addressed), starts, -1).reshape(trips, -1)
    here = taking.reshape(trips, -1).T[:threads]
    return written(known.T[:threads], shape, lanes, taking=here, addressed=addressed, fields=fields)


def _out_of_place(
    coordinates: Sequence[IntArray],
    shape: Sequence[int],
    formula: Callable[[IntArray], Node | None],
    ranges: Mapping[str, tuple[int, int]],
) -> list[Node | None] | None:
    """The coordinates out of a formula for the place in the tile, by rows or by columns."""
    for order in (range(len(shape)), range(len(shape))[::-1]):
        place = formula(np.ravel_multi_index([coordinates[d] for d in order], [shape[d] for d in order]))
        if place is None:
            continue
        index: dict[int, Node] = {}
        inner = 1
        for d in reversed(order):
            index[d] = simplify(Op("%", (Op("//", (place, Const(inner))), Const(shape[d]))), ranges)
            inner *= shape[d]
        return [index[d] for d in range(len(shape))]
    return None
