"""Linearisations with pads, by rising bytes.

The candidates of a new family (`layoutopt.layout.families`) are one more entry of `PADDED`.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

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
    rotations,
    stride_units,
    strides_of,
    structures,
    unpadded,
)
from layoutopt.model.pitches import by_span, most_elements, most_pad, row_major_operations
from layoutopt.model.space import Space, Structure


class Stream(NamedTuple):
    """Candidates by rising span."""

    bound: tuple[int, int]  # span and operations of all, at least
    candidates: Callable[[], Iterator[Linearisation]]


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
    dense, cost_uncut = math.prod(space.shape), row_major_operations(space.shape)
    yield Stream((dense, cost_uncut), partial(by_span, space, most_elements(space), padded=True))
    if "rotate" in space.families:
        for structure in lines(space):
            if len(structure) > 1:
                least = _span(structure, least_units(space, structure))
                yield Stream((least, cost_uncut), partial(_rotated_pads, space, structure))
    for structure in structures(space, 1) if cuts else ():
        in_sum = space.starts and not space.congruences(structure).one_by_one
        units = least_units(space, structure) if in_sum else stride_units(space, structure)
        # With a stride 1 longer, the last of `size` values lies `size` - 1 later; digits around it may stay
        # where they are, if alignment demands a pad there anyway.
        least = _span(structure, units) + min(size for _, _, size in structure) - 1
        cost = least_operations_of(structure, space.shape)
        yield Stream((least, cost), partial(_pads_of, space, structure))


def _pads_of(space: Space, structure: Structure) -> Iterator[Linearisation]:
    """Candidates of one structure with one pad, by rising span."""
    operations = least_operations_of(structure, space.shape)
    gaps = [gap for gap, (_, _, size) in enumerate(structure[:-1]) if size > 1]
    unit_choices = [stride_units(space, structure)]
    if space.starts and not space.congruences(structure).one_by_one:  # some strides are aligned only in sum
        unit_choices.append(least_units(space, structure))
    streams: list[Stream] = []
    for units in unit_choices:
        for gap in gaps:
            least = _span(structure, units, (0,) * gap + (units[gap],))  # with the least pad there
            streams.append(Stream((least, operations), partial(_pad_stream, space, structure, gap, units)))
    yield from _rising(streams)


def _span(structure: Structure, units: list[int], pads: Sequence[int] = ()) -> int:
    """The span with these pads, slowest first, whether or not there is such a candidate."""
    strides = strides_of(structure, units, pads)
    return 1 + sum((size - 1) * step for (_, _, size), step in zip(reversed(structure), strides, strict=True))


def _rotated_pads(space: Space, structure: Structure) -> Iterator[Linearisation]:
    """Every rotation of the lines of one structure, at every padded pitch, by rising span."""
    units, gap = least_units(space, structure), len(structure) - 2
    dense = candidate_of(space, structure, units=units)
    if dense is None:
        return
    in_rotated = candidate_of(space, structure) if space.starts else dense
    for pad in range(units[gap], most_pad(space, structure[gap]) + 1, units[gap]):
        plain = candidate_of(space, structure, (0,) * gap + (pad,), units)
        if plain is not None and plain != in_rotated:  # `rotated` gives its rotations
            yield from rotations(space, plain)


def _interval_streams(space: Space, cuts: bool) -> Iterator[Stream]:
    """A pad after every N elements of a dense order."""
    for structure in structures(space, 0) if space.stride_multiple == 1 else ():
        bound = math.prod(space.shape) + 1, least_operations_of(structure, space.shape) + 2
        yield Stream(bound, partial(_intervals_of, space, structure))


def _intervals_of(space: Space, structure: Structure) -> Iterator[Linearisation]:
    """Candidates of a dense structure with interval pads, by rising span; none where it is not dense."""
    plain = candidate_of(space, structure, units=least_units(space, structure))
    if plain is None:
        return
    yield from _rising(
        Stream(
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
    heap = [(*stream.bound, number) for number, stream in unopened.items()]  # by span, then operations
    heapq.heapify(heap)
    while heap:
        number = heapq.heappop(heap)[-1]
        if number in unopened:
            rest = unopened.pop(number).candidates()
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
    """The lengths after which a pad may be: powers of two from 2 on, and lengths that cut a dimension evenly.

    Of the latter not those whose layouts the pads of whole dimensions, or beside a cut, give as well.
    """
    found = {1 << bit for bit in range(1, plain.span.bit_length())}
    pads_give_it = "pad" in space.families
    may_cut = "split" in space.families and not space.order and len(space.shape) < MAX_DIGITS
    for digit in plain.digits:
        if not pads_give_it:
            found |= {digit.stride, digit.stride * digit.size}
        if not (pads_give_it and may_cut):
            found |= {digit.stride * cut for dim, cut in cut_points(space.shape) if dim == digit.dim}
    return sorted(every for every in found if 1 < every < plain.span)


def _interval_stream(space: Space, plain: Linearisation, every: int) -> Iterator[Linearisation]:
    """A pad after every `every` elements, growing: spans rise."""
    aligned: dict[int, bool] = {}  # by the pad modulo `space.multiple`, on which alone alignment depends
    # Less than a period, but at least to the first pad by which any access stays aligned.
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
        remainder = extra % space.multiple
        if remainder not in aligned:
            aligned[remainder] = keeps_whole(space, candidate)
        if aligned[remainder]:
            yield candidate


def _pad_stream(space: Space, structure: Structure, gap: int, units: list[int]) -> Iterator[Linearisation]:
    """Candidates with a growing pad of one digit, by rising span.

    Args:
        gap: the digit, counted from the slowest.
        units: of which strides are multiples. Where these are not what aligns each stride by itself, only
            candidates whose strides are aligned in sum alone.
    """
    by_itself = stride_units(space, structure)
    for pad in range(units[gap], most_pad(space, structure[gap]) + 1, units[gap]):
        pads = tuple(pad * (k == gap) for k in range(len(structure) - 1))
        candidate = candidate_of(space, structure, pads, units)
        if candidate is None:  # nor with a longer pad
            return
        if units != by_itself:
            known = all(d.stride % unit == 0 for d, unit in zip(candidate.digits, by_itself, strict=True))
            if known or not keeps_whole(space, candidate):
                continue
        yield candidate


# The candidates of families with pads, in streams. The second argument says whether cuts may be used.
PADDED: Final[dict[str, Callable[[Space, bool], Iterable[Stream]]]] = {
    "pad": _pad_streams,
    "interval": _interval_streams,
}
