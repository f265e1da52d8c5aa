"""Accesses whose instructions are free: which elements of a thread may go together, and by what.

Of such an access only the elements that each thread moves over all its iterations count. Which of them form
a vector is one question for the whole tile, as a layout can make elements consecutive in one way only. An
access takes as many of the steps of a vector as its threads' elements are closed under:

    x[8*i + k] for k < 8, i < 4 of f32:  steps 1, 2 -> 8 loads of 16 bytes;  1 -> 16 of 8;  32 -> 16 of 8

and a matrix instruction where the rows of 16 bytes and the lanes are as it has them.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import starmap
from typing import Final

import numpy as np
from msgspec.structs import replace

from layoutopt.accesses.lower import with_fixed_lanes, with_loops
from layoutopt.accesses.ownership import (
    ROW_BYTES,
    ROWS,
    WORD_BYTES,
    Ownership,
    distinct_in_order,
    index_fields,
    register_sources,
    vector_offsets,
)
from layoutopt.accesses.trace import LaneTrace, trace
from layoutopt.accesses.view import Step, vector_steps
from layoutopt.errors import ProblemFileError, Wrong
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation, parse_operation
from layoutopt.problems.types import Access, Problem

_MATRIX: Final = {"load": "ldmatrix", "store": "stmatrix"}
_MOST_ORDERS: Final = 64  # of elements in a vector, that are looked at


class Owned(Ownership, frozen=True, dict=True):
    """What the threads of a free access move, once for each round.

    A round is an iteration of the loops whose elements do not go together.
    """

    number: int  # of the access
    access: Access  # as in the file
    kind: str  # load or store
    size: int  # bytes of an element

    @cached_property
    def steps(self) -> frozenset[Step]:
        """The steps by which every thread's elements pair up (`is_closed`): those of its possible vectors."""
        every = (Step(d, 1 << k) for d, extent in enumerate(self.shape) for k in range(extent.bit_length()))
        return frozenset(filter(self.is_closed, every))


def why_not_free(problem: Problem, number: int) -> ProblemFileError | None:
    """The error of access `number`, whose instructions cannot be free; None where they can."""
    return next((ProblemFileError(*wrong) for wrong in _wrong_if_free(problem, number)), None)


def _wrong_if_free(problem: Problem, number: int) -> Wrong:
    access, field = problem.accesses[number], f"accesses[{number}]"
    if problem.is_dictated or problem.tile.packed > 1:
        wrong = "instructions cannot be free where the hardware dictates the layout or elements share bytes"
        yield "accesses", wrong
    for k, other in enumerate(problem.accesses):
        if isinstance(other.bytes, tuple):
            yield f"accesses[{k}].bytes", "one width is expected where instructions are free"
    if isinstance(access.weight, str):
        yield f"{field}.weight", "a number is expected where instructions are free"
    operation = parse_operation(access.op, access.single_width, f"{field}.op")
    if operation.kind not in ("load", "store"):
        yield f"{field}.op", f"instructions are free of a load or store, not of {access.op}"
    size, width = problem.tile.element_bytes, operation.width_bytes
    if size.bit_count() > 1 or size > width:
        what = f"whole elements of 1, 2, 4, 8 or 16 bytes, not {width} bytes of one of {size}"
        yield f"{field}.bytes", f"where instructions are free, an access moves {what}"


def with_free_instructions(problem: Problem, but: Collection[str] = ()) -> Problem | None:
    """The problem with the instructions of all loads and stores free that may be; None where none may.

    `but`: names of accesses that stay as they are.
    """

    def freed(number: int, access: Access) -> Access:
        if access.name in but or access.any or access.is_free or why_not_free(problem, number) is not None:
            return access
        return replace(access, instructions="free")

    accesses = tuple(starmap(freed, enumerate(problem.accesses)))
    return None if accesses == problem.accesses else replace(problem, accesses=accesses)


def free_ownerships(problem: Problem, device: Device) -> list[Owned]:
    """The elements of each thread, for every access with free instructions that has an active lane.

    Raises:
        ProblemFileError: the instructions of one cannot be free.
    """
    free = [k for k, access in enumerate(problem.accesses) if access.instructions is not None]
    for k in free:
        if (refusal := why_not_free(problem, k)) is not None:
            raise refusal
    given = tuple(map(with_given_instructions, problem.accesses))
    lanes = trace(with_loops(replace(problem, accesses=given)), device).accesses
    return [_owned(problem, k, given[k], lanes[k]) for k in free if lanes[k].active.any()]


def _owned(problem: Problem, number: int, given: Access, lanes: LaneTrace) -> Owned:
    """What the threads of access `number` move; `lanes` are of its own instructions, `given`."""
    access, tile = problem.accesses[number], problem.tile
    rounds = math.prod(access.loops[name] for name in _round_loops(access))
    element = distinct_in_order(_moved_elements(given, lanes, rounds, problem))
    return Owned(tile.shape, element, number, access, lanes.operation.kind, tile.element_bytes)


