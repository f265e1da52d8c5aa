"""Propose, verify, report: the one place that sees both the model and the conflict engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

import msgspec
import numpy as np

from layoutopt.budget import Budget
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.engine.referee import base_alignment, check_table
from layoutopt.engine.run_time_values import ChoiceTrace, choices, count_choices, report_choices, tidy
from layoutopt.errors import LayoutError, ProblemFileError, VerificationError
from layoutopt.expressions.grammar import to_text
from layoutopt.hardware.devices import Device, device
from layoutopt.layout.formula import element_expression
from layoutopt.layout.layout import Layout
from layoutopt.model.placement import FreeAssignment
from layoutopt.problems.answer import EVERY_LAYOUT, AccessReport, Bound, IndexCost, Proof, Result, Status
from layoutopt.problems.lower import named_widths, stored, unstored, width_choices, with_loops
from layoutopt.problems.trace import LaneTrace, Trace, trace
from layoutopt.problems.types import FAMILIES, Family, Problem
from layoutopt.proof.every_layout import EveryLayout, every_layout
from layoutopt.proof.reasons import COUNTING
from layoutopt.search import dictated
from layoutopt.search.search import Proposal, look_up, plain_layouts, search, why_no_table

# Share of the time limit that the search over the families may use; proofs for every layout get the rest.
_SEARCH_SHARE: Final = 0.75
# Share of what is then left that a search of all families may use, to start a table from.
_HINT_SHARE: Final = 0.5
_TABLES_LEFT: Final = "tables of offsets were not searched to the end"

INDEX_COST_MEASURE = (
    "integer operations of the linearisation, plus three per distinct shift of the swizzle, "
    "plus four to seven for a rotation; a look-up counts one"
)


# Layouts compared where the cost depends on values known only at run time: at most so many, and so many
# that this many choices are counted in all.
_MOST_PLAIN_LAYOUTS = 1000
_CHOICES_COUNTED = 30_000_000


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    workers: int = 1,
    conflict_free: bool = False,
    target: Device | None = None,
    lanes: Trace | None = None,
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
        lanes: the problem's trace on that device, where the caller has it already.
        budget: replaces `time_limit`, for callers that stop the search from another thread.
        progress: called with a line of text from time to time.

    Raises:
        ProblemFileError: the problem contradicts itself.
        VerificationError: the conflict engine does not confirm the model; nothing is returned.
    """
    if problem.layout.offset is not None:
        raise ProblemFileError("layout.offset", "fixes the layout, so there is nothing to solve; remove it")
    gpu = target or device(problem.target)
    budget = budget or Budget(time_limit)
    options = width_choices(problem)
    if len(options) > 1:
        return _best_widths(
            problem,
            [
                (
                    option,
                    solve(
                        option,
                        workers=workers,
                        conflict_free=conflict_free,
                        target=gpu,
                        budget=budget,
                        progress=progress,
                    ),
                )
                for option in options
            ],
            gpu,
        )
    (problem,) = options
    lanes = trace(with_loops(problem), gpu) if lanes is None else lanes
    if problem.tile.packed > 1:
        return _packed(
            problem,
            solve(
                stored(problem),
                workers=workers,
                conflict_free=conflict_free,
                target=gpu,
                budget=budget,
                progress=progress,
            ),
        )
    if not any(a.active.any() for a in lanes.accesses):
        raise ProblemFileError("accesses", "no access has an active lane")
    if problem.layout.must_be is not None:
        return _dictated(problem, gpu, lanes, conflict_free)
    chosen = choices(problem, lanes, gpu)
    if chosen and problem.layout.minimise == "instructions":
        raise ProblemFileError(
            "layout.minimise", "instructions cannot come first where values are known only at run time"
        )
    # The model sees where lanes may go, which binds vectors, and counts only what is certain.
    certain = Trace(
        tuple(replace(a, weight=np.zeros_like(a.weight)) if a.name in chosen else a for a in lanes.accesses),
        lanes.weight_unit,
    )
    plainly = with_loops(problem)
    general = None
    families = problem.layout.families or ()
    unsearched = why_no_table(problem) or _why_none_is_searched(problem, bool(chosen))
    tables = "table" in families and not unsearched
    if tables:  # they are looked for afterwards
        plainly = _within(plainly, tuple(f for f in families if f != "table") or ("none",))
    proposal = search(
        plainly,
        gpu,
        certain,
        conflict_free=conflict_free,
        budget=budget.part(_SEARCH_SHARE),
        workers=workers,
        progress=progress,
    )
    if chosen:
        proposal = _over_values(plainly, gpu, certain, chosen, proposal, budget, conflict_free)
    elif tables:
        proposal, general = _with_tables(
            problem, gpu, lanes, proposal, conflict_free, budget, workers, progress
        )
    else:
        proposal, general = _of_every_layout(problem, gpu, lanes, proposal, conflict_free, budget, workers)
    if "table" in families and not tables:
        reasons = proposal.reason, f"no table was searched: {unsearched}"
        proposal = replace(proposal, reason="; ".join(filter(None, reasons)))
    return _result(problem, gpu, lanes, proposal, chosen, general)


