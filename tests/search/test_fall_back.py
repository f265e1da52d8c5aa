"""Where time runs out: layouts that a climb over orders and pads finds."""

import itertools

import numpy as np
import pytest
from written import one_tile, reads, writes

from layoutopt.accesses.trace import trace
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import device
from layoutopt.model.linear_phases import phases_of
from layoutopt.model.pitches import in_order, pitches_of, span_of
from layoutopt.problems.answer import Status
from layoutopt.search.fall_back import fall_back
from layoutopt.search.many_orders import counted_together
from layoutopt.search.presolve import Presolve
from layoutopt.search.scene import Scene
from layoutopt.search.solve import solve

SHAPE = (2, 3, 4, 5, 3)


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
    return Scene(problem, gpu, trace(problem, gpu), False, Budget(), 1, lambda _: None)


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
    data = one_tile("rows", [4, 6], "i8", 4, [store])
    for families in (["none", "order"], ["none", "order", "pad"]):
        problem = from_data(data | {"layout": {"families": families}})
        gpu = device(problem.target)
        given = Scene(problem, gpu, trace(problem, gpu), False, Budget(), 1, lambda _: None)
        fall_back(given)
        assert bool(given.tally.unswizzled) == ("pad" in families)


def test_a_climb_without_anything_that_weighs():
    load = reads("a", 4, ["tid"], weight=0)
    problem = from_data(one_tile("none", [64], "f32", 32, [load]))
    gpu = device(problem.target)
    given = Scene(problem, gpu, trace(problem, gpu), False, Budget(), 1, lambda _: None)
    fall_back(given)
    assert {one.excess for one in given.tally.unswizzled} == {0}


def test_a_rule_has_the_time_of_the_stage_that_asks_it(monkeypatch):
    """One look at whole lines used all that was left for every stage that follows."""
    asked = []
    given = scene()
    monkeypatch.setattr(
        "layoutopt.search.presolve.decide", lambda question, budget: asked.append(budget) or (None, {})
    )
    part = Budget(1.0)
    candidate = fallen(given)
    Presolve(given, part)(candidate, candidate.span, candidate.span)
    assert asked == [part]


def fallen(given):
    fall_back(given)
    reachable = [f.candidate for f in given.tally.unswizzled if given.reaches(f.candidate) and f.excess]
    return reachable[0]


@pytest.mark.parametrize("families", [["none", "pad"], ["none", "interval"], ["none", "xor"]])
def test_free_of_conflicts_though_nothing_was_found_by_rising_bytes(monkeypatch, families):
    monkeypatch.setattr("layoutopt.search.reach_floor.ReachFloor._solved", lambda self: False)
    monkeypatch.setattr("layoutopt.search.reach_floor.ReachFloor._look_at_whole_lines", lambda self: None)
    index = {"rows": ["0", "tid"], "columns": ["tid", "0"]}
    accesses = [reads(name, 4, index[name]) for name in index]
    data = one_tile("p", [32, 32], "f32", 32, accesses)
    found = solve(from_data(data | {"layout": {"families": families}}), conflict_free=True)
    assert found.layout is not None
    assert found.excess == 0
    none = solve(from_data(data | {"layout": {"families": ["none"]}}), conflict_free=True)
    assert none.status is Status.UNKNOWN  # nobody has shown that row-major is all there is
