"""Propose, verify, report: the one place that sees both the model and the conflict engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from layoutopt import dictated
from layoutopt.accesses import LaneTrace, Trace, trace
from layoutopt.address import Layout
from layoutopt.conflicts import count_wavefronts
from layoutopt.cpmodel.search import EVERY_LAYOUT, Proposal, look_up, may_look_up, search
from layoutopt.cpmodel.solver import Budget
from layoutopt.devices import Device, device
from layoutopt.errors import LayoutError, ProblemFileError, VerificationError
from layoutopt.expressions import to_text
from layoutopt.formula import offset_expression
from layoutopt.model import AccessReport, Bound, IndexCost, Problem, Proof, Result, Status
from layoutopt.proofs import EveryLayout, every_layout

# Share of the time limit that the search over the families may use; proofs for every layout get the rest.
_SEARCH_SHARE: Final = 0.75

INDEX_COST_MEASURE = (
    "integer operations of the linearisation, plus three per distinct shift of the swizzle, "
    "plus four to seven for a rotation; a look-up counts one"
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
    if problem.layout.must_be is not None:
        return _dictated(problem, gpu, lanes, conflict_free)
    budget = budget or Budget(time_limit)
    with budget.shortened(_SEARCH_SHARE):
        proposal = search(
            problem,
            gpu,
            lanes,
            conflict_free=conflict_free,
            budget=budget,
            workers=workers,
            progress=progress,
        )
    proposal, general = _of_every_layout(problem, gpu, lanes, proposal, conflict_free, budget, workers)
    return _result(problem, gpu, lanes, proposal, general)


def _dictated(problem: Problem, gpu: Device, lanes: Trace, conflict_free: bool) -> Result:
    """The best of the few layouts that the hardware allows: every one is counted."""
    scope = f"the layouts of {' or '.join(dictated.names(problem))}"
    unit = lanes.weight_unit
    ranked, refused = [], []
    for candidate in dictated.candidates(problem):
        try:
            check_layout(candidate.layout, lanes)
        except LayoutError as error:
            refused.append(f"{candidate.name}: {error}")
            continue
        table = candidate.layout.table().ravel()
        plain = weighted = 0
        for access in lanes.accesses:
            counts = count_wavefronts(table[access.element], access.active, access.operation, gpu)
            excess = counts.wavefronts - counts.ideal
            plain += int(excess.sum())
            weighted += int((excess * access.weight).sum())
        ranked.append((weighted, len(candidate.layout.swizzle), plain, candidate))
    ranked.sort(key=lambda row: row[:2])
    weights = any((access.weight != unit).any() for access in lanes.accesses)
    proof = Proof(
        Bound(min((plain for _, _, plain, _ in ranked), default=0), scope),
        Bound(problem.tile.bytes, EVERY_LAYOUT),
        weighted_excess=Bound(ranked[0][0] / unit, scope) if ranked and weights else None,
    )
    costs = [f"{c.name} {weighted / unit:g} excess" for weighted, _, _, c in ranked] + refused
    reason = "; ".join(costs) or f"no layout of {' or '.join(dictated.names(problem))} holds this tile"
    limit = problem.layout.max_bytes
    if not ranked or (conflict_free and ranked[0][0]) or (limit is not None and problem.tile.bytes > limit):
        return Result(problem.name, gpu.name, Status.INFEASIBLE, proof, reason)
    weighted, _, _, best = ranked[0]
    reports = measure(best.layout, lanes, gpu)
    return Result(
        problem=problem.name,
        target=gpu.name,
        status=Status.OPTIMAL,
        proof=proof,
        reason=reason,
        layout=best.layout,
        family=best.name,
        offset=to_text(offset_expression(best.layout)),
        bytes=problem.tile.bytes,
        declared_bytes=best.layout.declared_bytes,
        alignment_bytes=best.alignment_bytes,
        excess=sum(r.excess for r in reports),
        weighted_excess=weighted / unit,
        accesses=reports,
    )


def _of_every_layout(
    problem: Problem,
    gpu: Device,
    lanes: Trace,
    proposal: Proposal,
    conflict_free: bool,
    budget: Budget,
    workers: int,
) -> tuple[Proposal, EveryLayout | None]:
    """Where the families leave excess, ask what holds for every layout; the proposal, better proved."""
    bound, scope = proposal.excess_bound
    if problem.layout.minimise != "excess":
        return proposal, None  # excess is the price of what comes first
    if proposal.layout is None:
        if not conflict_free or bound:
            return proposal, None
        enough = 1
    else:
        enough = proposal.weighted_excess
        if enough == 0 or (bound == enough and scope == EVERY_LAYOUT):
            return proposal, None
    table = proposal.layout.table() if proposal.layout is not None else None
    general = every_layout(
        problem.tile, gpu, lanes, enough=enough, budget=budget, workers=workers, hint=table
    )
    free = general.free
    if proposal.layout is not None and free is not None and free.excess is not None and free.excess < enough:
        if may_look_up(problem):
            return look_up(problem.tile, free, proposal), general
        excess = _unweighted(free.excess, lanes.weight_unit)
        better = f"a table of offsets would have {excess:g} excess in {free.bytes:,} bytes"
        proposal = replace(proposal, reason="; ".join(filter(None, (proposal.reason, better))))
    if general.bound < max(1, bound):
        return proposal, general
    proposal = replace(proposal, excess_bound=(general.bound, EVERY_LAYOUT))
    if proposal.layout is None:
        reason = f"every layout has conflicts, by {general.evidence}"
        return replace(proposal, complete=True, reason=reason), general
    if general.bound == proposal.weighted_excess and proposal.bytes == problem.tile.bytes:
        proposal = replace(proposal, complete=True, reason="")
    return proposal, general


def measure(layout: Layout, lanes: Trace, gpu: Device) -> tuple[AccessReport, ...]:
    """What every access costs under `layout`, by the conflict engine, at every lane."""
    table = layout.table().ravel()
    return tuple(_measure(access, table, gpu) for access in lanes.accesses)


def worst_instruction(layout: Layout, access: LaneTrace, gpu: Device) -> int:
    """The row of `access` that has the most excess under `layout`, by the conflict engine."""
    address = layout.table().ravel()[access.element]
    counts = count_wavefronts(address, access.active, access.operation, gpu)
    return int((counts.wavefronts - counts.ideal).argmax())


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


def _result(
    problem: Problem, gpu: Device, lanes: Trace, proposal: Proposal, general: EveryLayout | None
) -> Result:
    unit = lanes.weight_unit
    proof = _proof(lanes, proposal, general)
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


def _proof(lanes: Trace, proposal: Proposal, general: EveryLayout | None) -> Proof:
    """The bounds, with and without weights."""
    bound, scope = proposal.excess_bound
    weights = np.concatenate([a.weight for a in lanes.accesses])
    # Each excess wavefront weighs at most the largest weight.
    least = max(proposal.plain_floor, -(-bound // max(1, int(weights.max()))))
    plain = Bound(least, scope if least > proposal.plain_floor else EVERY_LAYOUT)
    weighted = None
    if (weights != lanes.weight_unit).any():
        weighted = Bound(_unweighted(bound, lanes.weight_unit), scope)
    cost = None
    if proposal.layout is not None:
        cost = IndexCost(proposal.operations, proposal.operations_proved, INDEX_COST_MEASURE)
    wider, evidence = None, ""
    if general is not None:
        evidence = general.evidence
        if scope != EVERY_LAYOUT:
            wider = Bound(_unweighted(general.bound, lanes.weight_unit), EVERY_LAYOUT)
    return Proof(plain, Bound(*proposal.bytes_bound), cost, weighted, wider, evidence)


def _unweighted(value: int, unit: int) -> int | float:
    return value // unit if value % unit == 0 else value / unit


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
