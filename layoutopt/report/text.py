"""Results as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING

from layoutopt.expressions.grammar import lookups
from layoutopt.hardware.counters import BANK_CONFLICTS, WAVEFRONTS
from layoutopt.layout.formula import offset_expression
from layoutopt.problems.answer import AccessReport, Estimate, ModelGrowth, Proof, Result, Status
from layoutopt.problems.text import abridged, tables
from layoutopt.problems.types import Problem
from layoutopt.problems.words import tile_text, widths_text
from layoutopt.report.descriptor_text import cluster_lines, descriptor_lines
from layoutopt.study.check import Audit, AuditedAccess

if TYPE_CHECKING:
    from layoutopt.study.explanation import Explanation

# Linearisations that `explain` names.
_NAMED = 8


def report(problem: Problem, result: Result, seconds: float | None = None) -> str:
    """The human report of a solve, which took so many seconds, without the code."""
    lines = [f"{problem.name}  {tile_text(problem)}  on {result.target}", ""]
    if result.layout is None:
        lines += [f"{result.status}: {result.reason}"]
        return "\n".join(lines) + "\n"
    overhead = (result.bytes or 0) - problem.tile.bytes
    lines += [
        f"  offset     {result.offset}  (elements)",
        f"  family     {result.family}",
        *_table(result),
        f"  bytes      {result.bytes:,} used, {result.declared_bytes:,} declared"
        + (f" ({overhead:,} more than the elements)" if overhead else " (the elements alone)"),
        f"  alignment  {result.alignment_bytes} bytes",
        *cluster_lines(problem.block),
        "",
    ]
    rows = [("access", "op", "wavefronts", "ideal", "bank_conflicts")]
    rows += [
        (a.name, _op(a, problem), str(a.wavefronts), str(a.ideal), str(a.bank_conflicts))
        for a in result.accesses
    ]
    lines += columns(rows, {0, 1})
    lines += _over_values(result.accesses)
    lines += descriptor_lines(result.accesses)
    lines += _chosen_lanes(result.accesses)
    lines += ["", f"  {_verdict(result, seconds)}"]
    proof = result.proof
    if proof.weighted_excess is not None:
        bound = proof.weighted_excess
        lines += [f"  weighted excess {result.weighted_excess:g} >= {bound.lower_bound:g} in {bound.scope}"]
    lines += [
        f"  excess >= {proof.excess.lower_bound} in {proof.excess.scope}; "
        f"bytes >= {proof.bytes.lower_bound:,} in {proof.bytes.scope}",
    ]
    if proof.every_layout is not None:
        lines += [f"  excess >= {proof.every_layout.lower_bound:g} in {proof.every_layout.scope}"]
    if proof.evidence:
        lines += [f"  the bound on every layout rests on {proof.evidence}"]
    if proof.index_cost is not None:
        proved = "proved least" if proof.index_cost.proved else "not proved least"
        lines += [f"  index cost {proof.index_cost.value} instructions, {proved} at this excess and size"]
    if result.estimate is not None:
        lines += [f"  {_estimated(result.estimate)}"]
    if result.faster is not None:
        lines += [f"  {result.faster.text}"]
    if result.model is not None and result.method == "model":
        lines += [f"  one model: {_rounds(result.model)}"]
    if result.reason:
        lines += [f"  {result.reason}"]
    return "\n".join(lines) + "\n"


def _table(result: Result) -> list[str]:
    """What a formula looks up, which takes no shared memory but is not free."""
    layout = result.layout
    found = lookups(offset_expression(layout)) if layout is not None and layout.lookup else ()
    lines = []
    for one in found:
        count = len(one.values)
        size = count * (2 if max(one.values) < 1 << 16 else 4)
        lines.append(
            f"  table      {count:,} entries, {size:,} bytes of global memory; a load to look one up"
        )
    return lines


def _chosen_lanes(accesses: Sequence[AccessReport | AuditedAccess]) -> list[str]:
    """Which thread handles what, where that was chosen."""
    lines = []
    for access in accesses:
        if access.index is not None:
            loops = "".join(f", {name} < {trips}" for name, trips in (access.loops or {}).items())
            where = f"; only where {abridged(access.where)}" if access.where is not None else ""
            lines.append(f"  {access.name}: [{', '.join(map(abridged, access.index))}] for tid{loops}{where}")
            for table in tables((*access.index, access.where or "")):
                size = 2 * len(table)
                lines.append(
                    f"    {len(table):,} entries, {size:,} bytes of global memory; a load to look one up"
                )
    return ["", *lines] if lines else []


def _estimated(took: Estimate) -> str:
    text = f"estimated {took.cycles:,.0f} cycles a pass of a block, {took.instructions:,} index instructions"
    text += f" (as measured on {took.borrowed})" if took.borrowed else ""
    return text + ("; not even one such block fits on a multiprocessor" if took.blocks_per_sm == 0 else "")


def audit_report(problem: Problem, audit: Audit) -> str:
    """The human report of a check."""
    lines = [
        f"{problem.name}  {tile_text(problem)}  on {audit.target}",
        "",
        f"  offset     {audit.offset or 'a table'}  (elements)",
        f"  bytes      {audit.bytes:,} used, {audit.declared_bytes:,} declared",
        f"  alignment  {audit.alignment_bytes} bytes",
        "",
    ]
    rows = [("access", "op", "wavefronts", "ideal", "bank_conflicts", "profiler")]
    rows += [
        (
            a.name,
            _op(a, problem),
            str(a.wavefronts),
            str(a.ideal),
            str(a.bank_conflicts),
            _counted(a),
        )
        for a in audit.accesses
    ]
    lines += columns(rows, {0, 1})
    lines += _over_values(audit.accesses)
    lines += descriptor_lines(audit.accesses)
    lines += _chosen_lanes(audit.accesses)
    lines += ["", *_profiler(audit), ""]
    lines += [f"  {finding.kind}: {finding.message}" for finding in audit.findings]
    verdict = "the layout cannot hold the tile" if audit.status is Status.INFEASIBLE else "no bank conflicts"
    if audit.status is not Status.INFEASIBLE and audit.excess:
        verdict = f"{audit.excess:,} excess wavefronts"
    lines += ["", f"  {verdict}"] if audit.findings else [f"  {verdict}"]
    return "\n".join(lines) + "\n"


def explanation_report(problem: Problem, explanation: Explanation) -> str:
    """The human report of an explanation."""
    if explanation.conflict_free:
        verdict = f"free of conflicts: {explanation.offset}"
    elif explanation.conflict_free is False and not explanation.lower_bound:
        verdict = "no layout keeps to the constraints"
    elif explanation.conflict_free is False:
        found = explanation.weighted_excess
        best = f"; the best found has {found:g}" if found is not None else ""
        if explanation.weighted and explanation.excess is not None:
            best += f", {explanation.excess} without weights"
        what = "weighted excess wavefronts" if explanation.weighted else "excess wavefronts"
        verdict = f"at least {explanation.lower_bound:g} {what} in {explanation.scope}{best}"
    elif explanation.excess is None:
        verdict = "open: no layout found in the time there was"
    else:
        verdict = f"open: {explanation.excess} excess wavefronts found, none proved"
    lines = [f"{problem.name}  {tile_text(problem)}  on {explanation.target}", "", verdict]
    if explanation.widths:
        lines.append(f"with {widths_text(explanation.widths)}, the solver's choice; what follows is about it")
    if explanation.evidence:
        lines.append(f"the bound rests on {explanation.evidence}")
    for reason in explanation.reasons:
        first, *rest = reason.split("\n")
        lines += ["", *textwrap.wrap(first, 100), *rest]
    if explanation.clashing_accesses:
        lines += ["", *textwrap.wrap(_clash(explanation), 100)]
    if explanation.relaxations:
        lines += ["", "What would help:"]
        for relaxation in explanation.relaxations:
            text = f"{relaxation.kind}: {relaxation.message}"
            lines += textwrap.wrap(text, 120, initial_indent="  ", subsequent_indent="    ")
    if explanation.model is not None:
        lines += ["", *_model(explanation)]
    return "\n".join(lines) + "\n"


def _rounds(grown: ModelGrowth) -> str:
    return (
        f"rounds {grown.rounds}, linearisations written out {grown.written_out}, "
        f"proposals rejected {grown.rejected}, variables {grown.variables}, constraints {grown.constraints}"
    )


def _model(explanation: Explanation) -> Iterator[str]:
    """How the model came to the layout."""
    grown = explanation.model
    if grown is None:
        return
    yield f"The model: {_rounds(grown)}." if grown.rounds else "The model was not asked: rules decided."
    for what, named, count in (
        ("proposed and rejected", grown.proposed, grown.rejected),
        ("written out", grown.written, grown.written_out),
    ):
        if count:
            more = f"; and {count - _NAMED} more" if count > _NAMED else ""
            yield f"  {what}: {'; '.join(named[:_NAMED])}{more}"
    if grown.trees or grown.batches:
        yield f"  least excess: linearisations searched by a tree {grown.trees}, models asked {grown.batches}"
    if grown.rounds or grown.batches:
        yield (
            f"  CP-SAT: branches {grown.branches}, conflicts {grown.conflicts}, "
            f"deterministic time {grown.effort:g}"
        )
    if explanation.decided_by is not None:
        yield f"  decided by: {explanation.decided_by}"


def _clash(explanation: Explanation) -> str:
    """What cannot be served together, and that there is more of it."""
    names = explanation.clashing_accesses
    together = {1: "", 2: "both "}.get(len(names), "all ")
    fewer = {1: "", 2: "; each can without the other"}.get(len(names), f"; any {len(names) - 1} of them can")
    text = f"Clash: {_listed(names)} cannot {together}be free of conflicts"
    text += (fewer if explanation.clash_is_minimal else "") + "."
    if explanation.other_clashes:
        others = "; ".join(_listed(clash) for clash in explanation.other_clashes)
        text += f" That is not all: without one of them, there still clash {others}."
    return text


def _listed(names: Sequence[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}" if first else last


def _profiler(audit: Audit) -> list[str]:
    """What the column of the profiler stands for."""
    if any(BANK_CONFLICTS in access.counters for access in audit.accesses) or not any(
        access.counters for access in audit.accesses
    ):
        return [
            f"  profiler: {BANK_CONFLICTS}*.sum and",
            f"            {WAVEFRONTS}*.sum; * is the suffix above, or nothing for the total",
        ]
    return ["  profiler: the counter of cycles lost to conflicts, which bank_conflicts predicts (inferred)"]


def _counted(access: AuditedAccess) -> str:
    if access.counters and WAVEFRONTS not in access.counters:
        return ", ".join(access.counters)
    moved = [name for name in access.counters if name.startswith(WAVEFRONTS + "_") and access.counters[name]]
    if moved:
        return moved[0].removeprefix(WAVEFRONTS)
    return "total only" if access.counters else "not counted"


def _op(access: AccessReport | AuditedAccess, problem: Problem) -> str:
    """The op, with what was chosen and what the counts stand for."""
    (source,) = [a for a in problem.accesses if a.name == access.name]
    chosen = f", {access.bytes} bytes" if isinstance(source.bytes, tuple) else ""
    return f"{access.op}{chosen}" + (f" ({access.any_is})" if access.any_is else "")


def _over_values(accesses: Sequence[AccessReport | AuditedAccess]) -> list[str]:
    """What the counts of accesses stand for whose lanes choose at run time."""
    meaning = {"worst": "worst over all values", "uniform": "expected over uniform values"}
    return [
        f"  ({word}): {text}" for word, text in meaning.items() if any(a.any_is == word for a in accesses)
    ]


def _verdict(result: Result, seconds: float | None) -> str:
    what = "no bank conflicts" if not result.excess else f"{result.excess} excess wavefronts remain"
    if not result.excess and any(a.any_is for a in result.accesses):
        what = "no more wavefronts than the values need"
    proof = result.proof
    if result.status is Status.OPTIMAL:
        return f"optimal: {what}, {best_as(result.excess, proof)}; verified at every lane"
    after = f" after {seconds:.1f} s" if seconds is not None else ""
    if result.excess:
        what = f"{result.excess} excess wavefronts found, {proof.excess.lower_bound} proved to be needed"
    elif result.bytes != proof.bytes.lower_bound:
        what += f"; {result.bytes:,} bytes found, {proof.bytes.lower_bound:,} proved to be needed"
    return f"{result.status}{after}: {what}; not proved best; verified at every lane"


def best_as(excess: float | None, proof: Proof) -> str:
    """What is best of an answer of so much excess, weights not applied, where the proof is complete."""
    weighs = proof.weighted_excess is not None and (excess or 0) > proof.excess.lower_bound
    least = proof.objective
    everywhere = (least.everywhere or not least.lower_bound) and proof.bytes.everywhere
    return "proved best" + " as weighted" * weighs + " of the layouts searched" * (not everywhere)


def columns(rows: Sequence[Sequence[str]], left: Set[int]) -> list[str]:
    """Rows as aligned text: the columns in `left` to the left, the others, numbers, to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            c.ljust(w) if k in left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
