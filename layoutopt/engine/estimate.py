"""How long a block takes for one pass through its accesses, from what is counted: an estimate, no count.

    cycles = block + sum over accesses of weight * (fixed + memory + index + waits)

    fixed   what every access takes, with its barrier; a copy from global memory much more
    memory  the wavefronts of its warp instructions, one a cycle; or what its busiest warp takes by itself
            where that is more: its instructions follow one another no closer than some cycles, its wavefronts
            neither; a 16-byte copy past the registers takes more where its phases cross lines
    index   a quarter of a cycle or so for every instruction of the index code that a warp issues, there being
            four schedulers
    waits   iterations under a predicate that changes: loads wait a little, and where the index code is long
            the compiler branches around it, one iteration after the other

The coefficients are data of a device (`hardware/devices.json`, `timing`), fitted by
`scripts/measure/fit_time.py` to cycles that a GPU took, and stated with their error. A device without
measurements borrows those of the default target, and the estimate says so.

Where blocks run together on a multiprocessor, one waits while others work:

    time = the cycles of a pass by the blocks that fit; or what keeps a multiprocessor busy: memory and
           schedulers, which overlap in part; or what copies across lines take, or the bytes that they bring,
           whatever is most
"""

import math
from collections import defaultdict
from typing import Final

import numpy as np
from msgspec import Struct

from layoutopt.accesses.trace import LaneTrace
from layoutopt.engine.case import Case
from layoutopt.expressions.grammar import Node, names
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import DEFAULT_TARGET, Device, Timing, device
from layoutopt.hardware.occupancy import Occupancy, occupancy
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Estimate

# Copies past the registers, which are written by lines of so many bytes.
_WHOLE_LINES: Final = "cp.async.cg"
_LINE_BYTES: Final = 128
# Index instructions of an iteration from which the compiler branches around them where a lane takes no part;
# fewer are computed in vain.
_BRANCHED: Final = 7
# Iterations of loads under a predicate that loops change, beyond which nothing is estimated: whether lanes
# wait, skip or are branched around is the compiler's choice in each. Of the tiles that an H200 timed, four
# have more (93 to 1,599): of three of these the estimate is wrong by 2 to 3.5 times. Others have 30 or less.
_MOST_CHANGING: Final = 64


class Memory(Struct, frozen=True):
    """What one access asks of the memory in one pass of a block, times its weight."""

    wavefronts: float  # of all warps
    warp_wavefronts: float  # of the warp that has most
    warp_instructions: float  # issued by the warp that issues most

    def cycles(self, timing: Timing) -> float:
        """Cycles of the access alone: of its wavefronts, or of its slowest warp."""
        warp = timing.warp_wavefront * self.warp_wavefronts, timing.warp_instruction * self.warp_instructions
        return max(self.wavefronts, *warp)


class Terms(Struct, frozen=True):
    """What the estimate counts of a layout: one pass of a block, each access times its weight."""

    memory: tuple[Memory, ...]  # access by access
    accesses: float = 0  # how many there are
    copies: float = 0  # how many of them copy from global memory
    copied_bytes: float = 0  # from global memory, by all lanes
    # Aligned runs of 128 bytes beyond the first, of each phase of a 16-byte copy past the registers
    lines: float = 0
    waits: float = 0  # iterations of loads whose predicate changes from iteration to iteration
    branches: float = 0  # iterations of any access under such a predicate with long index code
    instructions: float = 0  # of the index code of all warps
    cost: int = 0  # instructions of the index code of one thread, without weights, as results count them

    def cycles(self, timing: Timing) -> float:
        """Cycles of one pass of a block that has the multiprocessor to itself."""
        return (
            timing.block
            + timing.access * self.accesses
            + timing.copy * self.copies
            + sum(memory.cycles(timing) for memory in self.memory)
            + timing.line * self.lines
            + timing.wait * self.waits
            + timing.branch * self.branches
            + timing.instruction * self.instructions
        )

    def busy(self, timing: Timing) -> float:
        """Cycles that a pass keeps a multiprocessor busy, whatever else runs there."""
        wavefronts = sum(memory.wavefronts for memory in self.memory) + timing.line_wavefronts * self.lines
        issued = timing.instruction * self.instructions
        return max(
            math.hypot(wavefronts, issued) + timing.access_together * self.accesses,
            timing.line_together * self.lines,
            self.copied_bytes / timing.copied_bytes,
        )

    def time(self, timing: Timing, blocks: int | None) -> float:
        """A multiprocessor's cycles for a pass, where so many blocks make passes; None for one."""
        return max(self.busy(timing), self.cycles(timing) / max(1, blocks or 1))


def timing_of(gpu: Device) -> tuple[Timing, str | None]:
    """The device's coefficients, or those it borrows and of which device they are."""
    if gpu.timing is not None:
        return gpu.timing, None
    lender = device(DEFAULT_TARGET)
    assert lender.timing is not None
    return lender.timing, lender.name


