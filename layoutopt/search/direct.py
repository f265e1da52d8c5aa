"""Layouts for AMD's direct loads, whose lanes write side by side from one base a wave.

Whole runs of elements, as many as a wave writes at once, lie in one piece. What is left to choose is how the
tile is cut into them: its dimensions in any order, its last one cut into vectors (pages of columns), its rows
in turn, the pieces that the accesses themselves keep together, a pad after every run or several, or an XOR
that the load's own index has. The conflict engine keeps what serves.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from layoutopt.accesses.trace import Trace
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import OutOfTime, checkpoint
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.problems.types import Problem, Tile
from layoutopt.search.modes import Cut, Named, laid
from layoutopt.search.tables import MAX_LOOKUP

SAID: Final = (
    "direct loads: orders, pages, rows in turn, as waves write, "
    "a pad after whole runs of a wave, XORs of bits"
)
NOT_ALL: Final = "none of the layouts that are listed for direct loads; there may be others"
_MOST_PERMUTED = 3  # dimensions that are put in every order
_MOST_FLIPPED = 5  # bits of 32 banks
_MOST_SHIFT = 8  # bits from a flipped one up to the one that flips it
_MOST_LOWS: Final = 3  # bits from which a swizzle of the row-major layout may begin
_PAD_VECTORS = (1, 2, 4, 8)  # lengths of a pad, in vectors of the widest access
_MOST_TURNS: Final = 6  # ways of taking the rows in turn


def direct_layouts(problem: Problem, lanes: Trace) -> Iterator[Named]:
    """Candidates with their names, the plainest first; some more than once.

    Args:
        problem: over whole bytes.
        lanes: of its accesses.

    Raises:
        OutOfTime: the time was over before the last.
    """
    tile, element_bytes = problem.tile, problem.tile.element_bytes
    widths = [access.operation.width_bytes for access in lanes.accesses]
    vector = max(1, max(widths) // element_bytes)  # elements of the widest access
    wave = lanes.accesses[0].element.shape[1]
    # Elements that a wave writes at once, and 2, 4 and 8 times as many.
    runs = sorted({n * wave * width // element_bytes for width in widths for n in (1, 2, 4, 8)} - {0})
    unpadded = itertools.chain(_linear(tile, vector), _in_turn(tile, runs), _as_written(tile, lanes))
    for name, layout in unpadded:
        yield name, layout
        for every, vectors in itertools.product(runs, _PAD_VECTORS):
            if every < tile.elements:
                yield f"{name}, pad", _padded(layout, every, vectors * vector)
        if layout.digits:  # else it is a table
            # Lower bits of an offset lie inside a vector, which stays whole.
            lowest = (vector - 1).bit_length()
            lows = range(lowest, lowest + (_MOST_LOWS if name == "row-major" else 1))
            for targets in _swizzles((tile.elements - 1).bit_length(), lows):
                yield f"{name}, xor", replace(layout, swizzle=targets)


def _swizzles(bits: int, lows: Sequence[int]) -> Iterator[tuple[Target, ...]]:
    """Swizzles of offsets of `bits` bits: bits from one of `lows` on, each flipped by that `shift` above."""
    for low in lows:
        for count, shift in itertools.product(range(1, _MOST_FLIPPED + 1), range(1, _MOST_SHIFT + 1)):
            if shift >= count and low + count + shift <= bits:
                yield tuple(Target(low + k, 1 << (low + k + shift)) for k in range(count))


def _padded(layout: Layout, every: int, extra: int) -> Layout:
    if layout.digits:
        return replace(layout, interval=(every, extra))
    return replace(layout, lookup=tuple(at + at // every * extra for at in layout.lookup))


def _in_turn(tile: Tile, runs: list[int]) -> Iterator[Named]:
    """Layouts whose rows, or groups of rows, lie in another order, so that others are neighbours in banks.

    Of 8 rows, one by one in 4 turns: rows 0, 4, 1, 5, 2, 6, 3, 7. A group is as many whole rows as there are
    in a run: `runs` has the elements that instructions write side by side.
    """
    tile_rows, row_elements = tile.shape[0], math.prod(tile.shape[1:])
    groups = dict.fromkeys(max(1, run // row_elements) for run in runs)
    turned = itertools.product(groups, (2**k for k in range(1, tile_rows.bit_length())))
    even = ((n, turns) for n, turns in turned if n * turns < tile_rows and tile_rows % (n * turns) == 0)
    for rows, turns in itertools.islice(even, _MOST_TURNS):
        cuts = [(0, rows, turns), (0, rows * turns, tile_rows // (rows * turns))]
        cuts += [(0, 1, rows)] if rows > 1 else []
        yield f"rows in turn by {turns}", _tight(tile, [*cuts, *_whole(tile)[1:]])


def _as_written(tile: Tile, lanes: Trace) -> Iterator[Named]:
    """One piece after another: `as waves write`, as a formula where there is one, else as a table.

    A piece is what one direct load of a wave writes, whose inside the hardware fixes: only their order is
    chosen, that of their first elements or that of writing.
    """
    found = pieces(tile, lanes)
    element_bytes = tile.element_bytes
    for byte_offsets in found.one_after_another(element_bytes, lanes) if found is not None else ():
        if (byte_offsets % element_bytes).any():
            continue  # a layout counts in whole elements
        offsets = byte_offsets // element_bytes
        digits = _digits(offsets.reshape(tile.shape))
        if digits is not None:
            yield "as waves write", Layout(tile.shape, element_bytes, digits)
        elif offsets.size <= MAX_LOOKUP:
            yield "as waves write", Layout(tile.shape, element_bytes, (), lookup=tuple(offsets.tolist()))


class Pieces(NamedTuple):
    """Elements that every layout holds at fixed distances: what a wave writes at once, and whole vectors."""

    head: IntArray  # of each element the first of its piece, by row-major index
    place: IntArray  # bytes from the start of the piece to each element
    written: IntArray  # the first element that each wave writes in each instruction

    def one_after_another(self, element_bytes: int, lanes: Trace) -> Iterator[IntArray]:
        """Byte offsets of all elements, twice: pieces in the order of their heads, and in that of writing."""
        widths = [access.operation.width_bytes for access in lanes.accesses]
        alignment = math.lcm(*(width & -width for width in widths))
        piece_bytes = np.zeros(len(self.head), np.int64)  # by head
        np.maximum.at(piece_bytes, self.head, self.place + element_bytes)
        piece_bytes = -(-piece_bytes // alignment) * alignment
        heads = np.unique(self.head).tolist()
        as_written = list(dict.fromkeys([*self.head[self.written].tolist(), *heads]))
        for order in (heads, as_written):
            base = np.zeros(len(self.head), np.int64)
            base[order] = np.concatenate([[0], np.cumsum(piece_bytes[order])[:-1]])
            yield base[self.head] + self.place


def pieces(tile: Tile, lanes: Trace) -> Pieces | None:
    """The pieces that the accesses keep together.

    None where no layout can keep them: two elements would need two distances, or overlap.

    Raises:
        OutOfTime: the time was over before all pairs were joined.
    """
    fixed, written = _fixed_distances(tile, lanes)
    head, place = _joined(tile.elements, fixed)
    if (place[fixed.start] + fixed.distance != place[fixed.end]).any():
        return None  # two accesses want two distances
    # Elements may lie before the head of their piece: count from the lowest of it instead.
    lowest = np.zeros(tile.elements, np.int64)  # by head
    np.minimum.at(lowest, head, place)
    place = place - lowest[head]
    by_place = np.lexsort((place, head))
    overlap = (np.diff(place[by_place]) < tile.element_bytes) & (np.diff(head[by_place]) == 0)
    return None if overlap.any() else Pieces(head, place, written)


class _Fixed(NamedTuple):
    """Pairs of elements at a fixed distance: arrays of equal length, the distance in bytes."""

    start: IntArray
    end: IntArray
    distance: IntArray


def _fixed_distances(tile: Tile, lanes: Trace) -> tuple[_Fixed, IntArray]:
    """Pairs of elements whose distance an access fixes, and `Pieces.written`."""
    pairs, written = [np.zeros((3, 0), np.int64)], [np.zeros(0, np.int64)]
    for access in lanes.accesses:
        checkpoint()
        starts = access.starts
        for k in range(1, access.width_elements):
            pairs.append(np.array([starts, starts + k, np.full_like(starts, k * tile.element_bytes)]))
        if access.operation.kind == "load.lds":  # lanes write side by side
            row, lane = np.nonzero(access.active)
            first_lane = access.active.argmax(axis=1)[row]
            first = access.element[row, first_lane]
            distance = (lane - first_lane) * access.operation.width_bytes
            pairs.append(np.array([first, access.element[row, lane], distance]))
            written.append(first)
    return _Fixed(*np.concatenate(pairs, axis=1)), np.concatenate(written)


def _joined(elements: int, fixed: _Fixed) -> tuple[IntArray, IntArray]:
    """For every element, the first of its piece (its head), and the bytes from there to it.

    Each step hangs heads below earlier heads, as union-find does: every head that a pair joins to an earlier
    one moves below it (by its first such pair), until the two elements of every pair have one head.
    """
    head, place = np.arange(elements), np.zeros(elements, np.int64)
    while (apart := head[fixed.start] != head[fixed.end]).any():
        checkpoint()
        start, end, distance = (pairs[apart] for pairs in fixed)
        between_heads = place[start] + distance - place[end]
        between_heads = np.where(head[start] < head[end], between_heads, -between_heads)
        later, pair = np.unique(np.maximum(head[start], head[end]), return_index=True)
        earlier = np.minimum(head[start], head[end])[pair]
        head[later], place[later] = earlier, between_heads[pair]
        while (head[head] != head).any():
            place, head = place + place[head], head[head]
    return head, place


def may_be_others(problem: Problem, lanes: Trace) -> bool:
    """Whether there may be a layout that is not listed: the tile fits and nothing contradicts itself."""
    limit = problem.layout.max_bytes
    if limit is not None and limit < problem.tile.bytes:
        return False
    try:
        return pieces(problem.tile, lanes) is not None
    except OutOfTime:
        return True


def _digits(places: IntArray) -> tuple[Digit, ...] | None:
    """The digits of coordinates whose strides give these element offsets, of the tile's shape; or None."""
    found = [Digit(dim, 1, size=1, stride=0) for dim, extent in enumerate(places.shape) if extent == 1]
    for dim, extent in enumerate(places.shape):
        along = places[tuple(slice(None) if d == dim else 0 for d in range(places.ndim))]
        divide = 1
        while divide < extent:
            rest = along[::divide]
            stride = int(rest[1])
            size = next((k for k in range(2, len(rest)) if rest[k] != k * stride), len(rest))
            while len(rest) % size:
                size -= 1
            if stride < 0 or size < 2:
                return None
            found.append(Digit(dim, divide, size, stride))
            divide *= size
    digits = tuple(sorted(found, key=lambda digit: -digit.stride if digit.size > 1 else -math.inf))
    same = (Layout(places.shape, 1, digits).element_offset(*np.indices(places.shape)) == places).all()
    return digits if same else None


def _linear(tile: Tile, vector: int) -> Iterator[Named]:
    """Row-major, the dimensions in other orders, and pages of whole vectors of the last dimension."""
    whole, columns = _whole(tile), tile.shape[-1]
    for order in itertools.permutations(whole) if len(whole) <= _MOST_PERMUTED else [tuple(whole)]:
        dims = [dim for dim, *_ in order]
        yield "row-major" if dims == sorted(dims) else f"order {dims}", _tight(tile, order)
    wide, last = vector, len(whole) - 1
    while wide < columns and columns % wide == 0:
        pages = [(last, wide, columns // wide), *whole[:-1], (last, 1, wide)]
        yield f"pages of {wide} columns", _tight(tile, pages)
        wide *= 2


def _whole(tile: Tile) -> list[Cut]:
    """Every dimension in one piece."""
    return [(dim, 1, extent) for dim, extent in enumerate(tile.shape)]


def _tight(tile: Tile, cuts: Sequence[Cut]) -> Layout:
    """The pieces of coordinates, slowest first, without gaps."""
    return Layout(tile.shape, tile.element_bytes, laid(reversed(cuts)))
