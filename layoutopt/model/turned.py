"""Tables in the tile's own bytes that have a formula: lines turned against one another, evenly but for jumps.

    offset = line*N + (c + s*line + t*(line // d)) % N

The lines are any dimensions, c counts through the others, of N elements together. The family `rotate` has
lines of one dimension and no jumps; those serve what no even rotation does, as rows, columns and wrapped
diagonals of a 31x32 tile: `x0*32 + (x1 + x0 + x0//16) % 32`, a near-complete mapping of the cyclic group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget
from layoutopt.model.chunks import FreePhase

_FIRST_PHASES = 4  # looked at for all turns at once, then four times as many for those that are left
_MOST_ORDERS = 24  # of dimensions


def turned_lines(
    phases: Sequence[FreePhase], shape: tuple[int, ...], positions: int, budget: Budget
) -> IntArray | None:
    """Offsets in elements under which every phase costs its least; None where no turns are found.

    Args:
        phases: over elements, each a unit of its own.
        shape: of the tile.
        positions: elements in a row of banks.
        budget: the time there is.
    """
    places = np.indices(shape)
    for lines, inner in _splits(shape, budget):
        length = int(np.prod([shape[d] for d in inner]))
        line, c = (_row_major(places, shape, dims).ravel() for dims in (lines, inner))
        for jump in _jumps(int(line.max()) + 1, positions):
            more = (1, positions - 1, positions // 2) if jump else (0,)
            pairs = [(s, t) for t in more for s in range(min(positions, length))]
            for s, t in _even(phases, np.array(pairs), (line, c), (jump, length), positions)[:1]:
                turn = s * line + (t * (line // jump) if jump else 0)
                table: IntArray = (line * length + (c + turn) % length).reshape(shape)
                return table
    return None


def _splits(shape: tuple[int, ...], budget: Budget) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Dimensions that number the lines, and those along them, slowest first."""
    dims = [d for d, extent in enumerate(shape) if extent > 1]
    orders = itertools.islice(itertools.permutations(dims), _MOST_ORDERS)
    for order in budget.while_left(orders):
        for cut in range(1, len(order)):
            yield order[:cut], order[cut:]


def _jumps(lines: int, positions: int) -> list[int]:
    """Lines from one jump to the next, 0 for none."""
    return [0, *(1 << k for k in range(1, positions.bit_length()) if 1 << k < lines)]


def _row_major(places: IntArray, shape: tuple[int, ...], dims: tuple[int, ...]) -> IntArray:
    number = np.zeros(shape, np.int64)
    for d in dims:
        number = number * shape[d] + places[d]
    return number


def _even(
    phases: Sequence[FreePhase],
    pairs: IntArray,
    coordinates: tuple[IntArray, IntArray],
    form: tuple[int, int],
    positions: int,
) -> list[list[int]]:
    """Those of the turns, shape (turns, 2), under which every phase costs its least."""
    (line, c), (jump, length) = coordinates, form
    done, count = 0, _FIRST_PHASES
    while len(pairs) and done < len(phases):
        some = phases[done : done + count]
        held = np.zeros((len(pairs), len(some)), np.int64)
        for k, phase in enumerate(some):
            units = np.array([unit for unit, _, _ in phase.units])
            times = np.array([n for _, _, n in phase.units])
            at = line[units]
            turn = pairs[:, :1] * at + pairs[:, 1:] * (at // jump if jump else 0)
            bank = (at * length + (c[units] + turn) % length) % positions
            rows = np.arange(len(pairs))[:, None] * positions + bank
            load = np.bincount(rows.ravel(), np.tile(times, len(pairs)), len(pairs) * positions)
            held[:, k] = load.reshape(len(pairs), positions).max(axis=1)
        pairs = pairs[(held <= [phase.least for phase in some]).all(axis=1)]
        done, count = done + count, count * 4
    found: list[list[int]] = pairs.tolist() if len(phases) else []
    return found
