"""Which thread moves which part of a tile, where an access leaves that free.

    unit      what a thread moves by one access to global memory (`global.bytes`): a box of the tile is cut
              into units
    step      one of the accesses to the tile that move a unit
    round     T threads move the units numbered T*r to T*r + T - 1 in round r, a unit each
    segment   units that consecutive threads move and that are contiguous in global memory
    slot      a thread's place in a segment; a segment may have more slots than units, for idle threads

An **assignment** says where the unit of each number lies. The number is cut into digits, the fastest first,
each a part of one coordinate; a **twist** flips a bit of a coordinate by a bit of the number.

    128 units, 8 lines of 16:   number = (x1 % 4) + 4*(x0 % 8) + 32*(x1 // 4)
                                x1 = number % 4 + 4*(number // 32), x0 = number // 4 % 8

The first digits are those of a segment. Beyond that the threads of a warp may change places: what an
instruction covers stays the same.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.lower import with_fixed_lanes
from layoutopt.accesses.trace import LaneTrace, trace
from layoutopt.accesses.view import view_of
from layoutopt.errors import ProblemFileError, under
from layoutopt.expressions.grammar import Const, Node, Op, Var, evaluate, substituted, to_text
from layoutopt.expressions.simplify import read_inside, simplify, through_xor
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device
from layoutopt.problems.types import Access, GlobalSide, Order, Problem

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
    """Where the unit of each number lies: digits of the number from the fastest, and twists.

    `swapped_tid` is the thread of the same warp whose unit a thread handles instead of its own, over `tid`
    (from 0 for the first that takes part) and the round; None where threads keep their own.
    """

    digits: tuple[Digit, ...]
    twists: tuple[Twist, ...] = ()
    swapped_tid: Node | None = None

    @property
    def span(self) -> int:
        """Numbers that its digits tell apart."""
        return math.prod(digit.size for digit in self.digits)


class Work(Struct, frozen=True):
    """What an access with free lanes covers: a box of the tile, cut into units (see the module)."""

    origin: tuple[int, ...]  # coordinates of the box's first element
    unit: tuple[int, ...]  # elements of a unit along each dimension
    extents: tuple[int, ...]  # units along each dimension
    order: tuple[int, ...]  # dimensions from the slowest to the fastest in global memory
    steps: int  # accesses to the tile by which a thread moves a unit
    stride: int  # elements from one step to the next, along the fastest dimension
    segment: int  # units of a segment
    first: int  # the first thread that takes part
    threads: int  # how many take part, from `first` on
    loops: Mapping[str, int]  # trip counts of the access: its iterations are rounds, in each all steps
    slots: int  # threads that a segment takes; those beyond its units are idle

    @property
    def units(self) -> int:
        """Numbers that there are: one for each unit, and one for each idle slot."""
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
    """The digits of prime sizes that make up a digit, twos first: size 12 gives sizes 2, 2 and 3."""
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
        ProblemFileError: two orders are given, or one that is no permutation of the dimensions.
    """
    in_global = (access.global_ or GlobalSide()).order
    if in_global is not None and access.order is not None and in_global != access.order:
        raise ProblemFileError("order", "is another than that in `global`; keep one of them")
    given: Order = in_global or access.order or "row"
    rows = tuple(range(dims))
    order = rows if given == "row" else rows[::-1] if given == "column" else tuple(given)
    if sorted(order) != list(rows):
        expected = f"expected row, column, or each of 0..{dims - 1} once"
        raise ProblemFileError("order", f"{expected}, got {list(order)}")
    return order


def work_of(problem: Problem, number: int, device: Device) -> tuple[Work, LaneTrace]:
    """The box that access `number`, whose lanes are free, covers; and the lanes of the file's own index.

    Raises:
        ProblemFileError: its index does not cover a box once, or its `global` makes no sense.
    """
    access, field = problem.accesses[number], f"accesses[{number}]"
    try:
        lanes = trace(replace(problem, accesses=(with_fixed_lanes(access),)), device).accesses[0]
    except ProblemFileError as error:  # traced by itself, it is the first
        raise ProblemFileError(error.field.replace("accesses[0]", field, 1), error.reason) from None
    with under(field):
        return _work_of_lanes(problem, access, lanes), lanes


