"""Whether a kernel with the bytes of its arrays at other places may take the place of the first one.

It may where its machine code takes fewer wavefronts, none of which may rise, and every thread reaches the
bytes that it did between the same barriers, moved.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.counts import MOST_TRACED_ROWS, Evaluation
from layoutopt.kernels.program import Array, Memory

# Of an array, its `footprint`.
Reach = Callable[[Array], dict[bool, IntArray] | None]
_LANES: Final = 32
# Of `costs`, where wavefronts begin, and what they are of.
_WAVEFRONTS: Final = 2
_TOLD: Final = (" at most, as profiled", " at least, as profiled", " at most", "")
# Numbers up to here are sorted by marking them.
_MOST_MARKED: Final = 1 << 28


class Part(NamedTuple):
    """An array before and after, and where its bytes go; None for one that stays."""

    before: Array
    after: Array
    moves: Callable[[IntArray], IntArray] | None = None


def touching(evaluation: Evaluation, array: Array) -> dict[int, Memory]:
    """Instructions that touch an array, by index."""
    found = {}
    for index, tally in sorted(evaluation.tallies.items()):
        action = evaluation.program.steps[index].action
        reaches = tally.low < tally.high and tally.low < array.start + array.size and array.start < tally.high
        if isinstance(action, Memory) and action.operation is not None and reaches:
            found[index] = action
    return found


def costs(evaluation: Evaluation) -> tuple[int, ...]:
    """Wavefronts, none of which may rise: at most and at least, of what is profiled and of all."""
    found = [int(not evaluation.bounded), int(evaluation.ended), 0, 0, 0, 0]
    for index, tally in evaluation.tallies.items():
        action = evaluation.program.steps[index].action
        assert isinstance(action, Memory)
        for k, part in enumerate((tally.worst, tally.best)):
            wavefronts = action.counted_times * (tally.wavefronts + part)
            found[2 + k] += wavefronts * (action.counter is not None)
            found[4 + k] += wavefronts
    return tuple(found)


def why_not_better(before: Evaluation, after: Evaluation) -> str | None:
    """Why the second may not take the place of the first; None where it takes fewer wavefronts."""
    old, new = costs(before), costs(after)
    if all(b <= a for a, b in zip(old, new, strict=True)) and old != new:
        return None
    k = next((k for k, (a, b) in enumerate(zip(old, new, strict=True)) if b > a), len(old) - 1)
    if k < _WAVEFRONTS:
        return "less of what the layout found does is known"
    told = _TOLD[k - _WAVEFRONTS]
    return f"the layout found takes {new[k]:,} wavefronts where {old[k]:,} are taken now{told}"


def footprint(evaluation: Evaluation, array: Array) -> dict[bool, IntArray] | None:
    """What threads of the first block do to an array: what they store (True), and all that they reach.

    Bytes that they reach beside it are others' bytes.

    Args:
        evaluation: with traces.
        array: its place.

    Returns:
        Barriers before, thread and byte of the array, as one number whose lowest digit, of base `array.size`,
        is the byte, in order, each once; None where not all of them are known.
    """
    found: dict[bool, list[IntArray]] = {kind: [np.zeros(0, np.int64)] for kind in (True, False)}
    threads = evaluation.launch.warps * _LANES
    for k, action in touching(evaluation, array).items():
        assert action.operation is not None
        traces = evaluation.traces.get(k, [])
        if evaluation.tallies[k].unknown or sum(len(t.warps) for t in traces) > MOST_TRACED_ROWS:
            return None
        addressed = np.arange(_LANES) < (8 * action.operation.matrices or _LANES)
        for one in traces:
            lanes = one.lanes & addressed
            thread = np.broadcast_to(one.warps[:, None] * _LANES + np.arange(_LANES), lanes.shape)[lanes]
            first = np.broadcast_to(one.address, lanes.shape)[lanes] - array.start
            now = int(np.searchsorted(evaluation.barriers, one.order))
            bytes_ = first[:, None] + np.arange(action.width_bytes)
            places = (now * threads + thread)[:, None] * array.size + bytes_
            every = places[(bytes_ >= 0) & (bytes_ < array.size)]
            found[False].append(every)
            if action.kind not in ("load", "ldmatrix"):
                found[True].append(every)
    return {kind: _distinct(np.concatenate(some)) for kind, some in found.items()}


def _distinct(numbers: IntArray) -> IntArray:
    """The numbers in order, each once."""
    if numbers.size == 0 or (end := int(numbers.max()) + 1) > _MOST_MARKED:
        return np.unique(numbers)
    marks = np.zeros(end, bool)
    marks[numbers] = True
    return np.flatnonzero(marks)


def astray(before: Reach, after: Reach, parts: Iterable[Part]) -> str | None:
    """The first array of which threads reach other bytes afterwards; None where all are right.

    An array whose footprint was not known before is not compared; one that is not known afterwards is astray.
    Compared are the bytes stored (True) and all that are reached (False), not loads alone: what a thread
    stored, a compiler may keep in a register.

    Args:
        before, after: the footprints of an array.
        parts: the arrays.
    """
    for part in parts:
        old, new = before(part.before), after(part.after)
        if old is None:
            continue
        if new is None:
            return part.before.name
        for stored in (True, False):
            who, expected = np.divmod(old[stored], part.before.size)
            if part.moves is not None:
                expected = part.moves(expected)
            within = bool((expected < part.after.size).all())
            if not within or not np.array_equal(_distinct(who * part.after.size + expected), new[stored]):
                return part.before.name
    return None
