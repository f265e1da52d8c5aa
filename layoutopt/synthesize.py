"""Propose, verify, report: the one place that sees both the model and the conflict engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from layoutopt.accesses import LaneTrace, Trace, trace
from layoutopt.address import Layout
from layoutopt.conflicts import count_wavefronts
from layoutopt.cpmodel.search import EVERY_LAYOUT, Proposal, search
from layoutopt.cpmodel.solver import Budget
from layoutopt.devices import Device, device
from layoutopt.errors import LayoutError, ProblemFileError, VerificationError
from layoutopt.expressions import to_text
from layoutopt.formula import offset_expression
from layoutopt.model import AccessReport, Bound, IndexCost, Problem, Proof, Result, Status

INDEX_COST_MEASURE = (
    "integer operations of the linearisation, plus three per distinct shift of the swizzle, "
    "plus four to seven for a rotation"
)


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    workers: int = 1,
    conflict_free: bool = False,
    target: Device | None = None,
    budget: Budget | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Result:
    """The layout of least weighted excess, then bytes, then index cost, verified by the engine.

    Args:
        problem: what to solve.
        time_limit: seconds; None for no limit. The best layout so far is the answer when it ends.
        workers: solver threads. The answer does not depend on it unless the time runs out.
        conflict_free: make any excess infeasible.
        target: the device, where it is not the one the problem names.
        budget: replaces `time_limit`, for callers that stop the search from another thread.
        progress: called with a line of text from time to time.

    Raises:
        ProblemFileError: the problem contradicts itself.
        VerificationError: the conflict engine does not confirm the model; nothing is returned.
    """
    if problem.layout.offset is not None:
        raise ProblemFileError("layout.offset", "fixes the layout, so there is nothing to solve; remove it")
    gpu = target or device(problem.target)
    lanes = trace(problem, gpu)
    if not any(a.active.any() for a in lanes.accesses):
        raise ProblemFileError("accesses", "no access has an active lane")
    proposal = search(
        problem,
        gpu,
        lanes,
        conflict_free=conflict_free,
        budget=budget or Budget(time_limit),
        workers=workers,
        progress=progress,
    )
    return _result(problem, gpu, lanes, proposal)


def measure(layout: Layout, lanes: Trace, gpu: Device, base_bytes: int = 0) -> tuple[AccessReport, ...]:
    """What every access costs under `layout` at `base_bytes`, by the conflict engine, at every lane."""
    table = layout.table().ravel() + base_bytes
    return tuple(_measure(access, table, gpu) for access in lanes.accesses)


def check_layout(layout: Layout, lanes: Trace) -> None:
    """Check that the layout holds the tile and serves the accesses.

    Raises:
        LayoutError: elements overlap, or a vector is torn or misaligned.
    """
    table = layout.table().ravel()
    if table.min() < 0 or len(np.unique(table)) != len(table):
        raise LayoutError("elements overlap")
    for access in lanes.accesses:
        starts = np.unique(access.element[access.active])
        if (table[starts] % access.operation.width_bytes).any() and access.width_elements > 1:
            raise LayoutError(f"access {access.name!r}: a vector is misaligned")
        for k in range(1, access.width_elements):
            if (table[starts + k] != table[starts] + k * layout.element_bytes).any():
                raise LayoutError(f"access {access.name!r}: a vector is torn")


def _measure(access: LaneTrace, table: np.ndarray, gpu: Device) -> AccessReport:
    counts = count_wavefronts(table[access.element], access.active, access.operation, gpu)
    wavefronts, ideal = int(counts.wavefronts.sum()), int(counts.ideal.sum())
    conflicts = int(counts.bank_conflicts.sum())
    return AccessReport(access.name, access.op, wavefronts, ideal, wavefronts - ideal, conflicts)


def _result(problem: Problem, gpu: Device, lanes: Trace, proposal: Proposal) -> Result:
    unit = lanes.weight_unit
    proof = _proof(lanes, proposal)
    layout = proposal.layout
    if layout is None:
        status = Status.INFEASIBLE if proposal.complete else Status.UNKNOWN
        return Result(problem.name, gpu.name, status, proof, proposal.reason)
    reports = _verify(layout, lanes, gpu, proposal)
    return Result(
        problem=problem.name,
        target=gpu.name,
        status=Status.OPTIMAL if proposal.complete else Status.FEASIBLE,
        proof=proof,
        reason=proposal.reason,
        layout=layout,
        family=proposal.family,
        offset=to_text(offset_expression(layout)),
        bytes=proposal.bytes,
        declared_bytes=max(layout.declared_bytes, proposal.bytes),
        alignment_bytes=_alignment(layout, lanes, gpu),
        excess=sum(r.excess for r in reports),
        weighted_excess=proposal.weighted_excess / unit,
        accesses=reports,
    )


def _proof(lanes: Trace, proposal: Proposal) -> Proof:
    """The bounds, with and without weights."""
    bound, scope = proposal.excess_bound
    weights = np.concatenate([a.weight for a in lanes.accesses])
    # Each excess wavefront weighs at most the largest weight.
    least = max(proposal.plain_floor, -(-bound // max(1, int(weights.max()))))
    plain = Bound(least, scope if least > proposal.plain_floor else EVERY_LAYOUT)
    weighted = None
    if (weights != lanes.weight_unit).any():
        value = bound / lanes.weight_unit
        weighted = Bound(int(value) if value.is_integer() else value, scope)
    cost = None
    if proposal.layout is not None:
        cost = IndexCost(proposal.operations, proposal.operations_proved, INDEX_COST_MEASURE)
    return Proof(plain, Bound(*proposal.bytes_bound), cost, weighted)


def _verify(layout: Layout, lanes: Trace, gpu: Device, proposal: Proposal) -> tuple[AccessReport, ...]:
    try:
        check_layout(layout, lanes)
    except LayoutError as error:
        raise VerificationError(f"the model proposed a layout that does not hold the tile: {error}") from None
    table = layout.table()
    size = int(table.max()) + layout.element_bytes
    if size != proposal.bytes:
        raise VerificationError(f"the model promised {proposal.bytes} bytes, the layout takes {size}")
    flat = table.ravel()
    weighted = 0
    for access in lanes.accesses:
        counts = count_wavefronts(flat[access.element], access.active, access.operation, gpu)
        weighted += int(((counts.wavefronts - counts.ideal) * access.weight).sum())
    if weighted != proposal.weighted_excess:
        raise VerificationError(
            f"the model promised a weighted excess of {proposal.weighted_excess}, "
            f"the engine counts {weighted}"
        )
    return measure(layout, lanes, gpu)


def _alignment(layout: Layout, lanes: Trace, gpu: Device) -> int:
    """Base alignment: the widest vector, and with a swizzle the row of banks that it permutes."""
    widest = max(a.operation.width_bytes for a in lanes.accesses)
    natural = layout.element_bytes & -layout.element_bytes
    row = max(gpu.rule(a.operation).banks for a in lanes.accesses) * gpu.bank_bytes if layout.swizzle else 1
    return max(widest, natural, row)
