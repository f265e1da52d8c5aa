"""A kernel in PTX with better layouts put in: found, written, evaluated again and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from layoutopt.errors import LayoutError, ProblemFileError, VerificationError
from layoutopt.files.file import tile_from_data
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.kernels.arrays import UsedArray
from layoutopt.kernels.evaluate import Evaluation, evaluate
from layoutopt.kernels.launch import Launch
from layoutopt.kernels.problem_data import array_problem
from layoutopt.kernels.program import Array, Memory
from layoutopt.kernels.ptx_patch import patched
from layoutopt.kernels.ptx_program import program_of, shared_places, source_name
from layoutopt.kernels.ptx_text import Function, Module, read_ptx
from layoutopt.kernels.remap import Remap, remap_of
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Constraints, Problem
from layoutopt.search.solve import solve
from layoutopt.study.kernel_problem import likely_shapes, problem_of

# What can be put into compiled code.
FAMILIES: Final = ("none", "pad", "interval", "xor")


@dataclass(frozen=True, slots=True)
class Moved:
    """One array.

    Attributes:
        name: of the source.
        symbol: of the PTX.
        problem: what was asked.
        result: the answer of the solver, where it was asked.
        layout: what was put in; None where the array stays as it is.
        reason: why it stays.
        bytes_before, bytes_after: of the array.
        in_source: the variables of the problem's formulas are those of the source, not invented ones.
    """

    name: str
    symbol: str
    problem: Problem | None
    result: Result | None
    layout: Layout | None
    reason: str
    bytes_before: int
    bytes_after: int
    in_source: bool = True


@dataclass(frozen=True, slots=True)
class Patch:
    """The patched file and what it does.

    Attributes:
        text: of the file.
        arrays: those that were looked at.
        before, after: the launch, evaluated.
        shared_bytes: dynamic shared memory that the launch needs now.
        gpu: whose banks count.
    """

    text: str
    arrays: tuple[Moved, ...]
    before: Evaluation
    after: Evaluation
    shared_bytes: int
    gpu: Device


@dataclass(frozen=True, slots=True)
class Request:
    """What to patch.

    Attributes:
        launch: the launch that it is patched for.
        gpu: whose banks count.
        array: the one array to move; None for all that have conflicts.
        shape: of its tile.
        layout: to put in; found by the solver if None.
        time_limit: seconds to search for the layouts of all arrays.
        budget: for reading and evaluating; None for no limit.
        most_steps: of an evaluation.
    """

    launch: Launch
    gpu: Device
    array: str | None = None
    shape: tuple[int, ...] | None = None
    layout: Layout | None = None
    time_limit: float = 10.0
    budget: Budget | None = None
    most_steps: int = 1_000_000
    progress: Callable[[str], None] = lambda _: None


def patch(text: str, origin: str, entry: str, request: Request) -> Patch:
    """Move the shared arrays of a kernel.

    Args:
        text: of a file of PTX.
        origin: its name, for messages.
        entry: name of the kernel in it.
        request: what to move, and how.

    Raises:
        ProblemFileError: the array cannot be moved, or nothing is known of it.
        VerificationError: the patched kernel does not do what was meant; nothing is returned.
        OutOfTime: the budget of the request is spent.
    """
    module = read_ptx(text, origin, request.budget)
    before = _evaluated(module, entry, request, request.launch)
    places = shared_places(module, module.functions[entry])
    chosen = _chosen(places, request, before)
    moved: list[Moved] = []
    remaps: dict[str, Remap] = {}
    search = Budget(request.time_limit)
    for number, symbol in enumerate(chosen):
        share = search.part(1 / (len(chosen) - number)).seconds or 0.0
        one, remap = _move(module, symbol, places, replace(request, time_limit=share), before)
        moved.append(one)
        if remap is not None:
            module = read_ptx(patched(module, symbol, remap, entry), origin, request.budget)
            remaps[symbol] = remap
    dynamic = [remap.size for symbol, remap in remaps.items() if places[symbol][1] == 0]
    shared = max([request.launch.shared_bytes, *dynamic])
    launch = Launch(
        block=request.launch.block,
        grid=request.launch.grid,
        arguments=request.launch.arguments,
        shared_bytes=shared,
        buffers=request.launch.buffers,
    )
    after = _evaluated(module, entry, request, launch) if remaps else before
    _compare(before, after, places, shared_places(module, module.functions[entry]), remaps, request)
    return Patch(module.text, tuple(moved), before, after, shared, request.gpu)


def _evaluated(module: Module, entry: str, request: Request, launch: Launch) -> Evaluation:
    program = program_of(module, _entry(module, entry), request.budget)
    most, budget = request.most_steps, request.budget
    return evaluate(program, launch, request.gpu, most_steps=most, budget=budget, every_round=True)


def _entry(module: Module, entry: str) -> Function:
    function = module.functions.get(entry)
    if function is None or function.body is None or not function.entry:
        raise ProblemFileError("--entry", f"no kernel {entry!r} in the PTX")
    return function


def _chosen(places: dict[str, tuple[int, int]], request: Request, before: Evaluation) -> list[str]:
    """Symbols of the arrays to look at."""
    if request.array is not None:
        found = [s for s in places if request.array in (s, source_name(s))]
        if len(found) != 1:
            names = ", ".join(source_name(s) for s in places) or "none"
            raise ProblemFileError("--array", f"expected one of the arrays ({names}), got {request.array!r}")
        return found
    if not places:
        raise ProblemFileError(
            before.program.name, "expected a kernel with arrays in shared memory, got one without"
        )
    return list(places)


def _steps_of(array: Array, evaluation: Evaluation) -> list[int]:
    """Instructions that touch an array, by index."""
    found = []
    for index, tally in evaluation.tallies.items():
        action = evaluation.program.steps[index].action
        if not isinstance(action, Memory) or action.operation is None or tally.high <= tally.low:
            continue
        if tally.low < array.start + array.size and array.start < tally.high:
            if tally.low < array.start or tally.high > array.start + array.size:
                raise ProblemFileError(
                    array.name,
                    f"{evaluation.program.steps[index].text} reaches beyond the array: it cannot be moved",
                )
            found.append(index)
    return sorted(found)


def _move(
    module: Module, symbol: str, places: dict[str, tuple[int, int]], request: Request, before: Evaluation
) -> tuple[Moved, Remap | None]:
    """The layout of one array, if it is to move."""
    start, size = places[symbol]
    array = Array(source_name(symbol), start, size or request.launch.shared_bytes)
    if array.size == 0:
        raise ProblemFileError("--shared", f"expected the bytes of the dynamic array {array.name}, got 0")
    steps = _steps_of(array, before)
    conflicts = sum(before.tallies[k].wavefronts - before.tallies[k].phases for k in steps)
    problem: Problem | None = None
    result: Result | None = None
    in_source = True
    layout = request.layout
    if layout is None:
        if request.array is None and conflicts == 0:
            return Moved(array.name, symbol, None, None, None, "no conflicts", array.size, array.size), None
        problem, result, written = _found(array, steps, request, before)
        # Loops of a question that was read off addresses count executions: the source has no such variable.
        in_source = written or not any(access.loops for access in problem.accesses)
        layout = result.layout
    if layout is None:
        return Moved(
            array.name, symbol, problem, result, None, "no layout was found", array.size, array.size
        ), None
    try:
        remap = remap_of(layout)
    except LayoutError as error:
        raise ProblemFileError(array.name, str(error)) from None
    if not remap.moves:
        reason = "no layout of pads and XOR is better"
        return Moved(array.name, symbol, problem, result, None, reason, array.size, array.size), None
    _check_whole(array, remap, steps, before)
    grown = max(array.size, remap.size)
    return Moved(array.name, symbol, problem, result, layout, "", array.size, grown, in_source), remap


def _found(
    array: Array, steps: Sequence[int], request: Request, before: Evaluation
) -> tuple[Problem, Result, bool]:
    """The best layout over the shapes that the array may have, the question that it answers, and whether
    that is in the words of the source.
    """
    written = _as_written(before, array, steps, request.shape)
    shapes: list[tuple[int, ...] | None] = [request.shape]
    if request.shape is None:
        shapes = [*likely_shapes(before, array, steps), None]
        if written is not None and written.tile.shape not in shapes:
            shapes.insert(0, written.tile.shape)
    best: tuple[tuple[float, float], Problem, Result] | None = None
    for shape in shapes:
        try:
            problem = _question(array, steps, shape, request, before, written)
            result = solve(problem, time_limit=request.time_limit / len(shapes), target=request.gpu)
        except ProblemFileError:  # an access goes beyond a row of a shape that nobody asked for
            if request.shape is not None or (shape is None and best is None):
                raise
            continue
        found = result.layout is not None
        cost = (float(result.excess or 0), float(result.bytes or 0)) if found else (math.inf, math.inf)
        if best is None or cost < best[0]:
            best = (cost, problem, result)
        if best[0][0] == 0 and best[0][1] <= array.size:
            break
    assert best is not None
    _, problem, result = best
    same = written is not None and written.tile.shape == problem.tile.shape
    if written is not None and same and written.tile.element_bytes == problem.tile.element_bytes:
        return written, result, True
    return problem, result, False


def _question(
    array: Array,
    steps: Sequence[int],
    shape: tuple[int, ...] | None,
    request: Request,
    before: Evaluation,
    written: Problem | None,
) -> Problem:
    """What is asked of a shape: as written where all bytes of the array are its elements, which accesses may
    split; else read off the addresses.
    """
    most = array.size + array.size // 4
    if written is not None and shape == written.tile.shape:
        element = written.tile.element_bytes
        narrow = any(isinstance(a.bytes, int) and a.bytes < element for a in written.accesses)
        if narrow and math.prod(shape) * element == array.size:
            limits = Constraints(families=FAMILIES, max_bytes=most)
            return msgspec.structs.replace(written, layout=limits)
    return problem_of(
        before, array, steps, shape=shape, families=FAMILIES, max_bytes=most, target=request.gpu.name
    )


def _as_written(
    before: Evaluation, array: Array, steps: Sequence[int], shape: tuple[int, ...] | None
) -> Problem | None:
    """The same question in the words of the source, where its accesses have formulas."""
    try:
        return tile_from_data(array_problem(before, UsedArray(array, tuple(steps)), shape))
    except ProblemFileError:
        return None


def _check_whole(array: Array, remap: Remap, steps: Sequence[int], before: Evaluation) -> None:
    """Every access stays whole at every offset that its width allows."""
    for k in steps:
        action = before.program.steps[k].action
        assert isinstance(action, Memory)
        width = action.width_bytes
        offsets = np.arange(0, array.size // width * width, width, dtype=np.int64)
        moved = remap.apply(offsets)
        last = remap.apply(offsets + width - 1)
        if (last - moved != width - 1).any() or (moved % width).any():
            raise ProblemFileError(
                array.name,
                f"{before.program.steps[k].text.split()[0]} needs {width} bytes together at every place",
            )


def _compare(
    before: Evaluation,
    after: Evaluation,
    old: dict[str, tuple[int, int]],
    new: dict[str, tuple[int, int]],
    remaps: dict[str, Remap],
    request: Request,
) -> None:
    """Every address of the patched kernel is the old one, moved.

    Raises:
        VerificationError: one is not.
    """
    first, second = (
        [
            k
            for k, s in enumerate(e.program.steps)
            if isinstance(s.action, Memory) and s.action.space == "shared"
        ]
        for e in (before, after)
    )
    if len(first) != len(second):
        raise VerificationError("the patched kernel has other accesses")
    for a, b in zip(first, second, strict=True):
        for x, y in zip(before.traces.get(a, []), after.traces.get(b, []), strict=False):
            expected = np.broadcast_to(x.address, x.lanes.shape).copy()
            for symbol, (start, size) in old.items():
                size = size or request.launch.shared_bytes
                inside = (expected >= start) & (expected < start + size) & x.lanes
                remap = remaps.get(symbol)
                offsets = np.where(inside, expected - start, 0)
                there = new[symbol][0] + (offsets if remap is None else remap.apply(offsets))
                expected = np.where(inside, -1 - there, expected)
            expected = np.where(expected < 0, -1 - expected, expected)
            same = x.lanes.shape == y.lanes.shape and bool((x.lanes == y.lanes).all())
            if not same or bool((np.where(x.lanes, expected - y.address, 0) != 0).any()):
                raise VerificationError(
                    f"{before.program.steps[a].text}: the patched kernel reaches other bytes"
                )
