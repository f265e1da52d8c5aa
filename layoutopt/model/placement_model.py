"""Free assignments as a CP-SAT model: every chunk of the tile at any position (`layoutopt.model.placement`).

quantity                    encoding
chunk a at position g       a boolean, exactly one of them for each chunk
load of bank b in a phase   the sum of the booleans that put a word of the phase there
cost of a phase             at least every load, and at least its counting bound
bytes                       in each column of the bank rows, no more chunks than rows
renamed banks               chunk k of the widest phase lies in one of the first k + 1 positions
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.accesses.alignment import blocks
from layoutopt.accesses.trace import Trace
from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import current
from layoutopt.model.cp_sat import NO_ANSWER, Answer, Model
from layoutopt.model.phases import PhaseSet
from layoutopt.problems.types import Tile

# Booleans, and terms of the load constraints, beyond which no model is built.
_MAX_BOOLEANS = 1 << 17
_MAX_TERMS = 1 << 22
# Seconds, about, to write a term of a load down and have the solver read it.
_SECONDS_A_TERM = 2e-6


class Chunks(Struct, frozen=True):
    """What every layout keeps whole."""

    of: IntArray  # int64, shape (elements,): chunk of each element
    place: IntArray  # int64, shape (elements,): byte of the chunk at which the element starts
    size: IntArray  # int64, shape (chunks,): bytes that matter, a power of two, also the chunk's alignment
    loose: BoolArray  # bool, shape (chunks,): a word packed with narrower elements; others may pack otherwise


def chunks_of(trace: Trace, tile: Tile, word_bytes: int, element_alignment: int | None) -> Chunks:
    """Cut the tile into what every layout keeps whole (`layoutopt.accesses.alignment.blocks`).

    With an element alignment: what layouts keep that start every element at multiples of it.
    """
    size = tile.element_bytes
    held_by = blocks(trace, tile, element_alignment)  # made for this call, which changes its arrays
    widest, head, place = held_by.width, held_by.head, held_by.place
    loose = widest < word_bytes
    # Loose elements fill words, the widest vectors first, so that each is aligned.
    order = np.flatnonzero(loose)
    order = order[np.argsort(-widest[order], kind="stable")]
    start = np.arange(len(order)) * size
    head[order] = order[start // word_bytes * word_bytes // size]  # the first in the same word
    place[order] = start % word_bytes
    heads, of = np.unique(head, return_inverse=True)
    return Chunks(of.reshape(-1), place, np.maximum(widest[heads], word_bytes), loose[heads])


class Unit(NamedTuple):
    """What the access's width covers at one place of a chunk."""

    chunk: int
    byte: int  # of the chunk, at which it begins
    times: int  # how often a phase touches it


class UnitArrays(NamedTuple):
    """The units of all phases, each array int64, shape (units,)."""

    phase: IntArray
    chunk: IntArray
    byte: IntArray  # of the chunk, at which the unit begins
    times: IntArray  # how often the phase touches it
    unit_bytes: IntArray  # of its phase, as are the banks
    banks: IntArray


