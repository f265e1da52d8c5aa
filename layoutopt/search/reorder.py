"""In which of its iterations a thread handles which of its pieces, under a layout that is given.

A thread that holds several pieces (words of a vector in registers) may move them in an order of its own, so
that lanes which would meet in a bank do so no longer: in iteration v it moves piece `v ^ f(lane)`, or
`(v + f(lane)) % n`. What f is for a bit of the lane is chosen bit by bit, as long as the lanes decided so far
do not conflict; the conflict engine counts what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import msgspec
import numpy as np

from layoutopt.accesses.trace import LaneTrace, expression_ranges
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.engine.referee import KnownLanes
from layoutopt.expressions.grammar import Const, Node, Op, Var, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.problems.types import Access, Problem

MAX_CHOICES: Final = 3000
MAX_COUNTED: Final = 64


class Turn(NamedTuple):
    """An order of a loop: `flips` by bit of the lane, by XOR; or `v + shift * (lane // divide)`, modulo."""

    loop: str
    flips: tuple[int, ...] = ()
    divide: int = 1
    shift: int = 0

    def of_lanes(self, lanes: int, trips: int) -> IntArray:
        """The piece that each lane moves in each iteration, shape (trips, lanes)."""
        lane, v = np.arange(lanes), np.arange(trips)[:, None]
        if self.shift:
            return (v + lane // self.divide * self.shift) % trips
        turned = np.zeros(lanes, np.int64)
        for bit, value in enumerate(self.flips):
            turned ^= (lane >> bit & 1) * value
        return v ^ turned


@dataclass(slots=True)
class Reorderer:
    """Looks for the order of one loop of an access.

    Attributes:
        lanes: of the access, iterations in the order of the file.
        loops: its loops and their trip counts.
        loop: the one whose order each thread chooses.
        device: whose rules.
        table: byte offsets by row-major index, int64.
        budget: the time there is.
    """

    lanes: LaneTrace
    loops: dict[str, int]
    loop: str
    device: Device
    table: IntArray
    budget: Budget
    looked: int = 0
    counted: int = 0
    best: tuple[int, Turn] | None = field(default=None)

    def run(self) -> tuple[int, Turn]:
        """The least excess found, over all instructions of the access, and the order."""
        self._count(Turn(self.loop))
        trips = self.loops[self.loop]
        if trips & (trips - 1) == 0:
            self._grow(())
        for turn in self.budget.while_left(self._rotations(trips)):
            if self.best is None or self.best[0] == 0:
                break
            self._count(turn)
        assert self.best is not None
        return self.best

    def _rotations(self, trips: int) -> Iterator[Turn]:
        divide = 1
        while divide < self.device.lanes:
            for shift in range(1, min(trips, 9)):
                yield Turn(self.loop, (), divide, shift)
            divide *= 2

    def _grow(self, flips: tuple[int, ...]) -> None:
        """Every value for the next bit of the lane, those first that flip least."""
        if 1 << len(flips) >= self.device.lanes:
            self._count(Turn(self.loop, flips))
            return
        trips = self.loops[self.loop]
        children = [(*flips, value) for value in sorted(range(trips), key=lambda v: (v.bit_count(), v))]
        for child, over in zip(children, self._excess_of(children), strict=True):
            if over == 0:
                self._grow(child)
            if (self.best and self.best[0] == 0) or self.looked > MAX_CHOICES or self.counted > MAX_COUNTED:
                return

    def _excess_of(self, children: list[tuple[int, ...]]) -> list[int]:
        """Of the first instruction, when only the lanes that are decided take part."""
        self.looked += len(children)
        warp, trips = self.device.lanes, self.loops[self.loop]
        pieces, active = (self._by_loop(a)[0, :, 0, 0] for a in (self.lanes.element, self.lanes.active))
        lane = np.arange(warp)
        decided = lane < 1 << len(children[0])
        piece = np.array([Turn(self.loop, child).of_lanes(warp, trips)[0] for child in children])
        taking = active[piece, lane] & decided
        counts = count_wavefronts(self.table[pieces[piece, lane]], taking, self.lanes.operation, self.device)
        return [int(c) for c in counts.wavefronts - counts.ideal]

    def _by_loop(self, values: np.ndarray) -> np.ndarray:
        """Shape (outer loops, this loop, inner loops, warps, lanes)."""
        names = list(self.loops)
        at = names.index(self.loop)
        outer = int(np.prod([self.loops[n] for n in names[:at]], dtype=np.int64))
        inner = int(np.prod([self.loops[n] for n in names[at + 1 :]], dtype=np.int64))
        return values.reshape(outer, self.loops[self.loop], inner, -1, values.shape[-1])

    def under(self, turn: Turn) -> LaneTrace:
        """The lanes of the access with the order."""
        warp, trips = self.device.lanes, self.loops[self.loop]
        piece = turn.of_lanes(warp, trips)[None, :, None, None, :]

        def moved(values: np.ndarray) -> np.ndarray:
            whole = self._by_loop(values)
            taken = np.take_along_axis(whole, np.broadcast_to(piece, whole.shape), axis=1)
            return taken.reshape(values.shape)

        return replace(self.lanes, element=moved(self.lanes.element), active=moved(self.lanes.active))

    def _count(self, turn: Turn) -> None:
        self.counted += 1
        counts = KnownLanes(self.under(turn), self.device).count(self.table)
        excess = int((counts.wavefronts - counts.ideal).sum())
        if self.best is None or excess < self.best[0]:
            self.best = excess, turn


def reordered(access: Access, turn: Turn, problem: Problem, lanes: int) -> Access:
    """The access with the order of a loop written into its index."""
    trips = access.loops[turn.loop]
    lane = Op("%", (Var("tid"), Const(lanes)))
    chosen: Node = Var(turn.loop)
    if turn.shift:
        shifted = Op("*", (Op("//", (lane, Const(turn.divide))), Const(turn.shift)))
        chosen = Op("%", (Op("+", (chosen, shifted)), Const(trips)))
    for bit, size, value in _runs(turn.flips):
        part = Op("%", (Op("//", (lane, Const(1 << bit))), Const(size)))
        chosen = Op("^", (chosen, Op("*", (part, Const(value)))))
    if chosen == Var(turn.loop):
        return access
    ranges = expression_ranges(problem.threads, lanes, access.loops)
    known = frozenset(ranges)

    def written(text: str | int) -> str:
        return to_text(simplify(substituted(parse(str(text), known), {turn.loop: chosen}), ranges))

    where = None if access.where is None else written(access.where)
    return msgspec.structs.replace(access, index=tuple(map(written, access.index)), where=where)


def _runs(flips: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Bits of the lane whose values double: the first, what they count to, and the value of the first."""
    bit = 0
    while bit < len(flips):
        first = bit
        one = flips[first] & (flips[first] - 1) == 0
        while one and bit + 1 < len(flips) and flips[bit + 1] == 2 * flips[bit]:
            bit += 1
        if flips[first]:
            yield first, 1 << (bit - first + 1), flips[first]
        bit += 1
