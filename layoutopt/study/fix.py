"""What would mend a layout in use, at the least change."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.engine.estimate import estimate
from layoutopt.engine.run_time_values import rounded_count
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Estimate, Result
from layoutopt.problems.types import Constraints, Problem
from layoutopt.study.advice import SAME_TIME
from layoutopt.study.findings import Finding
from layoutopt.study.in_use import InUse
from layoutopt.study.nearest_edit import is_large, nearest_edit

Solver = Callable[[Problem], Result]


class EditedLayout(Struct, frozen=True):
    """The nearest edit of a layout in use.

    Attributes:
        text: what to change, such as "change 129 to 132".
        offset: the formula after it, element offset over x0, x1, ...
        excess: wavefronts above ideal that are left.
        bytes: to the end of the last element.
        saved_wavefronts: less than before.
    """

    text: str
    offset: str
    excess: int | float
    bytes: int
    saved_wavefronts: int | float


class Timed:
    """Estimates for a layout in use and for others of its tile; of large problems, as long as there is time.

    Attributes:
        case: of the layout in use.
        own: its estimate; None where it is no formula or no layout, or lanes choose at run time.
    """

    def __init__(self, used: InUse, sound: bool, budget: Budget) -> None:
        self.case = used.case
        self.large = is_large(self.case, used.node)
        self.budget = budget
        self.own = self.of(used.node) if sound and used.node is not None else None

    def of(self, layout: Layout | Node) -> Estimate | None:
        """The estimate of a layout, where there can be one."""
        if self.case.chooses or (self.budget.spent and self.large):
            return None
        return estimate(self.case, layout, self.case.count(self.case.table(layout)))

    def cost(self, node: Node, table: IntArray) -> float:
        """The estimated time of a formula with these offsets; its excess where there is no estimate."""
        took = self.of(node) if self.own is not None else None
        return took.time if took is not None else self.case.weighted_excess(self.case.count(table))


def edited(used: InUse, excess: int | float, timed: Timed) -> EditedLayout | None:
    """The nearest edit of a layout in use that is a formula, where one is better than it."""
    if used.node is None:
        return None
    case = timed.case
    found = nearest_edit(used.node, case, timed.budget, cost=timed.cost)
    if found is None:
        return None
    left = rounded_count(sum(report.excess for report in case.measure(found.edit.node)))
    saved = rounded_count(excess - left)
    return EditedLayout(found.edit.text, to_text(found.edit.node), left, found.bytes, saved)


def edit_finding(used: InUse, edit: EditedLayout) -> Finding:
    """The same for people."""
    size = edit.bytes - used.size
    gain = [f"saves {edit.saved_wavefronts:,} wavefronts"] if edit.saved_wavefronts > 0 else []
    gain += [f"{'costs' if size > 0 else 'saves'} {abs(size):,} bytes"] if size else []
    return Finding(
        "edit",
        f"{edit.text}: {edit.offset}" + (f"; {', '.join(gain)}" if gain else ""),
        details=msgspec.to_builtins(edit),
    )


def fix(
    used: InUse,
    excess: int | float,
    weighted: float,
    broken: bool,
    solver: Solver,
    timed: Timed,
) -> Iterator[Finding]:
    """The layout of least estimated time, of equals the cheapest to adopt, if it is clearly faster.

    Where there are no estimates, it is the layout of least excess, if it is better in that or in bytes.

    Args:
        used: the layout in use.
        excess, weighted: what it costs.
        broken: it cannot hold the tile at all.
        solver: finds layouts.
        timed: estimates.
    """
    best = _solved(used, solver, None)
    if best is None or best.weighted_excess is None or best.bytes is None:
        return
    if not broken and (best.weighted_excess, best.bytes) >= (weighted, used.size):
        return
    options = [best]
    for families in (("none", "pad"), ("none", "order", "split"), ("none", "xor")):
        layout = used.problem.layout
        if not used.problem.is_dictated and set(families) <= set(layout.families or families):
            option = _solved(used, solver, families)
            if option is not None:
                options.append(option)
    reach = [o for o in options if o.weighted_excess == best.weighted_excess]
    faster = _of_least_time(options, broken, timed)
    if isinstance(faster, Finding):
        yield faster
        return
    # Cheapest to adopt: no more memory than now if that can be had, then the simplest formula.
    chosen = min(faster or reach, key=lambda o: ((o.bytes or 0) > used.size, _cost(o), o.bytes))
    if best.weighted_excess >= weighted and timed.own is None:
        chosen = best  # only bytes are to be won
    yield _fix_finding(used, chosen, excess, weighted)


def _fix_finding(used: InUse, chosen: Result, excess: int | float, weighted: float) -> Finding:
    """What to change, what that saves and what it costs."""
    saved = rounded_count(excess - (chosen.excess or 0))
    size = used.size - (chosen.bytes or 0)
    won, unit = saved, "wavefronts"
    if (weighted, chosen.weighted_excess) != (excess, chosen.excess):
        won, unit = rounded_count(weighted - (chosen.weighted_excess or 0)), "weighted wavefronts"
    gain = [f"{won:,} {unit}"] if won > 0 else []
    gain += [f"{size:,} bytes"] if size > 0 else []
    cost = f", costs {-size:,} bytes" if size < 0 else ""
    return Finding(
        "fix",
        f"{_describe(used, chosen)}: {chosen.offset}"
        + (f"; saves {' and '.join(gain)}" if gain else "")
        + cost,
        details={
            "offset": chosen.offset,
            "family": chosen.family,
            "excess": chosen.excess,
            "bytes": chosen.bytes,
            "saved_wavefronts": saved,
            "saved_bytes": size,
        },
    )


def _of_least_time(options: list[Result], broken: bool, timed: Timed) -> list[Result] | Finding:
    """Those of least time, if they are clearly faster than what is in use, or why it stays.

    Empty where there are no estimates.
    """
    if timed.own is None and not broken:
        return []
    found = [(o, timed.of(o.layout)) for o in options if o.layout is not None]
    pairs = [(o, t) for o, t in found if t is not None]
    if len(pairs) < len(found):
        return []
    faster = [(o, t) for o, t in pairs if _clearly_faster(t, timed.own)]
    if not faster and timed.own is not None:
        return _keep(timed.own, min(pairs, key=lambda pair: pair[1].time))
    least = min(t.time for _, t in faster)
    return [o for o, t in faster if t.time <= SAME_TIME * least]


def _clearly_faster(found: Estimate, own: Estimate | None) -> bool:
    """As `layoutopt.study.advice.clearly_faster`; whatever holds the tile is faster than what does not."""
    if own is None:
        return True
    return found.time * SAME_TIME < own.time and found.cycles * SAME_TIME < own.cycles


def _keep(own: Estimate, fastest: tuple[Result, Estimate]) -> Finding:
    """Leave the layout as it is, and why."""
    result, found = fastest
    rival = "is not clearly faster" if found.time < own.time else "is not faster"
    return Finding(
        "keep",
        f"leave it as it is: {own.cycles:,.0f} cycles a pass are estimated, and {result.offset} {rival}",
        details={"cycles": own.cycles, "fastest": result.offset},
    )


def _solved(used: InUse, solver: Solver, families: tuple[str, ...] | None) -> Result | None:
    old: Constraints = used.problem.layout
    changed = msgspec.structs.replace(old, offset=None, families=families or old.families)
    result = solver(msgspec.structs.replace(used.problem, layout=changed))
    return result if result.layout is not None else None


def _describe(used: InUse, result: Result) -> str:
    """What to change, in the words of kernel authors."""
    layout = result.layout
    assert layout is not None
    if layout.swizzle:
        bits = len(layout.swizzle)
        unit = layout.element_bytes << layout.swizzle[0].bit
        over = "" if result.family == "xor" else f" ({result.family})"
        return f"XOR {bits} bit{'s' if bits > 1 else ''} at {unit} bytes{over}"
    if result.family == "pad" and len(layout.shape) == 2:
        pad = layout.digits[0].stride * layout.packed - layout.shape[1]
        now = _row_pad(used)
        return f"pad {pad}" + (f" instead of {now}" if now is not None else "")
    plain = {"none": "no pad and no swizzle", "order": "another dimension order"}
    return plain.get(result.family or "", f"{result.family}")


def _row_pad(used: InUse) -> int | None:
    """The pad of the audited layout, if it is rows at a pitch."""
    rows, columns = used.tile.shape
    offsets = used.bits.reshape(rows, columns) // used.tile.element_bits
    pitch = int(offsets[1, 0] - offsets[0, 0]) if rows > 1 else columns
    plain = np.arange(rows)[:, None] * pitch + np.arange(columns)
    return pitch - columns if (offsets == plain).all() else None


def _cost(result: Result) -> int:
    return result.proof.index_cost.value if result.proof.index_cost is not None else 0
