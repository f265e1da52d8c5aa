import pytest

from layoutopt import solve
from layoutopt.files.file import from_data
from layoutopt.problems.answer import Status
from layoutopt.search import sample


def tile(shape, *accesses, threads=256, **layout):
    data = {"schema": "layoutopt.problem/1", "name": "p", "threads": threads, "layout": layout}
    data |= {"tile": {"shape": shape, "element": "f32"}, "accesses": list(accesses)}
    return from_data(data)


def load_of(name, index, **loops):
    return {"name": name, "op": "load", "bytes": 4, "index": index, "for": loops}


ROWS = load_of("rows", ["warp + 8*i", "lane + 32*j"], i=4, j=2)
COLUMNS = load_of("columns", ["lane", "warp + 8*i"], i=8)
RARE = load_of("rare", ["2*lane % 32", "i + (lane // 16)*31"], i=16)


@pytest.mark.parametrize("accesses", [(ROWS, COLUMNS), (ROWS, COLUMNS, RARE)])
def test_a_sample_gives_what_all_instructions_give(monkeypatch, accesses):
    problem = tile([32, 64], *accesses)
    whole = solve(problem)
    monkeypatch.setattr(sample, "MOST_TOGETHER", 16)
    monkeypatch.setattr(sample, "_SAMPLED", 6)
    monkeypatch.setattr(sample, "_JOINING", 16)
    few = solve(problem)
    assert (few.excess, few.bytes) == (whole.excess, whole.bytes)
    assert few.status is whole.status is Status.OPTIMAL


def test_what_serves_only_the_sample_is_not_called_the_best(monkeypatch):
    problem = tile([32, 64], ROWS, COLUMNS, RARE, families=["none", "pad"])
    monkeypatch.setattr(sample, "MOST_TOGETHER", 16)
    monkeypatch.setattr(sample, "_SAMPLED", 3)
    monkeypatch.setattr(sample, "_ROUNDS", 1)
    few = solve(problem)
    assert few.excess == sum(report.excess for report in few.accesses)
    assert few.excess >= few.proof.excess.lower_bound
    assert few.status is Status.OPTIMAL or few.reason


def test_a_large_transpose_has_its_short_answer():
    rows = load_of("rows", ["warp + 32*i", "lane + 32*j"], i=16, j=16)
    columns = load_of("columns", ["lane + 32*i", "warp + 32*j"], i=16, j=16)
    found = solve(tile([512, 512], rows, columns, threads=1024))
    assert found.offset == "x0*512 + (x1 ^ x0 % 32)"
    assert (found.status, found.excess, found.bytes) == (Status.OPTIMAL, 0, 1 << 20)


def test_what_no_layout_avoids_is_proved_of_all_instructions(monkeypatch):
    """Words of 16-byte vectors share eight banks: columns of them cost four times in every layout."""
    stores = {**load_of("vectors", ["warp + 8*i", "4*(lane % 16)"], i=4), "op": "store", "bytes": 16}
    columns = load_of("columns", ["lane", "4*warp + 32*j"], j=2)
    problem = tile([32, 64], stores, {**columns, "weight": 3})
    whole = solve(problem)
    monkeypatch.setattr(sample, "MOST_TOGETHER", 16)
    monkeypatch.setattr(sample, "_SAMPLED", 8)
    monkeypatch.setattr(sample, "_PIECE", 3)
    few = solve(problem)
    assert (few.excess, few.weighted_excess, few.bytes) == (whole.excess, whole.weighted_excess, whole.bytes)
    assert few.excess > 0
    assert few.status is whole.status is Status.OPTIMAL
    assert few.proof.excess == whole.proof.excess
    assert few.proof.objective == whole.proof.objective
