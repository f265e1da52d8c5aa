"""The question that a compiled kernel asks: one array, and what its instructions did to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from layoutopt.errors import ProblemFileError
from layoutopt.files.file import tile_from_data
from layoutopt.files.python import plain
from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.counts import Execution
from layoutopt.kernels.evaluate import Evaluation
from layoutopt.kernels.program import Array, Memory
from layoutopt.problems.types import Problem

# Different warp instructions of an access that the question holds; more say nothing new of a regular kernel.
MOST_ROWS: Final = 2048
MOST_SHAPES: Final = 2


def problem_of(
    evaluation: Evaluation,
    array: Array,
    steps: Sequence[int],
    *,
    shape: tuple[int, ...] | None = None,
    families: Sequence[str] | None = None,
    max_bytes: int | None = None,
    target: str | None = None,
) -> Problem:
    """The array as a tile, each of its instructions as an access of one warp that visits what all warps did.

    Args:
        evaluation: of the launch, with traces.
        array: bytes of shared memory.
        steps: the instructions that touch it, by index.
        shape: of the tile, in elements; one dimension if not given.
        families: allowed ones.
        max_bytes: that a layout may take.
        target: the GPU; the program's own if not given.

    Raises:
        ProblemFileError: nothing is known of the array, or the shape does not fit it.
    """
    rows = {k: _rows(evaluation.traces.get(k, []), array.start) for k in steps}
    rows = {k: found for k, found in rows.items() if len(found[0])}
    if not rows:
        raise ProblemFileError(array.name, "expected an access whose addresses are known, got none")
    operations = {k: _operation(evaluation, k) for k in rows}
    element = _element_bytes(rows, [width for _, width in operations.values()], array.size)
    tile = shape or (array.size // element,)
    if math.prod(tile) * element > array.size:
        size = f"{array.size} bytes hold {array.size // element} elements of {element}"
        raise ProblemFileError(
            "--shape", f"expected at most what there is ({size}), got {'x'.join(map(str, tile))}"
        )
    names = _names(evaluation, list(rows))
    accesses = [_access(names[k], operations[k], rows[k], tile, element) for k in rows]
    fields: dict[str, Any] = {
        "name": array.name,
        "target": target or evaluation.program.target,
        "tile": {"shape": list(tile), "element": {"bytes": element}},
        "threads": 32,
        "accesses": accesses,
    }
    limits = {"families": families and list(families), "max_bytes": max_bytes}
    fields["layout"] = {name: limit for name, limit in limits.items() if limit is not None}
    return tile_from_data(plain(fields))


def _names(evaluation: Evaluation, steps: Sequence[int]) -> dict[int, str]:
    """What each access is called: its instruction and line, of the source where that is known."""
    found: dict[int, str] = {}
    for k in steps:
        step = evaluation.program.steps[k]
        line = step.place.line if step.place is not None else step.address
        name = f"{step.text.split()[0]} line {line}"
        same = sum(other == name or other.startswith(f"{name} (") for other in found.values())
        found[k] = f"{name} ({same + 1})" if same else name
    return found


def _access(
    name: str,
    operation: tuple[str, int],
    row: tuple[IntArray, npt.NDArray[np.bool_]],
    shape: tuple[int, ...],
    element_bytes: int,
) -> dict[str, Any]:
    op, width = operation
    offsets, lanes = row
    index = np.where(lanes, offsets // element_bytes, 0)
    if index.max() >= math.prod(shape):
        outside = f"element {int(index.max())} lies outside {'x'.join(map(str, shape))}"
        raise ProblemFileError("--shape", outside)
    access: dict[str, Any] = {
        "name": name,
        "op": op,
        "coordinates": np.stack(np.unravel_index(index, shape), axis=-1),
        "active": lanes,
    }
    return access if op.startswith(("ldmatrix", "stmatrix")) else {**access, "bytes": width}


def likely_shapes(evaluation: Evaluation, array: Array, steps: Sequence[int]) -> list[tuple[int, ...]]:
    """Shapes of two dimensions that the array may have, likeliest first: rows as far apart as lanes reach.

    Elements are those of `problem_of`; no row is shorter than an access.
    """
    rows = {k: _rows(evaluation.traces.get(k, []), array.start) for k in steps}
    rows = {k: found for k, found in rows.items() if len(found[0])}
    widths = [_operation(evaluation, k)[1] for k in rows]
    if not rows:
        return []
    element = _element_bytes(rows, widths, array.size)
    seen: Counter[int] = Counter()
    for offsets, lanes in rows.values():
        steps_between = np.abs(np.diff(offsets, axis=1))[lanes[:, 1:] & lanes[:, :-1]] // element
        lengths, counts = np.unique(steps_between, return_counts=True)
        seen.update({int(n): int(c) for n, c in zip(lengths, counts, strict=True)})
    elements = array.size // element
    least = max(2, -(-max(widths) // element))
    found = [n for n, _ in seen.most_common() if n >= least and elements % n == 0 and elements // n > 1]
    return [(elements // n, n) for n in found[:MOST_SHAPES]]


def _operation(evaluation: Evaluation, step: int) -> tuple[str, int]:
    """How a problem names what a step does, and its bytes."""
    action = evaluation.program.steps[step].action
    assert isinstance(action, Memory)
    operation = action.operation
    assert operation is not None
    if operation.matrices:
        trans = ".trans" if operation.transposed else ""
        return f"{operation.kind}.x{operation.matrices}{trans}", 16
    return operation.does.short, operation.width_bytes


def _rows(executions: Sequence[Execution], start: int) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """The different warp instructions: offsets in the array, and the lanes that take part."""
    if not executions:
        return np.zeros((0, 32), np.int64), np.zeros((0, 32), bool)
    lanes = np.concatenate([e.lanes for e in executions])
    address = np.concatenate([np.broadcast_to(e.address, e.lanes.shape) for e in executions])
    offsets = np.where(lanes, address - start, -1)
    offsets = np.unique(offsets[lanes.any(axis=1)], axis=0)
    if len(offsets) > MOST_ROWS:
        offsets = offsets[np.linspace(0, len(offsets) - 1, MOST_ROWS).astype(np.int64)]
    return np.maximum(offsets, 0), offsets >= 0


def _element_bytes(
    rows: dict[int, tuple[IntArray, npt.NDArray[np.bool_]]], widths: Sequence[int], size: int
) -> int:
    """The largest power of two that divides every width, every offset and the size."""
    shared = math.gcd(size, *widths)
    for offsets, lanes in rows.values():
        shared = math.gcd(shared, int(np.bitwise_or.reduce(offsets[lanes], initial=0)))
    return shared & -shared
