"""Accesses whose instructions are free: which elements of a thread may go together, and by what.

Of such an access only the elements that each thread moves over all its iterations count. Which of them form
a vector is one question for the whole tile, as a layout can make elements consecutive in one way only: a
list of *steps*, the distance to the second element, to the third and fourth, and so on, each a power of two
in one dimension. An access takes as many of the steps as its threads' elements are closed under:

    x[8*i + k] for k < 8, i < 4 of f32:  steps 1, 2 -> 8 loads of 16 bytes;  1 -> 16 of 8;  32 -> 16 of 8

and a matrix instruction where the rows of 16 bytes and the lanes are as it has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from layoutopt.accesses.array_access import from_coordinates
from layoutopt.accesses.lower import with_fixed_lanes, with_loops
from layoutopt.accesses.trace import LaneTrace, trace
from layoutopt.accesses.view import Step, steps_of
from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation
from layoutopt.problems.types import Access, Problem, Tile

ROW_BYTES: Final = 16  # of a matrix, and of the widest vector
_WORD_BYTES: Final = 4  # that each lane has of a matrix
_ROWS: Final = 8
_MOST_STEPS: Final = 64  # orders of elements that are looked at


@dataclass(frozen=True)
class Owned:
    """What the threads of a free access move.

    Attributes:
        number: of the access.
        access: as in the file.
        kind: load or store.
        tile: of whole bytes.
        element: int64, shape (rounds * threads, count): row-major index, each element of a thread once, in
            the order of the file's iterations; -1 behind the last. A round is an iteration of the loops whose
            elements do not go together.
        steps: under which every thread's elements are closed.
    """

    number: int
    access: Access
    kind: str
    tile: Tile
    element: IntArray
    steps: frozenset[Step]

    def distance(self, step: Step) -> int:
        """How many elements after the first one of a thread the file has its partner."""
        dim, far = step
        stride = math.prod(self.tile.shape[dim + 1 :])
        first = self.element[int((self.element[:, 0] >= 0).argmax())]
        beyond = first[0] // stride % self.tile.shape[dim] & far
        return int(np.flatnonzero(first == first[0] + (-far if beyond else far) * stride)[0])

    def heads(self, steps: Sequence[Step]) -> IntArray:
        """The first element of each vector of these steps, in the file's order of them; like `element`."""
        first = self.element.copy()
        for dim, far in steps:
            stride = math.prod(self.tile.shape[dim + 1 :])
            inside = first // stride % self.tile.shape[dim] & far
            first = np.where(first >= 0, first - inside * stride, -1)
        return _each_once(first)


def owned(problem: Problem, device: Device) -> list[Owned]:
    """What the threads of each free access move that has an active lane.

    Raises:
        ProblemFileError: the instructions of one cannot be free.
    """
    numbers = [k for k, access in enumerate(problem.accesses) if access.instructions is not None]
    for k in numbers:
        if isinstance(problem.accesses[k].weight, str):
            raise ProblemFileError(
                f"accesses[{k}].weight", "a number is expected where instructions are free"
            )
    given = tuple(with_fixed_lanes(access) for access in problem.accesses)
    lanes = trace(with_loops(msgspec.structs.replace(problem, accesses=given)), device).accesses
    return [_owned(problem, k, lanes[k]) for k in numbers if lanes[k].active.any()]


def _owned(problem: Problem, number: int, lanes: LaneTrace) -> Owned:
    access = problem.accesses[number]
    if lanes.operation.kind not in ("load", "store"):
        what = f"instructions are free of a load or store, not of {access.op}"
        raise ProblemFileError(f"accesses[{number}].op", what)
    size, width = problem.tile.element_bytes, lanes.operation.width_bytes
    if size.bit_count() > 1 or size > width:
        what = f"whole elements of 1, 2, 4, 8 or 16 bytes, not {width} bytes of one of {size}"
        raise ProblemFileError(
            f"accesses[{number}].bytes", f"where instructions are free, an access moves {what}"
        )
    apart = _loops_apart(access)
    element = np.where(lanes.active, lanes.element, -1).reshape(*access.loops.values(), -1)
    element = np.moveaxis(element[..., : problem.threads], apart, range(len(apart)))
    rounds = math.prod(element.shape[: len(apart)])
    element = element.reshape(rounds, -1, problem.threads).transpose(0, 2, 1)
    vectors = element[..., None] + np.arange(lanes.width_elements)
    vectors[element < 0] = -1
    tile, each = problem.tile, _each_once(vectors.reshape(rounds * problem.threads, -1))
    closed = frozenset(
        (dim, far)
        for dim, extent in enumerate(tile.shape)
        for far in _powers(extent)
        if _is_closed(each, tile, dim, far)
    )
    return Owned(number, access, lanes.operation.kind, tile, each, closed)


