"""Local search for a free assignment: simulated annealing over chains, compiled.

A phase without a conflict is kept so: where a chunk goes to the bank of another of its phase, that one goes
to the bank which it leaves, and so on, until nothing meets that did not meet before (a Kempe chain of a
colouring). Only the phases that have conflicts decide whether it goes:

    phases {a b} {b c} without conflicts     a in 0, b in 1, c in 0     a to 1: b to 0, and so c to 1

A good formula keeps what it does well, and what it does badly is mended: most accesses of a kernel are served
by some formula, and the others are few. Where chunks are of several sizes, or phases cannot do without
conflicts, chunks move alone.

What it finds is a hint: the solver and the conflict engine judge it.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.placement_model import PlacementModel

if TYPE_CHECKING:
    from layoutopt.model.compiled import Board, Placed

# Until numba is imported, and what it compiled is loaded; or compiled, once an installation.
_LOAD_SECONDS, _COMPILE_SECONDS = 0.6, 3.0


_SEED = 88172645463325252
# Units looked at between two looks at the clock: some hundredths of a second.
_SLICE = 2_000_000


@dataclass(frozen=True, slots=True)
class _Manner:
    """How moves are judged: what counts how much, how warm it is at first and at last, looks at each unit."""

    wavefront: float
    square: float
    column: float
    warmest: float
    coldest: float
    looks: int = 2000


# Squares show the way to no conflict at all; wavefronts, a maximum, what is least where some are needed.
_TO_NOTHING = _Manner(0, 1, 0.05, 0.3, 0.1)
_TO_LITTLE = _Manner(1, 0.3, 0.05, 0.3, 0.08)
_MANNERS = (_TO_NOTHING, _TO_LITTLE)
_TO_EVEN = _Manner(1, 0.3, 1, 0.5, 0.1, 300)
# A round goes once from warm to cold: so many looks at units at most (0.3 s). So many without a new best end
# the search.
_MOST_LOOKS, _PATIENCE = 20_000_000, 10


@dataclass(frozen=True, slots=True)
class Units:
    """Chunks and what they add to which phases.

    Attributes:
        first: int, shape (chunks + 1,): of the units of each chunk.
        phase, times, kind: of each unit.
        bank: int, shape (kinds, positions): of a unit of each kind by the position of its chunk.
        positions: int, shape (chunks,).
        wide: int, shape (chunks,): columns that each covers.
        weight, least: int, shape (phases,): of each phase.
        columns: their number.
        rooms: how many columns together hold, one row after the other.
        chains: whether chunks are of one size, so that they may change places.
    """

    first: IntArray
    phase: IntArray
    times: IntArray
    kind: IntArray
    bank: IntArray
    positions: IntArray
    wide: IntArray
    weight: IntArray
    least: IntArray
    columns: int
    rooms: int
    chains: bool


def units_of(model: PlacementModel) -> Units:
    """What the local search counts."""
    number, sizes = {c: k for k, c in enumerate(model.placed)}, model.chunks.size[model.placed]
    kinds: dict[tuple[int, int, int, int], int] = {}
    units = []
    for p, phase in enumerate(model.phases):
        for c, place, times in phase.units:
            kind = int(model.chunks.size[c]), place, phase.unit_bytes, phase.banks
            units.append((number[c], p, times, kinds.setdefault(kind, len(kinds))))
    at = np.array(sorted(units))
    positions = np.array([*model.positions.values()])
    places = np.arange(positions.max())
    return Units(
        first=np.searchsorted(at[:, 0], np.arange(len(number) + 1)),
        phase=at[:, 1],
        times=at[:, 2],
        kind=at[:, 3],
        bank=np.array([(places * size + place) // wide % banks for size, place, wide, banks in kinds]),
        positions=positions,
        wide=sizes // model.atom,
        weight=np.array([phase.weight for phase in model.phases]),
        least=np.array([phase.least for phase in model.phases]),
        columns=model.period // model.atom,
        rooms=model.atoms(model.tile.bytes),
        chains=len(set(positions.tolist())) == 1 and model.symmetric,
    )


def annealed(units: Units, start: IntArray, enough: int, rounds: int, budget: Budget) -> IntArray:
    """Positions of no more weighted excess than `start`, then of columns that are no more uneven.

    Args:
        units: what is placed.
        start: int, shape (chunks,): positions.
        enough: weighted wavefronts beyond `least` that nothing undercuts.
        rounds: how often it is cooled down; the same number gives the same answer.
        budget: the time there is, asked every few hundredths of a second. Where it does not last until the
            loop is compiled, which asks nobody, the start is the answer.
    """
    if not budget.affords(_seconds_to_compile()):
        return start
    return _Annealing(units, enough, budget).run(start, rounds)


def _seconds_to_compile() -> float:
    """About how long the compiled loop is in coming: it is kept beside its source."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return math.inf  # never: Python would take minutes for what takes hundredths of a second
    module = sys.modules.get(f"{__package__}.compiled")
    if module is not None and module.anneal.signatures:  # imported alone, it is still to be compiled
        return 0.0
    source = Path(__file__).with_name("compiled.py")
    kept = source.parent.glob("__pycache__/compiled.*.py{}{}.nbi".format(*sys.version_info))
    written = source.stat().st_mtime
    return _LOAD_SECONDS if any(file.stat().st_mtime >= written for file in kept) else _COMPILE_SECONDS


