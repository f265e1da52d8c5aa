"""What would mend a layout in use: the advice of `compare` on it, the best layout and a few simple ones."""

from typing import Final

import msgspec

from layoutopt.engine.estimate import estimate, why_no_estimate
from layoutopt.engine.referee import rounded_count
from layoutopt.expressions.grammar import Node, to_text
from layoutopt.ground.budget import current, unhurried
from layoutopt.layout.families import FAMILIES
from layoutopt.layout.layout import Layout
from layoutopt.problems.answer import Estimate, Result, Status
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.problems.types import constrained
from layoutopt.search.block import solve
from layoutopt.study.advice import recommend
from layoutopt.study.comparison import Row
from layoutopt.study.edits import is_large
from layoutopt.study.findings import Finding
from layoutopt.study.in_use import InUse
from layoutopt.study.rows import cost_fields

_SIMPLE: Final = (("none", "pad"), ("none", "order", "split"), ("none", "xor"))


def estimate_of(used: InUse, layout: Layout | Node) -> Estimate | None:
    """The estimate of a layout of the tile; None where there is none, or no time is left."""
    case = used.case
    if why_no_estimate(case) is not None or (current().spent and is_large(case, used.node)):
        return None
    return estimate(case, layout)


def fix(used: InUse, cannot_hold: bool, estimate_in_use: Estimate | None) -> Finding | None:
    """Advice to replace the layout in use, or to keep it; None where no layout has less excess or bytes.

    Args:
        used: the layout in use, which is compared with the best layout and the best of simple families.
        cannot_hold: whether it cannot hold the tile at all.
        estimate_in_use: its estimated time, if known.
    """
    problem = used.case.problem
    allowed, cost = problem.layout.families, EXCESS_FIRST.key

    def best_of(families: tuple[str, ...] | None) -> Result:
        asked = constrained(problem, offset=None, families=families)
        return solve(asked, target=used.case.device, time_limit=None)

    best = best_of(allowed)
    if best.layout is None:
        return None
    is_better = cost(best.weighted_excess or 0, best.bytes or 0) < cost(used.weighted_excess, used.size)
    if not cannot_hold and not is_better:
        return None
    simple = [f for f in _SIMPLE if (allowed is None or {*f} <= {*allowed}) and not problem.is_dictated]
    results = {r.offset or "": r for r in (best, *map(best_of, simple)) if r.layout is not None}
    rows = [
        _in_use_row(used, cannot_hold, estimate_in_use),
        *(_result_row(used, result) for result in results.values()),
    ]
    advice = recommend(rows, dictated=problem.is_dictated, no_estimate=why_no_estimate(used.case))
    if advice is None:
        return None
    if advice.keep:
        fastest = min(rows[1:], key=lambda row: row.time or 0.0)
        return Finding("keep", advice.text, details={"cycles": rows[0].cycles, "fastest": fastest.offset})
    chosen = results[advice.offset]
    details = {"offset": chosen.offset, "family": chosen.family, "excess": chosen.excess}
    details |= {"bytes": chosen.bytes, "saved_bytes": used.size - (chosen.bytes or 0)}
    details |= {"saved_wavefronts": rounded_count(used.excess - (chosen.excess or 0))}
    return Finding("fix", advice.text, details=details)


def _in_use_row(used: InUse, cannot_hold: bool, estimate_in_use: Estimate | None) -> Row:
    """The layout in use as a row of a comparison."""
    offset = to_text(used.node) if used.node is not None else "the table"
    row = Row("in_use", "the layout in use", "given", offset=offset)
    if cannot_hold:
        return msgspec.structs.replace(row, status=Status.INFEASIBLE, reason="it cannot hold the tile")
    costs = cost_fields(used.case, used.counts, used.size, used.alignment, estimate_in_use)
    return msgspec.structs.replace(row, **costs)


def _result_row(used: InUse, result: Result) -> Row:
    """A layout that `solve` found, as a row of the same comparison."""
    assert result.layout is not None
    case, family = used.case, result.family or ""
    title = next((f.title for f in FAMILIES if f.title and f.name == family), family)
    row = Row(family, title, result.status, offset=result.offset)
    estimated = estimate_of(used, result.layout)
    with unhurried():
        counts = case.count(case.table(result.layout))
    costs = cost_fields(case, counts, result.bytes or 0, result.alignment_bytes or 1, estimated)
    return msgspec.structs.replace(row, **costs)
