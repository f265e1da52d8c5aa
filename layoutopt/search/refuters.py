"""Phases that refuted one linearisation, asked first of many others together.

Row by row a swizzle halves the classes of a phase (`layoutopt.search.mask_tree`): where every mask of one
bank bit leaves more words in a class than its half of the banks can serve, no swizzle keeps to the ceilings.
The sum of two bank bits halves them, too. Where masks of both bits are left, but no two whose sum is left for
the sum of the bits, there is no swizzle, either:

    masks left      bank bit 0: {a, b}      bank bit 1: {c}      their sum: {a + d}
    refuted         for neither a + c nor b + c is left for the sum

Most linearisations fall to a bank bit and very few phases, and the phases that one falls to refute the next:

    learn     of a linearisation that fell, the phases to which it fell
    refuted   which of many linearisations fall to what was learnt, phase by phase
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import xor
from typing import Any, Final

import numpy as np

from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.model.layout_model import Solution
from layoutopt.model.linearisations import Linearisation, Together
from layoutopt.model.phases import PhaseSet, costs_of, ideal_of, words_of
from layoutopt.search.mask_tree import MAX_LANES, lane_bits
from layoutopt.search.scene import Scene

_COUNTED: Final = 64  # linearisations whose every phase is counted together
_KEPT: Final = 24  # phases, the latest
_MOST_SOURCES: Final = 10  # bits that a mask may read
_MOST_ENTRIES: Final = 1 << 20  # masks times linearisations, or times phases
_TOGETHER: Final = 64  # phases times linearisations, where these are few
_MOST_SUMMED: Final = 6  # bits that a mask may read where sums are asked, too

Sums = tuple[tuple[int, ...], ...]  # bank bits, alone or two together


class Refuters:
    """What refuted linearisations so far."""

    def __init__(self, scene: Scene) -> None:
        """Nothing yet."""
        self.scene = scene
        self._kept: dict[tuple[int, int], None] = {}  # phase set and row, the latest last
        targets = () if scene.field is None else tuple(scene.field.targets)
        self._bits: Sums = tuple((bit,) for bit in targets)
        self._pairs: Sums = tuple(itertools.combinations(targets, 2))

    def refuted(self, candidates: Sequence[Linearisation], may_swizzle: Sequence[bool]) -> BoolArray:
        """Which keep to the ceilings neither as they are nor, where one may be of use, under a swizzle.

        Of the others nothing is known.
        """
        fallen = np.zeros(len(candidates), np.bool_)
        if not self._kept:
            return fallen
        together, may = Together(candidates), np.array(may_swizzle, np.bool_)
        left = np.flatnonzero(~may)
        for phases in self._latest_first(len(left)):
            words, ceilings = self._met(phases, together, left)
            fallen[left] = (costs_of(phases, words) > ceilings).any(axis=1)
            left = left[~fallen[left]]
        left = np.flatnonzero(may)
        sources = self._sources(together, left)
        if sources is None or len(left) << len(sources) > _MOST_ENTRIES:
            return fallen
        masks = np.ones((len(left), len(self._bits), 1 << len(sources)), np.bool_)
        for phases in self._latest_first(len(left)):
            masks &= self._fits(phases, together, left, sources, self._bits)
            stands = np.logical_and.reduce(masks.any(axis=2), axis=1)
            fallen[left[~stands]] = True
            left, masks = left[stands], masks[stands]
        if len(left) and len(sources) <= _MOST_SUMMED:
            every = self._latest_first(len(left))
            fits = [self._fits(phases, together, left, sources, self._pairs) for phases in every]
            fallen[left] = _contradict(masks, np.logical_and.reduce(fits))
        return fallen

    def _latest_first(self, many: int) -> Iterator[PhaseSet]:
        """The phases that are kept, a few at a time, where they are asked of not so many linearisations."""
        for k, places in itertools.groupby(reversed(self._kept), key=lambda place: place[0]):
            rows = [row for _, row in places]
            some = max(1, _TOGETHER // max(1, many))
            yield from (self.scene.sets[k].only(rows[n : n + some]) for n in range(0, len(rows), some))

    def learn(self, candidate: Linearisation, *, swizzled: bool, bit: int | None = None) -> bool:
        """Keep the phases to which it falls: the worst as it is, or a few under every swizzle, if any.

        `bit`: a bank bit to which it fell, if that is known.
        """
        together, one, sets = Together([candidate]), np.zeros(1, np.int64), self.scene.sets
        sources = self._sources(together, one) if swizzled else None
        if not swizzled:
            met = [(s, *self._met(s, together, one)) for s in sets]
            found = [int(np.concatenate([costs_of(s, w)[0] - c[0] for s, w, c in met]).argmax())]
        elif sources is None or sum(len(s.elements) for s in sets) << len(sources) > _MOST_ENTRIES:
            return False
        elif bit is not None:
            fits = [self._each_fits(s, together, one, sources, ((bit,),))[0, :, 0] for s in sets]
            found = _against_bit(np.concatenate(fits))
        elif len(sources) > _MOST_SUMMED:
            return False
        else:
            fits = [self._each_fits(s, together, one, sources, self._bits + self._pairs)[0] for s in sets]
            found = _against(np.concatenate(fits), len(self._bits))
        places = [(k, row) for k, s in enumerate(sets) for row in range(len(s.elements))]
        kept = [place for place in self._kept if place not in {places[n] for n in found}]
        self._kept = dict.fromkeys([*kept, *(places[n] for n in found)][-_KEPT:])
        return bool(found)

    def counted(self, candidates: Sequence[Linearisation]) -> Iterator[Solution]:
        """Candidates as they are, with their excess."""
        for start in range(0, len(candidates), _COUNTED):
            some = candidates[start : start + _COUNTED]
            together, each = Together(some), np.arange(len(some))
            excess = np.zeros(len(some), np.int64)
            for s in self.scene.sets:
                words = self._words(s, together, each)
                excess += (costs_of(s, words) - ideal_of(s, words)) @ s.weight * s.requests
            yield from (Solution(c, {}, over) for c, over in zip(some, excess.tolist(), strict=True))

    def _words(self, s: PhaseSet, together: Together, which: IntArray) -> IntArray:
        """Words of phases under some linearisations, shape (linearisations, phases, lanes)."""
        tile = self.scene.tile
        at = np.array(np.unravel_index(np.maximum(s.elements, 0).ravel(), tile.shape))
        offsets = together.offsets(at, which).reshape(len(which), *s.elements.shape)
        return words_of(s, offsets, tile.element_bytes)

    def _met(self, s: PhaseSet, together: Together, which: IntArray) -> tuple[IntArray, IntArray]:
        """Words of phases, and their ceilings: shape (linearisations, phases)."""
        words = self._words(s, together, which)
        ideal = ideal_of(s, words)
        return words, ideal if self.scene.conflict_free else np.maximum(ideal, s.floor)

    def _sources(self, together: Together, which: IntArray) -> range | None:
        """Bits that a mask over some of the linearisations may read; None where they are too many."""
        field = self.scene.field
        if field is None or not len(which):
            return None
        highest = together.highest(which) * self.scene.tile.element_bytes // field.word_bytes
        sources = range(field.first_source, max(field.first_source, highest.bit_length()))
        return sources if len(sources) <= _MOST_SOURCES else None

    def _fits(self, s: PhaseSet, *asked: Any) -> BoolArray:
        """Whether all of the phases may; see `_each_fits`."""
        fits: BoolArray = np.logical_and.reduce(self._each_fits(s, *asked), axis=1)
        return fits

    def _each_fits(
        self, s: PhaseSet, together: Together, which: IntArray, sources: range, sums: Sums
    ) -> BoolArray:
        """Whether phases may keep to their ceilings with a mask of bank bits.

        More masks are asked than may be, where that is quicker. Shape (linearisations, phases, sums, masks).
        """
        met = self._met(s, together, which)
        words, ceilings = met[0].reshape(-1, met[0].shape[2]), met[1].reshape(-1)
        fits = np.ones((*met[1].shape, len(sums), 1 << len(sources)), np.bool_)
        banks, low = s.rule.banks // s.chunk_words, s.chunk_words.bit_length() - 1
        selects = range(low, s.rule.banks.bit_length() - 1)
        asked = [n for n, bits in enumerate(sums) if all(bit in selects for bit in bits)]
        if words.shape[-1] > MAX_LANES or not asked:
            return fits
        held = words >= 0
        inside, count = np.where(held, words, 0).astype(np.int32), held.sum(axis=1)
        most = np.minimum(ceilings * banks // 2, count)
        least, most = ((count - most).astype(np.uint8)[:, None, None], most.astype(np.uint8)[:, None, None])
        shifts = np.array([*selects, *sources], np.int32)
        lanes = lane_bits((inside >> shifts[:, None, None] & 1).astype(np.bool_))
        flips = np.zeros((len(words), 1), lanes.dtype)
        for source in lanes[len(selects) :]:
            flips = np.concatenate([flips, flips ^ source[:, None]], axis=1)
        of_sums = [reduce(xor, (lanes[bit - low] for bit in sums[n])) for n in asked]
        ones = np.bitwise_count(flips[:, None] ^ np.stack(of_sums, axis=1)[..., None])
        fits[:, :, asked] = ((least <= ones) & (ones <= most)).reshape(*fits.shape[:2], *ones.shape[1:])
        return fits


def _against_bit(fits: BoolArray) -> list[int]:
    """A few phases that leave a bank bit no mask, if any; shape (phases, masks)."""
    found: list[int] = []
    while fits.shape[1] and len(found) < len(fits):  # the phase that rules out the most of the masks left
        found.append(int((~fits).sum(axis=1).argmax()))
        fits = fits[:, fits[found[-1]]]
    return [] if fits.shape[1] else found


def _against(fits: BoolArray, bits: int) -> list[int]:
    """A few phases whose masks of bank bits, the first, and of their sums contradict each other, if any."""

    def contradicts(left: BoolArray) -> bool:
        return bool(_contradict(left[None, :bits], left[None, bits:])[0])

    left, found = np.ones_like(fits[0]), list[int]()
    if contradicts(np.logical_and.reduce(fits)):
        while not contradicts(left):
            found.append(int((~fits & left).sum(axis=(1, 2)).argmax()))
            left &= fits[found[-1]]
    return found


def _contradict(masks: BoolArray, of_pairs: BoolArray) -> BoolArray:
    """Whether some two bank bits have no masks left whose sum is left for their sum.

    Args:
        masks: left for each bank bit; shape (linearisations, bits, masks).
        of_pairs: left for the sum of two; shape (linearisations, pairs, masks).
    """
    bits, contradicts = masks.shape[1], np.ones(len(masks), np.bool_)
    first, second = np.array([*itertools.combinations(range(bits), 2)], np.int64).reshape(-1, 2).T
    left, every, before = np.arange(len(masks)), np.concatenate([masks, of_pairs], axis=1), -1
    while len(left) and int(every.sum()) != before:
        before = int(every.sum())
        turned = _transformed(every)
        one, two, both = turned[:, first], turned[:, second], turned[:, bits:]
        # Which masks are sums of one mask each: a convolution.
        may = _transformed(np.stack([two * both, one * both, one * two])) > 0
        every[:, bits:] &= may[2]
        for n, (a, b) in enumerate(zip(first, second, strict=True)):
            every[:, a] &= may[0][:, n]
            every[:, b] &= may[1][:, n]
        stands = np.logical_and.reduce(every.any(axis=2), axis=1)
        left, every = left[stands], every[stands]
    contradicts[left] = False
    return contradicts


def _transformed(masks: IntArray | BoolArray) -> IntArray:
    """By Walsh and Hadamard, along the last axis."""
    found, width = masks.astype(np.int64), 1
    while width < masks.shape[-1]:
        halves = found.reshape(-1, 2, width)
        one, other = halves[:, 0], halves[:, 1]
        found, width = np.stack([one + other, one - other], axis=1), 2 * width
    return found.reshape(masks.shape)
