"""The XOR masks of least excess over one linearisation, or those within ceilings, by branch and bound.

A swizzle's bank bits are rows r_t = bit t + mask_t of the word offset. Rows are chosen one by one. After k
of them the words of a phase lie in 2^k classes, and words of a class meet in one of banks / 2^k banks:

    rows chosen     classes of a phase of 8 words on 8 banks        wavefronts at least
    none            {0 1 2 3 4 5 6 7}                               ceil(8 / 8) = 1
    r               {0 1 2 3 6} {4 5 7}                             ceil(5 / 4) = 2
    r, s            {0 1 6} {2 3} {4} {5 7}                         ceil(3 / 2) = 2
    all three       {0} {1 6} {2} {3} {4} {5} {7} {}                2, which is exact

So the largest class bounds what a phase costs, whatever the rows to come: a class of n words that shares b
banks puts ceil(n / b) into one of them. The sum over all phases, weighted, bounds the excess. It is asked of
every mask that each row still to be chosen may have, and the row with the fewest that stay below the best so
far is chosen next. A class is a bit for each lane, so that a bound is an AND and a count of bits.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.expressions.bits import xor_basis
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import current
from layoutopt.model.phases import Masks, Phases
from layoutopt.model.swizzle_rules import Field, LastBlock, Rules

Lanes = npt.NDArray[Any]  # uint32 or uint64: a bit for each lane

# Masks times phases that a table holds at most, and the entries that are counted at once.
_MAX_TABLE = 1 << 22
_CHUNK = 1 << 21
MAX_LANES: Final = 64  # of a phase
# Work that a question, and a class that is counted, are charged with, in seconds of a quiet machine.
_EFFORT_EACH, _EFFORT_A_STEP = 3e-4, 2e-9
# Bounds of children are computed together: entries of their arrays, and how many children, at most.
_TOGETHER, _MOST_TOGETHER = 1 << 18, 64


class Swizzled(Struct, frozen=True):
    """What masks over a linearisation give: weighted excess, and the elements that the layout takes."""

    excess: int
    used: int
    masks: Masks


class Searched(Struct, frozen=True):
    """The best that was found below the bound, if any; and whether nothing better exists.

    `bit`: a bank bit of which no mask stays below the bound, whatever the others are, where there is one.
    """

    best: Swizzled | None
    complete: bool
    bit: int | None = None


class Question(Struct, frozen=True):
    """Which masks have the least excess, then the fewest elements, below what is known?"""

    phases: Phases  # of the linearisation
    field: Field  # where a swizzle acts
    rules: Rules  # what a swizzle must obey, but for the last block
    last: LastBlock | None  # the last block, where a swizzle changes what it takes
    span: int  # elements that the layout takes otherwise
    most: int | None  # elements that it may take; None for any number
    below: tuple[int, int]  # excess and elements of the best so far
    shifts: int | None = None  # different distances that bits may move over; None for any number

    def used(self, flips: int) -> int:
        """Elements that the layout takes if these bits of the last block are flipped."""
        return self.span if self.last is None else self.last.reach[flips]

    @property
    def least_used(self) -> int:
        """Elements that it takes at least."""
        return self.span if self.last is None else min(self.last.reach.values())


def least_excess(question: Question, steps: int) -> Searched:
    """The best below the bound.

    Args:
        steps: classes counted at most; the same number gives the same answer.
    """
    tree = _Tree(question, steps)
    complete = True
    try:
        tree.run()
    except _OutOfSteps:
        complete = False
    current().charge(_EFFORT_EACH + _EFFORT_A_STEP * (steps - tree.steps))
    return Searched(tree.best, complete, tree.bit)


def within_ceilings(question: Question, ceilings: IntArray, steps: int) -> Searched:
    """Masks under which every phase keeps to its ceiling, if there are any, of the fewest elements.

    Args:
        question: what is asked; how much excess is left follows from the ceilings.
        ceilings: wavefronts, by phase.
    """
    phases = question.phases
    most = int((phases.weight * (ceilings - phases.ideal)).sum())
    asked = replace(question, phases=replace(phases, target=ceilings), below=(most + 1, 0))
    return least_excess(asked, steps)


class _OutOfSteps(Exception):
    pass


class _Row(Struct, frozen=True):
    """The masks that one bank bit may have, and their effect on the phases."""

    masks: IntArray  # in bits of the word offset, shape (masks,)
    lanes: Lanes  # the lanes of each phase whose bank bit it sets, shape (masks, phases)
    flips: IntArray  # 1 for masks that flip the bit in the last block, else 0; shape (masks,)
    selects: IntArray  # 1 for phases in which the bit selects a bank, else 0; shape (phases,)

    def only(self, kept: BoolArray) -> "_Row":
        if kept.all():
            return self
        return _Row(self.masks[kept], self.lanes[kept], self.flips[kept], self.selects)


class _Tree:
    """The search of one question.

    Attributes:
        steps: classes that may still be counted.
        best: masks of least excess below the bound, so far.
        bit: see `Searched`.
        phases: those that are searched.
        constant: weighted excess of the others, which cost the same under all masks.
    """

    def __init__(self, question: Question, steps: int) -> None:
        self.question = question
        self.steps = steps
        self.best: Swizzled | None = None
        self.bit: int | None = None
        phases = question.phases
        cost_the_same = (phases.words >= 0).sum(axis=1) <= phases.target
        over = phases.weight * (phases.target - phases.ideal)
        self.constant = int(over[cost_the_same].sum())
        self.phases = phases.only(~cost_the_same)
        self.banks = self.phases.bank_bits - self.phases.chunk_bits  # log2 of what a phase distinguishes

    def run(self) -> None:
        """Find `best`; raises _OutOfSteps before the end of the search where steps or time are over."""
        rows: dict[int, _Row] = {}
        bounds, patterns = dict[int, IntArray](), self._patterns()
        if self.phases.words.shape[1] > MAX_LANES:
            raise _OutOfSteps
        everybody = lane_bits(self.phases.words >= 0)[None]
        for bit, row in self._rows():
            rows[bit], bounds[bit] = row, self._bounds(everybody[None], row, row.selects)[0]
            if not self._of_interest(bounds[bit], row, bit, patterns).any():
                self.bit = bit
                return
        self._descend(rows, bounds, everybody, np.zeros(len(self.phases.words), np.int64), {}, patterns)

    # Tables -----------------------------------------------------------------------------------

    def _rows(self) -> Iterator[tuple[int, _Row]]:
        """Each bit below the end of the targets, with the masks that the rules allow it and what they do."""
        question, sources = self.question, self._sources()
        if len(self.phases.words) << len(sources) > _MAX_TABLE:
            raise _OutOfSteps
        # Every set of sources, as a mask, and the lanes in which it flips its target.
        masks, flipped = np.zeros(1, np.int64), flipped_lanes(lanes_with(self.phases.words, sources))
        for source in sources:
            masks = np.concatenate([masks, masks | 1 << source])
        # Whether a mask flips its target in the last block, which is not full: its words share these bits.
        shared_by_last = 0 if question.last is None else question.last.sources
        flips_last = np.bitwise_count(masks & shared_by_last).astype(np.int64) % 2
        bits = range(question.field.targets.stop)
        for bit, lanes_set in zip(bits, lanes_with(self.phases.words, bits), strict=True):
            # By phase, whether the bit selects a bank: lower ones are inside what a lane covers.
            selects = (self.phases.chunk_bits <= bit) & (bit < self.phases.bank_bits)
            allowed = masks & ~question.field.sources(bit) == 0
            if bit not in question.rules.targets:  # it keeps its value
                allowed = masks == 0
            # A vector that begins at one of these offsets would be torn if the bit were flipped there.
            for target, offsets in question.rules.unflipped:
                for offset in offsets if target == bit else ():
                    allowed &= np.bitwise_count(masks & offset) % 2 == 0
            if question.shifts is not None:  # bit s of `masks >> bit`: a bit moves over the distance s
                allowed &= np.bitwise_count(masks >> bit) <= question.shifts
            elif not selects.any():  # with any shifts, masks then differ in the last block alone
                allowed = _first_of_each(flips_last, allowed)
            lanes = np.where(selects, flipped ^ lanes_set, 0).astype(flipped.dtype)
            row = _Row(masks=masks, lanes=lanes, flips=flips_last, selects=selects.astype(np.int64))
            yield bit, row.only(allowed)

    def _patterns(self) -> list[int]:
        """Sets of bits, as masks, flipped in the last block, under which the layout is not too large."""
        question = self.question
        if question.last is None:
            return []
        reach = question.last.reach
        return [flips for flips, used in reach.items() if question.most is None or used <= question.most]

    def _sources(self) -> list[int]:
        """Source bits over which every mask tells words apart as some mask over all bits does."""
        question = self.question
        first = question.field.first_source
        parts = np.unique(self.phases.words[self.phases.words >= 0] >> first).tolist()
        parts += [offset >> first for _, offsets in question.rules.unflipped for offset in offsets]
        parts += [] if question.last is None else [question.last.sources >> first]
        # Not every row may read all of them, or one of them is nearer than those that say the same.
        if first < question.field.targets.stop or question.shifts is not None:
            top = max(parts, default=0).bit_length()
            return list(range(first, first + top))
        return sorted(first + number.bit_length() - 1 for number in xor_basis(parts))

    # Bounds -----------------------------------------------------------------------------------

    def _bounds(self, nodes: Lanes, row: _Row, depth: IntArray) -> IntArray:
        """Lower bound of the weighted excess under each mask of one more row, shape (nodes, masks).

        Args:
            nodes: the lanes of each class, shape (nodes, classes, phases).
            row: the row.
            depth: chosen bits that select a bank, this one included, by phase.
        """
        count = len(row.masks)
        self.steps -= count * nodes.size
        if self.steps < 0 or current().spent:
            raise _OutOfSteps
        nodes = nodes[:, None]
        sizes = np.bitwise_count(nodes)
        bounds = np.empty((len(nodes), count), np.int64)
        at_once = max(1, _CHUNK // max(1, nodes.size))
        for start in range(0, count, at_once):
            ones = np.bitwise_count(nodes & row.lanes[start : start + at_once, None])
            largest = np.maximum(ones, sizes - ones).max(axis=2).astype(np.int64)
            wavefronts = -((-largest << depth) >> self.banks)  # largest / (banks / 2**depth), rounded up
            excess = np.maximum(wavefronts, self.phases.target) - self.phases.ideal
            bounds[:, start : start + at_once] = excess @ self.phases.weight
        return bounds + self.constant

    # Rows -------------------------------------------------------------------------------------

    @property
    def _most_excess(self) -> int:
        """The largest excess of use: as much as the best in fewer elements, else less."""
        excess, used = self._below
        return excess if self.question.least_used < used else excess - 1

    @property
    def _below(self) -> tuple[int, int]:
        """Excess and elements of the best so far."""
        return self.question.below if self.best is None else (self.best.excess, self.best.used)

    def _descend(
        self,
        rows: dict[int, _Row],
        bounds: dict[int, IntArray],
        classes: Lanes,
        depth: IntArray,
        masks: Masks,
        patterns: list[int],
    ) -> None:
        """Search, depth first, all ways to complete `masks` that may beat `self.best`, and keep what does.

        Branches on the bank bit with the fewest masks whose bound is low enough. A class: the words of a
        phase that the chosen masks do not tell apart (see the module), each as the lane that touches it.

        Args:
            rows: the masks that may still be chosen, by bank bit without one.
            bounds: lower bound of the weighted excess under each of these masks, by bank bit.
            classes: the lanes of each class, as bits, shape (classes, phases).
            depth: by phase, how many bits with a mask select a bank.
            masks: chosen so far, by bank bit.
            patterns: bank bits that may be flipped in the last block of offsets, which is only partly filled,
                so that the layout is no larger than asked; those that agree with the chosen masks.
        """
        rows, bounds = {**rows}, {**bounds}
        for bit, row in rows.items():
            kept = self._of_interest(bounds[bit], row, bit, patterns)
            if not kept.any():
                return
            rows[bit], bounds[bit] = row.only(kept), bounds[bit][kept]
        bit = min(rows, key=lambda b: (len(rows[b].masks), -b))
        row, bound = rows.pop(bit), bounds.pop(bit)
        # Of equal bounds, first the masks that add the fewest shifts to those chosen, then the fewest bits.
        shifts = row.masks >> bit  # bit s: the mask moves a bit over the distance s
        known_shifts = reduce(or_, (mask >> other for other, mask in masks.items()), 0)
        order = np.lexsort((np.bitwise_count(shifts), np.bitwise_count(shifts & ~known_shifts), bound))
        if (most := self.question.shifts) is not None:
            order = order[np.bitwise_count(shifts | known_shifts)[order] <= most]
        if not rows:
            for k in order.tolist():
                self._leaf(int(bound[k]), {**masks, bit: int(row.masks[k])})
            return
        depth = depth + row.selects
        # A child: one more mask chosen. Bounds of many at once: the arrays of one are too small to be fast.
        entries_a_child = 2 * classes.size * sum(len(other.masks) for other in rows.values())
        at_once = min(max(1, _TOGETHER // max(1, entries_a_child)), _MOST_TOGETHER)
        for start in range(0, len(order), at_once):
            children = order[start : start + at_once]
            children = children[bound[children] <= self._most_excess]
            ones = classes & row.lanes[children, None]
            nodes = np.concatenate([ones, classes ^ ones], axis=1)  # each class in two: bit set, bit clear
            of_bits = {b: self._bounds(nodes, other, depth + other.selects) for b, other in rows.items()}
            # Every remaining bit must take one of its masks, so the best of each is a bound.
            least = np.max([of.min(axis=1) for of in of_bits.values()], axis=0)
            for k, child in enumerate(children.tolist()):
                if least[k] <= self._most_excess:  # which falls as children are searched
                    chosen = {**masks, bit: int(row.masks[child])}
                    rest = [flips for flips in patterns if flips >> bit & 1 == row.flips[child]]
                    child_bounds = {b: of[k] for b, of in of_bits.items()}
                    self._descend(rows, child_bounds, nodes[k], depth, chosen, rest)

    def _of_interest(self, bounds: IntArray, row: _Row, bit: int, patterns: list[int]) -> BoolArray:
        """Which masks may give less excess than the best, or as little in fewer elements."""
        last, (excess, used) = self.question.last, self._below
        if last is None:
            return bounds <= self._most_excess
        fits = np.isin(row.flips, [flips >> bit & 1 for flips in patterns])
        shorter = np.isin(row.flips, [flips >> bit & 1 for flips in patterns if last.reach[flips] < used])
        kept: BoolArray = ((bounds < excess) & fits) | ((bounds == excess) & shorter)
        return kept

    def _leaf(self, excess: int, masks: Masks) -> None:
        """Keep complete masks if they are the best."""
        question = self.question
        used = question.used(0 if question.last is None else question.last.flips(masks))
        if (question.most is None or used <= question.most) and (excess, used) < self._below:
            self.best = Swizzled(excess, used, {bit: mask for bit, mask in masks.items() if mask})


def lane_bits(lanes_held: BoolArray) -> Lanes:
    """Lanes, of shape (..., lanes), as the bits of one number, shape (...)."""
    kind = np.dtype(np.uint32 if lanes_held.shape[-1] <= 32 else np.uint64)
    held = np.packbits(lanes_held, axis=-1, bitorder="little")
    bits = np.zeros((*held.shape[:-1], kind.itemsize), np.uint8)
    bits[..., : held.shape[-1]] = held
    lanes: Lanes = bits.view(kind)[..., 0]
    return lanes


def lanes_with(words: IntArray, bits: Sequence[int]) -> Lanes:
    """The lanes of each phase whose word has a bit set, for each of these bits, shape (bits, phases).

    `words`: word offsets, -1 for absent, shape (phases, lanes).
    """
    held = np.maximum(words, 0)  # an absent word has no bit set
    found = np.empty((len(bits), len(words)), lane_bits(words[:1] >= 0).dtype)
    for lanes, bit in zip(found, bits, strict=True):
        lanes[:] = lane_bits((held >> bit & 1).astype(np.bool_))
    return found


def flipped_lanes(source_lanes: Lanes) -> Lanes:
    """For every set of source bits, the lanes in which an odd number of them is set, shape (sets, phases).

    `source_lanes`: the lanes in which each source bit is set, shape (sources, phases). Set k holds source i
    if bit i of k is set.
    """
    flipped = np.zeros_like(source_lanes, shape=(1, *source_lanes.shape[1:]))
    for lanes in source_lanes:
        flipped = np.concatenate([flipped, flipped ^ lanes])
    return flipped


def _first_of_each(flips: IntArray, allowed: BoolArray) -> BoolArray:
    """Of masks that no phase tells apart, one that flips the last block and one that does not."""
    first = np.zeros_like(allowed)
    for flip in (0, 1):
        first[np.flatnonzero(allowed & (flips == flip))[:1]] = True
    return first
