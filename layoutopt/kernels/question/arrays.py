"""The arrays in shared memory that a kernel uses, told apart by their bytes.

Declared arrays are known by name. What is carved out of dynamic memory, and everything where no declaration
is at hand, is told apart by what instructions touch: instructions whose bytes overlap use one array, and so
do copies of one instruction, which a compiler makes of a loop: lanes that stand alike in the same line. Bytes
that hold one array and behind a barrier another (`layoutopt.kernels.question.reuse`) are two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from layoutopt.kernels.machine.counts import Tally
from layoutopt.kernels.machine.evaluate import Evaluation
from layoutopt.kernels.program import Array, Memory
from layoutopt.kernels.question.reuse import in_turn, mover_of

# First byte, end, and the steps that touch what is between.
Cluster = tuple[int, int, list[int]]


@dataclass(frozen=True, slots=True)
class UsedArray:
    """An array and the steps that touch it, by index."""

    array: Array
    steps: tuple[int, ...]


def used_arrays(evaluation: Evaluation) -> tuple[UsedArray, ...]:
    """The arrays that the launch touches, by address."""
    ranges = {k: tally for k, tally in evaluation.tallies.items() if tally.high > tally.low}
    found: dict[Array, list[int]] = {}
    rest: dict[int, Tally] = {}
    for k, tally in sorted(ranges.items()):
        home = _home(evaluation.program.arrays, tally)
        if home is not None:
            found.setdefault(home, []).append(k)
        else:
            rest[k] = tally
    named = [UsedArray(array, tuple(steps)) for array, steps in found.items()]
    clusters = _unrolled(evaluation, _clusters(rest))
    end = evaluation.program.static_bytes
    clusters = [part for one in clusters for part in _in_turn(evaluation, one, rest, end)]
    names: Counter[str] = Counter()
    for low, high, steps in clusters:
        dynamic = end is not None and low >= end
        name = _name(low, end, dynamic, len(clusters))
        names[name] += 1
        again = f" ({names[name]})" if names[name] > 1 else ""
        named.append(UsedArray(Array(name + again, low, high - low), tuple(steps)))
    return tuple(sorted(named, key=lambda used: used.array.start))


def moved_by_itself(evaluation: Evaluation, used: UsedArray) -> str | None:
    """Why the array must stay as it is: what an instruction moves as a whole; None where nothing does.

    Its address is not followed: of a kernel with such an instruction, an array that lanes only read is filled
    by it, one that they only write is read by it, and one that they do both with may be either.
    """
    kinds = {
        action.kind for k in used.steps if isinstance(action := evaluation.program.steps[k].action, Memory)
    }
    reads, writes = kinds & {"load", "ldmatrix", "atomic"}, kinds & {"store", "stmatrix", "copy", "atomic"}
    mover = mover_of(evaluation.program)
    if mover is None:
        return None
    name = mover.split(" [")[0]
    if reads and writes:
        return f"{name} may fill or read it as it lies, at an address that is not followed"
    return f"{name} {'fills' if reads else 'reads'} it as it lies: no layout of its own is possible"


def _home(arrays: tuple[Array, ...], tally: Tally) -> Array | None:
    for array in arrays:
        if array.start <= tally.low and tally.high <= array.start + array.size:
            return array
    return None


def _clusters(ranges: dict[int, Tally]) -> list[Cluster]:
    """Steps whose bytes overlap, with the bytes that they touch together."""
    found: list[Cluster] = []
    for k, tally in sorted(ranges.items(), key=lambda item: item[1].low):
        if found and tally.low < found[-1][1]:
            low, high, steps = found[-1]
            found[-1] = (low, max(high, tally.high), [*steps, k])
        else:
            found.append((tally.low, tally.high, [k]))
    return [(low, high, sorted(steps)) for low, high, steps in found]


def _unrolled(evaluation: Evaluation, clusters: list[Cluster]) -> list[Cluster]:
    """Clusters that hold copies of one instruction made one, with all that lies between."""
    copies: dict[object, tuple[int, int]] = {}
    for low, high, steps in clusters:
        for k in steps:
            alike = _stands(evaluation, k)
            first, last = copies.get(alike, (low, high))
            copies[alike] = (min(first, low), max(last, high))
    found: list[Cluster] = []
    for low, high, steps in clusters:
        reach = [copies[_stands(evaluation, k)] for k in steps]
        low, high = min(low, *(a for a, _ in reach)), max(high, *(b for _, b in reach))
        while found and low < found[-1][1]:
            before = found.pop()
            low, high, steps = min(low, before[0]), max(high, before[1]), [*before[2], *steps]
        found.append((low, high, sorted(steps)))
    return found


def _in_turn(
    evaluation: Evaluation, cluster: Cluster, ranges: dict[int, Tally], end: int | None
) -> list[Cluster]:
    """A cluster of dynamic memory as the arrays that lie there in turn; itself where they are all alike."""
    low, _, steps = cluster
    if end is None or low < end:
        return [cluster]
    eras = [
        _unrolled(evaluation, _clusters({k: ranges[k] for k in some})) for some in in_turn(evaluation, steps)
    ]
    alike = {tuple((low, high) for low, high, _ in era) for era in eras}
    return [cluster] if len(alike) == 1 else [part for era in eras for part in era]


def _stands(evaluation: Evaluation, k: int) -> object:
    """What copies of one instruction have in common: line, operation, and how lanes stand to each other."""
    step, executions = evaluation.program.steps[k], evaluation.traces.get(k)
    action = step.action
    assert isinstance(action, Memory)
    if not executions or not executions[0].lanes.any() or step.place is None:
        return k
    address, lanes = executions[0].address, executions[0].lanes
    offsets = np.where(lanes, address - address[lanes].min(), -1)
    return step.place, action.operation, offsets.tobytes(), executions[0].warps.tobytes()


def _name(low: int, end: int | None, dynamic: bool, count: int) -> str:
    if dynamic:
        assert end is not None
        return "dynamic" if low == end and count == 1 else f"dynamic+{low - end}"
    return f"shared+{low}"


def array_of(arrays: tuple[UsedArray, ...], step: int) -> str | None:
    """The name of the array that a step touches."""
    return next((used.array.name for used in arrays if step in used.steps), None)
