"""Accesses whose lanes are free: which they are, what stands for them, and whether chosen lanes serve."""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.assignments import ROUND, STEP, Assignment, Work, with_assignment, work_of
from layoutopt.accesses.lower import with_fixed_lanes
from layoutopt.accesses.trace import LaneTrace, trace
from layoutopt.errors import ProblemFileError
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.hardware.operations import is_direct_load, parse_operation
from layoutopt.problems.types import Access, Problem


class FreeAccess(Struct, frozen=True):
    """An access whose lanes are free: what it covers, and its lanes as the file has them."""

    number: int  # of the access in the problem
    work: Work
    lanes: LaneTrace  # under the index that the file has


def free_accesses(problem: Problem, gpu: Device) -> tuple[FreeAccess, ...]:
    """The accesses of a problem whose lanes are free, and what they cover.

    Raises:
        ProblemFileError: an access cannot be free.
    """
    return tuple(
        FreeAccess(k, *work_of(problem, k, gpu))
        for k, a in enumerate(problem.accesses)
        if a.lanes is not None
    )


def naturally(problem: Problem, free: Sequence[FreeAccess]) -> Problem:
    """The problem with consecutive threads at consecutive pieces, in the order of global memory."""
    return settled_with(problem, {one.number: one.work.natural for one in free}, free)


def settled_with(
    problem: Problem, assignments: Mapping[int, Assignment], free: Sequence[FreeAccess]
) -> Problem:
    """The problem without free lanes: each free access under its assignment, by number of the access."""
    accesses = list(map(with_fixed_lanes, problem.accesses))
    for one in free:
        access = problem.accesses[one.number]
        accesses[one.number] = with_assignment(one.work, assignments[one.number], access, problem.threads)
    return replace(problem, accesses=tuple(accesses))


def check_lanes(problem: Problem, chosen: Problem, gpu: Device) -> None:
    """Check that lanes that were chosen cover what the problem asks for, by whole segments.

    Args:
        problem: some of whose accesses are free.
        chosen: the same with fixed lanes.
        gpu: its device.

    Raises:
        ProblemFileError: they do not.
    """
    works = {one.number: one.work for one in free_accesses(problem, gpu)}
    for k, (source, access) in enumerate(zip(problem.accesses, chosen.accesses, strict=True)):
        if source.lanes is None and source.values is None:
            continue
        alone = [replace(problem, accesses=(a,)) for a in (with_fixed_lanes(source), access)]
        given, now = (trace(one, gpu).accesses[0] for one in alone)
        if k in works:
            wrong = _wrong_cover(works[k], access, given, now, problem.tile.shape)
        else:
            wrong = _wrong_order(access, given, now)
        if wrong is not None:
            raise ProblemFileError("index", f"of access {access.name!r} {wrong}")


def _wrong_order(access: Access, given: LaneTrace, now: LaneTrace) -> str | None:
    """What is wrong where a lane does not move its pieces of the file, in any order of iterations."""
    iterations = math.prod(access.loops.values())
    had, has = (np.where(t.active, t.element, -1).reshape(iterations, -1) for t in (given, now))
    same = np.array_equal(np.sort(had, axis=0), np.sort(has, axis=0))
    return None if same else "gives threads other pieces than the file's"


