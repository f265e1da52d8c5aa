"""Local search for a free assignment: where the solver alone starts badly, and for a hint where it does not.

Chunks move to positions where little is in their way, the others staying where they are. What is in the way
counts by the square, which shows the way down where the wavefronts, a maximum, are a plain; in turn with
that, most of all the wavefronts count, which keeps what a good start has. Chance has its part, less and less
of it (simulated annealing by heat bath). Chunks that share no phase do not see each
other, so a whole **colour** of them moves at once, in several independent chains of positions:

    phases   {a b c} {c d e} {a e f}        colours   {a d} {b e} {c f}

A step looks at every position of every chunk of a colour in every chain. What it finds is a hint: the solver
and the conflict engine judge it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from layoutopt.ground.budget import Budget

IntArray = npt.NDArray[np.int64]

_SEED = 20240907


@dataclass(frozen=True, slots=True)
class _Manner:
    """How chunks choose.

    Attributes:
        warmest, coldest: in median weights.
        wavefront: what one more counts.
        square: what is in the way counts so many times its square.
    """

    warmest: float
    coldest: float
    wavefront: float
    square: float


# A good start keeps its short queues where wavefronts count; a bad one is left sooner by squares alone.
_MANNERS = (_Manner(0.2, 0.08, 1, 0.3), _Manner(0.3, 0.03, 0, 1))
# Sweeps come in rounds, each from warm to cold and three times as long, so that any of them may be the last.
_ROUNDS = (1, 3, 9)
_MOST_CHAINS, _CELLS = 16, 1 << 17  # cells that all chains look at in one sweep, about
_NOISE = 1 << 17  # numbers drawn once and taken from anywhere


@dataclass(frozen=True, slots=True)
class Load:
    """Where a chunk's unit counts: in the row `phase` of the loads, by the chunk's position.

    Attributes:
        phase: which phase.
        bank: int64, shape (positions,): the bank that the unit is in.
        times: how often it counts.
    """

    phase: int
    bank: IntArray
    times: int


def descend(
    loads: Mapping[int, Sequence[Load]],
    floors: IntArray,
    weights: IntArray,
    banks: int,
    start: Mapping[int, int],
    sweeps: int,
    budget: Budget,
) -> dict[int, int]:
    """Positions of weighted wavefronts no more than those of `start`.

    Args:
        loads: for each chunk what it adds to which phases.
        floors: wavefronts that no phase undercuts, int64, shape (phases,).
        weights: int64, shape (phases,).
        banks: the most that a phase has.
        start: the position of each chunk.
        sweeps: how often every chunk moves; the same number gives the same answer.
        budget: the time there is, asked before each sweep.
    """
    chains = _Chains(loads, floors, weights, banks, start)
    least, best, found = int((floors * weights).sum()), chains.wavefronts()[0], chains.position[0].copy()
    for part, manner in itertools.product(_ROUNDS, _MANNERS):
        count = sweeps * part // (sum(_ROUNDS) * len(_MANNERS))
        chains.begin_at(found)
        for sweep in budget.while_left(range(count)):
            chains.sweep(manner, sweep / max(1, count - 1))
            now = chains.wavefronts()
            if now.min() < best:
                best, found = int(now.min()), chains.position[int(now.argmin())].copy()
            if best <= least:
                return chains.named(found)
    return chains.named(found)


@cache
def _noise() -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    """Gumbel noise, the same for every descent, and the state of the generator that has drawn it."""
    chance = np.random.default_rng(_SEED)
    noise = chance.gumbel(0, 1, _NOISE)
    noise.flags.writeable = False
    return noise, dict(chance.bit_generator.state)


class _Colour:
    """Chunks that share no phase, and what they look at.

    Attributes:
        chunks: which, shape (chunks,).
        cell: the cells of the loads that each of its units adds to, shape (chunks, units, positions).
        row: of these cells, shape (chunks, units, 1).
        times: how often, likewise.
        floor, weight: of the unit's phase, likewise.
        barred: infinite where a chunk has no such position, shape (chunks, positions).
    """

    def __init__(
        self,
        chunks: Sequence[int],
        loads: Sequence[Sequence[Load]],
        floors: IntArray,
        weights: IntArray,
        banks: int,
    ) -> None:
        units = max(len(loads[c]) for c in chunks)
        positions = max(len(loads[c][0].bank) for c in chunks)
        self.chunks = np.array(chunks)
        # What is absent lies in a row of loads that weighs nothing.
        self.cell = np.full((len(chunks), units, positions), len(floors) * banks)
        self.times = np.zeros((len(chunks), units, 1), np.int64)
        self.row = np.full_like(self.times, len(floors))
        self.floor, self.weight = self.times.copy(), self.times.copy()
        self.barred = np.full((len(chunks), positions), np.inf)
        for k, c in enumerate(chunks):
            self.barred[k, : len(loads[c][0].bank)] = 0
            for j, load in enumerate(loads[c]):
                self.cell[k, j, : len(load.bank)] = load.phase * banks + load.bank
                self.times[k, j], self.floor[k, j] = load.times, floors[load.phase]
                self.row[k, j] = load.phase
                self.weight[k, j] = weights[load.phase]


class _Chains:
    """Several assignments, each with the loads of every bank in every phase."""

    def __init__(
        self,
        loads: Mapping[int, Sequence[Load]],
        floors: IntArray,
        weights: IntArray,
        banks: int,
        start: Mapping[int, int],
    ) -> None:
        self.names = sorted(loads)
        given = [loads[name] for name in self.names]
        self.floors, self.weights, self.banks = floors, weights, banks
        self.scale = float(np.median(weights))
        self.noise, drawn = _noise()
        self.chance = np.random.default_rng()
        self.chance.bit_generator.state = drawn
        self.colours = [_Colour(c, given, floors, weights, banks) for c in _colours(given)]
        cells = sum(colour.cell.size for colour in self.colours)
        count = max(1, min(_MOST_CHAINS, _CELLS // cells))
        ends = np.array([len(mine[0].bank) for mine in given])
        self.position = (self.chance.random((count, len(given))) * ends).astype(np.int64)
        self.position[0] = [start[name] for name in self.names]
        # A row of cells more, for what is absent.
        self.held = np.zeros((count, (len(floors) + 1) * banks), np.int64)
        for colour in self.colours:
            self._add(colour, 1)

    def _add(self, colour: _Colour, sign: int) -> None:
        here = self.position[:, colour.chunks][:, :, None]
        cells = colour.cell[np.arange(len(colour.chunks))[:, None], np.arange(colour.cell.shape[1]), here]
        chain = np.arange(len(self.position))[:, None, None]
        np.add.at(self.held, (chain, cells), sign * colour.times[:, :, 0])

    def begin_at(self, position: IntArray) -> None:
        """Have the first chain go on from here."""
        self.position[0] = position
        self.held[:] = 0
        for colour in self.colours:
            self._add(colour, 1)

    def sweep(self, manner: _Manner, cooled: float) -> None:
        """Move every chunk once; `cooled` from 0, the warmest, to 1."""
        warmth = manner.warmest * (manner.coldest / manner.warmest) ** cooled
        for k in self.chance.permutation(len(self.colours)).tolist():
            colour = self.colours[k]
            self._add(colour, -1)
            before = self.held[:, colour.cell] - colour.floor
            after = np.maximum(before + colour.times, 0)
            before = np.maximum(before, 0)
            cost = manner.square * ((after - before) * (after + before))
            if manner.wavefront:
                rows = self.held.reshape(len(self.held), -1, self.banks).max(axis=2)
                worst = np.maximum(rows[:, colour.row] - colour.floor, 0)
                cost += manner.wavefront * np.maximum(after - worst, 0)
            cost = (cost * colour.weight).sum(axis=2) + colour.barred
            cost -= warmth * self.scale * self._drawn(cost.size).reshape(cost.shape)
            self.position[:, colour.chunks] = cost.argmin(axis=2)
            self._add(colour, 1)

    def _drawn(self, count: int) -> npt.NDArray[np.float64]:
        """So many of the noise, from anywhere on."""
        at = int(self.chance.integers(_NOISE))
        return np.resize(self.noise[at:], count) if at + count > _NOISE else self.noise[at : at + count]

    def wavefronts(self) -> IntArray:
        """Weighted wavefronts of each chain."""
        worst = (
            self.held[:, : len(self.floors) * self.banks]
            .reshape(-1, len(self.floors), self.banks)
            .max(axis=2)
        )
        weighted: IntArray = (np.maximum(worst, self.floors) * self.weights).sum(axis=1)
        return weighted

    def named(self, position: IntArray) -> dict[int, int]:
        """Positions by the chunks' names."""
        return dict(zip(self.names, position.tolist(), strict=True))


def _colours(loads: Sequence[Sequence[Load]]) -> Iterator[list[int]]:
    """Chunks in classes that share no phase, greedily, those with the most units first."""
    classes: list[list[int]] = []
    taken: dict[int, set[int]] = {}  # phase -> classes that have a chunk of it
    for c in sorted(range(len(loads)), key=lambda c: -len(loads[c])):
        phases = {load.phase for load in loads[c]}
        barred = set().union(*(taken.get(phase, ()) for phase in phases))
        colour = next(k for k in range(len(classes) + 1) if k not in barred)
        if colour == len(classes):
            classes.append([])
        classes[colour].append(c)
        for phase in phases:
            taken.setdefault(phase, set()).add(colour)
    yield from classes
