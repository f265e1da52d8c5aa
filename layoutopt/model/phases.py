"""Phases: who is served together, and how often, before any layout and under one linearisation.

The model's own reading of `layoutopt.hardware.devices`. Whether lanes touch the same element does not
depend on the layout, so neither do the merge rule nor the equality of phases: equal phases are
merged here, once, and weighted. Under a linearisation those that are the same up to an XOR are merged, too.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from layoutopt.accesses.alignment import Blocks, blocks
from layoutopt.accesses.trace import LaneTrace, Trace
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.hardware.devices import PhaseRule
from layoutopt.model.linearisations import Linearisation
from layoutopt.problems.types import Tile

# Odd numbers for a sum by which equal rows are found; rows are then compared.
_MULTIPLIERS = 2 * np.random.default_rng(1).integers(0, 1 << 63, 64).astype(np.uint64) + 1

_KEPT: Final = 4  # what some accesses meet; each stage of a search asks
_MOST_PAIRS: Final = 1 << 20  # of words, at a time

Masks = dict[int, int]  # target bit -> source mask, in bits of the word offset


class Rows(NamedTuple):
    """Distinct rows of elements, -1 for absent lanes."""

    rows: IntArray  # int64, shape (rows, lanes)
    weight: IntArray  # of all that are equal
    repeats: IntArray  # how many are


class PhaseSet(Struct, frozen=True, eq=False):
    """Distinct phases that one rule serves at one width."""

    # int64, shape (phases, lanes): row-major index of each element, sorted within a phase, -1 for absent.
    # Equal elements stand once unless the rule serialises them.
    elements: IntArray
    weight: IntArray  # int64, shape (phases,): weighted number of times the phase is served, above 0
    # int64, shape (phases,): number of times without weights; times of weight 0 do not count.
    repeats: IntArray
    # int64, shape (phases,): wavefronts that the phase costs in every layout (see
    # `layoutopt.accesses.alignment`), by counting.
    floor: IntArray
    rule: PhaseRule  # how it is served
    width_bytes: int  # bytes that each lane covers, at most one row of banks

    def only(self, rows: Sequence[int] | slice | IntArray) -> "PhaseSet":
        """Some of the phases."""
        return replace(
            self,
            elements=self.elements[rows],
            weight=self.weight[rows],
            repeats=self.repeats[rows],
            floor=self.floor[rows],
        )

    @property
    def chunk_words(self) -> int:
        """Words that each lane covers."""
        return max(1, self.width_bytes // self.rule.bank_bytes)

    @property
    def requests(self) -> int:
        """Requests in which they are served, each a phase of its own."""
        return self.chunk_words if self.rule.split_words else 1


def counting_excess(sets: Sequence[PhaseSet]) -> tuple[int, int]:
    """Excess that the counting bound leaves in every layout: weighted, and not."""
    weighted = plain = 0
    for s in sets:
        over = np.maximum(s.floor - ideal_of(s, s.elements), 0)
        weighted += int((s.weight * over).sum()) * s.requests
        plain += int((s.repeats * over).sum()) * s.requests
    return weighted, plain


@lru_cache(_KEPT)
def phase_sets(trace: Trace, tile: Tile, whole: Trace | None = None) -> tuple[PhaseSet, ...]:
    """The distinct phases of all accesses, a set for each rule and width.

    `whole`: the accesses whose vectors every layout keeps whole, where more than those of `trace`.
    """
    by_rule: dict[tuple[PhaseRule, int], list[Rows]] = {}  # and bytes that a lane covers
    for access in trace.accesses:
        of_rule = by_rule.setdefault((access.rule, access.operation.width_bytes), [])
        of_rule.extend(_phases(access, access.rule))
    held_by = blocks(whole or trace, tile)
    sets = []
    for (rule, access_bytes), served in by_rule.items():
        # An access wider than a row of banks fills it several times, wherever it lies.
        width_bytes = min(access_bytes, rule.banks * rule.bank_bytes)
        times = access_bytes // width_bytes
        lanes = max(part.rows.shape[1] for part in served)
        stacked = np.concatenate([_widened(part.rows, lanes) for part in served])
        elements, phase_of = _unique_rows(_canonical(stacked, rule))
        weights = times * np.concatenate([part.weight for part in served])
        # Times without weights; one of weight 0 may stand for many run-time values: not all are served.
        repeats = times * np.concatenate([part.repeats * (part.weight > 0) for part in served])
        weight, count = (
            np.bincount(phase_of, summed, len(elements)).astype(np.int64) for summed in (weights, repeats)
        )
        used = (elements[:, -1] >= 0) & (weight > 0)  # rows are sorted: the last lane is absent where all are
        found = PhaseSet(
            elements=elements[used],
            weight=weight[used],
            repeats=count[used],
            floor=np.ones(int(used.sum()), np.int64),  # until it is counted
            rule=rule,
            width_bytes=width_bytes,
        )
        sets.append(replace(found, floor=_counting_bound(found, tile.element_bytes, held_by)))
    return tuple(sets)


def _phases(access: LaneTrace, rule: PhaseRule) -> Iterator[Rows]:
    """For each phase of the rule, what the lanes in it touch, by instruction.

    Where the rule merges pairs of phases, two phases are one for instructions in which all lanes that differ
    in bit 0 of their number touch equal elements, or all that differ in bit 1.
    """
    element, weight, repeats = merged(np.where(access.active, access.element, -1), access.weight)
    in_pairs = np.zeros(len(element), bool)
    if rule.merges_pairs:
        lanes = np.arange(element.shape[1])
        for mask in (1, 2):
            other = element[:, lanes ^ mask]
            in_pairs |= ((element < 0) | (other < 0) | (element == other)).all(axis=1)
        for first, second in zip(rule.phases[::2], rule.phases[1::2], strict=True):
            yield Rows(element[in_pairs][:, first + second], weight[in_pairs], repeats[in_pairs])
    for phase in rule.phases:
        yield Rows(element[~in_pairs][:, phase], weight[~in_pairs], repeats[~in_pairs])


def merged(rows: IntArray, weight: IntArray) -> Rows:
    """Equal rows as one, in the order in which they come.

    Equal rows are found by a hash; where two different rows have one hash, no rows are merged.
    """
    hashed = rows.view(np.uint64) @ _MULTIPLIERS[: rows.shape[1]]
    _, first, inverse, count = np.unique(hashed, return_index=True, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(-1)
    if len(first) == len(rows) or (rows[first][inverse] != rows).any():
        return Rows(rows, weight, np.ones(len(rows), np.int64))
    total = np.zeros(len(first), np.int64)
    np.add.at(total, inverse, weight)
    order = np.argsort(first)
    return Rows(rows[first[order]], total[order], count[order])


def _canonical(elements: IntArray, rule: PhaseRule) -> IntArray:
    """Sort each phase, absent lanes first; drop repeats that cost nothing."""
    rows = np.sort(elements, axis=1)
    if not rule.serialises_equal:
        rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = -1
        rows = np.sort(rows, axis=1)
    return rows


def _unique_rows(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct rows in rising order, and for each row the number of the distinct row that equals it."""
    # From the last column to the first, each sort keeping the order of the ones before.
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    starts = np.ones(len(rows), bool)
    starts[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    inverse = np.empty(len(rows), np.int64)
    inverse[order] = np.cumsum(starts) - 1
    return ordered[starts], inverse


def _counting_bound(phases: PhaseSet, element_bytes: int, held_by: Blocks) -> IntArray:
    """Wavefronts of each phase in every layout, by counting; its own `floor` is not read.

    An element keeps its place in its block (`held_by`; see `layoutopt.accesses.alignment`). In blocks of 4
    words, words of one place share a quarter of the banks in every layout; of 2 words, half of them; of 1
    word, all. The bound is the largest that one of these places gives.
    """
    elements, rule, lane_words = phases.elements, phases.rule, phases.chunk_words
    bank_bytes = rule.bank_bytes
    served = max(rule.banks, rule.row_words)  # distinct words that one wavefront can serve
    present = elements >= 0
    element = np.where(present, elements, 0)
    block_bytes, place = held_by.width[element], held_by.place[element]
    has_word = present & (block_bytes >= bank_bytes)
    # Elements whose block is narrower than a word may share words: as many as can start in one. They are
    # distinct, or wait for each other, which the last bound counts.
    loose = (present & ~has_word).sum(axis=1)
    loose_words = -(-loose // -(-bank_bytes // element_bytes))
    # A word is named by the byte of the row-major tile where it starts.
    word = np.where(has_word, held_by.head[element] * element_bytes + place // bank_bytes * bank_bytes, -1)
    bound = np.ones(len(elements), np.int64)
    for block_words in (1, 2, 4):
        if block_words < lane_words:
            continue  # the block of a lane's own words is wider
        in_blocks = has_word & (block_bytes >= block_words * bank_bytes)
        place_words = place // bank_bytes % block_words
        for shared_place in range(0, block_words, lane_words):
            sharing = np.where(in_blocks & (place_words == shared_place), word, -1)
            count = _count(sharing, rule.serialises_equal) + (loose_words if block_words == 1 else 0)
            bound = np.maximum(bound, -(-count // max(1, served // block_words)))
    if rule.serialises_equal:  # lanes of one element are served one by one
        for lane in range(elements.shape[1]):
            equal = (elements == elements[:, [lane]]).sum(axis=1) * present[:, lane]
            bound = np.maximum(bound, equal)
    return bound


def _count(words: IntArray, keep_equal: bool) -> IntArray:
    """Words of each row, -1 not counted, equal ones once unless `keep_equal`."""
    rows = np.sort(words, axis=1)
    counted = rows >= 0
    if not keep_equal:
        counted[:, 1:] &= rows[:, 1:] != rows[:, :-1]
    count: IntArray = counted.sum(axis=1)
    return count


# Under one linearisation ----------------------------------------------------------------------


class Phases(Struct, frozen=True):
    """The phases of a problem under one linearisation, merged as far as they must cost the same.

    Arrays of shape (phases,), but for `words`.
    """

    words: IntArray  # sorted word offsets, up to an XOR translation, shape (phases, lanes); -1 for absent
    chunk_bits: IntArray  # log2 of the words that each stands for
    bank_bits: IntArray  # log2 of the banks
    weight: IntArray  # weighted number of phases
    ideal: IntArray  # wavefronts if spread evenly
    # Wavefronts at the least excess that counting proves. Its excess is that over `ideal`, which is larger
    # where elements that could share words do not.
    target: IntArray

    def __len__(self) -> int:
        return len(self.words)

    def only(self, rows: slice | BoolArray) -> "Phases":
        """Some of the phases."""
        return Phases(*(part[rows] for part in astuple(self)))

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

    def costs(self, *swizzles: Masks) -> IntArray:
        """Wavefronts under swizzles, in the model's own arithmetic; shape (swizzles, phases)."""
        if not len(self):
            return np.zeros((len(swizzles), 0), np.int64)
        flips = {
            (bit, mask): (np.bitwise_count(self.words & mask).astype(np.int64) & 1) << bit
            for bit, mask in {row for masks in swizzles for row in masks.items()}
        }
        bank = np.repeat(self.words[None], len(swizzles), axis=0)
        for at, masks in zip(bank, swizzles, strict=True):
            for row in masks.items():
                at ^= flips[row]
        bank = (bank & ((1 << self.bank_bits) - 1)[:, None]) >> self.chunk_bits[:, None]
        banks, count = 1 << int(self.bank_bits.max()), len(swizzles) * len(self)
        index = (bank + (np.arange(count) * banks).reshape(-1, len(self), 1))[:, self.words >= 0].ravel()
        loads = np.bincount(index, minlength=count * banks)
        worst: IntArray = loads.reshape(-1, len(self), banks).max(axis=2)
        return worst

    def excess(self, *swizzles: Masks) -> IntArray:
        """Weighted excess wavefronts under swizzles, shape (swizzles,)."""
        excess: IntArray = (self.costs(*swizzles) - self.ideal) @ self.weight
        return excess


@lru_cache(_KEPT)
def phases_of(candidate: Linearisation, sets: tuple[PhaseSet, ...], tile: Tile) -> Phases:
    """The phases of a problem under one linearisation, those of one set together."""
    table = candidate.table(tile.shape)
    lanes = max((s.elements.shape[1] for s in sets), default=0)
    found = []
    for phase_set in sets:
        words = words_of(phase_set, table[phase_set.elements], tile.element_bytes)
        # Which words share a bank depends on their XOR alone: phases that differ by a translation are one.
        present = words >= 0
        lowest = np.where(present, words, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
        words = np.where(present, words ^ lowest, -1)
        words.sort(axis=1)
        words, phase_of = _rows_once(words)
        weight = np.bincount(phase_of, phase_set.weight, len(words)).astype(np.int64)
        floor = np.full(len(words), np.iinfo(np.int64).max)
        np.minimum.at(floor, phase_of, phase_set.floor)  # the least of those merged bounds them all
        ideal = ideal_of(phase_set, words)
        found.append(
            Phases(
                words=_widened(words, lanes),
                chunk_bits=np.full(len(words), phase_set.chunk_words.bit_length() - 1),
                bank_bits=np.full(len(words), phase_set.rule.banks.bit_length() - 1),
                weight=weight * phase_set.requests,
                ideal=ideal,
                target=np.maximum(ideal, floor),
            )
        )
    if not found:
        none = np.zeros(0, np.int64)
        return Phases(np.zeros((0, 0), np.int64), none, none, none, none, none)
    return Phases(*(np.concatenate(arrays) for arrays in zip(*map(astuple, found), strict=True)))


def words_of(phase_set: PhaseSet, offsets: IntArray, element_bytes: int) -> IntArray:
    """Word offsets, equal ones side by side; -1 for absent lanes and for repeats that cost nothing.

    Args:
        offsets: of its elements, in elements, under any linearisations: shape (..., phases, lanes).
    """
    rule = phase_set.rule
    words = np.where(phase_set.elements < 0, -1, offsets * element_bytes >> rule.bank_bytes.bit_length() - 1)
    if rule.row_words > 1:  # words of one aligned group that share a bank are served as one (Kepler)
        words = np.where(words < 0, -1, words // rule.row_words * rule.row_words + words % rule.banks)
    if element_bytes >= rule.bank_bytes and rule.row_words <= 1:
        return words  # no two elements share one, and equal elements are side by side
    words.sort(axis=-1)
    if not rule.serialises_equal:
        words[..., 1:][words[..., 1:] == words[..., :-1]] = -1
    return words


def ideal_of(phase_set: PhaseSet, words: IntArray) -> IntArray:
    """Wavefronts of phases if their words were spread evenly, shape (..., phases)."""
    distinct = words >= 0
    distinct[..., 1:] &= words[..., 1:] != words[..., :-1]
    served = phase_set.rule.banks * phase_set.requests
    ideal: IntArray = np.maximum(1, -(-distinct.sum(axis=-1) * phase_set.chunk_words // served))
    return ideal


def costs_of(phase_set: PhaseSet, words: IntArray) -> IntArray:
    """Wavefronts of phases whose words lie as they are, shape (..., phases)."""
    banks = phase_set.rule.banks
    held, rows = words >= 0, np.arange(words[..., 0].size).reshape(*words.shape[:-1], 1) * banks
    at = (rows + ((words & banks - 1) >> phase_set.chunk_words.bit_length() - 1))[held]
    costs: IntArray = (
        np.bincount(at, minlength=rows.size * banks).reshape(*words.shape[:-1], banks).max(axis=-1)
    )
    return costs


def _widened(words: IntArray, lanes: int) -> IntArray:
    """Rows of `lanes` entries, filled up with -1 at the front."""
    if words.shape[1] == lanes:
        return words
    return np.pad(words, ((0, 0), (lanes - words.shape[1], 0)), constant_values=-1)


def _rows_once(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Distinct rows, and for each row which it is; in an order that depends on the rows alone."""
    if not rows.size:
        return rows[:1], np.zeros(len(rows), np.int64)
    rows = np.ascontiguousarray(rows)
    # Rows as opaque bytes sort several times faster than `np.unique(axis=0)`.
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], inverse.reshape(-1)
