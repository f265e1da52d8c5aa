"""The end of a padded layout put into its own holes: a formula, and a table of what lies beyond the tile.

    offset = v - (back[v - elements] if v >= elements else 0)        v: the padded layout

What lies in the tile's bytes stays where it is. The rest, few elements where the pad is small, may go into
any hole where it meets nothing of its phases; the solver chooses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.chunks import FreePhase
from layoutopt.model.cp_sat import Model, Outcome

# Elements beyond the tile, of which a small table is kept.
MOST_BEYOND = 64
_EFFORT = 0.5


def folded(phases: Sequence[FreePhase], padded: IntArray, positions: int, budget: Budget) -> IntArray | None:
    """Offsets in elements, in the tile's own, under which every phase costs its least; None where unknown.

    Args:
        phases: over elements, each a unit of its own.
        padded: int64, shape (elements,): offset of each, in elements.
        positions: elements in a row of banks.
        budget: the time there is.
    """
    beyond = np.flatnonzero(padded >= len(padded)).tolist()
    if not 0 < len(beyond) <= MOST_BEYOND:
        return None
    holes = np.setdiff1d(np.arange(len(padded)), padded)
    model = Model()
    at = {e: [model.boolean() for _ in range(positions)] for e in beyond}
    for literals in at.values():
        model.exactly_one(literals)
    for position, room in enumerate(np.bincount(holes % positions, minlength=positions).tolist()):
        model.at_most([(literals[position], 1) for literals in at.values()], room)
    for phase in phases:
        moving = [(e, n) for e, _, n in phase.units if e in at]
        load = [0] * positions
        for e, _, n in phase.units:
            load[int(padded[e]) % positions] += n if e not in at else 0
        for position in range(positions if moving else 0):
            model.at_most([(at[e][position], n) for e, n in moving], phase.least - load[position])
    answer = model.solve(budget, 1, _EFFORT)
    if answer.outcome not in (Outcome.OPTIMAL, Outcome.FEASIBLE):
        return None
    table, free = padded.copy(), [holes[holes % positions == k].tolist() for k in range(positions)]
    for number, e in enumerate(beyond):
        table[e] = free[answer.values[number * positions : (number + 1) * positions].index(1)].pop(0)
    return table
