"""A kernel in PTX with better layouts put in: found from its machine code, written, assembled and compared.

Layouts are those for the accesses that the assembler makes. A layout stays in only where the machine code of
the new text takes fewer wavefronts than that of the old one, and each thread reaches the same bytes, moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from layoutopt.errors import LayoutError, ProblemFileError, VerificationError
from layoutopt.files.file import tile_from_data
from layoutopt.ground.budget import Budget, spending
from layoutopt.hardware.devices import Device
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.program import Array, Memory, Program
from layoutopt.kernels.ptx.edit import patched, widest
from layoutopt.kernels.ptx.flow import same_array
from layoutopt.kernels.ptx.text import Module, read_ptx
from layoutopt.kernels.question.arrays import UsedArray
from layoutopt.kernels.question.problem_data import Question
from layoutopt.kernels.read.files import from_ptx
from layoutopt.layout.layout import Layout
from layoutopt.layout.remap import Remap, remap_of
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Constraints, Problem
from layoutopt.search.block import solve
from layoutopt.study.moved import Part, astray, costs, touching, why_not_better

# What can be put into compiled code.
FAMILIES: Final = ("none", "pad", "interval", "xor")
# Shapes that an array may have, beside the declared one and one line; layouts that are assembled.
MOST_SHAPES: Final = 2
MOST_TRIED: Final = 3


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
        before, after: the launch of the machine code, evaluated.
        gpu: whose banks count.
    """

    text: str
    arrays: tuple[Moved, ...]
    before: Evaluation
    after: Evaluation
    gpu: Device

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory that the launch needs now."""
        return self.after.launch.shared_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """What to patch.

    Attributes:
        launch: the launch that it is patched for.
        gpu: whose banks count.
        target: what the PTX is assembled for; None for the GPU that it names.
        array: the one array to move; None for all that have conflicts.
        shape: of its tile.
        layout: to put in; found by the solver if None.
        time_limit: seconds to search for the layouts of all arrays.
        most_steps: of an evaluation.
    """

    launch: Launch
    gpu: Device
    target: str | None = None
    array: str | None = None
    shape: tuple[int, ...] | None = None
    layout: Layout | None = None
    time_limit: float = 10.0
    most_steps: int = 1_000_000


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The file as it stands, and what the launch of its machine code does."""

    module: Module
    evaluation: Evaluation

    @classmethod
    def launched(cls, module: Module, program: Program, launch: Launch, request: Request) -> _Kernel:
        """A program of the file, evaluated."""
        return cls(module, evaluate(program, launch, request.gpu, most_steps=request.most_steps))

    def arrays(self) -> dict[str, Array]:
        """The shared arrays of the kernel by their names in the PTX, as they lie in the machine code."""
        program = self.evaluation.program
        found = {array.symbol: array for array in program.arrays}
        text = self.module.text[slice(*self.module.functions[program.name].span)]
        dynamic = [v for v in self.module.variables if v.extern and v.name in text]
        for variable in dynamic[:1]:  # the others begin where it does
            every = max(variable.align, 16)
            start = -(-(program.static_bytes or 0) // every) * every
            size = self.evaluation.launch.shared_bytes
            found[variable.name] = Array(variable.name, start, size, variable.name)
        return found

    def steps(self, array: Array) -> dict[int, Memory]:
        """Instructions that touch an array, by index."""
        found = touching(self.evaluation, array)
        for index in found:
            tally, step = self.evaluation.tallies[index], self.evaluation.program.steps[index]
            if tally.low < array.start or tally.high > array.start + array.size:
                beyond = f"{step.text} reaches beyond the array: it cannot be moved"
                raise ProblemFileError(array.name, beyond)
        return found


def patch(text: str, origin: str, program: Program, request: Request) -> Patch:
    """Move the shared arrays of a kernel.

    Args:
        text: of a file of PTX.
        origin: its name, for messages.
        program: the kernel in it, assembled (`kernels.read.files.from_ptx`).
        request: what to move, and how.

    Raises:
        ProblemFileError: the array cannot be moved, or nothing is known of it.
        VerificationError: the patched kernel does not do what was meant; nothing is returned.
        MachineError: there is no ptxas.
        OutOfTime: the time to read and evaluate is over.
    """
    module = read_ptx(text, origin)
    first = now = _Kernel.launched(module, program, request.launch, request)
    chosen = _chosen(first, request)
    moved: list[Moved] = []
    search = Budget(request.time_limit)
    for number, symbol in enumerate(chosen):
        share = search.part(1 / (len(chosen) - number)).seconds or 0.0
        one, now = _move(now, symbol, replace(request, time_limit=share))
        moved.append(one)
    return Patch(now.module.text, tuple(moved), first.evaluation, now.evaluation, request.gpu)


def _chosen(kernel: _Kernel, request: Request) -> list[str]:
    """Symbols of the arrays to look at."""
    arrays = kernel.arrays()
    if request.array is not None:
        found = [
            symbol
            for symbol, array in arrays.items()
            if request.array in {array.name} | same_array(kernel.module, symbol)
        ]
        if len(found) != 1:
            names = ", ".join(array.name for array in arrays.values()) or "none"
            raise ProblemFileError("--array", f"expected one of the arrays ({names}), got {request.array!r}")
        return found
    if not arrays:
        name = kernel.evaluation.program.name
        raise ProblemFileError(name, "expected a kernel with arrays in shared memory, got none that is known")
    return list(arrays)


def _move(now: _Kernel, symbol: str, request: Request) -> tuple[Moved, _Kernel]:
    """One array with the best layout that is found for it, if that is to move it."""
    array = now.arrays()[symbol]
    if array.size == 0:
        raise ProblemFileError("--shared", f"expected the bytes of the dynamic array {array.name}, got 0")
    tallies = [now.evaluation.tallies[k] for k in now.steps(array)]
    stays = Moved(array.name, symbol, None, None, None, "no conflicts", array.size, array.size)
    if request.layout is not None:
        proposed = iter([replace(stays, layout=request.layout)])
    elif request.array is None and all(tally.wavefronts == tally.phases for tally in tallies):
        return stays, now
    else:
        proposed = _found(now, array, stays, request)
    best: tuple[Moved, _Kernel] | None = None
    for one in proposed:
        if one.layout is None:
            stays = replace(one, reason="no layout was found")
            continue
        try:
            remap = remap_of(one.layout)
        except LayoutError as error:
            raise ProblemFileError(array.name, str(error)) from None
        later, why = None, "no layout of pads and XOR is better"
        if remap.moves:
            later, why = _with(now, symbol, remap, request)
        stays = replace(one, layout=None, reason=why)
        if later is None or (best is not None and costs(best[1].evaluation) <= costs(later.evaluation)):
            continue
        best = replace(one, reason="", bytes_after=max(array.size, remap.size)), later
        if one.result is not None and one.result.excess == 0:
            break
    return best or (stays, now)


def _found(now: _Kernel, array: Array, stays: Moved, request: Request) -> Iterator[Moved]:
    """Answers for the shapes that the array may have, the best first: a few that keep every access as it is,
    then a few that take apart what the assembler joined.
    """
    actions = now.steps(array)
    used = UsedArray(array, tuple(actions))
    narrow = widest(now.module, array.symbol, now.evaluation.program.name)
    wide = any(a.kind in ("load", "store") and a.width_bytes > narrow for a in actions.values())
    search = Budget(request.time_limit)
    for most in (None, narrow) if wide else (None,):
        part = search.part(0.5 if wide and most is None else 1)
        asked = list(_problems(Question(now.evaluation, used, request.shape, most), array.size, request))
        found: list[tuple[tuple[float, float], Moved]] = []
        for number, (problem, written) in enumerate(asked):
            with spending(part.part(1 / (len(asked) - number))):
                result = solve(problem, target=request.gpu, time_limit=None)
            # Loops of a shape that was read off addresses count executions: no variable of the source does.
            in_source = written or not any(access.loops for access in problem.accesses)
            cost = (math.inf, math.inf)
            if result.has_layout:
                cost = float(result.excess or 0), float(result.bytes or 0)
            one = replace(stays, problem=problem, result=result, layout=result.layout, in_source=in_source)
            found.append((cost, one))
            if cost <= (0, array.size):
                break
        yield from [one for _, one in sorted(found, key=lambda pair: pair[0])][:MOST_TRIED]


def _problems(question: Question, size: int, request: Request) -> Iterator[tuple[Problem, bool]]:
    """An array as problems of different shapes, and whether each is in the source's words."""
    shapes = [question.extents]
    if request.shape is None:
        rows = [one for one in question.pitches() if math.prod(one) * question.element_bytes == size]
        flat = (size // question.element_bytes,)
        shapes = [*(shapes if shapes[0] != flat else []), *rows[:MOST_SHAPES], flat]
    limits = Constraints(families=FAMILIES, max_bytes=size + size // 4)
    for shape in dict.fromkeys(shapes):
        problem = tile_from_data(question.data(shape, trimmed=False))
        written = shape == question.extents
        yield msgspec.structs.replace(problem, layout=limits, published=None), written


def _with(now: _Kernel, symbol: str, remap: Remap, request: Request) -> tuple[_Kernel | None, str]:
    """The kernel with an array moved; None, and why, where that takes more wavefronts or cannot be had.

    Raises:
        VerificationError: the machine code reaches other bytes.
    """
    entry, launch = now.evaluation.program.name, now.evaluation.launch
    try:
        text = patched(now.module, symbol, remap, entry)
        programs = from_ptx(text, request.target)
    except ProblemFileError as error:
        if request.layout is not None:
            raise
        return None, str(error)
    module = read_ptx(text, "the patched PTX")
    if now.arrays()[symbol].start >= (now.evaluation.program.static_bytes or 0):
        launch = replace(launch, shared_bytes=max(launch.shared_bytes, remap.size))
    program = next(one for one in programs if one.name == entry).read()
    # The launch may name parameters as the source does.
    program = replace(program, parameters=now.evaluation.program.parameters)
    later = _Kernel.launched(module, program, launch, request)
    if (why := why_not_better(now.evaluation, later.evaluation)) is not None:
        return None, why
    arrays = now.arrays()
    parts = (Part(arrays[s], new, remap.apply if s == symbol else None) for s, new in later.arrays().items())
    if (name := astray(now.evaluation, later.evaluation, parts, barriers=False)) is not None:
        raise VerificationError(f"{name}: the patched kernel reaches other bytes")
    return later, ""
