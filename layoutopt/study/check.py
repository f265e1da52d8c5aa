"""Audit a layout that somebody already uses: what it costs, what is wrong with it, what would mend it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from layoutopt.accesses.free_lanes import free_accesses, is_free, naturally
from layoutopt.accesses.lower import named_lanes, named_widths, width_choices
from layoutopt.engine.conflicts import Counts
from layoutopt.engine.referee import CountedAccess, KnownLanes
from layoutopt.engine.run_time_values import rounded_count
from layoutopt.expressions.grammar import to_text
from layoutopt.ground.budget import Budget
from layoutopt.hardware.counters import counters
from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import RESULT_SCHEMA, Descriptor, Estimate, Result, Status
from layoutopt.problems.target import target_of
from layoutopt.problems.types import Problem
from layoutopt.search.free_lanes import under_layout
from layoutopt.study import findings
from layoutopt.study.findings import Finding
from layoutopt.study.fix import EditedLayout, Timed, edit_finding, edited, fix
from layoutopt.study.idle_xor import alignment_note, idle_xor
from layoutopt.study.in_use import AnyLayout, InUse


class AuditedAccess(Struct, frozen=True, omit_defaults=True, rename={"loops": "for"}):
    """What one access costs, and what the profiler will print for it."""

    name: str
    op: str
    wavefronts: int | float
    ideal: int | float
    excess: int | float
    bank_conflicts: int | float
    counters: dict[str, int]
    any_is: str | None = None
    bytes: int | None = None
    descriptor: Descriptor | None = None
    index: tuple[str, ...] | None = None
    loops: dict[str, int] | None = None
    where: str | None = None


class Audit(Struct, frozen=True, rename={"schema_": "schema"}):
    """The outcome.

    Attributes:
        status: infeasible where the layout cannot hold the tile at all.
        edit: the nearest edit of the layout that is better; None where there is none, or none was sought.
        estimate: of the time it takes; None where it is no formula or no layout, where lanes choose at run
            time, or where no time was left.
    """

    problem: str
    target: str
    status: Status
    offset: str | None
    bytes: int
    declared_bytes: int
    alignment_bytes: int
    excess: int | float
    weighted_excess: float
    accesses: tuple[AuditedAccess, ...]
    findings: tuple[Finding, ...]
    edit: EditedLayout | None
    estimate: Estimate | None
    schema_: str = RESULT_SCHEMA

    def to_json(self) -> dict[str, Any]:
        """The audit as JSON-ready data, the schema first."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": data.pop("schema"), **data}


def check(
    problem: Problem,
    layout: AnyLayout | None = None,
    *,
    target: Device | str | None = None,
    solver: Callable[[Problem], Result] | None = None,
    budget: Budget | None = None,
    counting: Budget | None = None,
) -> Audit:
    """Audit `layout` under the accesses of `problem`.

    Args:
        problem: the tile and its accesses.
        layout: element offsets as an expression over x0, x1, ...; a `Layout` or a result of `solve`; or an
            integer array of byte offsets in the shape of the tile. None takes the `layout.offset` of the
            file, else its `published.offset`.
        target: the device or its name, where it is not the one the problem names.
        solver: finds the cheapest fix; None leaves that finding and the nearest edit out.
        budget: the time that looking for idle XORs and the nearest edit has; None for no limit.
        counting: the time there is to count what is known only at run time; None for no limit.

    Raises:
        OutOfTime: the time to count was over before the end.
        ProblemFileError: there is no layout to check, or it cannot be read.
    """
    gpu = target_of(problem, target)
    asked = problem
    if is_free(problem):
        natural = naturally(problem, free_accesses(problem, gpu))
        table = InUse(width_choices(natural)[0], layout, gpu).table
        problem = under_layout(problem, gpu, table, budget)
    audit = _with_widths(problem, layout, gpu, solver, budget, counting)
    return msgspec.structs.replace(audit, accesses=named_lanes(audit.accesses, asked, problem))


def _with_widths(
    problem: Problem,
    layout: AnyLayout | None,
    gpu: Device,
    solver: Callable[[Problem], Result] | None,
    budget: Budget | None,
    counting: Budget | None,
) -> Audit:
    """The audit under the widths that cost least."""
    options = width_choices(problem)
    if len(options) > 1:
        # The layout is given, so that every access takes the width that costs it least.
        audits = [_audit(InUse(option, layout, gpu, counting), None, None, final=False) for option in options]
        totals = [
            (a.status is Status.INFEASIBLE, sum(access.wavefronts for access in a.accesses)) for a in audits
        ]
        chosen = options[totals.index(min(totals))]
        audit = _audit(InUse(chosen, layout, gpu, counting), solver, budget)
        return msgspec.structs.replace(audit, accesses=named_widths(audit.accesses, problem, chosen))
    return _audit(InUse(options[0], layout, gpu, counting), solver, budget)


def _audit(
    used: InUse,
    solver: Callable[[Problem], Result] | None,
    budget: Budget | None,
    *,
    final: bool = True,
) -> Audit:
    accesses, budget = used.accesses, budget or Budget()
    counts = [access.count(used.table, used.counting) for access in accesses]
    reports = tuple(_report(used, a, c) for a, c in zip(accesses, counts, strict=True))
    known = [
        (a.lanes, source, c)
        for a, source, c in zip(accesses, used.problem.accesses, counts, strict=True)
        if isinstance(a, KnownLanes)
    ]
    wrong = [finding for kind in _WRONG for finding in kind(used)]
    weighted = rounded_count(
        sum(float(((c.wavefronts - c.ideal) * a.weight).sum()) for a, c in zip(accesses, counts, strict=True))
    )
    found = [
        *wrong,
        *(f for lanes, _, c in known for f in findings.worst(used, lanes, c)),
        *findings.unused(used),
        *findings.too_large(used),
        *idle_xor(used, counts, budget),
        *alignment_note(used, budget),
        *(f for lanes, source, c in known for f in findings.fusion(used, lanes, source, c)),
    ]
    excess = rounded_count(sum(r.excess for r in reports))
    weighted_excess = weighted / used.lanes.weight_unit
    edit, took = None, None
    if final:
        timed = Timed(used, not wrong, budget)
        took = timed.own
        if solver is not None:
            edit = edited(used, excess, timed)
            found += [edit_finding(used, edit)] if edit is not None else []
            found += fix(used, excess, weighted_excess, bool(wrong), solver, timed)
    return Audit(
        used.problem.name,
        used.gpu.name,
        Status.INFEASIBLE if wrong else Status.FEASIBLE,
        to_text(used.node) if used.node is not None else None,
        used.size,
        max(used.array or 0, used.size),
        used.alignment,
        excess,
        weighted_excess,
        reports,
        tuple(found),
        edit,
        took,
    )


# What makes a layout no layout of the tile.
_WRONG = (
    findings.overlaps,
    findings.unaligned,
    findings.vectors,
    findings.base,
    findings.outside,
    findings.unreached,
)


def _report(used: InUse, access: CountedAccess, counts: Counts) -> AuditedAccess:
    base = msgspec.structs.replace(access.report(counts), descriptor=used.by_hardware.get(access.name))
    if not isinstance(access, KnownLanes):
        # No counter shows a worst case or an expectation.
        return AuditedAccess(**msgspec.structs.asdict(base), counters={})
    return AuditedAccess(
        **msgspec.structs.asdict(base),
        counters=counters(used.gpu, access.operation, int(base.wavefronts), int(base.bank_conflicts)),
    )
