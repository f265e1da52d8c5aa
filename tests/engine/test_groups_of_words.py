"""Swizzles that are not searched: inside groups of words that never conflict, and of odd element sizes."""

import pytest
from oracle import toy
from written import problem_of, reads, writes

from layoutopt import Status, check, solve
from layoutopt.hardware.devices import Device, PhaseRule

OUTSIDE = ", XOR sources outside groups of 32 words"


def device():
    """8-byte stores by halves; bytes by all lanes, in groups of 32 words over 16 banks."""
    given = toy.toy_device(16, 16)
    rules = {**given.rules, ("load", 1): PhaseRule((tuple(range(16)),), 16, 4, row_words=32)}
    return Device("grouped", "grouped", 16, 16, 4, rules)


def rows_and_bytes(**layout):
    """Every second row of 16 words starts at one bank, unless a swizzle reads a bit inside a group."""
    rows = writes("rows", 8, ["lane % 8", "0"])
    single = reads("single", 1, ["0", "lane % 8"])
    return problem_of("8x8 f64, 16 threads", rows, single, layout={"families": ["none", "xor"], **layout})


def test_a_scope_names_the_sources_that_are_left_out():
    problem, offset = rows_and_bytes(), "x0*8 + (x1 ^ x0)"
    assert check(problem, offset, target=device()).excess == 0
    found = solve(problem, target=device())
    assert found.excess > 0
    assert found.proof.excess.scope == "families none, xor" + OUTSIDE


def test_what_such_a_source_may_do_is_not_refuted():
    found = solve(rows_and_bytes(), target=device(), conflict_free=True)
    assert found.status is Status.UNKNOWN
    assert OUTSIDE in found.reason


def thirds(**layout):
    """Bytes of every third element of 10 bytes, by four lanes."""
    flat = "tid + 32*i"
    bytewise = reads("a", 1, [f"(({flat})//3 + i) % 5", f"({flat}) % 3"])
    return problem_of("5x3 10B, 4 threads", bytewise | {"for": {"i": 3}}, layout=layout)


def banks_of_four():
    given = toy.toy_device(8, 4)
    rules = {**given.rules, ("load", 1): PhaseRule((tuple(range(8)),), 4, 4)}
    return Device("four", "four", 8, 4, 4, rules)


def test_elements_of_odd_sizes_have_no_swizzle_in_the_scope():
    problem, offset = thirds(), "(x0*3 + x1) ^ (x0*3 + x1)//8"
    swizzled, found = check(problem, offset, target=banks_of_four()), solve(problem, target=banks_of_four())
    assert swizzled.excess == found.excess == 0
    assert swizzled.bytes < found.bytes == found.proof.bytes.lower_bound
    assert found.proof.bytes.scope.endswith(", no XOR over elements of 10 bytes")


@pytest.mark.parametrize(("families", "status"), [(["xor"], Status.UNKNOWN), (["pad"], Status.INFEASIBLE)])
def test_what_is_not_searched_is_not_infeasible(families, status):
    found = solve(thirds(families=families, max_bytes=160), target=banks_of_four(), conflict_free=True)
    assert found.status is status
