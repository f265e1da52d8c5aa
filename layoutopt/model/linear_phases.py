"""The phases of a problem under one linearisation: words up to an XOR translation, merged and weighted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.phases import PhaseSet
from layoutopt.model.swizzle_rules import Masks
from layoutopt.problems.types import Tile

_MOST_PAIRS: Final = 1 << 20  # of words, at a time


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of a problem under one linearisation, merged as far as they must cost the same.

    Arrays of shape (phases,), but for `words`.

    Attributes:
        words: sorted word offsets, up to an XOR translation, shape (phases, lanes); -1 for absent.
        chunk_bits: log2 of the words that each stands for.
        bank_bits: log2 of the banks.
        weight: weighted number of phases.
        ideal: wavefronts if spread evenly.
        target: wavefronts at the least excess that counting leaves: no layout has fewer in excess of its
            own `ideal`, which grows where elements that could share words do not.
    """

    words: IntArray
    chunk_bits: IntArray
    bank_bits: IntArray
    weight: IntArray
    ideal: IntArray
    target: IntArray

    def __len__(self) -> int:
        return len(self.words)

    def held(self, phase: int) -> tuple[int, ...]:
        """The words of one phase."""
        return tuple(w for w in self.words[phase].tolist() if w >= 0)

    def differences(self, phases: Sequence[int]) -> list[int]:
        """The XOR differences of two words that some of these phases hold, rising."""
        lanes = self.words.shape[1]
        one, other = np.triu_indices(lanes, 1)
        step = max(1, _MOST_PAIRS // max(1, len(one)))
        found = [np.zeros(0, np.int64)]
        for start in range(0, len(phases), step):
            words = self.words[phases[start : start + step]]
            held = words >= 0
            found.append(np.unique((words[:, one] ^ words[:, other])[held[:, one] & held[:, other]]))
        differences: list[int] = np.unique(np.concatenate(found)).tolist()
        return differences

    def costs(self, masks: Masks) -> IntArray:
        """Wavefronts of each phase under a swizzle, in the model's own arithmetic."""
        if not len(self):
            return np.zeros(0, np.int64)
        bank = self.words.copy()
        for bit, mask in masks.items():
            bank ^= (np.bitwise_count(self.words & mask).astype(np.int64) & 1) << bit
        bank = (bank & ((1 << self.bank_bits) - 1)[:, None]) >> self.chunk_bits[:, None]
        banks = 1 << int(self.bank_bits.max())
        index = (bank + (np.arange(len(bank)) * banks)[:, None])[self.words >= 0]
        worst: IntArray = np.bincount(index, minlength=len(bank) * banks).reshape(-1, banks).max(axis=1)
        return worst

    def excess(self, masks: Masks) -> int:
        """Weighted excess wavefronts under a swizzle."""
        return self.excess_at(self.costs(masks))

    def excess_at(self, costs: IntArray) -> int:
        """Weighted excess wavefronts, of each phase's wavefronts."""
        return int((self.weight * (costs - self.ideal)).sum())


def phases_of(candidate: Linearisation, sets: Sequence[PhaseSet], tile: Tile) -> Phases:
    """The phases of a problem under one linearisation."""
    table = candidate.table(tile.shape) * tile.element_bytes
    lanes = max((s.elements.shape[1] for s in sets), default=0)
    columns: list[tuple[IntArray, ...]] = []
    for phase_set in sets:
        rule = phase_set.rule
        chunk_words = max(1, phase_set.width_bytes // rule.bank_bytes)
        words = np.where(phase_set.elements < 0, -1, table[phase_set.elements] // rule.bank_bytes)
        if rule.row_words > 1:
            words = np.where(words < 0, -1, words // rule.row_words * rule.row_words + words % rule.banks)
        words.sort(axis=1)
        if not rule.serialises_equal:
            words[:, 1:][words[:, 1:] == words[:, :-1]] = -1
        present = words >= 0
        first = np.where(present, words, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
        words = np.where(present, words ^ first, -1)
        words.sort(axis=1)
        words, inverse = _unique_rows(words)
        weight = np.bincount(inverse, phase_set.weight, len(words)).astype(np.int64)
        target = np.full(len(words), np.iinfo(np.int64).max)
        np.minimum.at(target, inverse, phase_set.floor)
        requests = chunk_words if rule.split_words else 1
        distinct = words >= 0
        distinct[:, 1:] &= words[:, 1:] != words[:, :-1]
        ideal = -(-distinct.sum(axis=1) * chunk_words // (rule.banks * requests))
        full = np.full_like(weight, 1)
        columns.append(
            (
                _widened(words, lanes),
                full * (chunk_words.bit_length() - 1),
                full * (rule.banks.bit_length() - 1),
                weight * requests,
                np.maximum(1, ideal),
                np.maximum(np.maximum(1, ideal), target),
            )
        )
    if not columns:
        none = np.zeros(0, np.int64)
        return Phases(np.zeros((0, 0), np.int64), none, none, none, none, none)
    return Phases(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))


def _widened(words: IntArray, lanes: int) -> IntArray:
    """The rows with absent words in front, up to so many lanes."""
    if words.shape[1] == lanes:
        return words
    return np.pad(words, ((0, 0), (lanes - words.shape[1], 0)), constant_values=-1)


def _unique_rows(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct rows, and for each row which it is; in an order that depends on the rows alone."""
    if not rows.size:
        return rows[:1], np.zeros(len(rows), np.int64)
    rows = np.ascontiguousarray(rows)
    # Rows as opaque bytes sort several times faster than `np.unique(axis=0)`.
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], inverse.reshape(-1)
