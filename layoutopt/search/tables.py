"""Tables of offsets, and what holds for every layout of any kind: beyond what formulas give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from layoutopt.accesses.alignment import blocks
from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current, spending
from layoutopt.layout.layout import Layout
from layoutopt.model.phases import counting_excess, phase_sets
from layoutopt.model.placement import FreeAssignment, free_assignment, in_own_bytes
from layoutopt.model.space import stride_multiple
from layoutopt.problems.answer import EVERY_LAYOUT, Bound
from layoutopt.problems.types import FAMILIES, Family, Problem
from layoutopt.proof.reasons import EveryLayout, Search, every_layout
from layoutopt.search.proposal import STOPPED, Ask, Proposal, standing
from layoutopt.search.scene import Scene
from layoutopt.search.search import search

# Elements beyond which no kernel would want a table of offsets.
MAX_LOOKUP: Final = 4096
# Share of the work left that a search of all families may use, to start a table from.
_HINT_SHARE: Final = 0.5
# Elements beyond which the solver is not asked for a table that saves bytes alone, and its effort.
_MOST_ASKED: Final = 512
_EFFORT: Final = 2.0
_TABLES_LEFT: Final = "tables of offsets were not searched to the end"


def why_no_table(problem: Problem) -> str:
    """Why a table of the offsets of all elements may not be the answer; empty where it may."""
    elements = problem.tile.elements
    if "table" not in (problem.layout.families or FAMILIES):
        return "tables are not among the families"
    if problem.layout.order is not None:
        return "a table has no order of dimensions, which the problem fixes"
    if stride_multiple(problem) > 1:
        return "a table has no pitch, which the problem wants to be a multiple"
    if elements > MAX_LOOKUP:
        return f"a table has at most {MAX_LOOKUP:,} elements, the tile has {elements:,}"
    return ""


def why_none_is_searched(case: Case) -> str:
    """Why no table is looked for; empty where one is."""
    if reason := why_no_table(case.lowered):
        return reason
    if case.chooses:
        return "some values are known only at run time"
    return "none is where instructions come first" if case.lowered.layout.objective.instructions_first else ""


def are_asked_for(case: Case) -> bool:
    """Whether the problem names tables among its families, and they can be searched."""
    return "table" in (case.lowered.layout.families or ()) and not why_none_is_searched(case)


def not_refuted(case: Case, proposal: Proposal, ask: Ask) -> Proposal:
    """The proposal, where there is no layout, as infeasible only if no table is one, either."""
    limits, bound = case.lowered.layout, proposal.excess_bound
    strides = limits.order is not None or stride_multiple(case.lowered) > 1
    may_be = "table" in (limits.families or FAMILIES) and not strides  # be it too large to be searched
    if proposal.layout is not None or not proposal.complete or not may_be:
        return proposal
    too_large = limits.max_bytes is not None and case.lowered.tile.bytes > limits.max_bytes
    if too_large or (ask.conflict_free and bound.everywhere and bound.lower_bound > 0):
        return proposal
    return replace(
        proposal, refuted=False, notes=(*proposal.notes, why_none_is_searched(case) or _TABLES_LEFT)
    )


def within(problem: Problem, families: tuple[Family, ...] | None) -> Problem:
    """The problem with these families allowed."""
    return msgspec.structs.replace(problem, layout=msgspec.structs.replace(problem.layout, families=families))


def with_tables(case: Case, proposal: Proposal, ask: Ask, *, bounds: bool = True) -> Proposal:
    """The better of the proposal and a table, with what holds for every layout.

    A table can hold any layout, so that the search for one starts from the best that formulas give. Without
    `bounds`, only one of as little excess in fewer bytes is sought.
    """
    tile, limits, asked = case.lowered.tile, case.lowered.layout, are_asked_for(case)
    may = not why_none_is_searched(case)
    bytes_first = limits.objective.bytes_first and not ask.conflict_free
    most = tile.bytes if bytes_first else limits.max_bytes
    least = int(proposal.excess_bound.lower_bound) if proposal.excess_bound.everywhere else 0
    if _is_settled(case, proposal, ask, least, may):
        return proposal
    start = _best_formula(case, proposal, ask) if asked else _as_assignment(proposal, tile.bytes)
    found = [start] if start is not None and (most is None or (start.bytes or 0) <= most) else []
    if bounds and not bytes_first and (start is None or start.excess != least):
        briefly = limits.families is not None and not asked
        general = every_layout(
            tile,
            case.device,
            case.lanes,
            Search(ask.workers, briefly, most, _hint(case, start, ask)),
            enough=start.excess if start is not None else 1 if ask.conflict_free else None,
            progress=_telling(case, start, ask),
        )
        proposal = _bounded(case, proposal, general, ask)
        least, free = max(least, general.bound), general.free
        if free is not None and free.excess is not None and not (ask.conflict_free and free.excess):
            found.append(free)
    best = min(found or [start], key=lambda f: _rank(case, f)) if start is not None else None
    if may and best is not None and (bytes_first or (best.excess == least and best.bytes != tile.bytes)):
        found += _smallest(case, best, ask)
    for free in found:
        proposal = _the_better(case, proposal, replace(free, bound=max(free.bound, least)), may)
    if asked and proposal.layout is None and not proposal.refuted:
        return replace(proposal, left_open=True, notes=(*proposal.notes, _TABLES_LEFT))
    return proposal


def instead(case: Case, proposal: Proposal, ask: Ask) -> Proposal | None:
    """A table in place of a formula whose search would take long.

    It is the answer where nothing is better, and where bytes come first and no formula takes as few.
    """
    start = _as_assignment(proposal, 0)
    if start is None or why_none_is_searched(case):
        return None
    for free in _smallest(case, start, ask, nothing_known=True):
        smaller = case.lowered.layout.objective.bytes_first and (free.bytes or 0) < proposal.bytes
        if smaller or (free.complete and _rank(case, free) < _rank(case, start)):
            return as_table(case.lowered, free, proposal)
    return None


def _is_settled(case: Case, proposal: Proposal, ask: Ask, least: int, may: bool) -> bool:
    """Whether no table can be better, and no bound of every layout says more."""
    tile, limits = case.lowered.tile, case.lowered.layout
    if limits.objective.instructions_first:
        return True  # excess is the price of what comes first
    if proposal.layout is not None:
        return proposal.weighted_excess <= least and (proposal.bytes == tile.bytes or not may)
    too_large = limits.max_bytes is not None and tile.bytes > limits.max_bytes
    return too_large or (bool(least) if ask.conflict_free else not may)


def _bounded(case: Case, proposal: Proposal, general: EveryLayout, ask: Ask) -> Proposal:
    proposal = replace(proposal, every_layout=(general.bound, general.evidence))
    kind = general.evidence.partition(":")[0]
    decider = "placement" if kind == "solver" else kind
    if general.bound < max(1, proposal.excess_bound.lower_bound):
        return proposal
    proposal = replace(proposal, excess_bound=Bound(general.bound, EVERY_LAYOUT))
    if proposal.layout is None and ask.conflict_free:
        by = f"every layout has conflicts, by {general.evidence}"
        return replace(proposal, refuted=True, left=by, notes=(), decided_by=decider)
    if general.bound == proposal.weighted_excess and proposal.bytes == case.lowered.tile.bytes:
        return replace(proposal, left_open=False, decided_by=decider)
    return proposal


def _best_formula(case: Case, proposal: Proposal, ask: Ask) -> FreeAssignment | None:
    if set(case.lowered.layout.families or FAMILIES) != set(FAMILIES):
        with spending(current().part(_HINT_SHARE)):
            proposal = search(Scene(within(case.lowered, None), case.device, case.lanes, ask))
    return _as_assignment(proposal, case.lowered.tile.bytes)


def _hint(case: Case, start: FreeAssignment | None, ask: Ask) -> IntArray | None:
    """Where a table starts from: in few bytes, rather from a formula in more that has less excess, folded."""
    limits = case.lowered.layout
    if limits.max_bytes is not None and not why_none_is_searched(case):
        free = msgspec.structs.replace(limits, max_bytes=None, families=None)
        problem = msgspec.structs.replace(case.lowered, layout=free)
        with spending(current().part(_HINT_SHARE)):
            wide = _as_assignment(search(Scene(problem, case.device, case.lanes, ask)), 0)
        if wide is not None and (start is None or (wide.excess or 0) < (start.excess or 0)):
            return wide.table
    return start.table if start is not None else None


def _as_assignment(proposal: Proposal, least: int) -> FreeAssignment | None:
    if proposal.layout is None:
        return None
    return FreeAssignment(0, int(proposal.weighted_excess), proposal.layout.table(), proposal.bytes, least)


def _smallest(
    case: Case, start: FreeAssignment, ask: Ask, *, nothing_known: bool = False
) -> list[FreeAssignment]:
    """A free assignment in few bytes, if one is found: of the least excess; of any where bytes come first.

    Where it is not known that `start` has the least excess, that is sought, too.
    """
    tile, limits = case.lowered.tile, case.lowered.layout
    any_excess = nothing_known or (limits.objective.bytes_first and not ask.conflict_free)

    def placed(lanes: Trace, least: int | None) -> tuple[FreeAssignment | None, bool]:
        """What is found, and whether it has the least excess, as far as that is known."""
        sets = phase_sets(lanes, tile, blocks(lanes, tile))
        floor = counting_excess(sets)[0] if least is None else least
        if tile.elements > _MOST_ASKED and (start.excess == floor or not any_excess):
            assert start.table is not None
            found = in_own_bytes(sets, lanes, tile, hint=start.table, bound=floor)
        else:
            most = tile.bytes if limits.objective.bytes_first and not ask.conflict_free else limits.max_bytes
            found = free_assignment(sets, lanes, tile, effort=_EFFORT, max_bytes=most, hint=start.table)
        return found, found is not None and found.excess == floor

    found, at_floor = placed(case.lanes, None if any_excess else start.excess)
    if found is None or found.excess is None or not (at_floor or any_excess):
        return []
    if case.lanes.has_idle and found.complete and at_floor:
        # What weighs nothing should cost no more, either, where that is to be had.
        kept, also = placed(case.lanes.with_idle(), None)
        if kept is not None and kept.complete and also:
            return [replace(kept, excess=found.excess, bound=found.bound)]
    return [found]


def _the_better(case: Case, proposal: Proposal, free: FreeAssignment, may: bool) -> Proposal:
    """The table, where it is better than the proposal, else the proposal; with what is proved of both."""
    assert free.excess is not None
    assert free.bytes is not None
    objective = case.lowered.layout.objective
    mine = objective.key(proposal.weighted_excess, proposal.bytes)
    if proposal.layout is None or _rank(case, free) < mine:
        if may:
            return as_table(case.lowered, free, proposal)
        weighted = "weighted " if case.has_weights else ""
        excess = case.in_weights(free.excess)
        better = f"a table of offsets would have {excess:g} {weighted}excess in {free.bytes:,} bytes"
        return replace(proposal, notes=(*proposal.notes, better))
    if may and free.complete and _rank(case, free) == mine:
        bounds = Bound(free.bound, EVERY_LAYOUT), Bound(free.bytes_bound, EVERY_LAYOUT)
        proposal = replace(proposal, excess_bound=bounds[0], bytes_bound=bounds[1])
        return replace(proposal, left_open=False, decided_by="placement")
    return proposal


def as_table(problem: Problem, free: FreeAssignment, proposal: Proposal) -> Proposal:
    """A free assignment as a layout, in place of `proposal`, which is worse."""
    assert free.table is not None
    assert free.bytes is not None
    assert free.excess is not None
    tile, size = problem.tile, problem.tile.element_bytes
    return replace(
        proposal,
        layout=Layout(tile.shape, size, (), lookup=tuple((free.table.ravel() // size).tolist())),
        family="table",
        weighted_excess=free.excess,
        bytes=free.bytes,
        excess_bound=Bound(free.bound, EVERY_LAYOUT),
        bytes_bound=Bound(max(tile.bytes, free.bytes_bound * (free.excess == free.bound)), EVERY_LAYOUT),
        left_open=False,
        left=STOPPED,
        notes=(),
        decided_by="placement",
    )


def _rank(case: Case, free: FreeAssignment) -> tuple[float, ...]:
    return case.lowered.layout.objective.key(free.excess or 0, free.bytes or 0)


def _telling(case: Case, best: FreeAssignment | None, ask: Ask) -> Callable[[int, str], None]:

    def tell(bound: int, doing: str) -> None:
        if best is not None:
            excess, size = case.in_weights(best.excess or 0), best.bytes or 0
            doing = standing(excess, size, case.in_weights(bound), doing)
        ask.progress(doing)

    return tell
