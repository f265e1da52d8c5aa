"""Which thread handles which piece, where an access leaves that free.

What is covered is a box of the tile, cut into units: what one thread moves with one access to global memory
(`global.bytes`), in one or several accesses to the tile. Units are numbered, and thread t handles number
`t + T*r` in round r. An assignment is what the number means: digits from the fastest, each a part of one
coordinate, and XORs of one part with a faster digit.

    128 units, 8 lines of 16:   number = (x1 % 4) + 4*(x0 % 8) + 32*(x1 // 4)
                                x1 = number % 4 + 4*(number // 32), x0 = number // 4 % 8

The first digits are always those of a segment: what consecutive threads cover together in global memory.
Beyond that the threads of a warp may change places: what an instruction covers stays the same.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.lower import with_fixed_lanes
from layoutopt.accesses.trace import LaneTrace, trace
from layoutopt.errors import ProblemFileError, under
from layoutopt.expressions.grammar import (
    Const,
    Node,
    Op,
    Var,
    evaluate,
    substituted,
    to_text,
)
from layoutopt.expressions.simplify import read_inside, simplify, through_xor
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device
from layoutopt.problems.types import Access, Order, Problem

ROUND: Final = "i"
STEP: Final = "j"


class Digit(NamedTuple):
    """`stride * (0 .. size - 1)` of the coordinate of a dimension, in units."""

    dim: int
    stride: int
    size: int


class Twist(NamedTuple):
    """`stride` of a dimension is flipped where the bit of the number that `divide` selects is set."""

    dim: int
    stride: int
    divide: int


class Assignment(Struct, frozen=True):
    """What the number of a unit means: digits from the fastest, of which all units are made up, and XORs.

    `place` says whose unit a thread handles, of the threads of its warp, over `tid` (from 0
    for the first that takes part) and the round; None for its own.
    """

    digits: tuple[Digit, ...]
    twists: tuple[Twist, ...] = ()
    place: Node | None = None

    @property
    def span(self) -> int:
        """Numbers that its digits tell apart."""
        return math.prod(digit.size for digit in self.digits)


class Work(Struct, frozen=True):
    """What an access with free lanes covers.

    Attributes:
        origin: its first element.
        unit: elements of a unit along each dimension.
        extents: units along each dimension.
        order: dimensions from the slowest to the fastest in global memory.
        steps: accesses of a thread to a unit.
        stride: elements from one of them to the next, along the fastest dimension.
        segment: units that consecutive threads cover together.
        first: the first thread that takes part.
        threads: that take part.
        loops: of the access: its iterations are rounds, in each all steps.
        slots: threads that a segment takes, the last of which have nothing to do.
    """

    origin: tuple[int, ...]
    unit: tuple[int, ...]
    extents: tuple[int, ...]
    order: tuple[int, ...]
    steps: int
    stride: int
    segment: int
    first: int
    threads: int
    loops: Mapping[str, int]
    slots: int

    @property
    def units(self) -> int:
        """Numbers that there are: one for each unit, and for each slot that has none."""
        return math.prod(self.extents) // self.segment * self.slots

    def keeps_to_warps(self, lanes: int) -> bool:
        """Whether no segment lies in parts of two warps, where segments are kept whole."""
        if self.slots > lanes:
            return not (self.slots % lanes or self.first % lanes)
        begin = self.first + np.arange(0, self.threads, self.slots)
        return bool(self.threads % self.slots or (begin // lanes == (begin + self.slots - 1) // lanes).all())

    @property
    def rounds(self) -> int:
        """Units of the busiest thread."""
        return -(-self.units // self.threads)

    @property
    def step_loop(self) -> str | None:
        """The loop over the steps of a unit, where there is one."""
        last = next(reversed(list(self.loops)), None)
        return last if last is not None and self.loops[last] == self.steps > 1 else None

    def with_own_loops(self) -> "Work":
        """The same in as many iterations as its threads take."""
        loops = {ROUND: self.rounds, STEP: self.steps}
        return replace(self, loops={name: trips for name, trips in loops.items() if trips > 1})

    @property
    def natural(self) -> Assignment:
        """Consecutive threads at consecutive units, in the order of global memory."""
        return Assignment((*self.in_segment, *self.beyond))

    @property
    def in_segment(self) -> tuple[Digit, ...]:
        """Prime digits of a segment's slots."""
        return tuple(_primes(self.order[-1], 1, self.slots))

    @property
    def beyond(self) -> tuple[Digit, ...]:
        """Prime digits of everything else, the fastest in global memory first."""
        fast, *others = reversed(self.order)
        rest = _primes(fast, self.segment, self.extents[fast] // self.segment)
        return (*rest, *(digit for d in others for digit in _primes(d, 1, self.extents[d])))


def _primes(dim: int, stride: int, size: int) -> Iterator[Digit]:
    """The digits of prime sizes that make up a digit, twos first."""
    prime = 2
    while size > 1:
        if prime * prime > size:
            prime = size
        if size % prime == 0:
            yield Digit(dim, stride, prime)
            stride, size = stride * prime, size // prime
        else:
            prime += 1


def global_order(access: Access, dims: int) -> tuple[int, ...]:
    """Dimensions from the slowest to the fastest in global memory; row-major where nothing is said.

    Raises:
        ProblemFileError: two orders are given, or one that is none.
    """
    inner = access.global_.order if access.global_ is not None else None
    if inner is not None and access.order is not None and inner != access.order:
        raise ProblemFileError("order", "is another than that in `global`; keep one of them")
    given: Order = inner or access.order or "row"
    rows = tuple(range(dims))
    order = rows if given == "row" else rows[::-1] if given == "column" else tuple(given)
    if sorted(order) != list(rows):
        expected = f"expected row, column, or each of 0..{dims - 1} once"
        raise ProblemFileError("order", f"{expected}, got {list(order)}")
    return order


def work_of(problem: Problem, number: int, device: Device) -> tuple[Work, LaneTrace]:
    """The box that an access with free lanes covers, and the lanes that the file's own index gives it.

    Raises:
        ProblemFileError: its index does not cover a box once, or what it keeps to makes no sense.
    """
    access, field = problem.accesses[number], f"accesses[{number}]"
    try:
        lanes = trace(replace(problem, accesses=(with_fixed_lanes(access),)), device).accesses[0]
    except ProblemFileError as error:
        raise ProblemFileError(error.field.replace("accesses[0]", field, 1), error.reason) from None
    with under(field):
        return _covered(problem, access, lanes), lanes


def _covered(problem: Problem, access: Access, lanes: LaneTrace) -> Work:
    """What a free access covers: a box of the tile, each element once, by as many threads as take part."""
    does = lanes.operation.does
    if lanes.operation.matrices or does.adds:
        raise ProblemFileError("lanes", f"free lanes are for loads, stores and copies, not {does.short}")
    if isinstance(access.weight, str):
        raise ProblemFileError("weight", "of an access with free lanes is one number")
    rounds = math.prod(access.loops.values())
    active = lanes.active.reshape(rounds, -1)[:, : problem.threads]
    taking = np.flatnonzero(active.any(axis=0))
    if not len(taking):
        raise ProblemFileError("where", "no lane takes part, so that nothing is covered")
    first, threads = int(taking[0]), int(taking[-1] - taking[0]) + 1
    shape = problem.tile.shape
    piece = lanes.width_elements
    covered = np.sort(lanes.element[lanes.active])
    if (twice := np.flatnonzero(covered[1:] == covered[:-1])).size:
        place = [int(c) for c in np.unravel_index(covered[twice[0]], shape)]
        raise ProblemFileError("index", f"free lanes cover every element once; {place} is met twice")
    places = np.unravel_index(covered, shape)
    begin = [int(c.min()) for c in places]
    end = [int(c.max()) + 1 for c in places[:-1]] + [int(places[-1].max()) + piece]
    if math.prod(b - a for a, b in zip(begin, end, strict=True)) != len(covered) * piece:
        raise ProblemFileError("index", "free lanes cover a box of the tile, without gaps")
    work = work_on(problem, access, begin, end, first, threads, piece)
    own_steps = work.steps == 1 or next(reversed(access.loops.values()), 1) == work.steps
    if rounds == work.rounds * work.steps and own_steps:
        work = replace(work, loops=access.loops)
    return work


def work_on(
    problem: Problem,
    access: Access,
    begin: Sequence[int],
    end: Sequence[int],
    first: int,
    threads: int,
    piece: int,
) -> Work:
    """How a box of the tile is cut into units and segments, in as many rounds as its threads take.

    Args:
        problem: the tile, and its threads.
        access: who covers the box, and what it keeps to in global memory.
        begin, end: coordinates of the box's first element, and one behind its last.
        first, threads: the first thread that takes part, and how many do from there on.
        piece: elements of one access along the last dimension.

    Raises:
        ProblemFileError: units do not divide the box, or segments are no whole units.
    """
    tile, dims = problem.tile, len(problem.tile.shape)
    order = global_order(access, dims)
    fast, last = order[-1], dims - 1
    side = access.global_
    along = piece if fast == last else 1  # elements of an access along the fastest dimension
    moved = (side.bytes if side is not None else None) or max(1, along * tile.element_bits // 8)
    if (8 * moved) % (along * tile.element_bits) and moved * 8 > along * tile.element_bits:
        wrong = f"{moved} bytes are no whole number of accesses to the tile"
        raise ProblemFileError("global.bytes", wrong)
    steps = max(1, 8 * moved // (along * tile.element_bits))
    unit = [1] * dims
    unit[last] = piece
    unit[fast] *= steps
    extents = []
    for d in range(dims):
        if (end[d] - begin[d]) % unit[d]:
            raise ProblemFileError(
                "global.bytes" if steps > 1 else "bytes",
                f"a thread moves {unit[d]} elements along dimension {d} at once, which do not divide "
                f"the {end[d] - begin[d]} that are covered",
            )
        extents.append((end[d] - begin[d]) // unit[d])
    segment = 1
    contiguous = (side.contiguous if side is not None else None) or moved
    if contiguous > moved:
        if contiguous % moved:
            wrong = f"segments of {contiguous} bytes are no whole number of global accesses of {moved} bytes"
            raise ProblemFileError("global.contiguous", wrong)
        segment = contiguous // moved
        if extents[fast] % segment:  # lines that are no whole number of segments are covered whole
            segment = extents[fast]
    return Work(
        tuple(begin), tuple(unit), tuple(extents), order, steps, along, segment, first, threads,
        loops={}, slots=segment,
    ).with_own_loops()  # fmt: skip


def coordinates(
    work: Work, assignment: Assignment, number: IntArray, step: IntArray | int = 0
) -> list[IntArray]:
    """Coordinates of the first element that an access touches, by dimension.

    Args:
        work: what is covered.
        assignment: which unit a number means.
        number: of the unit, any shape.
        step: of the unit, of a shape that broadcasts.
    """
    found = [np.zeros_like(number) for _ in work.extents]
    inner = 1
    for digit in assignment.digits:
        found[digit.dim] = found[digit.dim] + digit.stride * (number // inner % digit.size)
        inner *= digit.size
    for twist in assignment.twists:
        found[twist.dim] = found[twist.dim] ^ (number // twist.divide % 2 * twist.stride)
    places = [a + u * x for a, u, x in zip(work.origin, work.unit, found, strict=True)]
    places[work.order[-1]] = places[work.order[-1]] + work.stride * step
    return places


def numbers(work: Work, assignment: Assignment) -> IntArray:
    """Numbers of units, shape (rounds, threads that take part); in the last round some are of none."""
    tid, rounds = np.arange(work.threads), np.arange(work.rounds)[:, None]
    if assignment.place is not None:
        tid = evaluate(assignment.place, {"tid": tid, ROUND: rounds})
    return np.broadcast_to(tid + work.threads * rounds, (work.rounds, work.threads))


def lanes_under(work: Work, assignment: Assignment, lanes: LaneTrace, shape: Sequence[int]) -> LaneTrace:
    """The lanes of an access under an assignment.

    Args:
        work: what it covers.
        assignment: which thread covers what.
        lanes: of the access under any assignment.
        shape: of the tile.
    """
    warp = lanes.element.shape[1]
    rows = -(-(work.first + work.threads) // warp) * warp
    rows = max(rows, warp)
    number = numbers(work, assignment)
    takes = (number < work.units) & (number % work.slots < work.segment)
    number = np.where(takes, number, 0)[:, None, :]
    places = coordinates(work, assignment, number, np.arange(work.steps)[None, :, None])
    flat = np.ravel_multi_index(
        [np.broadcast_to(p, (work.rounds, work.steps, work.threads)) for p in places], tuple(shape)
    )
    element = np.zeros((work.rounds, work.steps, rows), np.int64)
    active = np.zeros(element.shape, bool)
    element[:, :, work.first : work.first + work.threads] = flat
    active[:, :, work.first : work.first + work.threads] = takes[:, None, :]
    element[~active] = 0
    weight = np.full(element.size // warp, lanes.weight[0], np.int64)
    return replace(lanes, element=element.reshape(-1, warp), active=active.reshape(-1, warp), weight=weight)


def written_out(work: Work, assignment: Assignment, access: Access, threads: int) -> Access:
    """The access as an ordinary one, its lanes as the assignment has them.

    Args:
        work: what it covers.
        assignment: which thread covers what.
        access: with free lanes.
        threads: of the block.
    """
    nodes: list[Node] = [Const(0) for _ in work.extents]
    inner = 1
    for digit in merged(assignment.digits):
        slowest = inner * digit.size == work.units
        part = _part_of_number(inner, digit.size, work.threads, slowest)
        nodes[digit.dim] = Op("+", (nodes[digit.dim], Op("*", (Const(digit.stride), part))))
        inner *= digit.size
    for twist in assignment.twists:
        part = _part_of_number(twist.divide, 2, work.threads, twist.divide * 2 == work.units)
        nodes[twist.dim] = Op("^", (nodes[twist.dim], Op("*", (Const(twist.stride), part))))
    rounds, step = _loop_values(work)
    ranges = {"tid": (work.first, work.first + work.threads - 1)} | {
        name: (0, trips - 1) for name, trips in work.loops.items()
    }
    own: Node = Var("tid") if not work.first else Op("-", (Var("tid"), Const(work.first)))
    tid = own
    if assignment.place is not None:
        place = simplify(substituted(assignment.place, {"tid": own, ROUND: rounds}), ranges)
        tid = read_inside(place, {**ranges, "tid": (0, threads - 1)})
    fast = work.order[-1]
    index = []
    for d, node in enumerate(nodes):
        unit = through_xor(substituted(node, {"tid": tid, ROUND: rounds}))
        place = Op("+", (Const(work.origin[d]), Op("*", (Const(work.unit[d]), unit))))
        if d == fast and work.steps > 1:
            place = Op("+", (place, Op("*", (Const(work.stride), step))))
        index.append(to_text(simplify(place, ranges)))
    limits = [f"tid >= {work.first}"] * (work.first > 0)
    limits += [f"tid < {work.first + work.threads}"] * (work.first + work.threads < threads)
    if work.rounds * work.threads > work.units:
        number = simplify(Op("+", (tid, Op("*", (Const(work.threads), rounds)))), ranges)
        limits.append(f"{to_text(number)} < {work.units}")
    if work.slots > work.segment:
        slot = Op("%", (Op("+", (tid, Op("*", (Const(work.threads), rounds)))), Const(work.slots)))
        limits.append(f"{to_text(simplify(slot, ranges))} < {work.segment}")
    where = " and ".join(limits) or None
    return replace(with_fixed_lanes(access), index=tuple(index), loops=dict(work.loops), where=where)


def _loop_values(work: Work) -> tuple[Node, Node]:
    """Round and step, over the loop variables: the last is the fastest."""
    count: Node = Const(0)
    for name, trips in work.loops.items():
        count = Op("+", (Op("*", (count, Const(trips))), Var(name)))
    if work.steps == 1:
        return count, Const(0)
    return Op("//", (count, Const(work.steps))), Op("%", (count, Const(work.steps)))


def merged(digits: Sequence[Digit]) -> list[Digit]:
    """The digits, neighbours that make up one digit joined."""
    found: list[Digit] = []
    for digit in digits:
        before = found[-1] if found else None
        if before is not None and before.dim == digit.dim and digit.stride == before.stride * before.size:
            found[-1] = Digit(before.dim, before.stride, before.size * digit.size)
        else:
            found.append(digit)
    return found


def _part_of_number(inner: int, extent: int, workers: int, slowest: bool) -> Node:
    """`(tid + workers * i) // inner % extent`, where possible without adding tid and i first."""
    tid, i = Op("//", (Var("tid"), Const(inner))), Var("i")
    step = workers // inner
    if workers % inner == 0 and (slowest or extent % step == 0 or step % extent == 0):
        turn: Node = i if slowest else Op("%", (i, Const(max(1, extent // step))))
        own: Node = tid if slowest else Op("%", (tid, Const(extent)))
        return Op("+", (own, Op("*", (Const(step), turn))))
    if inner % workers == 0:
        whole: Node = Op("//", (i, Const(inner // workers)))
    else:
        whole = Op("//", (Op("+", (Var("tid"), Op("*", (Const(workers), i)))), Const(inner)))
    return whole if slowest else Op("%", (whole, Const(extent)))
