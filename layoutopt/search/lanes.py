"""Which lane handles which piece under a layout that is given.

    digits    which thread covers which unit: digits of the number of a unit, and XORs of two of them
              (`layoutopt.accesses.assignments`)
    turns     in which iteration a thread moves which of its pieces: piece `v ^ f(lane)` in iteration v

What a phase costs depends on what its lanes cover together, so only the digits for the fastest lanes matter:
those of one phase. They are chosen one by one, the plainest first; as soon as the lanes decided so far
conflict, the rest is not looked at. What is left is counted by the conflict engine, every lane of it.
Under a layout that is linear over F2, as every XOR swizzle of a tile of powers of two is, digits without
conflicts are found wherever segments by themselves have none: their banks are a subspace, and every subspace
can be completed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from layoutopt.accesses.assignments import Assignment, Twist, Work, coordinates, lanes_under
from layoutopt.accesses.trace import LaneTrace, expression_ranges
from layoutopt.engine.conflicts import Counts, count_wavefronts
from layoutopt.engine.referee import CountedAccess
from layoutopt.expressions.bits import moved_bits
from layoutopt.expressions.grammar import Const, Node, Op, Var, evaluate, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import current
from layoutopt.hardware.devices import Device
from layoutopt.problems.types import Access, Problem

# Partial choices looked at, and whole ones counted, for each amount of conflicts that is allowed.
_MOST_LOOKED_AT: Final = 3000
_MOST_COUNTED: Final = 48


@dataclass(frozen=True, slots=True)
class Given:
    """An access under a layout.

    Attributes:
        lanes: of the access as the file has it.
        table: byte offsets by row-major index, int64.
    """

    lanes: LaneTrace
    table: IntArray
    device: Device

    def counts(self, lanes: LaneTrace) -> Counts:
        """Of all instructions of the access with other lanes."""
        return CountedAccess(lanes, self.device).count(self.table)

    def excess(self, lanes: LaneTrace) -> int:
        """Excess wavefronts of all instructions with other lanes."""
        counts = self.counts(lanes)
        return int((counts.wavefronts - counts.ideal).sum())


# Digits: which thread covers which unit -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Digits(Given):
    """Assignments of threads to units: digits from the fastest, and XORs of two.

    Attributes:
        shape: of the tile.
        mixed: whether the digits of a segment stand anywhere in a warp, and not before all others.
    """

    work: Work
    shape: tuple[int, ...]
    mixed: bool = False

    @property
    def _decisive(self) -> int:
        """Lanes whose digits decide what phases cost: one phase, where phases are neighbours."""
        device = self.device
        phases = device.rule(self.lanes.operation).phases
        length = len(phases[0])
        aligned = all(phase == tuple(range(k * length, (k + 1) * length)) for k, phase in enumerate(phases))
        return length if aligned and self.work.first % device.lanes == 0 else device.lanes

    def further(self, chosen: Assignment) -> list[Assignment]:
        """Assignments with one more digit, plain ones first, then XORs of two; digits of a segment lead."""
        span = chosen.span
        if span >= min(self._decisive, self.work.units):
            return []
        segment = [d for d in self.work.in_segment if d not in chosen.digits]
        left = [d for d in self.work.beyond if d not in chosen.digits]
        if self.mixed:
            rest, warp = math.prod(d.size for d in segment), self.device.lanes
            left = [d for d in left if warp % (span * d.size * rest) == 0]
            return [Assignment((*chosen.digits, digit)) for digit in (*segment, *left)]
        if segment:
            # Where a segment is more than a phase, its order decides what a phase is.
            free = self.work.slots == self.work.segment > self._decisive
            first = segment if free else segment[:1]
            return [Assignment((*chosen.digits, digit), chosen.twists) for digit in first]
        found = [Assignment((*chosen.digits, digit), chosen.twists) for digit in left]
        twos = [d for d in left if d.size == 2 and d.stride & (d.stride - 1) == 0]
        for digit, other in itertools.permutations(twos, 2) if span & (span - 1) == 0 else ():
            twist = Twist(other.dim, other.stride, span)
            found.append(Assignment((*chosen.digits, digit), (*chosen.twists, twist)))
        return found

    def completed(self, chosen: Assignment) -> Assignment:
        """The assignment with all digits, those not chosen in their natural order."""
        rest = (d for d in (*self.work.in_segment, *self.work.beyond) if d not in chosen.digits)
        return replace(chosen, digits=(*chosen.digits, *rest))

    def decided(self, chosen: Assignment) -> tuple[IntArray, BoolArray]:
        """Elements of the first warp, and which lanes are active and decided."""
        work = self.work
        number = np.arange(self.device.lanes)
        count = min(chosen.span, self._decisive, work.units, work.threads)
        active = (number < count) & (number % work.slots < work.segment)
        places = coordinates(work, self.completed(chosen), np.where(active, number, 0))
        return np.ravel_multi_index(places, self.shape), active

    def under(self, chosen: Assignment) -> LaneTrace:
        """The lanes of the access."""
        return lanes_under(self.work, self.completed(chosen), self.lanes, self.shape)

    def best(self) -> Assignment:
        """The assignment of the least excess that is found.

        Its decided lanes have no excess; where none is good enough, ever more of it.
        """
        phases = len(self.lanes.element) * len(self.device.rule(self.lanes.operation).phases)
        best, allowed = (self.excess(self.under(Assignment(()))), Assignment(())), 0
        while best[0] > allowed * phases and not current().spent:
            whole = itertools.islice(self._grown(allowed), _MOST_COUNTED)
            for chosen in current().while_left(whole):
                best = min(best, (self.excess(self.under(chosen)), chosen), key=lambda found: found[0])
                if best[0] <= allowed * phases:
                    break
            allowed = 2 * allowed + 1
        return self.completed(best[1])

    def _grown(self, allowed: int) -> Iterator[Assignment]:
        """Assignments whose decided lanes have no more excess a phase than is allowed, the plainest first.

        It ends where enough was looked at.
        """
        looked_at, open_ = 0, [Assignment(())]
        while open_ and looked_at <= _MOST_LOOKED_AT:
            chosen = open_.pop()
            children = self.further(chosen)
            if not children:
                yield chosen
                continue
            looked_at += len(children)
            good = [c for c, over in zip(children, self._excess_of(children), strict=True) if over <= allowed]
            open_ += reversed(good)

    def _excess_of(self, children: Sequence[Assignment]) -> list[int]:
        """The excess of a phase, when only the lanes that are decided take part."""
        element, active = map(np.stack, zip(*map(self.decided, children), strict=True))
        counts = count_wavefronts(self.table[element], active, self.lanes.operation, self.device)
        over: list[int] = (-(-(counts.wavefronts - counts.ideal) // np.maximum(counts.phases, 1))).tolist()
        return over

    def wavefronts(self, assignment: Assignment) -> int:
        """Of all instructions."""
        return int(self.counts(self.under(assignment)).wavefronts.sum())


def as_written(choices: Digits) -> Assignment | None:
    """The assignment under which the k-th unit lies k-th in memory; None where bits of its number say none.

    Threads in turn then write side by side, as AMD's direct loads must.
    """
    work, table = choices.work, choices.table
    bits, digits = (work.units - 1).bit_length(), work.natural.digits
    if work.steps != 1 or work.units != 1 << bits or len(digits) != bits:
        return None
    number = np.arange(work.units)
    element = np.ravel_multi_index(coordinates(work, work.natural, number), choices.shape)
    width = choices.lanes.operation.width_bytes
    place, rest = np.divmod(table[element] - table[element].min(), width)
    if rest.any() or (np.sort(place) != number).any():
        return None
    unit = np.argsort(place)
    images = [int(unit[1 << k]) for k in range(bits)]
    if moved_bits(Var("unit"), unit) is None or not all(image >> k & 1 for k, image in enumerate(images)):
        return None
    twists = (
        Twist(digits[b].dim, digits[b].stride, 1 << k)
        for k, image in enumerate(images)
        for b in range(bits)
        if b != k and image >> b & 1
    )
    return Assignment(digits, tuple(twists))


# Turns: in which iteration a thread moves which of its pieces ----------------------------------------


def reordered(problem: Problem, access: Access, loops: Sequence[str], given: Given) -> Access:
    """The access with one of the loops in the order of least excess, written into its index."""
    lanes = given.device.lanes
    ranges = expression_ranges(problem.threads, lanes, access.loops)
    every = ((loop, turn) for loop in loops for turn in _turns(loop, access.loops[loop], lanes))
    least, best = given.excess(given.lanes), None
    for loop, turn in current().while_left(every):
        if least == 0:
            break
        excess = given.excess(_turned(given, access.loops, loop, turn))
        if excess < least:
            least, best = excess, {loop: turn}
    if best is None:
        return access
    chosen: Mapping[str, Node] = best

    def written(text: str | int) -> str:
        return to_text(simplify(substituted(parse(str(text), frozenset(ranges)), chosen), ranges))

    where = None if access.where is None else written(access.where)
    return msgspec.structs.replace(access, index=tuple(map(written, access.index)), where=where)


def _turns(loop: str, trips: int, lanes: int) -> Iterator[Node]:
    """Other orders of a loop v: `v ^ f` where that stays inside, and `v + f`, both modulo the trips.

    f is a multiple of `lane // divide`, of powers of two.
    """
    lane, v = Op("%", (Var("tid"), Const(lanes))), Var(loop)
    divides = [1 << k for k in range((lanes - 1).bit_length())]

    def moved(divide: int, shift: int) -> Node:
        return Op("*", (Op("//", (lane, Const(divide))), Const(shift)))

    if trips & (trips - 1) == 0:
        for divide, k in itertools.product(divides, range((trips - 1).bit_length())):
            yield Op("^", (v, Op("%", (moved(divide, 1 << k), Const(trips)))))
    for divide, shift in itertools.product(divides, range(1, min(trips, 9))):
        yield Op("%", (Op("+", (v, moved(divide, shift))), Const(trips)))


def _turned(given: Given, loops: Mapping[str, int], loop: str, turn: Node) -> LaneTrace:
    """The lanes of the access with another order of a loop."""
    trips, at, lanes = list(loops.values()), list(loops).index(loop), given.lanes
    outer, inner = (math.prod(some) for some in (trips[:at], trips[at + 1 :]))
    values = {"tid": np.arange(given.device.lanes), loop: np.arange(trips[at])[:, None]}
    piece = evaluate(turn, values)[None, :, None, None, :]

    def moved(values: np.ndarray) -> np.ndarray:
        whole = values.reshape(outer, trips[at], inner, -1, values.shape[-1])
        return np.take_along_axis(whole, np.broadcast_to(piece, whole.shape), axis=1).reshape(values.shape)

    return replace(lanes, element=moved(lanes.element), active=moved(lanes.active))
