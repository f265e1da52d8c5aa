"""Phases that refuted one linearisation, asked first of many others together.

Row by row a swizzle halves the classes of a phase (`layoutopt.search.mask_tree`): where every mask of one
bank bit leaves more words in a class than its half of the banks can serve, no swizzle keeps to the ceilings.
Most linearisations fall to a bank bit and very few phases, and the phases that one falls to refute the next:

    learn     of a linearisation that fell, its worst phase, and the phases that leave some bank bit no mask
    refuted   which of many linearisations fall to what was learnt, by some thousand phases at once
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.model.linearisations import Linearisation, offsets_together
from layoutopt.model.phases import PhaseSet, costs_of, ideal_of, words_of
from layoutopt.search.mask_tree import MAX_LANES, Lanes, lane_bits
from layoutopt.search.scene import Scene

_KEPT: Final = 16  # phases, the latest
_MOST_SOURCES: Final = 10  # bits that a mask may read
_MOST_ENTRIES: Final = 1 << 22  # masks times phases times linearisations


class Refuters:
    """What refuted linearisations so far."""

    def __init__(self, scene: Scene) -> None:
        """Nothing yet."""
        self.scene = scene
        self._kept: dict[tuple[int, int], None] = {}  # phase set and row, the latest last

    def refuted(self, candidates: Sequence[Linearisation], may_swizzle: Sequence[bool]) -> BoolArray:
        """Which keep to the ceilings neither as they are nor, where one may be of use, under a swizzle.

        Of the others nothing is known.
        """
        rows = [np.array([r for k, r in self._kept if k == n], np.int64) for n in range(len(self.scene.sets))]
        if not self._kept or not candidates:
            return np.zeros(len(candidates), np.bool_)
        looks = _Looks(self.scene, candidates, rows)
        fallen: BoolArray = np.logical_or.reduce(looks.over > 0, axis=1)
        open_to = np.flatnonzero(fallen & np.array(may_swizzle, np.bool_))
        for bit in self.scene.field.targets if self.scene.field is not None else ():
            if len(open_to):
                fits = looks.fits(bit, open_to)
                open_to = open_to if fits is None else open_to[fits.all(axis=2).max(axis=1)]
        fallen[open_to] = False
        return fallen

    def learn(self, candidate: Linearisation, bit: int | None) -> None:
        """Keep the phases to which it fell: those that leave a bank bit no mask, or the worst as it is."""
        looks = _Looks(self.scene, [candidate], [np.arange(len(s.elements)) for s in self.scene.sets])
        fits = None if bit is None else looks.fits(bit, np.zeros(1, np.int64))
        found = [int(looks.over[0].argmax())]
        if fits is not None and not fits[0].all(axis=1).any():
            found, left = [], fits[0]
            while len(left):  # the phase that rules out the most of the masks left
                found.append(int((~left).sum(axis=0).argmax()))
                left = left[left[:, found[-1]]]
        for phase in found:
            place = looks.places[phase]
            self._kept.pop(place, None)
            self._kept[place] = None
        for place in list(self._kept)[:-_KEPT]:
            del self._kept[place]


class _Looks:
    """Some phases under several linearisations."""

    def __init__(self, scene: Scene, candidates: Sequence[Linearisation], rows: Sequence[IntArray]) -> None:
        """`rows`: of each phase set."""
        self.scene, self.parts = scene, []
        over = []
        self.places = [(k, r) for k, some in enumerate(rows) for r in some.tolist()]
        for phase_set, some in zip(scene.sets, rows, strict=True):
            elements = phase_set.elements[some]
            at = np.array(np.unravel_index(np.maximum(elements, 0), scene.tile.shape))
            words = words_of(phase_set, elements, offsets_together(candidates, at), scene.tile.element_bytes)
            ideal = ideal_of(phase_set, words)
            ceilings = ideal if scene.conflict_free else np.maximum(ideal, phase_set.floor[some])
            over.append(np.maximum(costs_of(phase_set, words) - ceilings, 0))
            self.parts.append((phase_set, words, ceilings))
        # Wavefronts beyond the ceilings as they are, shape (candidates, phases).
        self.over: IntArray = np.concatenate(over, axis=1)

    def fits(self, bit: int, which: IntArray) -> BoolArray | None:
        """Whether phases may keep to their ceilings with a mask of a bank bit; (candidates, masks, phases).

        More masks are asked than may be, where that is quicker. None where there are too many.
        """
        field = self.scene.field
        assert field is not None
        top = max(int(words.max(initial=0)) for _, words, _ in self.parts).bit_length()
        sources = range(field.first_source, max(top, field.first_source))
        entries = len(which) * self.over.shape[1] << len(sources)
        if len(sources) > _MOST_SOURCES or entries > _MOST_ENTRIES:
            return None
        return np.concatenate([_halved(*part, which, bit, sources) for part in self.parts], axis=2)


def _halved(
    phase_set: PhaseSet, words: IntArray, ceilings: IntArray, which: IntArray, bit: int, sources: range
) -> BoolArray:
    words, banks = words[which], phase_set.rule.banks // phase_set.chunk_words
    low = phase_set.chunk_words.bit_length() - 1
    if words.shape[-1] > MAX_LANES or not low <= bit < phase_set.rule.banks.bit_length() - 1:
        return np.ones((len(words), 1 << len(sources), words.shape[1]), np.bool_)
    held = words >= 0
    ones: Lanes = lane_bits(held & (words >> bit & 1 == 1))[:, None]
    for source in sources:
        flip = lane_bits(held & (words >> source & 1 == 1))[:, None] if source > bit else 0
        ones = np.concatenate([ones, ones ^ flip], axis=1)
    count = np.bitwise_count(ones).astype(np.int64)
    largest = np.maximum(count, held.sum(axis=-1)[:, None] - count)
    fits: BoolArray = -(-2 * largest // banks) <= ceilings[which][:, None]
    return fits
