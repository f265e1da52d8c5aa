"""Results as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from layoutopt.audit import Audit, AuditedAccess
from layoutopt.model import Problem, Result, Status
from layoutopt.profiler import BANK_CONFLICTS, WAVEFRONTS


def report(problem: Problem, result: Result) -> str:
    """The human report of a solve, without the code."""
    lines = [f"{problem.name}  {_tile(problem)}  on {result.target}", ""]
    if result.layout is None:
        lines += [f"{result.status}: {result.reason}"]
        return "\n".join(lines) + "\n"
    overhead = (result.bytes or 0) - problem.tile.bytes
    lines += [
        f"  offset     {result.offset}  (elements)",
        f"  family     {result.family}",
        f"  bytes      {result.bytes:,} used, {result.declared_bytes:,} declared"
        + (f" ({overhead:,} more than the elements)" if overhead else " (the elements alone)"),
        f"  alignment  {result.alignment_bytes} bytes",
        "",
    ]
    rows = [("access", "op", "wavefronts", "ideal", "bank_conflicts")]
    rows += [(a.name, a.op, str(a.wavefronts), str(a.ideal), str(a.bank_conflicts)) for a in result.accesses]
    lines += columns(rows, left=2)
    lines += ["", f"  {_verdict(result)}"]
    proof = result.proof
    if proof.weighted_excess is not None:
        bound = proof.weighted_excess
        lines += [f"  weighted excess {result.weighted_excess:g} >= {bound.lower_bound:g} in {bound.scope}"]
    lines += [
        f"  excess >= {proof.excess.lower_bound} in {proof.excess.scope}; "
        f"bytes >= {proof.bytes.lower_bound:,} in {proof.bytes.scope}",
    ]
    if proof.index_cost is not None:
        proved = "proved least" if proof.index_cost.proved else "not proved least"
        lines += [f"  index cost {proof.index_cost.value} operations, {proved} at this excess and size"]
    if result.reason:
        lines += [f"  {result.reason}"]
    return "\n".join(lines) + "\n"


def audit_report(problem: Problem, audit: Audit) -> str:
    """The human report of a check."""
    lines = [
        f"{problem.name}  {_tile(problem)}  on {audit.target}",
        "",
        f"  offset     {audit.offset or 'a table'}  (elements)",
        f"  bytes      {audit.bytes:,} used, {audit.declared_bytes:,} declared",
        f"  alignment  {audit.alignment_bytes} bytes",
        "",
    ]
    rows = [("access", "op", "wavefronts", "ideal", "bank_conflicts", "cycles >=", "profiler")]
    rows += [
        (
            a.name,
            a.op,
            str(a.wavefronts),
            str(a.ideal),
            str(a.bank_conflicts),
            str(a.least_cycles),
            _counted(a),
        )
        for a in audit.accesses
    ]
    lines += columns(rows, left=2)
    lines += [
        "",
        f"  profiler: {BANK_CONFLICTS}*.sum and",
        f"            {WAVEFRONTS}*.sum; * is the suffix above, or nothing for the total",
        "",
    ]
    lines += [f"  {finding.kind}: {finding.message}" for finding in audit.findings]
    verdict = "the layout cannot hold the tile" if audit.status is Status.INFEASIBLE else "no bank conflicts"
    if audit.status is not Status.INFEASIBLE and audit.excess:
        verdict = f"{audit.excess:,} excess wavefronts"
    lines += ["", f"  {verdict}"] if audit.findings else [f"  {verdict}"]
    return "\n".join(lines) + "\n"


def _counted(access: AuditedAccess) -> str:
    moved = [name for name in access.counters if name.startswith(WAVEFRONTS + "_") and access.counters[name]]
    if moved:
        return moved[0].removeprefix(WAVEFRONTS)
    return "total only" if access.counters else "not counted"


def _verdict(result: Result) -> str:
    what = "no bank conflicts" if not result.excess else f"{result.excess} excess wavefronts remain"
    if result.status is Status.OPTIMAL:
        return f"optimal: {what}, proved best; verified at every lane"
    return f"{result.status}: {what}, not proved best; verified at every lane"


def _tile(problem: Problem) -> str:
    element = problem.tile.element
    name = element if isinstance(element, str) else f"{element.bytes}-byte elements"
    return f"{'x'.join(map(str, problem.tile.shape))} {name}"


def columns(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Rows as aligned text: the first `left` columns to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            c.ljust(w) if k < left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
