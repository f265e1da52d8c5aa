"""Accesses whose instructions are free: which elements of a thread may go together, and by what.

Of such an access only the elements that each thread moves over all its iterations count. Which of them form
a vector is one question for the whole tile, as a layout can make elements consecutive in one way only. An
access takes as many of the steps of a vector as its threads' elements are closed under:

    x[8*i + k] for k < 8, i < 4 of f32:  steps 1, 2 -> 8 loads of 16 bytes;  1 -> 16 of 8;  32 -> 16 of 8

and a matrix instruction where the rows of 16 bytes and the lanes are as it has them.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import starmap
from typing import Final

import msgspec
import numpy as np

from layoutopt.accesses.lower import with_fixed_lanes, with_loops
from layoutopt.accesses.ownership import (
    ROW_BYTES,
    ROWS,
    WORD_BYTES,
    Ownership,
    distances,
    each_once,
    received,
    written,
)
from layoutopt.accesses.trace import LaneTrace, trace
from layoutopt.accesses.view import Step, steps_of
from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation, parse_operation
from layoutopt.problems.types import Access, Problem

_MATRIX: Final = {"load": "ldmatrix", "store": "stmatrix"}
_MOST_STEPS: Final = 64  # orders of elements that are looked at


class Owned(Ownership, frozen=True, dict=True):
    """What the threads of a free access move, once for each round.

    A round is an iteration of the loops whose elements do not go together.

    Attributes:
        number: of the access.
        access: as in the file.
        kind: load or store.
        size: bytes of an element.
    """

    number: int
    access: Access
    kind: str
    size: int

    @cached_property
    def steps(self) -> frozenset[Step]:
        """Under which every thread's elements are closed."""
        every = ((dim, 1 << k) for dim, extent in enumerate(self.shape) for k in range(extent.bit_length()))
        return frozenset(filter(self.is_closed, every))


def why_not_free(problem: Problem, number: int) -> ProblemFileError | None:
    """The error of an access whose instructions cannot be free; None where they can."""
    access, field = problem.accesses[number], f"accesses[{number}]"
    if problem.is_dictated or problem.tile.packed > 1:
        return ProblemFileError(
            "accesses",
            "instructions cannot be free where the hardware dictates the layout or elements share bytes",
        )
    for k, other in enumerate(problem.accesses):
        if isinstance(other.bytes, tuple):
            return ProblemFileError(
                f"accesses[{k}].bytes", "one width is expected where instructions are free"
            )
    if isinstance(access.weight, str):
        return ProblemFileError(f"{field}.weight", "a number is expected where instructions are free")
    operation = parse_operation(access.op, access.single_width, f"{field}.op")
    if operation.kind not in ("load", "store"):
        return ProblemFileError(
            f"{field}.op", f"instructions are free of a load or store, not of {access.op}"
        )
    size, width = problem.tile.element_bytes, operation.width_bytes
    if size.bit_count() > 1 or size > width:
        what = f"whole elements of 1, 2, 4, 8 or 16 bytes, not {width} bytes of one of {size}"
        return ProblemFileError(f"{field}.bytes", f"where instructions are free, an access moves {what}")
    return None


def with_free_instructions(problem: Problem) -> Problem | None:
    """The problem with the instructions of all loads and stores free that may be; None where none may."""

    def freed(number: int, access: Access) -> Access:
        if access.any or access.is_free or why_not_free(problem, number) is not None:
            return access
        return msgspec.structs.replace(access, instructions="free")

    accesses = tuple(starmap(freed, enumerate(problem.accesses)))
    return None if accesses == problem.accesses else msgspec.structs.replace(problem, accesses=accesses)


def owned(problem: Problem, device: Device) -> list[Owned]:
    """The elements of each thread, for every access with free instructions that has an active lane.

    Raises:
        ProblemFileError: the instructions of one cannot be free.
    """
    numbers = [k for k, access in enumerate(problem.accesses) if access.instructions is not None]
    for k in numbers:
        if (refusal := why_not_free(problem, k)) is not None:
            raise refusal
    given = tuple(with_fixed_lanes(access) for access in problem.accesses)
    lanes = trace(with_loops(msgspec.structs.replace(problem, accesses=given)), device).accesses
    return [_owned(problem, k, lanes[k]) for k in numbers if lanes[k].active.any()]


