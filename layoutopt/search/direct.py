"""Layouts for AMD's direct loads, whose lanes write side by side from one base a wave.

Whole runs of elements, as many as a wave writes at once, lie in one piece. What is left to choose is how the
tile is cut into them: its dimensions in any order, its last one cut into vectors (pages of columns), its rows
in turn, the pieces that the accesses themselves keep together, a pad after every run or several, or an XOR
that the load's own index has. The conflict engine keeps what serves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from layoutopt.accesses.trace import Trace
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.problems.types import Problem, Tile
from layoutopt.search.as_table import MAX_LOOKUP

SAID: Final = (
    "direct loads: orders, pages, rows in turn, as waves write, "
    "a pad after whole runs of a wave, XORs of bits"
)
NOT_ALL: Final = "none of the layouts that are listed for direct loads; there may be others"
_MOST_PERMUTED = 3
_MOST_FLIPPED = 5  # bits of 32 banks
_MOST_SHIFT = 8
_MOST_LOWS: Final = 3  # bits from which a swizzle of the row-major layout may begin
_PAD_VECTORS = (1, 2, 4, 8)
_MOST_TURNS: Final = 6  # ways of taking the rows in turn


def direct_layouts(problem: Problem, lanes: Trace, budget: Budget) -> Iterator[tuple[str, Layout]]:
    """Candidates with their names, the plainest first.

    Args:
        problem: over whole bytes.
        lanes: its accesses.
        budget: the time there is to find pieces.

    Raises:
        OutOfTime: it was over before the end.
    """
    tile = problem.tile
    size = tile.element_bytes
    widths = [parse_operation(access.op, access.single_width).width_bytes for access in problem.accesses]
    vector = max(1, max(widths) // size)
    wave = lanes.accesses[0].element.shape[1]
    runs = sorted({times * wave * width // size for width in widths for times in (1, 2, 4, 8)} - {0})
    seen: set[tuple[Digit, ...]] = set()
    for name, layout in itertools.chain(
        _linear(tile.shape, size, vector), _in_turn(tile, runs), _as_written(tile, lanes, budget)
    ):
        if layout.digits and layout.digits in seen:
            continue
        seen.add(layout.digits)
        yield name, layout
        for every, vectors in itertools.product(runs, _PAD_VECTORS):
            if every < tile.elements:
                yield f"{name}, pad", _padded(layout, every, vectors * vector)
        if layout.digits:
            lowest = (vector - 1).bit_length()
            lows = range(lowest, lowest + (_MOST_LOWS if name == "row-major" else 1))
            for targets in _swizzles((tile.elements - 1).bit_length(), lows):
                yield f"{name}, xor", Layout(tile.shape, size, layout.digits, targets)


def _swizzles(bits: int, lows: Sequence[int]) -> Iterator[tuple[Target, ...]]:
    """Some bits from one of `lows` on, each flipped by the one so far above it; offsets have `bits`."""
    for low in lows:
        for count, shift in itertools.product(range(1, _MOST_FLIPPED + 1), range(1, _MOST_SHIFT + 1)):
            if shift >= count and low + count + shift <= bits:
                yield tuple(Target(low + k, 1 << (low + k + shift)) for k in range(count))


def _padded(layout: Layout, every: int, extra: int) -> Layout:
    """The layout with so many elements left out after every so many."""
    if layout.digits:
        return Layout(layout.shape, layout.element_bytes, layout.digits, interval=(every, extra))
    places = tuple(at + at // every * extra for at in layout.lookup)
    return Layout(layout.shape, layout.element_bytes, (), lookup=places)


def _in_turn(tile: Tile, runs: list[int]) -> Iterator[tuple[str, Layout]]:
    """Row-major, but that runs of whole rows lie in another order: every n-th, then the next."""
    shape, line = tile.shape, math.prod(tile.shape[1:])
    inner = _ordered(shape, tile.element_bytes, tuple(range(len(shape)))).digits[1:]
    made = 0
    for rows in dict.fromkeys(max(1, run // line) for run in runs):
        for turns in (2**k for k in range(1, shape[0].bit_length())):
            if shape[0] % (rows * turns) or made == _MOST_TURNS:
                break
            times = shape[0] // (rows * turns)
            if times == 1:
                break
            lines = (
                Digit(0, rows, turns, times * rows * line),
                Digit(0, rows * turns, times, rows * line),
                *((Digit(0, 1, rows, line),) if rows > 1 else ()),
            )
            made += 1
            yield f"rows in turn by {turns}", Layout(shape, tile.element_bytes, (*lines, *inner))


def _as_written(tile: Tile, lanes: Trace, budget: Budget) -> Iterator[tuple[str, Layout]]:
    """The pieces that the accesses keep together: by their first element, and as they are written."""
    pieces = Pieces(tile, lanes, budget)
    if pieces.torn:
        return
    for places in pieces.one_after_another():
        if places is None or (places % tile.element_bytes).any():
            continue
        units = places // tile.element_bytes
        digits = _digits(units.reshape(tile.shape))
        if digits is not None:
            yield "as waves write", Layout(tile.shape, tile.element_bytes, digits)
        elif units.size <= MAX_LOOKUP:
            lookup = tuple(units.tolist())
            yield "as waves write", Layout(tile.shape, tile.element_bytes, (), lookup=lookup)


class Pieces:
    """Elements that every layout holds at fixed distances: what a wave writes at once, and whole vectors.

    Attributes:
        torn: whether two accesses want one element at two distances, or two elements in one place, so that
            there is no layout of any kind.

    Raises:
        OutOfTime: the time was over before all was joined.
    """

    def __init__(self, tile: Tile, lanes: Trace, budget: Budget) -> None:
        self.torn = False
        self._size, self._alignment = tile.element_bytes, 1
        count = tile.elements
        self._head = list(range(count))  # an element of the same piece
        self._behind = [0] * count  # bytes that an element lies behind its head
        self._written: dict[int, None] = {}
        for access in lanes.accesses:
            width = access.operation.width_bytes
            self._alignment = math.lcm(self._alignment, width & -width)
            inner = range(1, access.width_elements)
            for start in access.starts.tolist() if inner else ():
                budget.check()
                for k in inner:
                    self._join(start, start + k, k * self._size)
            if access.operation.kind != "load.lds":
                continue
            for row, active in zip(access.element, access.active, strict=True):
                budget.check()
                used = [(lane, e) for lane, e in enumerate(row.tolist()) if active[lane]]
                for lane, e in used[1:]:
                    self._join(used[0][1], e, (lane - used[0][0]) * width)
                self._written |= {e: None for _, e in used[:1]}
        self._places = np.zeros(count, np.int64)
        for e in range(count):
            budget.check()
            self._places[e] = self._find(e)[1]
        self._heads = np.array(self._head, np.int64)  # each points to its piece now
        whole = np.lexsort((self._places, self._heads))
        near = np.diff(self._places[whole]) < self._size
        self.torn |= bool((near & (np.diff(self._heads[whole]) == 0)).any())

    def _find(self, element: int) -> tuple[int, int]:
        """The head of a piece, and the bytes that the element lies behind it."""
        path = []
        while self._head[element] != element:
            path.append(element)
            element = self._head[element]
        behind = 0
        for at in reversed(path):
            behind += self._behind[at]
            self._head[at], self._behind[at] = element, behind
        return element, behind

    def _join(self, one: int, other: int, behind: int) -> None:
        """`other` lies so many bytes behind `one`."""
        (head, before), (tail, after) = self._find(one), self._find(other)
        if head == tail:
            self.torn |= after - before != behind
        else:
            self._head[tail], self._behind[tail] = head, before + behind - after

    def one_after_another(self) -> Iterator[IntArray]:
        """Byte offset of every element, by row-major index: pieces by their first element, and as written."""
        heads, first = np.unique(self._heads, return_index=True)
        lowest = np.full(len(self._heads), np.iinfo(np.int64).max)
        np.minimum.at(lowest, self._heads, self._places)
        highest = np.zeros(len(self._heads), np.int64)
        np.maximum.at(highest, self._heads, self._places - lowest[self._heads])
        step = -(-(highest + self._size) // self._alignment) * self._alignment
        by_element = heads[np.argsort(first)].tolist()
        written = list(dict.fromkeys(int(self._heads[e]) for e in self._written))
        for order in (by_element, list(dict.fromkeys([*written, *by_element]))):
            base = np.zeros(len(self._heads), np.int64)
            base[order] = np.concatenate([[0], np.cumsum(step[order])[:-1]])
            yield base[self._heads] + self._places - lowest[self._heads]


def may_be_others(problem: Problem, lanes: Trace, budget: Budget) -> bool:
    """Whether there may be a layout that is not listed: the tile fits and nothing contradicts itself."""
    limit = problem.layout.max_bytes
    if limit is not None and limit < problem.tile.bytes:
        return False
    try:
        return not Pieces(problem.tile, lanes, budget).torn
    except OutOfTime:
        return True


def _digits(places: IntArray) -> tuple[Digit, ...] | None:
    """The layout as digits of its coordinates, if it is one."""
    found: list[Digit] = []
    total = np.zeros(places.shape, np.int64)
    for dim, extent in enumerate(places.shape):
        along = places[tuple(slice(None) if d == dim else 0 for d in range(places.ndim))]
        total = total + along.reshape([-1 if d == dim else 1 for d in range(places.ndim)])
        divide = 1
        while divide < extent:
            rest = along[::divide]
            stride = int(rest[1])
            size = next((k for k in range(2, len(rest)) if rest[k] != k * stride), len(rest))
            while len(rest) % size:
                size -= 1
            if stride < 0 or size < 2 or (along.reshape(-1, divide)[:, 0] != rest).any():
                return None
            found.append(Digit(dim, divide, size, stride))
            divide *= size
    found.sort(key=lambda digit: -digit.stride)
    if not found or (places[(0,) * places.ndim] != 0):
        return None
    layout = Layout(
        places.shape, 1, (*(Digit(d, 1, 1, 0) for d, n in enumerate(places.shape) if n == 1), *found)
    )
    same = bool((layout.element_offset(*np.indices(places.shape)) == places).all())
    return layout.digits if same else None


def _linear(shape: tuple[int, ...], size: int, vector: int) -> Iterator[tuple[str, Layout]]:
    """Row-major, the dimensions in other orders, and pages of whole vectors of the last dimension."""
    dims = tuple(range(len(shape)))
    orders = itertools.permutations(dims) if len(dims) <= _MOST_PERMUTED else iter([dims])
    for order in orders:
        yield "row-major" if order == dims else f"order {list(order)}", _ordered(shape, size, order)
    columns = shape[-1]
    wide = vector
    while wide < columns and columns % wide == 0:
        rows = math.prod(shape[:-1])
        pages = [Digit(len(dims) - 1, wide, columns // wide, rows * wide)]
        strides = [math.prod(shape[d + 1 : -1]) * wide for d in dims[:-1]]
        lines = [Digit(d, 1, shape[d], stride) for d, stride in zip(dims[:-1], strides, strict=True)]
        digits = (*pages, *lines, Digit(len(dims) - 1, 1, wide, 1))
        yield f"pages of {wide} columns", Layout(shape, size, digits)
        wide *= 2


def _ordered(shape: tuple[int, ...], size: int, order: tuple[int, ...]) -> Layout:
    strides, step = {}, 1
    for d in reversed(order):
        strides[d] = step
        step *= shape[d]
    return Layout(shape, size, tuple(Digit(d, 1, shape[d], strides[d]) for d in order))
