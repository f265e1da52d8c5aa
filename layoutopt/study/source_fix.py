"""A kernel with better layouts written in: found from its machine code, written, compiled and compared.

What is changed is a CUDA source, or PTX. A change stays only where the new machine code takes fewer
wavefronts than the old one, each thread reaches the same bytes between the same barriers, moved, and the
first block writes the same bytes to global memory. Where there is a GPU, the launch must write the same bytes
there, and not take longer.
"""

import difflib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.engine.estimate import Memory, Terms, timing_of
from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget, OutOfTime, spending
from layoutopt.hardware.devices import Device
from layoutopt.hardware.driver import Driver, Kernel, Race
from layoutopt.hardware.occupancy import occupancy
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.evaluate import Followed, evaluate, follow
from layoutopt.kernels.machine.launch import Launch, arguments, element_type
from layoutopt.kernels.program import Array, Program
from layoutopt.kernels.question.arrays import moved_by_itself, used_arrays
from layoutopt.kernels.question.summary import summary
from layoutopt.kernels.read.declarations import base_name
from layoutopt.kernels.read.files import Listed
from layoutopt.study.moved import MovedArray, costs, first_astray, footprint, touching, why_not_better
from layoutopt.study.patch import PtxCode
from layoutopt.study.source_plans import DYNAMIC, Plan, SourceCode, arrays_of, carved

# What is changed.
Code = SourceCode | PtxCode
Minimise = Literal["time", "excess", "bytes"]
# Bytes of a buffer that is made up, so that outputs can be compared; on a GPU.
_BUFFER_BYTES: Final = 1 << 21
_BUFFER_BYTES_THERE: Final = 1 << 26
_MADE_UP_FLOAT: Final = 0.71875
# Dynamic memory that a launch may ask for as it is.
_FREELY_ASKED: Final = 48 << 10
# Of the time before, what a change may take on a GPU.
_MOST_TIME: Final = 1.02
_MOST_REASONS: Final = 2
_NOTHING: Final = (
    "no pad of rows and no XOR has fewer conflicts; other kinds, as check gives, are not written"
)
_MOST_INSTANCES: Final = 4
_LATE: Final = "the time limit ended the search for a layout of it"


class Request(Struct, frozen=True):
    """What to fix, and how it is launched.

    Attributes:
        launch, gpu: the launch, and whose banks count.
        array: the one to change; None for all that have conflicts.
        minimise: of the changes that are right, which is taken.
        most_steps: of an evaluation.
        driver: of the GPU that times what is changed; None to estimate.
    """

    launch: Launch
    gpu: Device
    array: str | None = None
    minimise: Minimise = "time"
    most_steps: int = 1_000_000
    driver: Driver | None = None


class FixedArray(Struct, frozen=True):
    """One array: its layout in words where it was changed, and the reason why not, or what to know."""

    name: str
    offset: str | None
    reason: str
    bytes_before: int
    bytes_after: int


