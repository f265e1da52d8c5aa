"""Free assignments against enumeration of every placement of tiny tiles, by plain loops."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import toy
from conftest import ROOT
from test_brute_force import random_case

from layoutopt.accesses import trace
from layoutopt.conflicts import count_wavefronts
from layoutopt.cpmodel.free import free_assignment
from layoutopt.cpmodel.phases import phase_sets
from layoutopt.cpmodel.solver import Budget
from layoutopt.devices import device
from layoutopt.problem_file import from_data, load


def free(problem, gpu, **options):
    lanes = trace(problem, gpu)
    sets = phase_sets(lanes, problem.tile, gpu)
    return lanes, free_assignment(sets, lanes, problem.tile, budget=Budget(), **options)


def weighted_excess(table, lanes, gpu):
    """By the conflict engine."""
    flat, total = table.ravel(), 0
    for access in lanes.accesses:
        counts = count_wavefronts(flat[access.element], access.active, access.operation, gpu)
        total += int(((counts.wavefronts - counts.ideal) * access.weight).sum())
    return total


def every_placement(elements, accesses, lanes, banks):
    """Least excess over all banks of all words, and the fewest words of storage at that excess.

    Words that no access touches fill what is left. `accesses` are as in `toy`.
    """
    pairs = {
        e for (_, width, rows), _ in accesses if width == 8 for row in rows for e in row if e is not None
    }
    touched = {e for (_, _, rows), _ in accesses for row in rows for e in row if e is not None}
    heads = sorted((touched | pairs) - {e + 1 for e in pairs})
    choices = [range(0, banks, 2) if e in pairs else range(banks) for e in heads]
    best = None
    for chosen in itertools.product(*choices):
        table, height = {}, [0] * banks
        for row, (e, bank) in enumerate(zip(heads, chosen, strict=True)):
            for k in range(2 if e in pairs else 1):
                table[e + k] = row * banks + bank + k
                height[bank + k] += 1
        need = max((n - 1) * banks + b + 1 for b, n in enumerate(height) if n)
        value = toy.excess(accesses, lanes, table, banks), max(elements, need)
        best = value if best is None else min(best, value)
    return best


def tiny(seed, most=1 << 16):
    """A random case whose placements can be enumerated; None for the others."""
    data, plain, lanes, banks, _ = random_case(seed)
    elements = int(np.prod(data["tile"]["shape"]))
    return (data, plain, lanes, banks, elements) if banks**elements <= most else None


@pytest.mark.parametrize("block", range(4))
def test_least_excess_and_bytes_of_every_placement(block):
    seen = 0
    for seed in range(1000 + block * 60, 1060 + block * 60):
        case = tiny(seed)
        if case is None:
            continue
        data, plain, lanes, banks, elements = case
        if all(e is None for (_, _, rows), _ in plain for row in rows for e in row):
            continue
        problem, gpu = from_data(data), toy.toy_device(lanes, banks)
        traced, found = free(problem, gpu)
        least, size = every_placement(elements, plain, lanes, banks)
        assert (found.bound, found.excess) == (least, least), (seed, data)
        assert found.bytes_bound <= 4 * size <= found.bytes, (seed, data)
        assert weighted_excess(found.table, traced, gpu) == least, (seed, data)
        assert len(np.unique(found.table)) == elements
        seen += 1
    assert seen > 10


def test_a_tile_that_only_a_table_serves():
    problem = load(ROOT / "problems/spectral_elements/libceed_interp2d_p5q6_f64.json")
    gpu = device(problem.target)
    lanes, found = free(problem, gpu)
    assert (found.bound, found.excess) == (0, 0)
    assert (found.bytes, found.bytes_bound, found.complete) == (2304, 2304, True)
    assert weighted_excess(found.table, lanes, gpu) == 0
    assert sorted(found.table.ravel()) == list(range(0, 2304, 8))


@pytest.mark.parametrize("n", [2, 4])
def test_wrapped_diagonals_of_even_squares(n):
    accesses = [
        {"name": name, "op": "load", "bytes": 4, "index": index, "for": {"i": n}}
        for name, index in [
            ("rows", ["i", "tid"]), ("columns", ["tid", "i"]), ("diagonals", ["tid", f"(tid + i) % {n}"]),
        ]
    ]  # fmt: skip
    problem = from_data(
        {"name": "d", "tile": {"shape": [n, n], "element": "f32"}, "threads": n, "accesses": accesses}
    )
    _, found = free(problem, toy.toy_device(n, n))
    assert (found.bound, found.excess) == (2, 2)


def test_wide_vectors_fix_the_places_of_their_words():
    """Four-byte columns of 16-byte vectors: each phase meets one place of 32 vectors, on 8 groups."""
    problem = load(ROOT / "problems/transposes/leimao_vectorised_swizzled_f32.json")
    lanes, found = free(problem, device(problem.target))
    assert (found.bound, found.excess, found.bytes) == (384, 384, 16384)
    for access in lanes.accesses:
        starts = found.table.ravel()[access.element[access.active]]
        assert not (starts % access.operation.width_bytes).any()


def test_narrow_elements_share_words():
    """Bytes with no wide access may share words in any way: the bound leaves them out."""
    data = {
        "name": "bytes", "tile": {"shape": [64, 64], "element": "i8"}, "threads": 32,
        "accesses": [
            {"name": "rows", "op": "store", "bytes": 1, "index": ["i", "tid"], "for": {"i": 64}},
            {"name": "columns", "op": "load", "bytes": 1, "index": ["tid", "i"], "for": {"i": 64}},
        ],
    }  # fmt: skip
    problem, gpu = from_data(data), device("sm_90")
    lanes, found = free(problem, gpu)
    assert found.bound == found.excess == weighted_excess(found.table, lanes, gpu) == 0
    assert found.bytes >= found.bytes_bound == 4096
    assert len(np.unique(found.table)) == 4096


def test_narrow_elements_that_no_wide_access_binds_count_in_the_floor_alone():
    """A phase whose floor exceeds the units left: two firm words and six loose halves, on two banks."""
    data = {
        "name": "mixed", "tile": {"shape": [10], "element": {"bytes": 2}}, "threads": 8,
        "accesses": [
            {"name": "halves", "op": "load", "bytes": 2, "index": ["(tid + i) % 10"], "for": {"i": 2}},
            {"name": "words", "op": "atomic", "bytes": 4, "index": ["2*tid"], "where": "tid < 2"},
        ],
    }  # fmt: skip
    narrow = toy.toy_device(8, 2)
    rules = {**narrow.rules, ("load", 2): narrow.rules["load", 4]}
    problem, gpu = from_data(data), replace(narrow, rules=rules)
    lanes, found = free(problem, gpu)
    assert found.bound <= found.excess == weighted_excess(found.table, lanes, gpu)


def test_a_hint_and_a_size_limit_are_kept():
    rng = random.Random(5)
    problem = load(ROOT / "problems/basics/transpose_16x16_f32_sm_10.json")
    gpu = device(problem.target)
    table = np.arange(256).reshape(16, 16)
    rng.shuffle(order := list(range(16)))
    hint = (table[:, 0:1] + (np.arange(16) + np.array(order)[:, None]) % 16) * 4
    _, found = free(problem, gpu, hint=hint, max_bytes=1024)
    assert (found.excess, found.bytes) == (0, 1024)


def test_not_for_elements_of_odd_sizes():
    problem = load(ROOT / "problems/basics/transpose_32x32_f32.json")
    data = {
        "name": "twelve", "tile": {"shape": [8], "element": {"bytes": 12}}, "threads": 8,
        "accesses": [{"name": "a", "op": "load", "bytes": 4, "index": ["tid"]}],
    }  # fmt: skip
    assert free(from_data(data), device(problem.target))[1] is None
