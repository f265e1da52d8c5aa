"""A CUDA source with better layouts written in: found from its machine code, written, compiled and compared.

A change stays only where the machine code of the new source takes fewer wavefronts than that of the old one,
each thread reaches the same bytes between the same barriers, moved, and the first block writes the same bytes
to global memory. Where there is a GPU, the launch must write the same bytes there, and not take longer.
"""

from __future__ import annotations

import difflib
import math
import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.ground.budget import Budget, current
from layoutopt.ground.temporary import temporary_folder
from layoutopt.hardware.devices import Device
from layoutopt.hardware.driver import Driver, Kernel, Race
from layoutopt.hardware.occupancy import occupancy
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.evaluate import Followed, evaluate, follow
from layoutopt.kernels.machine.launch import Launch, arguments, element_type
from layoutopt.kernels.program import Array, Program
from layoutopt.kernels.question.arrays import moved_by_itself, used_arrays
from layoutopt.kernels.read.declarations import base_name
from layoutopt.kernels.read.files import DEFAULT_TARGET, Listed, kernels, macros
from layoutopt.source.parse import Source
from layoutopt.study.moved import Part, astray, costs, footprint, touching, why_not_better
from layoutopt.study.source_plans import DYNAMIC, Plan, declaration, plans

Minimise = Literal["time", "excess", "bytes"]
# Bytes of a buffer that is made up, so that outputs can be compared; on a GPU.
_BUFFER_BYTES: Final = 1 << 21
_BUFFER_BYTES_THERE: Final = 1 << 26
# Dynamic memory that a launch may ask for as it is.
_FREELY_ASKED: Final = 48 << 10
# Of the time before, what a change may take on a GPU.
_MOST_TIME: Final = 1.02
_MOST_REASONS: Final = 2
_MOST_INSTANCES: Final = 4


@dataclass(frozen=True, slots=True)
class Request:
    """What to fix, and how it is compiled and launched.

    Attributes:
        launch, gpu: the launch, and whose banks count.
        target, options: for nvcc.
        include: folders of headers, of these options.
        array: the one to change; None for all that have conflicts.
        minimise: of the changes that are right, which is taken.
        most_steps: of an evaluation.
        driver: of the GPU that times what is changed; None to estimate.
    """

    launch: Launch
    gpu: Device
    target: str | None = None
    options: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    array: str | None = None
    minimise: Minimise = "time"
    most_steps: int = 1_000_000
    driver: Driver | None = None


@dataclass(frozen=True, slots=True)
class FixedArray:
    """One array: its layout in words where it was changed, and the reason why not, or what to know."""

    name: str
    offset: str | None
    reason: str
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, slots=True)
class Version:
    """A source compiled, its launch evaluated, and its first block followed.

    Attributes:
        files: those of the author, by path.
        evaluation: of the launch.
        followed: with buffers made up where none are given.
        listed: all kernels of the source.
        race: against the version before, on a GPU.
    """

    files: dict[str, bytes]
    evaluation: Evaluation
    followed: Followed
    listed: tuple[Listed, ...]
    race: Race | None = None

    @property
    def program(self) -> Program:
        """The kernel."""
        return self.evaluation.program

    @property
    def wavefronts(self) -> int:
        """Of the launch."""
        return costs(self.evaluation)[-2]

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return (self.program.static_bytes or 0) + self.evaluation.launch.shared_bytes

    def blocks_per_sm(self, gpu: Device) -> int | None:
        """Resident blocks; None where the chip's limits are not known."""
        target, threads = self.program.target.rstrip("af"), self.evaluation.launch.threads
        found = occupancy(self.shared_bytes, 16, threads, gpu, target, registers=self.program.registers)
        return found.blocks if found is not None else None

    def cycles(self, gpu: Device) -> float:
        """A block's share of a multiprocessor: wavefronts of one pipe, and instructions of four schedulers.

        Fewer resident blocks hide less of what each waits for.
        """
        blocks = self.blocks_per_sm(gpu)
        own = self.wavefronts / self.evaluation.launch.blocks + self.followed.issued / 4
        return own / math.sqrt(blocks) if blocks else own if blocks is None else math.inf


