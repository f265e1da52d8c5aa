"""Where time runs out, and lines that repeat: layouts that a climb over orders and pads finds."""

import itertools

import numpy as np
import pytest
from written import data_of, one_tile, problem_of, reads, writes

from layoutopt import Layout, Status, solve
from layoutopt.accesses.trace import trace
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import evaluate, to_text
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.layout.formula import element_expression
from layoutopt.model.linear_phases import phases_of
from layoutopt.model.pitches import in_order, pitches_of, span_of
from layoutopt.search import sample
from layoutopt.search.fall_back import counted_together, fall_back
from layoutopt.search.mask_tree import Searched
from layoutopt.search.proposal import Ask
from layoutopt.search.reach_floor import ReachFloor
from layoutopt.search.scene import Scene

SHAPE = (2, 3, 4, 5, 3)


@pytest.mark.parametrize("limits", [{}, {"max_bytes": 2920}])
def test_conflicts_that_remain_are_folded_into_few_bytes(limits):
    """Taps of a convolution: no layout has fewer than 20, a pad reaches that in 5,432 bytes."""
    whole = "tid + 256*i"
    fill = [f"({whole})//363%2", f"({whole})//33%11", f"({whole})%33"]
    accesses = [
        writes("fill", 4, fill, i=3, where=f"({whole}) < 726"),
        reads("taps", 4, ["c", "tid//31%9 + ky", "tid%31 + kx"], c=2, ky=3, kx=3),
    ]
    problem = one_tile("taps", [2, 11, 33], "f32", 256, accesses, target="sm_100", layout=limits)
    result = solve(from_data(problem), time_limit=60)
    assert (result.excess, result.family) == (20, "table")
    assert 2904 <= result.bytes <= 2952


def scene(**layout):
    """Five dimensions, read with each of two of them fastest."""
    accesses = []
    for name, order in (("a", (4, 1, 3, 0, 2)), ("b", (2, 0, 4, 1, 3))):
        index, div = [""] * 5, 1
        for d in order:
            index[d], div = f"(tid + 64*i) // {div} % {SHAPE[d]}", div * SHAPE[d]
        accesses.append(reads(name, 4, index, i=6, where="tid + 64*i < 360"))
    problem = from_data(one_tile("p", SHAPE, "f32", 64, accesses, layout=layout))
    gpu = device(problem.target)
    return Scene(problem, gpu, trace(problem, gpu), Ask())


def test_a_climb_is_better_than_every_order():
    padded = scene(families=["none", "order", "pad"])
    fall_back(padded)
    ordered = []
    for order in itertools.permutations(range(5)):
        pitches = in_order(padded.space, order, (0,) * 5)
        costs, ideal = zip(
            *(counted_together(padded.tile, s, s.elements, np.array([pitches])) for s in padded.sets),
            strict=True,
        )
        ordered.append(
            sum(int(((c - i) @ s.weight)[0]) for c, i, s in zip(costs, ideal, padded.sets, strict=True))
        )
    found = min(padded.tally.unswizzled, key=lambda f: f.rank)
    assert not padded.tally.exhausted
    assert found.excess < min(ordered)
    for one in padded.tally.unswizzled:
        assert one.excess == phases_of(one.candidate, padded.sets, padded.tile).excess({})


def test_a_climb_keeps_to_the_constraints():
    fixed = scene(families=["none", "order", "pad"], order=[3, 0, 1, 2, 4], max_bytes=1600)
    fall_back(fixed)
    for one in fixed.tally.unswizzled:
        assert [d.dim for d in one.candidate.digits] == [3, 0, 1, 2, 4]
        assert span_of(fixed.space, pitches_of(one.candidate, 5)) * 4 <= 1600
    assert len(fixed.tally.unswizzled) > 1


def test_a_climb_pads_only_where_that_is_allowed():
    """Four bytes at the start of each row of six: aligned in rows of eight alone, which are padded."""
    store = writes("a", 4, ["tid", "0"])
    data = data_of("4x6 i8, 4 threads", store)
    for families in (["none", "order"], ["none", "order", "pad"]):
        problem = from_data(data | {"layout": {"families": families}})
        gpu = device(problem.target)
        given = Scene(problem, gpu, trace(problem, gpu), Ask())
        fall_back(given)
        assert bool(given.tally.unswizzled) == ("pad" in families)


def test_a_climb_without_anything_that_weighs():
    load = reads("a", 4, ["tid"], weight=0)
    problem = problem_of("64 f32, 32 threads", load)
    gpu = device(problem.target)
    given = Scene(problem, gpu, trace(problem, gpu), Ask())
    fall_back(given)
    assert {one.excess for one in given.tally.unswizzled} == {0}


def test_a_rule_has_the_time_of_the_stage_that_asks_it(monkeypatch):
    """One look at whole lines used all that was left for every stage that follows."""
    asked = []
    given = scene()
    nothing = Searched(None, complete=False)
    monkeypatch.setattr(
        "layoutopt.search.scene.within_ceilings", lambda *given: asked.append(given[-1]) or nothing
    )
    stage, candidate = ReachFloor(given, presolved=True), fallen(given)
    stage._presolve(candidate, candidate.span, candidate.span)
    assert asked == [stage.budget]


def fallen(given):
    fall_back(given)
    reachable = [f.candidate for f in given.tally.unswizzled if given.reaches(f.candidate) and f.excess]
    return reachable[0]


@pytest.mark.parametrize("families", [["none", "pad"], ["none", "interval"], ["none", "xor"]])
def test_free_of_conflicts_though_nothing_was_found_by_rising_bytes(monkeypatch, families):
    monkeypatch.setattr("layoutopt.search.reach_floor.ReachFloor._solved", lambda self: False)
    index = {"rows": ["0", "tid"], "columns": ["tid", "0"]}
    accesses = [reads(name, 4, index[name]) for name in index]
    data = data_of("32x32 f32, 32 threads", *accesses)
    found = solve(from_data(data | {"layout": {"families": families}}), conflict_free=True)
    assert found.layout is not None
    assert found.excess == 0
    none = solve(from_data(data | {"layout": {"families": ["none"]}}), conflict_free=True)
    assert none.status is Status.UNKNOWN  # nobody has shown that row-major is all there is


def test_offsets_of_a_period_come_again():
    layout = Layout((6, 4), 4, (), lookup=(1, 0, 3, 2, 6, 7, 4, 5))
    assert layout.table().ravel().tolist() == [
        4 * (8 * k + place) for k in range(3) for place in layout.lookup
    ]
    assert layout.declared_bytes == 96
    grid = dict(zip(("x0", "x1"), np.indices((6, 4)), strict=True))
    node = element_expression(layout)
    assert (evaluate(node, grid) * 4 == layout.table()).all()
    lines = Layout((6, 4), 4, (), lookup=(1, 2, 3, 0))
    assert to_text(element_expression(lines)) == "x0*4 + (x1 % 3 + 1 - x1 // 3)"


@pytest.mark.parametrize("lookup", [(0, 1, 2, 3, 4), (0, 1, 2, 9)])
def test_a_period_divides_the_tile_and_holds_its_offsets(lookup):
    with pytest.raises(LayoutError, match="period"):
        Layout((6, 4), 4, (), lookup=lookup)


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
