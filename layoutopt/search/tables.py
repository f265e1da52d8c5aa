"""Tables of offsets, and what holds for every layout of any kind: beyond what formulas give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from layoutopt.accesses.alignment import blocks
from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case
from layoutopt.ground.arrays import IntArray
from layoutopt.model.phases import counting_excess, phase_sets
from layoutopt.model.placement import FreeAssignment, free_assignment, in_own_bytes
from layoutopt.problems.answer import EVERY_LAYOUT, Bound
from layoutopt.problems.types import FAMILIES, Family, Problem
from layoutopt.proof.reasons import EveryLayout, every_layout
from layoutopt.search.as_table import as_table, stride_multiple, why_no_table
from layoutopt.search.proposal import Ask, Proposal, standing
from layoutopt.search.search import search

# Share of the time left that a search of all families may use, to start a table from.
_HINT_SHARE: Final = 0.5
# Elements beyond which the solver is not asked for a table that saves bytes alone, and its effort.
_MOST_ASKED: Final = 512
_EFFORT: Final = 2.0
_TABLES_LEFT: Final = "tables of offsets were not searched to the end"


def why_none_is_searched(case: Case) -> str:
    """Why no table is looked for where one was asked for; empty where one is."""
    if reason := why_no_table(case.lowered):
        return reason
    if case.chooses:
        return "some values are known only at run time"
    return "none is where instructions come first" if case.lowered.layout.objective.instructions_first else ""


def are_sought(case: Case) -> bool:
    """Whether the problem asks for tables, and they can be searched."""
    return "table" in (case.lowered.layout.families or ()) and not why_none_is_searched(case)


def may_be_the_answer(problem: Problem) -> bool:
    """Whether the constraints allow a table, be it too large to be searched."""
    limits = problem.layout
    strides = limits.order is not None or stride_multiple(problem) > 1
    return "table" in (limits.families or FAMILIES) and not strides


def not_refuted(case: Case, proposal: Proposal, ask: Ask) -> Proposal:
    """The proposal, where there is no layout, as infeasible only if no table is one, either."""
    limit, bound = case.lowered.layout.max_bytes, proposal.excess_bound
    if proposal.layout is not None or not proposal.complete or not may_be_the_answer(case.lowered):
        return proposal
    too_large = limit is not None and case.lowered.tile.bytes > limit
    if too_large or (ask.conflict_free and bound.everywhere and bound.lower_bound > 0):
        return proposal
    reasons = proposal.reason, why_none_is_searched(case) or _TABLES_LEFT
    return replace(proposal, refuted=False, reason="; ".join(filter(None, reasons)))


def within(problem: Problem, families: tuple[Family, ...] | None) -> Problem:
    """The problem with these families allowed."""
    return msgspec.structs.replace(problem, layout=msgspec.structs.replace(problem.layout, families=families))


# Where formulas are asked for --------------------------------------------------------------------


def of_every_layout(case: Case, proposal: Proposal, ask: Ask) -> Proposal:
    """The proposal, better proved where the families leave excess: by what holds for every layout."""
    enough = _worth_asking(case, proposal, ask)
    if enough is None:
        return in_fewer_bytes(case, proposal, ask)
    limits = case.lowered.layout
    general = every_layout(
        case.lowered.tile,
        case.device,
        case.lanes,
        enough=enough,
        budget=ask.budget,
        workers=ask.workers,
        briefly=limits.families is not None,
        max_bytes=limits.max_bytes,
        hint=proposal.layout.table() if proposal.layout is not None else None,
        progress=_telling(case, proposal, ask),
    )
    proposal = replace(proposal, every_layout=(general.bound, general.evidence))
    free = general.free
    if free is not None and free.excess is not None and free.excess < enough:
        if not why_no_table(case.lowered):
            proved = replace(free, bound=max(free.bound, general.bound))
            return as_table(case.lowered.tile, proved, proposal)
        weighted = "weighted " if case.has_weights else ""
        excess = case.in_weights(free.excess)
        better = f"a table of offsets would have {excess:g} {weighted}excess in {free.bytes:,} bytes"
        proposal = replace(proposal, reason="; ".join(filter(None, (proposal.reason, better))))
    if general.bound < max(1, proposal.excess_bound.lower_bound):
        return proposal
    proposal = replace(proposal, excess_bound=Bound(general.bound, EVERY_LAYOUT))
    if proposal.layout is None:
        return replace(proposal, refuted=True, reason=_by(general), decided_by=_decider(general))
    if general.bound == proposal.weighted_excess and proposal.bytes == case.lowered.tile.bytes:
        proposal = replace(proposal, left_open=False, reason="", decided_by=_decider(general))
    return proposal


def in_fewer_bytes(case: Case, proposal: Proposal, ask: Ask) -> Proposal:
    """The proposal, or a table in fewer bytes, where no layout has less excess."""
    tile, bound = case.lowered.tile, proposal.excess_bound
    if proposal.layout is None or proposal.bytes == tile.bytes or why_no_table(case.lowered):
        return proposal
    least = bound.everywhere and bound.lower_bound == proposal.weighted_excess
    if not least or not case.lowered.layout.objective.counts_only:
        return proposal
    found = _smallest(case, case.lanes, proposal.layout.table(), ask)
    if case.lanes.has_idle and found is not None and found.complete:
        # What weighs nothing should cost no more, either, where that is to be had.
        kept = _smallest(case, case.lanes.with_idle(), proposal.layout.table(), ask)
        if kept is not None and kept.complete:
            found = replace(kept, excess=found.excess, bound=found.bound)
    smaller = found is not None and found.bytes is not None and found.bytes < proposal.bytes
    return as_table(tile, found, proposal) if found is not None and smaller else proposal


def _smallest(case: Case, lanes: Trace, hint: IntArray, ask: Ask) -> FreeAssignment | None:
    """A free assignment of the least excess, or of any where bytes come first; None where none is found."""
    tile, limit, bytes_first = case.lowered.tile, case.lowered.layout.max_bytes, _bytes_first(case, ask)
    sets = phase_sets(lanes, tile, case.device, blocks(lanes, tile))
    if tile.elements > _MOST_ASKED:
        found = in_own_bytes(sets, lanes, tile, budget=ask.budget, hint=hint)
    else:
        most = tile.bytes if bytes_first else limit
        found = free_assignment(
            sets, lanes, tile, budget=ask.budget, effort=_EFFORT, max_bytes=most, hint=hint
        )
    if found is None or found.excess is None:
        return None
    return found if bytes_first or found.excess == counting_excess(sets)[0] else None


def _telling(case: Case, best: Proposal | _Table | None, ask: Ask) -> Callable[[int, str], None]:
    """Tells whoever watches the best so far, and the bound of every layout."""

    def tell(bound: int, doing: str) -> None:
        if isinstance(best, _Table):
            found = standing(case.in_weights(best.excess), best.bytes, case.in_weights(bound), doing)
        elif best is not None and best.layout is not None:
            found = standing(case.in_weights(best.weighted_excess), best.bytes, case.in_weights(bound), doing)
        else:
            found = doing
        ask.progress(found)

    return tell


def _worth_asking(case: Case, proposal: Proposal, ask: Ask) -> int | None:
    """The weighted excess of which to ask whether every layout has as much; None where nothing is open."""
    bound = proposal.excess_bound
    if not case.lowered.layout.objective.excess_first:
        return None  # excess is the price of what comes first
    if proposal.layout is None:
        return 1 if ask.conflict_free and not bound.lower_bound else None
    enough = int(proposal.weighted_excess)  # whole: no lane chooses
    return None if enough == 0 or (bound.everywhere and bound.lower_bound == enough) else enough


def _by(general: EveryLayout) -> str:
    return f"every layout has conflicts, by {general.evidence}"


def _decider(general: EveryLayout) -> str:
    """The first word of its evidence, as `Result.decided_by` has it."""
    kind = general.evidence.partition(":")[0]
    return "placement" if kind == "solver" else kind


# Where tables are asked for ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of offsets: its weighted excess, its bytes, and the byte offsets."""

    excess: int
    bytes: int
    offsets: np.ndarray


