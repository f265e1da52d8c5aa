"""What would mend a layout in use, at the least change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from layoutopt.engine.estimate import estimate, why_no_estimate
from layoutopt.engine.referee import rounded_count
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.ground.budget import Budget
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Estimate, Result
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.problems.types import Constraints, Problem
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


def estimate_of(used: InUse, layout: Layout | Node, budget: Budget) -> Estimate | None:
    """The estimate of a layout of the tile; None where there is none, or no time is left."""
    case = used.case
    if why_no_estimate(case) is not None or (budget.spent and is_large(case, used.node)):
        return None
    return estimate(case, layout, case.count(case.table(layout)))


def edited(used: InUse, excess: int | float, budget: Budget) -> EditedLayout | None:
    """The nearest edit of a layout in use that is a formula, where one is better than it."""
    if used.node is None:
        return None
    found = nearest_edit(used.node, used.case, budget, by_time=True)
    if found is None:
        return None
    left = rounded_count(sum(report.excess for report in used.case.measure(found.edit.node)))
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
    own: Estimate | None,
    budget: Budget,
) -> Iterator[Finding]:
    """The layout of least estimated time, of equals the cheapest to adopt, if it is clearly faster.

    Where there are no estimates, it is the layout of least excess, if it is better in that or in bytes.

    Args:
        used: the layout in use.
        excess, weighted: what it costs.
        broken: it cannot hold the tile at all.
        solver: finds layouts.
        own: the estimate of the layout in use.
        budget: the time that other estimates have.
    """
    best = _solved(used, solver, None)
    if best is None or best.weighted_excess is None or best.bytes is None:
        return
    order = EXCESS_FIRST.key
    if not broken and order(best.weighted_excess, best.bytes) >= order(weighted, used.size):
        return
    options = [best, *_of_few_families(used, solver)]
    took = [estimate_of(used, o.layout, budget) if o.layout is not None else None for o in options]
    timed = [(o, t) for o, t in zip(options, took, strict=True) if t is not None]
    if (own is not None or broken) and len(timed) == len(options):
        faster = [(o, t) for o, t in timed if own is None or surely_faster(t, own)]
        if own is not None and not faster:
            yield _keep(own, *min(timed, key=lambda pair: pair[1].time))
            return
        least = min(t.time for _, t in faster)
        options = [o for o, t in faster if t.time <= SAME_TIME * least]
    else:
        options = [o for o in options if o.weighted_excess == best.weighted_excess]
    # Cheapest to adopt: no more memory than now if that can be had, then the simplest formula.
    chosen = min(options, key=lambda o: ((o.bytes or 0) > used.size, _cost(o), o.bytes))
    if best.weighted_excess >= weighted and own is None:
        chosen = best  # only bytes are to be won
    yield _fix_finding(used, chosen, excess, weighted)


def _of_few_families(used: InUse, solver: Solver) -> Iterator[Result]:
    """The best layouts of families that are simple to adopt, where the file allows them."""
    allowed = used.problem.layout.families
    for families in _SIMPLE if not used.problem.is_dictated else ():
        if allowed is None or set(families) <= set(allowed):
            found = _solved(used, solver, families)
            if found is not None:
                yield found


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


def _keep(own: Estimate, result: Result, found: Estimate) -> Finding:
    """Leave the layout as it is: the fastest other is not clearly faster."""
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