def _owned(problem: Problem, number: int, lanes: LaneTrace) -> Owned:
    access = problem.accesses[number]
    apart = _loops_apart(access)
    element = np.where(lanes.active, lanes.element, -1).reshape(*access.loops.values(), -1)
    element = np.moveaxis(element[..., : problem.threads], apart, range(len(apart)))
    rounds = math.prod(element.shape[: len(apart)])
    element = element.reshape(rounds, -1, problem.threads).transpose(0, 2, 1)
    vectors = element[..., None] + np.arange(lanes.width_elements)
    vectors[element < 0] = -1
    each = each_once(vectors.reshape(rounds * problem.threads, -1))
    size, kind = problem.tile.element_bytes, lanes.operation.kind
    return Owned(problem.tile.shape, each, number, access, kind, size)


def _loops_apart(access: Access) -> list[int]:
    """The loops whose iterations' elements do not go together."""
    together = list(access.loops) if access.instructions == "free" else access.instructions or ()
    return [k for k, name in enumerate(access.loops) if name not in together]


def as_given(access: Access) -> Access:
    """A free access as its file has it, those loops outermost whose elements do not go together."""
    apart = [list(access.loops)[k] for k in _loops_apart(access)]
    loops = {name: access.loops[name] for name in dict.fromkeys([*apart, *access.loops])}
    return msgspec.structs.replace(access, loops=loops, instructions=None)


