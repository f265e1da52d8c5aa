"""Tables of offsets as layouts: whether one may be the answer, and what is found of few bytes."""

import math
from typing import Final

from msgspec.structs import replace

from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case
from layoutopt.layout.layout import Layout
from layoutopt.model.linearisations import rotated, unpadded
from layoutopt.model.phases import counting_excess, phase_sets
from layoutopt.model.placement import FreeAssignment, exchanged, free_assignment, in_own_bytes, near
from layoutopt.model.space import stride_multiple
from layoutopt.problems.types import FAMILIES, Problem
from layoutopt.proof.reasons import SearchLimits, every_layout
from layoutopt.search.proposal import BY_PLACEMENT, STOPPED, Ask, Found, Proposal, Proved
from layoutopt.search.refuters import Refuters
from layoutopt.search.scene import Scene

# Elements beyond which no kernel would want a table of offsets.
MAX_LOOKUP: Final = 4096
# Elements beyond which the solver is not asked for a table that saves bytes alone, and its effort.
_MOST_ASKED: Final = 512
_EFFORT: Final = 2.0


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


def at_floor(scene: Scene) -> Proposal | None:
    """A table of the tile's own bytes at the floor of the excess, if a few exchanges of banks lead to one."""
    case, tile = scene.case, scene.tile
    if scene.counted is not scene.trace or why_none_is_searched(case):
        return None
    lanes = case.lanes.with_least_weights
    table = exchanged(phase_sets(lanes, tile), lanes, tile)
    return None if table is None else as_table(case.lowered, table, scene.none("", scene.scope, False))


def above_floor(scene: Scene) -> Proposal | None:
    """A table that no layout is better than, where every layout is proved to have more than the floor.

    The best formula without pads is improved until it has no more than what is proved.
    """
    case, ask, tile = scene.case, scene.ask, scene.tile
    if scene.counted is not scene.trace or why_none_is_searched(case) or ask.conflict_free:
        return None
    known = every_layout(tile, case.device, case.lanes, SearchLimits(ask.workers), enough=None, quick=True)
    if known.bound <= scene.floor or case.lanes.has_weightless:
        return None
    unpads = [*unpadded(scene.space, 0), *unpadded(scene.space, 1), *rotated(scene.space)]
    dense = [candidate for candidate in unpads if candidate.span == tile.elements]
    best = min(Refuters(scene).counted(dense, math.inf), key=lambda found: found.excess, default=None)
    if best is None:
        return None
    hint = best.candidate.table(tile.shape) * tile.element_bytes
    free = near(scene.sets, case.lanes, tile, hint=hint, bound=known.bound)
    if free is None or not free.complete:
        return None
    table = as_table(case.lowered, free, scene.none("", scene.scope, False))
    return replace(table, every_layout=(known.bound, known.evidence))


def instead(case: Case, proposal: Proposal, ask: Ask) -> Proposal | None:
    """A table that no layout is better than, where the search for a formula as good would take long."""
    start, tile, limits = as_assignment(proposal, 0), case.lowered.tile, case.lowered.layout
    if start is None or why_none_is_searched(case) or case.lanes.has_weightless:
        return None
    known = every_layout(
        tile, case.device, case.lanes, SearchLimits(ask.workers), enough=start.excess, quick=True
    )
    free = free_assignment(
        phase_sets(case.lanes, tile), case.lanes, tile,
        effort=_EFFORT, max_bytes=limits.max_bytes, hint=start.table, bound=known.bound,
    )  # fmt: skip
    if free is None or not free.complete or rank(case, free) >= rank(case, start):
        return None
    return replace(as_table(case.lowered, free, proposal), every_layout=(known.bound, known.evidence))


def as_assignment(proposal: Proposal, least: int) -> FreeAssignment | None:
    """The layout of a proposal, if any, of which `least` bytes are proved."""
    if (found := proposal.found) is None:
        return None
    excess, table = int(found.weighted_excess), found.layout.table()
    return FreeAssignment(bound=0, excess=excess, table=table, bytes=found.bytes, bytes_bound=least)


def smallest(case: Case, start: FreeAssignment, ask: Ask) -> FreeAssignment | None:
    """A table in few bytes, if one is found: of the excess of `start`, or of any where bytes come first.

    `start`: a layout with its table, where the search for another begins.
    """
    tile, limits = case.lowered.tile, case.lowered.layout
    bytes_first = limits.objective.bytes_first and not ask.conflict_free
    start_table = start.table
    assert start_table is not None
    assert start.excess is not None

    def placed(lanes: Trace, wanted: int) -> FreeAssignment | None:
        """The table that is found for these lanes; of a large tile, one of the weighted excess `wanted`."""
        sets = phase_sets(lanes, tile)
        # The solver takes long over a large tile; `in_own_bytes` is quicker, but lowers no excess.
        if tile.elements > _MOST_ASKED and (start.excess == wanted or not bytes_first):
            return in_own_bytes(sets, lanes, tile, hint=start_table, bound=wanted)
        most = tile.bytes if bytes_first else limits.max_bytes
        return free_assignment(sets, lanes, tile, effort=_EFFORT, max_bytes=most, hint=start_table)

    counted, _ = counting_excess(phase_sets(case.lanes, tile))  # weighted: no layout has less
    wanted = counted if bytes_first else start.excess
    if case.lanes.has_weightless and wanted == counted:
        # Accesses of weight 0 should have no conflicts, either, where that costs nothing.
        lanes = case.lanes.with_least_weights
        counted_of_all, _ = counting_excess(phase_sets(lanes, tile))
        table = placed(lanes, counted_of_all)
        if table is not None and table.complete and table.excess == counted_of_all:
            return replace(table, excess=counted, bound=counted)
    table = placed(case.lanes, wanted)
    if table is None or table.excess is None or not (bytes_first or table.excess == wanted):
        return None
    return table


def as_table(problem: Problem, free: FreeAssignment, proposal: Proposal) -> Proposal:
    """A free assignment as a layout, in place of `proposal`, which is worse."""
    assert free.table is not None
    assert free.bytes is not None
    assert free.excess is not None
    tile, size = problem.tile, problem.tile.element_bytes
    layout = Layout(tile.shape, size, (), lookup=tuple((free.table.ravel() // size).tolist()))
    return replace(
        proposal,
        found=Found(layout, family="table", weighted_excess=free.excess, bytes=free.bytes),
        excess_bound=Proved(free.bound, by=BY_PLACEMENT),
        bytes_bound=Proved(max(tile.bytes, free.bytes_bound * (free.excess == free.bound)), by=BY_PLACEMENT),
        left_open=False,
        left=STOPPED,
        notes=(),
    )


def rank(case: Case, free: FreeAssignment) -> tuple[float, ...]:
    """Sorting key of free assignments."""
    return case.lowered.layout.objective.key(free.excess or 0, free.bytes or 0)
