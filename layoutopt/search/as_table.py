"""Tables of offsets as answers: when there may be one, and free assignments as one."""

from __future__ import annotations

import math
from dataclasses import replace

from layoutopt.layout.layout import Layout
from layoutopt.model.placement import FreeAssignment
from layoutopt.problems.answer import EVERY_LAYOUT, Bound
from layoutopt.problems.types import FAMILIES, Problem, Tile
from layoutopt.search.proposal import STOPPED, Proposal

# Elements beyond which no kernel would want a table of offsets.
MAX_LOOKUP = 4096


def why_no_table(problem: Problem) -> str:
    """Why a table of the offsets of all elements may not be the answer; empty where it may."""
    elements = problem.tile.elements
    if reason := why_no_period(problem):
        return reason
    if elements > MAX_LOOKUP:
        return f"a table has at most {MAX_LOOKUP:,} elements, the tile has {elements:,}"
    return ""


def why_no_period(problem: Problem) -> str:
    """Why a table of offsets may not be the answer, even of a period of the tile; empty where it may."""
    if "table" not in (problem.layout.families or FAMILIES):
        return "tables are not among the families"
    if problem.layout.order is not None:
        return "a table has no order of dimensions, which the problem fixes"
    if stride_multiple(problem) > 1:
        return "a table has no pitch, which the problem wants to be a multiple"
    return ""


def stride_multiple(problem: Problem) -> int:
    """Elements of which every stride but the innermost is a multiple."""
    pitch = problem.layout.pitch_multiple_bytes or 1
    return pitch // math.gcd(pitch, problem.tile.element_bytes)


def as_table(tile: Tile, free: FreeAssignment, proposal: Proposal) -> Proposal:
    """A free assignment as a layout, in place of `proposal`, which is worse."""
    assert free.table is not None
    assert free.bytes is not None
    assert free.excess is not None
    size = tile.element_bytes
    return replace(
        proposal,
        layout=Layout(tile.shape, size, (), lookup=tuple((free.table.ravel() // size).tolist())),
        family="table",
        weighted_excess=free.excess,
        bytes=free.bytes,
        excess_bound=Bound(free.bound, EVERY_LAYOUT),
        bytes_bound=Bound(free.bytes_bound if free.excess == free.bound else tile.bytes, EVERY_LAYOUT),
        left_open=False,
        decided_by="placement",
        reason="" if free.complete else STOPPED,
    )
