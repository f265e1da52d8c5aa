"""Tiny tiles against exhaustive search: the same minimum, in excess and in bytes."""

import random

import pytest
import toy

from layoutopt.model import FAMILIES, Status
from layoutopt.problem_file import from_data
from layoutopt.synthesize import solve

SHAPES = [
    (2, 4),
    (4, 4),
    (3, 4),
    (2, 6),
    (4, 2),
    (3, 3),
    (2, 2, 2),
    (16,),
    (12,),
    (2, 8),
    (3, 5),
    (8, 2),
    (2, 2, 3),
]


def random_case(seed):
    rng = random.Random(seed)
    shape = rng.choice(SHAPES)
    lanes, banks = rng.choice([(4, 2), (4, 4), (8, 4)])
    families = (
        sorted(rng.sample(FAMILIES, rng.randint(1, 6)), key=FAMILIES.index)
        if rng.random() < 0.6
        else list(FAMILIES)
    )
    if not {"none", "order", "pad", "rotate", "xor"} & set(families):
        families = ["none", *families]
    elements = 1
    for extent in shape:
        elements *= extent
    described, plain = [], []
    for k in range(rng.randint(1, 3)):
        width = 8 if shape[-1] % 2 == 0 and rng.random() < 0.25 else 4
        kind = "atomic" if width == 4 and rng.random() < 0.1 else rng.choice(["load", "store"])
        step, shift, trips = rng.randint(1, elements), rng.randint(0, elements), rng.randint(1, 2)
        unit = width // 4
        flat = f"({step}*tid + {shift} + {rng.randint(0, 3)}*i) % {elements // unit} * {unit}"
        bound = rng.choice([lanes, lanes, rng.randint(1, lanes)])
        index, divisor = [], 1
        for extent in reversed(shape):
            index.insert(0, f"({flat}) // {divisor} % {extent}")
            divisor *= extent
        weight = rng.choice([1, 1, 2, 3])
        described.append(
            {
                "name": f"a{k}",
                "op": kind,
                "bytes": width,
                "index": index,
                "for": {"i": trips},
                "where": f"tid < {bound}",
                "weight": weight,
            }
        )
        rows = [
            [eval(flat, {"tid": t, "i": i}) if t < bound else None for t in range(lanes)]
            for i in range(trips)
        ]
        plain.append(((kind, width, rows), weight))
    problem = {
        "schema": "layoutopt.problem/1", "name": f"random {seed}", "tile": {"shape": shape, "element": "f32"},
        "threads": lanes, "accesses": described, "layout": {"families": families},
    }  # fmt: skip
    return problem, plain, lanes, banks, families


@pytest.mark.parametrize("block", range(20))
def test_same_minimum_as_exhaustive_search(block):
    for seed in range(block * 20, block * 20 + 20):
        data, plain, lanes, banks, families = random_case(seed)
        result = solve(from_data(data), target=toy.toy_device(lanes, banks))
        expected = toy.best(tuple(data["tile"]["shape"]), plain, lanes, banks, families)
        if expected is None:
            assert result.status is Status.INFEASIBLE, (seed, data)
            continue
        assert result.status is Status.OPTIMAL, (seed, data)
        assert (result.weighted_excess, result.bytes) == (expected[0], 4 * expected[1]), (seed, data, result)
        bound = result.proof.weighted_excess or result.proof.excess
        assert bound.lower_bound == expected[0], (seed, data)
        assert result.proof.excess.lower_bound <= result.excess, (seed, data)
        clean = solve(from_data(data), target=toy.toy_device(lanes, banks), conflict_free=True)
        assert (clean.status is Status.INFEASIBLE) == (expected[0] > 0), (seed, data)
