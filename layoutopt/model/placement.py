"""Free assignments: every chunk of the tile in any bank, no formula at all.

What a layout of any kind can choose. What it keeps whole and aligned (`layoutopt.problems.alignment`) are
**chunks** of 4, 8 or 16 bytes. All that matters for conflicts is the **position** of each chunk, its
address modulo one row of banks: any choice of positions is some layout, because rows of banks below one
another give every chunk an address of its own. So the least excess over all positions is the least excess
of every layout, padding, formulas and tables alike:

    quantity                    encoding
    chunk a at position g       a boolean, exactly one of them for each chunk
    load of bank b in a phase   the sum of the booleans that put a word of the phase there
    cost of a phase             at least every load, and at least its counting bound
    bytes                       in each column of the bank rows, no more chunks than rows
    renamed banks               chunk k of the widest phase lies in one of the first k + 1 positions

The least bytes come from the same model: chunks of one column stand on each other, wide ones first,
so that a layout of T bytes exists exactly when no column is higher than T allows.

Elements narrower than a word that no wide access binds may share words in any way, which positions
cannot express. The **table** then packs them into words in row-major order, and the **bound** leaves
them out of the phases, which can only lower it. Likewise elements of a lower alignment than their size:
the table starts them at multiples of their size, the bound does not.

Not covered: elements whose size is no power of two, and devices whose words share a bank row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from layoutopt.budget import Budget
from layoutopt.hardware.devices import PhaseRule
from layoutopt.model.cp_sat import Answer, Model, Outcome
from layoutopt.model.descent import Load, descend
from layoutopt.model.phases import PhaseSet
from layoutopt.problems.alignment import blocks
from layoutopt.problems.trace import LaneTrace, Trace
from layoutopt.problems.types import Tile

IntArray = npt.NDArray[np.int64]

# Booleans, and terms of the load constraints, beyond which no model is built.
MAX_BOOLEANS = 1 << 17
MAX_TERMS = 1 << 22
# What it takes, about, to write a term down and have the solver read it.
_SECONDS_A_TERM = 2e-6
# Pairs of lanes in all instructions, and clauses on the banks of two words, beyond which no lane order is
# looked for.
MAX_PAIRS = 1 << 20
# Deterministic time for the questions of one call, unless the caller says otherwise.
EFFORT = 10.0
# Local search: how often every chunk moves at most, moves in all, and the effort from which it has them.
_SWEEPS, _MOVES, _SWEPT_EFFORT = 60, 60_000, 2.0
# Shares of the effort: a yes-or-no question, and the minimum where the answer is no.
_QUICK, _LONG = 0.2, 0.6


@dataclass(frozen=True, slots=True)
class FreeAssignment:
    """The best free assignment found, and what is proved of all of them.

    Excess is weighted, in units of `Trace.weight_unit`.

    Attributes:
        bound: no layout of any kind has less excess.
        excess: excess of `table`; None if none was found.
        table: int64 byte offset of every element, in the shape of the tile.
        bytes: last offset plus element size.
        bytes_bound: no layout whose excess is `bound` is smaller.
    """

    bound: int
    excess: int | None = None
    table: IntArray | None = None
    bytes: int | None = None
    bytes_bound: int = 0

    @property
    def complete(self) -> bool:
        """Whether no layout has less excess, or as little in fewer bytes."""
        return self.excess == self.bound and self.bytes == self.bytes_bound


@dataclass(frozen=True, slots=True)
class Chunks:
    """What every layout keeps whole.

    Attributes:
        of: int64, shape (elements,): chunk of each element.
        place: int64, shape (elements,): byte of the chunk at which the element starts.
        size: int64, shape (chunks,): bytes that matter, a power of two, also the chunk's alignment.
        loose: bool, shape (chunks,): a word packed with narrower elements; others may pack otherwise.
    """

    of: IntArray
    place: IntArray
    size: IntArray
    loose: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FreePhase:
    """A phase as units: what the access's width covers at one place of a chunk.

    Attributes:
        units: (chunk, byte in the chunk, how often), sorted.
        unit_bytes: bytes of a unit.
        banks: banks of such units.
        weight: weighted number of times that it is served.
        floor: wavefronts that no layout undercuts.
        ideal: wavefronts if spread evenly.
    """

    units: tuple[tuple[int, int, int], ...]
    unit_bytes: int
    banks: int
    weight: int
    floor: int
    ideal: int


def free_assignment(
    sets: Sequence[PhaseSet],
    trace: Trace,
    tile: Tile,
    *,
    budget: Budget,
    workers: int = 1,
    effort: float = EFFORT,
    max_bytes: int | None = None,
    hint: IntArray | None = None,
) -> FreeAssignment | None:
    """The least weighted excess over all placements of chunks in banks, then the fewest bytes.

    Args:
        sets: the phases, from `phase_sets`.
        trace: the accesses, whose vectors stay whole.
        tile: what is placed.
        budget: the time there is; the bound and the table hold whenever it ends.
        workers: solver threads. With one the answer is reproducible unless the time runs out.
        effort: deterministic time for the whole call.
        max_bytes: the table is no larger.
        hint: byte offset of every element in some layout, to start from.

    Returns:
        None where the model does not apply (see the module's text) or would be too large.
    """
    if not sets or tile.element_bytes & (tile.element_bytes - 1) or any(s.rule.row_words > 1 for s in sets):
        return None
    word_bytes = min(s.rule.bank_bytes for s in sets)
    chunks = bound_chunks(trace, tile, word_bytes, tile.element_bytes)
    period = max(s.rule.banks * s.rule.bank_bytes for s in sets)
    if chunks.size.max() > min(s.rule.banks * s.rule.bank_bytes for s in sets):
        return None
    free = chunks if tile.element_alignment == tile.element_bytes else bound_chunks(trace, tile, word_bytes)
    exact = free is chunks
    exact &= not chunks.loose[chunks.of[np.concatenate([s.elements[s.elements >= 0] for s in sets])]].any()
    search = _Search(chunks, free_phases(sets, chunks, drop_loose=False), period, tile, budget, workers)
    if search.too_large:
        return None
    if exact:
        return search.run(effort, max_bytes, hint)
    relaxed = _Search(free, free_phases(sets, free, drop_loose=True), period, tile, budget, workers)
    if relaxed.too_large:
        return None
    bound = relaxed.least_excess(effort / 2)
    found = search.run(effort / 2, max_bytes, hint)
    return replace(found, bound=bound, bytes_bound=tile.bytes)


def question(sets: Sequence[PhaseSet], trace: Trace, tile: Tile, most: int | None) -> str:
    """`CpModelProto` text that has a solution if some layout keeps to `most`.

    Args:
        sets: the phases, for which `free_assignment` did not return None.
        trace: the accesses.
        tile: what is placed.
        most: weighted excess allowed; None for every phase at its counting bound.
    """
    word_bytes = min(s.rule.bank_bytes for s in sets)
    chunks = bound_chunks(trace, tile, word_bytes)
    period = max(s.rule.banks * s.rule.bank_bytes for s in sets)
    phases = free_phases(sets, chunks, drop_loose=True)
    return _Search(chunks, phases, period, tile, Budget(), 1).text(most)


def bound_chunks(trace: Trace, tile: Tile, word_bytes: int, element_alignment: int | None = None) -> Chunks:
    """Cut the tile into what every layout keeps whole (`layoutopt.problems.alignment.blocks`).

    With an element alignment: what layouts keep that start every element at multiples of it.
    """
    size = tile.element_bytes
    held_by = blocks(trace, tile, element_alignment)
    widest, head, place = held_by.width, held_by.head, held_by.place
    loose = widest < word_bytes
    # Loose elements fill words, the widest vectors first, so that each is aligned.
    order = np.flatnonzero(loose)
    order = order[np.argsort(-widest[order], kind="stable")]
    start = np.arange(len(order)) * size
    head[order] = order[start // word_bytes * word_bytes // size] if len(order) else 0
    place[order] = start % word_bytes
    heads, of = np.unique(head, return_inverse=True)
    return Chunks(of.reshape(-1), place, np.maximum(widest[heads], word_bytes), loose[heads])


def free_phases(sets: Sequence[PhaseSet], chunks: Chunks, *, drop_loose: bool) -> list[FreePhase]:
    """The phases over chunks, equal ones merged; with `drop_loose`, without the loose elements.

    A phase that drops some keeps the largest ideal that any packing of them gives, so that its
    excess is a lower bound.
    """
    merged: dict[tuple[object, ...], int] = {}
    for s in sets:
        unit_bytes = max(s.width_bytes, s.rule.bank_bytes)
        chunk_words = unit_bytes // s.rule.bank_bytes
        banks = s.rule.banks // chunk_words
        requests = chunk_words if s.rule.split_words else 1
        for row, weight, floor in zip(s.elements.tolist(), s.weight.tolist(), s.floor.tolist(), strict=True):
            seen: dict[tuple[int, int], int] = {}
            dropped = 0
            for e in row:
                if e < 0:
                    continue
                chunk = int(chunks.of[e])
                if drop_loose and chunks.loose[chunk]:
                    dropped += 1
                    continue
                unit = chunk, int(chunks.place[e]) // unit_bytes * unit_bytes
                seen[unit] = seen.get(unit, 0) + 1
            distinct = len(seen) + dropped
            ideal = max(1, -(-distinct * chunk_words // (s.rule.banks * requests)))
            units = tuple((*u, n if s.rule.serialises_equal else 1) for u, n in sorted(seen.items()))
            key = units, unit_bytes, banks, max(1, floor), ideal
            merged[key] = merged.get(key, 0) + weight * requests
    return [
        FreePhase(units, unit_bytes, banks, weight, floor, ideal)  # type: ignore[arg-type]
        for (units, unit_bytes, banks, floor, ideal), weight in merged.items()
    ]


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
    if any(max(_least(p), _alone(p)) > p.ideal for p in free_phases(sets, chunks, drop_loose=False)):
        return None
    phases = free_phases(every, chunks, drop_loose=False)
    search = _Search(chunks, phases, max(row_bytes), tile, budget, 1)
    if search.too_large or rows.size * rows.shape[1] > MAX_PAIRS:
        return None
    search.symmetric = search.symmetric and table is None
    return search.order_lanes(rows, own, rule, effort, table)


class _Search:
    """One set of phases, asked several questions."""

    def __init__(
        self,
        chunks: Chunks,
        phases: list[FreePhase],
        period: int,
        tile: Tile,
        budget: Budget,
        workers: int,
    ) -> None:
        self.chunks = chunks
        self.period = period
        self.tile = tile
        self.budget = budget
        self.workers = workers
        # Phases of one unit cost what they cost; they bind no positions.
        self.fixed = sum(p.weight * (_alone(p) - p.ideal) for p in phases if len(p.units) < 2)
        self.phases = [p for p in phases if len(p.units) > 1]
        self.floor = self.fixed + sum(p.weight * (_least(p) - p.ideal) for p in self.phases)
        self.placed = self._order()
        self.positions = {c: period // int(chunks.size[c]) for c in self.placed}
        self.symmetric = all(p.unit_bytes * p.banks == period for p in self.phases)

    @property
    def too_large(self) -> bool:
        """Whether the model would be."""
        return sum(self.positions.values()) > MAX_BOOLEANS or self._terms > MAX_TERMS

    @property
    def _terms(self) -> int:
        """Terms of the load constraints."""
        return sum(self.positions[c] for p in self.phases for c, _, _ in p.units)

    def _order(self) -> list[int]:
        """The chunks that meet others, from the widest phase outwards."""
        order: dict[int, None] = {}
        for phase in sorted(self.phases, key=lambda p: (-len(p.units), p.units)):
            order.update((chunk, None) for chunk, _, _ in phase.units)
        return list(order)

    def run(self, effort: float, max_bytes: int | None, hint: IntArray | None) -> FreeAssignment:
        """Least excess, then least bytes."""
        # Most often the counting bounds can be met in the tile's own bytes.
        tight = self._solve(effort * _QUICK, atoms=self._atoms(self.tile.bytes), hint=hint)
        if _solved(tight):
            return self._assignment(self.floor, tight, self.tile.bytes)
        bound, most, best = self.floor, None, self._solve(effort * _QUICK, hint=hint)
        if _solved(best):
            most = self.floor
        else:
            near = self._searched_nearby(hint, effort)
            best = self._solve(effort * _LONG, least=True, hint=near.table)
            if best.outcome is Outcome.INFEASIBLE:
                raise AssertionError("some assignment always exists")
            bound = max(bound, self._excess_at(best.bound))
            assert near.excess is not None
            if not _solved(best) or self._excess_at(best.objective) > near.excess:
                return self._smallest(effort * _QUICK, near.excess, replace(near, bound=bound), max_bytes)
            most = self._excess_at(best.objective)
        found = self._assignment(bound, best, self.tile.bytes)
        return self._smallest(effort * _QUICK, most, found, max_bytes)

    def _searched_nearby(self, hint: IntArray | None, effort: float) -> FreeAssignment:
        """What local search makes of a layout, of row-major where there is no hint."""
        flat = np.arange(self.tile.elements) * self.tile.element_bytes if hint is None else hint.ravel()
        start = self._positions(flat)
        if not start:  # nothing counts
            return self._placed_at({}, self.floor, self.tile.bytes)
        loads: dict[int, list[Load]] = {c: [] for c in self.placed}
        for number, phase in enumerate(self.phases):
            for c, place, times in phase.units:
                address = np.arange(self.positions[c]) * int(self.chunks.size[c]) + place
                loads[c].append(Load(number, address // phase.unit_bytes % phase.banks, times))
        sweeps = min(_SWEEPS, _MOVES // max(1, len(start)))
        position = descend(
            loads,
            np.array([_least(phase) for phase in self.phases]),
            np.array([phase.weight for phase in self.phases]),
            max(phase.banks for phase in self.phases),
            start,
            int(sweeps * min(1.0, effort / _SWEPT_EFFORT)),
            self.budget,
        )
        return self._placed_at(self._renamed(position), self.floor, self.tile.bytes)

    def _renamed(self, position: dict[int, int]) -> dict[int, int]:
        """The same with banks in the order that `_break_symmetry` wants."""
        if not self.symmetric:
            return position
        widest = max(int(self.chunks.size[c]) for c in position)
        names: dict[int, int] = {}
        renamed = {}
        for c in self.placed:
            size = int(self.chunks.size[c])
            group, inside = divmod(position[c] * size, widest)
            renamed[c] = (names.setdefault(group, len(names)) * widest + inside) // size
        return renamed

    def least_excess(self, effort: float) -> int:
        """A proved lower bound of the weighted excess."""
        return max(self.floor, self._excess_at(self._solve(effort, least=True).bound))

    def _smallest(
        self, effort: float, most: int, found: FreeAssignment, max_bytes: int | None
    ) -> FreeAssignment:
        """The smallest assignment with an excess of `most` at most, which `found` has."""
        bound = found.bound
        assert found.bytes is not None
        size_bound, last = self.tile.bytes, found.bytes
        row_atoms = self.period // self._atom
        atoms = self._atoms(self.tile.bytes)
        while atoms < self._atoms(last):
            answer = self._solve(effort, atoms=atoms, most=most, hint=found.table)
            if _solved(answer):
                found = self._assignment(bound, answer, size_bound)
                break
            if answer.outcome is not Outcome.INFEASIBLE:
                break
            size_bound = atoms * self._atom + self.tile.element_bytes
            atoms = atoms // row_atoms * row_atoms + row_atoms
        if max_bytes is not None and found.bytes is not None and found.bytes > max_bytes:
            packed = self._packed(bound)
            fits = packed.bytes is not None and packed.bytes <= max_bytes
            hint = packed.table if fits else None
            answer = self._solve(effort, atoms=max_bytes // self._atom, least=True, hint=hint)
            if _solved(answer):
                return self._assignment(bound, answer, self.tile.bytes)
            return packed if fits else FreeAssignment(bound, bytes_bound=self.tile.bytes)
        # The sizes between two row ends were not asked for one by one.
        return replace(found, bytes_bound=size_bound if most == bound else self.tile.bytes)

    # One model --------------------------------------------------------------------------------

    def _solve(
        self,
        effort: float,
        *,
        atoms: int | None = None,
        least: bool = False,
        most: int | None = None,
        hint: IntArray | None = None,
    ) -> Answer:
        """One question: positions that keep every phase at its floor, unless asked otherwise.

        Args:
            effort: deterministic time.
            atoms: most atoms that the layout spans; None for no limit.
            least: minimise the weighted wavefronts.
            most: weighted excess allowed.
            hint: byte offset of every element.
        """
        if not self.budget.affords(self._terms * _SECONDS_A_TERM):
            return Answer(Outcome.UNKNOWN, (), 0, 0)
        model, _ = self._model(atoms=atoms, least=least, most=most, hint=hint)
        return model.solve(self.budget, self.workers, effort)

    def text(self, most: int | None) -> str:
        """As `CpModelProto` text: every phase at its floor, or a weighted excess of `most` at most."""
        model, _ = self._model(atoms=None, least=False, most=most, hint=None)
        return model.to_text()

    def order_lanes(
        self, rows: IntArray, own: PhaseSet, rule: PhaseRule, effort: float, table: IntArray | None
    ) -> tuple[int, ...] | None:
        """See `lane_order`; `rows` are the instructions of the access, as elements of lanes or -1."""
        model, at = self._model(atoms=None, least=False, most=None, hint=None)
        for c, position in self._positions(table).items() if table is not None else ():
            model.clause([at[c][position]])
        deal = [[model.boolean() for _ in rule.phases] for _ in range(rows.shape[1])]
        for literals in deal:
            model.exactly_one(literals)
        for p, lanes in enumerate(rule.phases):
            model.at_most([(literals[p], 1) for literals in deal], len(lanes))
        met: dict[tuple[tuple[int, int], tuple[int, int]], set[tuple[int, int]]] = {}
        unit_bytes = max(own.width_bytes, rule.bank_bytes)
        for row in rows.tolist():
            units = [
                (int(self.chunks.of[e]), int(self.chunks.place[e]) // unit_bytes * unit_bytes) for e in row
            ]
            for a, b in itertools.combinations([lane for lane, e in enumerate(row) if e >= 0], 2):
                u, v = sorted((units[a], units[b]))
                if u[0] != v[0]:
                    met.setdefault((u, v), set()).add((a, b))
        apart: dict[tuple[int, int], int] = {}
        banks = rule.banks * rule.bank_bytes // unit_bytes
        if len(met) * banks > MAX_PAIRS:
            return None
        for (u, v), pairs in met.items():
            same = model.boolean()
            for i, a in enumerate(at[u[0]]):
                bank = (i * int(self.chunks.size[u[0]]) + u[1]) // unit_bytes % banks
                for j, b in enumerate(at[v[0]]):
                    if (j * int(self.chunks.size[v[0]]) + v[1]) // unit_bytes % banks == bank:
                        model.clause([-a - 1, -b - 1, same])
            for pair in pairs:
                if pair not in apart:
                    apart[pair] = model.boolean()
                    for x, y in zip(deal[pair[0]], deal[pair[1]], strict=True):
                        model.clause([-x - 1, -y - 1, -apart[pair] - 1])
                model.clause([-same - 1, apart[pair]])
        answer = model.solve(self.budget, self.workers, effort)
        if not _solved(answer):
            return None
        order = [0] * rows.shape[1]
        for p, slots in enumerate(rule.phases):
            dealt = [lane for lane, literals in enumerate(deal) if answer.values[literals[p]]]
            for slot, lane in zip(slots, dealt, strict=True):
                order[slot] = lane
        return tuple(order)

    def _model(
        self, *, atoms: int | None, least: bool, most: int | None, hint: IntArray | None
    ) -> tuple[Model, dict[int, list[int]]]:
        """The model, and for each chunk the literals of its positions."""
        model = Model()
        at = {c: [model.boolean() for _ in range(n)] for c, n in self.positions.items()}
        for literals in at.values():
            model.exactly_one(literals)
        terms = []
        for phase in self.phases:
            loads = _loads(phase, at, self.chunks)
            if least or most is not None:
                # What a phase drops counts in its floor, so that this may exceed what its units can cost.
                least_of_phase = _least(phase)
                most_of_phase = max(least_of_phase, sum(n for _, _, n in phase.units))
                wavefronts = model.integer(least_of_phase, most_of_phase)
                terms.append((wavefronts, phase.weight))
                for load in loads:
                    model.at_most([*load, (wavefronts, -1)], 0)
            elif _least(phase) == 1:
                for load in loads:
                    model.at_most_one([literal for literal, _ in load])
            else:
                for load in loads:
                    model.at_most(load, _least(phase))
        if most is not None:
            model.at_most(terms, most - self._excess_at(0))
        if least:
            model.minimise(terms)
        if atoms is not None:
            self._limit_columns(model, at, atoms)
        if self.symmetric and (atoms is None or atoms * self._atom % self.period == 0):
            self._break_symmetry(model, at)
        if hint is not None:
            for c, here in self._positions(hint).items():
                for position, literal in enumerate(at[c]):
                    model.hint(literal, int(position == here))
        return model, at

    def _excess_at(self, wavefronts: int) -> int:
        """Weighted excess of all phases, from the weighted wavefronts of those with several units."""
        return self.fixed + wavefronts - sum(p.weight * p.ideal for p in self.phases)

    @property
    def _atom(self) -> int:
        """Bytes of the smallest chunk."""
        return int(self.chunks.size.min())

    def _atoms(self, size_bytes: int) -> int:
        return -(-size_bytes // self._atom)

    def _limit_columns(self, model: Model, at: dict[int, list[int]], atoms: int) -> None:
        """No column of the bank rows holds more chunks than `atoms` atoms leave it."""
        columns: list[list[int]] = [[] for _ in range(self.period // self._atom)]
        for c, literals in at.items():
            wide = int(self.chunks.size[c]) // self._atom
            for position, literal in enumerate(literals):
                for column in range(position * wide, (position + 1) * wide):
                    columns[column].append(literal)
        for column, held in enumerate(columns):
            height = -(-(atoms - column) // len(columns))
            if len(held) > height:
                model.at_most([(literal, 1) for literal in held], height)

    def _break_symmetry(self, model: Model, at: dict[int, list[int]]) -> None:
        """Banks may be renamed, in groups as wide as the widest chunk: by first use in `placed`."""
        widest = max((int(self.chunks.size[c]) for c in at), default=1)
        for k, (c, literals) in enumerate(at.items()):
            size = int(self.chunks.size[c])
            for position, literal in enumerate(literals):
                if position * size // widest > k:
                    model.clause([-literal - 1])

    def _positions(self, table: IntArray) -> dict[int, int]:
        """Where a layout's byte offsets put the chunks."""
        flat = table.ravel()
        heads = {int(c): e for e, c in reversed(list(enumerate(self.chunks.of.tolist())))}
        return {
            c: (int(flat[heads[c]]) - int(self.chunks.place[heads[c]]))
            % self.period
            // int(self.chunks.size[c])
            for c in self.positions
        }

    # Answers ----------------------------------------------------------------------------------

    def _assignment(self, bound: int, answer: Answer, bytes_bound: int) -> FreeAssignment:
        """The layout that an answer stands for."""
        position, variable = {}, 0
        for c, n in self.positions.items():
            position[c] = answer.values[variable : variable + n].index(1)
            variable += n
        return self._placed_at(position, bound, bytes_bound)

    def _placed_at(self, position: dict[int, int], bound: int, bytes_bound: int) -> FreeAssignment:
        table = self._stack(position)
        excess = self.fixed + sum(p.weight * (_cost(p, position, self.chunks) - p.ideal) for p in self.phases)
        size = int(table.max()) + self.tile.element_bytes
        return FreeAssignment(bound, excess, table, size, bytes_bound)

    def _packed(self, bound: int) -> FreeAssignment:
        """One chunk after the other, wide ones first: no layout is smaller, whatever it costs."""
        order = np.argsort(-self.chunks.size, kind="stable")
        address = np.zeros(len(order), np.int64)
        address[order] = np.cumsum(self.chunks.size[order]) - self.chunks.size[order]
        table = (address[self.chunks.of] + self.chunks.place).reshape(self.tile.shape)
        position = self._positions(table)
        excess = self.fixed + sum(p.weight * (_cost(p, position, self.chunks) - p.ideal) for p in self.phases)
        return FreeAssignment(
            bound, excess, table, int(table.max()) + self.tile.element_bytes, self.tile.bytes
        )

    def _stack(self, position: dict[int, int]) -> IntArray:
        """Addresses: in every column wide chunks first; chunks that meet nothing fill what is left."""
        atom = self._atom
        height = np.zeros(self.period // atom, np.int64)
        address = np.zeros(len(self.chunks.size), np.int64)
        for c in sorted(position, key=lambda c: (-int(self.chunks.size[c]), c)):
            wide = int(self.chunks.size[c]) // atom
            columns = slice(position[c] * wide, (position[c] + 1) * wide)
            address[c] = int(height[columns].max()) * self.period + position[c] * wide * atom
            height[columns] = height[columns].max() + 1
        free = sorted(set(range(len(address))) - set(position), key=lambda c: (-int(self.chunks.size[c]), c))
        for c in free:
            wide = int(self.chunks.size[c]) // atom
            heights = height.reshape(-1, wide).max(axis=1)
            column = int(heights.argmin())
            address[c] = int(heights[column]) * self.period + column * wide * atom
            height[column * wide : (column + 1) * wide] = heights[column] + 1
        flat: IntArray = address[self.chunks.of] + self.chunks.place
        return flat.reshape(self.tile.shape)


def _solved(answer: Answer) -> bool:
    """Whether there is a solution, which has no values where nothing meets."""
    return answer.outcome in (Outcome.OPTIMAL, Outcome.FEASIBLE)


def _alone(phase: FreePhase) -> int:
    """Wavefronts of a phase of one unit, or of none that the model sees."""
    return max(_least(phase), *(n for _, _, n in phase.units)) if phase.units else phase.floor


def _least(phase: FreePhase) -> int:
    return max(phase.floor, -(-sum(n for _, _, n in phase.units) // phase.banks))


def _bank(phase: FreePhase, address: int) -> int:
    return address // phase.unit_bytes % phase.banks


def _cost(phase: FreePhase, position: dict[int, int], chunks: Chunks) -> int:
    """Wavefronts of a phase under given positions."""
    load: dict[int, int] = {}
    for c, place, n in phase.units:
        bank = _bank(phase, position[c] * int(chunks.size[c]) + place)
        load[bank] = load.get(bank, 0) + n
    return max(phase.floor, *load.values())


def _loads(phase: FreePhase, at: dict[int, list[int]], chunks: Chunks) -> list[list[tuple[int, int]]]:
    """For each bank that could be overloaded, the literals that put something there."""
    loads: dict[int, list[tuple[int, int]]] = {}
    for c, place, n in phase.units:
        for position, literal in enumerate(at[c]):
            bank = _bank(phase, position * int(chunks.size[c]) + place)
            loads.setdefault(bank, []).append((literal, n))
    return [load for _, load in sorted(loads.items()) if len(load) > 1]
