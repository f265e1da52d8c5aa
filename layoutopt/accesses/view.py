"""A tile seen with its coordinates cut and put in another order, so that vectors run along the last one.

The search knows vectors along the last dimension. Where an access's `vector` says otherwise, the problem is
seen through a view, solved there, and its layout turned back:

    32x64 f32, vectors of four along x0    ->    64x32, index [x1, x0]
    32x64 f16, vectors of 2x2              ->    16x32x4, index [x0 // 2, x1 // 2, x1 % 2 + x0 % 2 * 2]

An order of elements that no dimensions in another order give is cut out of the coordinates bit by bit.
"""

import itertools
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

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


class Piece(NamedTuple):
    """`x_dim // divide % size` of the tile's own coordinates."""

    dim: int
    divide: int
    size: int


class View(Struct, frozen=True, dict=True):
    """New coordinates of a tile, each a mixed-radix number whose digits are pieces of the tile's own."""

    shape: tuple[int, ...]  # of the tile itself
    # The pieces of every new coordinate, fastest piece first; the slowest coordinate first
    dims: tuple[tuple[Piece, ...], ...]

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Extents of the new coordinates."""
        return tuple(math.prod(piece.size for piece in pieces) for pieces in self.dims)

    @cached_property
    def tile_index(self) -> IntArray:
        """int64 row-major index in the tile itself, by row-major index in the view: shape (elements,)."""
        x = np.indices(self.shape, sparse=True)
        seen = [
            sum(x[p.dim] // p.divide % p.size * stride for p, stride in _with_strides(pieces))
            for pieces in self.dims
        ]
        seen_index = np.ravel_multi_index(np.broadcast_arrays(*seen), self.seen_shape).ravel()
        return np.argsort(seen_index)

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
        return tuple(to_text(self._coordinate(pieces, tile_index)) for pieces in self.dims)

    def _coordinate(self, pieces: tuple[Piece, ...], tile_coordinates: list[Node]) -> Node:
        """The view's coordinate of these pieces, out of expressions for the tile's own coordinates."""
        terms = []
        for piece, stride in _with_strides(pieces):
            node = tile_coordinates[piece.dim]
            if piece.divide > 1:
                node = Op("//", (node, Const(piece.divide)))
            if piece.divide * piece.size < self.shape[piece.dim]:
                node = Op("%", (node, Const(piece.size)))
            if stride > 1:
                node = Op("*", (node, Const(stride)))
            terms.append(node)
        return joined("+", terms)

    def offset(self, offset: Node) -> Node:
        """An offset formula over the tile's own coordinates, rewritten over those of the view."""
        terms: dict[str, list[Node]] = {}
        for k, pieces in enumerate(self.dims):
            for piece, stride in _with_strides(pieces):
                digit: Node = Var(f"x{k}")
                if len(pieces) > 1:
                    digit = Op("%", (Op("//", (digit, Const(stride))), Const(piece.size)))
                terms.setdefault(f"x{piece.dim}", []).append(Op("*", (digit, Const(piece.divide))))
        offset = substituted(offset, {name: joined("+", digits) for name, digits in terms.items()})
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
        """A digit of a coordinate of the view as digits of the tile's own coordinates, slowest first."""
        digits = []
        for piece, stride in _with_strides(self.dims[digit.dim]):
            low, high = max(digit.divide, stride), min(digit.divide * digit.size, stride * piece.size)
            if len(self.dims[digit.dim]) == 1:
                high = digit.divide * digit.size
            if low < high:
                offset_stride = digit.stride * (low // digit.divide)
                digits.append(Digit(piece.dim, piece.divide * (low // stride), high // low, offset_stride))
        return digits[::-1]


def _with_strides(pieces: tuple[Piece, ...]) -> Iterator[tuple[Piece, int]]:
    """Each piece of a coordinate, fastest first, with what it is multiplied by there."""
    stride = 1
    for piece in pieces:
        yield piece, stride
        stride *= piece.size


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

    Args:
        shape: of the tile.
        steps: of the longest vector, from the step to its second element on.

    Returns:
        None where vectors run along the last dimension as it is, or have one element.

    Raises:
        ProblemFileError: the coordinates would be cut into too many pieces.
    """
    vector_dims = {step.dim for step in steps}
    if steps == [Step(steps[0].dim, 1 << k) for k in range(len(steps))]:  # 1, 2, 4, ... of one dimension
        (last,) = vector_dims or {len(shape) - 1}
        if last == len(shape) - 1:
            return None
        order = [*(d for d in range(len(shape)) if d != last), last]
        return View(shape, tuple((Piece(d, 1, shape[d]),) for d in order))
    outer = []
    for d, extent in enumerate(shape):
        in_vector = sorted(step.distance for step in steps if step.dim == d)
        cuts = sorted({1, *in_vector, *(2 * distance for distance in in_vector), extent})
        pieces = [Piece(d, low, high // low) for low, high in itertools.pairwise(cuts)] or [Piece(d, 1, 1)]
        outer += [(piece,) for piece in reversed(pieces) if piece.divide not in in_vector]
    inner: list[Piece] = []
    for dim, distance in steps:
        if inner and inner[-1].dim == dim and inner[-1].divide * inner[-1].size == distance:
            inner[-1] = inner[-1]._replace(size=2 * inner[-1].size)
        else:
            inner.append(Piece(dim, distance, 2))
    if len(outer) >= MAX_DIMS:
        raise ProblemFileError("accesses", f"vectors would cut the tile into more than {MAX_DIMS} dimensions")
    return View(shape, (*outer, tuple(inner)))


def vector_steps(access: Access, tile: Tile) -> list[Step]:
    """The steps of an access's vectors: element number b of a vector is the sum of the steps of b's set bits.

    Raises:
        ProblemFileError: the access has no vectors, or its `vector` makes no sense.
    """
    if access.hardware is not None:
        raise ProblemFileError("op", "the hardware by itself knows no vectors that run another way")
    operation = parse_operation(access.op, access.single_width)
    if tile.packed > 1:
        raise ProblemFileError("vector", "elements that share bytes lie along the last dimension")
    count = max(1, operation.width_bytes // tile.element_bytes).bit_length() - 1
    if access.vector is None:
        return [Step(len(tile.shape) - 1, 1 << k) for k in range(count)]
    steps: list[Step] = []
    for k, vector in enumerate(access.vector):
        nonzero = [Step(d, distance) for d, distance in enumerate(vector) if distance]
        one = len(nonzero) == 1 and nonzero[0].distance > 0 and nonzero[0].distance.bit_count() == 1
        if len(vector) != len(tile.shape) or not one:
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
