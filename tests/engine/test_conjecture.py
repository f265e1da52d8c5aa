"""Linear maps to banks against all maps: theorems by enumeration, and a counterexample to a conjecture."""

import importlib.util
import itertools

import pytest
from conftest import ROOT

spec = importlib.util.spec_from_file_location(
    "search_conjecture", ROOT / "scripts" / "fuzz" / "search_conjecture.py"
)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


def test_a_map_to_128_banks_that_no_linear_map_can_replace():
    meet = script.differences(12, 4)
    assert len(meet) == 12 + 66 + 220 + 495
    assert len({script.octacode_bank(word) for word in range(1 << 12)}) <= 128
    assert script.conflicts(12, meet, script.octacode_bank) == 0
    assert script.conflicts(12, meet, lambda word: word % 128) > 0
    assert script.largest_linear(7) == 11


@pytest.mark.parametrize(("bits", "length"), [(4, 5), (5, 6), (6, 8)])
def test_longest_linear_codes_of_distance_five(bits, length):
    """As in Brouwer's and Grassl's tables (codetables.de)."""
    assert script.largest_linear(bits) == length


@pytest.mark.parametrize(("dimensions", "bank_bits"), [(3, 1), (4, 1), (3, 2), (4, 2)])
def test_few_differences_leave_a_linear_map(dimensions, bank_bits):
    """Bose and Burton: fewer than 2^(r+1) - 1 differences never meet every kernel; a subspace does."""
    kernels = script.subspaces(dimensions, dimensions - bank_bits)
    least = (2 << bank_bits) - 1
    vectors = range(1, 1 << dimensions)
    for meet in itertools.combinations(vectors, least - 1):
        assert any(kernel.isdisjoint(meet) for kernel in kernels)
    blocking = [
        set(meet)
        for meet in itertools.combinations(vectors, least)
        if not any(kernel.isdisjoint(meet) for kernel in kernels)
    ]
    assert sorted(map(sorted, blocking)) == [sorted(s) for s in script.subspaces(dimensions, bank_bits + 1)]


@pytest.mark.parametrize(("n", "k", "count"), [(3, 1, 7), (4, 2, 35), (5, 2, 155)])
def test_subspaces_are_all_there(n, k, count):
    assert len(script.subspaces(n, k)) == count


def test_minimal_sets_defeat_every_linear_map():
    import random

    kernels = script.subspaces(4, 2)
    meet = script.minimal_blocking(kernels, 4, random.Random(3))
    assert not any(kernel.isdisjoint(meet) for kernel in kernels)
    for d in meet:
        assert any(kernel.isdisjoint(set(meet) - {d}) for kernel in kernels)
    assert script.colourable(4, 2, meet) is False
    assert script.colourable(4, 3, meet[:4]) is True
