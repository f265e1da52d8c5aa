"""Local search for tables: never worse than its start, the same every time, and good where much is free."""

import numpy as np
import pytest

from layoutopt.engine.referee import Referee
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import device
from layoutopt.layout.layout import Layout
from layoutopt.model.descent import _MANNERS, Load, _Chains, _colours, descend
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import nearby
from layoutopt.problems.file import from_data
from layoutopt.problems.trace import trace


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


def test_chunks_of_a_colour_share_no_phase():
    loads, *_ = case(3)
    given = [loads[c] for c in sorted(loads)]
    colours = list(_colours(given))
    assert sorted(c for colour in colours for c in colour) == list(range(len(given)))
    for colour in colours:
        phases = [load.phase for c in colour for load in given[c]]
        assert len(phases) == len(set(phases))


def test_chains_know_what_they_hold():
    """After sweeps, the loads are those of the positions, and so are the wavefronts."""
    loads, floors, weights, banks = case(4)
    chains = _Chains(loads, floors, weights, banks, dict.fromkeys(loads, 0))
    for manner in (*_MANNERS, _MANNERS[0]):
        chains.sweep(manner, 0.0)
    assert len(chains.position) > 1
    for chain, position in enumerate(chains.position):
        assert chains.wavefronts()[chain] == cost(loads, floors, weights, banks, chains.named(position))


def test_two_diagonals_of_48_words_are_spread_over_32_banks():
    """Row-major has 124 excess wavefronts, one chunk moved after the other as often 90; a fifth is left."""
    data = {
        "name": "diagonals", "tile": {"shape": [48, 48], "element": "f32"}, "threads": 64,
        "accesses": [
            {"name": "a", "op": "load", "bytes": 4, "index": ["tid % 48", "(tid + i) % 48"], "for": {"i": 48}},
            {"name": "b", "op": "load", "bytes": 4, "index": ["tid % 48", "(432 - tid + i) % 48"], "for": {"i": 48}},
        ],
    }  # fmt: skip
    problem, gpu = from_data(data), device("sm_90")
    lanes = trace(problem, gpu)
    found = nearby(phase_sets(lanes, problem.tile, gpu), lanes, problem.tile, budget=Budget())
    assert found.excess <= 70
    referee = Referee(lanes, gpu)
    layout = Layout((48, 48), 4, (), lookup=tuple((found.table.ravel() // 4).tolist()))
    assert referee.excess(layout) == found.excess
