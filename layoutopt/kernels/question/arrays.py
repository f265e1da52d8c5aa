"""The arrays in shared memory that a kernel uses, told apart by their bytes.

Declared arrays are known by name. What is carved out of dynamic memory, and everything where no declaration
is at hand, is told apart by what instructions touch: instructions whose bytes overlap use one array, and so
do copies of one instruction, which a compiler makes of a loop: lanes that stand alike in the same line.
An instruction of a function that gets pointers into several declared arrays is one of each.

Bytes of dynamic memory may be one array first and another one later: whoever uses the one is done before a
barrier of the whole block, behind which the other begins. What was executed by the first block says so.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.kernels.machine.counts import MOST_TRACED_ROWS, Evaluation
from layoutopt.kernels.program import Array, Forget, Memory, Program

# First byte, end, and the steps that touch what is between.
Cluster = tuple[int, int, list[int]]
_READS: Final = ("load", "ldmatrix", "atomic")
_WRITES: Final = ("store", "stmatrix", "copy", "atomic")
_END: Final = np.array([(1 << 63) - 1])  # behind all bytes


class UsedArray(Struct, frozen=True):
    """An array and the steps that touch it, by index."""

    array: Array
    steps: tuple[int, ...]


def used_arrays(evaluation: Evaluation) -> tuple[UsedArray, ...]:
    """The arrays that the launch touches, by address."""
    found: dict[Array, list[int]] = {}
    rest: list[int] = []
    for k, tally in sorted(evaluation.tallies.items()):
        if tally.high <= tally.low:
            continue
        homes = [
            a for a in evaluation.program.arrays if a.start < tally.high and tally.low < a.start + a.size
        ]
        for home in homes:
            found.setdefault(home, []).append(k)
        if not homes or _undeclared(evaluation, k)[0] > tally.low:
            rest.append(k)
    named = [UsedArray(array, tuple(steps)) for array, steps in found.items()]
    clusters = [part for one in _clusters(evaluation, rest) for part in _parted(evaluation, one)]
    end, names = evaluation.program.static_bytes, Counter[str]()
    for low, high, steps in clusters:
        name = f"shared+{low}"
        if end is not None and low >= end:
            name = "dynamic" if low == end and len(clusters) == 1 else f"dynamic+{low - end}"
        names[name] += 1
        again = f" ({names[name]})" if names[name] > 1 else ""
        named.append(UsedArray(Array(name + again, low, high - low), tuple(steps)))
    return tuple(sorted(named, key=lambda used: used.array.start))


def moved_by_itself(evaluation: Evaluation, used: UsedArray) -> str | None:
    """Why the array must stay as it is: what an instruction moves as a whole; None where nothing does.

    Its address is not followed: of a kernel with such an instruction, an array that lanes only read is filled
    by it, one that they only write is read by it, and one that they do both with may be either.
    """
    mover = _mover(evaluation.program)
    if mover is None:
        return None
    kinds = {memory(evaluation, k).kind for k in used.steps}
    reads, writes = kinds.intersection(_READS), kinds.intersection(_WRITES)
    name = mover.split(" [")[0]
    if reads and writes:
        return f"{name} may fill or read it as it lies, at an address that is not followed"
    return f"{name} {'fills' if reads else 'reads'} it as it lies: no layout of its own is possible"


def memory(evaluation: Evaluation, k: int) -> Memory:
    """What a step does that touches shared memory."""
    action = evaluation.program.steps[k].action
    assert isinstance(action, Memory)
    return action


def _mover(program: Program) -> str | None:
    """The text of an instruction that moves bytes of shared memory as a whole; None where there is none."""
    return next((step.text for step in program.steps if step.action == Forget(fills=True)), None)


def _undeclared(evaluation: Evaluation, k: int) -> tuple[int, int]:
    """First byte and end of what a step touches; of one that reaches declared arrays, too, behind those."""
    tally, arrays = evaluation.tallies[k], evaluation.program.arrays
    end = max((array.start + array.size for array in arrays), default=0)
    return (max(tally.low, end) if tally.high > end else tally.low), tally.high


def _clusters(evaluation: Evaluation, steps: Iterable[int]) -> list[Cluster]:
    """Steps whose bytes overlap, and copies of one instruction (`_alike`) with all that lies between.

    A step of bytes 0 to 128, one of 64 to 192 and one of 256 to 512 are the clusters 0 to 192 and 256 to 512.
    """
    found: list[Cluster] = []
    for (low, high), k in sorted((_undeclared(evaluation, k), k) for k in steps):
        found = _with(found, (low, high, [k]))
    copies: dict[object, tuple[int, int]] = {}
    for low, high, touching in found:
        for k in touching:
            first, last = copies.get(_alike(evaluation, k), (low, high))
            copies[_alike(evaluation, k)] = (min(first, low), max(last, high))
    together: list[Cluster] = []
    for low, high, touching in found:
        reach = [copies[_alike(evaluation, k)] for k in touching]
        together = _with(
            together, (min(low, *(a for a, _ in reach)), max(high, *(b for _, b in reach)), touching)
        )
    return together


def _with(found: list[Cluster], new: Cluster) -> list[Cluster]:
    """Clusters in the order of their bytes and another one, made one with those that it overlaps."""
    low, high, steps = new
    while found and low < found[-1][1]:
        *found, (first, last, some) = found
        low, high, steps = min(low, first), max(high, last), [*some, *steps]
    return [*found, (low, high, sorted(steps))]


def _alike(evaluation: Evaluation, k: int) -> object:
    """What copies of one instruction have in common: line, operation, and how lanes stand to each other."""
    step, executions = evaluation.program.steps[k], evaluation.traces.get(k)
    if not executions or not executions[0].lanes.any() or step.place is None:
        return k
    return step.place, *_stands(evaluation, k)


def _stands(evaluation: Evaluation, k: int) -> tuple[object, ...]:
    one = evaluation.traces[k][0]
    offsets = np.where(one.lanes, one.address - one.address[one.lanes].min(initial=1 << 62), -1)
    return memory(evaluation, k).operation, offsets.tobytes(), one.warps.tobytes()


def _parted(evaluation: Evaluation, cluster: Cluster) -> list[Cluster]:
    """A cluster of dynamic memory as the arrays that lie there in turn; itself where that is not sure."""
    (low, _, steps), end = cluster, evaluation.program.static_bytes
    rows = [sum(len(one.warps) for one in evaluation.traces.get(k, [])) for k in steps]
    known = end is not None and low >= end and all(0 < n <= MOST_TRACED_ROWS for n in rows)
    known = known and not any(evaluation.tallies[k].unknown for k in steps)
    if not known or not evaluation.barriers or _mover(evaluation.program) is not None:
        return [cluster]
    eras = [_clusters(evaluation, era) for era in _eras(evaluation, steps)]
    alike = {tuple((low, high) for low, high, _ in era) for era in eras}
    return [cluster] if len(alike) == 1 else [part for era in eras for part in era]


def _eras(evaluation: Evaluation, steps: Sequence[int]) -> list[list[int]]:
    """The steps of arrays in use between the same barriers, in their order in time.

    An array is in use where a step touches it, and, where one reads what nobody wrote since the barrier, from
    where that was written on. Steps use one array where they stand in one line of the source (without lines:
    where lanes stand array).
    """
    # A unit of bytes in an interval between barriers is one number, its key: unit * intervals + interval.
    actions = [memory(evaluation, k) for k in steps]
    unit, intervals = min(action.width_bytes for action in actions), len(evaluation.barriers) + 1
    touched = [_touched(evaluation, k, unit) for k in steps]
    writes = (one for one, action in zip(touched, actions, strict=True) if action.kind in _WRITES)
    written, since = _firsts(*(np.concatenate(part) for part in zip((_END, _END), *writes, strict=True)))
    arrays: dict[object, tuple[BoolArray, list[int]]] = {}  # in which intervals each is in use, and its steps
    for k, action, (keys, order) in zip(steps, actions, touched, strict=True):
        place = evaluation.program.steps[k].place
        array = _stands(evaluation, k) if place is None else (place, action.operation)
        in_use, own = arrays.setdefault(array, (np.zeros(intervals, bool), []))
        own.append(k)
        in_use[keys % intervals] = True
        if action.kind in _READS:
            # What is read before it is written in its interval was written in the last one before, if at all.
            at = np.searchsorted(written, keys)
            older = (written[at] != keys) | (order <= since[at])
            keys, before = keys[older], written[at[older] - 1]
            same_unit = before // intervals == keys // intervals
            spans = np.unique(before[same_unit] % intervals * intervals + keys[same_unit] % intervals)
            for begin, end in zip(*np.divmod(spans, intervals), strict=True):
                in_use[begin : end + 1] = True
    eras: list[tuple[BoolArray, list[int]]] = []  # arrays in use at the same time are one
    for in_use, own in arrays.values():
        rest = []
        for other, others in eras:
            if (other & in_use).any():
                in_use, own = np.logical_or(other, in_use), [*others, *own]
            else:
                rest.append((other, others))
        eras = [*rest, (in_use, own)]
    eras.sort(key=lambda era: int(era[0].argmax()))
    return [sorted(others) for _, others in eras]


def _touched(evaluation: Evaluation, k: int, unit: int) -> tuple[IntArray, IntArray]:
    """The keys (see `_eras`) of what a step touches, each once, and when it does that first."""
    action, executions = memory(evaluation, k), evaluation.traces[k]
    lanes = np.concatenate([one.lanes for one in executions])
    if action.operation is not None and action.operation.matrices:
        lanes &= np.arange(lanes.shape[1]) < 8 * action.operation.matrices
    order = np.repeat([one.order for one in executions], [len(one.lanes) for one in executions])
    address = np.concatenate([np.broadcast_to(one.address, one.lanes.shape) for one in executions])
    interval, count = np.searchsorted(evaluation.barriers, order), len(evaluation.barriers) + 1
    row, _ = np.nonzero(lanes)
    keys, order = _firsts(address[lanes] // unit * count + interval[row], order[row])
    units = np.arange(action.width_bytes // unit) * count
    return _firsts((keys[:, None] + units).ravel(), np.repeat(order, len(units)))


def _firsts(keys: IntArray, order: IntArray) -> tuple[IntArray, IntArray]:
    """Each key once, in their order, and the least of its numbers."""
    by_key = np.lexsort((order, keys))
    found, first = np.unique(keys[by_key], return_index=True)
    return found, order[by_key][first]