def _wrong_cover(
    work: Work, access: Access, given: LaneTrace, now: LaneTrace, shape: Sequence[int]
) -> str | None:
    """What is wrong where lanes do not cover what the file's do, by the same threads, in whole segments."""
    if not np.array_equal(np.sort(now.element[now.active]), np.sort(given.element[given.active])):
        return "does not cover what the file's does"
    iterations, lanes = math.prod(access.loops.values()), now.element.shape[1]
    threads = slice(work.first, work.first + work.threads)
    element, active = (values.reshape(iterations, -1)[:, threads] for values in (now.element, now.active))
    if active.sum() != now.active.sum():
        return "takes threads that the file's does not"
    size = work.segment
    if size == 1 or work.threads % size or math.prod(work.extents) % size:
        return None  # segments do not come out even, whoever covers them
    unit = _units(work, np.where(active, element, -1), shape)
    warps = np.broadcast_to((np.arange(work.threads) + work.first) // lanes, unit.shape)
    whole = _by_neighbours(unit, size) or _by_instructions(unit, size, warps)
    return None if whole else f"does not cover whole segments of {size} units"


def _units(work: Work, element: IntArray, shape: Sequence[int]) -> IntArray:
    """The number, in the order of global memory, of the unit that holds each element; -1 for element -1."""
    number = np.zeros(element.shape, np.int64)
    x = np.unravel_index(np.maximum(element, 0), tuple(shape))
    for d in work.order:
        number = number * work.extents[d] + (x[d] - work.origin[d]) // work.unit[d]
    return np.where(element < 0, -1, number)


def _by_neighbours(unit: IntArray, size: int) -> bool:
    """Whether neighbours, `size` at a time, cover a segment or nothing."""
    groups = np.sort(unit.reshape(-1, size), axis=1)
    whole = (groups[:, :1] % size == 0) & (groups == groups[:, :1] + np.arange(size))
    return bool((whole | (groups < 0)).all())


def _by_instructions(unit: IntArray, size: int, warps: IntArray) -> bool:
    """Whether every instruction covers whole segments."""
    rows = np.broadcast_to(np.arange(len(unit))[:, None], unit.shape)
    met = np.stack([rows, warps, unit // size], axis=-1)[unit >= 0]
    return bool((np.unique(met, axis=0, return_counts=True)[1] == size).all())


def with_padded_segments(free: FreeAccess, gpu: Device) -> FreeAccess | None:
    """The access with segments that take a power of two of slots each, so that none lies in two warps.

    A segment of 5 units takes 8 threads, the last three of which are idle. None where segments do so already,
    or iterations that the file names would not be enough.
    """
    work = free.work
    slots = 1 << (work.segment - 1).bit_length()
    if slots == work.segment or slots > gpu.lanes or not set(work.loops) <= {ROUND, STEP}:
        return None
    if work.threads % slots or work.first % slots:
        return None
    return replace(free, work=replace(work, slots=slots).with_own_loops())


def can_deal(lanes: LaneTrace) -> bool:
    """Whether wavefronts may be saved where lanes of a warp change places: several phases, of whole words."""
    rule = lanes.rule
    plain = not (rule.serialises_equal or rule.split_words) and rule.row_words == 1
    return plain and len(rule.phases) > 1 and lanes.operation.width_bytes % rule.bank_bytes == 0


def whole_warp(rule: PhaseRule) -> PhaseRule:
    """The rule, if all lanes of a warp were served in one phase."""
    return replace(rule, phases=(tuple(range(sum(map(len, rule.phases)))),), merges_pairs=False)


class FreeLanes:
    """A problem some of whose lanes are free, and problems of fixed lanes about it.

    The *relaxed* problem keeps what every assignment of threads has in common: of a free access, its segments
    of global memory, one at a time.

    Attributes:
        free: the accesses whose lanes are free.
        direct: whether some of them are direct loads.
        together: the device, if it served a warp at once where lanes may change places (`can_deal`); its own
            rules where an access with fixed lanes goes by the same rule.
        scale: by which all weights of `relaxed` are multiplied, so that those of segments are whole numbers.

    Raises:
        ProblemFileError: an access cannot be free.
    """

    def __init__(self, problem: Problem, gpu: Device) -> None:
        self.problem, self.gpu = problem, gpu
        self.free = free_accesses(problem, gpu)
        self.direct = any(is_direct_load(problem.accesses[free.number].op) for free in self.free)
        movable = [free for free in self.free if can_deal(free.lanes)]
        self.together = _served_by_warp(problem, gpu, movable)
        # Accesses whose segments are a warp each, which `together` serves at once.
        by_warp = {f.number for f in movable if self.together is not gpu and _is_of_warps(f.work, gpu.lanes)}
        # How many segments share a phase, by access, while lanes keep their places.
        counts = {f.number: 1 if f.number in by_warp else self._in_a_phase(f) for f in self.free}
        self._segments_in_phase = {number: count for number, count in counts.items() if count is not None}
        # Accesses whose segments may be served in several phases each, as lanes change places.
        self._torn = {free.number for free in movable} - by_warp
        self.scale = math.lcm(*self._segments_in_phase.values())

    @cached_property
    def natural(self) -> Problem:
        """Consecutive threads at consecutive pieces."""
        return naturally(self.problem, self.free)

    def _in_a_phase(self, free: FreeAccess) -> int | None:
        """Segments that share a phase; None where a segment by itself says nothing of a phase's conflicts."""
        rule, work = free.lanes.rule, free.work
        phase, segment = len(rule.phases[0]), work.segment
        words = max(1, free.lanes.operation.width_bytes // rule.bank_bytes)
        fits = segment > 1 and phase % segment == 0 and phase * words <= rule.banks
        whole = work.units % segment == 0 and self.problem.threads >= segment and not work.first
        return phase // segment if fits and whole else None

    @property
    def may_be_dealt(self) -> bool:
        """Whether segments that `relaxed` weighs may be served in several phases each."""
        return not self._torn.isdisjoint(self._segments_in_phase)

    def relaxed(self, *, dealt: bool = False) -> Problem:
        """Each free access as its segments alone, which weigh as much as their share of a phase.

        Where lanes of a warp may change places, a segment need not stay in one phase: with `dealt`, such
        accesses weigh nothing.
        """
        threads, lanes = self.problem.threads, self.gpu.lanes
        slots, warps = min(threads, lanes), max(1, threads // lanes)
        accesses = [
            replace(with_fixed_lanes(access), weight=0) if access.is_free else _weighted(access, self.scale)
            for access in self.problem.accesses
        ]
        for free in self.free:
            access, sharing = self.problem.accesses[free.number], self._segments_in_phase.get(free.number)
            if sharing and not is_direct_load(access.op) and not (dealt and free.number in self._torn):
                access = _weighted(access, Fraction(self.scale, sharing))
                # One segment by each warp and iteration: a part of every assignment.
                alone = replace(free.work, slots=slots, first=0, threads=warps * slots).with_own_loops()
                accesses[free.number] = with_assignment(alone, alone.natural, access, threads)
        return replace(self.problem, accesses=tuple(accesses))

    def others(self) -> Iterator[Problem]:
        """Problems whose layouts may do better than that of the relaxed one."""
        if self.direct and (past_registers := self._as_stores()) is not None:
            yield past_registers
        yield self.natural
        with_idle_threads = [with_padded_segments(free, self.gpu) or free for free in self.free]
        if with_idle_threads != list(self.free):
            yield naturally(self.problem, with_idle_threads)

    def _as_stores(self) -> Problem | None:
        """Where direct loads are free: XORs of the tile's bytes, which threads may write in turn."""
        accesses = list(self.relaxed().accesses)
        for free in self.free:
            access, width = accesses[free.number], free.lanes.operation.width_bytes
            if is_direct_load(access.op):
                accesses[free.number] = replace(access, op="store", bytes=width)
        layout = replace(self.problem.layout, families=("none", "xor"))
        whole = replace(self.problem, accesses=tuple(accesses), layout=layout)
        return None if whole.is_dictated else whole


def _served_by_warp(problem: Problem, gpu: Device, movable: Sequence[FreeAccess]) -> Device:
    """The device, if lanes of the accesses `movable` were served in any order, and those of no others."""
    served = ((free.lanes.operation, free.lanes.rule) for free in movable)
    rules = {(op.kind, op.width_bytes): whole_warp(rule) for op, rule in served}
    numbers = {free.number for free in movable}
    for k, access in enumerate(problem.accesses):
        if rules and k not in numbers and access.hardware is None:
            widths = access.bytes if isinstance(access.bytes, tuple) else (access.bytes,)
            others = (parse_operation(access.op, width) for width in widths)
            if any((other.kind, other.width_bytes) in rules for other in others):
                return gpu
    return replace(gpu, rules={**gpu.rules, **rules}) if rules else gpu


def _is_of_warps(work: Work, lanes: int) -> bool:
    """Whether each warp instruction covers one segment."""
    return work.segment == lanes and not (work.first or work.threads % lanes or work.units % lanes)


def _weighted(access: Access, factor: int | Fraction) -> Access:
    weight = access.weight
    if isinstance(weight, str):
        return replace(access, weight=f"({weight})*{factor}")
    scaled = Fraction(str(weight)) * factor
    whole = int(scaled) if scaled.denominator == 1 else float(scaled)
    return replace(access, weight=whole)
