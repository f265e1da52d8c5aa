"""Tiny tiles against exhaustive search: the same minimum, in excess and in bytes."""

import pytest
from oracle import toy
from oracle.random_tiles import constrained, random_case
from written import problem_of

from layoutopt.files.file import from_data
from layoutopt.problems.answer import METHODS, Status
from layoutopt.search.solve import solve


def compare(seed, larger=False):
    """Solve random problem `seed`, and try every layout of its families."""
    data, plain, lanes, banks, families = random_case(seed, larger)
    result = solve(from_data(data), target=toy.toy_device(lanes, banks))
    expected = toy.best(tuple(data["tile"]["shape"]), plain, lanes, banks, families)
    if expected is None:
        assert result.status is Status.INFEASIBLE, (seed, data)
        return
    assert result.status is Status.OPTIMAL, (seed, data)
    assert (result.weighted_excess, result.bytes) == (expected[0], 4 * expected[1]), (seed, data, result)
    bound = result.proof.objective
    assert bound.lower_bound == expected[0], (seed, data)
    assert result.proof.excess.lower_bound <= result.excess, (seed, data)
    clean = solve(from_data(data), target=toy.toy_device(lanes, banks), conflict_free=True)
    assert (clean.status is Status.INFEASIBLE) == (expected[0] > 0), (seed, data)


def compare_constrained(seed):
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


@pytest.mark.parametrize("block", range(20))
def test_same_minimum_as_exhaustive_search(block):
    for seed in range(block * 20, block * 20 + 20):
        compare(seed)


@pytest.mark.parametrize("block", range(6))
def test_same_minimum_on_larger_tiles(block):
    for seed in range(block * 5, block * 5 + 5):
        compare(seed, larger=True)


@pytest.mark.parametrize("block", range(6))
def test_constraints_on_pitches_by_both_methods(block):
    """`max_bytes`, `pitch_multiple_bytes` and bytes first, against every layout; scripts/fuzz goes on."""
    for seed in range(30 * block, 30 * block + 30):
        compare_constrained(seed)


@pytest.mark.parametrize("block", range(4))
def test_bytes_first(block):
    for seed in range(1000 + block * 20, 1020 + block * 20):
        data, plain, lanes, banks, families = random_case(seed)
        data["layout"]["minimise"] = "bytes"
        if not toy.best(tuple(data["tile"]["shape"]), plain, lanes, banks, families):
            continue
        result = solve(from_data(data), target=toy.toy_device(lanes, banks))
        expected = toy.best_by_bytes(tuple(data["tile"]["shape"]), plain, lanes, banks, families)
        assert result.status is Status.OPTIMAL, (seed, data)
        assert (result.weighted_excess, result.bytes) == (expected[0], 4 * expected[1]), (seed, data, result)


def test_instructions_first():
    """Never more of them than where excess comes first, and with as many never more excess."""
    for seed in range(2000, 2016):
        data, _, lanes, banks, _ = random_case(seed)
        target = toy.toy_device(lanes, banks)
        data["layout"]["minimise"] = "instructions"
        cheap = solve(from_data(data), target=target)
        data["layout"]["minimise"] = "excess"
        usual = solve(from_data(data), target=target)
        assert (cheap.layout is None) is (usual.layout is None), (seed, data)
        if usual.layout is None:
            continue
        cost, other = cheap.proof.index_cost, usual.proof.index_cost
        assert cheap.status is Status.FEASIBLE or cost.proved, (seed, data)
        assert cost.value <= other.value, (seed, data)
        if cost.value == other.value:
            assert cheap.weighted_excess <= usual.weighted_excess, (seed, data)
        if usual.weighted_excess == 0:
            free = solve(from_data(data | {"layout": {**data["layout"], "minimise": "instructions"}}),
                         target=target, conflict_free=True)  # fmt: skip
            least = free.proof.index_cost
            assert free.status is Status.FEASIBLE or least.proved, (seed, data)
            assert free.weighted_excess == 0, (seed, data)
            assert cost.value <= least.value <= other.value, (seed, data)


@pytest.mark.parametrize("block", range(2))
def test_a_limit_on_bytes(block):
    """The least excess within every number of bytes that some layout takes, and one byte less."""
    for seed in range(3000 + block * 10, 3010 + block * 10):
        data, plain, lanes, banks, families = random_case(seed)
        target = toy.toy_device(lanes, banks)
        shape = tuple(data["tile"]["shape"])
        sizes = {4 * (max(offsets) + 1) for offsets in toy.layouts(shape, plain, banks, families)}
        for limit in sorted(sizes)[:3]:
            for most in (limit - 1, limit):
                data["layout"]["max_bytes"] = most
                result = solve(from_data(data), target=target)
                fitting = [
                    (toy.excess(plain, lanes, offsets, banks), 4 * (max(offsets) + 1))
                    for offsets in toy.layouts(shape, plain, banks, families, within=most // 4)
                    if 4 * (max(offsets) + 1) <= most
                ]
                if fitting:
                    assert result.status is Status.OPTIMAL, (seed, most)
                    assert (result.weighted_excess, result.bytes) == min(fitting), (seed, most)
                else:
                    assert result.status is Status.INFEASIBLE, (seed, most)


def test_row_operations_of_an_xor_shorten_the_last_block():
    """A source bit inside the bank field moves no word into another conflict, but the last rows together."""
    problem = problem_of(
        """33x16 f16, 32 threads; families none order pad split rotate xor
        diagonals: store 2 [tid, (144 - tid + i) % 16]; i<16
        rows: load 16 [(tid + 32*i) % 66 // 2, 8*((tid + 32*i) % 66 % 2)]; i<3""",
        name="anti-diagonals",
    )
    result = solve(problem)
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, 0, 1120)
