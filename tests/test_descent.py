"""Local search for tables: never worse than its start, the same every time, and good where much is free."""

import numpy as np
import pytest

from layoutopt.ground.budget import Budget
from layoutopt.model.descent import Load, descend


def case(seed, chunks=40, phases=12, banks=8):
    rng = np.random.default_rng(seed)
    bank = np.arange(banks)
    loads = {c: [] for c in range(chunks)}
    for phase in range(phases):
        for c in rng.choice(chunks, rng.integers(2, banks + 1), replace=False):
            loads[int(c)].append(Load(phase, bank, int(rng.integers(1, 3))))
    loads = {c: mine for c, mine in loads.items() if mine}
    return loads, np.ones(phases, np.int64), rng.integers(1, 5, phases), banks


def cost(loads, floors, weights, banks, position):
    total = 0
    for phase, (floor, weight) in enumerate(zip(floors, weights, strict=True)):
        load = [0] * banks
        for c, mine in loads.items():
            for one in mine:
                if one.phase == phase:
                    load[one.bank[position[c]]] += one.times
        total += weight * max(floor, *load)
    return total


@pytest.mark.parametrize("seed", range(10))
def test_never_worse_and_always_the_same(seed):
    given = case(seed)
    start = {c: int(np.random.default_rng(seed + 1).integers(8)) for c in given[0]}
    found = descend(*given, start, 10, Budget())
    assert found == descend(*given, start, 10, Budget())
    assert cost(*given, found) <= cost(*given, start)
    assert descend(*given, start, 0, Budget()) == start


def test_what_fits_is_found():
    """From everything in one bank: phases of eight units over eight banks, each unit in two phases."""
    bank = np.arange(8)
    loads = {c: [Load(c // 8, bank, 1), Load(8 + c % 8, bank, 1)] for c in range(64)}
    ones = np.ones(16, np.int64)
    found = descend(loads, ones, ones, 8, dict.fromkeys(loads, 0), 100, Budget())
    assert cost(loads, ones, ones, 8, found) <= 18