def _narrow(numbers: IntArray) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(numbers, np.int32)


class _Annealing:
    def __init__(self, units: Units, enough: int, budget: Budget) -> None:
        from layoutopt.model import compiled

        self.compiled, self.units, self.budget = compiled, units, budget
        room, more = divmod(units.rooms, units.columns)
        self.enough = np.array([enough, more], np.int64)
        self.random = np.array([_SEED], np.uint64)
        self.board: Board = compiled.Board(
            first=_narrow(units.first),
            phase=_narrow(units.phase),
            times=_narrow(units.times),
            kind=_narrow(units.kind),
            bank=_narrow(units.bank),
            positions=_narrow(units.positions),
            wide=_narrow(units.wide),
            weight=_narrow(units.weight),
            least=_narrow(units.least),
            room=room,
        )
        self.owner = np.repeat(np.arange(len(units.positions)), np.diff(units.first))

    def run(self, start: IntArray, rounds: int) -> IntArray:
        """The best found, round by round from the best of the round before."""
        best = here = self._placed(start, chains=False)
        if (self.units.positions < 2).any():
            return start
        in_vain = 0
        for number in self.budget.while_left(range(rounds)):
            if self._done(best) or in_vain == _PATIENCE:
                break
            here = self._placed(here.best.astype(np.int64), chains=True)
            self._anneal(here, _MANNERS[number % 4 == 3] if best.totals[2] > self.enough[0] else _TO_EVEN)
            in_vain = 0 if self._rank(here) < self._rank(best) else in_vain + 1
            best = min(best, here, key=self._rank)
        return best.best.astype(np.int64)

    def _rank(self, placed: Placed) -> tuple[int, int]:
        """Excess, and squares of columns where they do not fit."""
        return int(placed.totals[2]), max(int(placed.totals[3]), int(self.enough[1]))

    def _done(self, placed: Placed) -> bool:
        return bool((placed.totals[2:4] <= self.enough).all())

    def _placed(self, position: IntArray, *, chains: bool) -> Placed:
        """Positions with what they load; with `chains`, phases without conflicts are hard."""
        units, board = self.units, self.board
        load = np.zeros((len(units.least), int(units.bank.max()) + 1), np.int32)
        bank = units.bank[units.kind, position[self.owner]]
        np.add.at(load, (units.phase, bank), board.times)
        worst = np.maximum(load.max(axis=1, initial=0), board.least)
        height = np.zeros(units.columns, np.int32)
        for k in range(int(units.wide.max())):
            covered = units.wide > k
            np.add.at(height, position[covered] * units.wide[covered] + k, 1)
        hard = (board.least == 1) & (worst == 1) & (chains and units.chains)
        owner = np.full(load.shape, -1, np.int32)
        owner[units.phase, bank] = self.owner
        excess = int(((worst - units.least) * units.weight).sum())
        columns = int((np.maximum(height - board.room, 0) ** 2).sum())
        totals = np.array([excess, columns, excess, columns, 0, 0], np.int64)
        here = _narrow(position)
        return self.compiled.Placed(
            here, load, _narrow(worst), height, hard, owner, totals, here.copy(), self.random
        )

    def _anneal(self, placed: Placed, manner: _Manner) -> None:
        """Once from warm to cold."""
        work = min(manner.looks * len(self.owner), _MOST_LOOKS)
        chunks, phases = len(self.units.positions), len(self.units.least)
        moves = self.compiled.Moves(
            np.zeros(chunks, np.int64),
            np.zeros(chunks, np.int32),
            np.zeros(chunks, np.int32),
            np.zeros(phases, np.int64),
            np.zeros(phases, np.int32),
            np.zeros(phases, np.int32),
        )
        warmth = np.array([manner.warmest, manner.coldest])
        counts = np.array([manner.wavefront, manner.square, manner.column])
        for done in self.budget.while_left(range(0, work, _SLICE)):
            until = np.array([min(work, done + _SLICE), work], np.int64)
            if self.compiled.anneal(self.board, placed, moves, warmth, counts, until, self.enough):
                return
