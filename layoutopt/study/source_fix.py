"""A CUDA source with better layouts written in: found from its machine code, written, compiled and compared.

A change stays only where the machine code of the new source takes fewer wavefronts than that of the old one,
each thread reaches the same bytes between the same barriers, moved, and the first block writes the same bytes
to global memory.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np

from layoutopt.engine.conflicts import addressing_lanes, count_wavefronts
from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import Budget, current
from layoutopt.ground.temporary import temporary_folder
from layoutopt.hardware.devices import Device
from layoutopt.hardware.occupancy import occupancy
from layoutopt.hardware.operations import Operation
from layoutopt.kernels.machine.counts import Evaluation
from layoutopt.kernels.machine.evaluate import Followed, evaluate, follow
from layoutopt.kernels.machine.launch import Launch, element_type
from layoutopt.kernels.program import Array, Program
from layoutopt.kernels.question.arrays import moved_by_itself, used_arrays
from layoutopt.kernels.read.declarations import base_name, demangled
from layoutopt.kernels.read.files import Listed, kernels
from layoutopt.source.moves import Move, flips, pads
from layoutopt.source.parse import Source, Variable
from layoutopt.source.rewrite import Moved, Pitched
from layoutopt.source.values import Values
from layoutopt.source.walk import rendered
from layoutopt.study.moved import Part, astray, costs, footprint, touching, why_not_better

Minimise = Literal["time", "excess", "bytes"]
DYNAMIC: Final = "dynamic"
# Changes of one array that are compiled: longer pitches, then pads and XORs by a function.
# Warp instructions that are looked at to rank them.
_MOST_TRIED: Final = (2, 1, 2)
_MOST_ROWS: Final = 1 << 13
# Bytes of a buffer that is made up, so that outputs can be compared.
_BUFFER_BYTES: Final = 1 << 21
_MOST_SHARED: Final = 227 << 10
_BANKS: Final = 128
_MOST_REASONS: Final = 2
_MOST_INSTANCES: Final = 4


@dataclass(frozen=True, slots=True)
class Request:
    """What to fix, and how it is compiled and launched.

    Attributes:
        launch, gpu: the launch, and whose banks count.
        target, options: for nvcc.
        include, defines: of these options.
        array: the one to change; None for all that have conflicts.
        minimise: of the changes that are right, which is taken.
        most_steps: of an evaluation.
    """

    launch: Launch
    gpu: Device
    target: str | None = None
    options: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    array: str | None = None
    minimise: Minimise = "time"
    most_steps: int = 1_000_000


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
    """

    files: dict[str, bytes]
    evaluation: Evaluation
    followed: Followed
    listed: tuple[Listed, ...]

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
    """

    diff: str
    files: dict[str, bytes]
    arrays: tuple[FixedArray, ...]
    before: Version
    after: Version
    unknown_bytes: int


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
    source = Source(path, request.include, request.defines)
    files = {file.path: file.data for file in source.files}
    evaluation = evaluate(program, request.launch, request.gpu, most_steps=request.most_steps)
    listed = kernels(path, request.target, request.options)
    first = now = _version(files, evaluation, listed, request)
    arrays = []
    for array in _chosen(first, request):
        here = _arrays(now)
        one, now = _fixed(path, now, array, here[array], request, search or Budget())
        arrays.append(one)
    changed = {name: data for name, data in now.files.items() if data != first.files[name]}
    diff = "".join(_diff(name, first.files[name], data) for name, data in changed.items())
    return SourceFix(diff, changed, tuple(arrays), first, now, _outputs(first, now)[1])


def _version(
    files: dict[str, bytes], evaluation: Evaluation, listed: tuple[Listed, ...], request: Request
) -> Version:
    program = evaluation.program
    full = _with_buffers(program, evaluation.launch)
    followed = follow(program, full, request.gpu, most_steps=4 * request.most_steps)
    return Version(files, evaluation, followed, listed)


def _with_buffers(program: Program, launch: Launch) -> Launch:
    """The launch with something to read and write behind each pointer."""
    buffers = dict(launch.buffers)
    taken = {*buffers, *launch.arguments}
    for k, parameter in enumerate(program.parameters or ()):
        pointer = parameter.pointer or parameter.type.endswith("*")
        if not pointer or not parameter.may_point or str(k) in taken or parameter.name in taken:
            continue
        kind = element_type(parameter.type) or np.dtype(np.float32)
        count = _BUFFER_BYTES // kind.itemsize
        if kind.kind == "f":
            values = np.random.default_rng(k).random(count).astype(kind)
        else:
            with np.errstate(over="ignore"):
                values = np.arange(count).astype(kind)
        buffers[str(k)] = values
    return replace(launch, buffers=buffers)


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


def _chosen(version: Version, request: Request) -> list[str]:
    """Names of the arrays to change, those with most conflicts first."""
    arrays = _arrays(version)
    if request.array is not None:
        if request.array not in arrays:
            names = ", ".join(arrays) or "none"
            raise ProblemFileError("--array", f"expected one of the arrays ({names}), got {request.array!r}")
        return [request.array]
    worst = {s: _conflicts(version.evaluation, array) for s, array in arrays.items()}
    return sorted((s for s, count in worst.items() if count > 0), key=lambda s: -worst[s])


def _variable(source: Source, array: Array, program: Program) -> Variable:
    """The declaration of an array.

    Raises:
        ProblemFileError: there is none, or several may be meant.
    """
    kernel = base_name(program.title)
    every = [v for file in source.files for some in file.variables.values() for v in some if v.is_shared]
    if array.symbol == DYNAMIC:
        found = [v for v in every if "extern" in v.file.text(v.node).split("__shared__")[0].split()]
    else:
        found = [v for v in every if v.name == array.name]
        owners = demangled(array.symbol)
        inside = [v for v in found if v.function is not None and _owns(v, owners)]
        found = inside or found
    own = [v for v in found if v.function is not None and v.file.function_name(v.function) == kernel]
    found = own or found
    if len(found) != 1:
        lines = ", ".join(v.file.place(v.node) for v in found) or "none"
        what = "extern __shared__ declaration" if array.symbol == DYNAMIC else f"declaration of {array.name}"
        raise ProblemFileError(array.name, f"expected one {what} in the source, got {lines}")
    return found[0]


def _owns(variable: Variable, owners: str) -> bool:
    name = variable.file.function_name(variable.function) if variable.function is not None else ""
    return re.search(rf"\b{re.escape(name)}\b", owners) is not None


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
    best: tuple[_Plan, Version] | None = None
    reasons: list[str] = []
    try:
        source = _reread(Source(path, request.include, request.defines), now)
        variable = _variable(source, array, now.program)
        stays = replace(stays, name=variable.name)
        plans, reasons = _plans(source, variable, now, array, request.gpu)
        for plan in plans:
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
    wavefronts, time = version.wavefronts, version.cycles(request.gpu)
    if request.minimise == "bytes":
        return version.shared_bytes, wavefronts, time
    return (time, wavefronts) if request.minimise == "time" else (wavefronts, version.shared_bytes, time)


def _reread(source: Source, now: Version) -> Source:
    for k, file in enumerate(source.files):
        if now.files[file.path] != file.data:
            source.files[k] = type(file)(file.path, now.files[file.path])
    return source


def _shape(source: Source, variable: Variable, array: Array, program: Program) -> tuple[int, tuple[int, ...]]:
    """Bytes of an element, and the extents of an array that has several."""
    values = _values(source, variable, program)
    extents = [values.integer(variable.file, one) for one in variable.extents]
    element = values.size(variable.file, variable.type)
    if extents and all(extents):
        element = array.size // math.prod(e for e in extents if e)
    if element is None:
        raise ProblemFileError(
            variable.file.place(variable.node), f"the size of {variable.type} is not known"
        )
    inner = [e for e in extents[1:] if e]
    if len(inner) != max(len(extents) - 1, 0):
        raise ProblemFileError(
            variable.file.place(variable.node), f"the extents of {array.name} are not known"
        )
    if not inner:
        return element, ()
    rows, rest = divmod(array.size, element * math.prod(inner))
    if rest:
        raise ProblemFileError(variable.file.place(variable.node), f"{array.name} has another size")
    return element, (rows, *inner)


def _values(source: Source, variable: Variable, program: Program) -> Values:
    owner = variable.function
    own = owner is not None and variable.file.function_name(owner) == base_name(program.title)
    return Values(source, program.title if own else "")


class _Plan(NamedTuple):
    """A changed source: the wavefronts expected of the first block, and how far its code changes."""

    wavefronts: int
    rank: int
    move: Move
    files: dict[str, bytes]
    remark: str = ""
    pitched: bool = False


def _plans(
    source: Source, variable: Variable, now: Version, array: Array, gpu: Device
) -> tuple[list[_Plan], list[str]]:
    """Changes with fewer wavefronts at the addresses of the old machine code, and why others cannot be."""
    element, extents = _shape(source, variable, array, now.program)
    values, sites = _values(source, variable, now.program), list(_sites(now.evaluation, array))
    plain = _wavefronts(sites, None, gpu)
    widest = max((action.width_bytes for action in touching(now.evaluation, array).values()), default=element)
    found: list[_Plan] = []
    refused: dict[str, None] = {}
    for unit in dict.fromkeys((max(widest, element), element)):
        for kind in (pads, flips):
            for row in _rows(sites, element, extents, array):
                moves = [m for m in kind(row, unit, array.size) if _fits(m, element, array)]
                ranked = sorted(
                    (_wavefronts(sites, m, gpu), m.size(array.size), m.extra, m.terms, m) for m in moves
                )
                if not ranked or ranked[0][0] >= plain:
                    continue
                wavefronts, *_, move = ranked[0]
                for rank, form in enumerate((Pitched, Moved)):
                    if (form is Pitched and not move.extra) or (form is Moved and extents and move.extra):
                        continue
                    try:
                        change = form(source, values, variable, element, extents, move)
                        edits = change.run()
                    except ProblemFileError as error:
                        refused[str(error)] = None
                        continue
                    if form is Pitched and not extents and len(edits) < 2:
                        continue  # no index has rows of this length
                    files = {file.path: rendered(file, edits) for file in source.files}
                    found.append(
                        _Plan(
                            wavefronts,
                            rank if move.extra else 2,
                            move,
                            files,
                            change.remark,
                            form is Pitched and not extents,
                        )
                    )
        if found and min(plan.wavefronts for plan in found) <= _ideal(sites, gpu):
            break
    found.sort(
        key=lambda p: (p.wavefronts, p.rank, p.move.row & (p.move.row - 1) > 0, p.move.size(array.size))
    )
    chosen = [p for rank, most in enumerate(_MOST_TRIED) for p in [p for p in found if p.rank == rank][:most]]
    return sorted(chosen, key=lambda p: p.wavefronts), list(refused) if not found else []


def _fits(move: Move, element: int, array: Array) -> bool:
    """Whether it moves whole elements, and takes at most a quarter more memory, or a row of banks."""
    whole = move.unit % element == 0 and move.extra % element == 0 and move.row % element == 0
    return whole and move.size(array.size) <= min(array.size * 5 // 4 + _BANKS, _MOST_SHARED)


def _rows(
    sites: Sequence[tuple[Operation, IntArray, BoolArray]],
    element: int,
    extents: tuple[int, ...],
    array: Array,
) -> list[int]:
    """Bytes of the rows to try: those declared, else whole rows of banks and steps between lanes."""
    if extents:
        return [extents[-1] * element]
    steps: dict[int, int] = {}
    for _, address, lanes in sites:
        moves = np.abs(np.diff(address, axis=1))[lanes[:, 1:] & lanes[:, :-1]]
        for value, count in zip(
            *(part.tolist() for part in np.unique(moves, return_counts=True)), strict=True
        ):
            if value >= 64 and value % element == 0 and value < array.size:
                steps[value] = steps.get(value, 0) + count
    likely = sorted(steps, key=lambda value: -steps[value])[:4]
    return list(dict.fromkeys([128, 256, 512, 1024, *likely]))


def _sites(evaluation: Evaluation, array: Array) -> Iterator[tuple[Operation, IntArray, BoolArray]]:
    """Warp instructions of the first block that touch an array: offsets and lanes, shape (rows, 32)."""
    for k, action in touching(evaluation, array).items():
        traces = evaluation.traces.get(k, [])
        if not traces or action.operation is None:
            continue
        address = np.concatenate([np.broadcast_to(t.address, t.lanes.shape) for t in traces])[:_MOST_ROWS]
        lanes = np.concatenate([t.lanes for t in traces])[:_MOST_ROWS]
        yield action.operation, np.where(lanes, address - array.start, 0), lanes


def _ideal(sites: Sequence[tuple[Operation, IntArray, BoolArray]], gpu: Device) -> int:
    return sum(int(count_wavefronts(o, lanes, op, gpu).ideal.sum()) for op, o, lanes in sites)


def _wavefronts(
    sites: Sequence[tuple[Operation, IntArray, BoolArray]], move: Move | None, gpu: Device
) -> int:
    total = 0
    for operation, offsets, lanes in sites:
        used = addressing_lanes(lanes, operation)
        moved = np.where(used, move.apply(offsets) if move is not None else offsets, 0)
        total += int(count_wavefronts(moved, lanes, operation, gpu).wavefronts.sum())
    return total


# Checks ---------------------------------------------------------------------------------------------


def _with(path: Path, plan: _Plan, now: Version, key: str, request: Request) -> Version:
    """The source with an array moved, compiled and compared.

    Raises:
        ProblemFileError: it is not right, or not better.
    """
    move, files = plan.move, plan.files
    launch, array = now.evaluation.launch, _arrays(now)[key]
    if key == DYNAMIC:
        launch = replace(launch, shared_bytes=max(launch.shared_bytes, move.size(array.size)))
    listed, program = _compiled(path, files, now.program, request)
    evaluation = evaluate(program, launch, request.gpu, most_steps=request.most_steps)
    if (why := why_not_better(now.evaluation, evaluation)) is not None:
        raise ProblemFileError(array.name, f"{move.text}: {why}")
    later = _version(files, evaluation, listed, request)
    if request.minimise == "time" and later.cycles(request.gpu) >= now.cycles(request.gpu):
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
    return later


def _check_instances(now: Version, later: Version, plan: _Plan, key: str, request: Request) -> None:
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
