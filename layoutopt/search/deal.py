"""Which lane of a warp handles which of its pieces, where an assignment of threads leaves conflicts.

A wide access is served in several phases, and a phase is a few lanes: 8 of 16 bytes, 16 of 8. What a warp
covers together decides what that must cost. A phase takes one piece from each group of banks
without a conflict, so that n pieces in one group take n phases at least; and no group having more than there
are phases, pieces dealt in turn, group by group, have no conflicts. (Where a thread makes two accesses to its
piece, their groups are the two sides of a bipartite graph, its edges the pieces, and that as many colours as
the busiest group has pieces are enough is Koenig's theorem.)

So lanes change places: the digits of an assignment in another order where one fits, else by a table, the
shorter the better: of a warp, of the block, of all iterations. The conflict engine counts every lane.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from layoutopt.accesses.assignments import ROUND, Assignment, Work
from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.hardware.operations import Operation
from layoutopt.model.cp_sat import Model
from layoutopt.search.lanes import Digits

MAX_ENTRIES: Final = 2048  # of a table
# The solver's deterministic time for the lanes of one warp, and for a table; how many instructions of a warp
# may differ.
_EFFORT: Final = 0.1
_TABLE_EFFORT: Final = 0.5
_MOST_ROWS: Final = 64
_TID: Final = Var("tid")


def can_deal(device: Device, operation: Operation) -> bool:
    """Whether the places of lanes in a warp decide what its pieces, one word or more each, cost."""
    rule = device.rule(operation)
    plain = not (rule.serialises_equal or rule.split_words) and rule.row_words == 1
    return plain and len(rule.phases) > 1 and operation.width_bytes % rule.bank_bytes == 0


def whole_warps(device: Device, operation: Operation) -> Device:
    """The device, if the lanes of a warp could be served in any order by one operation."""
    one_phase = (tuple(range(device.lanes)),)
    together = replace(device.rule(operation), phases=one_phase, merges_pairs=False)
    return replace(device, rules={**device.rules, (operation.kind, operation.width_bytes): together})


def dealt_lanes(choices: Digits, known: Assignment, *, tables: bool) -> Assignment:
    """The assignment of the fewest wavefronts that is found.

    Args:
        choices: of the access under the layout.
        known: the best whose segments keep to neighbours.
        tables: whether the places may be looked up.
    """
    work, warp = choices.work, choices.device.lanes
    if not work.keeps_to_warps(warp):
        return known
    together = replace(choices, device=whole_warps(choices.device, choices.lanes.operation))
    base = together.best()
    found: list[Assignment] = [known, base]
    if work.first % warp == 0 and warp % work.segment == 0 and work.slots == work.segment:
        found.append(replace(choices, mixed=True).best())
    least = together.wavefronts(base)
    best = min(found, key=choices.wavefronts)
    if not tables or choices.wavefronts(best) <= least:
        return best
    by_table = (a for start in dict.fromkeys((base, known)) for a in _by_tables(choices, start))
    for assignment in current().while_left(by_table):
        best = min(best, assignment, key=choices.wavefronts)
        if choices.wavefronts(best) <= least:
            break
    return best


def _by_tables(choices: Digits, start: Assignment) -> Iterator[Assignment]:
    work, lanes, rule = choices.work, choices.under(start), choices.device.rule(choices.lanes.operation)
    # Groups of banks, as many as a lane's piece takes.
    width = max(lanes.operation.width_bytes, rule.bank_bytes)
    group = choices.table[lanes.element] // width % (rule.banks * rule.bank_bytes // width)
    groups = np.where(lanes.active, group, -1).reshape(work.rounds, work.steps, -1)
    pieces = groups[:, :, work.first : work.first + work.threads].transpose(0, 2, 1)
    cycles = _cycles(work, choices.device.lanes)
    for cycle in cycles:
        node = _table(work, rule, pieces.reshape(-1, work.steps), cycle, cycle == cycles[-1])
        if node is not None:
            yield replace(start, place=node)


def _cycles(work: Work, warp: int) -> list[int]:
    whole = work.threads % warp == 0 and work.first % warp == 0
    found = [warp * d for d in _divisors(work.threads // warp)] if whole else [work.threads]
    found += [work.threads * d for d in _divisors(work.rounds)[1:]]
    return [entries for entries in found if entries <= MAX_ENTRIES]


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _table(work: Work, rule: PhaseRule, pieces: IntArray, cycle: int, anyhow: bool) -> Node | None:
    """The place of each thread, from a table in which CP-SAT reorders the lanes of each warp.

    Args:
        work: the threads that take part.
        rule: the phases in which lanes of a warp are served.
        pieces: bank group of each thread's pieces, -1 for none, shape (rounds * threads, steps).
        cycle: entries of the table, which repeats.
        anyhow: whether a table with avoidable conflicts will do.

    Returns:
        None where some warp's order is not found within the effort.
    """
    threads, left = work.threads, _TABLE_EFFORT
    phases = np.argsort(np.concatenate(rule.phases)) // len(rule.phases[0])  # in which each lane is served
    slot = np.arange(cycle)
    lane, place = (work.first + slot % threads) % len(phases), slot % threads
    begins = np.flatnonzero((lane == 0) | (slot % threads == 0)).tolist()
    known: dict[tuple[bytes, bytes], _Dealt | None] = {}
    for begin, end in itertools.pairwise([*begins, cycle]):
        rows = np.concatenate([pieces[at : at + end - begin].T for at in range(begin, len(pieces), cycle)])
        alike = np.where(rows < 0, -1, (rows[:, :, None] == rows[:, None, :]).argmax(axis=2))
        kinds, times = np.unique(alike, axis=0, return_counts=True)
        phase = phases[lane[begin:end]]
        key = kinds.tobytes(), phase.tobytes()
        if key not in known:  # warps whose pieces meet in the same way share an order
            known[key] = dealt = _dealt(kinds, times, phase, min(_EFFORT, left))
            left -= _EFFORT if dealt is None else dealt.effort
        dealt = known[key]
        if dealt is None or current().spent or (dealt.over and not anyhow):
            return None
        place[begin:end] = place[begin:end][dealt.order]
    number = Op("+", (_TID, Op("*", (Const(threads), Var(ROUND))))) if cycle > threads else _TID
    looked_up = Lookup(tuple(place.tolist()), Op("%", (number, Const(cycle))), "")
    first = Op("*", (Op("//", (_TID, Const(cycle))), Const(cycle)))
    return looked_up if cycle > threads else Op("+", (first, looked_up))


class _Dealt(NamedTuple):
    """The piece of each lane, the wavefronts beyond what every order takes, and deterministic time."""

    over: int
    order: IntArray
    effort: float


def _dealt(rows: IntArray, times: IntArray, phase: IntArray, effort: float) -> _Dealt | None:
    """The order of a warp's lanes with the fewest wavefronts over several instructions, by CP-SAT, or None.

    Args:
        rows: groups of each instruction's pieces, -1 for none, shape (instructions, lanes).
        times: how often each instruction comes.
        phase: of each lane.
        effort: the most deterministic time.
    """
    if len(rows) > _MOST_ROWS or effort <= 0:
        return None
    sizes = np.bincount(phase)
    model = Model()
    deal = [[model.boolean() for _ in sizes] for _ in phase]
    for literals in deal:
        model.exactly_one(literals)
    for p, size in enumerate(sizes.tolist()):
        model.linear([(literals[p], 1) for literals in deal], (size, size))
    terms, floor = [], 0
    for row, weight in zip(rows, times, strict=True):
        floor += int(weight) * _least(row[row >= 0], sizes)
        for p in range(len(sizes)):
            cost = model.integer(0, len(phase))
            terms.append((cost, int(weight)))
            for group in np.unique(row[row >= 0]).tolist():
                held = [(deal[lane][p], 1) for lane in np.flatnonzero(row == group)]
                model.linear([*held, (cost, -1)], (-len(phase), 0))
    model.linear(terms, (floor, floor * len(phase)))
    model.minimise(terms)
    answer = model.solve(effort=effort)
    if not answer.values:
        return None
    chosen = np.array([[answer.values[literal] for literal in literals].index(1) for literals in deal])
    order = np.empty(len(phase), np.int64)
    order[np.argsort(phase, kind="stable")] = np.argsort(chosen, kind="stable")
    return _Dealt(answer.objective - floor, order, answer.effort)


def _least(used: IntArray, sizes: IntArray) -> int:
    """Phases that pieces in these groups take at least; `sizes` are how many lanes each has."""
    held = np.cumsum(np.sort(sizes)[::-1])
    busiest = int(np.unique(used, return_counts=True)[1].max(initial=0))
    return max(busiest, 1 + int(np.searchsorted(held, len(used))))