def _work_of_lanes(problem: Problem, access: Access, lanes: LaneTrace) -> Work:
    """The box that an access covers, each element once, by the threads from its first active to its last.

    `lanes` is the trace of the access with the lanes of the file's own index.
    """
    does = lanes.operation.does
    if lanes.operation.matrices or does.adds:
        raise ProblemFileError("lanes", f"free lanes are for loads, stores and copies, not {does.short}")
    if isinstance(access.weight, str):
        raise ProblemFileError("weight", "of an access with free lanes is one number")
    if view_of(replace(problem, accesses=(access,))) is not None:
        raise ProblemFileError("vector", "runs along the last dimension where lanes are free")
    iterations = math.prod(access.loops.values())
    active = lanes.active.reshape(iterations, -1)[:, : problem.threads]
    active_threads = np.flatnonzero(active.any(axis=0))
    if not len(active_threads):
        raise ProblemFileError("where", "no lane takes part, so that nothing is covered")
    first, threads = int(active_threads[0]), int(active_threads[-1] - active_threads[0]) + 1
    shape, width = problem.tile.shape, lanes.width_elements
    starts = np.sort(lanes.element[lanes.active])  # the first element of each lane's access
    if (twice := np.flatnonzero(starts[1:] == starts[:-1])).size:
        element = [int(c) for c in np.unravel_index(starts[twice[0]], shape)]
        raise ProblemFileError("index", f"free lanes cover every element once; {element} is met twice")
    coordinates = np.unravel_index(starts, shape)
    widths = (*(1 for _ in shape[1:]), width)  # of an access along each dimension
    box = [(int(x.min()), int(x.max()) + w) for x, w in zip(coordinates, widths, strict=True)]
    # Accesses start at multiples of their width: distinct ones as many as fill the box cover it once.
    if math.prod(high - low for low, high in box) != len(starts) * width:
        raise ProblemFileError("index", "free lanes cover a box of the tile, without gaps")
    work = work_on_box(problem, access, box, first=first, threads=threads, width=width)
    # The file's own loops stay where they run as often and the last of them, if a unit takes several steps,
    # counts these.
    given = replace(work, loops=access.loops)
    counts_steps = work.steps == 1 or given.step_loop is not None
    return given if iterations == work.rounds * work.steps and counts_steps else work


