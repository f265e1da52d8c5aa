"""Which lane of a warp handles which of its pieces, where an assignment of threads leaves conflicts.

A wide access is served in several phases, and a phase is a few lanes: 8 of 16 bytes, 16 of 8. What a warp
covers together decides what that must cost. A phase takes one piece from each group of banks without a
conflict, so that n pieces in one group take n phases at least; and no group having more than there are
phases, pieces dealt in turn, group by group, have no conflicts. (Where a thread makes two accesses to its
piece, their groups are the two sides of a bipartite graph, its edges the pieces, and that as many colours as
the busiest group has pieces are enough is Koenig's theorem.)

So the digits of an assignment are chosen as before, a warp being one phase (`layoutopt.search.assign`), and
then lanes change places: by an expression where one fits, else by a table, the shorter the better: of a warp,
of the block, of all iterations. What comes out is counted by the conflict engine, every lane of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from layoutopt.accesses.assignments import ROUND, Assignment
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, evaluate
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device
from layoutopt.hardware.operations import Operation
from layoutopt.model.cp_sat import Model
from layoutopt.search.assign import Assigner, Covering

MAX_ENTRIES: Final = 2048  # of a table
# The solver's deterministic time: for the lanes of one warp, for a table, and for the longest table;
# and how many instructions of a warp may differ.
_EFFORT: Final = 0.1
_TABLE_EFFORT: Final = 0.25
_LAST_EFFORT: Final = 1.0
_MOST_ROWS: Final = 64
_SAMPLE: Final = 16  # instructions on which expressions are tried first
_TID: Final = Var("tid")


def can_deal(device: Device, operation: Operation) -> bool:
    """Whether the places of lanes in a warp decide what its pieces, one word or more each, cost."""
    rule = device.rule(operation)
    plain = not (rule.serialises_equal or rule.split_words) and rule.row_words == 1
    return plain and len(rule.phases) > 1 and operation.width_bytes % rule.bank_bytes == 0


def whole_warps(device: Device, operation: Operation) -> Device:
    """The device, if the lanes of a warp could be served in any order by one operation."""
    rule = device.rule(operation)
    together = replace(rule, phases=(tuple(range(device.lanes)),), merges_pairs=False)
    return replace(device, rules={**device.rules, (operation.kind, operation.width_bytes): together})


@dataclass(slots=True)
class Dealer:
    """Looks for places of lanes under one layout; costs are wavefronts of all instructions of the access.

    Attributes:
        covering: the access and the layout.
        device: whose rules.
        budget: the time there is.
        tables: whether the places may be looked up.
    """

    covering: Covering
    device: Device
    budget: Budget
    tables: bool = True
    effort: float = 0.0
    _known: dict[tuple[bytes, bytes], tuple[int, IntArray] | None] = field(default_factory=dict)

    def run(self, known: Assignment) -> Assignment:
        """The assignment of the fewest wavefronts that is found.

        Args:
            known: the best whose lanes keep their places.
        """
        cost, best = self.cost(known), known
        if not self.covering.work.keeps_to_warps(self.device.lanes):
            return known
        for base in dict.fromkeys((self._base(), known)):
            least = self._cost(base, whole_warps(self.device, self.covering.lanes.operation))
            for node in self.budget.while_left(itertools.chain((_TID,), self._nodes(base))):
                if cost <= least:
                    break
                found = replace(base, place=None if node == _TID else node)
                if (lower := self.cost(found)) < cost:
                    cost, best = lower, found
        return best

    def cost(self, assignment: Assignment) -> int:
        """Wavefronts of all instructions."""
        return self._cost(assignment, self.device)

    def _cost(self, assignment: Assignment, device: Device) -> int:
        return int(self.covering.counts(assignment, device).wavefronts.sum())

    def _base(self) -> Assignment:
        """The digits whose warps leave least to those who deal."""
        together = whole_warps(self.device, self.covering.lanes.operation)
        return Assigner(self.covering, together, self.budget).run()[1]

    def _nodes(self, base: Assignment) -> Iterator[Node]:
        """Places worth counting: expressions, then tables, short ones first."""
        address, active = self._addresses(base)
        yield from self._fitting(address, active)
        group_bytes = self.covering.lanes.operation.width_bytes
        rule = self.device.rule(self.covering.lanes.operation)
        groups = np.where(active, address // group_bytes % (rule.banks * rule.bank_bytes // group_bytes), -1)
        cycles = self._cycles() if self.tables else []
        for cycle in cycles:
            node = self._table(groups, cycle, last=cycle == cycles[-1])
            if node is not None:
                yield node

    def _addresses(self, base: Assignment) -> tuple[IntArray, BoolArray]:
        """Bytes where pieces lie, and which there are; shape (rounds, steps, threads that take part)."""
        lanes = self.covering.lanes_of(base)
        team = slice(self.covering.work.first, self.covering.work.first + self.covering.work.threads)
        shape = self.covering.work.rounds, self.covering.work.steps, -1
        address = self.covering.table[lanes.element].reshape(shape)
        return address[:, :, team], lanes.active.reshape(shape)[:, :, team]

    def _fitting(self, address: IntArray, active: BoolArray) -> Iterator[Node]:
        """Expressions that leave the first instructions no more than dealing must."""
        warp, operation = self.device.lanes, self.covering.lanes.operation
        if self.covering.work.first % warp:
            return
        tid = np.arange(self.covering.work.threads)
        slot = np.arange(-(-len(tid) // warp) * warp)  # what is beyond the last thread does nothing
        taking = slot < len(tid)
        rows = max(1, _SAMPLE // -(-len(tid) // warp))
        places = address[:rows].reshape(-1, len(tid))
        takes: BoolArray = active[:rows].reshape(-1, len(tid))

        def cost(place: IntArray, device: Device) -> int:
            at = np.where(taking, place[np.minimum(slot, len(tid) - 1)], 0)
            moved = places[:, at].reshape(-1, warp)
            active: BoolArray = (takes[:, at] & taking).reshape(-1, warp)
            return int(count_wavefronts(moved, active, operation, device).wavefronts.sum())

        least = cost(tid, whole_warps(self.device, operation))
        for node in _expressions(warp):
            place = evaluate(node, {"tid": tid})
            kept = place.max() < len(tid) and (place // warp == tid // warp).all()
            if kept and cost(place, self.device) <= least:
                yield node

    # Tables --------------------------------------------------------------------------------------

    def _cycles(self) -> list[int]:
        """Lengths of tables: of warps, of the block, of iterations."""
        threads, warp = self.covering.work.threads, self.device.lanes
        whole = threads % warp == 0 and self.covering.work.first % warp == 0
        found = [warp * d for d in _divisors(threads // warp)] if whole else [threads]
        found += [threads * d for d in _divisors(self.covering.work.rounds)[1:]]
        return [entries for entries in found if entries <= MAX_ENTRIES]

    def _table(self, groups: IntArray, cycle: int, *, last: bool) -> Node | None:
        """Places that come again after so many threads; None where they would leave more than they must.

        Args:
            groups: of banks, -1 for no piece, shape (rounds, steps, threads).
            cycle: entries of the table.
            last: whether more than must be is better than nothing.
        """
        threads, warp, first = self.covering.work.threads, self.device.lanes, self.covering.work.first
        self.effort = _LAST_EFFORT if last else _TABLE_EFFORT
        every = groups.transpose(0, 2, 1).reshape(-1, groups.shape[1])  # by round and thread
        slot = np.arange(cycle)
        lane, place = (first + slot % threads) % warp, slot % threads
        begins = np.flatnonzero((lane == 0) | (slot % threads == 0)).tolist()
        for begin, end in itertools.pairwise([*begins, cycle]):
            rows = np.concatenate([every[at : at + end - begin].T for at in range(begin, len(every), cycle)])
            dealt = self._deal(rows, lane[begin:end])
            if dealt is None or self.budget.spent or (dealt[0] and not last):
                return None
            place[begin:end] = place[begin:end][dealt[1]]
        if cycle > threads:
            number = Op("+", (_TID, Op("*", (Const(threads), Var(ROUND)))))
            return Lookup(tuple(place.tolist()), Op("%", (number, Const(cycle))), "")
        own = Lookup(tuple(place.tolist()), Op("%", (_TID, Const(cycle))), "")
        return Op("+", (Op("*", (Op("//", (_TID, Const(cycle))), Const(cycle))), own))

    def _deal(self, rows: IntArray, lanes: IntArray) -> tuple[int, IntArray] | None:
        """One order of pieces for instructions of some lanes.

        Args:
            rows: groups of banks of each instruction's pieces, -1 for none.
            lanes: which take part, in the order of `rows`.

        Returns:
            Wavefronts beyond what every order takes, and the pieces in the order of the lanes; None where
            the instructions are too different, or the solver gave up.
        """
        alike = np.where(rows < 0, -1, (rows[:, :, None] == rows[:, None, :]).argmax(axis=2))
        kinds, times = np.unique(alike, axis=0, return_counts=True)
        key = kinds.tobytes(), lanes.tobytes()
        if key not in self._known:
            rule = self.device.rule(self.covering.lanes.operation)
            phase = np.argsort(np.concatenate(rule.phases)) // len(rule.phases[0])
            self._known[key] = self._dealt(kinds, times, phase[lanes])
        return self._known[key]

    def _dealt(self, rows: IntArray, times: IntArray, phase: IntArray) -> tuple[int, IntArray] | None:
        """The same for instructions that differ, and how often they come; `phase` by lane."""
        sizes = np.bincount(phase)
        held = np.cumsum(np.sort(sizes)[::-1])
        least = [max(_most(row), 1 + int(np.searchsorted(held, (row >= 0).sum()))) for row in rows]
        if len(rows) == 1 and least[0] <= len(sizes) and sizes.min() == sizes.max():
            pieces = np.argsort(np.where(rows[0] < 0, len(phase), rows[0]), kind="stable")
            count = int((rows[0] >= 0).sum())
            turn = np.arange(count) % least[0]
            spare = np.repeat(np.arange(len(sizes)), sizes - np.bincount(turn, minlength=len(sizes)))
            given = np.empty(len(phase), np.int64)
            given[pieces] = np.concatenate([turn, spare])
            return 0, _in_order(given, phase)
        if len(rows) > _MOST_ROWS or self.effort <= 0:
            return None
        return self._solved(rows, times, phase, int(times @ least))

    def _solved(
        self, rows: IntArray, times: IntArray, phase: IntArray, floor: int
    ) -> tuple[int, IntArray] | None:
        """The same by CP-SAT; no order takes less than `floor` wavefronts."""
        sizes = np.bincount(phase)
        model = Model()
        deal = [[model.boolean() for _ in sizes] for _ in phase]
        for literals in deal:
            model.exactly_one(literals)
        for p, size in enumerate(sizes.tolist()):
            model.linear([(literals[p], 1) for literals in deal], (size, size))
        terms = []
        for row, weight in zip(rows, times.tolist(), strict=True):
            costs = [model.integer(0, _most(row)) for _ in sizes]
            terms += [(cost, weight) for cost in costs]
            for group in np.unique(row[row >= 0]).tolist():
                for p, cost in enumerate(costs):
                    members = [(deal[i][p], 1) for i in np.flatnonzero(row == group).tolist()]
                    model.linear([*members, (cost, -1)], (-len(phase), 0))
        model.linear(terms, (floor, floor * len(phase)))
        model.minimise(terms)
        answer = model.solve(self.budget, effort=min(_EFFORT, self.effort))
        self.effort -= answer.effort
        if not answer.values:
            return None
        given = np.array([[answer.values[literal] for literal in literals].index(1) for literals in deal])
        return answer.objective - floor, _in_order(given, phase)


def _in_order(given: IntArray, phase: IntArray) -> IntArray:
    """The piece of each lane, where pieces are given to phases."""
    order = np.empty(len(phase), np.int64)
    order[np.argsort(phase, kind="stable")] = np.argsort(given, kind="stable")
    return order


def _most(row: IntArray) -> int:
    """Pieces of the busiest group."""
    return int(np.unique(row[row >= 0], return_counts=True)[1].max(initial=0))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


# Expressions: bijections of the threads of a warp, short ones first ---------------------------------------


def _expressions(warp: int) -> Iterator[Node]:
    """Over `tid`: XORs of bits of the lane, rotations of bits, multiples, skews; then rotations of XORs."""
    bits = warp.bit_length() - 1
    xors = [
        Op("^", (_TID, _times(_part(_TID, 1 << a, 1 << n), 1 << b)))
        for n in range(1, bits)
        for a in range(bits - n + 1)
        for b in range(bits - n + 1)
        if abs(a - b) >= n
    ]
    rotations = [
        (low, high, by)
        for low in range(bits)
        for high in range(low + 2, bits + 1)
        for by in range(1, high - low)
    ]
    yield from xors
    for rotation in rotations:
        yield _rotated(_TID, *rotation)
    base = _times(Op("//", (_TID, Const(warp))), warp)
    for factor in range(3, warp, 2):
        yield Op("+", (base, Op("%", (_times(_TID, factor), Const(warp)))))
    for phases in (1 << k for k in range(1, bits)):
        length = warp // phases
        fast = _part(_TID, 1, length)
        for by in range(1, phases):
            for divide in (1 << k for k in range(length.bit_length() - 1)):
                turned = Op(
                    "+", (Op("//", (_TID, Const(length))), _times(Op("//", (fast, Const(divide))), by))
                )
                place = Op("+", (_times(fast, phases), Op("%", (turned, Const(phases)))))
                yield Op("+", (base, place))
    for xor in xors:
        for rotation in rotations:
            yield _rotated(xor, *rotation)


def _rotated(node: Node, low: int, high: int, by: int) -> Node:
    """`node` with its bits `low` to `high` rotated left."""
    size, up = 1 << high - low, 1 << by
    moved = Op("+", (
        _times(_part(node, 1 << low, size // up), up << low),
        _times(_part(node, 1 << high - by, up), 1 << low),
    ))  # fmt: skip
    above = _times(Op("//", (node, Const(1 << high))), 1 << high)
    return Op("+", (Op("+", (above, moved)), _part(node, 1, 1 << low)))


def _part(node: Node, divide: int, size: int) -> Node:
    return Op("%", (Op("//", (node, Const(divide))), Const(size)))


def _times(node: Node, factor: int) -> Node:
    return Op("*", (node, Const(factor)))
