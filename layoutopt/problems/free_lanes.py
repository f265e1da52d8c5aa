"""Accesses whose lanes are free: which they are, and whether lanes that were chosen do what is asked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import Device
from layoutopt.problems.assignments import Assignment, Work, work_of, written_out
from layoutopt.problems.lower import with_fixed_lanes
from layoutopt.problems.trace import IntArray, LaneTrace, trace
from layoutopt.problems.types import Access, Problem


@dataclass(frozen=True, slots=True)
class FreeAccess:
    """An access whose lanes are free: what it covers, and its lanes as the file has them."""

    number: int
    work: Work
    lanes: LaneTrace


def is_free(problem: Problem) -> bool:
    """Whether some access leaves its lanes or values open."""
    return any(access.is_free for access in problem.accesses)


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


def settled_with(problem: Problem, found: Mapping[int, Assignment], free: Sequence[FreeAccess]) -> Problem:
    """The problem with these assignments, by number of the access, written out."""
    accesses = list(map(with_fixed_lanes, problem.accesses))
    for one in free:
        access = problem.accesses[one.number]
        accesses[one.number] = written_out(one.work, found[one.number], access, problem.threads)
    return msgspec.structs.replace(problem, accesses=tuple(accesses))


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
        if not source.is_free:
            continue
        alone = [msgspec.structs.replace(problem, accesses=(a,)) for a in (with_fixed_lanes(source), access)]
        before, after = (trace(one, gpu).accesses[0] for one in alone)
        if k in works:
            _check_covered(works[k], access, before, after, problem.tile.shape, gpu.lanes)
        else:
            _check_reordered(access, before, after)


def _check_reordered(access: Access, before: LaneTrace, after: LaneTrace) -> None:
    rounds = math.prod(access.loops.values())
    had, has = (np.where(t.active, t.element, -1).reshape(rounds, -1) for t in (before, after))
    if not np.array_equal(np.sort(had, axis=0), np.sort(has, axis=0)):
        raise ProblemFileError(
            "index", f"of access {access.name!r} gives threads other pieces than the file's"
        )


def _check_covered(
    work: Work, access: Access, before: LaneTrace, after: LaneTrace, shape: Sequence[int], warp: int
) -> None:
    if not np.array_equal(np.sort(after.element[after.active]), np.sort(before.element[before.active])):
        raise ProblemFileError("index", f"of access {access.name!r} does not cover what the file's does")
    rounds = math.prod(access.loops.values())
    team = slice(work.first, work.first + work.threads)
    element, active = (values.reshape(rounds, -1)[:, team] for values in (after.element, after.active))
    if active.sum() != after.active.sum():
        raise ProblemFileError("index", f"of access {access.name!r} takes threads that the file's does not")
    size = work.segment
    if size == 1 or work.threads % size or work.units % size:
        return
    unit = _units(work, np.where(active, element, -1), shape)
    lane_order = (np.arange(work.threads) + work.first) // warp * (work.units + 1)
    by_warp = np.sort(np.where(unit < 0, work.units, unit) + lane_order, axis=1) - lane_order
    if not any(_whole(u, size) for u in (unit, np.where(by_warp == work.units, -1, by_warp))):
        raise ProblemFileError(
            "index", f"of access {access.name!r} does not cover whole segments of {size} units"
        )


def _units(work: Work, element: IntArray, shape: Sequence[int]) -> IntArray:
    """Numbers of units in the order of global memory; -1 for no element."""
    number = np.zeros(element.shape, np.int64)
    places = np.unravel_index(np.maximum(element, 0), tuple(shape))
    for d in work.order:
        number = number * work.extents[d] + (places[d] - work.origin[d]) // work.unit[d]
    return np.where(element < 0, -1, number)


def _whole(unit: IntArray, size: int) -> bool:
    """Whether neighbours, `size` at a time, cover a segment or nothing."""
    groups = np.sort(unit.reshape(-1, size), axis=1)
    begin = groups[:, :1]
    return bool(
        (
            (groups < 0).all(axis=1) | ((begin % size == 0) & (groups == begin + np.arange(size))).all(axis=1)
        ).all()
    )