def _loops_apart(access: Access) -> list[int]:
    """The loops whose iterations' elements do not go together."""
    together = list(access.loops) if access.instructions == "free" else access.instructions or ()
    return [k for k, name in enumerate(access.loops) if name not in together]


def as_given(access: Access) -> Access:
    """A free access as its file has it, those loops outermost whose elements do not go together."""
    apart = [list(access.loops)[k] for k in _loops_apart(access)]
    loops = {name: access.loops[name] for name in dict.fromkeys([*apart, *access.loops])}
    return msgspec.structs.replace(access, loops=loops, instructions=None)


def _powers(extent: int) -> Iterator[int]:
    """Powers of two whose double divides an extent."""
    far = 1
    while extent % (2 * far) == 0:
        yield far
        far *= 2


def _each_once(values: IntArray) -> IntArray:
    """The values of each row in order, each once, -1 left out; rows are filled with -1."""
    order = np.argsort(values, axis=1, kind="stable")
    rising = np.take_along_axis(values, order, axis=1)
    again = np.zeros(values.shape, bool)
    again[:, 1:] = rising[:, 1:] == rising[:, :-1]
    left = np.empty_like(again)
    np.put_along_axis(left, order, again | (rising < 0), axis=1)
    kept = np.argsort(left, axis=1, kind="stable")
    found = np.take_along_axis(np.where(left, -1, values), kept, axis=1)
    return found[:, : int((~left).sum(axis=1).max(initial=0))]


