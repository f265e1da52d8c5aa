"""Formulas of tables: where the offsets of a table follow one, people get it, and the code computes it.

Looked for are what `layoutopt.expressions.fit` knows; lines turned against one another, by a formula or by a
small table of turns; and sums of strides of which a few elements beyond the tile lie in holes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from layoutopt.errors import ExpressionError
from layoutopt.expressions.fit import fit
from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, parts, tabulated
from layoutopt.expressions.simplify import Range, operations, simplify, weighted_sum
from layoutopt.ground.arrays import IntArray

# Longer formulas are no gain, and larger tables none over that of all offsets.
_MOST_OPERATIONS, _MOST_ENTRIES = 24, 64
_MOST_DIMS = 4  # of which every choice and order is tried
_KEPT = 32


@lru_cache(_KEPT)
def spelled(lookup: tuple[int, ...], shape: tuple[int, ...]) -> Node | None:
    """An expression over x0, x1, ... with these values by row-major index; None where none is found."""
    table = np.array(lookup, np.int64).reshape(shape)
    ranges = {f"x{d}": (0, extent - 1) for d, extent in enumerate(shape)}
    for found in (_plain(table, range(len(shape))), _turned(table, ranges), _folded(table)):
        node = None if found is None else simplify(found, ranges)
        if node is None:
            continue
        with contextlib.suppress(ExpressionError):  # offsets that a file gives may be as large as it likes
            if (tabulated(node, shape) == table).all():
                return node
    return None


def _plain(table: IntArray, dims: Sequence[int]) -> Node | None:
    """A short formula over some coordinates, the dimensions of the table."""
    node = fit(table, {f"x{d}": extent for d, extent in zip(dims, table.shape, strict=True)})
    return None if node is None or _chooses(node) or operations(node) > _MOST_OPERATIONS else node


def _chooses(node: Node) -> bool:
    return (isinstance(node, Op) and node.symbol == "if") or any(map(_chooses, parts(node)))


def _turned(table: IntArray, ranges: Mapping[str, Range]) -> Node | None:
    """`line*N + (c + turn of the line) % N`."""
    dims = [d for d, extent in enumerate(table.shape) if extent > 1]
    if len(dims) > _MOST_DIMS:
        return None
    for count in range(1, len(dims)):
        for inner in itertools.permutations(dims, count):
            outer = [d for d in dims if d not in inner]
            length = int(np.prod([table.shape[d] for d in inner]))
            # Dimensions: the outer ones, then all inner as one.
            kept = [table.shape[d] for d in outer]
            lines = table.transpose(*outer, *inner, *(d for d in range(table.ndim) if d not in dims))
            lines = lines.reshape(*kept, length)
            line, turn = lines // length, (lines - np.arange(length)) % length
            if (line != line[..., :1]).any() or (turn != turn[..., :1]).any():
                continue
            number = _plain(line[..., 0], outer)
            if number is None:
                continue
            by = _turn(turn[..., 0], line[..., 0], number, length, outer)
            if by is None:
                continue
            place = row_major_index(inner, table.shape)
            around = Op("%", (Op("+", (place, by)), Const(length)))
            return Op("+", (Op("*", (simplify(number, ranges), Const(length))), around))
    return None


def _turn(turn: IntArray, line: IntArray, number: Node, length: int, outer: Sequence[int]) -> Node | None:
    """How far each line is turned, but for whole turns: a multiple of its number, with jumps, or a table."""
    count = int(line.max()) + 1
    if line.size != count:
        return None
    by_line = np.zeros(count, np.int64)
    by_line[line.ravel()] = turn.ravel()
    first, every = int(by_line[0]), np.arange(count)
    step = int(by_line[1] - first) % length if count > 1 else 0
    left = (by_line - first - step * every) % length
    terms: list[tuple[int, Node]] = [(first, Const(1)), (step, number)]
    if not left.any():
        return weighted_sum(terms)
    jump = int(np.flatnonzero(left)[0])
    for extra in (int(left[jump]), int(left[jump]) - length):
        if not ((left - extra * (every // jump)) % length).any():
            return weighted_sum([*terms, (extra, Op("//", (number, Const(jump))))])
    short = _plain(turn, outer)
    if short is not None:
        return short
    return Lookup(tuple(by_line.tolist()), number, "") if count <= _MOST_ENTRIES else None


def _folded(table: IntArray) -> Node | None:
    """`v - ([...][v - elements] if v >= elements else 0)`, v a sum of strides."""
    if table.flat[0]:
        return None
    strides = []
    for d, extent in enumerate(table.shape):
        second = tuple(int(other == d) for other in range(table.ndim))
        strides.append(int(table[second]) if extent > 1 else 0)
    linear = np.tensordot(strides, np.indices(table.shape), 1)
    over, beyond = int(linear.max()) + 1 - table.size, linear >= table.size
    if not 0 < over <= _MOST_ENTRIES or (linear[~beyond] != table[~beyond]).any():
        return None
    back = np.zeros(over, np.int64)
    back[linear[beyond] - table.size] = (linear - table)[beyond]
    v = weighted_sum([(s, Var(f"x{d}")) for d, s in enumerate(strides) if s])
    entry = Lookup(tuple(back.tolist()), Op("-", (v, Const(table.size))), "")
    return Op("-", (v, Op("if", (entry, Op(">=", (v, Const(table.size))), Const(0)))))


def row_major_index(dims: Sequence[int], shape: tuple[int, ...]) -> Node:
    """The row-major index over some of x0, x1, ..., the slowest first."""
    node: Node = Var(f"x{dims[0]}")
    for d in dims[1:]:
        node = Op("+", (Op("*", (node, Const(shape[d]))), Var(f"x{d}")))
    return node