def why_no_estimate(case: Case) -> str | None:
    """Why the time of no layout of the tile can be estimated; None where it can."""
    if case.chooses:
        return "lanes choose at run time"
    changing = sum(_changing(lanes, case) for lanes in case.lanes.accesses if lanes.operation.does.returns)
    if changing > _MOST_CHANGING:
        return f"{changing:,.0f} iterations of loads run under predicates that their loops change"
    return None


def _changing(lanes: LaneTrace, case: Case) -> float:
    """Iterations of an access, times its weight, where not the same lanes take part in all of them."""
    warps = -(-case.problem.threads // case.device.lanes)
    active = lanes.active.reshape(-1, warps * case.device.lanes)
    if (active == active[:1]).all():
        return 0
    return float(lanes.weight.mean() / case.lanes.weight_unit * active.any(axis=1).sum())


def block_occupancy(case: Case, size: int, alignment: int) -> Occupancy | None:
    """Blocks and stages where the layout takes so many bytes, and the block what the file says beside it.

    None where the device does not say what a multiprocessor holds.
    """
    problem = case.problem
    return occupancy(
        size,
        alignment,
        problem.threads,
        case.device,
        problem.target,
        other_bytes=problem.block.other_shared_bytes,
        registers=problem.block.registers,
    )


def estimate(case: Case, layout: Layout | Node) -> Estimate:
    """Cycles of a pass of a block, instructions of the index code, blocks and time a multiprocessor.

    The case has no values known only at run time.

    Raises:
        ExpressionError: the formula cannot be evaluated.
        LayoutError: the layout is no layout of the tile.
    """
    timing, borrowed = timing_of(case.device)
    counted = terms(case, layout)
    fits = block_occupancy(case, case.size(case.table(layout)), 1)
    blocks = fits.blocks if fits is not None else None
    time = round(counted.time(timing, blocks), 1)
    return Estimate(round(counted.cycles(timing), 1), counted.cost, blocks, time, borrowed)


def terms(case: Case, layout: Layout | Node) -> Terms:
    """What the estimate counts of a layout: sums over the accesses of one pass, each times its weight.

    Raises as `estimate` does.
    """
    table, code = case.table(layout), case.index_code(layout)
    total: dict[str, float] = defaultdict(float)  # by field of `Terms`
    memory, warps = [], -(-case.problem.threads // case.device.lanes)
    for lanes, count, index in zip(case.lanes.accesses, case.count(table), code, strict=True):
        weights = lanes.weight / case.lanes.weight_unit  # of warp instructions: by iteration, then by warp
        mean_weight, does, code_cost = float(weights.mean()), lanes.operation.does, index.instructions
        issued = np.where(count.phases > 0, weights, 0.0)  # a warp without an active lane issues nothing
        wavefronts = count.wavefronts * weights
        of_warps = (part.reshape(code_cost.iterations, -1).sum(axis=0) for part in (wavefronts, issued))
        most_wavefronts, most_issued = (float(part.max(initial=0)) for part in of_warps)  # of one warp
        memory.append(Memory(float(wavefronts.sum()), most_wavefronts, most_issued))
        total["lines"] += float((_further_lines(lanes, table) * weights).sum())
        total["accesses"] += mean_weight  # once, whatever its iterations
        total["copies"] += mean_weight * does.copies
        if does.copies:
            width = lanes.operation.width_bytes
            total["copied_bytes"] += float((lanes.active.sum(axis=1) * weights).sum()) * width
        total["instructions"] += mean_weight * warps * code_cost.total
        if index.active is not None and names(index.active) - {"tid"}:  # a predicate that loops change
            iterations = mean_weight * float(issued.reshape(code_cost.iterations, -1).any(axis=1).sum())
            if does.returns:  # loads of several iterations are not in flight at once
                total["waits"] += iterations
            if code_cost.looped / code_cost.iterations >= _BRANCHED:
                total["branches"] += iterations
    return Terms(tuple(memory), **total, cost=sum(index.instructions.total for index in code))


def _further_lines(lanes: LaneTrace, table: IntArray) -> IntArray:
    """Lines beyond the first that the phases of each warp instruction touch, of copies past the registers."""
    further: IntArray = np.zeros(len(lanes.element), np.int64)
    if lanes.operation.kind != _WHOLE_LINES:
        return further
    line = np.where(lanes.active, table[lanes.element] // _LINE_BYTES, -1)
    for phase in lanes.rule.phases:
        rising = np.sort(line[:, list(phase)], axis=1)
        new = (np.diff(rising, axis=1, prepend=-1) != 0) & (rising >= 0)
        further += np.maximum(new.sum(axis=1) - 1, 0)
    return further
