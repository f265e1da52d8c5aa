"""An array of a kernel as a problem: its tile, and what every lane of the first block does to it.

Executions of instructions on one line of the source are one access with a loop, where a formula fits all of
them; else each instruction is an access, and where no formula fits, its coordinates are a table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

import msgspec
import numpy as np

from layoutopt.accesses.array_access import from_coordinates
from layoutopt.errors import ProblemFileError
from layoutopt.expressions.threads import fit_threads
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.escape import comment, shown
from layoutopt.hardware.operations import Operation
from layoutopt.kernels.arrays import UsedArray, moved_by_itself
from layoutopt.kernels.counts import MOST_TRACED_ROWS
from layoutopt.kernels.declarations import declared_shape
from layoutopt.kernels.evaluate import Evaluation
from layoutopt.kernels.program import Memory
from layoutopt.kernels.summary import op_text
from layoutopt.problems.types import Problem, Tile

LANES: Final = 32
_NAME_CHARACTERS: Final = 120  # of files and arrays, so that names of accesses keep to their limit
_ELEMENTS: Final = {1: "u8", 2: "f16", 4: "f32", 8: "f64", 16: "b128"}
# Row lengths that are tried where nobody says the shape.
_MOST_PITCHES: Final = 6
_LEAST_ROW_BYTES: Final = 32
# Rows are better to have than one line, if formulas over them are not much longer.
ROWS_MAY_BE_LONGER: Final = 1.5


@dataclass(frozen=True, slots=True)
class Site:
    """Executions of one access by the warps of a block.

    Attributes:
        name: for people.
        operation: what it does.
        offset: int64, shape (trips, warps, 32): bytes from the start of the array.
        lanes: bool, same shape: lanes that take part.
        weight: how often all of it happens.
    """

    name: str
    operation: Operation
    offset: IntArray
    lanes: BoolArray
    weight: int = 1


def array_problem(
    evaluation: Evaluation, used: UsedArray, shape: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """Problem data of an array.

    Args:
        evaluation: of a launch.
        used: the array.
        shape: its extents, where the user says them.

    Raises:
        ProblemFileError: its accesses are not known, too many, or do not go with the shape.
    """
    sites = [one for group in _groups(evaluation, used) for one in group]
    doubtful = [k for k in used.steps if evaluation.tallies[k].unknown]
    if not sites:
        why = (
            "the addresses of its accesses are not known"
            if doubtful
            else "the first block accesses none of it"
        )
        raise ProblemFileError(used.array.name, why)
    element = _element_bytes(sites, used, shape)
    files = {step.place.file for k in used.steps if (step := evaluation.program.steps[k]).place is not None}
    told = shape or next((s for f in sorted(files) if (s := _declared(f, used, element))), None)
    if told is not None:
        element = used.array.size // math.prod(told) if used.array.size % math.prod(told) == 0 else element
    count = -(-used.array.size // element)
    plain = _problem(evaluation, used, element, told or (count,))
    data = plain
    if shape is None and len(told or (count,)) == 1:
        rows = [_problem(evaluation, used, element, one) for one in _shapes(sites, element, count)]
        shortest = min(rows, key=_length, default=plain)
        data = shortest if _length(shortest) <= ROWS_MAY_BE_LONGER * _length(plain) else plain
    moved = moved_by_itself(evaluation, used)
    if moved is not None:
        data["notes"] += f" {comment(moved)}."
    if doubtful:
        lines = ", ".join(_place(evaluation, k) for k in doubtful[:8])
        data["notes"] += f" Accesses whose addresses depend on data are left out: {comment(lines)}."
    return data


def _length(data: dict[str, Any]) -> int:
    """Characters of all indices; a table counts as it is written."""
    return sum(len(text) for access in data["accesses"] for text in access["index"])


def _declared(file: str, used: UsedArray, element: int) -> tuple[int, ...] | None:
    return declared_shape(file, used.array.name, used.array.size)


def _groups(evaluation: Evaluation, used: UsedArray) -> Iterator[list[Site]]:
    """Sites of one line and operation."""
    lines: dict[tuple[object, ...], list[int]] = {}
    for k in used.steps:
        step, tally = evaluation.program.steps[k], evaluation.tallies[k]
        action = step.action
        assert isinstance(action, Memory)
        if tally.unknown or not tally.phases or action.operation is None:
            continue
        key = (step.place, action.operation) if step.place is not None else (k, action.operation)
        lines.setdefault(key, []).append(k)
    for steps in lines.values():
        together = _sites(evaluation, used, steps)
        yield (
            together
            if len(steps) == 1 or _fits(together)
            else [site for k in steps for site in _sites(evaluation, used, [k])]
        )


def _fits(sites: Sequence[Site]) -> bool:
    """Whether one formula gives the offsets of each site."""
    for site in sites:
        trips, warps, lanes = site.offset.shape
        if trips * warps * lanes > 1 << 16:
            return False
        table = np.moveaxis(site.offset, 0, -1).reshape(warps * lanes, trips)
        known = np.moveaxis(site.lanes, 0, -1).reshape(warps * lanes, trips)
        if known.any() and fit_threads(table, LANES, known, 8 * site.operation.matrices or LANES) is None:
            return False
    return True


def _sites(evaluation: Evaluation, used: UsedArray, steps: list[int]) -> list[Site]:
    """What the first block did at these steps, in order; iterations that repeat are one with a weight."""
    program, warps = evaluation.program, evaluation.launch.warps
    executions = sorted((e for k in steps for e in evaluation.traces.get(k, ())), key=lambda e: e.order)
    if sum(len(e.warps) for e in executions) > MOST_TRACED_ROWS:
        raise ProblemFileError(used.array.name, f"more than {MOST_TRACED_ROWS:,} executions in a block")
    turn = Counter[int]()
    rows: dict[int, tuple[IntArray, BoolArray]] = {}
    times: dict[int, int] = {}
    for execution in executions:
        for warp, address, lanes in zip(
            execution.warps.tolist(), execution.address, execution.lanes, strict=True
        ):
            blank = (np.zeros((warps, LANES), np.int64), np.zeros((warps, LANES), bool))
            offset, taking = rows.setdefault(turn[warp], blank)
            offset[warp], taking[warp] = np.where(lanes, address - used.array.start, 0), lanes
            times[turn[warp]] = execution.times
            turn[warp] += 1
    trips = [(*trip, times[k]) for k, trip in sorted(rows.items()) if trip[1].any()]
    if not trips:
        return []
    kinds = Counter[bytes]()
    for offset, taking, often in trips:
        kinds[offset.tobytes() + taking.tobytes()] += often
    action = program.steps[steps[0]].action
    assert isinstance(action, Memory)
    assert action.operation is not None
    name = f"{op_text(action.operation)} {_place(evaluation, steps[0])}"
    found = []
    for weight in sorted(set(kinds.values())):
        seen: set[bytes] = set()
        chosen = []
        for offset, taking, _ in trips:
            key = offset.tobytes() + taking.tobytes()
            if kinds[key] == weight and key not in seen:
                seen.add(key)
                chosen.append((offset, taking))
        offsets, lanes_ = (np.stack(part) for part in zip(*chosen, strict=True))
        found.append(Site(name, action.operation, offsets, lanes_, weight))
    return found


def _place(evaluation: Evaluation, k: int) -> str:
    step = evaluation.program.steps[k]
    if step.place is None:
        return f"at 0x{step.address:x}"
    return f"{shown(PurePath(step.place.file).name, _NAME_CHARACTERS)}:{step.place.line}"


def _element_bytes(sites: Sequence[Site], used: UsedArray, shape: tuple[int, ...] | None) -> int:
    """The largest element that no access splits."""
    if shape is not None:
        element, rest = divmod(used.array.size, math.prod(shape))
        if rest or element not in _ELEMENTS:
            raise ProblemFileError(
                "--shape",
                f"{used.array.name} has {used.array.size} bytes: no elements of 1 to 16 bytes make {shape}",
            )
        return element
    known = used.array.element_bytes
    if known:
        return known
    width = min(2 if site.operation.matrices else min(site.operation.width_bytes, 4) for site in sites)
    if all(site.operation.width_bytes == 8 and not site.operation.matrices for site in sites):
        width = 8
    together = width
    for site in sites:
        together = math.gcd(together, int(np.gcd.reduce(site.offset[site.lanes], initial=0)) or together)
    return math.gcd(together, used.array.size) if used.array.size else together


def _shapes(sites: Sequence[Site], element: int, count: int) -> list[tuple[int, ...]]:
    """Two-dimensional extents whose rows are as long as steps between neighbouring lanes."""
    steps: Counter[int] = Counter()
    for site in sites:
        moves = np.abs(np.diff(site.offset, axis=2))[site.lanes[..., 1:] & site.lanes[..., :-1]]
        values, counts = np.unique(moves, return_counts=True)
        for value, times in zip(values.tolist(), counts.tolist(), strict=True):
            if value % element == 0 and _LEAST_ROW_BYTES <= value <= count * element // 2:
                steps[value // element] += times
    return [(-(-count // pitch), pitch) for pitch, _ in steps.most_common(_MOST_PITCHES)]


def _problem(
    evaluation: Evaluation, used: UsedArray, element: int, extents: tuple[int, ...]
) -> dict[str, Any]:
    """The problem with an array of these extents, whose rows may have a pad that nobody touches."""
    sites = [one for group in _groups(evaluation, used) for one in group]
    strides = [math.prod(extents[k + 1 :]) for k in range(len(extents))]
    touched = max(
        int((((site.offset // element) % extents[-1]) + _reach(site, element))[site.lanes].max())
        for site in sites
    )
    shape = (*extents[:-1], min(extents[-1], touched)) if len(extents) > 1 else extents
    program, launch = evaluation.program, evaluation.launch
    head = Problem("", Tile(shape, _ELEMENTS[element]), launch.threads, (), target=_target(program.target))
    accesses = []
    names: Counter[str] = Counter()
    for site in sites:
        index = np.maximum(site.offset // element, 0)
        parts = [index // stride % extent for stride, extent in zip(strides, extents, strict=True)]
        names[site.name] += 1
        name = site.name if names[site.name] == 1 else f"{site.name} ({names[site.name]})"
        data: dict[str, Any] = {
            "name": name,
            "op": op_text(site.operation),
            "coordinates": np.stack(parts, axis=-1).reshape(-1, LANES, len(extents)),
            "active": site.lanes.reshape(-1, LANES),
            "weight": site.weight,
        }
        if not site.operation.matrices:
            data["bytes"] = site.operation.width_bytes
        access = from_coordinates(data, name, head)
        accesses.append(_plain(msgspec.to_builtins(access)))
    offset = " + ".join(f"x{k}*{s}" if s > 1 else f"x{k}" for k, s in enumerate(strides))
    grid = ",".join(map(str, launch.grid))
    return {
        "schema": "layoutopt.problem/1",
        "name": shown(used.array.name, _NAME_CHARACTERS),
        "notes": f"{used.array.name} of {comment(program.title)}, one block of a launch of {grid}.",
        "target": _target(program.target),
        "tile": {"shape": list(shape), "element": _ELEMENTS[element]},
        "threads": launch.threads,
        "accesses": accesses,
        "published": {
            "offset": offset,
            "bytes": _used_bytes(shape, strides, element),
            "source": f"in use in {comment(program.title)}",
        },
    }


def _reach(site: Site, element: int) -> int:
    return max(1, site.operation.width_bytes // element)


def _used_bytes(shape: tuple[int, ...], strides: list[int], element: int) -> int:
    return (sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1) * element


def _target(name: str) -> str:
    return name.rstrip("af")


def _plain(access: dict[str, Any]) -> dict[str, Any]:
    """Fields that say something."""
    empty: dict[str, Any] = {
        "for": {},
        "any": {},
        "any_is": "worst",
        "weight": 1,
    }
    told = {key: value for key, value in access.items() if value is not None}
    return {key: value for key, value in told.items() if key not in empty or value != empty[key]}
