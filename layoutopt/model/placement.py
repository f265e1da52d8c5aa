"""Free assignments: every chunk of the tile in any bank, no formula at all.

What a layout of any kind can choose. What it keeps whole and aligned (`layoutopt.accesses.alignment`) are
**chunks** of 4, 8 or 16 bytes. All that matters for conflicts is the **position** of each chunk, its
address modulo one row of banks: any choice of positions is some layout, because rows of banks below one
another give every chunk an address of its own. So the least excess over all positions is the least excess
of every layout, padding, formulas and tables alike; `layoutopt.model.placement_model` asks CP-SAT for it.

The least bytes come from the same model: chunks of one column stand on each other, wide ones first,
so that a layout of T bytes exists exactly when no column is higher than T allows.

Elements narrower than a word that no wide access binds may share words in any way, which positions
cannot express. The **table** then packs them into words in row-major order, and the **bound** leaves
them out of the phases, which can only lower it. Likewise elements of a lower alignment than their size:
the table starts them at multiples of their size, the bound does not.

Not covered: elements whose size is no power of two, and devices whose words share a bank row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from layoutopt.accesses.trace import Trace
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.annealing import annealed, units_of
from layoutopt.model.chunks import Chunks, bound_chunks, free_phases
from layoutopt.model.cp_sat import Answer, Outcome
from layoutopt.model.folded import folded
from layoutopt.model.phases import PhaseSet
from layoutopt.model.placement_model import PlacementModel, solved
from layoutopt.model.turned import turned_lines
from layoutopt.problems.types import Tile

# Deterministic time for the questions of one call, unless the caller says otherwise.
EFFORT = 10.0
# Rounds of local search before the solver is asked, then, and to even columns out, for an effort of 2; a
# greater one has up to so many times as many.
_FIRST, _MORE, _EVEN = 3, 14, 1
_SEARCHED_EFFORT, _MOST_TIMES = 2.0, 2.0
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
    bound: int = 0,
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
        bound: no layout has less weighted excess, as the caller knows.

    Returns:
        None where the model does not apply (see the module's text) or would be too large.
    """
    model = _model(sets, trace, tile, budget, workers)
    if model is None:
        return None
    free = model.chunks if tile.element_alignment == tile.element_bytes else _chunks(sets, trace, tile)
    exact = free is model.chunks
    counted = np.concatenate([s.elements[s.elements >= 0] for s in sets])
    exact &= not model.chunks.loose[model.chunks.of[counted]].any()
    if exact:
        return _Questions(model).run(effort, max_bytes, hint, bound)
    phases = free_phases(sets, free, drop_loose=True)
    relaxed = PlacementModel(free, phases, model.period, tile, budget, workers)
    if relaxed.too_large:
        return None
    # Narrow elements that may share words leave floors below what the caller knows: 0, at the least.
    bound = max(bound, _Questions(relaxed).least_excess(effort / 2))
    found = _Questions(model).run(effort / 2, max_bytes, hint)
    return replace(found, bound=bound, bytes_bound=tile.bytes)


def in_own_bytes(
    sets: Sequence[PhaseSet], trace: Trace, tile: Tile, *, budget: Budget, hint: IntArray
) -> FreeAssignment | None:
    """A layout of the least excess in the tile's own bytes, where that is found in a fraction of a second.

    Arguments are those of `free_assignment`; `hint` has the least excess, in any bytes.
    """
    model = _model(sets, trace, tile, budget, workers=1)
    return None if model is None else _Questions(model).in_own_bytes(hint, model.floor)


def _model(
    sets: Sequence[PhaseSet], trace: Trace, tile: Tile, budget: Budget, workers: int
) -> PlacementModel | None:
    """Positions of chunks that keep every element at a multiple of its size."""
    if not sets or tile.element_bytes & (tile.element_bytes - 1) or any(s.rule.row_words > 1 for s in sets):
        return None
    chunks = _chunks(sets, trace, tile, tile.element_bytes)
    period = max(s.rule.banks * s.rule.bank_bytes for s in sets)
    if chunks.size.max() > min(s.rule.banks * s.rule.bank_bytes for s in sets):
        return None
    phases = free_phases(sets, chunks, drop_loose=False)
    model = PlacementModel(chunks, phases, period, tile, budget, workers)
    return None if model.too_large else model