class FreePhase(Struct, frozen=True, dict=True):
    """A phase as units."""

    units: tuple[Unit, ...]  # sorted
    unit_bytes: int  # bytes of a unit
    banks: int  # banks of such units
    floor: int  # wavefronts that no layout undercuts
    ideal: int  # wavefronts if spread evenly
    weight: int = 0  # weighted number of times that it is served

    @cached_property
    def most(self) -> int:
        """Wavefronts if all units share a bank."""
        return sum(unit.times for unit in self.units)

    @cached_property
    def least(self) -> int:
        """Wavefronts that no positions undercut."""
        return max(self.floor, -(-self.most // self.banks))

    def loads(self, at: dict[int, list[int]], chunks: Chunks) -> list[list[tuple[int, int]]]:
        """For each bank that could be overloaded, the literals that put something there."""
        loads: dict[int, list[tuple[int, int]]] = {}
        for c, byte, times in self.units:
            for position, literal in enumerate(at[c]):
                bank = (position * int(chunks.size[c]) + byte) // self.unit_bytes % self.banks
                loads.setdefault(bank, []).append((literal, times))
        return [load for _, load in sorted(loads.items()) if len(load) > 1]


def free_phases(sets: Sequence[PhaseSet], chunks: Chunks, *, drop_loose: bool) -> list[FreePhase]:
    """The phases over chunks, equal ones merged; with `drop_loose`, without the loose elements.

    A phase that drops some keeps the largest ideal that any packing of them gives, so that its
    excess is a lower bound. Units are what lanes cover: words, or vectors of `chunk_words` in so many banks.
    """
    weights: dict[FreePhase, int] = {}  # by phase, whose own weight is not set yet
    for s in sets:
        unit_bytes = max(s.width_bytes, s.rule.bank_bytes)
        for row, weight, floor in zip(s.elements.tolist(), s.weight.tolist(), s.floor.tolist(), strict=True):
            times: dict[tuple[int, int], int] = {}  # lanes that touch a unit, by its chunk and first byte
            dropped = 0
            for element in row:
                if element < 0:  # an absent lane
                    continue
                chunk = int(chunks.of[element])
                if drop_loose and chunks.loose[chunk]:
                    dropped += 1
                    continue
                unit = chunk, int(chunks.place[element]) // unit_bytes * unit_bytes
                times[unit] = times.get(unit, 0) + 1
            # Lanes of one unit are served together, unless equal addresses wait for each other.
            units = [Unit(*unit, n if s.rule.serialises_equal else 1) for unit, n in sorted(times.items())]
            distinct = len(units) + dropped  # if no two of the dropped share a word
            phase = FreePhase(
                units=tuple(units),
                unit_bytes=unit_bytes,
                banks=s.rule.banks // s.chunk_words,
                floor=max(1, floor),
                ideal=max(1, -(-distinct * s.chunk_words // (s.rule.banks * s.requests))),
            )
            weights[phase] = weights.get(phase, 0) + weight * s.requests  # each a phase of its own
    return [replace(phase, weight=weight) for phase, weight in weights.items()]


class PlacementModel:
    """Positions of chunks as CP-SAT variables; a model anew for each question."""

    def __init__(
        self, chunks: Chunks, phases: list[FreePhase], period: int, tile: Tile, workers: int = 1
    ) -> None:
        """`phases`: over `chunks`; `period`: bytes of a row of banks; `workers`: solver threads."""
        self.chunks, self.period, self.tile = chunks, period, tile
        self.workers = workers
        # Phases of one unit, or of none, cost the same in all positions; they are not in the model.
        alike = [p for p in phases if len(p.units) < 2]
        self.fixed = sum(p.weight * (max(p.least, p.most) - p.ideal) for p in alike)  # their weighted excess
        self.phases = [p for p in phases if len(p.units) > 1]
        # The counting bound of the weighted excess of all phases.
        self.floor = self.fixed + sum(p.weight * (p.least - p.ideal) for p in self.phases)
        # How many positions each chunk of the phases in the model has, chunks of the widest phases first.
        self.positions: dict[int, int] = {}
        for phase in sorted(self.phases, key=lambda p: (-len(p.units), p.units)):
            self.positions.update((u.chunk, period // int(chunks.size[u.chunk])) for u in phase.units)
        # Whether every phase sees all banks of the row, so that banks may be exchanged for one another.
        self.symmetric = all(p.unit_bytes * p.banks == period for p in self.phases)
        self.atom = int(chunks.size.min())  # bytes of the smallest chunk: width of a column
        self._terms = sum(self.positions[unit.chunk] for p in self.phases for unit in p.units)

    @cached_property
    def units(self) -> UnitArrays:
        """The units of all phases."""
        listed = [(k, *unit, p.unit_bytes, p.banks) for k, p in enumerate(self.phases) for unit in p.units]
        return UnitArrays(*np.array(listed).T)

    @property
    def too_large(self) -> bool:
        """Whether the model has more booleans or terms than are built."""
        return sum(self.positions.values()) > _MAX_BOOLEANS or self._terms > _MAX_TERMS

    @property
    def alike(self) -> bool:
        """Whether chunks are of one size, so that they may change places."""
        return self.symmetric and len(set(self.positions.values())) == 1

    def atoms(self, size_bytes: int) -> int:
        """Atoms that so many bytes reach into."""
        return -(-size_bytes // self.atom)

    def solve(
        self,
        effort: float,
        *,
        atoms: int | None = None,
        least: bool = False,
        most: int | None = None,
        hint: IntArray | None = None,
    ) -> Answer:
        """Solve for positions of the chunks, every phase at its floor unless `least` or `most` allows more.

        Args:
            atoms: most atoms that the layout spans; None for no limit.
            least: minimise the weighted wavefronts.
            most: weighted excess allowed.
            hint: byte offset of every element.
        """
        if not current().affords(self._terms * _SECONDS_A_TERM):
            return NO_ANSWER
        return self.question(atoms, least, most, hint).solve(self.workers, effort)

    def question(
        self,
        atoms: int | None = None,
        least: bool = False,
        most: int | None = None,
        hint: IntArray | None = None,
    ) -> Model:
        """The CP-SAT model of a question; arguments of `solve`.

        Every phase is at its `least`, unless there is a choice of wavefronts: `least` minimises them, `most`
        bounds the weighted excess. At most `atoms` columns are spanned. Its first variables are the booleans
        of the chunks' positions, chunk by chunk.
        """
        model = Model()
        # Of each chunk, a literal for every position.
        at = {c: [model.boolean() for _ in range(n)] for c, n in self.positions.items()}
        for literals in at.values():
            model.exactly_one(literals)
        weighted = []  # (wavefronts, weight) of each phase
        for phase in self.phases:
            loads = phase.loads(at, self.chunks)
            if least or most is not None:
                # Loose elements count in a phase's floor, so that `least` may exceed what the units can cost.
                wavefronts = model.integer(phase.least, max(phase.least, phase.most))
                weighted.append((wavefronts, phase.weight))
                for load in loads:
                    model.at_most([*load, (wavefronts, -1)], 0)
            elif phase.least == 1:
                for load in loads:
                    model.at_most_one([literal for literal, _ in load])
            else:
                for load in loads:
                    model.at_most(load, phase.least)
        if most is not None:
            model.at_most(weighted, most - self.excess_at(0))  # as excess is that of no wavefronts, plus them
        if least:
            model.minimise(weighted)
        if atoms is not None:
            self._limit_columns(model, at, atoms)
        # Banks may be renamed for one another, unless the last row is cut off, which tells them apart.
        may_rename = self.symmetric and (atoms is None or atoms * self.atom % self.period == 0)
        if may_rename:
            self._break_symmetry(model, at)
        if hint is not None:
            near = self.positions_of(hint)
            for c, here in (self.renamed(near) if may_rename else near).items():
                for position, literal in enumerate(at[c]):
                    model.hint(literal, int(position == here))
        return model

    def excess_at(self, wavefronts: int) -> int:
        """Weighted excess of all phases, from the weighted wavefronts of those with several units."""
        return self.fixed + wavefronts - sum(p.weight * p.ideal for p in self.phases)

    def excess_of(self, position: dict[int, int]) -> int:
        """Weighted excess under given positions."""
        if not self.phases:
            return self.fixed
        at = np.zeros(len(self.chunks.size), np.int64)
        at[[*position]] = [*position.values()]
        of = self.units
        bank = (at[of.chunk] * self.chunks.size[of.chunk] + of.byte) // of.unit_bytes % of.banks
        load = np.zeros((len(self.phases), int(of.banks.max())), np.int64)
        np.add.at(load, (of.phase, bank), of.times)
        floor, ideal, weight = np.array([(p.floor, p.ideal, p.weight) for p in self.phases]).T
        cost = np.maximum(floor, load.max(axis=1))
        return self.fixed + int((cost - ideal) @ weight)

    def positions_of(self, table: IntArray) -> dict[int, int]:
        """Where a layout's byte offsets put the chunks."""
        first = np.zeros(len(self.chunks.size), np.int64)
        first[self.chunks.of[::-1]] = np.arange(len(self.chunks.of))[::-1]  # of each, written last
        chunks = np.array(list(self.positions), np.int64)
        at = (table.ravel()[first[chunks]] - self.chunks.place[first[chunks]]) % self.period
        return dict(zip(chunks.tolist(), (at // self.chunks.size[chunks]).tolist(), strict=True))

    def positions_in(self, answer: Answer) -> dict[int, int]:
        """Where a solution puts the chunks."""
        position, variable = {}, 0
        for c, n in self.positions.items():
            position[c] = answer.values[variable : variable + n].index(1)
            variable += n
        return position

    def _limit_columns(self, model: Model, at: dict[int, list[int]], atoms: int) -> None:
        """No column of the bank rows holds more chunks than `atoms` atoms leave it."""
        columns: list[list[int]] = [[] for _ in range(self.period // self.atom)]
        for c, literals in at.items():
            wide = int(self.chunks.size[c]) // self.atom
            for position, literal in enumerate(literals):
                for column in range(position * wide, (position + 1) * wide):
                    columns[column].append(literal)
        for column, held in enumerate(columns):
            height = -(-(atoms - column) // len(columns))
            if len(held) > height:
                model.at_most([(literal, 1) for literal in held], height)

    def _break_symmetry(self, model: Model, at: dict[int, list[int]]) -> None:
        """Require the names that `renamed` gives banks: chunk k lies in one of the first k + 1 groups."""
        widest = max((int(self.chunks.size[c]) for c in at), default=1)
        for k, (c, literals) in enumerate(at.items()):
            size = int(self.chunks.size[c])
            for position, literal in enumerate(literals):
                if position * size // widest > k:
                    model.clause([-literal - 1])

    def renamed(self, position: dict[int, int], *, fullest_first: bool = False) -> dict[int, int]:
        """Positions with banks renamed, in groups as wide as the widest chunk: by first use, or by bytes."""
        size = self.chunks.size[[*position]]
        widest = int(size.max(initial=1))
        group, inside = np.divmod(np.array([*position.values()], np.int64) * size, widest)
        by_bytes = np.argsort(-np.bincount(group, size), kind="stable").tolist()
        name = {g: k for k, g in enumerate(by_bytes if fullest_first else dict.fromkeys(group.tolist()))}
        named = (np.array([name[g] for g in group.tolist()], np.int64) * widest + inside) // size
        return dict(zip(position, named.tolist(), strict=True))
