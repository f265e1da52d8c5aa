"""What reductions and scans of Triton's GPU IR exchange through scratch, as conversions of registers.

The IR says which layout is reduced along which axis; how the partial results of warps meet is the compiler's
choice, and derived here as Triton 3.9 makes it (`ReduceOpHelper` and `ScanLoweringHelper` of its analysis):

- A reduction goes over registers, then lanes, and while warps still hold parts of one result, these bits of
  the warp's number change places with bits of the lane's, those that hold nothing first. At last the results
  go to the layout that the operation returns.
- A scan goes over the chunks that lie in one warp, consecutive registers and lanes; where one has chunks in
  several warps, a lane stores the total of each, and every thread reads all of its scan.

Elements are numbered anew along the axis: those that are left.
"""

from collections.abc import Iterator, Sequence

from layoutopt.imports.triton import PARTS, Bases, along, unit
from layoutopt.imports.triton_text import Vector

Stage = tuple[Vector, Bases, Bases]
"""The shape of what is moved, who holds it, and who wants it."""


def of_reduction(bases: Bases, shape: Sequence[int], axis: int, result: Bases | None) -> Iterator[Stage]:
    """The conversions of a reduction, in order.

    Args:
        bases: of the tensor.
        shape: its extents.
        axis: that is reduced.
        result: the bases of what it returns, which has no such axis; None for a number.
    """
    held = _without(_without(bases, axis, "register"), axis, "lane")
    while any(v[axis] for v in held["warp"]):
        wanted = _swapped(held, axis)
        left = 1 << max(v[axis].bit_length() for part in PARTS for v in held[part])
        yield (*shape[:axis], left, *shape[axis + 1 :]), held, wanted
        held = _without(wanted, axis, "lane")
    if result is not None:
        own = {part: [(*v[:axis], *v[axis + 1 :]) for v in held[part]] for part in PARTS}
        if own != result:
            yield (*shape[:axis], *shape[axis + 1 :]), own, result


def of_scan(bases: Bases, shape: Sequence[int], axis: int) -> Iterator[Stage]:
    """The conversion of a scan: totals of its chunks, to every thread of the scan; none within a warp."""
    size, rank = 1, len(shape)
    for part in ("register", "lane"):
        while unit(axis, size, rank) in bases[part]:
            size *= 2
    held = {part: [(*v[:axis], v[axis] // size, *v[axis + 1 :]) for v in bases[part]] for part in PARTS}
    held["register"] = [v for v in held["register"] if any(v)]
    if not any(v[axis] for v in held["warp"]):
        return
    chunks = shape[axis] // size
    wanted = {part: [(*v[:axis], 0, *v[axis + 1 :]) for v in held[part]] for part in PARTS}
    wanted["register"] = along(axis, 1, chunks, rank) + [v for v in wanted["register"] if any(v)]
    yield (*shape[:axis], chunks, *shape[axis + 1 :]), held, wanted


def _without(bases: Bases, axis: int, part: str) -> Bases:
    """Bases once a part is reduced along the axis: what is left of it is numbered in order."""
    found: Bases = {}
    left = 1
    for own in PARTS:
        found[own] = []
        for vector in bases[own]:
            step = 0 if own == part or not vector[axis] else left
            left <<= step > 0
            found[own].append((*vector[:axis], step, *vector[axis + 1 :]))
    found["register"] = [v for v in found["register"] if any(v)]
    return found


def _swapped(bases: Bases, axis: int) -> Bases:
    """Bases with the warps' along the axis in the place of lanes', of lanes that hold the same if they do."""
    lanes, warps = list(bases["lane"]), list(bases["warp"])
    along = [k for k, v in enumerate(warps) if v[axis]]
    idle = [k for k, v in enumerate(lanes) if not any(v)]
    for k, lane in zip(along, idle if len(idle) >= len(along) else range(len(lanes)), strict=False):
        lanes[lane], warps[k] = warps[k], lanes[lane]
    return {**bases, "lane": lanes, "warp": warps}
