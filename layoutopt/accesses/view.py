"""A tile seen with its coordinates cut and put in another order, so that vectors run along the last one.

The search knows vectors along the last dimension. Where an access's `vector` says otherwise, the problem is
seen through a view, solved there, and its layout turned back:

    32x64 f32, vectors of four along x0    ->    64x32, index [x1, x0]
    32x64 f16, vectors of 2x2              ->    16x32x4, index [x0 // 2, x1 // 2, x1 % 2 + x0 % 2 * 2]

An order of elements that no dimensions in another order give is cut out of the coordinates bit by bit.
"""

import itertools
import math
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from layoutopt.errors import ProblemFileError, under
from layoutopt.expressions.grammar import Const, Node, Op, Var, joined, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.formula import coordinate_ranges
from layoutopt.layout.layout import Digit, Layout
from layoutopt.problems.types import Access, Problem, Tile

MAX_DIMS: Final = 8  # of a layout


class Step(NamedTuple):
    """`distance` elements, a power of two, along dimension `dim`: doubles the elements of a vector.

    Steps (1, 1), (1, 2) make a vector of four elements along x1; (0, 1), (1, 1) one of 2x2.
    """

    dim: int
    distance: int


class View(Struct, frozen=True, dict=True):
    """New coordinates of a tile, each a sum of digits of the tile's own coordinates times their strides."""

    shape: tuple[int, ...]  # of the tile itself
    # The digits of every new coordinate, the fastest first; the slowest coordinate first
    dims: tuple[tuple[Digit, ...], ...]

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Extents of the new coordinates."""
        return tuple(math.prod(digit.size for digit in digits) for digits in self.dims)

    @cached_property
    def tile_index(self) -> IntArray:
        """int64 row-major index in the tile itself, by row-major index in the view: shape (elements,)."""
        x = np.indices(self.shape, sparse=True)
        seen = [sum(x[d.dim] // d.divide % d.size * d.stride for d in digits) for digits in self.dims]
        seen_index = np.ravel_multi_index(np.broadcast_arrays(*seen), self.seen_shape).ravel()
        return np.argsort(seen_index)

    @property
    def inverse(self) -> "View":
        """The tile's own coordinates as a view of those of this one."""
        own: list[list[Digit]] = [[] for _ in self.shape]
        for k, digits in enumerate(self.dims):
            for digit in digits:
                part = Digit(k, divide=digit.stride, size=digit.size, stride=digit.divide)
                own[digit.dim].append(part)
        fastest_first = (sorted(digits, key=lambda digit: digit.stride) for digits in own)
        return View(self.seen_shape, tuple(map(tuple, fastest_first)))

    def problem(self, problem: Problem) -> Problem:
        """The problem over the view's coordinates, where every vector runs along the last dimension.

        Args:
            problem: over the tile's own coordinates and whole bytes, with one width for each access.

        Raises:
            ProblemFileError: it prescribes an order of the tile's own dimensions.
        """
        if problem.layout.order is not None:
            raise ProblemFileError("layout.order", "cannot be given where vectors run another way")
        accesses = tuple(replace(a, index=self._index(a), vector=None) for a in problem.accesses)
        tile = Tile(self.seen_shape, problem.tile.element)
        layout = replace(problem.layout, offset=None)
        return replace(
            problem, tile=tile, accesses=accesses, layout=layout, published=None, known_optimum=None
        )

    def _index(self, access: Access) -> tuple[str, ...]:
        variables = frozenset({"tid", "lane", "warp", *access.loops, *access.any})
        tile_index = [parse(str(text), variables) for text in access.index]
        return tuple(to_text(self._coordinate(digits, tile_index)) for digits in self.dims)

    def _coordinate(self, digits: tuple[Digit, ...], tile_coordinates: list[Node]) -> Node:
        """The view's coordinate of these digits, out of expressions for the tile's own coordinates."""
        terms = []
        for dim, divide, size, stride in map(astuple, digits):
            node = tile_coordinates[dim]
            if divide > 1:
                node = Op("//", (node, Const(divide)))
            if divide * size < self.shape[dim]:
                node = Op("%", (node, Const(size)))
            if stride > 1:
                node = Op("*", (node, Const(stride)))
            terms.append(node)
        return joined("+", terms)

    def offset(self, offset: Node) -> Node:
        """An offset formula over the tile's own coordinates, rewritten over those of the view."""
        terms: dict[str, list[Node]] = {}  # by coordinate of the tile, what digits of the view's make it up
        for k, digits in enumerate(self.dims):
            for digit in digits:
                value: Node = Var(f"x{k}")
                if len(digits) > 1:
                    value = Op("%", (Op("//", (value, Const(digit.stride))), Const(digit.size)))
                terms.setdefault(f"x{digit.dim}", []).append(Op("*", (value, Const(digit.divide))))
        offset = substituted(offset, {name: joined("+", parts) for name, parts in terms.items()})
        return simplify(offset, coordinate_ranges(self.seen_shape))

    def tile_layout(self, layout: Layout) -> Layout:
        """A layout over the view's coordinates as one of the tile itself; a table where no digits say it."""
        digits = [part for digit in layout.digits for part in self._tile_digits(digit)]
        cuts_turned_line = layout.turn and len(self._tile_digits(layout.digits[-1])) > 1
        if layout.lookup or cuts_turned_line:
            seen_offsets = layout.table().ravel() // layout.element_bytes
            offsets = np.empty_like(seen_offsets)
            offsets[self.tile_index] = seen_offsets
            return Layout(self.shape, layout.element_bytes, (), lookup=tuple(offsets.tolist()))
        return replace(layout, shape=self.shape, digits=tuple(digits))

    def _tile_digits(self, digit: Digit) -> list[Digit]:
        """A digit of a coordinate of the view as digits of the tile's own coordinates, slowest first.

        It covers the values from its `divide` to its end; what of them each part of the coordinate covers is
        a digit of the tile's.
        """
        end, parts, digits = digit.divide * digit.size, self.dims[digit.dim], []
        for part in parts:
            low, high = max(digit.divide, part.stride), min(end, part.stride * part.size)
            if len(parts) == 1:  # a layout's digit may go beyond the extent of its coordinate
                high = end
            if low < high:
                stride = digit.stride * (low // digit.divide)
                digits.append(Digit(part.dim, part.divide * (low // part.stride), high // low, stride))
        return digits[::-1]


def view_of(problem: Problem) -> View | None:
    """The view that a problem's vectors need; None where all run along the last dimension.

    Raises:
        ProblemFileError: a `vector` makes no sense, or two accesses' vectors contradict each other.
    """
    if all(access.vector is None for access in problem.accesses):
        return None
    longest, longest_name = list[Step](), ""
    for i, access in enumerate(problem.accesses):
        with under(f"accesses[{i}]"):
            steps = vector_steps(access, problem.tile)
            shorter, longer = sorted((steps, longest), key=len)
            if longer[: len(shorter)] != shorter:
                wrong = f"its elements lie in another order than those of {longest_name!r}"
                raise ProblemFileError("vector", wrong)
        if len(steps) > len(longest):
            longest, longest_name = steps, access.name
    return view_along(problem.tile.shape, longest)


def view_along(shape: tuple[int, ...], steps: list[Step]) -> View | None:
    """The view whose last coordinate counts the elements of a vector of these steps; see the module.

    Its coordinates are sums of digits: of a tile's x, `x // divide % size * stride`.

    Args:
        shape: of the tile.
        steps: of the longest vector, from the step to its second element on; in each dimension, twice their
            distances divide the extent.

    Returns:
        None where vectors run along the last dimension as it is, or have one element.

    Raises:
        ProblemFileError: the coordinates would be cut into too many pieces.
    """
    if not steps:
        return None
    vector_dim = steps[0].dim
    if steps == [Step(vector_dim, 1 << k) for k in range(len(steps))]:
        # Distances 1, 2, 4, ... of one dimension: it needs no cut, only the last place.
        if vector_dim == len(shape) - 1:
            return None
        order = [*(d for d in range(len(shape)) if d != vector_dim), vector_dim]
        return View(shape, tuple((Digit(d, divide=1, size=shape[d], stride=1),) for d in order))
    # A step of distance s flips the bit of its coordinate from s to 2*s. Each coordinate is cut around these
    # bits: what is left between them becomes coordinates of the view, and the bits its last one.
    outer = []
    for d, extent in enumerate(shape):
        distances = {step.distance for step in steps if step.dim == d}
        cuts = sorted({1, *distances, *(2 * distance for distance in distances), extent})
        parts = [*itertools.pairwise(cuts)] or [(1, 1)]  # from a cut to the next; one value where extent is 1
        rest = [(low, high) for low, high in reversed(parts) if low not in distances]
        outer += [(Digit(d, divide=low, size=high // low, stride=1),) for low, high in rest]
    inner: list[Digit] = []
    for k, (dim, distance) in enumerate(steps):
        before = inner[-1] if inner else None
        if before is not None and (before.dim, before.divide * before.size) == (dim, distance):
            inner[-1] = replace(before, size=2 * before.size)  # the next bit of the same coordinate
        else:
            inner.append(Digit(dim, divide=distance, size=2, stride=1 << k))
    if len(outer) >= MAX_DIMS:
        raise ProblemFileError("accesses", f"vectors would cut the tile into more than {MAX_DIMS} dimensions")
    return View(shape, (*outer, tuple(inner)))


def vector_steps(access: Access, tile: Tile) -> list[Step]:
    """The steps of an access's vectors: element number b of a vector is the sum of the steps of b's set bits.

    As many as double one element to the width of the access; the file may list more.

    Raises:
        ProblemFileError: the access has no vectors, or its `vector` makes no sense.
    """
    if access.hardware is not None:
        raise ProblemFileError("op", "the hardware by itself knows no vectors that run another way")
    operation = parse_operation(access.op, access.single_width)
    if tile.packed > 1:
        raise ProblemFileError("vector", "elements that share bytes lie along the last dimension")
    count = max(1, operation.width_bytes // tile.element_bytes).bit_length() - 1  # 0 of a part of one
    if access.vector is None:
        return [Step(len(tile.shape) - 1, 1 << k) for k in range(count)]
    steps: list[Step] = []
    for k, vector in enumerate(access.vector):
        nonzero = [Step(d, distance) for d, distance in enumerate(vector) if distance]
        is_step = len(nonzero) == 1 and nonzero[0].distance > 0 and nonzero[0].distance.bit_count() == 1
        if len(vector) != len(tile.shape) or not is_step:
            wanted = f"{len(tile.shape)} numbers, a power of two and else 0"
            raise ProblemFileError(f"vector[{k}]", f"expected {wanted}, got {list(vector)}")
        (step,) = nonzero
        if tile.shape[step.dim] % (2 * step.distance) or step in steps:
            wanted = f"a step of its own, twice which divides the {tile.shape[step.dim]} of x{step.dim}"
            raise ProblemFileError(f"vector[{k}]", f"expected {wanted}, got {step.distance}")
        steps.append(step)
    if len(steps) < count:
        wrong = f"{1 << count} elements of a vector need {count} steps, got {len(steps)}"
        raise ProblemFileError("vector", wrong)
    return steps[:count]
