"""A table of offsets as other tools spell layouts: linear over F2, a swizzle, padding after intervals."""

import itertools
from typing import Any, Final, NamedTuple

import numpy as np

from layoutopt.expressions.bits import combinations
from layoutopt.ground.arrays import IntArray

_SAMPLE: Final = 64  # elements that refute most swizzles


class Form(NamedTuple):
    """A layout as data, or why it has no such form."""

    data: Any  # None where there is none
    reason: str | None = None  # then why; else None


def linear_columns(offsets: IntArray) -> list[list[int]] | None:
    """What each bit of each coordinate adds to the offset by XOR, if that decides all offsets.

    Args:
        offsets: int64, in the shape of the tile, 0 at its first element.
    """
    columns = [
        [int(np.take(offsets, 1 << bit, axis=d).flat[0]) for bit in range((extent - 1).bit_length())]
        for d, extent in enumerate(offsets.shape)
    ]
    made = np.zeros((), np.int64)
    for d, vectors in enumerate(columns):
        shape = [1] * offsets.ndim
        shape[d] = offsets.shape[d]
        made = made ^ combinations(vectors)[: offsets.shape[d]].reshape(shape)
    return columns if (made == offsets).all() else None


def offset_bases(offsets: IntArray) -> list[list[int]] | None:
    """The coordinates of the elements at places 1, 2, 4, ... in order of offset, if they decide all by XOR.

    Args:
        offsets: int64, in the shape of the tile, whose extents are powers of two.
    """
    coordinates = np.stack(np.unravel_index(np.argsort(offsets.ravel()), offsets.shape))
    bases = []
    for bit in range(offsets.size.bit_length() - 1):
        basis = coordinates[:, 1 << bit]
        below, above = coordinates[:, : 1 << bit], coordinates[:, 1 << bit : 2 << bit]
        if (below ^ basis[:, None] != above).any():
            return None
        bases.append([int(c) for c in basis])
    return bases or None


def interval_padding(offsets: IntArray) -> list[list[int]] | None:
    """Pairs of interval and pad, both powers of two, that lie between the elements in order of offset.

    Offsets 0, 1, 3, 4 have the pair [2, 1]: a pad of 1 after every 2 elements. None where no pairs say it.

    Args:
        offsets: int64, any shape.
    """
    place = np.arange(offsets.size)
    pads_before = np.sort(offsets.ravel()) - place
    pairs = []
    explained = np.zeros_like(pads_before)  # by the pairs so far
    interval = 1
    while interval < offsets.size:
        pad = int(pads_before[interval] - explained[interval])
        if pad < 0 or pad & (pad - 1):
            return None
        if pad:
            pairs.append([interval, pad])
            explained += place // interval * pad
        interval *= 2
    return pairs if (explained == pads_before).all() else None


def padded_form(offsets: IntArray) -> Form:
    """Triton's padded layout, `interval_padding_pairs` and `offset_bases`, as its compiler takes it.

    Args:
        offsets: int64, in the shape of the tile, in elements.
    """
    if any(extent & (extent - 1) for extent in offsets.shape):
        return Form(None, "padded layouts have extents that are powers of two")
    bases, pairs = offset_bases(offsets), interval_padding(offsets)
    if bases is None:
        return Form(None, "the order of the elements is not linear over F2")
    if pairs is None:
        return Form(None, "the pads are no powers of two after intervals that are")
    if any(sum(map(int.bit_count, basis)) > 1 for basis in bases):
        return Form(None, "each offset basis of a padded layout moves by a power of two in one dimension")
    if not pairs:
        return Form(None, "padded layouts have at least one pad")
    return Form({"interval_padding_pairs": pairs, "offset_bases": bases})


def swizzle_between(linear: IntArray, offsets: IntArray) -> tuple[int, int, int] | None:
    """B, M, S such that CuTe's `Swizzle<B, M, S>` takes each of `linear` to that of `offsets`, or None.

    Args:
        linear, offsets: int64, of one shape.
    """
    linear, offsets = linear.ravel(), offsets.ravel()
    # Most are refuted by the first elements, or by some of all.
    some = np.r_[: min(len(offsets), _SAMPLE), 0 : len(offsets) : max(1, len(offsets) // _SAMPLE) | 1]
    width = int(linear.max()).bit_length()
    for bits, base, shift in itertools.product(range(1, width), range(width), range(1, width)):
        if not bits <= shift < width - base:
            continue
        source = ((1 << bits) - 1) << (base + shift)
        if all(
            ((linear[at] ^ (linear[at] & source) >> shift) == offsets[at]).all() for at in (some, slice(None))
        ):
            return bits, base, shift
    return None
