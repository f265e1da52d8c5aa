"""Tables of one period: tiles too large for a table of all offsets, whose elements come again and again.

    offset = lookup[i % P] + i // P * P,    i the row-major index, P elements a whole number of rows of banks

Element i then lies in the bank of element i % P. Where no instruction touches two elements that are the same
modulo P, the tile has the conflicts of a tile of P elements under the same accesses, modulo P, and a table of
that is sought in its own bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from layoutopt.accesses.alignment import blocks
from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case
from layoutopt.layout.layout import Layout
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import in_own_bytes
from layoutopt.problems.answer import EVERY_LAYOUT, Bound
from layoutopt.problems.types import Tile
from layoutopt.proof.reasons import every_layout
from layoutopt.search.as_table import MAX_LOOKUP, why_no_period
from layoutopt.search.proposal import Ask, Proposal

_SHORT: Final = 2048  # elements of a period that are searched well in a second or two
_NOT_ALL: Final = "tables of a few periods were searched"


def with_period(case: Case, proposal: Proposal, ask: Ask) -> Proposal:
    """The proposal, or a table of one period where that has less excess, or as little in fewer bytes."""
    tile, asked = case.lowered.tile, case.lowered.layout
    if proposal.layout is None or tile.elements <= MAX_LOOKUP or why_no_period(case.lowered):
        return proposal
    if not asked.objective.excess_first or (asked.max_bytes is not None and asked.max_bytes < tile.bytes):
        return proposal
    least = proposal.excess_bound.lower_bound if proposal.excess_bound.everywhere else 0
    best = proposal
    for period in ask.budget.while_left(_periods(case)):
        if (best.weighted_excess, best.bytes) <= (least, tile.bytes):
            break
        best = _of(case, period, best, ask) or best
    if best is proposal:
        return proposal
    done = (best.weighted_excess, best.bytes) == (least, tile.bytes)
    return replace(
        best,
        excess_bound=Bound(least, EVERY_LAYOUT),
        bytes_bound=Bound(tile.bytes, EVERY_LAYOUT),
        left_open=False,
        reason="" if done else _NOT_ALL,
        decided_by="placement",
    )


def _periods(case: Case) -> Iterator[int]:
    """Elements of a period, few first."""
    tile = case.lowered.tile
    rules = [case.device.rule(access.operation) for access in case.lanes.accesses]
    row_bytes = max(rule.banks * rule.bank_bytes * rule.row_words for rule in rules)
    least = row_bytes // math.gcd(row_bytes, tile.element_bytes)
    found = (p for p in range(least, MAX_LOOKUP + 1, least) if tile.elements % p == 0)
    lanes = case.lanes.accesses
    kept = [p for p in found if all(_apart(a.element, a.active, a.width_elements, p) for a in lanes)]
    # A long period leaves more freedom, a short one is a short table, and soon searched.
    short = [p for p in kept if p <= _SHORT] or kept
    yield from dict.fromkeys(short[k] for k in (0, len(short) // 2, -1)) if short else ()


def _apart(element: np.ndarray, active: np.ndarray, width: int, period: int) -> bool:
    """Whether vectors stay whole, and no instruction touches two elements that are the same in a period."""
    lanes = np.arange(element.shape[1])
    # What takes no part is told apart by its lane.
    every = np.sort(np.where(active, element, -1 - lanes), axis=1)
    again = np.sort(np.where(active, element % period, -1 - lanes), axis=1)
    distinct, left = ((np.diff(values, axis=1) != 0).sum(axis=1) for values in (every, again))
    whole = period % width == 0 and not (element[active] % width).any()
    return whole and bool((distinct == left).all())


def _of(case: Case, period: int, best: Proposal, ask: Ask) -> Proposal | None:
    """A table of a period in its own bytes, where it is better."""
    tile = case.lowered.tile
    accesses = tuple(replace(a, element=a.element % period) for a in case.lanes.accesses)
    small = Tile((period,), tile.element)
    lanes = Trace(accesses, case.lanes.weight_unit)
    assert best.layout is not None
    start = best.layout.table().ravel()[:period]
    if best.bytes > tile.bytes:
        sets = phase_sets(lanes, small, case.device, blocks(lanes, small))
        free = in_own_bytes(sets, lanes, small, budget=ask.budget, hint=start)
    else:
        free = every_layout(
            small,
            case.device,
            lanes,
            enough=int(best.weighted_excess),
            budget=ask.budget,
            workers=ask.workers,
            briefly=True,
            max_bytes=small.bytes,
            hint=start if start.max() < small.bytes else np.arange(period) * tile.element_bytes,
        ).free
    if free is None or free.table is None or free.table.max() >= small.bytes:
        return None
    lookup = tuple((free.table.ravel() // tile.element_bytes).tolist())
    layout = Layout(tile.shape, tile.element_bytes, (), lookup=lookup)
    table = case.table(layout)
    excess, size = case.weighted_excess(case.count(table)), case.size(table)
    if (excess, size) >= (best.weighted_excess, best.bytes):
        return None
    return replace(
        best,
        layout=layout,
        family="table",
        weighted_excess=excess,
        bytes=size,
        alignment_bytes=None,
    )