def work_on_box(
    problem: Problem, access: Access, box: Sequence[tuple[int, int]], *, first: int, threads: int, width: int
) -> Work:
    """How a box of the tile is cut into units and segments, with a loop over rounds and one over steps.

    A unit is what a thread moves by one global access: one or more accesses to the tile, its `steps`. A
    segment is so many units that are contiguous in global memory. A global access may also be narrower than
    one to the tile: then a unit takes several of them.

    Args:
        problem: the tile, and its threads.
        access: who covers the box, and what it keeps to in global memory.
        box: for each dimension, the coordinate of its first element, and one behind its last.
        first, threads: the first thread that takes part, and how many do from there on.
        width: elements of one access along the last dimension.

    Raises:
        ProblemFileError: units do not divide the box, or segments are no whole units.
    """
    tile, dims = problem.tile, len(problem.tile.shape)
    order = global_order(access, dims)
    fast, last = order[-1], dims - 1  # dimensions: the fastest in global memory, and that of wide accesses
    in_global = access.global_ or GlobalSide()
    fast_width = width if fast == last else 1  # elements of an access to the tile along the fastest dimension
    fast_bits = fast_width * tile.element_bits  # which are contiguous in global memory
    moved_bytes = in_global.bytes or max(1, fast_bits // 8)  # by one global access
    if 8 * moved_bytes > fast_bits and 8 * moved_bytes % fast_bits:
        wrong = f"{moved_bytes} bytes are no whole number of accesses to the tile"
        raise ProblemFileError("global.bytes", wrong)
    steps = max(1, 8 * moved_bytes // fast_bits)
    unit = [1] * dims  # its extents
    unit[last] = width
    unit[fast] *= steps
    extents = []
    for d, (low, high) in enumerate(box):
        if (high - low) % unit[d]:
            moved = f"a thread moves {unit[d]} elements along dimension {d} at once"
            wrong = f"{moved}, which do not divide the {high - low} that are covered"
            raise ProblemFileError("global.bytes" if steps > 1 and d == fast else "bytes", wrong)
        extents.append((high - low) // unit[d])
    contiguous = in_global.contiguous or moved_bytes  # bytes of a segment
    unit_bytes = max(moved_bytes, fast_bits // 8)
    segment = _segment(contiguous, moved_bytes, unit_bytes, line_units=extents[fast])
    origin = tuple(low for low, _ in box)
    # Threads for a segment (`slots`): as many as it has units, none of them idle.
    work = Work(
        origin=origin, unit=tuple(unit), extents=tuple(extents), order=order, steps=steps,
        stride=fast_width, segment=segment, first=first, threads=threads, loops={}, slots=segment,
    )  # fmt: skip
    return work.with_own_loops()


def _segment(contiguous: int, moved_bytes: int, unit_bytes: int, line_units: int) -> int:
    """Units of a segment of `contiguous` bytes; a whole line where segments do not divide its units.

    `moved_bytes` are those of a global access, of which a unit takes several where it has more bytes.

    Raises:
        ProblemFileError: segments are no whole number of global accesses.
    """
    if contiguous <= moved_bytes:
        return 1
    if contiguous % moved_bytes:
        accesses = f"global accesses of {moved_bytes} bytes"
        wrong = f"segments of {contiguous} bytes are no whole number of {accesses}"
        raise ProblemFileError("global.contiguous", wrong)
    segment = -(-contiguous // unit_bytes)
    return line_units if line_units % segment else segment


def unit_coordinates(
    work: Work, assignment: Assignment, number: IntArray, step: IntArray | int = 0
) -> list[IntArray]:
    """Coordinates in the tile, by dimension, of the first element of an access to a unit.

    Args:
        work: what is covered.
        assignment: where the unit of each number lies.
        number: of the unit, any shape.
        step: which access to the unit, 0 for the first; of a shape that broadcasts.
    """
    in_units = [np.zeros_like(number) for _ in work.extents]
    divide = 1
    for digit in assignment.digits:
        in_units[digit.dim] = in_units[digit.dim] + digit.stride * (number // divide % digit.size)
        divide *= digit.size
    for twist in assignment.twists:
        in_units[twist.dim] = in_units[twist.dim] ^ (number // twist.divide % 2 * twist.stride)
    x = [first + size * units for first, size, units in zip(work.origin, work.unit, in_units, strict=True)]
    x[work.order[-1]] = x[work.order[-1]] + work.stride * step
    return x


def lanes_under(work: Work, assignment: Assignment, lanes: LaneTrace, shape: Sequence[int]) -> LaneTrace:
    """The trace of an access under an assignment, of the warps up to the last that takes part.

    Args:
        work: what it covers.
        assignment: where the unit of each number lies; a thread has number `tid + work.threads * round`.
        lanes: the trace under any other assignment: operation, rule and weight stay.
        shape: of the tile.
    """
    warp_lanes, end = lanes.element.shape[1], work.first + work.threads
    tid: IntArray = np.arange(work.threads)  # from 0 for the first thread that takes part
    rounds = np.arange(work.rounds)[:, None]
    if assignment.swapped_tid is not None:
        tid = evaluate(assignment.swapped_tid, {"tid": tid, ROUND: rounds})
    number: IntArray = np.broadcast_to(tid + work.threads * rounds, (work.rounds, work.threads))
    has_unit = (number < work.units) & (number % work.slots < work.segment)  # no idle slot
    # From here on by round, step and thread, the order of warp instructions.
    has_unit = has_unit[:, None, :]
    number = np.where(has_unit, number[:, None, :], 0)
    x = unit_coordinates(work, assignment, number, np.arange(work.steps)[None, :, None])
    element = np.zeros((work.rounds, work.steps, -(-end // warp_lanes) * warp_lanes), np.int64)
    active = np.zeros(element.shape, bool)
    active[:, :, work.first : end] = has_unit
    element[:, :, work.first : end] = np.where(has_unit, np.ravel_multi_index(x, tuple(shape)), 0)
    weight = np.full(element.size // warp_lanes, lanes.weight[0], np.int64)  # free lanes weigh one number
    rows = (-1, warp_lanes)
    return replace(lanes, element=element.reshape(rows), active=active.reshape(rows), weight=weight)


def with_assignment(work: Work, assignment: Assignment, access: Access, block_threads: int) -> Access:
    """The access with index expressions for the lanes that the assignment has.

    Args:
        work: what it covers: a box, cut into the units that a thread moves at once (see the module).
        assignment: where the unit of each number lies; a thread has number `tid + work.threads * round`.
        access: with free lanes.
        block_threads: of which `work.threads` take part.
    """
    coordinates = _coordinates_in_units(work, assignment)
    round_, step = _round_and_step(work)  # expressions over the loop variables
    # `tid` of the threads that take part alone: `where` excludes the others.
    ranges = {"tid": (work.first, work.first + work.threads - 1)} | {
        name: (0, trips - 1) for name, trips in work.loops.items()
    }
    local_tid: Node = Var("tid") if not work.first else Op("-", (Var("tid"), Const(work.first)))
    tid = local_tid
    if assignment.swapped_tid is not None:
        swapped = simplify(substituted(assignment.swapped_tid, {"tid": local_tid, ROUND: round_}), ranges)
        # It may look a table up. Threads that take no part do so, too: their entries must lie inside it.
        tid = read_inside(swapped, {**ranges, "tid": (0, block_threads - 1)})
    index, fastest = [], work.order[-1]
    for d, units in enumerate(coordinates):
        # Taking quotients and remainders of both sides of ^ lets more of them cancel.
        units = through_xor(substituted(units, {"tid": tid, ROUND: round_}))
        x = Op("+", (Const(work.origin[d]), Op("*", (Const(work.unit[d]), units))))
        if d == fastest and work.steps > 1:
            x = Op("+", (x, Op("*", (Const(work.stride), step))))
        index.append(to_text(simplify(x, ranges)))
    number = Op("+", (tid, Op("*", (Const(work.threads), round_))))
    where = _has_unit(work, number, ranges, block_threads)
    return replace(with_fixed_lanes(access), index=tuple(index), loops=dict(work.loops), where=where)


def _has_unit(
    work: Work, number: Node, ranges: Mapping[str, tuple[int, int]], block_threads: int
) -> str | None:
    """The predicate of the threads, of all in the block, that move a unit; None where all always do.

    `number` is that of a thread's unit, over variables in `ranges`, which hold for `work.threads`.
    """
    limits, end = [], work.first + work.threads
    if work.first > 0:
        limits.append(f"tid >= {work.first}")
    if end < block_threads:
        limits.append(f"tid < {end}")
    if work.rounds * work.threads > work.units:
        limits.append(f"{to_text(simplify(number, ranges))} < {work.units}")
    if work.slots > work.segment:  # so that segments keep to warps, threads beyond a segment's units are idle
        slot = simplify(Op("%", (number, Const(work.slots))), ranges)
        limits.append(f"{to_text(slot)} < {work.segment}")
    return " and ".join(limits) or None


def _coordinates_in_units(work: Work, assignment: Assignment) -> list[Node]:
    """By dimension, the coordinate of a thread's unit, over `tid` (0 for the first thread) and the round."""
    nodes: list[Node] = [Const(0) for _ in work.extents]
    divide = 1
    for digit in _merged(assignment.digits):
        value = _digit_of_number(work, divide, digit.size)
        nodes[digit.dim] = Op("+", (nodes[digit.dim], Op("*", (Const(digit.stride), value))))
        divide *= digit.size
    for twist in assignment.twists:
        bit = _digit_of_number(work, twist.divide, 2)
        nodes[twist.dim] = Op("^", (nodes[twist.dim], Op("*", (Const(twist.stride), bit))))
    return nodes


def _round_and_step(work: Work) -> tuple[Node, Node]:
    """Over the loop variables, the last the fastest: iterations are rounds, in each of them all steps."""
    iteration: Node = Const(0)
    for name, trips in work.loops.items():
        iteration = Op("+", (Op("*", (iteration, Const(trips))), Var(name)))
    if work.steps == 1:
        return iteration, Const(0)
    return Op("//", (iteration, Const(work.steps))), Op("%", (iteration, Const(work.steps)))


def _merged(digits: Sequence[Digit]) -> list[Digit]:
    """The digits, neighbours joined that make up one: x0 by 1, size 2, and x0 by 2, size 4, are size 8."""
    joined: list[Digit] = []
    for digit in digits:
        before = joined[-1] if joined else None
        if before is not None and before.dim == digit.dim and digit.stride == before.stride * before.size:
            joined[-1] = Digit(before.dim, before.stride, before.size * digit.size)
        else:
            joined.append(digit)
    return joined


def _digit_of_number(work: Work, divide: int, size: int) -> Node:
    """A digit of the number of a unit, `(tid + threads * i) // divide % size`, in round i.

    Where it can be, it is a digit of `tid` alone, of `i` alone, or the sum of one of each, which cost less.
    """
    threads, tid, i = work.threads, Var("tid"), Var(ROUND)
    is_slowest = divide * size == work.units

    def within(node: Node, extent: int) -> Node:
        return node if is_slowest else Op("%", (node, Const(extent)))  # the slowest digit has no larger value

    per_round = threads // divide  # values that the threads of one round have, before the remainder
    if threads % divide == 0 and (is_slowest or size % per_round == 0 or per_round % size == 0):
        of_thread = within(Op("//", (tid, Const(divide))), size)
        of_round = within(i, max(1, size // per_round))
        return Op("+", (of_thread, Op("*", (Const(per_round), of_round))))
    if divide % threads == 0:
        return within(Op("//", (i, Const(divide // threads))), size)
    return within(Op("//", (Op("+", (tid, Op("*", (Const(threads), i)))), Const(divide))), size)