@dataclass
class Version:
    """A source compiled, and its launch evaluated.

    Attributes:
        files: those of the author, by path.
        evaluation: of the launch.
        listed: all kernels of the source.
        most_steps: to follow the first block.
        race: against the version before, on a GPU.
    """

    files: dict[str, bytes]
    evaluation: Evaluation
    listed: tuple[Listed, ...]
    most_steps: int
    race: Race | None = None
    _reached: dict[Array, dict[bool, IntArray] | None] = field(default_factory=dict)

    @cached_property
    def followed(self) -> Followed:
        """Its first block, with buffers made up where none are given.

        Where nothing in shared memory depends on them, floats that the launch does not give and constant
        memory that the host fills are made up, too.
        """
        full = _with_buffers(self.program, self.evaluation.launch, _BUFFER_BYTES)
        gpu, most = self.evaluation.gpu, self.most_steps
        if not self.evaluation.doubts:
            try:
                return follow(*_with_numbers(self.program, full), gpu, most_steps=most)
            except ProblemFileError:
                pass  # numbers of iterations may have been among them
        return follow(self.program, full, gpu, most_steps=most)

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

    def footprint(self, array: Array) -> dict[bool, IntArray] | None:
        """What threads of the first block do to an array."""
        if array not in self._reached:
            self._reached[array] = footprint(self.followed.evaluation, array)
        return self._reached[array]

    def blocks_per_sm(self, gpu: Device) -> int | None:
        """Resident blocks; None where the chip's limits are not known."""
        target, threads = self.program.target.rstrip("af"), self.evaluation.launch.threads
        found = occupancy(self.shared_bytes, 16, threads, gpu, target, registers=self.program.registers)
        return found.blocks if found is not None else None

    @property
    def time(self) -> float:
        """Of the time before, on a GPU; else what is estimated."""
        return self.race.ratio if self.race is not None else self.cycles(self.evaluation.gpu)

    def cycles(self, gpu: Device) -> float:
        """A multiprocessor's, estimated, for a block among those that fit."""
        blocks = self.blocks_per_sm(gpu)
        memory = Memory(self.wavefronts / self.evaluation.launch.blocks, 0, 0)
        terms = Terms((memory,), instructions=self.followed.issued)
        return math.inf if blocks == 0 else terms.time(timing_of(gpu)[0], blocks)


class SourceFix(Struct, frozen=True):
    """What came of it.

    Attributes:
        files: the changed ones, by path.
        arrays: those that have conflicts.
        before, after: the source as it is and as it would be.
        unknown_bytes: of global memory that could not be compared.
        race: of both, on a GPU.
        out_of_time: the limit ended the search; what is offered is the best until then.
    """

    files: dict[str, bytes]
    arrays: tuple[FixedArray, ...]
    before: Version
    after: Version
    unknown_bytes: int
    race: Race | None = None
    out_of_time: bool = False

    @property
    def compared_bytes(self) -> int:
        """Of those that the first block changes."""
        return self.before.followed.changed_bytes - self.unknown_bytes

    @property
    def chosen_for(self) -> dict[str, int]:
        """Whole numbers that the launch gives the kernel, by parameter: of others nothing was compared."""
        launch, parameters = self.before.evaluation.launch, self.before.program.parameters or ()
        names = {str(k): parameter.name or str(k) for k, parameter in enumerate(parameters)}
        given = {names.get(key, key): value for key, value in launch.arguments.items()}
        return {name: value for name, value in given.items() if type(value) is int} if self.files else {}

    @property
    def totals(self) -> tuple[dict[str, int], dict[str, int]]:
        """What the profiler prints of the launch before and after."""
        before, after = (summary(one.evaluation).totals for one in (self.before, self.after))
        return before, after

    @property
    def diff(self) -> str:
        """Of the files, unified; empty where nothing changes."""
        return "".join(_diff(name, self.before.files[name], data) for name, data in self.files.items())


def fix(code: Code, program: Program, request: Request, search: Budget | None = None) -> SourceFix:
    """Change the layouts of a kernel's arrays in its source, or its PTX.

    Args:
        code: what is changed.
        program: the kernel, compiled from it.
        request: how it is launched, and what is wanted.
        search: what is not compared by its end is not offered.

    Raises:
        ProblemFileError: the launch cannot be evaluated, or there is no such array.
        OutOfTime: the budget in force ends before the code as it is has been evaluated.
    """
    evaluation = evaluate(program, request.launch, request.gpu, most_steps=request.most_steps)
    first = now = Version(code.files(), evaluation, code.compiled(None), 4 * request.most_steps)
    arrays = []
    search = search or Budget()
    for key, part, told in _chosen(code, first, request):
        array = part or arrays_of(now.evaluation)[key]
        one, now = _fixed(code, now, key, array, request, search)
        arrays += [one] if told or one.offset is not None else []
    if not arrays and (place := _undeclared(first.evaluation)) is not None:
        why = f"{place} has conflicts in shared memory that no declaration names"
        arrays.append(FixedArray("shared memory", None, why, 0, 0))
    changed = {name: data for name, data in now.files.items() if data != first.files[name]}
    race = _raced(first, now, request.driver) if changed and request.driver is not None else None
    return SourceFix(changed, tuple(arrays), first, now, _outputs(first, now)[1], race, search.stopped)


