"""How long a block takes for one pass through its accesses, from what is counted: an estimate, no count.

    cycles = block + sum over accesses of weight * (fixed + memory + index + waits)

    fixed   what every access takes, with its barrier; a load more, a copy from global memory much more
    memory  the wavefronts of its warp instructions, or the cycles that the width of what is returned takes
            where those are more; a block of one warp waits between them; a 16-byte copy past the registers
            takes more where its phases cross lines
    index   instructions of a thread's index code, each so many cycles, or so many for each warp of the
            block where that is more; those under a predicate that changes each iteration take longer
    waits   iterations of loads under such a predicate, which are not issued ahead

The coefficients are data of a device (`hardware/devices.json`, `timing`), fitted by
`scripts/measure/fit_time.py` to cycles that a GPU took, and stated with their error. A device without
measurements borrows those of the default target, and the estimate says so.

Where blocks run together on a multiprocessor, one waits while others work:

    time = the cycles of a pass by the blocks that fit, or what keeps the memory and the schedulers busy where
           that is more
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from layoutopt.engine.case import Case
from layoutopt.engine.conflicts import Counts, IntArray
from layoutopt.expressions.grammar import Node, names
from layoutopt.hardware.devices import DEFAULT_TARGET, Device, Timing, device
from layoutopt.hardware.occupancy import Occupancy, occupancy
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Estimate
from layoutopt.problems.index_code import IndexCode
from layoutopt.problems.trace import LaneTrace

# Copies past the registers, which are written by lines of so many bytes.
_WHOLE_LINES: Final = "cp.async.cg"
_LINE_BYTES: Final = 128


class Terms(Struct, frozen=True):
    """What the estimate counts of a layout: one pass of a block, each access times its weight.

    Attributes:
        memory: cycles of the memory: wavefronts, or the width of what is returned.
        accesses, loads, copies: how many there are; loads return something, copies come from global memory.
        lines: aligned runs of 128 bytes beyond the first, of each phase of a 16-byte copy past the registers.
        waits: iterations of loads whose predicate changes from iteration to iteration.
        instructions: of the index code of a thread.
        predicated: of these, those under such a predicate.
        warps: of the block.
    """

    memory: float
    accesses: float
    loads: float
    copies: float
    lines: float
    waits: float
    instructions: float
    predicated: float
    warps: int

    def cycles(self, timing: Timing) -> float:
        """Of one pass of a block alone."""
        each = max(timing.instruction, timing.instruction_per_warp * self.warps)
        return (
            timing.block
            + timing.access * self.accesses
            + timing.load * self.loads
            + timing.copy * self.copies
            + self.memory * max(1.0, timing.wavefront_of_one_warp / self.warps)
            + timing.line * self.lines
            + timing.wait * self.waits
            + each * (self.instructions - self.predicated)
            + max(each, timing.predicated_instruction) * self.predicated
        )

    def busy(self, timing: Timing) -> float:
        """Cycles that a pass keeps the memory and the schedulers of a multiprocessor busy."""
        issued = timing.instruction_per_warp * self.warps * self.instructions
        return self.memory + timing.line * self.lines + issued


def timing_of(gpu: Device) -> tuple[Timing, str | None]:
    """The device's coefficients, or those it borrows and of which device they are."""
    if gpu.timing is not None:
        return gpu.timing, None
    lender = device(DEFAULT_TARGET)
    assert lender.timing is not None
    return lender.timing, lender.name


def block_occupancy(case: Case, size: int, alignment: int) -> Occupancy | None:
    """Blocks and stages where the layout takes so many bytes, and the block what the file says beside it."""
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


def estimate(case: Case, layout: Layout | Node, counts: Sequence[Counts]) -> Estimate:
    """What `layout` takes.

    Args:
        case: no lanes of which choose at run time.
        layout: as for `Case.table`.
        counts: those of the layout, from `Case.count`.

    Raises:
        ExpressionError: the formula cannot be evaluated.
        LayoutError: the layout is no layout of the tile.
    """
    timing, borrowed = timing_of(case.device)
    code = case.index_code(layout)
    found = terms(case, case.table(layout), counts, code)
    fits = block_occupancy(case, case.size(case.table(layout)), 1)
    blocks = fits.blocks if fits is not None else None
    cycles = found.cycles(timing)
    return Estimate(
        round(cycles, 1),
        sum(index.instructions.total for index in code),
        blocks,
        round(max(found.busy(timing), cycles / max(1, blocks or 1)), 1),
        borrowed,
    )


def terms(case: Case, table: IntArray, counts: Sequence[Counts], code: Sequence[IndexCode]) -> Terms:
    """What the estimate counts.

    Args:
        case: the accesses.
        table: byte offsets by row-major index.
        counts: of every warp instruction, from `Case.count`.
        code: the index code, from `Case.index_code`.
    """
    total = dict.fromkeys(Terms.__struct_fields__[:-1], 0.0)
    for lanes, count, index in zip(case.lanes.accesses, counts, code, strict=True):
        if lanes.operation.does.by_itself:
            continue  # beside the threads
        share = lanes.weight / case.lanes.weight_unit
        weight, does = float(share.mean()), lanes.operation.does
        least = case.device.rule(lanes.operation).least_cycles
        busy = np.where(count.phases > 0, np.maximum(count.wavefronts, least), 0)
        total["memory"] += float((busy * share).sum())
        total["lines"] += float((_lines(lanes, table, case.device) * share).sum())
        total["accesses"] += weight
        total["loads"] += weight * does.returns
        total["copies"] += weight * does.copies
        total["instructions"] += weight * index.instructions.total
        if index.active is not None and names(index.active) - {"tid"}:
            total["predicated"] += weight * index.instructions.looped
            issued = (count.phases * share).reshape(index.instructions.iterations, -1).any(axis=1)
            total["waits"] += weight * float(issued.sum()) * does.returns
    return Terms(**total, warps=-(-case.problem.threads // case.device.lanes))


def _lines(lanes: LaneTrace, table: IntArray, gpu: Device) -> IntArray:
    """Lines beyond the first that the phases of each warp instruction touch."""
    more: IntArray = np.zeros(len(lanes.element), np.int64)
    if lanes.operation.kind != _WHOLE_LINES:
        return more
    line = np.where(lanes.active, table[lanes.element] // _LINE_BYTES, -1)
    for phase in gpu.rule(lanes.operation).phases:
        found = np.sort(line[:, list(phase)], axis=1)
        new = (np.diff(found, axis=1, prepend=-1) != 0) & (found >= 0)
        more += np.maximum(new.sum(axis=1) - 1, 0)
    return more