@dataclass(frozen=True, slots=True)
class SourceFix:
    """What came of it.

    Attributes:
        diff: unified; empty where nothing changes.
        files: the changed ones, by path.
        arrays: those that have conflicts.
        before, after: the source as it is and as it would be.
        unknown_bytes: of global memory that could not be compared.
        race: of both, on a GPU.
    """

    diff: str
    files: dict[str, bytes]
    arrays: tuple[FixedArray, ...]
    before: Version
    after: Version
    unknown_bytes: int
    race: Race | None = None


def fix(path: Path, program: Program, request: Request, search: Budget | None = None) -> SourceFix:
    """Change the layouts of a kernel's arrays in its source.

    Args:
        path: of the source.
        program: the kernel, compiled from it.
        request: how it is launched, and what is wanted.
        search: after it no other layout is tried.

    Raises:
        ProblemFileError: the launch cannot be evaluated, or there is no such array.
    """
    source = Source(path, request.include)
    files = {file.path: file.data for file in source.files}
    evaluation = evaluate(program, request.launch, request.gpu, most_steps=request.most_steps)
    listed = kernels(path, request.target, request.options)
    first = now = _version(files, evaluation, listed, request)
    arrays = []
    search = search or Budget()
    for array, told in _chosen(first, request).items():
        if told or not search.spent:
            one, now = _fixed(path, now, array, _arrays(now)[array], request, search)
            arrays += [one] if told or one.offset is not None else []
    if not arrays and (place := _undeclared(first.evaluation)) is not None:
        why = f"{place} has conflicts in shared memory that no declaration names"
        arrays.append(FixedArray("shared memory", None, why, 0, 0))
    changed = {name: data for name, data in now.files.items() if data != first.files[name]}
    diff = "".join(_diff(name, first.files[name], data) for name, data in changed.items())
    race = _raced(first, now, request.driver) if changed and request.driver is not None else None
    return SourceFix(diff, changed, tuple(arrays), first, now, _outputs(first, now)[1], race)


def _undeclared(evaluation: Evaluation) -> str | None:
    """The instruction with most conflicts; None where none has any."""
    worst = max(evaluation.tallies, key=lambda k: _excess(evaluation, k), default=None)
    conflicts = worst is not None and _excess(evaluation, worst) > 0
    return evaluation.program.steps[worst].named if conflicts and worst is not None else None


def _excess(evaluation: Evaluation, k: int) -> int:
    return evaluation.tallies[k].wavefronts - evaluation.tallies[k].ideal


def _version(
    files: dict[str, bytes], evaluation: Evaluation, listed: tuple[Listed, ...], request: Request
) -> Version:
    program = evaluation.program
    full = _with_buffers(program, evaluation.launch, _BUFFER_BYTES)
    followed = follow(program, full, request.gpu, most_steps=4 * request.most_steps)
    return Version(files, evaluation, followed, listed)


def _with_buffers(program: Program, launch: Launch, size: int) -> Launch:
    """The launch with something to read and write behind each pointer of which it says nothing."""
    buffers, memory = dict(launch.buffers), dict(launch.memory)
    taken = {*buffers, *launch.arguments}
    for k, parameter in enumerate(program.parameters or ()):
        pointer = parameter.pointer or parameter.type.endswith("*")
        if not pointer or not parameter.may_point or str(k) in taken or parameter.name in taken:
            continue
        kind = element_type(parameter.type) or np.dtype(np.float32)
        count = size // kind.itemsize
        if kind.kind == "f":
            values = np.random.default_rng(k).random(count).astype(kind)
        else:
            with np.errstate(over="ignore"):
                values = np.arange(count).astype(kind)
        buffers[str(k)] = values
        if launch.parameters is not None:
            place = launch.parameters[parameter.offset : parameter.offset + parameter.size]
            address = int.from_bytes(place, "little")
            if address and not any(start <= address < start + len(data) for start, data in memory.items()):
                memory[address] = values.tobytes()
    return (
        replace(launch, memory=memory) if launch.parameters is not None else replace(launch, buffers=buffers)
    )


