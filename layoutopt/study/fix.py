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


def fix(used: InUse, broken: bool, estimate_in_use: Estimate | None) -> Finding | None:
    """Advice to replace the layout in use, or to keep it; None where no layout has less excess or bytes.

    Args:
        used: the layout in use, which `compare` sets beside the best layout and the best of simple families.
        broken: whether it cannot hold the tile at all.
        own: its estimate.
    """
    problem = used.case.problem
    allowed, order = problem.layout.families, EXCESS_FIRST.key

    def best_of(families: tuple[str, ...] | None) -> Result:
        asked = constrained(problem, offset=None, families=families)
        return solve(asked, target=used.case.device, time_limit=None)

    best = best_of(allowed)
    if best.layout is None:
        return None
    gain = order(best.weighted_excess or 0, best.bytes or 0) < order(used.weighted_excess, used.size)
    if not broken and not gain:
        return None
    simple = [f for f in _SIMPLE if (allowed is None or {*f} <= {*allowed}) and not problem.is_dictated]
    results = {r.offset or "": r for r in (best, *map(best_of, simple)) if r.layout is not None}
    rows = [_in_use(used, broken, estimate_in_use), *(_row(used, result) for result in results.values())]
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


def _in_use(used: InUse, broken: bool, estimate_in_use: Estimate | None) -> Row:
    """The layout in use as a row of a comparison."""
    offset = to_text(used.node) if used.node is not None else "the table"
    row = Row("in_use", "the layout in use", "given", offset=offset)
    if broken:
        return msgspec.structs.replace(row, status=Status.INFEASIBLE, reason="it cannot hold the tile")
    costs = cost_fields(used.case, used.counts, used.size, used.alignment, estimate_in_use)
    return msgspec.structs.replace(row, **costs)


def _row(used: InUse, result: Result) -> Row:
    """A layout found, as the same."""
    assert result.layout is not None
    case = used.case
    title = next((f.title for f in FAMILIES if f.title and f.name == result.family), result.family or "")
    row = Row(result.family or "", title, result.status, offset=result.offset)
    took, size = estimate_of(used, result.layout), result.bytes or 0
    with unhurried():
        counts = case.count(case.table(result.layout))
    return msgspec.structs.replace(row, **cost_fields(case, counts, size, result.alignment_bytes or 1, took))
