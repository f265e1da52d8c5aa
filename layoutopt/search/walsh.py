"""Swizzles by Walsh spectrum: found or refuted by linear algebra before CP-SAT is asked.

A swizzle's bank bits are linear functionals of the word offset: row t is bit t plus a mask of source
bits. A phase of n words keeps to its ceiling c only if, for every non-empty set of rows, their sum f
splits the words so evenly that either half fits half of the banks:

    |W(f)| <= c * banks - n,   W(f) = sum over the words w of (-1)^parity(f & w)

W is the Walsh-Hadamard transform of the phase, and tells for all masks at once. Where the phase fills
its banks (n = c * banks) the condition for every f is also enough: all characters vanish exactly when
the words are spread evenly. Other phases are counted on each swizzle found.

Rows are chosen one by one. After some are chosen, a table holds which functionals still agree with
every sum of chosen rows; adding row r keeps f where both f and f + r were kept:

    rows chosen   {}             {r}                    {r, s}
    kept          good[f]        good[f] good[f+r]      ... and good[f+s] good[f+r+s]

The last two rows are taken for all choices together. The number of steps is bounded; beyond it the
answer is UNKNOWN and the solver's to give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layoutopt.expressions.bits import xor_basis
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.cp_sat import Outcome

# Functionals in a table, and table entries that one search touches.
_MAX_BITS = 17
_MAX_STEPS = 1 << 32
_MAX_FAILED_LEAVES = 200
_CHUNK = 1 << 12
# Of a question, of a step, and of an entry of a table that it touches: seconds of a quiet machine.
_EFFORT_EACH, _EFFORT_A_STEP, _EFFORT_AN_ENTRY = 3e-4, 1e-5, 2e-9


@dataclass(frozen=True, slots=True)
class Question:
    """Is there a swizzle?

    Attributes:
        words: word offsets of each phase, up to an XOR translation, shape (phases, lanes), an entry
            for each lane that counts and -1 for the others.
        low: lowest bank bit that selects a bank, above the bits inside a vector; shape (phases,).
        high: one above the highest; shape (phases,).
        ceiling: wavefronts that each phase may cost; shape (phases,).
        targets: bank bits that may be flipped.
        first_source: lowest bit that may flip them.
        still: (target, offsets): source bits of offsets at which the target may not be flipped.
        last: source bits of the last block of offsets, and the flips that may happen to it.
    """

    words: IntArray
    low: IntArray
    high: IntArray
    ceiling: IntArray
    targets: range
    first_source: int
    still: Sequence[tuple[int, Sequence[int]]]
    last: tuple[int, frozenset[int]] | None


def decide(question: Question, budget: Budget) -> tuple[Outcome, dict[int, int]]:
    """Whether a swizzle exists, and one: masks by target bit, in bits of the word offset.

    Returns:
        FEASIBLE with masks, INFEASIBLE, or UNKNOWN where the tables or the search would be too large.
    """
    return _Search(question, budget).run()


class _OutOfSteps(Exception):
    pass


class _Search:
    def __init__(self, question: Question, budget: Budget) -> None:
        self.question = question
        self.budget = budget
        self.steps = 0
        self.present = question.words >= 0
        self.count = self.present.sum(axis=1)
        self.binding = np.flatnonzero(self.count > question.ceiling)

    def run(self) -> tuple[Outcome, dict[int, int]]:
        question = self.question
        if not len(self.binding):
            stays = question.last is None or 0 in question.last[1]
            return (Outcome.FEASIBLE if stays else Outcome.UNKNOWN), {}
        self.high = int(question.high[self.binding].max())
        lowest = int(question.low[self.binding].min())
        if (question.high[self.binding] != self.high).any() or question.first_source < self.high:
            return Outcome.UNKNOWN, {}
        self.sources = self._enough_sources()
        if self.high - lowest + len(self.sources) > _MAX_BITS:
            return Outcome.UNKNOWN, {}
        self.size = 1 << len(self.sources)
        self.masks = np.arange(self.size)
        self._lay_out_words()
        # Bits that stay as they are come first, then those with few masks: few branches at the top.
        bits = range(lowest, self.high)
        allowed = {bit: self._allowed(bit) for bit in bits}
        self.order = sorted(bits, key=lambda bit: int(allowed[bit].sum()))
        self.allowed = [allowed[bit] for bit in self.order]
        good = np.ones((1 << self.high, self.size), bool)
        in_table = np.zeros(0, np.int64)
        # The tightest phases most often refute alone, so the others wait.
        for fresh in self._batches():
            good = self._good(good, fresh)
            in_table = np.append(in_table, fresh)
            if not all((good[1 << bit] & allowed[bit]).any() for bit in bits):
                return Outcome.INFEASIBLE, {}
            if self.budget.spent:
                return Outcome.UNKNOWN, {}
        failed = 0
        try:
            while True:
                for rows in self._choices(self._over_order(good)):
                    late = self._violated(rows)
                    if late is None:
                        continue
                    if not len(late):
                        return Outcome.FEASIBLE, self._named(rows)
                    failed += 1
                    if failed > _MAX_FAILED_LEAVES:
                        return Outcome.UNKNOWN, {}
                    fresh = np.setdiff1d(late, in_table)[:64]
                    if len(fresh):
                        in_table = np.append(in_table, fresh)
                        good = self._good(good, fresh)
                        break
                else:
                    return Outcome.INFEASIBLE, {}
        except _OutOfSteps:
            return Outcome.UNKNOWN, {}

    # Tables -----------------------------------------------------------------------------------

    def _enough_sources(self) -> list[int]:
        """Source bits that are enough: masks over them give every functional on the words in use."""
        question = self.question
        words = question.words[self.binding] >> question.first_source
        parts = np.unique(words[self.present[self.binding]]).tolist()
        parts += [v >> question.first_source for _, offsets in question.still for v in offsets]
        parts += [question.last[0] >> question.first_source] if question.last is not None else []
        return sorted(number.bit_length() - 1 for number in xor_basis(parts))

    def _compress(self, part: IntArray | int) -> IntArray:
        """The bits that are enough of a source part, moved together."""
        part = np.asarray(part)
        result = np.zeros_like(part)
        for k, bit in enumerate(self.sources):
            result |= (part >> bit & 1) << k
        return result

    def _lay_out_words(self) -> None:
        question, binding = self.question, self.binding
        words = np.where(self.present, question.words, 0)[binding]
        self.present, self.count = self.present[binding], self.count[binding]
        self.source = self._compress(words >> question.first_source)
        self.bank = words & ((1 << self.high) - 1)
        self.low, self.ceiling = question.low[binding], question.ceiling[binding]
        self.slack = self.ceiling * (1 << (self.high - self.low)) - self.count

    def _allowed(self, bit: int) -> BoolArray:
        """The masks that row `bit` may have."""
        allowed: BoolArray = self.masks >= 0
        if bit not in self.question.targets:
            allowed = self.masks == 0
        for target, offsets in self.question.still:
            for offset in offsets if target == bit else ():
                allowed &= (
                    np.bitwise_count(self.masks & self._compress(offset >> self.question.first_source)) % 2
                    == 0
                )
        return allowed

    def _batches(self) -> Iterator[IntArray]:
        """As many phases as are quickly transformed, those with least slack first."""
        tightest = np.argsort(self.slack, kind="stable")[: max(64, (1 << 24) // (self.size << self.high))]
        start, length = 0, 8
        while start < len(tightest):
            yield tightest[start : start + length]
            start, length = start + length, min(64, 2 * length)

    def _good(self, good: BoolArray, phases: IntArray) -> BoolArray:
        """Strike out the functionals that split one of `phases` too unevenly."""
        self.budget.charge(_EFFORT_EACH + _EFFORT_AN_ENTRY * len(phases) * (self.size << self.high))
        for low in np.unique(self.low[phases]).tolist():
            width = 1 << (self.high - low)
            of_width = phases[self.low[phases] == low]
            for start in range(0, len(of_width), 64):
                chosen = of_width[start : start + 64]
                index = (self.source[chosen] * width + (self.bank[chosen] >> low)).astype(np.int64)
                index = index * len(chosen) + np.arange(len(chosen))[:, None]
                hits = np.bincount(index[self.present[chosen]], minlength=len(chosen) * width * self.size)
                spectrum = _transform(hits.astype(np.int16).reshape(-1, len(chosen)))
                slack = np.minimum(self.slack[chosen], np.iinfo(np.int16).max).astype(np.int16)
                uneven = (np.abs(spectrum) > slack).any(axis=1).reshape(self.size, width)
                good[np.arange(1, width) << low] &= ~uneven[:, 1:].T
        return good

    def _over_order(self, good: BoolArray) -> BoolArray:
        """`good` by sets of positions in `order` instead of sets of bits."""
        index = np.zeros(1 << len(self.order), np.int64)
        for k, bit in enumerate(self.order):
            index |= (np.arange(len(index)) >> k & 1) << bit
        by_position: BoolArray = good[index]
        return by_position

    # Rows -------------------------------------------------------------------------------------

    def _choices(self, kept: BoolArray, chosen: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
        """Masks by position in `order` for which every sum of rows is good.

        Args:
            kept: by set of positions yet to be chosen, and mask.
            chosen: masks of the positions before.
        """
        left = len(self.order) - len(chosen)
        if not left:  # phases of one bank have no rows
            yield chosen
            return
        own = kept[1] & self.allowed[len(chosen)]
        if left == 1:
            for mask in np.flatnonzero(own).tolist():
                yield (*chosen, mask)
            return
        if left == 2:
            yield from self._last_two(kept[None], chosen, np.zeros((1, 0), np.int64))
            return
        candidates = np.flatnonzero(own)
        if left == 3:
            for part in np.array_split(candidates, max(1, len(candidates) * self.size // (1 << 22))):
                moved = kept[1::2][:, self.masks ^ part[:, None]]  # (sets, rows, masks)
                self._spend(moved.size)
                below = np.swapaxes(kept[::2, None, :] & moved, 0, 1)
                yield from self._last_two(below, chosen, part[:, None])
            return
        for mask in candidates.tolist():
            self._spend(kept.size)
            below = kept[::2] & kept[1::2][:, self.masks ^ mask]
            if all(below[1 << k].any() for k in range(left - 1)):
                yield from self._choices(below, (*chosen, mask))

    def _last_two(
        self, kept: BoolArray, chosen: tuple[int, ...], rows: IntArray
    ) -> Iterator[tuple[int, ...]]:
        """The last two rows, for many choices of the one before at once (`kept` and `rows` by choice)."""
        node, first = np.nonzero(kept[:, 1] & self.allowed[-2])
        for at in range(0, len(node), _CHUNK):
            n, a = node[at : at + _CHUNK], first[at : at + _CHUNK]
            self._spend(len(n) * self.size)
            both = kept[n, 2] & kept[n[:, None], 3, self.masks ^ a[:, None]] & self.allowed[-1]
            which, last = np.nonzero(both)
            for w, b in zip(which.tolist(), last.tolist(), strict=True):
                yield (*chosen, *rows[n[w]].tolist(), int(a[w]), b)

    def _spend(self, entries: int) -> None:
        self.steps += entries
        self.budget.charge(_EFFORT_A_STEP + _EFFORT_AN_ENTRY * entries)
        if self.steps > _MAX_STEPS or self.budget.spent:
            raise _OutOfSteps

    # Leaves -----------------------------------------------------------------------------------

    def _violated(self, rows: tuple[int, ...]) -> IntArray | None:
        """The phases that cost more than they may; None where the last block would be moved too far."""
        if self.question.last is not None:
            part, flips = self.question.last
            compressed = int(self._compress(part >> self.question.first_source))
            flip = sum(
                1 << bit
                for bit, mask in zip(self.order, rows, strict=True)
                if (mask & compressed).bit_count() & 1
            )
            if flip not in flips:
                return None
        bank = self.bank.copy()
        for bit, mask in zip(self.order, rows, strict=True):
            bank ^= (np.bitwise_count(self.source & mask).astype(np.int64) & 1) << bit
        bank >>= self.low[:, None]
        index = bank + (np.arange(len(bank)) << self.high)[:, None]
        load = np.bincount(index[self.present], minlength=len(bank) << self.high)
        return np.flatnonzero(load.reshape(len(bank), -1).max(axis=1) > self.ceiling)

    def _named(self, rows: tuple[int, ...]) -> dict[int, int]:
        named = {}
        for bit, mask in zip(self.order, rows, strict=True):
            full = sum(1 << source for k, source in enumerate(self.sources) if mask >> k & 1)
            if full:
                named[bit] = full << self.question.first_source
        return named


def _transform(values: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """The Walsh-Hadamard transform of each column; `values` are lost."""
    size, columns = values.shape
    other = np.empty_like(values)
    step = size // 2
    while step:
        # Columns lie side by side, so that even the shortest steps are long runs in memory.
        given, made = (part.reshape(-1, 2, step * columns) for part in (values, other))
        np.add(given[:, 0], given[:, 1], out=made[:, 0])
        np.subtract(given[:, 0], given[:, 1], out=made[:, 1])
        values, other = other, values
        step //= 2
    return values
