"""Beyond formulas: tables of offsets, and what holds for every layout of any kind."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from layoutopt.engine.case import Case
from layoutopt.ground.budget import current, spending
from layoutopt.model.placement import FreeAssignment
from layoutopt.model.space import stride_multiple
from layoutopt.problems.types import FAMILIES
from layoutopt.proof.reasons import EveryLayout, SearchLimits, every_layout
from layoutopt.search.formulas import propose
from layoutopt.search.proposal import BY_PLACEMENT, Ask, Proposal, Proved, standing
from layoutopt.search.sample import is_large
from layoutopt.search.search import Search
from layoutopt.search.tables import (
    are_asked_for,
    as_assignment,
    as_table,
    rank,
    smallest,
    why_none_is_searched,
)

# Share of the work left that a search of all families may use, to start a table from.
_HINT_SHARE: Final = 0.5
_FORMULAS: Final = tuple(family for family in FAMILIES if family != "table")
_TABLES_LEFT: Final = "tables of offsets were not searched to the end"


def beyond(search: Search, proposal: Proposal | None) -> Proposal | None:
    """The best of formulas, or a table, with what holds for every layout; None where formulas alone count."""
    case, ask = search.case, search.ask
    if proposal is None or search.counted is not None or case.lowered.is_dictated:
        return None
    if not case.chooses and (ask.every_layout or are_asked_for(case)):
        proposal = with_tables(search, proposal)
    why = why_none_is_searched(case)
    if why and "table" in (case.lowered.layout.families or ()):
        proposal = proposal.noted(f"no table was searched: {why}")
    if proposal.found is None and not proposal.left_open and _may_be_a_table(case, proposal, ask):
        return replace(proposal.noted(why or _TABLES_LEFT), left_open=True)
    return proposal


def with_tables(search: Search, proposal: Proposal) -> Proposal:
    """The better of the proposal and a table, with what holds for every layout.

    A table can hold any layout, so that the search for one starts from the best that formulas give. Of too
    many instructions together (`is_large`), only a table of as little excess in fewer bytes is sought.
    """
    case, ask = search.case, search.ask
    if _is_settled(case, proposal, ask):
        return proposal
    tile, limits = case.lowered.tile, case.lowered.layout
    file_names_tables = are_asked_for(case)
    bytes_first = limits.objective.bytes_first and not ask.conflict_free
    max_bytes = tile.bytes if bytes_first else limits.max_bytes
    start = _best_formula(search, proposal) if file_names_tables else as_assignment(proposal, tile.bytes)
    tables = []
    if start is not None and start.bytes is not None and (max_bytes is None or start.bytes <= max_bytes):
        tables.append(start)
    # A bound of the excess helps neither where bytes come first nor where the formula meets what is proved.
    if not is_large(case) and not bytes_first and (start is None or start.excess != proposal.floor):
        # A bound of so much excess ends the search: nothing beats the formula, or no layout is free of any.
        enough = start.excess if start is not None else (1 if ask.conflict_free else None)
        known = every_layout(
            tile,
            case.device,
            case.lanes,
            SearchLimits(
                ask.workers,
                briefly=limits.families is not None and not file_names_tables,  # no table may be the answer
                max_bytes=max_bytes,
                hint=start.table if start is not None else None,
            ),
            enough=enough,
            progress=_telling(case, start, ask),
        )
        proposal, table = _bounded(case, proposal, known, ask), known.free  # the solver's placement, if any
        if table is not None and table.excess is not None and not (ask.conflict_free and table.excess):
            tables.append(table)
    if start is not None and not why_none_is_searched(case):
        best = min(tables or [start], key=lambda table: rank(case, table))
        # Bytes are saved where they come first, or no layout has less excess than the best so far.
        if bytes_first or (best.excess == proposal.floor and best.bytes != tile.bytes):
            smaller = smallest(case, best, ask)
            tables += [smaller] if smaller is not None else []
    floor = proposal.floor  # which bounds tables as well, though whoever found one may not have known
    for table in tables:
        proposal = _better(case, proposal, replace(table, bound=max(table.bound, floor)))
    if file_names_tables and proposal.found is None and proposal.left_open:
        return proposal.noted(_TABLES_LEFT)
    return proposal


def _may_be_a_table(case: Case, proposal: Proposal, ask: Ask) -> bool:
    """Whether a table may be a layout where no formula is one; also one too large to be searched."""
    limits, bound = case.lowered.layout, proposal.excess_bound
    if "table" not in (limits.families or FAMILIES) or limits.order or stride_multiple(case.lowered) > 1:
        return False  # of a table, nothing has a stride
    too_large = limits.max_bytes is not None and case.lowered.tile.bytes > limits.max_bytes
    return not too_large and not (ask.conflict_free and bound.everywhere and bound.lower_bound > 0)


def _is_settled(case: Case, proposal: Proposal, ask: Ask) -> bool:
    """Whether no table can be better, and no bound of every layout would change the answer."""
    tile, limits, allowed = case.lowered.tile, case.lowered.layout, not why_none_is_searched(case)
    if limits.objective.instructions_first:
        return True  # excess is the price of what comes first
    if (found := proposal.found) is not None:
        return found.weighted_excess <= proposal.floor and (found.bytes == tile.bytes or not allowed)
    too_large = limits.max_bytes is not None and tile.bytes > limits.max_bytes
    return too_large or (proposal.floor > 0 if ask.conflict_free else not allowed)


def _bounded(case: Case, proposal: Proposal, known: EveryLayout, ask: Ask) -> Proposal:
    """The proposal with the bound that is known of every layout, which may prove it best or refute any."""
    proposal = replace(proposal, every_layout=(known.bound, known.evidence))
    if known.bound < max(1, proposal.excess_bound.lower_bound):
        return proposal
    kind = known.evidence.partition(":")[0]
    by = BY_PLACEMENT if kind == "solver" else kind
    proposal, found = replace(proposal, excess_bound=Proved(known.bound, by=by)), proposal.found
    if found is None:
        reason = f"every layout has conflicts, by {known.evidence}"
        return replace(proposal, left_open=False, left=reason, notes=()) if ask.conflict_free else proposal
    met = known.bound == found.weighted_excess and found.bytes == case.lowered.tile.bytes
    return replace(proposal, left_open=proposal.left_open and not met)


def _best_formula(search: Search, proposal: Proposal) -> FreeAssignment | None:
    """The best formula of all families: the proposal where all are allowed, else sought for a while."""
    case = search.case
    if set(case.lowered.layout.families or FAMILIES) != set(FAMILIES):
        every = case.constrained(replace(case.asked.layout, families=_FORMULAS))
        with spending(current().part(_HINT_SHARE)):
            proposal = propose(Search(every, search.ask, (), for_formulas=current()), None) or proposal
    return as_assignment(proposal, case.lowered.tile.bytes)


def _better(case: Case, proposal: Proposal, free: FreeAssignment) -> Proposal:
    """The better of the proposal and a table; where no table is allowed, a note says what one would have."""
    assert free.excess is not None
    assert free.bytes is not None
    formula, allowed = proposal.found, not why_none_is_searched(case)
    of_formula = case.lowered.layout.objective.key(formula.weighted_excess, formula.bytes) if formula else ()
    if formula is None or rank(case, free) < of_formula:
        if allowed:
            return as_table(case.lowered, free, proposal)
        weighted = "weighted " if case.has_weights else ""
        excess = case.in_weights(free.excess)
        return proposal.noted(
            f"a table of offsets would have {excess:g} {weighted}excess in {free.bytes:,} bytes"
        )
    if allowed and free.complete and rank(case, free) == of_formula:
        of_bytes = Proved(free.bytes_bound, by=BY_PLACEMENT)
        of_excess = Proved(free.bound, by=BY_PLACEMENT)
        return replace(proposal, excess_bound=of_excess, bytes_bound=of_bytes, left_open=False)
    return proposal


def _telling(case: Case, best: FreeAssignment | None, ask: Ask) -> Callable[[int, str], None]:
    """Progress of a proof: told a lower bound in the trace's unit and what comes next."""

    def tell(bound: int, doing: str) -> None:
        if best is not None:
            excess, size = case.in_weights(best.excess or 0), best.bytes or 0
            doing = standing(excess, size, case.in_weights(bound), doing)
        ask.progress(doing)

    return tell
