"""Another order of an access's lanes, with which all accesses can be free of conflicts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from layoutopt.accesses.trace import LaneTrace, Trace
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import PhaseRule
from layoutopt.model.chunks import bound_chunks, free_phases
from layoutopt.model.phases import PhaseSet
from layoutopt.model.placement import EFFORT
from layoutopt.model.placement_model import PlacementModel, solved
from layoutopt.problems.types import Tile

# Pairs of lanes in all instructions, and clauses on the banks of two words, beyond which no lane order is
# looked for.
MAX_PAIRS = 1 << 20


def lane_order(
    sets: Sequence[PhaseSet],
    trace: Trace,
    tile: Tile,
    access: LaneTrace,
    rule: PhaseRule,
    *,
    budget: Budget,
    table: IntArray | None = None,
    effort: float = EFFORT,
) -> tuple[int, ...] | None:
    """An order of the lanes of `access` with which it and all phases of `sets` can be free of conflicts.

    Lane k is to do what lane order[k] does now, in every warp instruction. A bank that holds more words of
    an instruction than it has phases rules out every order (by König's theorem on edge colourings, nothing
    else rules out one for each instruction); then lanes whose words share a bank need different phases.

    Args:
        sets: the phases of the other accesses, from `phase_sets`.
        trace: all accesses, whose vectors stay whole.
        tile: what is placed.
        access: the access whose lanes may change places.
        rule: how it is served.
        budget: the time there is.
        table: byte offset of every element in the layout to keep; None for any placement in banks.
        effort: deterministic time.

    Returns:
        None where there is none, none was found, or the model does not apply.
    """
    rows = np.unique(np.where(access.active, access.element, -1), axis=0)
    if budget.spent or rows.size * rows.shape[1] > MAX_PAIRS:
        return None
    ones = np.ones(len(rows), np.int64)
    together = replace(rule, phases=(tuple(range(rows.shape[1])),), merges_pairs=False)
    own = PhaseSet(rows, ones, ones, ones * len(rule.phases), together, access.operation.width_bytes)
    every = (*sets, own)
    row_bytes = [s.rule.banks * s.rule.bank_bytes for s in every]
    if tile.element_bytes & (tile.element_bytes - 1) or any(s.rule.row_words > 1 for s in every):
        return None
    chunks = bound_chunks(trace, tile, min(s.rule.bank_bytes for s in every))
    if chunks.size.max() > min(row_bytes):
        return None
    if any(max(p.least, p.alone) > p.ideal for p in free_phases(sets, chunks, drop_loose=False)):
        return None
    phases = free_phases(every, chunks, drop_loose=False)
    placement = PlacementModel(chunks, phases, max(row_bytes), tile, budget, 1)
    if placement.too_large:
        return None
    placement.symmetric = placement.symmetric and table is None
    return _dealt(placement, rows, own, rule, effort, table)


def _dealt(
    placement: PlacementModel,
    rows: IntArray,
    own: PhaseSet,
    rule: PhaseRule,
    effort: float,
    table: IntArray | None,
) -> tuple[int, ...] | None:
    """Lanes dealt to phases; `rows` are the instructions of the access, as elements of lanes or -1."""
    chunks = placement.chunks
    model, at = placement.model(atoms=None, least=False, most=None, hint=None)
    for c, position in placement.positions_of(table).items() if table is not None else ():
        model.clause([at[c][position]])
    deal = [[model.boolean() for _ in rule.phases] for _ in range(rows.shape[1])]
    for literals in deal:
        model.exactly_one(literals)
    for p, lanes in enumerate(rule.phases):
        model.at_most([(literals[p], 1) for literals in deal], len(lanes))
    met: dict[tuple[tuple[int, int], tuple[int, int]], set[tuple[int, int]]] = {}
    unit_bytes = max(own.width_bytes, rule.bank_bytes)
    budget = placement.budget
    for row in budget.while_left(rows.tolist()):
        units = [(int(chunks.of[e]), int(chunks.place[e]) // unit_bytes * unit_bytes) for e in row]
        for a, b in itertools.combinations([lane for lane, e in enumerate(row) if e >= 0], 2):
            u, v = sorted((units[a], units[b]))
            if u[0] != v[0]:
                met.setdefault((u, v), set()).add((a, b))
    apart: dict[tuple[int, int], int] = {}
    banks = rule.banks * rule.bank_bytes // unit_bytes
    if len(met) * banks > MAX_PAIRS:
        return None
    for (u, v), pairs in budget.while_left(met.items()):
        same = model.boolean()
        for i, a in enumerate(at[u[0]]):
            bank = (i * int(chunks.size[u[0]]) + u[1]) // unit_bytes % banks
            for j, b in enumerate(at[v[0]]):
                if (j * int(chunks.size[v[0]]) + v[1]) // unit_bytes % banks == bank:
                    model.clause([-a - 1, -b - 1, same])
        for pair in pairs:
            if pair not in apart:
                apart[pair] = model.boolean()
                for x, y in zip(deal[pair[0]], deal[pair[1]], strict=True):
                    model.clause([-x - 1, -y - 1, -apart[pair] - 1])
            model.clause([-same - 1, apart[pair]])
    answer = model.solve(budget, placement.workers, effort)
    if budget.spent or not solved(answer):  # what was not written down binds nobody
        return None
    order = [0] * rows.shape[1]
    for p, slots in enumerate(rule.phases):
        dealt = [lane for lane, literals in enumerate(deal) if answer.values[literals[p]]]
        for slot, lane in zip(slots, dealt, strict=True):
            order[slot] = lane
    return tuple(order)