def _chunks(
    sets: Sequence[PhaseSet], trace: Trace, tile: Tile, element_alignment: int | None = None
) -> Chunks:
    return bound_chunks(trace, tile, min(s.rule.bank_bytes for s in sets), element_alignment)


def question(sets: Sequence[PhaseSet], trace: Trace, tile: Tile, most: int | None) -> str:
    """`CpModelProto` text that has a solution if some layout keeps to `most`.

    Args:
        sets: the phases, for which `free_assignment` did not return None.
        trace: the accesses.
        tile: what is placed.
        most: weighted excess allowed; None for every phase at its counting bound.
    """
    chunks = _chunks(sets, trace, tile)
    period = max(s.rule.banks * s.rule.bank_bytes for s in sets)
    phases = free_phases(sets, chunks, drop_loose=True)
    return PlacementModel(chunks, phases, period, tile, Budget(), 1).text(most)


class _Questions:
    """One set of phases, asked several questions."""

    def __init__(self, model: PlacementModel) -> None:
        self.model = model
        self.chunks, self.tile, self.period = model.chunks, model.tile, model.period

    def run(
        self,
        effort: float,
        max_bytes: int | None,
        hint: IntArray | None,
        bound: int = 0,
    ) -> FreeAssignment:
        """Least excess, then least bytes, within `max_bytes`."""
        found = self._least(effort, hint, bound)
        if max_bytes is None or found.bytes is None or found.bytes <= max_bytes:
            return found
        packed, whole = self._packed(found.bound), max_bytes // self.model.atom
        answer = self.model.solve(effort * _QUICK, atoms=whole, least=True, hint=packed.table)
        known = (
            [packed, self._assignment(found.bound, answer, self.tile.bytes)] if solved(answer) else [packed]
        )
        # Where atoms are shared, the chunks that the model does not place may need one more.
        fitting = [f for f in known if f.bytes is not None and f.bytes <= max_bytes]
        nothing = FreeAssignment(found.bound, bytes_bound=self.tile.bytes)
        return min(fitting, key=lambda f: (f.excess, f.bytes), default=nothing)

    def _least(self, effort: float, hint: IntArray | None, bound: int) -> FreeAssignment:
        """Least excess, then least bytes."""
        bound = max(bound, self.model.floor)
        if (known := self.in_own_bytes(hint, bound)) is not None:
            return known
        near = replace(self.searched_nearby(hint, bound, _FIRST, effort), bound=bound)
        if near.excess == bound and near.bytes == self.tile.bytes:
            return replace(near, bytes_bound=self.tile.bytes)
        # Most often the counting bounds can be met in the tile's own bytes.
        if bound == self.model.floor:
            tight = self.model.solve(effort * _QUICK, atoms=self.model.atoms(self.tile.bytes), hint=hint)
            if solved(tight):
                return self._assignment(bound, tight, self.tile.bytes)
        if near.excess != bound:
            near = replace(self.searched_nearby(near.table, bound, _MORE, effort), bound=bound)
        if near.excess != bound:
            near = self._proved(effort * _LONG, near)
        assert near.excess is not None
        return self._smallest(effort * _QUICK, near.excess, near)

    def _proved(self, effort: float, near: FreeAssignment) -> FreeAssignment:
        """The least excess, or `near` with what is proved of all assignments."""
        best = self.model.solve(effort, least=True, hint=near.table)
        if best.outcome is Outcome.INFEASIBLE:
            raise AssertionError("some assignment always exists")
        bound = max(near.bound, self.model.excess_at(best.bound))
        found = self._assignment(bound, best, self.tile.bytes) if solved(best) else near
        assert found.excess is not None
        assert near.excess is not None
        return found if found.excess < near.excess else replace(near, bound=bound)

    def searched_nearby(
        self, hint: IntArray | None, bound: int, rounds: int, effort: float = _SEARCHED_EFFORT
    ) -> FreeAssignment:
        """What local search makes of a layout, of row-major where there is no hint."""
        flat = np.arange(self.tile.elements) * self.tile.element_bytes if hint is None else hint.ravel()
        start = self.model.positions_of(flat)
        if not start:  # nothing counts
            return self._placed_at({}, self.model.floor, self.tile.bytes)
        enough = bound - self.model.floor
        rounds = math.ceil(rounds * min(_MOST_TIMES, effort / _SEARCHED_EFFORT))
        units = units_of(self.model)
        found = annealed(units, np.array([*start.values()]), enough, rounds, self.model.budget)
        position = dict(zip(start, found.tolist(), strict=True))
        return self._placed_at(self._fullest_first(position), self.model.floor, self.tile.bytes)

    def in_own_bytes(self, hint: IntArray | None, bound: int) -> FreeAssignment | None:
        """The least excess in the tile's own bytes, where that is soon found: best with a formula."""
        size, model = self.tile.element_bytes, self.model
        # Every element a chunk, of which none is alone.
        plain = model.symmetric and len(model.positions) == self.tile.elements == len(self.chunks.size)
        plain &= set(self.chunks.size.tolist()) == {size}
        row, table = self.period // size, None
        if plain:
            table = turned_lines(model.phases, self.tile.shape, row, model.budget)
        if table is None and hint is not None:
            known = self._placed_at(model.positions_of(hint), bound, self.tile.bytes)
            if known.excess != bound:
                return None
            if plain and bound == model.floor and not (hint % size).any():
                table = folded(model.phases, hint.ravel() // size, row, model.budget)
            if table is None:
                known = self.evened(known)
                return known if known.complete else None
        if table is None:
            return None
        table = table.reshape(self.tile.shape) * size
        return FreeAssignment(model.floor, model.floor, table, self.tile.bytes, self.tile.bytes)

    def evened(self, found: FreeAssignment) -> FreeAssignment:
        """The same wavefronts in the tile's own bytes or in few more, where chunks are of one size."""
        one_size = len(set(self.model.positions.values())) == 1 and self.model.symmetric
        if found.table is None or found.bytes == self.tile.bytes or not one_size:
            return found
        assert found.excess is not None
        assert found.bytes is not None
        even = self.searched_nearby(found.table, found.excess, _EVEN)
        better = replace(even, bound=found.bound, bytes_bound=found.bytes_bound)
        assert better.bytes is not None
        return better if better.bytes < found.bytes else found

    def _fullest_first(self, position: dict[int, int]) -> dict[int, int]:
        """The same with banks renamed, where they may be: what lies in the last row lies at its beginning."""
        if not self.model.symmetric:
            return position
        size = self.chunks.size[[*position]]
        widest = int(size.max())
        group, inside = np.divmod(np.array([*position.values()]) * size, widest)
        held = np.bincount(group, size, self.period // widest)
        name = np.empty(len(held), np.int64)
        name[np.argsort(-held, kind="stable")] = np.arange(len(held))
        named = (name[group] * widest + inside) // size
        return dict(zip(position, named.tolist(), strict=True))

    def least_excess(self, effort: float) -> int:
        """A proved lower bound of the weighted excess."""
        return max(self.model.floor, self.model.excess_at(self.model.solve(effort, least=True).bound))

    def _smallest(self, effort: float, most: int, found: FreeAssignment) -> FreeAssignment:
        """The smallest assignment with an excess of `most` at most, which `found` has."""
        found = self.evened(found)
        bound = found.bound
        assert found.bytes is not None
        size_bound, last = self.tile.bytes, found.bytes
        row_atoms = self.period // self.model.atom
        atoms = self.model.atoms(self.tile.bytes)
        while atoms < self.model.atoms(last):
            answer = self.model.solve(effort, atoms=atoms, most=most, hint=found.table)
            if solved(answer):
                found = self._assignment(bound, answer, size_bound)
                break
            if answer.outcome is not Outcome.INFEASIBLE:
                break
            size_bound = atoms * self.model.atom + self.tile.element_bytes
            atoms = atoms // row_atoms * row_atoms + row_atoms
        # The sizes between two row ends were not asked for one by one.
        return replace(found, bytes_bound=size_bound if most == bound else self.tile.bytes)

    # Answers ----------------------------------------------------------------------------------

    def _assignment(self, bound: int, answer: Answer, bytes_bound: int) -> FreeAssignment:
        """The layout that an answer stands for."""
        position, variable = {}, 0
        for c, n in self.model.positions.items():
            position[c] = answer.values[variable : variable + n].index(1)
            variable += n
        return self._placed_at(position, bound, bytes_bound)

    def _placed_at(self, position: dict[int, int], bound: int, bytes_bound: int) -> FreeAssignment:
        return self._with_table(self._stack(position), position, bound, bytes_bound)

    def _with_table(
        self, table: IntArray, position: dict[int, int], bound: int, bytes_bound: int
    ) -> FreeAssignment:
        size = int(table.max()) + self.tile.element_bytes
        return FreeAssignment(bound, self.model.excess_of(position), table, size, bytes_bound)

    def _packed(self, bound: int) -> FreeAssignment:
        """One chunk after the other, wide ones first: no layout is smaller, whatever it costs."""
        order = np.lexsort((-self._used(), -self.chunks.size))
        address = np.zeros(len(order), np.int64)
        address[order] = np.cumsum(self.chunks.size[order]) - self.chunks.size[order]
        table = (address[self.chunks.of] + self.chunks.place).reshape(self.tile.shape)
        return self._with_table(table, self.model.positions_of(table), bound, self.tile.bytes)

    def _used(self) -> IntArray:
        """Bytes to the end of the last element of each chunk: what lies last need not be whole."""
        used = np.zeros(len(self.chunks.size), np.int64)
        np.maximum.at(used, self.chunks.of, self.chunks.place + self.tile.element_bytes)
        return used

    def _stack(self, position: dict[int, int]) -> IntArray:
        """Addresses: in every column wide chunks first; chunks that meet nothing fill what is left."""
        atom = self.model.atom
        height = np.zeros(self.period // atom, np.int64)
        address = np.zeros(len(self.chunks.size), np.int64)
        used = self._used()
        for c in sorted(position, key=lambda c: (-int(self.chunks.size[c]), -int(used[c]), c)):
            wide = int(self.chunks.size[c]) // atom
            columns = slice(position[c] * wide, (position[c] + 1) * wide)
            address[c] = int(height[columns].max()) * self.period + position[c] * wide * atom
            height[columns] = height[columns].max() + 1
        met = np.zeros(len(address), np.bool_)
        met[list(position)] = True
        free = np.flatnonzero(~met)
        for size in np.unique(self.chunks.size[free])[::-1].tolist():
            alike, wide = free[self.chunks.size[free] == size], size // atom
            rows, at = _lowest(height.reshape(-1, wide).max(axis=1), len(alike))
            address[alike] = rows * self.period + at * size
            above = np.zeros(len(height) // wide, np.int64)
            np.maximum.at(above, at, rows + 1)
            height = np.maximum(height, above.repeat(wide))
        flat: IntArray = address[self.chunks.of] + self.chunks.place
        return flat.reshape(self.tile.shape)


def _lowest(height: IntArray, count: int) -> tuple[IntArray, IntArray]:
    """Rows and columns of the next `count` places in columns filled so high: lowest first, left to right."""
    levels = np.sort(height)
    # Places below each of the heights: so many columns get some, and are then as high as one another.
    room = levels * np.arange(1, len(levels) + 1) - np.cumsum(levels)
    open_columns = max(1, int(np.searchsorted(room, count)))
    needed = count + int(levels[:open_columns].sum())
    top = -(-needed // open_columns)
    each = np.maximum(0, top - height)
    columns = np.repeat(np.arange(len(height)), each)
    rows = height[columns] + np.arange(len(columns)) - np.repeat(np.cumsum(each) - each, each)
    order = np.lexsort((columns, rows))[:count]
    return rows[order], columns[order]
