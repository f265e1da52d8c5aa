"""Accesses whose instructions are free: which elements of a thread may go together, and by what.

Of such an access only the elements that each thread moves over all its iterations count. Which of them form
a vector is one question for the whole tile, as a layout can make elements consecutive in one way only. An
access takes as many of the steps of a vector as its threads' elements are closed under:

    x[8*i + k] for k < 8, i < 4 of f32:  steps 1, 2 -> 8 loads of 16 bytes;  1 -> 16 of 8;  32 -> 16 of 8

and a matrix instruction where the rows of 16 bytes and the lanes are as it has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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


@dataclass(frozen=True)
class Owned(Ownership):
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
    """What keeps the instructions of an access from being free; None where nothing does."""
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


def owned(problem: Problem, device: Device) -> list[Owned]:
    """What the threads of each free access move that has an active lane.

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
    """The steps that vectors may take, each list a choice; those of the file's vectors come first in each.

    Of steps that serve the same accesses, that between elements which the file moves soonest after each other
    comes first: the others give vectors as wide. Then come rows of matrices, as lanes have them.
    """
    most = (ROW_BYTES // free[0].size).bit_length() - 1

    def apart(step: Step) -> tuple[int, ...]:
        return sum(one.distance(step) for one in free if step in one.steps), -step[0], step[1]

    every = sorted({step for one in free for step in one.steps}, key=apart)
    found: list[tuple[Step, ...]] = []

    def extend(steps: tuple[Step, ...], serving: frozenset[int]) -> None:
        if len(found) >= _MOST_STEPS:
            return
        found.append(steps)
        if len(steps) >= most:
            return
        seen: set[frozenset[int]] = set()
        for step in every:
            served = frozenset(one.number for one in free if one.number in serving and step in one.steps)
            if step not in steps and served and served not in seen:
                seen.add(served)
                extend((*steps, step), served)

    start = tuple(fixed)
    extend(start, frozenset(one.number for one in free if one.steps.issuperset(start)))
    for one in free:
        found += [row for row in _rows(one, most) if row[: len(start)] == start and row not in found]
    return found


def _rows(one: Owned, most: int) -> Iterator[tuple[Step, ...]]:
    """The orders in which a matrix instruction would have the lanes of an access: plain, and transposed.

    Four lanes share a row, and have a word of it each; of a transposed one, eight times four lanes have one
    element each.
    """
    own = sorted(one.steps, key=one.distance)[: most - 2]
    for steps, bits in ((own, (1, 2)), ([], (4, 8, 16))):
        row = [*steps, *(_step(one, lane) for lane in bits if lane < len(one.element))]
        if len(row) == most and len(set(row)) == most and all(row):
            yield tuple(step for step in row if step)


def _step(one: Owned, lane: int) -> Step | None:
    """From the first element of lane 0 to that of another, where it is a step."""
    shape = one.shape
    first, other = (np.unravel_index(max(0, int(one.element[k, 0])), shape) for k in (0, lane))
    apart = [(d, int(b - a)) for d, (a, b) in enumerate(zip(first, other, strict=True)) if a != b]
    if len(apart) != 1 or apart[0][1] < 1 or apart[0][1].bit_count() > 1:
        return None
    ((dim, far),) = apart
    return None if shape[dim] % (2 * far) else (dim, far)


def accesses_of(one: Owned, steps: Sequence[Step], head: Problem, device: Device) -> Iterator[Access]:
    """The ways in which an access may be written under an order of elements, the widest vectors first.

    Args:
        one: the access.
        steps: the order of elements.
        head: a problem with the tile, the threads and the target.
        device: whose instructions.
    """
    count = next((k for k, step in enumerate(steps) if step not in one.steps), len(steps))
    count = min(count, (ROW_BYTES // one.size).bit_length() - 1)
    for taken in range(count, -1, -1):
        operation = Operation(one.kind, one.size << taken)
        if _is_served(operation, device):
            yield _access(one, operation, steps[:taken], one.heads(steps[:taken]), head, device)
    in_row = (ROW_BYTES // one.size).bit_length() - 1
    if one.size > WORD_BYTES or len(steps) < in_row or device.lanes != 4 * ROWS:
        return
    in_word = (WORD_BYTES // one.size).bit_length() - 1
    across = sorted(one.steps.difference(steps[:in_row]), key=one.distance) if one.size == 2 else []
    for words, transposed in ([steps[:in_word]], False), ([[step] for step in across], True):
        rows = (_rows_of(one, steps[:in_row], word, transposed, device) for word in words)
        if (found := next(filter(None, rows), None)) is not None:
            yield _access(one, found[0], steps[:in_row], found[1], head, device)


def _rows_of(
    one: Owned, row: Sequence[Step], word: Sequence[Step], transposed: bool, device: Device
) -> tuple[Operation, IntArray] | None:
    """The widest matrix instruction whose lanes hold such words of such rows, and the rows' starts."""
    words = one.element.shape[1] >> len(word)
    for together in (4, 2, 1):
        operation = Operation(_MATRIX[one.kind], ROW_BYTES, together, transposed)
        if words % together == 0 and one.steps.issuperset(word) and _is_served(operation, device):
            starts = one.addressed(operation, 8 * one.size, device.lanes, row, word)
            return None if starts is None else (operation, starts)
    return None


def _is_served(operation: Operation, device: Device) -> bool:
    try:
        device.rule(operation)
    except ProblemFileError:
        return False
    return True


def _access(
    one: Owned, operation: Operation, steps: Sequence[Step], starts: IntArray, head: Problem, device: Device
) -> Access:
    """An access that starts at these elements: shape (rounds * threads, iterations), -1 for none."""
    by_thread = starts.reshape(-1, head.threads, starts.shape[1]).swapaxes(0, 1).reshape(head.threads, -1)
    taking, addressed = by_thread >= 0, ROWS * operation.matrices or device.lanes
    by_thread[np.arange(head.threads) % device.lanes >= addressed] = -1
    field = f"accesses[{one.number}]"
    found = written(
        by_thread, one.shape, device.lanes, taking=taking, addressed=addressed, fields=(field, field)
    )
    vector = (
        None if list(steps) == one.along(1 << len(steps)) else tuple(_unit(s, len(one.shape)) for s in steps)
    )
    return msgspec.structs.replace(
        with_fixed_lanes(one.access),
        op=operation.text,
        index=tuple(found["index"]),
        bytes=None if operation.matrices else operation.width_bytes,
        loops=found.get("for", {}),
        where=found.get("where"),
        vector=vector,
    )


def _unit(step: Step, dims: int) -> tuple[int, ...]:
    return tuple(step[1] if d == step[0] else 0 for d in range(dims))


def moved(access: Access, rounds: int, problem: Problem, device: Device) -> IntArray:
    """What each thread moves by an access with its instructions given: as `Owned.element`, but rising."""
    lanes = trace(msgspec.structs.replace(problem, accesses=(access,)), device).accesses[0]
    offsets = distances(steps_of(access, problem.tile), problem.tile.shape)
    warps = -(-problem.threads // device.lanes)
    holder, behind = received(lanes.operation, problem.tile.element_bits, device.lanes)
    start = np.where(lanes.active, lanes.element, -1)[:, holder]
    element = np.where(start >= 0, start + offsets[behind], -1)
    by_thread = element.reshape(rounds, -1, warps * device.lanes, element.shape[-1]).transpose(0, 2, 1, 3)
    return _rising(by_thread[:, : problem.threads].reshape(rounds * problem.threads, -1))


def check_instructions(problem: Problem, chosen: Problem, device: Device) -> None:
    """Check that each thread moves what the problem asks for, where its instructions are free.

    Raises:
        ProblemFileError: it does not.
    """
    for one in owned(problem, device) if any(a.instructions is not None for a in problem.accesses) else ():
        access, asked = chosen.accesses[one.number], _rising(one.element)
        does = moved(access, len(asked) // problem.threads, problem, device)
        if asked.shape != does.shape or (asked != does).any():
            raise ProblemFileError("index", f"of access {access.name!r} gives threads other elements")


def _rising(element: IntArray) -> IntArray:
    return np.sort(each_once(element), axis=1)
