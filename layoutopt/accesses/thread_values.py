"""A table of coordinates, one for each thread and value, as one access of a problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from layoutopt.accesses.trace import expression_ranges
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.fit import fit_threads
from layoutopt.expressions.grammar import Const, Node, Op, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import IntArray

WIDTHS: Final = (16, 8, 4, 2, 1)
ROW_BYTES: Final = 16  # of a matrix


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
    for width in widths:
        vector = max(1, width // element_bytes)
        starts = starts_of(table, shape, vector)
        if starts is not None:
            break
    else:
        raise ProblemFileError(
            bytes_field,
            f"the values of {name!r} do not lie {width_bytes} bytes together along the last dimension",
        )
    index = index_of(starts, shape, lanes)
    if index is None:
        raise ProblemFileError(
            "", f"no formula over tid, lane, warp and a loop gives the elements of {name!r}"
        )
    access: dict[str, Any] = {"name": name, "op": op}
    if op in ("load", "store", "cp.async"):
        access["bytes"] = width
    return access | index


def index_of(starts: IntArray, shape: Sequence[int], lanes: int) -> dict[str, Any] | None:
    """`index` and, where there are several pieces, `for` of an access; None where no formula is found.

    Args:
        starts: int64, shape (threads, pieces): the place in the tile that a thread touches, row by row.
        shape: of the tile.
        lanes: threads of a warp.
    """
    pieces = starts.shape[1]
    axes = {"i": pieces} if pieces > 1 else {}
    index = _index(starts, shape, axes, lanes)
    if index is None:
        return None
    return {"index": list(map(to_text, index))} | ({"for": axes} if axes else {})


def _index(starts: IntArray, shape: Sequence[int], axes: dict[str, int], lanes: int) -> list[Node] | None:
    """A formula for each coordinate: by itself, else out of one for the place in the tile."""

    def formula(values: IntArray) -> Node | None:
        return fit_threads(np.asarray(values, np.int64), lanes, np.ones(values.shape, bool))

    coordinates = np.unravel_index(starts, tuple(shape))
    alone = [formula(values) for values in coordinates]
    if all(node is not None for node in alone):
        return [node for node in alone if node is not None]
    ranges = expression_ranges(len(starts), lanes, axes)
    for order in (range(len(shape)), range(len(shape))[::-1]):
        place = formula(np.ravel_multi_index([coordinates[d] for d in order], [shape[d] for d in order]))
        if place is None:
            continue
        index: dict[int, Node] = {}
        inner = 1
        for d in reversed(order):
            digit = Op("%", (Op("//", (place, Const(inner))), Const(shape[d])))
            index[d] = simplify(digit, ranges)
            inner *= shape[d]
        return [index[d] for d in range(len(shape))]
    return None


def starts_of(table: IntArray, shape: Sequence[int], vector: int) -> IntArray | None:
    """The place of the first element of each run of `vector` values; None where they do not make up runs.

    Args:
        table: int64, shape (threads, values, dimensions).
        shape: of the tile; runs lie along the last dimension, at multiples of their length.
        vector: elements of a run.

    Returns:
        int64, shape (threads, runs), places row by row.
    """
    flat = np.ravel_multi_index(tuple(np.moveaxis(table, -1, 0)), tuple(shape))
    # A value that repeats another in every thread is the same register's element, moved once.
    _, first = np.unique(flat, axis=1, return_index=True)
    flat = flat[:, np.sort(first)]
    if flat.shape[1] % vector or shape[-1] % vector:
        return None
    for order in (np.arange(flat.shape[1]), np.argsort(flat[0], kind="stable")):
        groups = flat[:, order].reshape(len(flat), -1, vector)
        if (groups == groups[..., :1] + np.arange(vector)).all() and not (groups[..., 0] % vector).any():
            return np.ascontiguousarray(groups[..., 0])
    return None
