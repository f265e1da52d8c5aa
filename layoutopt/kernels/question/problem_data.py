"""An array of a kernel as a problem: its tile, and what every lane of the first block does to it.

Executions of instructions on one line of the source are one access with a loop, where a formula fits all of
them; else each instruction is an access, and where no formula fits, its coordinates are a table.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, Final

import numpy as np
from msgspec import Struct

from layoutopt.accesses.ownership import index_fields_by_warp
from layoutopt.engine.conflicts import addressing_lanes
from layoutopt.errors import ProblemFileError, under
from layoutopt.expressions.fit import fit_threads
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.escape import comment, shown
from layoutopt.hardware.operations import Operation
from layoutopt.kernels.machine.counts import MOST_TRACED_ROWS, Evaluation
from layoutopt.kernels.question.arrays import UsedArray, memory, moved_by_itself

LANES: Final = 32
_NAME_CHARACTERS: Final = 120  # of files and arrays, so that names of accesses keep to their limit
_ELEMENTS: Final = {1: "u8", 2: "f16", 4: "f32", 8: "f64", 16: "b128"}
# Row lengths that are tried where nobody says the shape.
_MOST_PITCHES: Final = 6
_LEAST_ROW_BYTES: Final = 32
# Rows are better to have than one line, if formulas over them are not much longer.
ROWS_MAY_BE_LONGER: Final = 1.5


class Site(Struct, frozen=True):
    """Executions of one access by the warps of a block."""

    name: str  # for people
    operation: Operation  # what it does
    offset: IntArray  # int64, shape (trips, warps, 32): bytes from the start of the array
    lanes: BoolArray  # bool, same shape: lanes that take part
    weight: int = 1  # how often all of it happens


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
    question = _Question(evaluation, used, shape)
    plain = question.data(question.extents)
    if shape is not None or len(question.extents) > 1:
        return plain
    shortest = min((question.data(one) for one in question.pitches()), key=_length, default=plain)
    return shortest if _length(shortest) <= ROWS_MAY_BE_LONGER * _length(plain) else plain


class _Question:
    """The accesses of one shared array, ready to be written as a problem for any extents of its tile.

    Args:
        evaluation: of the launch.
        used: the array.
        shape: its extents, where the user gives them.

    Attributes:
        extents: `shape`, else what a source file declares, else one dimension of all elements.
        element_bytes: the array's bytes over its elements; in one dimension, the largest no access splits.

    Raises:
        ProblemFileError: its accesses are not known, or too many; or the shape does not fit its bytes.
    """

    def __init__(self, evaluation: Evaluation, used: UsedArray, shape: tuple[int, ...] | None = None) -> None:
        self._evaluation, self._used = evaluation, used
        self._sites = [site for group in _groups(evaluation, used) for site in group]
        self._doubtful = [k for k in used.steps if evaluation.tallies[k].unknown]
        if not self._sites:
            unknown = "the addresses of its accesses are not known"
            why = unknown if self._doubtful else "the first block accesses none of it"
            raise ProblemFileError(used.array.name, why)
        extents, size = shape or self._declared(), used.array.size
        if extents is None:
            self.element_bytes = _element_bytes(self._sites, size)
            extents = (-(-size // self.element_bytes),)
        else:
            self.element_bytes, rest = divmod(size, math.prod(extents))
            if rest or self.element_bytes not in _ELEMENTS:
                why = f"{used.array.name} has {size} bytes: no elements of 1 to 16 bytes make {extents}"
                raise ProblemFileError("--shape", why)
        self.extents: tuple[int, ...] = extents

    def _declared(self) -> tuple[int, ...] | None:
        from layoutopt.kernels.read.values import declared_shape

        program, array = self._evaluation.program, self._used.array
        places = (program.steps[k].place for k in self._used.steps)
        shapes = (
            declared_shape(file, array.name, array.size, program.title)
            for file in sorted({place.file for place in places if place is not None})
        )
        return next((shape for shape in shapes if shape), None)

    def pitches(self) -> list[tuple[int, int]]:
        """Two-dimensional extents with rows as long as steps between neighbouring lanes, likeliest first."""
        element = self.element_bytes
        count = -(-self._used.array.size // element)
        steps = lane_steps((site.offset, site.lanes) for site in self._sites)
        likely = [step for step, _ in steps.most_common() if step % element == 0]
        rows = [step // element for step in likely if _LEAST_ROW_BYTES <= step <= count * element // 2]
        return [(-(-count // pitch), pitch) for pitch in rows[:_MOST_PITCHES]]

    def data(self, extents: tuple[int, ...]) -> dict[str, Any]:
        """The problem of the array as a tile of these extents.

        Elements at the end of each row that nobody touches are a pad of the layout in use.
        """
        element, used, program = self.element_bytes, self._used, self._evaluation.program
        strides = [math.prod(extents[k + 1 :]) for k in range(len(extents))]
        shape = extents
        if len(extents) > 1:
            touched = (
                int((site.offset[site.lanes] // element % extents[-1]).max())
                + max(1, site.operation.width_bytes // element)
                for site in self._sites
            )
            shape = (*extents[:-1], min(extents[-1], max(touched)))
        threads, target = self._evaluation.launch.threads, program.target.rstrip("af")
        grid = ",".join(map(str, self._evaluation.launch.grid))
        last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        return {
            "schema": "layoutopt.problem/1",
            "name": shown(used.array.name, _NAME_CHARACTERS),
            "notes": f"{used.array.name} of {comment(program.title)}, one block of a launch of {grid}."
            + self._remarks(),
            "target": target,
            "tile": {"shape": list(shape), "element": _ELEMENTS[element]},
            "threads": threads,
            "accesses": list(self._accesses(shape, extents)),
            "published": {
                "offset": " + ".join(f"x{k}*{s}" if s > 1 else f"x{k}" for k, s in enumerate(strides)),
                "bytes": (last + 1) * element,
                "source": f"in use in {comment(program.title)}",
            },
        }

    def _remarks(self) -> str:
        """What the notes say beside the kernel."""
        moved, said = moved_by_itself(self._evaluation, self._used), ""
        if moved is not None:
            said = f" {comment(moved)}."
        if self._doubtful:
            lines = ", ".join(_place(self._evaluation, k) for k in self._doubtful[:8])
            said += f" Accesses whose addresses depend on data are left out: {comment(lines)}."
        return said

    def _accesses(self, shape: tuple[int, ...], extents: tuple[int, ...]) -> Iterator[dict[str, Any]]:
        """The accesses of the problem, of a tile of this shape in an array of these extents."""
        names: Counter[str] = Counter()
        for site in self._sites:
            operation = site.operation
            names[site.name] += 1
            # First element of each lane: its number in the array as it lies, and in the tile without pad.
            element = np.maximum(site.offset // self.element_bytes, 0) % math.prod(extents)
            starts = np.ravel_multi_index(np.unravel_index(element, extents), shape, mode="clip")
            name, fields = site.name, ("coordinates", "active")
            if names[name] > 1:
                name = f"{name} ({names[name]})"
            threads, address_lanes = self._evaluation.launch.threads, operation.address_lanes(LANES)
            with under(name):
                found = index_fields_by_warp(starts, site.lanes, shape, threads, address_lanes, fields)
            width = {} if operation.matrices else {"bytes": operation.width_bytes}
            often = {"weight": site.weight} if site.weight > 1 else {}
            yield {"name": name, "op": operation.text, **width, **found, **often}


def lane_steps(tables: Iterable[tuple[IntArray, BoolArray]]) -> Counter[int]:
    """Bytes from a lane to the next that both take part, and how often, given offsets and lanes."""
    steps: Counter[int] = Counter()
    for offset, lanes in tables:
        moves = np.abs(np.diff(offset, axis=-1))[lanes[..., 1:] & lanes[..., :-1]]
        values, counts = np.unique(moves, return_counts=True)
        steps.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return steps


def _element_bytes(sites: Sequence[Site], size: int) -> int:
    """The largest element that no access splits."""
    width = min(2 if site.operation.matrices else min(site.operation.width_bytes, 4) for site in sites)
    if all(site.operation.width_bytes == 8 and not site.operation.matrices for site in sites):
        width = 8
    together = width
    for site in sites:
        together = math.gcd(together, int(np.gcd.reduce(site.offset[site.lanes], initial=0)) or together)
    return math.gcd(together, size) if size else together


def _length(data: dict[str, Any]) -> int:
    """Characters of all indices; a table counts as it is written."""
    return sum(len(text) for access in data["accesses"] for text in access["index"])


def _groups(evaluation: Evaluation, used: UsedArray) -> Iterator[list[Site]]:
    """Sites of each line and operation, of all its instructions together where a formula fits them."""
    lines: dict[tuple[object, ...], list[int]] = {}
    for k in used.steps:
        tally, operation = evaluation.tallies[k], memory(evaluation, k).operation
        if not tally.unknown and tally.phases and operation is not None:
            place = evaluation.program.steps[k].place
            lines.setdefault((k if place is None else place, operation), []).append(k)
    for steps in lines.values():
        together = _sites(evaluation, used, steps)
        if len(steps) > 1 and not _fits(together):
            together = [site for k in steps for site in _sites(evaluation, used, [k])]
        yield together


def _fits(sites: Sequence[Site]) -> bool:
    """Whether one formula gives the offsets of each site."""
    for site in sites:
        trips, warps, lanes = site.offset.shape
        if trips * warps * lanes > 1 << 16:
            return False
        table = np.moveaxis(site.offset, 0, -1).reshape(warps * lanes, trips)
        known = np.moveaxis(site.lanes, 0, -1).reshape(warps * lanes, trips)
        if known.any() and fit_threads(table, LANES, known, site.operation.address_lanes(LANES)) is None:
            return False
    return True


def _sites(evaluation: Evaluation, used: UsedArray, steps: list[int]) -> list[Site]:
    """Executions of these instructions by the first block, iterations with equal addresses merged by weight.

    Iterations are in order; of several instructions, unrolled from one line, by rising address.
    """
    warps, array = evaluation.launch.warps, used.array
    operation = memory(evaluation, steps[0]).operation
    assert operation is not None
    name = f"{operation.text} {_place(evaluation, steps[0])}"
    executions = sorted((e for k in steps for e in evaluation.traces.get(k, ())), key=lambda e: e.order)
    if sum(len(e.warps) for e in executions) > MOST_TRACED_ROWS:
        raise ProblemFileError(array.name, f"more than {MOST_TRACED_ROWS:,} executions in a block")
    iterations = Counter[int]()  # of each warp, so far
    # By the iteration: offsets and lanes that take part, of all warps, and how often it happened.
    tables: dict[int, tuple[IntArray, BoolArray, int]] = {}
    for one in executions:
        inside = (one.address >= array.start) & (one.address < array.start + array.size)
        for warp, address, lanes, here in zip(
            one.warps.tolist(), one.address, one.lanes, inside, strict=True
        ):
            addressing = addressing_lanes(lanes[None], operation)[0]
            if not here[addressing].any():
                continue
            if not here[addressing].all():
                raise ProblemFileError(array.name, f"lanes of a warp reach it and other memory, {name}")
            blank = (np.zeros((warps, LANES), np.int64), np.zeros((warps, LANES), bool), one.times)
            offset, taking, _ = tables.setdefault(iterations[warp], blank)
            offset[warp], taking[warp] = np.where(lanes, address - array.start, 0), lanes
            iterations[warp] += 1
    distinct: dict[bytes, tuple[IntArray, BoolArray]] = {}
    weights = Counter[bytes]()
    for _, (offset, taking, times) in sorted(tables.items()):
        if taking.any():
            key = offset.tobytes() + taking.tobytes()
            distinct.setdefault(key, (offset, taking))
            weights[key] += times
    found = []
    for weight in sorted(set(weights.values())):
        chosen = [table for key, table in distinct.items() if weights[key] == weight]
        if len(steps) > 1:  # unrolled, in an order that the assembler chose
            chosen.sort(key=lambda table: int(table[0][table[1]][0]))
        offsets, lanes_ = (np.stack(part) for part in zip(*chosen, strict=True))
        found.append(Site(name, operation, offsets, lanes_, weight))
    return found


def _place(evaluation: Evaluation, k: int) -> str:
    step = evaluation.program.steps[k]
    if step.place is None:
        return f"at 0x{step.address:x}"
    return f"{shown(PurePath(step.place.file).name, _NAME_CHARACTERS)}:{step.place.line}"
