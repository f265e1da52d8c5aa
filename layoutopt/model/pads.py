"""Linearisations with pads, by rising bytes.

The candidates of a new family (`layoutopt.layout.families`) are one more entry of `PADDED`.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from msgspec.structs import replace

from layoutopt.ground.budget import checkpoint
from layoutopt.model.linearisations import (
    MAX_CUTS,
    MAX_DIGITS,
    Linearisation,
    by_cost,
    candidate_of,
    cut_points,
    keeps_whole,
    least_operations_of,
    least_units,
    lines,
    rotated,
    stride_units,
    strides_of,
    structures,
    turned,
    unpadded,
)
from layoutopt.model.pitches import by_span, most_elements, most_pad, row_major_operations
from layoutopt.model.space import Space, Structure

# No candidate is below this by `by_cost`; and what gives them by rising span.
Stream = tuple[tuple[int, int], Callable[[], Iterator[Linearisation]]]


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
    """Pads on whole dimensions, or one beside a cut; with rotations, the lines at a padded pitch, too."""
    least, cost = math.prod(space.shape), row_major_operations(space.shape)
    yield (least, cost), partial(by_span, space, most_elements(space), padded=True)
    if "rotate" in space.families:
        for structure in lines(space):
            if len(structure) > 1:
                least = _spans(structure, least_units(space, structure))({})
                yield (least, cost), partial(_rotated_pads, space, structure)
    for structure in structures(space, 1) if cuts else ():
        # Where alignment demands pads of its own, it may swallow what others move.
        least = _spans(structure, _units(space, structure))({}) + min(size for _, _, size in structure) - 1
        yield (least, least_operations_of(structure, space.shape)), partial(_pads_of, space, structure)


def _pads_of(space: Space, structure: Structure) -> Iterator[Linearisation]:
    """Candidates of one structure with one pad, by rising span."""
    operations = least_operations_of(structure, space.shape)
    gaps = [gap for gap, (_, _, size) in enumerate(structure[:-1]) if size > 1]
    every = [stride_units(space, structure)]
    if not space.congruences(structure).one_by_one:  # some are aligned only together
        every.append(least_units(space, structure))
    streams: list[Stream] = []
    for units in every:
        span = _spans(structure, units)
        for gap in gaps:
            least = span({gap: units[gap]}), operations
            streams.append((least, partial(_pad_stream, space, structure, gap, units)))
    yield from _rising(streams)


def _units(space: Space, structure: Structure) -> list[int]:
    """What strides are multiples of, be they aligned by themselves or in sum."""
    if space.starts and not space.congruences(structure).one_by_one:
        return least_units(space, structure)
    return stride_units(space, structure)


def _spans(structure: Structure, units: list[int]) -> Callable[[dict[int, int]], int]:
    """A function: the span with these pads, whether or not there is such a candidate."""
    sizes = [size for _, _, size in reversed(structure)]

    def span(pads: dict[int, int]) -> int:
        strides = strides_of(structure, units, [pads.get(gap, 0) for gap in range(len(structure))])
        return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))

    return span


def _rotated_pads(space: Space, structure: Structure) -> Iterator[Linearisation]:
    """Every rotation of the lines of one structure, at every padded pitch, by rising span."""
    units, none, gap = least_units(space, structure), (0,) * (len(structure) - 1), len(structure) - 2
    dense = candidate_of(space, structure, none, units)
    if dense is None:
        return
    known = candidate_of(space, structure, none) if space.starts else dense
    for amount in range(units[gap], most_pad(space, structure[gap]) + 1, units[gap]):
        plain = candidate_of(space, structure, (*none[:-1], amount), units)
        if plain is not None and plain != known:  # `rotated` has these
            yield from turned(space, plain)


def _interval_streams(space: Space, cuts: bool) -> Iterator[Stream]:
    """A pad after every N elements of a dense order."""
    for structure in structures(space, 0) if space.stride_multiple == 1 else ():
        bound = math.prod(space.shape) + 1, least_operations_of(structure, space.shape) + 2
        yield bound, partial(_intervals_of, space, structure)


def _intervals_of(space: Space, structure: Structure) -> Iterator[Linearisation]:
    """Candidates of a dense structure with interval pads, by rising span; none where it is not dense."""
    dense = (0,) * (len(structure) - 1)
    plain = candidate_of(space, structure, dense, least_units(space, structure))
    if plain is None:
        return
    yield from _rising(
        (
            (plain.span + (plain.span - 1) // every, plain.operations + 2),
            partial(_interval_stream, space, plain, every),
        )
        for every in _intervals(space, plain)
    )


def _rising(streams: Iterable[Stream]) -> Iterator[Linearisation]:
    """A lazy merge of sorted streams: their candidates by `by_cost`, equal ones in the order of the streams.

    A stream is opened only when its bound is the least that is left: a tile of eight dimensions has
    millions of candidates, of which few are ever looked at.
    """
    unopened = dict(enumerate(streams))
    heads: dict[int, tuple[Linearisation, Iterator[Linearisation]]] = {}  # the next of each open stream
    heap = [(*bound, number) for number, (bound, _) in unopened.items()]
    heapq.heapify(heap)
    while heap:
        number = heapq.heappop(heap)[-1]
        if number in unopened:
            rest = unopened.pop(number)[1]()
        else:
            candidate, rest = heads.pop(number)
            yield candidate
        following = next(rest, None)
        if following is None:
            checkpoint()
        else:
            heads[number] = following, rest
            heapq.heappush(heap, (*by_cost(following), number))


def _intervals(space: Space, plain: Linearisation) -> list[int]:
    """Powers of two from 2 on, and lengths that cut one dimension evenly.

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
    return sorted(every for every in found if 1 < every < plain.span)


def _interval_stream(space: Space, plain: Linearisation, every: int) -> Iterator[Linearisation]:
    """A pad after every `every` elements, growing: spans rise."""
    # With every access within the elements between two pads, what matters is how long pads are modulo this.
    kept: dict[int, bool] = {}
    for extra in range(1, max(space.period, space.multiple + 1)):
        checkpoint()
        candidate = replace(
            plain,
            span=plain.span + (plain.span - 1) // every * extra,
            # A shift and an addition, perhaps a multiplication.
            operations=plain.operations + 2 + (extra > 1),
            family="interval" if plain.family == "none" else f"{plain.family}+interval",
            may_swizzle=False,
            interval=(every, extra),
        )
        amount = extra % space.multiple
        if amount not in kept:
            kept[amount] = keeps_whole(space, candidate)
        if kept[amount]:
            yield candidate


def _pad_stream(space: Space, structure: Structure, gap: int, units: list[int]) -> Iterator[Linearisation]:
    """Candidates with a growing pad at one `gap`, by rising span; strides are multiples of `units`."""
    alone = stride_units(space, structure)
    for amount in range(units[gap], most_pad(space, structure[gap]) + 1, units[gap]):
        candidate = candidate_of(
            space, structure, tuple(amount * (k == gap) for k in range(len(structure) - 1)), units
        )
        if candidate is None:
            return
        apart = any(d.stride % unit for d, unit in zip(candidate.digits, alone, strict=True))
        if units == alone or (apart and keeps_whole(space, candidate)):
            yield candidate


# What families with pads hold, in streams of rising span. The second argument says whether cuts may be used.
PADDED: Final[dict[str, Callable[[Space, bool], Iterable[Stream]]]] = {
    "pad": _pad_streams,
    "interval": _interval_streams,
}