def _is_closed(element: IntArray, tile: Tile, dim: int, far: int) -> bool:
    """Whether each thread has the element `far` further in a dimension, or nearer, of every one it has."""
    stride = math.prod(tile.shape[dim + 1 :])
    beyond = (element // stride % tile.shape[dim] & far) > 0
    partner = np.where(element >= 0, element + np.where(beyond, -far, far) * stride, -1)
    return bool((np.sort(partner, axis=1) == np.sort(element, axis=1)).all())


def orders(free: Sequence[Owned], fixed: Sequence[Step]) -> list[tuple[Step, ...]]:
    """The steps that vectors may take, each list a choice; those of the file's vectors come first in each.

    Of steps that serve the same accesses, that between elements which the file moves soonest after each other
    comes first: the others give vectors as wide. Then come rows of matrices, as lanes have them.
    """
    size = free[0].tile.storage.element_bytes
    most = (ROW_BYTES // size).bit_length() - 1 if size & (size - 1) == 0 else 0

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
    shape = one.tile.shape
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
    size = one.tile.storage.element_bytes
    count = next((k for k, step in enumerate(steps) if step not in one.steps), len(steps))
    while size << count > ROW_BYTES:
        count -= 1
    kind = one.kind
    for taken in range(count, -1, -1):
        if _is_served(Operation(kind, size << taken), device):
            yield _written(one, kind, size << taken, steps[:taken], one.heads(steps[:taken]), head, device)
    matrix = "ldmatrix" if kind == "load" else "stmatrix"
    for rows, transposed in _matrices(one, steps, size, device):
        for together in (4, 2, 1):
            served = _is_served(Operation(matrix, ROW_BYTES, together, transposed), device)
            if served and rows.shape[1] % together == 0:
                form = f"{matrix}.x{together}{'.trans' if transposed else ''}"
                yield _of_rows(one, form, rows, together, steps, head, device)
                break


def _is_served(operation: Operation, device: Device) -> bool:
    try:
        device.rule(operation)
    except ProblemFileError:
        return False
    return True


def _written(
    one: Owned,
    op: str,
    width: int | None,
    steps: Sequence[Step],
    start: IntArray,
    head: Problem,
    device: Device,
) -> Access:
    """An access that starts at these elements: shape (rounds * threads, iterations), -1 for none."""
    warps, rounds = -(-head.threads // device.lanes), len(start) // head.threads
    whole = np.full((rounds, warps * device.lanes, start.shape[1]), -1, np.int64)
    whole[:, : head.threads] = start.reshape(rounds, head.threads, -1)
    rows = whole.transpose(0, 2, 1).reshape(-1, device.lanes)
    coordinates = np.stack(np.unravel_index(np.maximum(rows, 0), one.tile.shape), axis=-1)
    data = {
        "name": one.access.name,
        "op": op,
        "bytes": width,
        "coordinates": coordinates,
        "active": rows >= 0,
    }
    found = from_coordinates(data, f"accesses[{one.number}]", head)
    last = len(one.tile.shape) - 1
    along = list(steps) == [(last, 1 << k) for k in range(len(steps))]
    vector = None if along else tuple(_unit(step, last + 1) for step in steps)
    own = one.access
    return msgspec.structs.replace(found, weight=own.weight, vector=vector, notes=own.notes)


def _unit(step: Step, dims: int) -> tuple[int, ...]:
    return tuple(step[1] if d == step[0] else 0 for d in range(dims))


def _matrices(
    one: Owned, steps: Sequence[Step], size: int, device: Device
) -> Iterator[tuple[IntArray, bool]]:
    """The first elements of the rows that matrix instructions would move, and whether they transpose.

    Of shape (rounds * warps, matrices of a lane, 8).
    """
    in_row = (ROW_BYTES // size).bit_length() - 1
    if size > _WORD_BYTES or size << in_row != ROW_BYTES or len(steps) < in_row:
        return
    if len(one.element) % device.lanes or (one.element < 0).any() or device.lanes != 4 * _ROWS:
        return
    in_word = (_WORD_BYTES // size).bit_length() - 1
    row = _distances(steps[:in_row], one.tile.shape)

    def is_start(element: IntArray) -> bool:
        """Whether rows start there."""
        strides = [(dim, far, math.prod(one.tile.shape[dim + 1 :])) for dim, far in steps[:in_row]]
        return not any((element // stride % one.tile.shape[dim] & far).any() for dim, far, stride in strides)

    if set(steps[:in_word]) <= one.steps:
        heads = one.heads(steps[:in_word])
        lanes = heads.T.reshape(heads.shape[1], -1, _ROWS, 4)
        if is_start(lanes[..., 0]) and (lanes == lanes[..., :1] + row[:: 1 << in_word]).all():
            yield lanes[..., 0].transpose(1, 0, 2), False
    if size != 2:
        return
    for dim, far in sorted(one.steps - {*steps[:in_row]}, key=one.distance):
        heads = one.heads([(dim, far)])
        lanes = heads.T.reshape(heads.shape[1], -1, _ROWS, 4)  # row of the matrix's transpose, pair of rows
        first = lanes[:, :, 0]
        if is_start(first) and (lanes == first[:, :, None] + row[:, None]).all():
            pairs = np.stack([first, first + far * math.prod(one.tile.shape[dim + 1 :])], axis=-1)
            yield pairs.reshape(*pairs.shape[:2], _ROWS).transpose(1, 0, 2), True
            return


def _of_rows(
    one: Owned, op: str, rows: IntArray, together: int, steps: Sequence[Step], head: Problem, device: Device
) -> Access:
    warps, matrices, _ = rows.shape
    lanes = np.full((warps, matrices // together, device.lanes), -1, np.int64)
    lanes[..., : _ROWS * together] = rows.reshape(warps, matrices // together, -1)
    lanes[..., _ROWS * together :] = lanes[..., :1]  # they take part, and give no address
    start = lanes.transpose(0, 2, 1).reshape(warps * device.lanes, -1)
    in_row = (ROW_BYTES // one.tile.storage.element_bytes).bit_length() - 1
    return _written(one, op, None, steps[:in_row], start, head, device)


def moved(access: Access, rounds: int, problem: Problem, device: Device) -> IntArray:
    """What each thread moves by an access with its instructions given: as `Owned.element`, but rising.

    Which lanes get what of a matrix is in the PTX ISA, under ldmatrix.
    """
    lanes = trace(msgspec.structs.replace(problem, accesses=(access,)), device).accesses[0]
    offsets = _distances(steps_of(access, "accesses[0]", problem.tile), problem.tile.shape)
    operation, warps = lanes.operation, -(-problem.threads // device.lanes)
    start = np.where(lanes.active, lanes.element, -1)
    if operation.matrices:
        each = _WORD_BYTES // problem.tile.storage.element_bytes
        lane, part = np.arange(device.lanes)[:, None], np.arange(each)
        row, place = lane // 4, each * (lane % 4) + part
        if operation.transposed:
            row, place = each * (lane % 4) + part, lane // 4 + 0 * part
        rows = start[:, : _ROWS * operation.matrices].reshape(len(start), operation.matrices, _ROWS)
        element = rows[:, :, row + 0 * part] + offsets[place]  # (instructions, matrices, lanes, each)
        element = element.transpose(0, 2, 1, 3).reshape(len(start), device.lanes, -1)
    else:
        element = np.where(start[..., None] >= 0, start[..., None] + offsets, -1)
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
    return np.sort(_each_once(element), axis=1)


def _distances(steps: Sequence[Step], shape: Sequence[int]) -> IntArray:
    """From the first element of a vector to each, row by row of the tile."""
    found = np.zeros(1, np.int64)
    for dim, far in steps:
        found = np.concatenate([found, found + far * math.prod(shape[dim + 1 :])])
    return found
