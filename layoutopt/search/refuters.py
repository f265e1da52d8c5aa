"""Phases that refuted one linearisation, asked first of many others together.

Row by row a swizzle halves the classes of a phase (`layoutopt.search.mask_tree`): where every mask of one
bank bit leaves more words in a class than its half of the banks can serve, no swizzle keeps to the ceilings.
Most linearisations fall to a bank bit and very few phases, and the phases that one falls to refute the next:

    learn     of a linearisation that fell, its worst phase, and the phases that leave some bank bit no mask
    refuted   which of many linearisations fall to what was learnt, by some thousand phases at once
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.model.layout_model import Solution
from layoutopt.model.linearisations import Linearisation, offsets_together
from layoutopt.model.phases import PhaseSet, costs_of, ideal_of, words_of
from layoutopt.search.mask_tree import MAX_LANES, Lanes, lane_bits
from layoutopt.search.scene import TOGETHER, Scene

_KEPT: Final = 16  # phases, the latest
_MOST_SOURCES: Final = 10  # bits that a mask may read
_MOST_ENTRIES: Final = 1 << 22  # masks times phases times linearisations


Met = list[tuple[PhaseSet, IntArray, IntArray]]  # phases, their words under candidates, and their ceilings


class Refuters:
    """What refuted linearisations so far."""

    def __init__(self, scene: Scene) -> None:
        """Nothing yet."""
        self.scene, self.field = scene, scene.field
        self._kept: dict[tuple[int, int], None] = {}  # phase set and row, the latest last

    def refuted(self, candidates: Sequence[Linearisation], may_swizzle: Sequence[bool]) -> BoolArray:
        """Which keep to the ceilings neither as they are nor, where one may be of use, under a swizzle.

        Of the others nothing is known.
        """
        if not self._kept:
            return np.zeros(len(candidates), np.bool_)
        sets = enumerate(self.scene.sets)
        met = self._met([s.only([row for n, row in self._kept if n == k]) for k, s in sets], candidates)
        fallen: BoolArray = np.logical_or.reduce(_over(met) > 0, axis=1)
        open_to = np.flatnonzero(fallen & np.array(may_swizzle, np.bool_))
        for bit in self.field.targets if self.field is not None else ():
            fits = self._fits(met, bit, open_to) if len(open_to) else None
            open_to = open_to if fits is None else open_to[fits.all(axis=2).max(axis=1)]
        fallen[open_to] = False
        return fallen

    def learn(self, candidate: Linearisation, bit: int | None) -> None:
        """Keep the phases to which it fell: those that leave a bank bit no mask, or the worst as it is."""
        met = self._met(self.scene.sets, [candidate])
        fits = None if bit is None else self._fits(met, bit, np.zeros(1, np.int64))
        found = [int(_over(met)[0].argmax())]
        if fits is not None and not fits[0].all(axis=1).any():
            found, left = [], fits[0]
            while len(left):  # the phase that rules out the most of the masks left
                found.append(int((~left).sum(axis=0).argmax()))
                left = left[left[:, found[-1]]]
        places = [(k, row) for k, s in enumerate(self.scene.sets) for row in range(len(s.elements))]
        kept = [place for place in self._kept if place not in {places[n] for n in found}]
        self._kept = dict.fromkeys([*kept, *(places[n] for n in found)][-_KEPT:])

    def counted(self, candidates: Sequence[Linearisation]) -> Iterator[Solution]:
        """Candidates as they are, with their excess."""
        for start in range(0, len(candidates), TOGETHER):
            some = candidates[start : start + TOGETHER]
            excess = np.zeros(len(some), np.int64)
            for s, words, _ in self._met(self.scene.sets, some):
                excess += (costs_of(s, words) - ideal_of(s, words)) @ s.weight * s.requests
            yield from (Solution(c, {}, over) for c, over in zip(some, excess.tolist(), strict=True))

    def _met(self, sets: Sequence[PhaseSet], candidates: Sequence[Linearisation]) -> Met:
        met, tile = [], self.scene.tile
        for s in sets:
            at = np.array(np.unravel_index(np.maximum(s.elements, 0), tile.shape))
            words = words_of(s, offsets_together(candidates, at), tile.element_bytes)
            ideal = ideal_of(s, words)
            met.append((s, words, ideal if self.scene.conflict_free else np.maximum(ideal, s.floor)))
        return met

    def _fits(self, met: Met, bit: int, which: IntArray) -> BoolArray | None:
        """Whether phases may keep to their ceilings with a mask of a bank bit; (candidates, masks, phases).

        More masks are asked than may be, where that is quicker. None where there are too many.
        """
        assert self.field is not None
        first, top = self.field.first_source, max(int(w.max(initial=0)) for _, w, _ in met).bit_length()
        sources = range(first, max(top, first))
        entries = len(which) * sum(w.shape[1] for _, w, _ in met) << len(sources)
        if len(sources) > _MOST_SOURCES or entries > _MOST_ENTRIES:
            return None
        return np.concatenate([_halved(s, w[which], c[which], bit, sources) for s, w, c in met], axis=2)


def _over(met: Met) -> IntArray:
    """Wavefronts beyond the ceilings of phases as they are, shape (candidates, phases)."""
    return np.concatenate([costs_of(s, words) - ceilings for s, words, ceilings in met], axis=1)


def _halved(phase_set: PhaseSet, words: IntArray, ceilings: IntArray, bit: int, sources: range) -> BoolArray:
    banks, low = phase_set.rule.banks // phase_set.chunk_words, phase_set.chunk_words.bit_length() - 1
    if words.shape[-1] > MAX_LANES or not low <= bit < phase_set.rule.banks.bit_length() - 1:
        return np.ones((len(words), 1 << len(sources), words.shape[1]), np.bool_)
    held = words >= 0
    ones: Lanes = lane_bits(held & (words >> bit & 1 == 1))[:, None]
    for source in sources:
        flip = lane_bits(held & (words >> source & 1 == 1))[:, None] if source > bit else 0
        ones = np.concatenate([ones, ones ^ flip], axis=1)
    count = np.bitwise_count(ones).astype(np.int64)
    largest = np.maximum(count, held.sum(axis=-1)[:, None] - count)
    fits: BoolArray = -(-2 * largest // banks) <= ceilings[:, None]
    return fits
