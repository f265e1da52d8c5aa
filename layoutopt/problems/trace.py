"""Accesses to lanes: which element every lane of every warp instruction touches.

Both the model and the conflict engine start from these arrays; what they do with them is their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from layoutopt.errors import ExpressionError, ProblemFileError
from layoutopt.expressions.grammar import evaluate, parse
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation, parse_operation
from layoutopt.problems.types import Access, Problem, Tile

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MAX_LANE_ACCESSES: Final = 1 << 24
MAX_WEIGHT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LaneTrace:
    """Every warp instruction of one access.

    Instructions are ordered by iteration (the last loop variable fastest), then by warp.

    Attributes:
        name: the access.
        op: as spelled in the file.
        operation: what the spelling means.
        element: int64, shape (instructions, lanes): row-major index, in the tile, of the first
            element that the lane touches. 0 where inactive.
        active: bool, same shape.
        weight: int64, shape (instructions,), in units of `Trace.weight_unit`.
        width_elements: elements that one lane covers, along the last dimension.
    """

    name: str
    op: str
    operation: Operation
    element: IntArray
    active: BoolArray
    weight: IntArray
    width_elements: int


@dataclass(frozen=True, slots=True)
class Trace:
    """All accesses of a problem; a weight of 1 in the file is `weight_unit` here."""

    accesses: tuple[LaneTrace, ...]
    weight_unit: int


def trace(problem: Problem, device: Device) -> Trace:
    """Evaluate every access of `problem` over all its threads and iterations.

    Raises:
        ProblemFileError: an op, width, expression or coordinate is wrong; index errors name the
            access, the thread and the iteration.
    """
    total = 0
    parts = []
    for i, access in enumerate(problem.accesses):
        if isinstance(access.bytes, tuple):
            raise ProblemFileError(f"accesses[{i}].bytes", "a choice of widths is not supported here")
        if access.any:
            raise ProblemFileError(
                f"accesses[{i}].any", "values known only at run time are not supported here"
            )
        total += math.prod(access.loops.values()) * -(-problem.threads // device.lanes) * device.lanes
        if total > MAX_LANE_ACCESSES:
            raise ProblemFileError(
                f"accesses[{i}].for", f"more than {MAX_LANE_ACCESSES} lane accesses in all; shorten the loops"
            )
        parts.append(_trace_access(access, i, problem, device))
    unit = math.lcm(*(w.denominator for _, weights in parts for w in weights))
    if unit > MAX_WEIGHT:
        raise ProblemFileError(
            "accesses", f"weights need a common denominator of {unit}; at most {MAX_WEIGHT}"
        )
    warps = -(-problem.threads // device.lanes)
    accesses = []
    for part, weights in parts:
        scaled = np.repeat(np.array([int(w * unit) for w in weights], np.int64), warps)
        accesses.append(
            LaneTrace(
                part.name, part.op, part.operation, part.element, part.active, scaled, part.width_elements
            )
        )
    return Trace(tuple(accesses), unit)


def expression_ranges(access: Access, problem: Problem, lanes: int) -> dict[str, tuple[int, int]]:
    """The range, ends included, of every variable that the access's expressions may use."""
    return {
        "tid": (0, problem.threads - 1),
        "lane": (0, min(problem.threads, lanes) - 1),
        "warp": (0, (problem.threads - 1) // lanes),
        **{name: (0, trips - 1) for name, trips in access.loops.items()},
    }


def environment(access: Access, threads: int, lanes: int) -> dict[str, IntArray]:
    """Values of every variable that the access's expressions may use.

    Returns:
        int64 arrays that broadcast to shape (iterations, threads); the last loop variable is fastest.

    Raises:
        ProblemFileError: the loops run too often.
    """
    tid = np.arange(threads, dtype=np.int64)[None, :]
    return {"tid": tid, "lane": tid % lanes, "warp": tid // lanes, **_loop_values(access)}


def _trace_access(
    access: Access, i: int, problem: Problem, device: Device
) -> tuple[LaneTrace, list[Fraction]]:
    field = f"accesses[{i}]"
    tile = problem.tile
    try:
        operation = parse_operation(access.op, access.single_width)
    except ValueError as error:
        raise ProblemFileError(f"{field}.op", str(error)) from None
    try:
        device.rule(operation)
    except ProblemFileError as error:
        raise ProblemFileError(f"{field}.op", error.reason) from None
    width = operation.width_bytes
    if width & (width - 1):
        raise ProblemFileError(f"{field}.bytes", f"no layout is searched for accesses of {width} bytes")
    if 8 * width > tile.element_bits and 8 * width % tile.element_bits:
        raise ProblemFileError(
            f"{field}.bytes", f"{width} bytes are no whole number of {tile.element_bytes}-byte elements"
        )

    env = environment(access, problem.threads, device.lanes)
    loops = {name: env[name] for name in access.loops}
    iterations = math.prod(access.loops.values())
    shape = (iterations, problem.threads)

    def spot(position: int) -> str:
        iteration, thread = divmod(position, problem.threads)
        values = "".join(f", {name} = {int(v[iteration, 0])}" for name, v in loops.items())
        return f"access {access.name!r}, thread {thread}{values}"

    active = np.ones(shape, bool)
    if access.where is not None:
        value = _evaluate(access.where, f"{field}.where", env, None, spot)
        active = np.broadcast_to(value != 0, shape).copy()
    if operation.matrices:
        _check_whole_warps(active, f"{field}.where", access, problem, device, operation, spot)
        active &= env["lane"] < 8 * operation.matrices

    covered = max(1, 8 * width // tile.element_bits)
    flat = np.zeros(shape, np.int64)
    for d, text in enumerate(access.index):
        place = f"{field}.index[{d}]"
        value = np.broadcast_to(_evaluate(str(text), place, env, active, spot), shape)
        span = covered if d == len(tile.shape) - 1 else 1
        if span > 1 and (bad := active & (value % span != 0)).any():
            at = int(bad.argmax())
            raise ProblemFileError(
                place,
                f"a {width}-byte access starts at a multiple of {span} elements, "
                f"not at {int(value.flat[at])} ({spot(at)})",
            )
        if (bad := active & ((value < 0) | (value > tile.shape[d] - span))).any():
            at = int(bad.argmax())
            raise ProblemFileError(place, _outside(int(value.flat[at]), d, span, tile, spot(at)))
        flat = flat * tile.shape[d] + value
    flat = np.where(active, flat, 0)

    pad = -problem.threads % device.lanes
    rows = (-1, device.lanes)
    element = np.pad(flat, ((0, 0), (0, pad))).reshape(rows)
    mask = np.pad(active, ((0, 0), (0, pad))).reshape(rows)
    lane_trace = LaneTrace(access.name, access.op, operation, element, mask, np.zeros(0, np.int64), covered)
    return lane_trace, _weights(access, f"{field}.weight", loops, iterations)


def _loop_values(access: Access) -> dict[str, IntArray]:
    trips = list(access.loops.values())
    if math.prod(trips) > MAX_LANE_ACCESSES:
        raise ProblemFileError(
            "", f"the loops of access {access.name!r} run {math.prod(trips)} times; too often"
        )
    grids = np.indices(trips, dtype=np.int64).reshape(len(trips), math.prod(trips))
    return {name: grid[:, None] for name, grid in zip(access.loops, grids, strict=True)}


def _evaluate(
    text: str, field: str, env: dict[str, IntArray], where: BoolArray | None, spot: Callable[[int], str]
) -> IntArray:
    try:
        node = parse(text, frozenset(env))
        return evaluate(node, env, where)
    except ExpressionError as error:
        place = f" ({spot(error.position)})" if error.position is not None else ""
        raise ExpressionError(error.reason + place, error.position, field) from None


def _outside(value: int, dim: int, span: int, tile: Tile, spot: str) -> str:
    what = f"{value}" if span == 1 else f"{value}..{value + span - 1}"
    return f"x{dim} must lie in 0..{tile.shape[dim] - 1}, not {what} ({spot})"


def _check_whole_warps(
    active: BoolArray,
    field: str,
    access: Access,
    problem: Problem,
    device: Device,
    operation: Operation,
    spot: Callable[[int], str],
) -> None:
    """Matrix instructions are executed by whole warps, or not at all."""
    if problem.threads % device.lanes:
        raise ProblemFileError(
            "threads", f"{access.op} needs whole warps of {device.lanes}, not {problem.threads} threads"
        )
    warps = active.reshape(-1, device.lanes)
    torn = warps.any(axis=1) & ~warps.all(axis=1)
    if torn.any():
        at = int(torn.argmax()) * device.lanes
        raise ProblemFileError(
            field, f"{access.op} is executed by all lanes of a warp or by none ({spot(at)})"
        )


def _weights(access: Access, field: str, loops: dict[str, IntArray], iterations: int) -> list[Fraction]:
    if isinstance(access.weight, str):
        try:
            values = evaluate(parse(access.weight, frozenset(loops)), loops)
        except ExpressionError as error:
            raise ExpressionError(error.reason, error.position, field) from None
        weights = [Fraction(int(v)) for v in np.broadcast_to(values, (iterations, 1)).ravel()]
    else:
        weights = [Fraction(str(access.weight))] * iterations
    if not all(0 <= w <= MAX_WEIGHT for w in weights):
        raise ProblemFileError(field, f"a weight lies in 0..{MAX_WEIGHT}")
    return weights
