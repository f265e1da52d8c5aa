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

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.errors import ProblemFileError, under
from layoutopt.expressions.grammar import Const, Node, Op, Var, joined, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.operations import parse_operation
from layoutopt.layout.formula import coordinate_ranges
from layoutopt.layout.layout import Digit, Layout
from layoutopt.problems.types import Access, Problem, Tile

Step = tuple[int, int]  # a dimension, and how far in it: a power of two
MAX_DIMS: Final = 8  # of a layout


class Piece(NamedTuple):
    """`x_dim // divide % size` of the tile's own coordinates."""

    dim: int
    divide: int
    size: int


class View(Struct, frozen=True, dict=True):
    """New coordinates of a tile, each a mixed-radix number whose digits are pieces of the tile's own.

    Attributes:
        shape: of the tile itself.
        dims: the pieces of every new coordinate, fastest piece first; the slowest coordinate first.
    """

    shape: tuple[int, ...]
    dims: tuple[tuple[Piece, ...], ...]

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Extents of the new coordinates."""
        return tuple(math.prod(piece.size for piece in pieces) for pieces in self.dims)

    @cached_property
    def element(self) -> IntArray:
        """int64 row-major index in the tile itself, by row-major index in the view."""
        x = np.indices(self.shape, sparse=True)
        seen = [
            sum(x[p.dim] // p.divide % p.size * unit for p, unit in _with_units(pieces))
            for pieces in self.dims
        ]
        place = np.ravel_multi_index(np.broadcast_arrays(*seen), self.seen_shape).ravel()
        found = np.empty_like(place)
        found[place] = np.arange(len(place))
        return found

    def problem(self, problem: Problem) -> Problem:
        """The problem over the view's coordinates, where every vector runs along the last dimension.

        Args:
            problem: over the tile's own coordinates and whole bytes, with one width for each access.

        Raises:
            ProblemFileError: it prescribes an order of the tile's own dimensions.
        """
        if problem.layout.order is not None:
            raise ProblemFileError("layout.order", "cannot be given where vectors run another way")
        accesses = tuple(
            msgspec.structs.replace(a, index=self._index(a), vector=None) for a in problem.accesses
        )
        tile = Tile(self.seen_shape, problem.tile.element)
        layout = msgspec.structs.replace(problem.layout, offset=None)
        return msgspec.structs.replace(
            problem, tile=tile, accesses=accesses, layout=layout, published=None, known_optimum=None
        )

    def _index(self, access: Access) -> tuple[str, ...]:
        variables = frozenset({"tid", "lane", "warp", *access.loops, *access.any})
        own = [parse(str(text), variables) for text in access.index]
        return tuple(to_text(self._coordinate(pieces, own)) for pieces in self.dims)

    def _coordinate(self, pieces: tuple[Piece, ...], own: list[Node]) -> Node:
        parts = []
        for piece, unit in _with_units(pieces):
            node = own[piece.dim]
            if piece.divide > 1:
                node = Op("//", (node, Const(piece.divide)))
            if piece.divide * piece.size < self.shape[piece.dim]:
                node = Op("%", (node, Const(piece.size)))
            if unit > 1:
                node = Op("*", (node, Const(unit)))
            parts.append(node)
        return joined("+", parts)

    def offset(self, own: Node) -> Node:
        """An offset over the tile's own coordinates, over those that are seen."""
        parts: dict[str, list[Node]] = {}
        for k, pieces in enumerate(self.dims):
            for piece, unit in _with_units(pieces):
                digit: Node = Var(f"x{k}")
                if len(pieces) > 1:
                    digit = Op("%", (Op("//", (digit, Const(unit))), Const(piece.size)))
                parts.setdefault(f"x{piece.dim}", []).append(Op("*", (digit, Const(piece.divide))))
        own = substituted(own, {name: joined("+", mine) for name, mine in parts.items()})
        return simplify(own, coordinate_ranges(self.seen_shape))

    def turned_back(self, layout: Layout) -> Layout:
        """A layout of the tile as it is seen, as one of the tile itself."""
        digits = [part for digit in layout.digits for part in self._own_digits(digit)]
        cut_line = layout.turn and len(self._own_digits(layout.digits[-1])) > 1
        if layout.lookup or cut_line:
            table = layout.table().ravel() // layout.element_bytes
            own = np.empty_like(table)
            own[self.element] = table
            return Layout(self.shape, layout.element_bytes, (), lookup=tuple(own.tolist()))
        return msgspec.structs.replace(layout, shape=self.shape, digits=tuple(digits))

    def _own_digits(self, digit: Digit) -> list[Digit]:
        """A digit in the tile's own coordinates, slowest first."""
        found = []
        for piece, unit in _with_units(self.dims[digit.dim]):
            low, high = max(digit.divide, unit), min(digit.divide * digit.size, unit * piece.size)
            if len(self.dims[digit.dim]) == 1:
                high = digit.divide * digit.size
            if low < high:
                stride = digit.stride * (low // digit.divide)
                found.append(Digit(piece.dim, piece.divide * (low // unit), high // low, stride))
        return found[::-1]


def _with_units(pieces: tuple[Piece, ...]) -> list[tuple[Piece, int]]:
    units, unit = [], 1
    for piece in pieces:
        units.append(unit)
        unit *= piece.size
    return list(zip(pieces, units, strict=True))


def view_of(problem: Problem) -> View | None:
    """The view that a problem's vectors need; None where all run along the last dimension.

    Raises:
        ProblemFileError: a `vector` makes no sense, or two accesses' vectors contradict each other.
    """
    if all(access.vector is None for access in problem.accesses):
        return None
    shape, longest, by = problem.tile.shape, list[Step](), ""
    for i, access in enumerate(problem.accesses):
        with under(f"accesses[{i}]"):
            own = steps_of(access, problem.tile)
            shorter, longer = sorted((own, longest), key=len)
            if longer[: len(shorter)] != shorter:
                raise ProblemFileError("vector", f"its elements lie in another order than those of {by!r}")
        if len(own) > len(longest):
            longest, by = own, access.name
    return view_along(shape, longest)


def view_along(shape: tuple[int, ...], steps: list[Step]) -> View | None:
    """The view in which these steps come first, each twice as far as the one before it.

    None where that is the last dimension as it is.

    Raises:
        ProblemFileError: the coordinates would be cut into too many pieces.
    """
    dims = {d for d, _ in steps}
    if [far for _, far in steps] == [1 << k for k in range(len(steps))] and len(dims) == 1:
        (last,) = dims
        order = [*(d for d in range(len(shape)) if d != last), last]
        if last == len(shape) - 1:
            return None
        return View(shape, tuple((Piece(d, 1, shape[d]),) for d in order))
    if not steps:
        return None
    outer = []
    for d, extent in enumerate(shape):
        used = sorted(far for dim, far in steps if dim == d)
        cuts = sorted({1, *used, *(2 * far for far in used), extent})
        pieces = [Piece(d, a, b // a) for a, b in itertools.pairwise(cuts)]
        pieces = pieces or [Piece(d, 1, 1)]
        outer += [(piece,) for piece in reversed(pieces) if piece.divide not in used]
    inner: list[Piece] = []
    for dim, far in steps:
        if inner and inner[-1].dim == dim and inner[-1].divide * inner[-1].size == far:
            inner[-1] = inner[-1]._replace(size=2 * inner[-1].size)
        else:
            inner.append(Piece(dim, far, 2))
    if len(outer) >= MAX_DIMS:
        raise ProblemFileError("accesses", f"vectors would cut the tile into more than {MAX_DIMS} dimensions")
    return View(shape, (*outer, tuple(inner)))


def steps_of(access: Access, tile: Tile) -> list[Step]:
    """From the first element of a vector to each that a bit of its number adds."""
    if access.hardware is not None:
        raise ProblemFileError("op", "the hardware by itself knows no vectors that run another way")
    operation = parse_operation(access.op, access.single_width)
    if tile.packed > 1:
        raise ProblemFileError("vector", "elements that share bytes lie along the last dimension")
    count = max(1, operation.width_bytes // tile.element_bytes).bit_length() - 1
    if access.vector is None:
        return [(len(tile.shape) - 1, 1 << k) for k in range(count)]
    found: list[Step] = []
    for k, vector in enumerate(access.vector):
        used = [(d, far) for d, far in enumerate(vector) if far]
        if len(vector) != len(tile.shape) or len(used) != 1 or used[0][1] < 0 or used[0][1].bit_count() > 1:
            wanted = f"{len(tile.shape)} numbers, a power of two and else 0"
            raise ProblemFileError(f"vector[{k}]", f"expected {wanted}, got {list(vector)}")
        ((dim, far),) = used
        if tile.shape[dim] % (2 * far) or used[0] in found:
            wanted = f"a step of its own, twice which divides the {tile.shape[dim]} of x{dim}"
            raise ProblemFileError(f"vector[{k}]", f"expected {wanted}, got {far}")
        found.append(used[0])
    if len(found) < count:
        wrong = f"{1 << count} elements of a vector need {count} steps, got {len(found)}"
        raise ProblemFileError("vector", wrong)
    return found[:count]
