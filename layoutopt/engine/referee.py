"""What counts and checks a finished layout: a table of byte offsets under a problem's accesses.

It sees offsets and lanes only. Where a layout came from, and what was promised of it, is not its business.
"""

from typing import Any

import numpy as np
from msgspec import Struct

from layoutopt.accesses.trace import LaneTrace, Trace
from layoutopt.engine.conflicts import Counts, count_wavefronts
from layoutopt.errors import LayoutError
from layoutopt.ground.arrays import IntArray
from layoutopt.hardware.devices import PhaseRule
from layoutopt.hardware.operations import Operation
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import AccessReport


class CountedAccess(Struct, frozen=True):
    """One access, able to count a table and to report the counts."""

    lanes: LaneTrace
    any_is: str | None = None  # "worst" or "uniform" where lanes choose; None where its elements are known

    @property
    def weight(self) -> IntArray:
        """Weight of each instruction, int64, shape (instructions,), in units of `Trace.weight_unit`."""
        return self.lanes.weight

    def count(self, table: IntArray) -> Counts:
        """What each instruction costs under byte offsets by row-major index, int64, shape (elements,)."""
        lanes = self.lanes
        return count_wavefronts(table[lanes.element], lanes.active, lanes.operation, lanes.rule)

    def report(self, counts: Counts) -> AccessReport:
        """The totals of `counts`."""
        wavefronts, ideal, conflicts = (
            rounded_count(of.sum()) for of in (counts.wavefronts, counts.ideal, counts.bank_conflicts)
        )
        excess = rounded_count(wavefronts - ideal)
        return AccessReport(self.lanes.name, self.lanes.op, wavefronts, ideal, excess, conflicts, self.any_is)


def rounded_count(total: float | np.number[Any]) -> int | float:
    """A sum of counts for people: whole, or an expectation to six decimals."""
    if isinstance(total, int | np.integer):
        return int(total)
    rounded = round(float(total), 6)
    return int(rounded) if rounded.is_integer() else rounded


def excess_under(layout: Layout, lanes: Trace) -> int:
    """The weighted excess of a layout, in units of `Trace.weight_unit`."""
    table, total = layout.table().ravel(), 0
    served_alike: dict[tuple[Operation, PhaseRule], list[LaneTrace]] = {}
    for access in lanes.accesses:
        served_alike.setdefault((access.operation, access.rule), []).append(access)
    for (operation, rule), accesses in served_alike.items():
        parts = zip(*((a.element, a.active, a.weight) for a in accesses), strict=True)
        element, active, weight = map(np.concatenate, parts)
        counts = count_wavefronts(table[element], active, operation, rule)
        total += int(counts.excess @ weight)
    return total


def check_table(table: IntArray, element_bytes: int, lanes: Trace, alignment: int) -> None:
    """Check that byte offsets are a layout of the tile that serves every access.

    Args:
        table: byte offsets by row-major index, int64, shape (elements,).
        lanes: the accesses; every element that a lane may choose where lanes choose.
        alignment: of every element, in bytes.

    Raises:
        LayoutError: elements overlap, an element or an access is misaligned, or a vector is torn.
    """
    if table.min() < 0:
        raise LayoutError("an element lies before the base")
    if (np.diff(np.sort(table)) < element_bytes).any():
        raise LayoutError("elements overlap")
    for access in lanes.accesses:
        if (table[access.starts] % access.operation.width_bytes).any():
            raise _misaligned(table, access)
        if (np.diff(table[access.vectors]) != element_bytes).any():
            raise LayoutError(f"access {access.name!r}: a vector is torn")
    if (misaligned := table % alignment != 0).any():
        element = int(misaligned.argmax())
        at = f"element {element} (row-major) starts at byte {int(table[element])}"
        raise LayoutError(f"{at}, which is no multiple of its alignment, {alignment}")


def _misaligned(table: IntArray, access: LaneTrace) -> LayoutError:
    width = access.operation.width_bytes
    row, lane = np.argwhere(access.active & (table[access.element] % width != 0))[0].tolist()
    return LayoutError(
        f"access {access.name!r} is misaligned: lane {lane} of warp instruction {row} starts at byte "
        f"{int(table[access.element[row, lane]])}, which is no multiple of {width}"
    )