def _why_none_is_searched(problem: Problem, values: bool) -> str:
    """Why no table is looked for where one may be the answer; empty where one is."""
    if values:
        return "some values are known only at run time"
    return "none is where instructions come first" if problem.layout.minimise == "instructions" else ""


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
    proof = Proof(
        Bound(min((plain for _, _, plain, _ in ranked), default=0), scope),
        Bound(problem.tile.bytes, EVERY_LAYOUT),
        weighted_excess=Bound(ranked[0][0] / unit, scope) if ranked and _has_weights(lanes) else None,
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
        offset=to_text(element_expression(best.layout)),
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
    bound = proposal.excess_bound.lower_bound
    if problem.layout.minimise != "excess":
        return proposal, None  # excess is the price of what comes first
    if proposal.layout is None:
        if not conflict_free or bound:
            return proposal, None
        enough = 1
    else:
        enough = int(proposal.weighted_excess)  # whole: no lane chooses
        if enough == 0 or (bound == enough and proposal.excess_bound.everywhere):
            return proposal, None
    general = every_layout(
        problem.tile,
        gpu,
        lanes,
        enough=enough,
        budget=budget,
        workers=workers,
        briefly=problem.layout.families is not None,
        max_bytes=problem.layout.max_bytes,
        hint=proposal.layout.table() if proposal.layout is not None else None,
    )
    free = general.free
    if free is not None and free.excess is not None and free.excess < enough:
        if not why_no_table(problem):
            return look_up(problem.tile, free, proposal), general
        excess = _unweighted(free.excess, lanes.weight_unit)
        weighted = "weighted " if _has_weights(lanes) else ""
        better = f"a table of offsets would have {excess:g} {weighted}excess in {free.bytes:,} bytes"
        proposal = replace(proposal, reason="; ".join(filter(None, (proposal.reason, better))))
    if general.bound < max(1, bound):
        return proposal, general
    proposal = replace(proposal, excess_bound=Bound(general.bound, EVERY_LAYOUT))
    if proposal.layout is None:
        reason = f"every layout has conflicts, by {general.evidence}"
        return replace(proposal, complete=True, reason=reason), general
    if general.bound == proposal.weighted_excess and proposal.bytes == problem.tile.bytes:
        proposal = replace(proposal, complete=True, reason="")
    return proposal, general


def _within(problem: Problem, families: tuple[Family, ...] | None) -> Problem:
    """The problem with these families allowed."""
    return msgspec.structs.replace(problem, layout=msgspec.structs.replace(problem.layout, families=families))


def _with_tables(
    problem: Problem,
    gpu: Device,
    lanes: Trace,
    proposal: Proposal,
    conflict_free: bool,
    budget: Budget,
    workers: int,
    progress: Callable[[str], None],
) -> tuple[Proposal, EveryLayout | None]:
    """Tables were asked for: the best of `proposal` and of them, and what holds for every layout.

    A table can hold any layout, so that the search for one starts from the best that formulas give.
    """
    tile, layout = problem.tile, problem.layout
    if layout.max_bytes is not None and tile.bytes > layout.max_bytes:
        return proposal, None
    floor = int(proposal.excess_bound.lower_bound) if proposal.excess_bound.everywhere else 0
    if proposal.layout is None and conflict_free and floor:
        return proposal, None
    if proposal.layout is not None and (proposal.weighted_excess, proposal.bytes) == (floor, tile.bytes):
        return proposal, None
    formulas = proposal
    if set(layout.families or FAMILIES) != set(FAMILIES):
        formulas = search(
            _within(problem, None),
            gpu,
            lanes,
            conflict_free=conflict_free,
            budget=budget.part(_HINT_SHARE),
            workers=workers,
            progress=progress,
        )

    def rank(excess: float, size: int) -> tuple[float, float]:
        return (size, excess) if layout.minimise == "bytes" else (excess, size)

    # Excess, bytes and the table of the best table so far.
    known: tuple[int, int, np.ndarray] | None = None
    if formulas.layout is not None:
        known = int(formulas.weighted_excess), formulas.bytes, formulas.layout.table()
    small = known is not None and known[1] == tile.bytes
    general = every_layout(
        tile,
        gpu,
        lanes,
        enough=1 if known is None and conflict_free else known[0] if known and small else None,
        budget=budget,
        workers=workers,
        max_bytes=layout.max_bytes,
        hint=known[2] if known else None,
    )
    bound, free = max(floor, general.bound), general.free
    if free is not None and free.excess is not None and not (conflict_free and free.excess):
        assert free.bytes is not None
        assert free.table is not None
        if known is None or rank(free.excess, free.bytes) < rank(*known[:2]):
            known = free.excess, free.bytes, free.table
    if known is None:
        if conflict_free and bound:
            reason = f"every layout has conflicts, by {general.evidence}"
            proposal = replace(
                proposal, excess_bound=Bound(bound, EVERY_LAYOUT), complete=True, reason=reason
            )
            return proposal, general
        return replace(proposal, complete=False, reason=f"{proposal.reason}; {_TABLES_LEFT}"), general
    excess, size, table = known
    least = free.bytes_bound if free is not None and free.bound == excess else tile.bytes
    best = FreeAssignment(bound, excess, table, size, least)
    if proposal.layout is None or rank(excess, size) < rank(proposal.weighted_excess, proposal.bytes):
        return look_up(tile, best, proposal), general
    if best.complete:
        proposal = replace(
            proposal, excess_bound=Bound(bound, EVERY_LAYOUT), bytes_bound=Bound(least, EVERY_LAYOUT)
        )
        return replace(proposal, complete=True, reason=""), general
    if bound >= proposal.excess_bound.lower_bound:
        proposal = replace(proposal, excess_bound=Bound(bound, EVERY_LAYOUT))
    return replace(proposal, complete=False, reason=_TABLES_LEFT), general


def _best_widths(problem: Problem, solved: list[tuple[Problem, Result]], gpu: Device) -> Result:
    """The best result by weighted wavefronts, bytes and index cost; optimal if no choice can do better.

    Excess would not do: 16 bytes in two wavefronts more than ideal and 8 bytes in none may cost the same.
    """
    found = [
        (
            _weighted_wavefronts(option, r.layout, gpu),
            msgspec.structs.replace(r, accesses=named_widths(r.accesses, problem, option)),
        )
        for option, r in solved
        if r.layout is not None
    ]
    if not found:
        unknown = [r for _, r in solved if r.status is Status.UNKNOWN]
        return (unknown or [r for _, r in solved])[0]

    first = problem.layout.minimise

    def rank(item: tuple[float, Result]) -> tuple[float, ...]:
        wavefronts, result = item
        size, cost = result.bytes or 0, result.proof.index_cost.value if result.proof.index_cost else 0
        if first == "bytes":
            return size, wavefronts, cost
        return (cost, wavefronts, size) if first == "instructions" else (wavefronts, size, cost)

    least, best = min(found, key=rank)
    for wavefronts, result in found:
        bound = result.proof.objective
        saved = (result.weighted_excess or 0) - bound.lower_bound
        beaten = first == "excess" and wavefronts - saved > least
        if result is not best and result.status is not Status.OPTIMAL and not beaten:
            break
    else:
        if not any(r.status is Status.UNKNOWN for _, r in solved):
            return best
    reason = "another choice of widths was not searched to the end"
    return msgspec.structs.replace(best, status=Status.FEASIBLE, reason=best.reason or reason)


def _weighted_wavefronts(problem: Problem, layout: Layout, gpu: Device) -> float:
    lanes = trace(with_loops(problem), gpu)
    chosen = choices(problem, lanes, gpu)
    table = layout.table().ravel()
    total = 0.0
    for access in lanes.accesses:
        if access.name in chosen:
            choice = chosen[access.name]
            total += float((count_choices(table, choice).wavefronts * choice.weight).sum())
        else:
            counts = count_wavefronts(table[access.element], access.active, access.operation, gpu)
            total += float((counts.wavefronts * access.weight).sum())
    return round(total / lanes.weight_unit, 6)


def _packed(problem: Problem, result: Result) -> Result:
    """The result for the stored bytes, as one for the elements packed in them."""
    if result.layout is None:
        return result
    layout = unstored(result.layout, problem)
    return msgspec.structs.replace(result, layout=layout, offset=to_text(element_expression(layout)))


def measure(
    layout: Layout,
    lanes: Trace,
    gpu: Device,
    chosen: Mapping[str, ChoiceTrace] | None = None,
    base_bytes: int = 0,
) -> tuple[AccessReport, ...]:
    """What every access costs under `layout`, by the conflict engine, at every lane.

    Args:
        layout: the layout.
        lanes: the accesses, over all values where lanes choose.
        gpu: whose rules to apply.
        chosen: the accesses whose lanes choose.
        base_bytes: where the tile begins.
    """
    table = layout.table().ravel() + base_bytes
    return tuple(_measure(access, table, gpu, chosen or {}) for access in lanes.accesses)


def _over_values(
    problem: Problem,
    gpu: Device,
    certain: Trace,
    chosen: Mapping[str, ChoiceTrace],
    proposal: Proposal,
    budget: Budget,
    conflict_free: bool,
) -> Proposal:
    """The best of the model's proposal and the plain layouts, by what the engine counts over values.

    The excess over values is at least 0 and that of the other accesses at least what the model proved,
    so their sum is a bound; a layout that meets it cannot be smaller than the model's bound on bytes.
    """
    if proposal.layout is None:
        return proposal
    bound = proposal.excess_bound.lower_bound

    def judged(layout: Layout, family: str, operations: int) -> Proposal:
        table = layout.table().ravel()
        excess = round(_weighted(table, certain, gpu, {}) + _weighted(table, certain, gpu, chosen), 6)
        size = int(table.max()) + layout.element_bytes
        return replace(
            proposal, layout=layout, family=family, operations=operations, bytes=size, weighted_excess=excess
        )

    def rank(p: Proposal) -> tuple[float, int, int]:
        return p.weighted_excess, p.bytes, p.operations

    best = judged(proposal.layout, proposal.family, proposal.operations)
    work = sum(choice.rows.size for choice in chosen.values())
    most = max(32, min(_MOST_PLAIN_LAYOUTS, _CHOICES_COUNTED // max(1, work)))
    for layout, family, operations in islice(plain_layouts(problem, gpu, certain, budget), most):
        if budget.spent or (best.weighted_excess <= bound and best.bytes <= proposal.bytes_bound.lower_bound):
            break
        size = int(layout.table().max()) + layout.element_bytes
        if best.weighted_excess <= bound and (size, operations) >= (best.bytes, best.operations):
            continue
        best = min(best, judged(layout, family, operations), key=rank)
    reached = best.weighted_excess <= bound
    bytes_bound = proposal.bytes_bound if reached else Bound(problem.tile.bytes, EVERY_LAYOUT)
    complete = reached and best.bytes == bytes_bound.lower_bound
    if conflict_free and best.weighted_excess > 0:
        return replace(
            best, layout=None, complete=False, reason="no layout without excess over all values was found"
        )
    return replace(
        best,
        bytes_bound=bytes_bound,
        operations_proved=complete and best.layout == proposal.layout and proposal.operations_proved,
        complete=complete,
        reason=""
        if complete
        else "over values, only layouts without a swizzle were compared with the model's",
    )


def _weighted(table: np.ndarray, lanes: Trace, gpu: Device, chosen: Mapping[str, ChoiceTrace]) -> float:
    """Weighted excess of the accesses in `lanes`, or of those in `chosen` if there are any."""
    total = 0.0
    if chosen:
        for choice in chosen.values():
            counts = count_choices(table, choice)
            total += float(((counts.wavefronts - counts.ideal) * choice.weight).sum())
        return total
    for access in lanes.accesses:
        if access.weight.any():
            counts = count_wavefronts(table[access.element], access.active, access.operation, gpu)
            total += int(((counts.wavefronts - counts.ideal) * access.weight).sum())
    return total


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
    check_table(layout.table().ravel(), layout.element_bytes, lanes)


def _measure(
    access: LaneTrace, table: np.ndarray, gpu: Device, chosen: Mapping[str, ChoiceTrace]
) -> AccessReport:
    choice = chosen.get(access.name)
    if choice is not None:
        return report_choices(count_choices(table, choice), choice)
    counts = count_wavefronts(table[access.element], access.active, access.operation, gpu)
    wavefronts, ideal = int(counts.wavefronts.sum()), int(counts.ideal.sum())
    conflicts = int(counts.bank_conflicts.sum())
    return AccessReport(access.name, access.op, wavefronts, ideal, wavefronts - ideal, conflicts)


def _result(
    problem: Problem,
    gpu: Device,
    lanes: Trace,
    proposal: Proposal,
    chosen: Mapping[str, ChoiceTrace],
    general: EveryLayout | None,
) -> Result:
    unit = lanes.weight_unit
    proof = _proof(lanes, proposal, general)
    layout = proposal.layout
    if layout is None:
        status = Status.INFEASIBLE if proposal.complete else Status.UNKNOWN
        return Result(problem.name, gpu.name, status, proof, proposal.reason)
    reports = _verify(layout, lanes, gpu, proposal, chosen)
    return Result(
        problem=problem.name,
        target=gpu.name,
        status=Status.OPTIMAL if proposal.complete else Status.FEASIBLE,
        proof=proof,
        reason=proposal.reason,
        layout=layout,
        family=proposal.family,
        offset=to_text(element_expression(layout)),
        bytes=proposal.bytes,
        declared_bytes=max(layout.declared_bytes, proposal.bytes),
        alignment_bytes=base_alignment(layout.element_bytes, bool(layout.swizzle), lanes, gpu),
        excess=tidy(sum(r.excess for r in reports)),
        weighted_excess=proposal.weighted_excess / unit,
        accesses=reports,
    )


def _proof(lanes: Trace, proposal: Proposal, general: EveryLayout | None) -> Proof:
    """The bounds, with and without weights."""
    bound, scope = int(proposal.excess_bound.lower_bound), proposal.excess_bound.scope
    weights = np.concatenate([a.weight for a in lanes.accesses])
    # Each excess wavefront weighs at most the largest weight.
    least = max(proposal.plain_floor, -(-bound // max(1, int(weights.max()))))
    plain = Bound(least, scope if least > proposal.plain_floor else EVERY_LAYOUT)
    weighted = None
    if _has_weights(lanes):
        weighted = Bound(_unweighted(bound, lanes.weight_unit), scope)
    cost = None
    if proposal.layout is not None:
        cost = IndexCost(proposal.operations, proposal.operations_proved, INDEX_COST_MEASURE)
    # The search itself proves of every layout what counting gives.
    wider, evidence = None, COUNTING.evidence if bound and scope == EVERY_LAYOUT else ""
    if general is not None:
        if scope != EVERY_LAYOUT or general.bound >= bound:
            evidence = general.evidence
        if scope != EVERY_LAYOUT:
            wider = Bound(_unweighted(general.bound, lanes.weight_unit), EVERY_LAYOUT)
    return Proof(plain, proposal.bytes_bound, cost, weighted, wider, evidence)


def _has_weights(lanes: Trace) -> bool:
    """Whether the weighted excess is another number than the excess."""
    return any((access.weight != lanes.weight_unit).any() for access in lanes.accesses)


def _unweighted(value: int, unit: int) -> int | float:
    return value // unit if value % unit == 0 else value / unit


def _verify(
    layout: Layout, lanes: Trace, gpu: Device, proposal: Proposal, chosen: Mapping[str, ChoiceTrace]
) -> tuple[AccessReport, ...]:
    try:
        check_layout(layout, lanes)
    except LayoutError as error:
        raise VerificationError(f"the model proposed a layout that does not hold the tile: {error}") from None
    table = layout.table()
    size = int(table.max()) + layout.element_bytes
    if size != proposal.bytes:
        raise VerificationError(f"the model promised {proposal.bytes} bytes, the layout takes {size}")
    flat = table.ravel()
    certain = Trace(tuple(a for a in lanes.accesses if a.name not in chosen), lanes.weight_unit)
    weighted = round(
        _weighted(flat, certain, gpu, {}) + (_weighted(flat, certain, gpu, chosen) if chosen else 0), 6
    )
    if weighted != proposal.weighted_excess:
        raise VerificationError(
            f"the model promised a weighted excess of {proposal.weighted_excess}, "
            f"the engine counts {weighted}"
        )
    return measure(layout, lanes, gpu, chosen)
