"""Linearisations with pads, by rising bytes.

The candidates of a new family (`layoutopt.layout.families`) are one more entry of `PADDED`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from layoutopt.model.linearisations import (
    MAX_CUTS,
    MAX_DIGITS,
    Linearisation,
    Piece,
    Space,
    Structure,
    by_cost,
    candidate_of,
    cut_points,
    keeps_vectors,
    least_operations_of,
    rotated,
    stride_units,
    strides_of,
    structures,
    turned,
    unpadded,
)

# No candidate is below this by `by_cost`; and what gives them by rising span.
Stream = tuple[tuple[int, int], Callable[[], Iterator[Linearisation]]]
# Cuts, and how many strides are padded with them.
_PADDED = ((0, 2), (1, 1))


def unswizzled(space: Space) -> Iterator[Linearisation]:
    """Every candidate of the families that flip no bits: those without pads, then pads by rising span."""
    for cuts in range(MAX_CUTS + 1):
        yield from unpadded(space, cuts)
    yield from rotated(space)
    yield from padded(space)


def padded(space: Space, cuts: bool = True) -> Iterator[Linearisation]:
    """Candidates with at least one pad, by rising span; without `cuts`, of whole dimensions only."""
    yield from _rising(
        stream
        for name, streams in PADDED.items()
        if name in space.families
        for stream in streams(space, cuts)
    )


def _pad_streams(space: Space, cuts: bool) -> Iterator[Stream]:
    """One or two padded strides, or one beside a cut; with rotations, the lines at a padded pitch, too."""
    for count_of_cuts, levels in _PADDED if cuts else _PADDED[:1]:
        for structure in structures(space, count_of_cuts):
            if len(structure) > 1:
                # Where alignment demands pads of its own, it may swallow what others move.
                least = _spans(space, structure)({}) + min(size for _, _, size in structure) - 1
                bound = least, least_operations_of(structure, space.shape)
                yield bound, partial(_pads_of, space, structure, levels)
                if (turned_in := _around_one(space, structure)) is not None:
                    yield bound, partial(_pads_of, space, turned_in, levels, around_one=True)


def _around_one(space: Space, structure: Structure) -> Structure | None:
    """With a dimension of one element inside: the pad of such a line is a stride of what lies around it."""
    single = next((piece for piece in structure if piece[2] == 1), None)
    barred = single is None or structure[-1][2] == 1 or space.vector > 1
    if single is None or barred or "order" not in space.families or space.order:
        return None
    return (*(piece for piece in structure if piece is not single), single)


def _pads_of(
    space: Space, structure: Structure, levels: int, *, around_one: bool = False
) -> Iterator[Linearisation]:
    """One structure with one pad, or up to `levels`, by rising span; `around_one`: of the innermost, too."""
    gaps = [gap for gap, (_, _, size) in enumerate(structure[:-1]) if size > 1]
    inners = [len(structure) - 2] if around_one else gaps
    if not keeps_vectors(space, structure):
        return
    span = _spans(space, structure)
    operations = least_operations_of(structure, space.shape)
    streams: list[Stream] = []
    for gap in inners:
        bound = span({gap: _pads(space, structure[gap])[0]}), operations
        streams.append((bound, partial(_pad_stream, space, structure, (gap,), ())))
    if levels == 2 and "rotate" in space.families and not around_one:
        bound = span({}), operations
        streams.append((bound, partial(_rotated_pads, space, structure)))
    for outer, inner in itertools.product(gaps, inners) if levels == 2 else ():
        if outer >= inner:
            continue
        firsts = {gap: _pads(space, structure[gap])[0] for gap in (outer, inner)}
        bound = span(firsts), operations
        streams.append((bound, partial(_pairs_of, space, structure, outer, inner)))
    yield from _rising(streams)


def _pairs_of(space: Space, structure: Structure, outer: int, inner: int) -> Iterator[Linearisation]:
    """One structure with two pads, by rising span."""
    operations = least_operations_of(structure, space.shape)
    span, first = _spans(space, structure), _pads(space, structure[outer])[0]
    streams = (
        (
            (span({outer: first, inner: pad}), operations),
            partial(_pad_stream, space, structure, (outer, inner), (pad,)),
        )
        for pad in _pads(space, structure[inner])
    )
    yield from _rising(streams, sorted_bounds=True)


def _spans(space: Space, structure: Structure) -> Callable[[dict[int, int]], int]:
    """A function: the span with these pads, whether or not there is such a candidate."""
    units = stride_units(space, structure)
    sizes = [size for _, _, size in reversed(structure)]

    def span(pads: dict[int, int]) -> int:
        strides = strides_of(structure, units, [pads.get(gap, 0) for gap in range(len(structure))])
        return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))

    return span


def _rotated_pads(space: Space, structure: Structure) -> Iterator[Linearisation]:
    for plain in _pad_stream(space, structure, (len(structure) - 2,), ()):
        yield from turned(space, plain)


def _interval_streams(space: Space, cuts: bool) -> Iterator[Stream]:
    """A pad after every N elements of a dense order."""
    for structure in structures(space, 0) if space.stride_multiple == 1 else ():
        bound = math.prod(space.shape) + 1, least_operations_of(structure, space.shape) + 2
        yield bound, partial(_intervals_of, space, structure)


def _intervals_of(space: Space, structure: Structure) -> Iterator[Linearisation]:
    """One structure, where it is dense, with interval pads, by rising span."""
    plain = candidate_of(space, structure, (0,) * (len(structure) - 1))
    if plain is None or plain.span != math.prod(space.shape):
        return
    yield from _rising(
        (
            (plain.span + (plain.span - 1) // every, plain.operations + 2),
            partial(_interval_stream, space, plain, every),
        )
        for every in _intervals(space, plain)
    )


def _rising(streams: Iterable[Stream], *, sorted_bounds: bool = False) -> Iterator[Linearisation]:
    """All candidates of the streams, each by rising span, in the order of `by_cost`.

    Of equal candidates those of the first stream come first. A stream is opened when nothing below its
    bound is left, and with `sorted_bounds` (they rise) not even asked for before: a tile of eight
    dimensions has millions, of which few are ever looked at.
    """
    opens: dict[int, Callable[[], Iterator[Linearisation]]] = {}
    # Span, operations and number of the stream, which no two share; then its first candidate and the rest.
    heap: list[tuple[int, int, int, Linearisation | None, Iterator[Linearisation] | None]] = []
    numbered = enumerate(streams)
    for number, (bound, start) in itertools.islice(numbered, 1) if sorted_bounds else numbered:
        opens[number] = start
        heap.append((*bound, number, None, None))
    heapq.heapify(heap)
    while heap:
        _, _, number, candidate, rest = heapq.heappop(heap)
        if candidate is not None:
            yield candidate
        if rest is None:
            rest = opens.pop(number)()
            for later, (bound, start) in itertools.islice(numbered, 1):
                opens[later] = start
                heapq.heappush(heap, (*bound, later, None, None))
        following = next(rest, None)
        if following is not None:
            heapq.heappush(heap, (*by_cost(following), number, following, rest))


def _intervals(space: Space, plain: Linearisation) -> list[int]:
    """Powers of two from 2 on, and lengths that cut one dimension evenly; multiples of the widest vector.

    Of the latter those are left out that pads of whole dimensions, or a pad beside a cut, are searched for.
    """
    found = {1 << bit for bit in range(1, plain.span.bit_length())}
    pads = "pad" in space.families
    cuts = pads and "split" in space.families and not space.order and len(space.shape) < MAX_DIGITS
    for digit in plain.digits:
        if not pads:
            found |= {digit.stride, digit.stride * digit.size}
        if not cuts:
            found |= {digit.stride * cut for dim, cut in cut_points(space.shape) if dim == digit.dim}
    return sorted(every for every in found if 1 < every < plain.span and every % space.vector == 0)


def _interval_stream(space: Space, plain: Linearisation, every: int) -> Iterator[Linearisation]:
    """A pad after every `every` elements, growing: spans rise."""
    unit = space.multiple
    if any(d.stride % unit for d in plain.digits[:-1]):
        return
    for extra in range(unit, max(space.period, unit + 1), unit):
        yield replace(
            plain,
            span=plain.span + (plain.span - 1) // every * extra,
            # A shift and an addition, perhaps a multiplication.
            operations=plain.operations + 2 + (extra > 1),
            family="interval" if plain.family == "none" else f"{plain.family}+interval",
            may_swizzle=False,
            interval=(every, extra),
        )


def _pads(space: Space, piece: Piece) -> range:
    unit = space.unit(piece)
    return range(unit, max(space.period, unit + 1), unit)


def _pad_stream(
    space: Space, structure: Structure, where: tuple[int, ...], fixed: tuple[int, ...]
) -> Iterator[Linearisation]:
    """One pad growing, the faster ones fixed: spans rise."""
    for amount in _pads(space, structure[where[0]]):
        pads = [0] * (len(structure) - 1)
        for place, pad in zip(where, (amount, *fixed), strict=True):
            pads[place] = pad
        candidate = candidate_of(space, structure, tuple(pads))
        if candidate is None:
            return
        yield candidate


# What families with pads hold, in streams of rising span. The second argument says whether cuts may be used.
PADDED: Final[dict[str, Callable[[Space, bool], Iterable[Stream]]]] = {
    "pad": _pad_streams,
    "interval": _interval_streams,
}
