"""Accesses to lanes: which element every lane of every warp instruction touches.

Both the model and the conflict engine start from these arrays; what they do with them is their own.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.view import vector_steps
from layoutopt.errors import ExpressionError, ProblemFileError, under
from layoutopt.expressions.grammar import evaluate, parse
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import checkpoint
from layoutopt.ground.escape import shown
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.hardware.operations import Operation, parse_operation
from layoutopt.problems.types import Access, Problem, Tile

MAX_LANE_ACCESSES: Final = 1 << 24
MAX_WEIGHT: Final = 1_000_000
# Expressions are evaluated for so many lanes together: the arrays of a step then stay in the cache.
_LANES_AT_A_TIME: Final = 1 << 16


class LaneTrace(Struct, frozen=True, dict=True):
    """Every warp instruction of one access.

    Instructions are ordered by iteration (the last loop variable fastest), then by warp.
    """

    name: str  # the access
    op: str  # as spelled in the file
    operation: Operation  # what the spelling means
    rule: PhaseRule  # how the device serves it
    # int64, shape (instructions, lanes): row-major index, in the tile, of the first element that the lane
    # touches. 0 where inactive
    element: IntArray
    active: BoolArray  # bool, same shape
    weight: IntArray  # int64, shape (instructions,), in units of `Trace.weight_unit`
    # Elements that one lane covers, along the last dimension unless the access has a `vector`
    # (`layoutopt.accesses.view`)
    width_elements: int

    @cached_property
    def starts(self) -> IntArray:
        """The elements that are the first of some active lane, rising and each once; not to be written to."""
        used = self.element[self.active]
        marked = np.zeros(int(used.max(initial=-1)) + 1, bool)
        marked[used] = True
        starts = np.flatnonzero(marked)
        starts.flags.writeable = False
        return starts

    @property
    def vectors(self) -> IntArray:
        """The elements that lanes cover from each of `starts` on: int64, shape (starts, width_elements)."""
        return self.starts[:, None] + np.arange(self.width_elements)


class Trace(Struct, frozen=True, eq=False, dict=True):
    """All accesses of a problem; a weight of 1 in the file is `weight_unit` here. Equal only to itself."""

    accesses: tuple[LaneTrace, ...]
    weight_unit: int

    @property
    def taking_part(self) -> tuple[LaneTrace, ...]:
        """The accesses with an active lane: no other binds a layout."""
        return tuple(access for access in self.accesses if access.active.any())

    @property
    def excess(self) -> str:
        """What sums over instructions are called: by weights, or as they are."""
        weighs = any((access.weight != self.weight_unit).any() for access in self.accesses)
        return "weighted excess wavefronts" if weighs else "excess wavefronts"

    @property
    def has_weightless(self) -> bool:
        """Whether some instruction that touches the tile has weight 0."""
        return any(((a.weight == 0) & a.active.any(axis=1)).any() for a in self.accesses)

    @cached_property
    def with_least_weights(self) -> "Trace":
        """The same with weight 1, the least there is, in the place of weight 0; itself where none is 0."""
        if not self.has_weightless:
            return self
        accesses = tuple(replace(a, weight=np.maximum(a.weight, 1)) for a in self.accesses)
        return replace(self, accesses=accesses)


def trace(problem: Problem, device: Device) -> Trace:
    """Every warp instruction of every access, with weights scaled to whole numbers.

    Raises:
        OutOfTime: the time was over before the end.
        ProblemFileError: an op, width, expression or coordinate is wrong; index errors name the
            access, the thread and the iteration.
    """
    warps = -(-problem.threads // device.lanes)
    lane_accesses = 0  # of all accesses so far
    # Weights, a fraction or whole numbers by iteration, are scaled once the denominators of all are known.
    unweighted, weights = [], []
    for i, access in enumerate(problem.accesses):
        with under(f"accesses[{i}]"):
            # `lower.with_widths` and `lower.with_loops` decide these two before.
            if isinstance(access.bytes, tuple):
                raise ProblemFileError("bytes", "a choice of widths is not supported here")
            if access.any:
                raise ProblemFileError("any", "values known only at run time are not supported here")
            lane_accesses += math.prod(access.loops.values()) * warps * device.lanes
            if lane_accesses > MAX_LANE_ACCESSES:
                most = f"of at most {MAX_LANE_ACCESSES}; shorten the loops"
                raise ProblemFileError("for", f"{lane_accesses} lane accesses in all, {most}")
            by_itself = access.hardware is not None
            unweighted.append((_without_lanes if by_itself else _unweighted)(access, problem, device))
            weights.append(Fraction(1) if by_itself else _weights(access))
    unit = math.lcm(*(weight.denominator for weight in weights if isinstance(weight, Fraction)))
    if unit > MAX_WEIGHT:
        wrong = f"weights need a common denominator of {shown(str(unit))}; at most {MAX_WEIGHT}"
        raise ProblemFileError("accesses", wrong)
    accesses = []
    for lanes, weight in zip(unweighted, weights, strict=True):
        if isinstance(weight, Fraction):
            scaled = np.full(len(lanes.element), int(weight * unit), np.int64)
        else:  # for every warp's instruction, the weight of the iteration
            scaled = np.repeat(weight * unit, warps)
        accesses.append(replace(lanes, weight=scaled))
    return Trace(tuple(accesses), unit)


def expression_ranges(threads: int, lanes: int, loops: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """The range, ends included, of every variable that an access's expressions may use.

    Args:
        threads: of the block.
        lanes: of a warp.
        loops: of the access, by trip count.
    """
    return {
        "tid": (0, threads - 1),
        "lane": (0, min(threads, lanes) - 1),
        "warp": (0, (threads - 1) // lanes),
        **{name: (0, trips - 1) for name, trips in loops.items()},
    }


def environment(
    access: Access, threads: int, lanes: int, iterations: range | IntArray | None = None
) -> dict[str, IntArray]:
    """Values of every variable that the access's expressions may use, in these iterations (None for all).

    Returns:
        int64 arrays that broadcast to shape (iterations, threads); the last loop variable is fastest.

    Raises:
        ProblemFileError: the loops run too often.
    """
    tid = np.arange(threads, dtype=np.int64)[None, :]
    trips = tuple(access.loops.values())
    if (total := math.prod(trips)) > MAX_LANE_ACCESSES:
        raise ProblemFileError("", f"the loops of access {access.name!r} run {total} times; too often")
    number = np.arange(total) if iterations is None else np.array(iterations, np.int64)
    # Of one axis: numpy 2.4 unravels a column of more than 8,192 numbers wrongly.
    values = np.unravel_index(number, trips) if trips else ()
    loops = {name: value[:, None] for name, value in zip(access.loops, values, strict=True)}
    return {"tid": tid, "lane": tid % lanes, "warp": tid // lanes, **loops}


def _unweighted(access: Access, problem: Problem, device: Device) -> LaneTrace:
    """The trace of an access that lanes execute, with no weights yet."""
    tile = problem.tile
    operation = _operation(access, tile, device)
    covered = max(1, 8 * operation.width_bytes // tile.element_bits)
    iterations = math.prod(access.loops.values())
    warps = -(-problem.threads // device.lanes)
    element = np.zeros((iterations, warps * device.lanes), np.int64)
    active = np.zeros(element.shape, bool)
    step = max(1, _LANES_AT_A_TIME // problem.threads)
    for start in range(0, iterations, step):
        checkpoint()
        some = range(start, min(iterations, start + step))
        at = slice(some.start, some.stop), slice(0, problem.threads)
        element[at], active[at] = _evaluated(access, problem, device, operation, covered, some)
    rule, rows = device.rule(operation, "op"), (-1, device.lanes)
    by_warp = element.reshape(rows), active.reshape(rows)
    no_weights = np.zeros(0, np.int64)  # yet: `trace` fills them in
    return LaneTrace(access.name, access.op, operation, rule, *by_warp, no_weights, width_elements=covered)


def _without_lanes(access: Access, problem: Problem, device: Device) -> LaneTrace:
    """The trace of an access that the hardware executes by itself: one instruction a warp, no lane active."""
    assert access.hardware is not None
    operation = Operation(access.hardware.engine, 16)
    rule = device.rule(operation, "op")
    none = np.zeros((-(-problem.threads // device.lanes), device.lanes), np.int64)
    active, weight = np.zeros(none.shape, bool), none[:, 0]
    return LaneTrace(access.name, access.op, operation, rule, none, active, weight, width_elements=1)


def _operation(access: Access, tile: Tile, device: Device) -> Operation:
    """What the access's op means, on a device that serves it, for elements of this size."""
    operation = parse_operation(access.op, access.single_width)
    device.rule(operation, "op")
    width = operation.width_bytes
    if width & (width - 1):
        raise ProblemFileError(
            "bytes", f"accesses of {width} bytes, no power of two, are counted by `layoutopt count` alone"
        )
    if 8 * width > tile.element_bits and 8 * width % tile.element_bits:
        wrong = f"{width} bytes are no whole number of {tile.element_bytes}-byte elements"
        raise ProblemFileError("bytes", wrong)
    return operation


