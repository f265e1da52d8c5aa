"""Local search for a free assignment: a good hint where the solver alone starts badly.

One chunk after another moves to a position where little is in its way, the others staying where they are.
What is in its way counts by the square, which shows the way down where the wavefronts, a maximum, are a
plain; and chance has its part, less and less of it. A step looks at every position of a chunk at once. What
it finds is a hint: the solver and the conflict engine judge it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layoutopt.ground.budget import Budget

IntArray = npt.NDArray[np.int64]

_SEED = 20240907
_WARMEST, _COLDEST = 0.5, 0.05


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
    chance = np.random.default_rng(_SEED)
    chunks = sorted(loads)
    phases = {c: np.array([load.phase for load in loads[c]]) for c in chunks}
    at = {c: np.array([load.bank for load in loads[c]]) for c in chunks}
    times = {c: np.array([[load.times] for load in loads[c]]) for c in chunks}
    position = dict(start)
    held = np.zeros((len(floors), banks), np.int64)
    for c, where in position.items():
        np.add.at(held, (phases[c], at[c][:, where]), times[c][:, 0])
    scale = float(np.median(weights))
    best_cost, best = _wavefronts(held, floors, weights), dict(position)
    least = int((floors * weights).sum())
    for sweep in budget.while_left(range(sweeps)):
        warmth = scale * (_WARMEST * (_COLDEST / _WARMEST) ** (sweep / max(1, sweeps - 1)))
        order = chance.permutation(len(chunks))
        noise = chance.gumbel(0, warmth, (len(chunks), max(a.shape[1] for a in at.values())))
        for k in order.tolist():
            c = chunks[k]
            mine, banks_of, n = phases[c], at[c], times[c]
            np.subtract.at(held, (mine, banks_of[:, position[c]]), n[:, 0])
            there = held[mine[:, None], banks_of] + n - floors[mine][:, None]
            blocked = (np.maximum(there, 0) ** 2 - np.maximum(there - n, 0) ** 2) * weights[mine][:, None]
            position[c] = int((blocked.sum(axis=0) - noise[k, : banks_of.shape[1]]).argmin())
            np.add.at(held, (mine, banks_of[:, position[c]]), n[:, 0])
        now = _wavefronts(held, floors, weights)
        if now < best_cost:
            best_cost, best = now, dict(position)
        if best_cost <= least:
            break
    return best


def _wavefronts(held: IntArray, floors: IntArray, weights: IntArray) -> int:
    return int((np.maximum(held.max(axis=1), floors) * weights).sum())
