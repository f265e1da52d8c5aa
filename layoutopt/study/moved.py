"""Whether a kernel with the bytes of its arrays moved may replace the one before.

It may where its machine code takes fewer wavefronts, no figure of `costs` rises, and every thread reaches
the same bytes, moved, between the same barriers.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.kernels.machine.counts import MOST_TRACED_ROWS, Evaluation
from layoutopt.kernels.program import Array, Memory

# The `footprint` of an array.
FootprintOf = Callable[[Array], dict[bool, IntArray] | None]
_LANES: Final = 32  # of a warp
# Numbers up to here are sorted by marking them.
_MOST_MARKED: Final = 1 << 28


class MovedArray(NamedTuple):
    """An array in both kernels, and where its bytes go (new offsets of old ones); None for one that stays."""

    before: Array
    after: Array
    moves: Callable[[IntArray], IntArray] | None = None


def touching(evaluation: Evaluation, array: Array) -> dict[int, Memory]:
    """Instructions that touch an array, by index."""
    touching = {}
    for index, tally in sorted(evaluation.tallies.items()):
        action = evaluation.program.steps[index].action
        reaches = tally.low < tally.high and tally.low < array.start + array.size and array.start < tally.high
        if isinstance(action, Memory) and action.operation is not None and reaches:
            touching[index] = action
    return touching


class Costs(NamedTuple):
    """Figures of a launch, none of which may rise."""

    unbounded: bool  # no worst case is known
    ended: bool  # the evaluation ended before the kernel did
    # `profiled_most, profiled_least`: wavefronts of what the profiler counts
    profiled_most: int
    profiled_least: int
    # `most, least`: wavefronts of all instructions, where lanes choose worst, and best
    most: int
    least: int


def costs(evaluation: Evaluation) -> Costs:
    """What a launch costs, where lanes choose at most and at least."""
    profiled_most = profiled_least = most = least = 0
    for index, tally in evaluation.tallies.items():
        action = evaluation.program.steps[index].action
        assert isinstance(action, Memory)
        at_most, at_least = (action.counted_times * (tally.wavefronts + n) for n in (tally.worst, tally.best))
        most, least = most + at_most, least + at_least
        if action.counter is not None:
            profiled_most, profiled_least = profiled_most + at_most, profiled_least + at_least
    return Costs(not evaluation.bounded, evaluation.ended, profiled_most, profiled_least, most, least)


def why_not_better(before: Evaluation, after: Evaluation) -> str | None:
    """Why the second launch may not replace the first; None where it takes fewer wavefronts."""
    old, new = costs(before), costs(after)
    risen = [name for name in Costs._fields if getattr(new, name) > getattr(old, name)]
    if not risen and old != new:
        return None
    name = risen[0] if risen else "least"
    if name in ("unbounded", "ended"):
        return "less of what the layout found does is known"
    taken, now = getattr(new, name), getattr(old, name)
    meaning = (" at most" if name.endswith("most") else " at least") * (name != "least")
    meaning += ", as profiled" * name.startswith("profiled")
    return f"the layout found takes {taken:,} wavefronts where {now:,} are taken now{meaning}"


def footprint(evaluation: Evaluation, array: Array) -> dict[bool, IntArray] | None:
    """The bytes of an array that threads of the first block store (True), and all that they reach (False).

    Args:
        evaluation: of the launch, with traces.
        array: its place.

    Returns:
        Sorted distinct numbers, `(barriers before * threads + thread) * array.size + byte of the array`: who
        reaches which byte, between which barriers. None where not all of them are known.
    """
    reached: dict[bool, list[IntArray]] = {stored: [np.zeros(0, np.int64)] for stored in (True, False)}
    threads = evaluation.launch.warps * _LANES
    for step, action in touching(evaluation, array).items():
        assert action.operation is not None
        executions = evaluation.traces.get(step, [])
        rows = sum(len(one.warps) for one in executions)
        if evaluation.tallies[step].unknown or rows > MOST_TRACED_ROWS:  # some are missing
            return None
        # The lanes whose addresses count: of an ldmatrix, eight a matrix, one for each of its rows.
        addressing = np.arange(_LANES) < (8 * action.operation.matrices or _LANES)
        for one in executions:
            lanes = one.lanes & addressing  # as `thread` and `address`: a row for each warp
            thread = np.broadcast_to(one.warps[:, None] * _LANES + np.arange(_LANES), lanes.shape)
            address = np.broadcast_to(one.address, lanes.shape)
            barriers_before = int(np.searchsorted(evaluation.barriers, one.order))
            bytes_ = (address[lanes] - array.start)[:, None] + np.arange(action.width_bytes)
            numbers = (barriers_before * threads + thread[lanes])[:, None] * array.size + bytes_
            inside = numbers[(bytes_ >= 0) & (bytes_ < array.size)]
            reached[False].append(inside)
            if action.kind not in ("load", "ldmatrix"):  # all others leave something there
                reached[True].append(inside)
    return {stored: _distinct(np.concatenate(numbers)) for stored, numbers in reached.items()}


def _distinct(numbers: IntArray) -> IntArray:
    """The numbers in order, each once."""
    if numbers.size == 0 or (end := int(numbers.max()) + 1) > _MOST_MARKED:
        return np.unique(numbers)
    marks = np.zeros(end, bool)
    marks[numbers] = True
    return np.flatnonzero(marks)


def first_astray(before: FootprintOf, after: FootprintOf, arrays: Iterable[MovedArray]) -> str | None:
    """The name of the first array of which threads reach other bytes afterwards; None where all are right.

    An array whose footprint was not known before is not compared; one of which it is not known afterwards
    counts as wrong. Loads alone are not compared: what a thread stored, a compiler may keep in a register.

    Args:
        before, after: `footprint` in either kernel.
        arrays: those of both kernels.
    """
    for array in arrays:
        old, new = before(array.before), after(array.after)
        if old is None:
            continue
        if new is None:
            return array.before.name
        for stored in (True, False):
            when_and_who, offset = np.divmod(old[stored], array.before.size)
            moved = offset if array.moves is None else array.moves(offset)
            expected = _distinct(when_and_who * array.after.size + moved)
            if (moved >= array.after.size).any() or not np.array_equal(expected, new[stored]):
                return array.before.name
    return None