def _evaluated(
    access: Access, problem: Problem, device: Device, operation: Operation, covered: int, iterations: range
) -> tuple[IntArray, BoolArray]:
    """First elements and activity of all threads in some iterations, both of shape (iterations, threads).

    `covered`: elements of one access along the last dimension.
    """
    tile = problem.tile
    env = environment(access, problem.threads, device.lanes, iterations)
    shape = (len(iterations), problem.threads)

    def who(position: int) -> str:
        """The thread and iteration at a flat position in the arrays, for errors."""
        iteration, thread = divmod(position, problem.threads)
        values = "".join(f", {name} = {int(env[name][iteration, 0])}" for name in access.loops)
        return f"access {access.name!r}, thread {thread}{values}"

    active = np.ones(shape, bool)
    if access.where is not None:
        value = _evaluate(access.where, "where", env, None, who)
        active = np.broadcast_to(value != 0, shape).copy()
    if operation.matrices:
        _check_whole_warps(active, access, problem, device, who)
        active &= env["lane"] < 8 * operation.matrices

    steps = vector_steps(access, tile) if access.vector is not None else []
    element = np.zeros(shape, np.int64)
    for d, text in enumerate(access.index):
        field = f"index[{d}]"
        value = np.broadcast_to(_evaluate(str(text), field, env, active, who), shape)
        # Along the last dimension an access covers `span` elements and starts at a multiple of that. Elements
        # of a `vector` are reached by bits of its coordinates instead, which are 0 where it starts.
        span = covered if d == len(tile.shape) - 1 and access.vector is None else 1
        step_bits = sum(step.distance for step in steps if step.dim == d)
        misaligned = value % span != 0 if span > 1 else value & step_bits != 0
        if (wrong := active & misaligned).any():
            at = int(wrong.argmax())
            start = f"a multiple of {span} elements" if span > 1 else f"the first of its vectors along x{d}"
            must = f"a {operation.width_bytes}-byte access starts at {start}"
            raise ProblemFileError(field, f"{must}, not at {int(value.flat[at])} ({who(at)})")
        if (wrong := active & ((value < 0) | (value > tile.shape[d] - span))).any():
            at = int(wrong.argmax())
            first = int(value.flat[at])
            given = f"{first}" if span == 1 else f"{first}..{first + span - 1}"
            expected = f"x{d} must lie in 0..{tile.shape[d] - 1}"
            raise ProblemFileError(field, f"{expected}, not {given} ({who(at)})")
        element = element * tile.shape[d] + value
    return np.where(active, element, 0), active


