"""Phases that refuted one linearisation, asked first of many others together.

Row by row a swizzle halves the classes of a phase (`layoutopt.search.mask_tree`): where every mask of one
bank bit leaves more words in a class than its half of the banks can serve, no swizzle keeps to the ceilings.
Most linearisations fall to a bank bit and very few phases, and the phases that one falls to refute the next:

    learn     of a linearisation that fell, the phases to which it fell
    refuted   which of many linearisations fall to what was learnt, phase by phase
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.model.layout_model import Solution
from layoutopt.model.linearisations import Linearisation, Together
from layoutopt.model.phases import PhaseSet, costs_of, ideal_of, words_of
from layoutopt.search.mask_tree import MAX_LANES, flipped_lanes, lanes_with
from layoutopt.search.scene import Scene

_COUNTED: Final = 1024  # linearisations that are counted together
_PHASES: Final = 4096  # phases times linearisations that are counted at once
_AT_FIRST: Final = 8  # phases that are counted first where layouts may fall to them
_KEPT: Final = 24  # phases that are kept, the latest
_MOST_SOURCES: Final = 10  # bits that a mask may read
_MOST_ENTRIES: Final = 1 << 20  # masks times linearisations, or times phases
_TOGETHER: Final = 64  # phases times linearisations that are asked at once; one phase at least


class Refuters:
    """The phases that refuted linearisations so far, the latest last."""

    def __init__(self, scene: Scene) -> None:
        """None yet."""
        self.scene = scene
        self._kept: dict[tuple[int, int], None] = {}  # phase set and row, the latest last
        self._bits = () if scene.field is None else tuple(scene.field.targets)

    def refuted(self, together: Together, may_swizzle: BoolArray) -> BoolArray:
        """Which linearisations `together` are refuted, shape (linearisations,): a phase exceeds its ceiling.

        Where `may_swizzle`, under every swizzle; else as they are. Of those not refuted nothing is known.
        """
        refuted = np.zeros(len(together), np.bool_)
        if not self._kept:
            return refuted
        for phases, left in self._latest_first(~may_swizzle, refuted):
            words, ceilings = self._words_and_ceilings(phases, together, left)
            refuted[left] = (costs_of(phases, words) > ceilings).any(axis=1)
        left = np.flatnonzero(may_swizzle)
        sources = self._sources(together, left)
        if sources is None or len(left) << len(sources) > _MOST_ENTRIES:
            return refuted
        # Which masks of each bank bit no phase rules out; where a bit has none left, there is no swizzle.
        masks = np.ones((len(left), len(self._bits), 1 << len(sources)), np.bool_)
        for phases, left in self._latest_first(may_swizzle, refuted):
            may_do = self._masks_that_may_do(phases, together, left, sources, self._bits)
            masks &= np.logical_and.reduce(may_do, axis=1)
            possible = np.logical_and.reduce(masks.any(axis=2), axis=1)
            refuted[left[~possible]] = True
            masks = masks[possible]  # of those that are `left` next
        return refuted

    def _latest_first(self, asked: BoolArray, refuted: BoolArray) -> Iterator[tuple[PhaseSet, IntArray]]:
        """The phases that are kept, in sets of one rule, and indices of those asked that none refuted so far.

        The more linearisations are left, the smaller the sets.
        """
        for k, places in itertools.groupby(reversed(self._kept), key=lambda place: place[0]):
            rows = [row for _, row in places]
            while rows and len(left := np.flatnonzero(asked & ~refuted)):
                count = max(1, _TOGETHER // len(left))
                yield self.scene.sets[k].only(rows[:count]), left
                rows = rows[count:]

    def learn(self, candidate: Linearisation, bit: int | None = None) -> None:
        """Keep the phases that refuted a candidate.

        Without `bit`, the phase that exceeds its ceiling most where there is no swizzle; with it, a few
        phases of which one exceeds its ceiling under every mask of that bank bit.
        """
        together, one, sets = Together.of([candidate]), np.zeros(1, np.int64), self.scene.sets
        if bit is None:
            words_and_ceilings = [(s, *self._words_and_ceilings(s, together, one)) for s in sets]
            beyond = [costs_of(s, words)[0] - ceilings[0] for s, words, ceilings in words_and_ceilings]
            refuting = [int(np.concatenate(beyond).argmax())]
        else:
            sources = self._sources(together, one)
            if sources is None or sum(len(s.elements) for s in sets) << len(sources) > _MOST_ENTRIES:
                return
            may_do = [self._masks_that_may_do(s, together, one, sources, (bit,))[0, :, 0] for s in sets]
            refuting = _against_bit(np.concatenate(may_do))
        places = [(k, row) for k, s in enumerate(sets) for row in range(len(s.elements))]
        kept = [place for place in self._kept if place not in {places[n] for n in refuting}]
        self._kept = dict.fromkeys([*kept, *(places[n] for n in refuting)][-_KEPT:])

    def counted(self, candidates: Sequence[Linearisation], most: float | None = None) -> Iterator[Solution]:
        """Candidates without a swizzle, with their excess.

        With `most`, those may be left out that have more excess than this, or than one before them that fits
        the limit of bytes.
        """
        end, count = 0, _COUNTED if most is None else 1
        while batch := candidates[end : end + count]:
            end, count = end + count, min(2 * count, _COUNTED)  # what a few have rules out most others
            together, left = Together.of(batch), np.arange(len(batch))
            excess = np.zeros(len(batch), np.int64)
            for s in self.scene.sets:
                first = 0
                while first < len(s.elements) and len(left):
                    at_once = max(1, _PHASES // len(left))
                    if most is not None:  # at first few phases, to which most layouts fall
                        at_once = min(at_once, first + _AT_FIRST)
                    part = s.only(slice(first, first + at_once))
                    first += len(part.elements)
                    words = self._words(part, together, left)
                    over = (costs_of(part, words) - ideal_of(part, words)) @ part.weight
                    excess[left] += over * part.requests  # in each of which the phase comes once
                    if most is not None:
                        left = left[excess[left] <= most]
            for k in left.tolist():
                yield Solution(batch[k], masks={}, excess=int(excess[k]))
                if most is not None and self.scene.fits(batch[k].span):
                    most = min(most, int(excess[k]))

    def _words(self, s: PhaseSet, together: Together, which: IntArray) -> IntArray:
        """Words of phases under some linearisations, shape (linearisations, phases, lanes)."""
        tile = self.scene.tile
        at = np.array(np.unravel_index(np.maximum(s.elements, 0).ravel(), tile.shape))
        offsets = together.offsets(at, which).reshape(len(which), *s.elements.shape)
        return words_of(s, offsets, tile.element_bytes)

    def _words_and_ceilings(
        self, s: PhaseSet, together: Together, which: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Words of phases, and their ceilings of shape (linearisations, phases)."""
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

    def _masks_that_may_do(
        self, s: PhaseSet, together: Together, which: IntArray, sources: range, bits: Sequence[int]
    ) -> BoolArray:
        """Under which masks of a bank bit a phase may keep to its ceiling, whatever masks the others have.

        A bank bit tells two halves of the banks apart: the phase may have no more words in either than these
        banks serve within the ceiling. True also where that is not looked into.

        Args:
            s: the phases.
            which: indices of the linearisations asked about.
            sources: bits that masks may read. Mask k of a bit reads source i if bit i of k is set.
            bits: the bank bits, as bits of the word offset.

        Returns:
            Shape (len(which), phases, len(bits), masks).
        """
        words, ceilings = self._words_and_ceilings(s, together, which)
        may_do = np.ones((*ceilings.shape, len(bits), 1 << len(sources)), np.bool_)
        words, ceilings = words.reshape(-1, words.shape[2]), ceilings.reshape(-1)
        # Lower bits tell words inside what one lane covers apart: they select no bank of this phase.
        select_a_bank = range(s.chunk_words.bit_length() - 1, s.rule.banks.bit_length() - 1)
        asked = [n for n, bit in enumerate(bits) if bit in select_a_bank]
        if words.shape[-1] > MAX_LANES or not asked:
            return may_do
        count = (words >= 0).sum(axis=1)  # the others are no lane's, or the same as another lane's
        # Words that half of the banks serves at most; the other half serves the rest, at most as many. In the
        # type of the counts that are compared with them.
        most = np.minimum(ceilings * (s.rule.banks // s.chunk_words) // 2, count)
        least, most = (limit.astype(np.uint8)[:, None] for limit in (count - most, most))
        words = words.astype(np.int32)
        flipped = flipped_lanes(lanes_with(words, sources))
        for n, lanes in zip(asked, lanes_with(words, [bits[n] for n in asked]), strict=True):
            ones = np.bitwise_count(flipped ^ lanes).T  # words of each phase in the half where the bit is set
            may_do[:, :, n] = ((least <= ones) & (ones <= most)).reshape(may_do[:, :, n].shape)
        return may_do


def _against_bit(may_do: BoolArray) -> list[int]:
    """A few phases that leave a bank bit no mask, if any.

    `may_do`: which masks each phase allows, shape (phases, masks).
    """
    found: list[int] = []
    while may_do.shape[1] and len(found) < len(may_do):
        # The phase that rules out the most of the masks left.
        found.append(int((~may_do).sum(axis=1).argmax()))
        may_do = may_do[:, may_do[found[-1]]]
    return [] if may_do.shape[1] else found