def _undeclared(evaluation: Evaluation) -> str | None:
    """The instruction with most conflicts; None where none has any."""
    worst = max(evaluation.tallies, key=lambda k: _excess(evaluation, k), default=None)
    conflicts = worst is not None and _excess(evaluation, worst) > 0
    return evaluation.program.steps[worst].named if conflicts and worst is not None else None


def _excess(evaluation: Evaluation, k: int) -> int:
    return evaluation.tallies[k].wavefronts - evaluation.tallies[k].ideal


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


def _with_numbers(program: Program, launch: Launch) -> tuple[Program, Launch]:
    """The program with something in the constant memory that the host fills, the launch with all floats."""
    given = dict(launch.arguments)
    for k, parameter in enumerate(program.parameters or () if launch.parameters is None else ()):
        if parameter.type in ("float", "double") and not {str(k), parameter.name} & given.keys():
            given[str(k)] = _MADE_UP_FLOAT
    constants = {bank: bytearray(data) for bank, data in program.constants.items()}
    for bank, places in program.unset.items():
        for start, count in places if bank in constants else ():
            floats = np.random.default_rng(start).random(-(-count // 4), np.float32)
            constants[bank][start : start + count] = floats.tobytes()[:count]
    filled = {bank: bytes(data) for bank, data in constants.items()}
    return replace(program, constants=filled, unset={}), replace(launch, arguments=given)


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


def _conflicts(evaluation: Evaluation, array: Array) -> int:
    tallies = (evaluation.tallies[k] for k in touching(evaluation, array))
    return sum(tally.wavefronts - tally.ideal for tally in tallies)


def _chosen(code: Code, version: Version, request: Request) -> list[tuple[str, Array | None, bool]]:
    """The arrays to change, most conflicts first, and whether they are told of in any case.

    Arrays that are carved out of dynamic memory go before them, from behind, so that their places stay.
    """
    arrays = arrays_of(version.evaluation)
    parts = carved(version.evaluation, arrays[DYNAMIC]) if code.apart and DYNAMIC in arrays else []
    every: list[tuple[str, Array | None]] = [(DYNAMIC, part) for part in parts[::-1]]
    every += [(name, None) for name in arrays if name != DYNAMIC or not parts]
    named = {part.name if part is not None else key: (key, part) for key, part in every}
    if request.array is not None:
        dynamic = request.array not in named and request.array in code.dynamic_names()
        asked = [n for n, (key, _) in named.items() if n == request.array or (dynamic and key == DYNAMIC)]
        if not asked:
            names = ", ".join(named) or "none"
            raise ProblemFileError("--array", f"expected one of the arrays ({names}), got {request.array!r}")
        return [(*named[name], True) for name in asked]
    worst = {name: _conflicts(version.evaluation, part or arrays[key]) for name, (key, part) in named.items()}
    found = sorted(named, key=lambda name: (named[name][1] is None, named[name][1] is None and -worst[name]))
    return [(*named[name], worst[name] > 0) for name in found if worst[name] > 0 or not code.apart]


# Layouts --------------------------------------------------------------------------------------------


def _fixed(
    code: Code, now: Version, key: str, array: Array, request: Request, search: Budget
) -> tuple[FixedArray, Version]:
    """One array with the best change that is right, if there is one."""
    stays = FixedArray(array.name, None, "", array.size, array.size)
    used = next((u for u in used_arrays(now.evaluation) if u.array.start == array.start), None)
    reason = moved_by_itself(now.evaluation, used) if used is not None else None
    if reason is not None:
        return replace(stays, reason=reason), now
    if now.footprint(array) is None or now.followed.evaluation.ended:
        why = "; ".join(now.followed.evaluation.doubts) or "too much is executed to be compared"
        return replace(stays, reason=f"not all that threads do to it is known: {why}"), now
    best: tuple[Plan, Version] | None = None
    reasons: list[str] = []
    longest = 0.0
    try:
        # Each gets what is left then: compilers stop the clock of a part alone.
        with spending(search.at_most(None)):
            name, tried, reasons = code.plans(now.files, now.evaluation, array, request.gpu)
        stays = replace(stays, name=name)
        for plan in tried:
            if best is not None and request.minimise != "time" and _no_better(plan, best[0], array.size):
                continue
            if search.spent or not search.affords(longest):
                search.stop()
                break
            if best is not None and request.minimise == "time" and best[0].rank == 0 != plan.rank:
                break
            began = search.elapsed
            try:
                with spending(search.at_most(None)):
                    later = _with(code, plan, now, key, request, best[1] if best is not None else None)
            except ProblemFileError as error:
                reasons.append(str(error))
                continue
            finally:
                longest = max(longest, search.elapsed - began)
            if best is None or _better(later, best[1], request):
                best = plan, later
            moved = arrays_of(later.evaluation)[key]
            if plan.rank == 0 and request.minimise == "time" and not _conflicts(later.evaluation, moved):
                break
    except ProblemFileError as error:
        reasons.append(str(error))
    except OutOfTime:
        search.stop()
    if best is None:
        reasons = [_LATE] if search.stopped and not reasons else reasons
        told = "; ".join(list(dict.fromkeys(reasons))[:_MOST_REASONS])
        return replace(stays, reason=told or _NOTHING), now
    plan, later = best
    size = array.size + arrays_of(later.evaluation)[key].size - arrays_of(now.evaluation)[key].size
    return replace(stays, offset=plan.move.text, reason=plan.remark, bytes_after=size), later


def _no_better(plan: Plan, best: Plan, size: int) -> bool:
    """Whether one is expected to take as many wavefronts as another, and as many bytes."""
    return plan.wavefronts >= best.wavefronts and plan.move.size(size) >= best.move.size(size)


def _better(version: Version, best: Version, request: Request) -> bool:
    """Whether it is, by what counts first; the time is not asked for where something before it decides."""
    pairs = ((getattr(version, name), getattr(best, name)) for name in _ORDERS[request.minimise])
    return next((bool(one < other) for one, other in pairs if one != other), False)


_ORDERS: Final[dict[Minimise, tuple[str, ...]]] = {
    "time": ("time", "wavefronts"),
    "excess": ("wavefronts", "shared_bytes", "time"),
    "bytes": ("shared_bytes", "wavefronts", "time"),
}


# Checks ---------------------------------------------------------------------------------------------


def _with(code: Code, plan: Plan, now: Version, key: str, request: Request, best: Version | None) -> Version:
    """The code with an array moved, compiled and compared.

    Raises:
        ProblemFileError: it is not right, or not better than the code, or the best change so far.
    """
    files, launch = plan.files, now.evaluation.launch
    array = arrays_of(now.evaluation)[key]
    if key == DYNAMIC:
        launch = replace(launch, shared_bytes=max(launch.shared_bytes, plan.move.size(array.size)))
        asks = any(b"MaxDynamicSharedMemorySize" in data for data in files.values())
        if now.evaluation.launch.shared_bytes <= _FREELY_ASKED < launch.shared_bytes and not asks:
            asked = "more than 48 KB must be allowed by cudaFuncSetAttribute"
            raise ProblemFileError(array.name, f"{plan.move.text}: {asked}")
    listed = code.compiled(files)
    program = next((one.read() for one in listed if one.name == now.program.name), None)
    if program is None:
        raise ProblemFileError(now.program.title, "the changed source has no such kernel")
    program = replace(program, parameters=now.program.parameters)
    evaluation = evaluate(program, launch, request.gpu, most_steps=request.most_steps)
    later = Version(files, evaluation, listed, now.most_steps)
    for why in _against(now, later, plan, key, request, best):
        raise ProblemFileError(array.name, f"{plan.move.text}: {why}")
    return later


def _against(
    now: Version, later: Version, plan: Plan, key: str, request: Request, best: Version | None
) -> Iterator[str]:
    """Why a version is not right, or not better; what is seen at once comes first."""
    if (why := why_not_better(now.evaluation, later.evaluation)) is not None:
        yield why
    if not now.evaluation.doubts:
        # A vector that a macro takes the address of may lie askew now.
        yield from later.evaluation.doubts
    if best is not None and request.driver is None and not _better(later, best, request):
        yield "another layout is better"
    estimated = request.driver is None and request.minimise == "time"
    if estimated and later.cycles(request.gpu) >= now.cycles(request.gpu):
        yield "it takes fewer wavefronts, and is not expected to take less time (--minimise excess offers it)"
    before, after = arrays_of(now.evaluation), arrays_of(later.evaluation)
    if before.keys() != after.keys():
        yield "the arrays of the machine code are others"
    if (name := first_astray(now.footprint, later.footprint, _parts(before, after, plan, key))) is not None:
        yield f"threads reach other bytes of {name}"
    if _outputs(now, later)[0]:
        yield "the block writes other bytes to global memory"
    yield from _against_instances(now, later, plan, key, request)
    if request.driver is not None:
        later.race = race = _raced(now, later, request.driver)
        if race.differing:
            yield f"on the GPU, {race.differing:,} bytes are others"
        if race.ratio > _MOST_TIME:
            yield f"on the GPU, it takes {race.ratio:.2f} of the time"


def _parts(before: dict[str, Array], after: dict[str, Array], plan: Plan, key: str) -> list[MovedArray]:
    return [MovedArray(a, after[s], plan.move.apply if s == key else None) for s, a in before.items()]


def _against_instances(now: Version, later: Version, plan: Plan, key: str, request: Request) -> Iterator[str]:
    """Other instances of the kernel's template, at the same launch: none may take more wavefronts.

    Where pitches were changed, threads must reach the same elements in each of them, too. Of dynamic memory
    that moves in another way, all must have elements of one type: how many bytes to ask for depends on it.
    """
    program = now.program
    new = {one.name: one for one in later.listed}
    name = base_name(program.title)
    others = [one for one in now.listed if one.name != program.name and base_name(one.title) == name]
    pitched = plan.rank == 0 and plan.pitched
    unlike = [one for one in others if _types(one) != _types(program)]
    if key == DYNAMIC and not plan.pitched and unlike:
        why = "has elements of another type: how many bytes a launch must ask for differs between them"
        yield f"{unlike[0].title} {why}"
    if pitched and len(others) > _MOST_INSTANCES:
        yield f"{len(others)} other instances of {name} would have to be checked"
    for one in others[:_MOST_INSTANCES]:
        try:
            old = evaluate(one.read(), now.evaluation.launch, request.gpu, most_steps=request.most_steps)
        except ProblemFileError as error:
            if pitched:
                yield f"{one.title} cannot be checked with this launch: {error}"
            continue
        before = arrays_of(old)
        if key not in before:
            continue
        asked = later.evaluation.launch
        moved = evaluate(new[one.name].read(), asked, request.gpu, most_steps=request.most_steps)
        if any(b > a for a, b in zip(costs(old), costs(moved), strict=True)):
            yield f"{one.title} would take more wavefronts"
        reached, goes = (partial(footprint, version) for version in (old, moved))
        parts = _parts(before, arrays_of(moved), plan, key)
        if pitched and (first_astray(reached, goes, parts) or reached(before[key]) is None):
            yield f"threads of {one.title} would reach other bytes"


def _types(kernel: Listed | Program) -> str:
    """What a template is made of besides numbers."""
    return re.sub(r"(\(\w+\))?\b\d+\b", "", kernel.title).partition("(")[0]


def _outputs(one: Version, other: Version) -> tuple[int, int]:
    """Bytes of global memory that the first blocks leave different, and that are not known."""
    pairs = [memory.differs(other.followed.memory[base]) for base, memory in one.followed.memory.items()]
    return sum(a for a, _ in pairs), sum(b for _, b in pairs)


def _diff(name: str, before: bytes, after: bytes) -> str:
    """A unified diff that patch(1) and git apply read, bytes that are no text as they stand."""
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
