"""What would mend a layout in use, at the least change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.engine.estimate import estimate, why_no_estimate
from layoutopt.engine.referee import rounded_count
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.ground.budget import current, unhurried
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Estimate, Result
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.problems.types import Problem
from layoutopt.study.advice import SAME_TIME, surely_faster
from layoutopt.study.edits import is_large, nearest_edit
from layoutopt.study.findings import Finding
from layoutopt.study.in_use import InUse

Solver = Callable[[Problem], Result]

_SIMPLE: Final = (("none", "pad"), ("none", "order", "split"), ("none", "xor"))


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


def estimate_of(used: InUse, layout: Layout | Node) -> Estimate | None:
    """The estimate of a layout of the tile; None where there is none, or no time is left."""
    case = used.case
    if why_no_estimate(case) is not None or (current().spent and is_large(case, used.node)):
        return None
    return estimate(case, layout, case.count(case.table(layout)))


def edited(used: InUse) -> EditedLayout | None:
    """The nearest edit of a layout in use that is a formula, where one is better than it."""
    if used.node is None:
        return None
    found = nearest_edit(used.node, used.case, by_time=True)
    if found is None:
        return None
    with unhurried():
        left = rounded_count(sum(report.excess for report in used.case.measure(found.edit.node)))
    saved = rounded_count(used.excess - left)
    return EditedLayout(found.edit.text, to_text(found.edit.node), left, found.bytes, saved)


def edit_finding(used: InUse, edit: EditedLayout) -> Finding:
    """The same for people."""
    saved = _saved(edit.saved_wavefronts, "wavefronts", used.size - edit.bytes)
    return Finding("edit", f"{edit.text}: {edit.offset}{saved}", details=msgspec.to_builtins(edit))


def fix(used: InUse, broken: bool, solver: Solver, own: Estimate | None) -> Finding | None:
    """The layout of least estimated time, of equals the cheapest to adopt, if it is clearly faster.

    Where there are no estimates, it is the layout of least excess, if it is better in that or in bytes.

    Args:
        used: the layout in use.
        broken: it cannot hold the tile at all.
        solver: finds layouts.
        own: the estimate of the layout in use.
    """
    problem, weighted = used.case.problem, used.weighted_excess
    allowed = problem.layout.families

    def best_of(families: tuple[str, ...] | None) -> Result:
        layout = msgspec.structs.replace(problem.layout, offset=None, families=families)
        return solver(msgspec.structs.replace(problem, layout=layout))

    best = best_of(allowed)
    if best.layout is None or best.weighted_excess is None or best.bytes is None:
        return None
    order = EXCESS_FIRST.key
    if not broken and order(best.weighted_excess, best.bytes) >= order(weighted, used.size):
        return None
    few = [f for f in _SIMPLE if (allowed is None or {*f} <= {*allowed}) and not problem.is_dictated]
    found = [(o, o.layout) for o in (best, *map(best_of, few)) if o.layout is not None]
    timed = [(o, t) for o, layout in found if (t := estimate_of(used, layout)) is not None]
    options = [o for o, _ in found if o.weighted_excess == best.weighted_excess]
    if (own is not None or broken) and len(timed) == len(found):
        faster = [(o, t) for o, t in timed if own is None or surely_faster(t, own)]
        if own is not None and not faster:
            return _keep(own, *min(timed, key=lambda pair: pair[1].time))
        least = min(t.time for _, t in faster)
        options = [o for o, t in faster if t.time <= SAME_TIME * least]
    # Cheapest to adopt: no more memory than now if that can be had, then the simplest formula.
    chosen = min(options, key=lambda o: ((o.bytes or 0) > used.size, _cost(o), o.bytes))
    if best.weighted_excess >= weighted and own is None:
        chosen = best  # only bytes are to be won
    return _fix_finding(used, chosen)


def _fix_finding(used: InUse, chosen: Result) -> Finding:
    """What to change, what that saves and what it costs."""
    saved = rounded_count(used.excess - (chosen.excess or 0))
    size = used.size - (chosen.bytes or 0)
    won, unit = saved, "wavefronts"
    if (used.weighted_excess, chosen.weighted_excess) != (used.excess, chosen.excess):
        won = rounded_count(used.weighted_excess - (chosen.weighted_excess or 0))
        unit = "weighted wavefronts"
    details = {"offset": chosen.offset, "family": chosen.family, "excess": chosen.excess}
    details |= {"bytes": chosen.bytes, "saved_wavefronts": saved, "saved_bytes": size}
    text = f"{_described(used, chosen)}: {chosen.offset}{_saved(won, unit, size)}"
    return Finding("fix", text, details=details)


def _saved(wavefronts: float, unit: str, size: int) -> str:
    """What a change saves and costs, after a semicolon; empty where it is nothing."""
    gain = [f"{wavefronts:,} {unit}"] if wavefronts > 0 else []
    gain += [f"{size:,} bytes"] if size > 0 else []
    parts = [f"saves {' and '.join(gain)}"] if gain else []
    parts += [f"costs {-size:,} bytes"] if size < 0 else []
    return f"; {', '.join(parts)}" if parts else ""


def _keep(own: Estimate, result: Result, found: Estimate) -> Finding:
    """Leave the layout as it is: the fastest other is not clearly faster."""
    rival = "is not clearly faster" if found.time < own.time else "is not faster"
    text = f"leave it as it is: {own.cycles:,.0f} cycles a pass are estimated, and {result.offset} {rival}"
    return Finding("keep", text, details={"cycles": own.cycles, "fastest": result.offset})


def _described(used: InUse, result: Result) -> str:
    """What to change, in the words of kernel authors."""
    layout = result.layout
    assert layout is not None
    if layout.swizzle:
        bits = len(layout.swizzle)
        unit = layout.element_bytes << layout.swizzle[0].bit
        over = "" if result.family == "xor" else f" ({result.family})"
        return f"XOR {bits} bit{'s' if bits > 1 else ''} at {unit} bytes{over}"
    if result.family == "pad" and len(layout.shape) == 2:
        pad, now = (layout.digits[0].stride - layout.shape[1] // layout.packed), _row_pad(used)
        instead = "" if now is None else f" instead of {now * layout.packed}"
        return f"pad {pad * layout.packed}{instead}"
    plain = {"none": "no pad and no swizzle", "order": "another dimension order"}
    return plain.get(result.family or "", f"{result.family}")


def _row_pad(used: InUse) -> int | None:
    """The pad of the layout in use, if it is rows at a pitch; of packed elements, in bytes."""
    tile = used.case.lowered.tile
    rows, columns = tile.shape
    offsets = used.table.reshape(rows, columns) // tile.element_bytes
    pitch = int(offsets[1, 0] - offsets[0, 0]) if rows > 1 else columns
    plain = np.arange(rows)[:, None] * pitch + np.arange(columns)
    return pitch - columns if (offsets == plain).all() else None


def _cost(result: Result) -> int:
    return result.proof.index_cost.value if result.proof.index_cost is not None else 0