def with_tables(case: Case, proposal: Proposal, ask: Ask) -> Proposal:
    """Tables were asked for: the best of `proposal` and of them, and what holds for every layout.

    A table can hold any layout, so that the search for one starts from the best that formulas give.
    """
    tile, limit = case.lowered.tile, case.lowered.layout.max_bytes
    floor = int(proposal.excess_bound.lower_bound) if proposal.excess_bound.everywhere else 0
    if limit is not None and tile.bytes > limit:
        return proposal
    if proposal.layout is None and ask.conflict_free and floor:
        return proposal
    if proposal.layout is not None and (proposal.weighted_excess, proposal.bytes) == (floor, tile.bytes):
        return proposal
    known = _best_formula(case, proposal, ask)
    small = known is not None and known.bytes == tile.bytes
    general = every_layout(
        tile,
        case.device,
        case.lanes,
        enough=1 if known is None and ask.conflict_free else known.excess if known and small else None,
        budget=ask.budget,
        workers=ask.workers,
        max_bytes=tile.bytes if _bytes_first(case, ask) else limit,
        hint=known.offsets if known else None,
        progress=_telling(case, known, ask),
    )
    proposal = replace(proposal, every_layout=(general.bound, general.evidence))
    known = _better(case, known, general.free, ask)
    bound = max(floor, general.bound)
    if known is None:
        if ask.conflict_free and bound:
            return replace(
                proposal,
                excess_bound=Bound(bound, EVERY_LAYOUT),
                refuted=True,
                reason=_by(general),
                decided_by=_decider(general),
            )
        return replace(proposal, refuted=False, left_open=True, reason=f"{proposal.reason}; {_TABLES_LEFT}")
    return _the_better(case, proposal, known, bound, None if _bytes_first(case, ask) else general.free)


