"""The model of free assignments: every chunk at any position, as CP-SAT variables.

quantity                    encoding
chunk a at position g       a boolean, exactly one of them for each chunk
load of bank b in a phase   the sum of the booleans that put a word of the phase there
cost of a phase             at least every load, and at least its counting bound
bytes                       in each column of the bank rows, no more chunks than rows
renamed banks               chunk k of the widest phase lies in one of the first k + 1 positions
"""

from __future__ import annotations

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.chunks import Chunks, FreePhase
from layoutopt.model.cp_sat import Answer, Model, Outcome
from layoutopt.problems.types import Tile

# Booleans, and terms of the load constraints, beyond which no model is built.
MAX_BOOLEANS = 1 << 17
MAX_TERMS = 1 << 22
# What it takes, about, to write a term down and have the solver read it.
_SECONDS_A_TERM = 2e-6


class PlacementModel:
    """Positions of chunks as CP-SAT variables; a model anew for each question."""

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
        self.fixed = sum(p.weight * (p.alone - p.ideal) for p in phases if len(p.units) < 2)
        self.phases = [p for p in phases if len(p.units) > 1]
        self.floor = self.fixed + sum(p.weight * (p.least - p.ideal) for p in self.phases)
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

    def solve(
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
        model, _ = self.model(atoms=atoms, least=least, most=most, hint=hint)
        return model.solve(self.budget, self.workers, effort)

    def text(self, most: int | None) -> str:
        """As `CpModelProto` text: every phase at its floor, or a weighted excess of `most` at most."""
        model, _ = self.model(atoms=None, least=False, most=most, hint=None)
        return model.to_text()

    def model(
        self, *, atoms: int | None, least: bool, most: int | None, hint: IntArray | None
    ) -> tuple[Model, dict[int, list[int]]]:
        """The model, and for each chunk the literals of its positions."""
        model = Model()
        at = {c: [model.boolean() for _ in range(n)] for c, n in self.positions.items()}
        for literals in at.values():
            model.exactly_one(literals)
        terms = []
        for phase in self.phases:
            loads = phase.loads(at, self.chunks)
            if least or most is not None:
                # What a phase drops counts in its floor, so that this may exceed what its units can cost.
                least_of_phase = phase.least
                most_of_phase = max(least_of_phase, sum(n for _, _, n in phase.units))
                wavefronts = model.integer(least_of_phase, most_of_phase)
                terms.append((wavefronts, phase.weight))
                for load in loads:
                    model.at_most([*load, (wavefronts, -1)], 0)
            elif phase.least == 1:
                for load in loads:
                    model.at_most_one([literal for literal, _ in load])
            else:
                for load in loads:
                    model.at_most(load, phase.least)
        if most is not None:
            model.at_most(terms, most - self.excess_at(0))
        if least:
            model.minimise(terms)
        if atoms is not None:
            self._limit_columns(model, at, atoms)
        renamed = self.symmetric and (atoms is None or atoms * self.atom % self.period == 0)
        if renamed:
            self._break_symmetry(model, at)
        if hint is not None:
            near = self.positions_of(hint)
            for c, here in (self._by_first_use(near) if renamed else near).items():
                for position, literal in enumerate(at[c]):
                    model.hint(literal, int(position == here))
        return model, at

    def excess_at(self, wavefronts: int) -> int:
        """Weighted excess of all phases, from the weighted wavefronts of those with several units."""
        return self.fixed + wavefronts - sum(p.weight * p.ideal for p in self.phases)

    def excess_of(self, position: dict[int, int]) -> int:
        """Weighted excess under given positions."""
        return self.fixed + sum(p.weight * (p.cost(position, self.chunks) - p.ideal) for p in self.phases)

    @property
    def atom(self) -> int:
        """Bytes of the smallest chunk."""
        return int(self.chunks.size.min())

    def atoms(self, size_bytes: int) -> int:
        """Atoms that so many bytes reach into."""
        return -(-size_bytes // self.atom)

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
        """Banks may be renamed, in groups as wide as the widest chunk: by first use in `placed`."""
        widest = max((int(self.chunks.size[c]) for c in at), default=1)
        for k, (c, literals) in enumerate(at.items()):
            size = int(self.chunks.size[c])
            for position, literal in enumerate(literals):
                if position * size // widest > k:
                    model.clause([-literal - 1])

    def _by_first_use(self, position: dict[int, int]) -> dict[int, int]:
        """The same with banks renamed as `_break_symmetry` wants them."""
        widest = max((int(self.chunks.size[c]) for c in position), default=1)
        names: dict[int, int] = {}
        renamed = {}
        for c in self.placed:
            size = int(self.chunks.size[c])
            group, inside = divmod(position[c] * size, widest)
            renamed[c] = (names.setdefault(group, len(names)) * widest + inside) // size
        return renamed

    @property
    def heads(self) -> IntArray:
        """The first element of each chunk, shape (chunks,)."""
        heads = np.zeros(len(self.chunks.size), np.int64)
        heads[self.chunks.of[::-1]] = np.arange(len(self.chunks.of))[
            ::-1
        ]  # the first of each is written last
        return heads

    def positions_of(self, table: IntArray) -> dict[int, int]:
        """Where a layout's byte offsets put the chunks."""
        flat = table.ravel()
        heads = self.heads
        chunks = np.array(list(self.positions), np.int64)
        at = (flat[heads[chunks]] - self.chunks.place[heads[chunks]]) % self.period
        return dict(zip(chunks.tolist(), (at // self.chunks.size[chunks]).tolist(), strict=True))


def solved(answer: Answer) -> bool:
    """Whether there is a solution, which has no values where nothing meets."""
    return answer.outcome in (Outcome.OPTIMAL, Outcome.FEASIBLE)
