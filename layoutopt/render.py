"""Results as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from layoutopt.model import Problem, Result, Status


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
    lines += _columns(rows, left=2)
    lines += ["", f"  {_verdict(result)}"]
    proof = result.proof
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


def _verdict(result: Result) -> str:
    what = "no bank conflicts" if not result.excess else f"{result.excess} excess wavefronts remain"
    if result.status is Status.OPTIMAL:
        return f"optimal: {what}, proved best; verified at every lane"
    return f"{result.status}: {what}, not proved best; verified at every lane"


def _tile(problem: Problem) -> str:
    element = problem.tile.element
    name = element if isinstance(element, str) else f"{element.bytes}-byte elements"
    return f"{'x'.join(map(str, problem.tile.shape))} {name}"


def _columns(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Rows as aligned text: the first `left` columns to the left, numbers to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            c.ljust(w) if k < left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
