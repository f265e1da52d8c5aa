"""The best assignment of threads to what an access covers, under a layout that is given.

What a phase costs depends on what its lanes cover together, so only the fastest digits of the number of a
unit (`layoutopt.accesses.assignments`) matter: those of the lanes of a phase. They are chosen one by one,
the cheapest first, and XORs of two after the plain ones; as soon as the lanes chosen so far conflict, the
rest need not be looked at. What is left is counted by the conflict engine, every lane of it.

Under a layout that is linear over F2, as every XOR swizzle of a tile of powers of two is, this finds an
assignment without conflicts wherever segments by themselves have none: their banks are a subspace, and every
subspace can be completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from layoutopt.accesses.assignments import Assignment, Digit, Twist, Work, coordinates, lanes_under
from layoutopt.accesses.trace import LaneTrace
from layoutopt.engine.conflicts import Counts, count_wavefronts
from layoutopt.engine.referee import KnownLanes
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device

# Partial choices looked at, and whole ones counted, for each amount of conflicts that is allowed.
MAX_CHOICES: Final = 3000
MAX_COUNTED: Final = 48


@dataclass(frozen=True, slots=True)
class Covering:
    """An access whose threads are free, under a layout that is given.

    Attributes:
        work: what the access covers.
        lanes: of the access under any assignment.
        shape: of the tile.
        table: byte offsets by row-major index, int64.
    """

    work: Work
    lanes: LaneTrace
    shape: tuple[int, ...]
    table: IntArray

    def lanes_of(self, assignment: Assignment) -> LaneTrace:
        """The lanes of the access."""
        return lanes_under(self.work, assignment, self.lanes, self.shape)

    def counts(self, assignment: Assignment, device: Device) -> Counts:
        """Of all instructions of the access, by the conflict engine."""
        return KnownLanes(self.lanes_of(assignment), device).count(self.table)


def as_written(covering: Covering) -> Assignment | None:
    """The assignment under which the k-th unit lies k-th in memory; None where bits of its number say none.

    Threads in turn then write side by side, as AMD's direct loads must.
    """
    work, table = covering.work, covering.table
    bits, digits = (work.units - 1).bit_length(), work.natural.digits
    if work.steps != 1 or work.units != 1 << bits or len(digits) != bits:
        return None
    number = np.arange(work.units)
    element = np.ravel_multi_index(coordinates(work, work.natural, number), covering.shape)
    place, rest = np.divmod(table[element] - table[element].min(), covering.lanes.operation.width_bytes)
    if rest.any() or (np.sort(place) != number).any():
        return None
    unit = np.argsort(place)
    images = [int(unit[1 << k]) for k in range(bits)]
    linear = np.zeros_like(number)
    for k, image in enumerate(images):
        linear ^= (number >> k & 1) * image
    if (linear != unit).any() or not all(image >> k & 1 for k, image in enumerate(images)):
        return None
    twists = (
        Twist(digits[b].dim, digits[b].stride, 1 << k)
        for k, image in enumerate(images)
        for b in range(bits)
        if b != k and image >> b & 1
    )
    return Assignment(digits, tuple(twists))


@dataclass(frozen=True, slots=True)
class _Chosen:
    digits: tuple[Digit, ...] = ()
    twists: tuple[Twist, ...] = ()
    span: int = 1


@dataclass(slots=True)
class Assigner:
    """Looks for assignments of one access under one layout.

    Attributes:
        covering: the access and the layout.
        device: whose rules.
        budget: the time there is.
    """

    covering: Covering
    device: Device
    budget: Budget
    looked: int = 0
    counted: int = 0
    best: tuple[int, Assignment] | None = field(default=None)

    def run(self) -> tuple[int, Assignment]:
        """The least excess found, over all instructions of the access, and its assignment."""
        self._count(self.covering.work.natural)
        allowed = 0
        while self.best is not None and self.best[0] > allowed * self._phases and not self.budget.spent:
            self.looked = self.counted = 0
            self._grow(_Chosen(), allowed)
            allowed = 2 * allowed + 1
        assert self.best is not None
        return self.best

    @property
    def _phases(self) -> int:
        """Of all instructions together, at most."""
        rule = self.device.rule(self.covering.lanes.operation)
        return len(self.covering.lanes.element) * len(rule.phases)

    @property
    def _decisive(self) -> int:
        """Lanes whose digits decide what phases cost: one phase, where phases are neighbours."""
        phases = self.device.rule(self.covering.lanes.operation).phases
        length = len(phases[0])
        aligned = all(phase == tuple(range(k * length, (k + 1) * length)) for k, phase in enumerate(phases))
        return length if aligned and self.covering.work.first % self.device.lanes == 0 else self.device.lanes

    def _grow(self, chosen: _Chosen, allowed: int) -> None:
        """Every completion of a choice that conflicts no more than is allowed, while none is good enough."""
        if chosen.span >= min(self._decisive, self.covering.work.units):
            self._count(self._completed(chosen))
            return
        children = list(self._children(chosen))
        for child, over in zip(children, self._excess_of(children), strict=True):
            if over <= allowed:
                self._grow(child, allowed)
            if self._done(allowed):
                return

    def _done(self, allowed: int) -> bool:
        found = self.best is not None and self.best[0] <= allowed * self._phases
        return found or self.looked > MAX_CHOICES or self.counted > MAX_COUNTED or self.budget.spent

    def _children(self, chosen: _Chosen) -> Iterator[_Chosen]:
        """One more digit: of the segment while it has any; then any other, and XORs of two."""
        segment = [d for d in self.covering.work.in_segment if d not in chosen.digits]
        if segment:
            # Where a segment is more than a phase, its order decides what a phase is.
            free = (
                self.covering.work.segment > self._decisive
                and self.covering.work.slots == self.covering.work.segment
            )
            for digit in dict.fromkeys(segment if free else segment[:1]):
                yield _Chosen((*chosen.digits, digit), chosen.twists, chosen.span * digit.size)
            return
        left = [d for d in self.covering.work.beyond if d not in chosen.digits]
        for digit in left:
            yield _Chosen((*chosen.digits, digit), chosen.twists, chosen.span * digit.size)
        if chosen.span & (chosen.span - 1):
            return  # the number has no bit to select
        twos = [d for d in left if d.size == 2 and d.stride & (d.stride - 1) == 0]
        for digit in twos:
            for other in twos:
                if other != digit:
                    twist = Twist(other.dim, other.stride, chosen.span)
                    yield _Chosen((*chosen.digits, digit), (*chosen.twists, twist), chosen.span * 2)

    def _completed(self, chosen: _Chosen) -> Assignment:
        every = (*self.covering.work.in_segment, *self.covering.work.beyond)
        rest = tuple(d for d in every if d not in chosen.digits)
        return Assignment((*chosen.digits, *rest), chosen.twists)

    def _excess_of(self, children: list[_Chosen]) -> list[int]:
        """The most excess of a phase of the first warp, when only the lanes that are decided take part."""
        self.looked += len(children)
        warp = self.device.lanes
        element = np.zeros((len(children), warp), np.int64)
        active = np.zeros(element.shape, bool)
        for row, child in enumerate(children):
            count = min(child.span, self._decisive, self.covering.work.units, self.covering.work.threads)
            number = np.arange(count)
            active[row, :count] = number % self.covering.work.slots < self.covering.work.segment
            number = np.where(active[row, :count], number, 0)
            places = coordinates(self.covering.work, self._completed(child), number)
            element[row, :count] = np.ravel_multi_index(places, self.covering.shape)
        counts = count_wavefronts(
            self.covering.table[element], active, self.covering.lanes.operation, self.device
        )
        over = counts.wavefronts - counts.ideal
        return [int(c) for c in -(-over // np.maximum(counts.phases, 1))]

    def _count(self, assignment: Assignment) -> None:
        self.counted += 1
        counts = self.covering.counts(assignment, self.device)
        excess = int((counts.wavefronts - counts.ideal).sum())
        if self.best is None or excess < self.best[0]:
            self.best = excess, assignment