def _evaluate(
    text: str, field: str, env: dict[str, IntArray], where: BoolArray | None, who: Callable[[int], str]
) -> IntArray:
    """The values of an expression of the file; errors name the field, the thread and the iteration."""
    try:
        return evaluate(parse(text, frozenset(env)), env, where)
    except ExpressionError as error:
        at = f" ({who(error.position)})" if error.position is not None else ""
        raise ExpressionError(error.reason + at, error.position, field) from None


def _check_whole_warps(
    active: BoolArray, access: Access, problem: Problem, device: Device, who: Callable[[int], str]
) -> None:
    """Matrix instructions are executed by whole warps, or not at all."""
    if problem.threads % device.lanes:
        wrong = f"{access.op} needs whole warps of {device.lanes}, not {problem.threads} threads"
        raise ProblemFileError("threads", wrong, of_file=True)
    warps = active.reshape(-1, device.lanes)
    torn = warps.any(axis=1) & ~warps.all(axis=1)
    if torn.any():
        at = int(torn.argmax()) * device.lanes
        wrong = f"{access.op} is executed by all lanes of a warp or by none ({who(at)})"
        raise ProblemFileError("where", wrong)


def _weights(access: Access) -> IntArray | Fraction:
    """The weight of an access: one number, or int64 of shape (iterations,) where the file has a formula."""
    needed = f"a weight lies in 0..{MAX_WEIGHT}, not at"
    if not isinstance(access.weight, str):
        weight = Fraction(str(access.weight))
        if not 0 <= weight <= MAX_WEIGHT:
            raise ProblemFileError("weight", f"{needed} {access.weight}")
        return weight
    env = environment(access, 1, 1)
    loops = {name: env[name] for name in access.loops}
    with under("weight"):
        values = evaluate(parse(access.weight, frozenset(loops)), loops)
    weights = np.broadcast_to(values, (math.prod(access.loops.values()), 1))[:, 0]
    outside = weights[(weights < 0) | (weights > MAX_WEIGHT)]
    if outside.size:
        raise ProblemFileError("weight", f"{needed} {outside[0]}")
    return weights


def instruction_at(access: Access, row: int, warps: int) -> tuple[int, dict[str, int]]:
    """Warp and loop variables of a row of an access's trace."""
    iteration, warp = divmod(row, warps)
    values = np.unravel_index(iteration, tuple(access.loops.values())) if access.loops else ()
    return warp, dict(zip(access.loops, map(int, values), strict=True))