def orders(free: Sequence[Owned], fixed: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Candidate orders of elements in a vector: steps from the smallest on, each doubling its length.

    Orders are extended by every step that some access's threads own; of steps that the same accesses own,
    by the first that moves least in the file's loops, as the others give vectors as wide. Rows of matrix
    instructions follow.

    Args:
        free: accesses whose instructions are free.
        fixed: the steps of vectors that the file prescribes; every order begins with them.
    """
    longest = (ROW_BYTES // free[0].size).bit_length() - 1

    def rank(step: Step) -> tuple[int, ...]:
        return sum(owner.distance(step) for owner in free if step in owner.steps), -step[0], step[1]

    ranked = sorted({step for owner in free for step in owner.steps}, key=rank)
    found: list[tuple[Step, ...]] = []

    def extend(order: tuple[Step, ...], owners: frozenset[int]) -> None:
        if len(found) >= _MOST_STEPS:
            return
        found.append(order)
        tried: set[frozenset[int]] = {frozenset()}
        for step in ranked if len(order) < longest else ():
            still = frozenset(o.number for o in free if o.number in owners and step in o.steps)
            if step not in order and still not in tried:
                tried.add(still)
                extend((*order, step), still)

    start = tuple(fixed)
    extend(start, frozenset(owner.number for owner in free if owner.steps.issuperset(start)))
    for owner in free:
        found += [
            row for row in _matrix_rows(owner, longest) if row[: len(start)] == start and row not in found
        ]
    return found


def _matrix_rows(owner: Owned, longest: int) -> Iterator[tuple[Step, ...]]:
    """Orders of the 16 bytes of a matrix row as lanes hold them after ldmatrix, plain and transposed.

    Plain, each of four lanes holds a word of the row; transposed, each of eight lanes, four apart, holds
    one element.
    """
    nearest = sorted(owner.steps, key=owner.distance)[: longest - 2]
    for steps, lanes in ((nearest, (1, 2)), ([], (4, 8, 16))):
        row = [*steps, *(_step_to(owner, lane) for lane in lanes if lane < len(owner.element))]
        if len(row) == longest and len(set(row)) == longest and all(row):
            yield tuple(step for step in row if step)


def _step_to(owner: Owned, lane: int) -> Step | None:
    """The step from the first element of lane 0 to that of `lane`; None where their distance is none."""
    shape = owner.shape
    first, other = (np.unravel_index(max(0, int(owner.element[k, 0])), shape) for k in (0, lane))
    apart = [(d, int(b - a)) for d, (a, b) in enumerate(zip(first, other, strict=True)) if a != b]
    if len(apart) != 1 or apart[0][1] < 1 or apart[0][1].bit_count() > 1:
        return None
    ((dim, far),) = apart
    return None if shape[dim] % (2 * far) else (dim, far)


def accesses_of(owner: Owned, steps: Sequence[Step], head: Problem, device: Device) -> Iterator[Access]:
    """The ways in which an access may be written under an order of elements, the widest vectors first.

    Args:
        owner: the access.
        steps: the order of elements.
        head: a problem with the tile, the threads and the target.
        device: whose instructions.
    """
    count = next((k for k, step in enumerate(steps) if step not in owner.steps), len(steps))
    count = min(count, (ROW_BYTES // owner.size).bit_length() - 1)
    for taken in range(count, -1, -1):
        operation = Operation(owner.kind, owner.size << taken)
        if _is_served(operation, device):
            yield _access(owner, operation, steps[:taken], owner.heads(steps[:taken]), head, device)
    in_row = (ROW_BYTES // owner.size).bit_length() - 1
    if owner.size > WORD_BYTES or len(steps) < in_row or device.lanes != 4 * ROWS:
        return
    in_word = (WORD_BYTES // owner.size).bit_length() - 1
    across = sorted(owner.steps.difference(steps[:in_row]), key=owner.distance) if owner.size == 2 else []
    for words, transposed in ([steps[:in_word]], False), ([[step] for step in across], True):
        rows = (_rows_of(owner, steps[:in_row], word, transposed, device) for word in words)
        if (found := next(filter(None, rows), None)) is not None:
            yield _access(owner, found[0], steps[:in_row], found[1], head, device)


def _rows_of(
    owner: Owned, row: Sequence[Step], word: Sequence[Step], transposed: bool, device: Device
) -> tuple[Operation, IntArray] | None:
    """The widest matrix instruction whose lanes hold such words of such rows, and the rows' starts."""
    words = owner.element.shape[1] >> len(word)
    for together in (4, 2, 1):
        operation = Operation(_MATRIX[owner.kind], ROW_BYTES, together, transposed)
        if words % together == 0 and owner.steps.issuperset(word) and _is_served(operation, device):
            starts = owner.addressed(operation, 8 * owner.size, device.lanes, row, word)
            return None if starts is None else (operation, starts)
    return None


def _is_served(operation: Operation, device: Device) -> bool:
    try:
        device.rule(operation)
    except ProblemFileError:
        return False
    return True


def _access(
    owner: Owned, operation: Operation, steps: Sequence[Step], starts: IntArray, head: Problem, device: Device
) -> Access:
    """A free access rewritten for one operation, its index a formula.

    Args:
        owner: the access.
        operation: what it becomes.
        steps: the order of elements in one of its vectors.
        starts: first element of each vector or matrix row, shape (rounds * threads, iterations); -1 for none.
        head: a problem with the tile, the threads and the target.
        device: whose lanes address matrix rows.
    """
    by_thread = starts.reshape(-1, head.threads, starts.shape[1]).swapaxes(0, 1).reshape(head.threads, -1)
    taking, addressed = by_thread >= 0, ROWS * operation.matrices or device.lanes
    by_thread[np.arange(head.threads) % device.lanes >= addressed] = -1
    fields = (f"accesses[{owner.number}]",) * 2
    formula = written(by_thread, owner.shape, device.lanes, taking=taking, addressed=addressed, fields=fields)
    row_major = list(steps) == owner.along(1 << len(steps))
    dims = range(len(owner.shape))
    return msgspec.structs.replace(
        with_fixed_lanes(owner.access),
        op=operation.text,
        index=tuple(formula["index"]),
        bytes=None if operation.matrices else operation.width_bytes,
        loops=formula.get("for", {}),
        where=formula.get("where"),
        vector=None if row_major else tuple(tuple(size * (d == dim) for d in dims) for dim, size in steps),
    )


def moved(access: Access, rounds: int, problem: Problem, device: Device) -> IntArray:
    """What each thread moves by an access with its instructions given: as `Owned.element`, but rising."""
    lanes = trace(msgspec.structs.replace(problem, accesses=(access,)), device).accesses[0]
    warps = -(-problem.threads // device.lanes)
    holder, behind = received(lanes.operation, problem.tile.element_bits, device.lanes)
    offsets = distances(steps_of(access, problem.tile), problem.tile.shape)
    start = np.where(lanes.active, lanes.element, -1)[:, holder]
    element = np.where(start >= 0, start + offsets[behind], -1)
    by_thread = element.reshape(rounds, -1, warps * device.lanes, element.shape[-1]).transpose(0, 2, 1, 3)
    return _rising(by_thread[:, : problem.threads].reshape(rounds * problem.threads, -1))


def check_instructions(problem: Problem, chosen: Problem, device: Device) -> None:
    """Check that each thread moves what the problem asks for, where its instructions are free.

    Raises:
        ProblemFileError: it does not.
    """
    for owner in owned(problem, device) if any(a.instructions is not None for a in problem.accesses) else ():
        access, asked = chosen.accesses[owner.number], _rising(owner.element)
        does = moved(access, len(asked) // problem.threads, problem, device)
        if asked.shape != does.shape or (asked != does).any():
            raise ProblemFileError("index", f"of access {access.name!r} gives threads other elements")


def _rising(element: IntArray) -> IntArray:
    return np.sort(each_once(element), axis=1)