def _raced(one: Version, other: Version, driver: Driver) -> Race:
    """Both versions on the GPU.

    Raises:
        ProblemFileError: an argument is not known.
        MachineError: a launch fails.
    """
    program = one.program
    given = arguments(program, _with_buffers(program, one.evaluation.launch, _BUFFER_BYTES_THERE))
    if given.missing:
        raise ProblemFileError("--arg", f"a launch on a GPU needs parameter {given.missing[0]}")
    kernels = []
    for version in (one, other):
        launch = version.evaluation.launch
        (image,) = [listed.image for listed in version.listed if listed.name == program.name]
        shape = launch.grid, launch.block, launch.shared_bytes
        kernels.append(Kernel(image, program.name, *shape, given.content, given.buffers))
    return driver.race(*kernels)


# Arrays ---------------------------------------------------------------------------------------------


def _arrays(version: Version) -> dict[str, Array]:
    """The arrays in shared memory, and dynamic memory as one, by name; of one name by number, too.

    Their symbols may change: the compiler writes them in full where a kernel has a lambda.
    """
    return _arrays_of(version.evaluation)


def _arrays_of(evaluation: Evaluation) -> dict[str, Array]:
    program, names = evaluation.program, Counter[str]()
    found: dict[str, Array] = {}
    for array in program.arrays:
        names[array.name] += 1
        found[f"{array.name} ({names[array.name]})" if names[array.name] > 1 else array.name] = array
    if evaluation.launch.shared_bytes and program.static_bytes is not None:
        used = [u.array for u in used_arrays(evaluation) if u.array.name.startswith(DYNAMIC)]
        start = -(-program.static_bytes // 16) * 16
        start = min((a.start for a in used if a.name in (DYNAMIC, f"{DYNAMIC}+0")), default=start)
        found[DYNAMIC] = Array(DYNAMIC, start, evaluation.launch.shared_bytes, DYNAMIC)
    return found


def _conflicts(evaluation: Evaluation, array: Array) -> int:
    tallies = (evaluation.tallies[k] for k in touching(evaluation, array))
    return sum(tally.wavefronts - tally.ideal for tally in tallies)


def _chosen(version: Version, request: Request) -> dict[str, bool]:
    """Names of the arrays to change, most conflicts first, and whether they are told of in any case."""
    arrays = _arrays(version)
    if request.array is not None:
        if request.array not in arrays:
            names = ", ".join(arrays) or "none"
            raise ProblemFileError("--array", f"expected one of the arrays ({names}), got {request.array!r}")
        return {request.array: True}
    worst = {s: _conflicts(version.evaluation, array) for s, array in arrays.items()}
    return {s: worst[s] > 0 for s in sorted(arrays, key=lambda s: -worst[s])}


# Layouts --------------------------------------------------------------------------------------------


def _fixed(
    path: Path, now: Version, key: str, array: Array, request: Request, search: Budget
) -> tuple[FixedArray, Version]:
    """One array with the best change that is right, if there is one."""
    stays = FixedArray(array.name, None, "", array.size, array.size)
    used = next((u for u in used_arrays(now.evaluation) if u.array.start == array.start), None)
    reason = moved_by_itself(now.evaluation, used) if used is not None else None
    if reason is not None:
        return replace(stays, reason=reason), now
    if footprint(now.followed.evaluation, array) is None or now.followed.evaluation.ended:
        why = "; ".join(now.followed.evaluation.doubts) or "too much is executed to be compared"
        return replace(stays, reason=f"not all that threads do to it is known: {why}"), now
    best: tuple[Plan, Version] | None = None
    reasons: list[str] = []
    try:
        known = macros(path, request.target or DEFAULT_TARGET, request.options)
        source = _reread(Source(path, request.include, known), now)
        variable = declaration(source, array, now.program)
        stays = replace(stays, name=variable.name)
        tried, reasons = plans(source, variable, now.evaluation, array, request.gpu)
        for plan in tried:
            if search.spent and (best is not None or reasons):
                break
            try:
                later = _with(path, plan, now, key, request)
            except ProblemFileError as error:
                reasons.append(str(error))
                continue
            if best is None or _rank(later, request) < _rank(best[1], request):
                best = plan, later
            if plan.rank == 0 and request.minimise == "time":
                break
    except ProblemFileError as error:
        reasons.append(str(error))
    if best is None:
        told = (
            "; ".join(list(dict.fromkeys(reasons))[:_MOST_REASONS])
            or "no pad of rows and no XOR has fewer conflicts"
        )
        return replace(stays, reason=told), now
    plan, later = best
    size = _arrays(later)[key].size
    return replace(stays, offset=plan.move.text, reason=plan.remark, bytes_after=size), later


def _rank(version: Version, request: Request) -> tuple[float, ...]:
    time = version.race.ratio if version.race is not None else version.cycles(request.gpu)
    wavefronts = version.wavefronts
    if request.minimise == "bytes":
        return version.shared_bytes, wavefronts, time
    return (time, wavefronts) if request.minimise == "time" else (wavefronts, version.shared_bytes, time)


def _reread(source: Source, now: Version) -> Source:
    for k, file in enumerate(source.files):
        if now.files[file.path] != file.data:
            source.files[k] = type(file)(file.path, now.files[file.path])
    return source


# Checks ---------------------------------------------------------------------------------------------


def _with(path: Path, plan: Plan, now: Version, key: str, request: Request) -> Version:
    """The source with an array moved, compiled and compared.

    Raises:
        ProblemFileError: it is not right, or not better.
    """
    move, files = plan.move, plan.files
    launch, array = now.evaluation.launch, _arrays(now)[key]
    if key == DYNAMIC:
        launch = replace(launch, shared_bytes=max(launch.shared_bytes, move.size(array.size)))
        asks = any(b"MaxDynamicSharedMemorySize" in data for data in files.values())
        if now.evaluation.launch.shared_bytes <= _FREELY_ASKED < launch.shared_bytes and not asks:
            asked = "more than 48 KB must be allowed by cudaFuncSetAttribute"
            raise ProblemFileError(array.name, f"{move.text}: {asked}")
    listed, program = _compiled(path, files, now.program, request)
    evaluation = evaluate(program, launch, request.gpu, most_steps=request.most_steps)
    if (why := why_not_better(now.evaluation, evaluation)) is not None:
        raise ProblemFileError(array.name, f"{move.text}: {why}")
    later = _version(files, evaluation, listed, request)
    estimated = request.driver is None and request.minimise == "time"
    if estimated and later.cycles(request.gpu) >= now.cycles(request.gpu):
        why = "it takes fewer wavefronts, and is not expected to take less time (--minimise excess offers it)"
        raise ProblemFileError(array.name, f"{move.text}: {why}")
    before, after = _arrays(now), _arrays(later)
    if before.keys() != after.keys():
        raise ProblemFileError(array.name, f"{move.text}: the arrays of the machine code are others")
    parts = [Part(before[s], after[s], move.apply if s == key else None) for s in before]
    if (name := astray(now.followed.evaluation, later.followed.evaluation, parts)) is not None:
        raise ProblemFileError(array.name, f"{move.text}: threads reach other bytes of {name}")
    if _outputs(now, later)[0]:
        raise ProblemFileError(array.name, f"{move.text}: the block writes other bytes to global memory")
    _check_instances(now, later, plan, key, request)
    if request.driver is None:
        return later
    race = _raced(now, later, request.driver)
    if race.differing:
        raise ProblemFileError(array.name, f"{move.text}: on the GPU, {race.differing:,} bytes are others")
    if race.ratio > _MOST_TIME:
        raise ProblemFileError(array.name, f"{move.text}: on the GPU, it takes {race.ratio:.2f} of the time")
    return replace(later, race=race)


def _check_instances(now: Version, later: Version, plan: Plan, key: str, request: Request) -> None:
    """Other instances of the kernel's template, at the same launch: none may take more wavefronts.

    Where pitches were changed, threads must reach the same elements in each of them, too.

    Raises:
        ProblemFileError: one does not, or that cannot be seen.
    """
    program, launch = now.program, now.evaluation.launch
    new = {one.name: one for one in later.listed}
    name = base_name(program.title)
    others = [one for one in now.listed if one.name != program.name and base_name(one.title) == name]
    pitched = plan.rank == 0 and plan.pitched
    if pitched and len(others) > _MOST_INSTANCES:
        raise ProblemFileError(key, f"{len(others)} other instances of {name} would have to be checked")
    for one in others[:_MOST_INSTANCES]:
        try:
            old = evaluate(one.read(), launch, request.gpu, most_steps=request.most_steps)
        except ProblemFileError as error:
            if pitched:
                raise ProblemFileError(
                    key, f"{one.title} cannot be checked with this launch: {error}"
                ) from None
            continue
        if key not in _arrays_of(old):
            continue
        moved = evaluate(new[one.name].read(), launch, request.gpu, most_steps=request.most_steps)
        if any(b > a for a, b in zip(costs(old), costs(moved), strict=True)):
            raise ProblemFileError(key, f"{plan.move.text}: {one.title} would take more wavefronts")
        parts = [
            Part(a, _arrays_of(moved)[s], plan.move.apply if s == key else None)
            for s, a in _arrays_of(old).items()
        ]
        if pitched and (astray(old, moved, parts) or footprint(old, _arrays_of(old)[key]) is None):
            raise ProblemFileError(key, f"{plan.move.text}: threads of {one.title} would reach other bytes")


def _outputs(one: Version, other: Version) -> tuple[int, int]:
    """Bytes of global memory that the first blocks leave different, and that are not known."""
    pairs = [memory.differs(other.followed.memory[base]) for base, memory in one.followed.memory.items()]
    return sum(a for a, _ in pairs), sum(b for _, b in pairs)


def _compiled(
    path: Path, files: dict[str, bytes], program: Program, request: Request
) -> tuple[tuple[Listed, ...], Program]:
    """The kernels of these files, and the one that is meant."""
    with temporary_folder() as folder:
        for name, data in files.items():
            place = folder / name.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        own = [f"-I{folder}{os.path.realpath(one)}" for one in request.include]
        options = (*own, *request.options)
        with current().standing_still():
            try:
                found = kernels(folder / os.path.realpath(path).lstrip("/"), request.target, options)
            except ProblemFileError as error:
                raise ProblemFileError("", str(error).replace(f"{folder}", "")) from None
        listed = next((one for one in found if one.name == program.name), None)
        if listed is None:
            raise ProblemFileError(program.title, "the changed source has no such kernel")
        return found, replace(listed.read(), parameters=program.parameters)


def _diff(name: str, before: bytes, after: bytes) -> str:
    old, new = (data.decode("utf-8", "surrogateescape").splitlines(keepends=True) for data in (before, after))
    near = os.path.relpath(name)
    shown = near if not near.startswith("..") else name.lstrip("/")
    lines = [f"--- a/{shown}\n", f"+++ b/{shown}\n"]
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(3):
        (_, i, _, k, _), (_, _, j, _, m) = group[0], group[-1]
        lines.append(f"@@ -{i + (j > i)},{j - i} +{k + (m > k)},{m - k} @@\n")
        for tag, a, b, c, d in group:
            lines += (
                [f" {line}" for line in old[a:b]] if tag == "equal" else [f"-{line}" for line in old[a:b]]
            )
            lines += [f"+{line}" for line in new[c:d]] if tag != "equal" else []
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
