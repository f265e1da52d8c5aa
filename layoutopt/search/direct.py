"""Layouts for AMD's direct loads, whose lanes write side by side from one base a wave.

Whole runs of elements, as many as a wave writes at once, lie in one piece. What is left to choose is how the
tile is cut into them: its dimensions in any order, its last one cut into vectors (pages of columns), a pad
after every run or several, or an XOR that the load's own index has. The conflict engine keeps what serves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.problems.types import Problem

SAID = "direct loads: orders, pages, a pad after whole runs of a wave, XORs of bits"
_MOST_PERMUTED = 3
_MOST_SHIFT = 8
_PAD_VECTORS = (1, 2, 4, 8)


def direct_layouts(problem: Problem, lanes: int) -> Iterator[tuple[str, Layout]]:
    """Candidates with their names, the plainest first.

    Args:
        problem: over whole bytes.
        lanes: of a wave.
    """
    tile = problem.tile
    size = tile.element_bytes
    widths = [parse_operation(access.op, access.single_width).width_bytes for access in problem.accesses]
    vector = max(1, max(widths) // size)
    for name, layout in _linear(tile.shape, size, vector):
        yield name, layout
        for width, times in itertools.product(sorted(set(widths)), (1, 2, 4, 8)):
            every = times * lanes * width // size
            for vectors in _PAD_VECTORS if 0 < every < tile.elements else ():
                yield (
                    f"{name}, pad",
                    Layout(tile.shape, size, layout.digits, interval=(every, vectors * vector)),
                )
        bits, low = (tile.elements - 1).bit_length(), (vector - 1).bit_length()
        for count, shift in itertools.product(range(1, 4), range(1, _MOST_SHIFT + 1)):
            if shift >= count and low + count + shift <= bits:
                targets = tuple(Target(low + k, 1 << (low + k + shift)) for k in range(count))
                yield f"{name}, xor", Layout(tile.shape, size, layout.digits, targets)


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