def _round_loops(access: Access) -> list[str]:
    """The loops in whose iterations elements are moved apart: their iterations are rounds."""
    together = list(access.loops) if access.instructions == "free" else access.instructions or ()
    return [name for name in access.loops if name not in together]


def with_given_instructions(access: Access) -> Access:
    """An access with the lanes and instructions that its index gives, the loops over rounds outermost."""
    order = dict.fromkeys([*_round_loops(access), *access.loops])
    return replace(with_fixed_lanes(access), loops={name: access.loops[name] for name in order})


def vector_orders(free: Sequence[Owned], fixed: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Candidate orders of elements in a vector: tuples of steps, each of which doubles the vector.

    The first n steps of an order make vectors of 2**n elements of an access with all of them (`Owned.steps`).
    Every order is extended by one more step. Of the steps that leave the same accesses their vectors, one is
    tried: that between the elements which are nearest in the threads' order. The rows of matrix instructions
    follow.

    Args:
        free: accesses whose instructions are free.
        fixed: the steps of vectors that the file prescribes; every order begins with them.
    """
    longest = (ROW_BYTES // free[0].size).bit_length() - 1  # steps of the widest vector; all have one size

    def rank(step: Step) -> tuple[int, ...]:
        """Rises from the best step; of those as near, the last dimension and short steps come first."""
        distance_in_order = sum(access.order_distance(step) for access in free if step in access.steps)
        return distance_in_order, -step.dim, step.distance

    ranked = sorted({step for access in free for step in access.steps}, key=rank)
    orders: list[tuple[Step, ...]] = []

    def extend(order: tuple[Step, ...], vectorised: frozenset[int]) -> None:
        """Add an order, all of which the accesses with the numbers `vectorised` have, and what extends it."""
        if len(orders) >= _MOST_ORDERS:
            return
        orders.append(order)
        if len(order) >= longest:
            return
        tried: set[frozenset[int]] = {frozenset()}  # a step that no access has beside the others is of no use
        for step in ranked:
            still = frozenset(a.number for a in free if a.number in vectorised and step in a.steps)
            if step not in order and still not in tried:
                tried.add(still)
                extend((*order, step), still)

    start = tuple(fixed)
    extend(start, frozenset(access.number for access in free if access.steps.issuperset(start)))
    for access in free:
        rows = _matrix_rows(access, longest)
        orders += [row for row in rows if row[: len(start)] == start and row not in orders]
    return orders


def _matrix_rows(access: Owned, longest: int) -> Iterator[tuple[Step, ...]]:
    """Orders of the 16 bytes of a matrix row as lanes hold them after ldmatrix, plain and transposed.

    Plain, four lanes side by side hold a word of the row each, in which elements follow one another as in the
    thread's order; transposed, eight lanes, four apart, hold an element each.

    `longest`: steps between the elements of a row.
    """
    in_word = sorted(access.steps, key=access.order_distance)[: longest - 2]
    for steps, lanes in ((in_word, (1, 2)), ([], (4, 8, 16))):
        row = [*steps, *(_step_to_lane(access, lane) for lane in lanes if lane < len(access.element))]
        if len(row) == longest and len(set(row)) == longest and all(row):
            yield tuple(step for step in row if step)


def _step_to_lane(access: Owned, lane: int) -> Step | None:
    """The step from the first element of lane 0 to that of `lane`; None where none leads there."""
    shape = access.shape
    first, other = (np.unravel_index(max(0, int(access.element[k, 0])), shape) for k in (0, lane))
    apart = [Step(d, int(b - a)) for d, (a, b) in enumerate(zip(first, other, strict=True)) if a != b]
    if len(apart) != 1 or apart[0].distance < 1 or apart[0].distance.bit_count() > 1:
        return None
    (step,) = apart
    return None if shape[step.dim] % (2 * step.distance) else step


def accesses_in_order(owner: Owned, steps: Sequence[Step], head: Problem, device: Device) -> Iterator[Access]:
    """The ways in which an access may be written under an order of elements, the widest vectors first.

    Vectors of 2**n elements take the first n steps; then come ldmatrix or stmatrix, plain and transposed.

    Args:
        owner: the elements of the access.
        steps: the order of elements, one of `vector_orders`.
        head: a problem with the tile, the threads and the target.
        device: whose instructions.
    """
    row_steps = (ROW_BYTES // owner.size).bit_length() - 1  # of 16 bytes: a matrix row, or the widest vector
    own_steps = next((k for k, step in enumerate(steps) if step not in owner.steps), len(steps))
    for count in range(min(own_steps, row_steps), -1, -1):
        operation = Operation(owner.kind, owner.size << count)
        if _is_served(operation, device):
            starts = owner.vector_starts(steps[:count])
            yield _access(owner, operation, steps[:count], starts, head, device)
    # Each row of a matrix is held by four lanes, a word each, and its eight rows so by a warp of 32.
    if owner.size > WORD_BYTES or len(steps) < row_steps or device.lanes != 4 * ROWS:
        return
    row, word = steps[:row_steps], steps[: (WORD_BYTES // owner.size).bit_length() - 1]
    if (plain := _matrix_access(owner, row, word, False, head, device)) is not None:
        yield plain
    if owner.size != 2:
        return
    # Transposed, the two elements of a word lie in different rows: any step across rows may be theirs.
    for step in sorted(owner.steps.difference(row), key=owner.order_distance):
        if (transposed := _matrix_access(owner, row, [step], True, head, device)) is not None:
            yield transposed
            return


def _matrix_access(
    owner: Owned, row: Sequence[Step], word: Sequence[Step], transposed: bool, head: Problem, device: Device
) -> Access | None:
    """The access by ldmatrix or stmatrix of as many matrices as go together; None where threads hold others.

    `row` and `word` are the steps between the elements of a matrix row, and of a register.
    """
    words = owner.element.shape[1] >> len(word)
    for matrices in (4, 2, 1):
        operation = Operation(_MATRIX[owner.kind], ROW_BYTES, matrices, transposed)
        if words % matrices == 0 and owner.steps.issuperset(word) and _is_served(operation, device):
            starts = owner.matrix_row_starts(operation, 8 * owner.size, device.lanes, row, word)
            return None if starts is None else _access(owner, operation, row, starts, head, device)
    return None


def _is_served(operation: Operation, device: Device) -> bool:
    return (operation.kind, operation.width_bytes) in device.rules


def _access(
    owner: Owned, operation: Operation, steps: Sequence[Step], starts: IntArray, head: Problem, device: Device
) -> Access:
    """A free access rewritten for one operation, its index a formula where there is one.

    Args:
        owner: the elements of the access.
        operation: what it becomes.
        steps: the order of elements in one of its vectors.
        starts: first element of each vector or matrix row, shape (rounds * threads, instructions of a round),
            by round and then by thread; -1 for none.
        head: a problem with the tile, the threads and the target.
        device: whose lanes address matrix rows.
    """
    # Shape (threads, rounds * instructions): each is an iteration of the access.
    by_thread = starts.reshape(-1, head.threads, starts.shape[1]).swapaxes(0, 1).reshape(head.threads, -1)
    fields = (f"accesses[{owner.number}]",) * 2  # for errors, of elements and of active lanes
    addressing = operation.address_lanes(device.lanes)
    data = index_fields(by_thread, owner.shape, device.lanes, address_lanes=addressing, fields=fields)
    along_last_dim = list(steps) == owner.last_dim_steps(1 << len(steps))
    dims = range(len(owner.shape))
    vector = tuple(tuple(distance if d == dim else 0 for d in dims) for dim, distance in steps)
    return replace(
        with_fixed_lanes(owner.access),
        op=operation.text,
        index=tuple(data["index"]),
        bytes=None if operation.matrices else operation.width_bytes,
        loops=data.get("for", {}),
        where=data.get("where"),
        vector=None if along_last_dim else vector,
    )


def _moved_elements(access: Access, lanes: LaneTrace, rounds: int, problem: Problem) -> IntArray:
    """The elements that each thread moves, in order: shape (rounds * threads, count), -1 where it moves none.

    Args:
        access: its instructions given, its outermost loops those over rounds.
        lanes: its trace.
        rounds: how many there are.
        problem: the tile, and the threads.
    """
    warp_lanes, threads, tile = lanes.element.shape[1], problem.threads, problem.tile
    source_lane, position = register_sources(lanes.operation, tile.element_bits, warp_lanes)
    offsets = vector_offsets(vector_steps(access, tile), tile.shape)
    start = np.where(lanes.active, lanes.element, -1)[:, source_lane]
    element = np.where(start >= 0, start + offsets[position], -1)
    block_threads = -(-threads // warp_lanes) * warp_lanes
    by_thread = element.reshape(rounds, -1, block_threads, element.shape[-1]).transpose(0, 2, 1, 3)
    return by_thread[:, :threads].reshape(rounds * threads, -1)


def check_instructions(problem: Problem, chosen: Problem, device: Device) -> None:
    """Check that each thread moves what the problem asks for, where its instructions are free.

    Raises:
        ProblemFileError: it does not.
    """
    if all(access.instructions is None for access in problem.accesses):
        return
    for owner in free_ownerships(problem, device):
        access, rounds = chosen.accesses[owner.number], len(owner.element) // problem.threads
        lanes = trace(replace(problem, accesses=(access,)), device).accesses[0]
        moved = distinct_in_order(_moved_elements(access, lanes, rounds, problem))
        if not np.array_equal(np.sort(moved, axis=1), np.sort(owner.element, axis=1)):
            raise ProblemFileError("index", f"of access {access.name!r} gives threads other elements")