def _bytes_first(case: Case, ask: Ask) -> bool:
    """Whether fewer bytes are worth any excess."""
    return case.lowered.layout.objective.bytes_first and not ask.conflict_free


def _best_formula(case: Case, proposal: Proposal, ask: Ask) -> _Table | None:
    """The best that formulas of all families give, as a table."""
    if set(case.lowered.layout.families or FAMILIES) != set(FAMILIES):
        proposal = search(
            within(case.lowered, None),
            case.device,
            case.lanes,
            conflict_free=ask.conflict_free,
            budget=ask.budget.part(_HINT_SHARE),
            workers=ask.workers,
            progress=ask.progress,
        )
    if proposal.layout is None:
        return None
    return _Table(int(proposal.weighted_excess), proposal.bytes, proposal.layout.table())


def _better(case: Case, known: _Table | None, free: FreeAssignment | None, ask: Ask) -> _Table | None:
    """The better of a table and a free assignment, where that is an answer."""
    if free is None or free.excess is None or (ask.conflict_free and free.excess):
        return known
    assert free.bytes is not None
    assert free.table is not None
    found = _Table(free.excess, free.bytes, free.table)
    if known is None or _rank(case, found.excess, found.bytes) < _rank(case, known.excess, known.bytes):
        return found
    return known


def _the_better(
    case: Case, proposal: Proposal, known: _Table, bound: int, free: FreeAssignment | None
) -> Proposal:
    """The table where it is better than the proposal, else the proposal, with what is proved of both."""
    tile = case.lowered.tile
    least = free.bytes_bound if free is not None and free.bound == known.excess else tile.bytes
    best = FreeAssignment(bound, known.excess, known.offsets, known.bytes, least)
    mine = _rank(case, proposal.weighted_excess, proposal.bytes)
    if proposal.layout is None or _rank(case, known.excess, known.bytes) < mine:
        return as_table(tile, best, proposal)
    if best.complete:
        proposal = replace(proposal, excess_bound=Bound(bound, EVERY_LAYOUT))
        return replace(
            proposal,
            bytes_bound=Bound(least, EVERY_LAYOUT),
            left_open=False,
            reason="",
            decided_by="placement",
        )
    if bound >= proposal.excess_bound.lower_bound:
        proposal = replace(proposal, excess_bound=Bound(bound, EVERY_LAYOUT))
    return replace(proposal, left_open=True, reason=_TABLES_LEFT)


def _rank(case: Case, excess: float, size: int) -> tuple[float, ...]:
    return case.lowered.layout.objective.key(excess, size)
