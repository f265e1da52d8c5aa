"""Which lane handles which piece under a layout that is given, chosen lane bit by lane bit.

What a phase costs depends on what its lanes cover together, so only the choices for the fastest lanes matter:
those of one phase. They are made one by one, the plainest first; as soon as the lanes decided so far
conflict, the rest is not looked at. What is left is counted by the conflict engine, every lane of it. Three
kinds of choices are searched so:

    digits    which thread covers which unit: digits of the number of a unit, and XORs of two of them
              (`layoutopt.accesses.assignments`)
    places    which lane of a warp handles the unit of which: bits of the lane in another order, and XORs
    turns     in which iteration a thread moves which of its pieces: piece `v ^ f(lane)` in iteration v

Under a layout that is linear over F2, as every XOR swizzle of a tile of powers of two is, digits without
conflicts are found wherever segments by themselves have none: their banks are a subspace, and every subspace
can be completed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np

from layoutopt.accesses.assignments import Assignment, Twist, Work, coordinates, lanes_under
from layoutopt.accesses.trace import LaneTrace, expression_ranges
from layoutopt.engine.conflicts import Counts, count_wavefronts
from layoutopt.engine.referee import KnownLanes
from layoutopt.expressions.bits import moved_bits, xor_basis
from layoutopt.expressions.grammar import Const, Node, Op, Var, parse, substituted, to_text
from layoutopt.expressions.simplify import simplify
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.problems.types import Access, Problem

# Partial choices looked at, and whole ones counted, for each amount of conflicts that is allowed.
_MOST_LOOKED_AT: Final = 3000
_MOST_COUNTED: Final = 48

# Instructions whose lanes are looked at before all are counted.
_SAMPLE: Final = 16

Choice = TypeVar("Choice")


@dataclass(frozen=True, slots=True)
class Given:
    """An access under a layout.

    Attributes:
        lanes: of the access as the file has it.
        table: byte offsets by row-major index, int64.
        device: whose rules.
    """

    lanes: LaneTrace
    table: IntArray
    device: Device

    def counts(self, lanes: LaneTrace) -> Counts:
        """Of all instructions of the access with other lanes."""
        return KnownLanes(lanes, self.device).count(self.table)

    def excess(self, lanes: LaneTrace) -> int:
        """Excess wavefronts of all instructions with other lanes."""
        counts = self.counts(lanes)
        return int((counts.wavefronts - counts.ideal).sum())

    @property
    def phases(self) -> int:
        """Of all instructions together, at most."""
        return len(self.lanes.element) * len(self.device.rule(self.lanes.operation).phases)


class Choices(Protocol[Choice]):
    """What is chosen about the lanes of an access, from the fastest lanes on."""

    @property
    def given(self) -> Given:
        """The access and the layout."""

    def start(self) -> Choice:
        """Nothing is chosen yet: the lanes as they are."""

    def further(self, chosen: Choice) -> list[Choice]:
        """One more choice each, the plainest first; none where nothing is left that decides conflicts."""

    def decided(self, chosen: Choice) -> tuple[IntArray, BoolArray]:
        """Elements of a few instructions, and which lanes are active and decided, a row for each."""

    def under(self, chosen: Choice) -> LaneTrace:
        """The lanes of the access, the rest chosen in the plainest way."""


def best_lanes(choices: Choices[Choice], budget: Budget) -> tuple[int, Choice]:
    """The least excess found, over all instructions of the access, and the choice."""
    return _Search(choices, budget).run()


class _Search:
    def __init__(self, choices: Choices[Any], budget: Budget) -> None:
        self.choices, self.given, self.budget = choices, choices.given, budget
        self.best = self._counted(choices.start())

    def run(self) -> tuple[int, Any]:
        """Choices whose decided lanes have no excess; where none is good enough, with ever more of it."""
        allowed = 0
        while self.best[0] > allowed * self.given.phases and not self.budget.spent:
            self.looked_at = self.counted = 0
            self._grow(self.choices.start(), allowed)
            allowed = 2 * allowed + 1
        return self.best

    def _counted(self, chosen: Any) -> tuple[int, Any]:
        return self.given.excess(self.choices.under(chosen)), chosen

    def _grow(self, chosen: Any, allowed: int) -> None:
        """Count every completion whose decided lanes have no more excess a phase than is allowed.

        It ends where one is good enough, or enough was looked at.
        """
        children = self.choices.further(chosen)
        if not children:
            self.counted += 1
            self.best = min(self.best, self._counted(chosen), key=lambda found: found[0])
            return
        for child, over in zip(children, self._excess_of(children), strict=True):
            if over <= allowed:
                self._grow(child, allowed)
            good = self.best[0] <= allowed * self.given.phases
            enough = self.looked_at > _MOST_LOOKED_AT or self.counted > _MOST_COUNTED
            if good or enough or self.budget.spent:
                return

    def _excess_of(self, children: Sequence[Any]) -> list[int]:
        """The most excess of a phase, when only the lanes that are decided take part."""
        self.looked_at += len(children)
        element, active = map(np.concatenate, zip(*map(self.choices.decided, children), strict=True))
        counts = count_wavefronts(
            self.given.table[element], active, self.given.lanes.operation, self.given.device
        )
        over = -(-(counts.wavefronts - counts.ideal) // np.maximum(counts.phases, 1))
        most: list[int] = over.reshape(len(children), -1).max(axis=1).tolist()
        return most


# Digits: which thread covers which unit -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Digits:
    """Assignments of threads to units: digits from the fastest, and XORs of two.

    Attributes:
        given: the access and the layout.
        work: what the access covers.
        shape: of the tile.
    """

    given: Given
    work: Work
    shape: tuple[int, ...]

    def start(self) -> Assignment:
        """No digit is chosen."""
        return Assignment(())

    @property
    def _decisive(self) -> int:
        """Lanes whose digits decide what phases cost: one phase, where phases are neighbours."""
        device = self.given.device
        phases = device.rule(self.given.lanes.operation).phases
        length = len(phases[0])
        aligned = all(phase == tuple(range(k * length, (k + 1) * length)) for k, phase in enumerate(phases))
        return length if aligned and self.work.first % device.lanes == 0 else device.lanes

    def further(self, chosen: Assignment) -> list[Assignment]:
        """One more digit, of the segment while it has any, and XORs of two after the plain ones."""
        span = _span(chosen)
        if span >= min(self._decisive, self.work.units):
            return []
        if segment := [d for d in self.work.in_segment if d not in chosen.digits]:
            # Where a segment is more than a phase, its order decides what a phase is.
            whole = self.work.slots == self.work.segment
            free = whole and self.work.segment > self._decisive
            return [
                Assignment((*chosen.digits, digit), chosen.twists)
                for digit in (segment if free else segment[:1])
            ]
        left = [d for d in self.work.beyond if d not in chosen.digits]
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
        number = np.arange(self.given.device.lanes)
        count = min(_span(chosen), self._decisive, work.units, work.threads)
        active = (number < count) & (number % work.slots < work.segment)
        places = coordinates(work, self.completed(chosen), np.where(active, number, 0))
        return np.ravel_multi_index(places, self.shape)[None], active[None]

    def under(self, chosen: Assignment) -> LaneTrace:
        """The lanes of the access."""
        return lanes_under(self.work, self.completed(chosen), self.given.lanes, self.shape)


def best_assignment(choices: Digits, budget: Budget) -> Assignment:
    """The assignment of the least excess that is found."""
    return choices.completed(best_lanes(choices, budget)[1])


def _span(chosen: Assignment) -> int:
    return int(np.prod([digit.size for digit in chosen.digits], dtype=np.int64))


def as_written(choices: Digits) -> Assignment | None:
    """The assignment under which the k-th unit lies k-th in memory; None where bits of its number say none.

    Threads in turn then write side by side, as AMD's direct loads must.
    """
    work, table = choices.work, choices.given.table
    bits, digits = (work.units - 1).bit_length(), work.natural.digits
    if work.steps != 1 or work.units != 1 << bits or len(digits) != bits:
        return None
    number = np.arange(work.units)
    element = np.ravel_multi_index(coordinates(work, work.natural, number), choices.shape)
    width = choices.given.lanes.operation.width_bytes
    place, rest = np.divmod(table[element] - table[element].min(), width)
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


# Places: which lane of a warp handles the unit of which -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """Places of lanes in a warp whose bits are bits of the lane, or XORs of two.

    A choice has, for each bit of the lane from the lowest, the bits of the place that it flips.

    Attributes:
        given: the access and the layout, lanes where they are.
        bits: of the lane that may change places.
    """

    given: Given
    bits: int

    def start(self) -> tuple[int, ...]:
        """Every lane keeps its place."""
        return ()

    def further(self, chosen: tuple[int, ...]) -> list[tuple[int, ...]]:
        """What the next bit of the lane may flip, single bits first."""
        if len(chosen) == self.bits:
            return []
        single = [1 << bit for bit in range(self.bits)]
        pairs = [a | b for a, b in itertools.combinations(single, 2)]
        every = [(*chosen, image) for image in (*single, *pairs)]
        return [images for images in every if len(xor_basis(images)) == len(images)]  # else two lanes meet

    def decided(self, chosen: tuple[int, ...]) -> tuple[IntArray, BoolArray]:
        """Of the first instructions."""
        lanes, lane = self.given.lanes, np.arange(self.given.device.lanes)
        place = _xors(lane, chosen)
        active = lanes.active[:_SAMPLE, place] & (lane < 1 << len(chosen))
        return lanes.element[:_SAMPLE, place], active

    def under(self, chosen: tuple[int, ...]) -> LaneTrace:
        """The lanes of the access."""
        lane = np.arange(self.given.device.lanes)
        place = (lane >> len(chosen) << len(chosen)) + _xors(lane, chosen)
        lanes = self.given.lanes
        return replace(lanes, element=lanes.element[:, place], active=lanes.active[:, place])


def best_places(choices: Places, budget: Budget) -> tuple[int, ...]:
    """The places of the least excess that is found: bits of the lane rotated, else whatever else."""
    bits = range(choices.bits)
    for turn in bits:
        images = tuple(1 << (bit + turn) % choices.bits for bit in bits)
        if choices.given.excess(choices.under(images)) == 0:
            return images
    return best_lanes(choices, budget)[1]


def place_of(images: Sequence[int]) -> Node:
    """The place of a thread, by what the low bits of its number flip; the other bits stay as they are."""
    tid, bits = Var("tid"), len(images)
    moves = [(bit, to) for bit, image in enumerate(images) for to in range(bits) if image >> to & 1]
    node: Node = Op("*", (Op("//", (tid, Const(1 << bits))), Const(1 << bits)))
    join = "+" if len(moves) == bits else "^"
    if all((bit, bit) in moves for bit in range(bits)):
        node, moves, join = tid, [(bit, to) for bit, to in moves if bit != to], "^"
    for distance in sorted({to - bit for bit, to in moves}):
        some = [bit for bit, to in moves if to - bit == distance]
        for first in (bit for bit in some if bit - 1 not in some):
            count = next(n for n in itertools.count(1) if first + n not in some)
            part = Op("%", (Op("//", (tid, Const(1 << first))), Const(1 << count)))
            node = Op(join, (node, Op("*", (part, Const(1 << first + distance)))))
    return node


def _xors(lane: IntArray, flips: Sequence[int]) -> IntArray:
    """For each lane the XOR of what its bits flip."""
    flipped = np.zeros_like(lane)
    for bit, flip in enumerate(flips):
        flipped ^= (lane >> bit & 1) * flip
    return flipped


# Turns: in which iteration a thread moves which of its pieces ----------------------------------------


class Turn(NamedTuple):
    """An order of a loop: `flips` by bit of the lane, by XOR; or `v + shift * (lane // divide)`, modulo."""

    flips: tuple[int, ...] = ()
    divide: int = 1
    shift: int = 0

    def of_lanes(self, lanes: int, trips: int) -> IntArray:
        """The piece that each lane moves in each iteration, shape (trips, lanes)."""
        lane, v = np.arange(lanes), np.arange(trips)[:, None]
        if self.shift:
            return (v + lane // self.divide * self.shift) % trips
        return v ^ _xors(lane, self.flips)


@dataclass(frozen=True, slots=True)
class Turns:
    """Orders of one loop of an access.

    Attributes:
        given: the access, iterations in the order of the file, and the layout.
        loops: its loops and their trip counts.
        loop: the one whose order each thread chooses.
    """

    given: Given
    loops: dict[str, int]
    loop: str

    def start(self) -> Turn:
        """The order of the file."""
        return Turn()

    def rotations(self) -> Iterator[Turn]:
        """Orders that begin a few pieces later from lane to lane."""
        divide = 1
        while divide < self.given.device.lanes:
            for shift in range(1, min(self.loops[self.loop], 9)):
                yield Turn((), divide, shift)
            divide *= 2

    def further(self, chosen: Turn) -> list[Turn]:
        """Every value for the next bit of the lane, those first that flip least."""
        trips = self.loops[self.loop]
        if 1 << len(chosen.flips) >= self.given.device.lanes or trips & (trips - 1):
            return []
        values = sorted(range(trips), key=lambda v: (v.bit_count(), v))
        return [Turn((*chosen.flips, value)) for value in values]

    def decided(self, chosen: Turn) -> tuple[IntArray, BoolArray]:
        """Of the first instruction."""
        lanes, warp = self.given.lanes, self.given.device.lanes
        pieces, active = (self._by_loop(a)[0, :, 0, 0] for a in (lanes.element, lanes.active))
        lane, piece = np.arange(warp), chosen.of_lanes(warp, self.loops[self.loop])[0]
        decided = active[piece, lane] & (lane < 1 << len(chosen.flips))
        return pieces[piece, lane][None], decided[None]

    def under(self, chosen: Turn) -> LaneTrace:
        """The lanes of the access with the order."""
        lanes = self.given.lanes
        turned = chosen.of_lanes(self.given.device.lanes, self.loops[self.loop])[None, :, None, None, :]

        def moved(values: np.ndarray) -> np.ndarray:
            whole = self._by_loop(values)
            taken = np.take_along_axis(whole, np.broadcast_to(turned, whole.shape), axis=1)
            return taken.reshape(values.shape)

        return replace(lanes, element=moved(lanes.element), active=moved(lanes.active))

    def _by_loop(self, values: np.ndarray) -> np.ndarray:
        """Shape (outer loops, this loop, inner loops, warps, lanes)."""
        names = list(self.loops)
        at = names.index(self.loop)
        outer = int(np.prod([self.loops[n] for n in names[:at]], dtype=np.int64))
        inner = int(np.prod([self.loops[n] for n in names[at + 1 :]], dtype=np.int64))
        return values.reshape(outer, self.loops[self.loop], inner, -1, values.shape[-1])


def best_turn(choices: Turns, budget: Budget) -> tuple[int, Turn]:
    """The least excess found, over all instructions of the access, and the order."""
    best = best_lanes(choices, budget)
    for turn in budget.while_left(choices.rotations()):
        if best[0] == 0:
            break
        best = min(best, (choices.given.excess(choices.under(turn)), turn), key=lambda found: found[0])
    return best


def reordered(access: Access, loop: str, turn: Turn, problem: Problem, lanes: int) -> Access:
    """The access with the order of a loop written into its index."""
    trips = access.loops[loop]
    lane = Op("%", (Var("tid"), Const(lanes)))
    chosen: Node = Var(loop)
    if turn.shift:
        shifted = Op("*", (Op("//", (lane, Const(turn.divide))), Const(turn.shift)))
        chosen = Op("%", (Op("+", (chosen, shifted)), Const(trips)))
    elif any(turn.flips):
        flipped = moved_bits(lane, _xors(np.arange(lanes), turn.flips))
        assert flipped is not None  # linear in the bits of the lane
        chosen = Op("^", (chosen, flipped))
    else:
        return access
    ranges = expression_ranges(problem.threads, lanes, access.loops)
    known = frozenset(ranges)

    def written(text: str | int) -> str:
        return to_text(simplify(substituted(parse(str(text), known), {loop: chosen}), ranges))

    where = None if access.where is None else written(access.where)
    return msgspec.structs.replace(access, index=tuple(map(written, access.index)), where=where)
