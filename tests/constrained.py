"""Random tiny problems under every constraint on pitches, by both methods, against every layout of them."""

import random

import toy
from test_brute_force import random_case

from layoutopt.files.file import from_data
from layoutopt.problems.answer import METHODS, Status
from layoutopt.search.solve import solve

# Pads, orders and masks, in every combination.
FAMILIES = [
    ["none"],
    ["pad"],
    ["none", "order"],
    ["none", "xor"],
    ["order", "pad"],
    ["pad", "xor"],
    ["order", "xor"],
    ["order", "pad", "xor"],
]


def constrained(seed):
    """A random problem, its constraints, and the best (weighted excess, bytes) of all its layouts."""
    rng = random.Random(seed)
    data, plain, lanes, banks, _ = random_case(seed)
    families = rng.choice(FAMILIES)
    shape = tuple(data["tile"]["shape"])
    multiple = rng.choice([1, 1, 2, 3, 4])
    layout = {"families": families}
    if multiple > 1:
        layout["pitch_multiple_bytes"] = 4 * multiple
    given = shape, plain, lanes, banks, families, multiple
    best = toy.best(*given)
    if rng.random() < 0.3 and best is not None:
        layout["minimise"] = "bytes"
        best = toy.best_by_bytes(*given)
    elif rng.random() < 0.5 and best is not None:
        most = best[1] - rng.choice([0, 1, 2])
        layout["max_bytes"] = max(1, 4 * most)
        best = toy.best(*given, most)
    data["layout"] = layout
    return data, toy.toy_device(lanes, banks), best


def compare(seed):
    """Solve random problem `seed` by both methods, with one worker and with two."""
    data, device, best = constrained(seed)
    for method, workers in zip(METHODS, (1 + seed % 2, 2 - seed % 2), strict=True):
        result = solve(from_data(data), target=device, method=method, workers=workers)
        if best is None:
            assert result.status is Status.INFEASIBLE, (seed, method, data)
            continue
        found = result.status, result.weighted_excess, result.bytes
        assert found == (Status.OPTIMAL, best[0], 4 * best[1]), (seed, method, data, found, best)
        assert result.decided_by is not None, (seed, method)
