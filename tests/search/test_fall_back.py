"""Where time runs out, and lines that repeat: layouts that a climb over orders and pads finds."""

import itertools

import ablate
import numpy as np
import pytest
from conftest import ROOT
from written import access_from, constrained, one_tile, problem_of

from layoutopt import Layout, Status, solve
from layoutopt.engine.case import case_of
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import evaluate, to_text
from layoutopt.files.file import from_data
from layoutopt.ground.budget import current
from layoutopt.hardware.devices import device
from layoutopt.layout.formula import element_expression
from layoutopt.model.phases import phases_of
from layoutopt.model.pitches import in_orders, pitches_of, span_of
from layoutopt.search import sample
from layoutopt.search.fall_back import counted_together, fall_back
from layoutopt.search.mask_tree import Searched
from layoutopt.search.proposal import Ask
from layoutopt.search.reach_floor import ReachFloor
from layoutopt.search.scene import Scene

SHAPE = (2, 3, 4, 5, 3)


def test_conflicts_that_remain_are_folded_into_few_bytes():
    """Taps of a convolution: no layout has fewer than 8; formulas have 10 in 2,252 bytes."""
    whole = "(tid + 256*i)"
    problem = problem_of(f"""11x33 f32, 256 threads; target sm_100
        fill: store 4 [{whole}//33%11, {whole}%33]; i<2; where {whole} < 363
        taps: load 4 [tid//31%9 + ky, tid%31 + kx]; ky<2, kx<2""")
    result = solve(problem, time_limit=60)
    assert (result.excess, result.family, result.bytes) == (8, "table", 1452)


def scene_of(problem):
    gpu = device(problem.target)
    return Scene(case_of(problem, gpu), Ask())


def scene(**layout):
    """Five dimensions, read with each of two of them fastest."""
    accesses = []
    for name, order in (("a", (4, 1, 3, 0, 2)), ("b", (2, 0, 4, 1, 3))):
        index, div = [""] * 5, 1
        for d in order:
            index[d], div = f"(tid + 64*i) // {div} % {SHAPE[d]}", div * SHAPE[d]
        accesses.append(access_from(f"{name}: load 4 [{', '.join(index)}]; i<6; where tid + 64*i < 360"))
    return scene_of(from_data(one_tile("p", SHAPE, "f32", 64, accesses, layout=layout)))


def test_a_climb_keeps_to_the_constraints():
    fixed = scene(families=["none", "order", "pad"], order=[3, 0, 1, 2, 4], max_bytes=1600)
    fall_back(fixed)
    for one in fixed.tally.counted:
        assert [d.dim for d in one.candidate.digits] == [3, 0, 1, 2, 4]
        assert span_of(fixed.space, pitches_of(one.candidate, 5)) * 4 <= 1600
    assert len(fixed.tally.counted) > 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # Four bytes at the start of each row of six: aligned in rows of eight alone, which are padded.
        ("4x6 i8, 4 threads; families none order\na: store 4 [tid, 0]", set()),
        ("4x6 i8, 4 threads; families none order pad\na: store 4 [tid, 0]", {0}),
        ("64 f32, 32 threads\na: load 4 [tid]; weight 0", {0}),  # nothing weighs
        ("1x1 f32, 32 threads\na: load 4 [0, 0]", {0}),  # no dimension has two elements
    ],
)
def test_a_climb_pads_only_where_that_is_allowed(text, found):
    given = scene_of(problem_of(text))
    fall_back(given)
    assert {one.excess for one in given.tally.counted} == found


def test_a_climb_is_better_than_every_order():
    padded = scene(families=["none", "order", "pad"])
    fall_back(padded)
    orders = np.array(list(itertools.permutations(range(5))))
    pitches, may = in_orders(padded.space, orders, np.zeros_like(orders))
    ordered = 0
    for phases in padded.sets:
        counts, ideal = counted_together(padded.tile, phases, pitches)
        ordered = ordered + (counts - ideal) @ phases.weight
    assert may.all()
    assert not padded.tally.exhausted
    assert min(padded.tally.counted, key=lambda f: f.rank).excess < min(ordered)
    for one in padded.tally.counted:
        assert one.excess == phases_of(one.candidate, padded.sets, padded.tile).excess({})[0]


def test_a_rule_has_the_time_of_the_stage_that_asks_it(monkeypatch):
    """One look at whole lines used all that was left for every stage that follows."""
    asked, given, rule = [], scene(), "layoutopt.search.scene.within_ceilings"
    nothing = Searched(None, complete=False)
    monkeypatch.setattr(rule, lambda *_: asked.append(current()) or nothing)
    fall_back(given)
    stage = ReachFloor(given, presolved=True)
    fallen = (f.candidate for f in given.tally.counted if given.reaches(f.candidate) and f.excess)
    candidate = next(fallen)
    stage._presolve(candidate, candidate.span, candidate.span)
    assert asked == [stage.patience] * 2  # few steps, then many


@pytest.mark.parametrize("family", ["pad", "interval", "xor"])
def test_free_of_conflicts_though_nothing_was_found_by_rising_bytes(monkeypatch, family):
    monkeypatch.setattr("layoutopt.search.reach_floor.ReachFloor._solved", lambda self: False)
    problem = problem_of("32x32 f32, 32 threads", "rows: load 4 [0, tid]", "columns: load 4 [tid, 0]")
    assert solve(constrained(problem, families=("none", family)), conflict_free=True).excess == 0
    none = solve(constrained(problem, families=("none",)), conflict_free=True)
    assert none.status is Status.UNKNOWN  # nobody has shown that row-major is all there is


def test_offsets_of_a_period_come_again():
    layout = Layout((6, 4), 4, (), lookup=(1, 0, 3, 2, 6, 7, 4, 5))
    places = [4 * (8 * k + place) for k in range(3) for place in layout.lookup]
    assert layout.table().ravel().tolist() == places
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


ROWS = "rows: load 4 [warp + 8*i, lane + 32*j]; i<4, j<2"
COLUMNS = "columns: load 4 [lane, warp + 8*i]; i<8"
RARE = "rare: load 4 [2*lane % 32, i + (lane // 16)*31]; i<16"
# Words of 16-byte vectors share eight banks: columns of them cost four times in every layout.
VECTORS = "vectors: store 16 [warp + 8*i, 4*(lane % 16)]; i<4"
OF_VECTORS = "columns: load 4 [lane, 4*warp + 32*j]; j<2; weight 3"


@pytest.mark.parametrize(
    ("accesses", "sizes"),
    [
        ((ROWS, COLUMNS), {"_SAMPLED": 6, "_JOINING": 16}),
        ((ROWS, COLUMNS, RARE), {"_SAMPLED": 6, "_JOINING": 16}),
        ((VECTORS, OF_VECTORS), {"_SAMPLED": 8, "_PIECE": 3}),
    ],
)
def test_a_sample_gives_what_all_instructions_give(monkeypatch, accesses, sizes):
    problem = problem_of("32x64 f32, 256 threads", *accesses)
    whole = solve(problem)
    for name, value in {"MOST_TOGETHER": 16, **sizes}.items():
        monkeypatch.setattr(sample, name, value)
    few = solve(problem)
    assert (few.excess, few.weighted_excess, few.bytes) == (whole.excess, whole.weighted_excess, whole.bytes)
    assert few.status is whole.status is Status.OPTIMAL
    assert bool(few.excess) == (VECTORS in accesses)
    assert (few.proof.excess, few.proof.objective) == (whole.proof.excess, whole.proof.objective)


def test_what_serves_only_the_sample_is_not_called_the_best(monkeypatch):
    problem = problem_of("32x64 f32, 256 threads; families none pad", ROWS, COLUMNS, RARE)
    for name, value in {"MOST_TOGETHER": 16, "_SAMPLED": 3, "_ROUNDS": 1}.items():
        monkeypatch.setattr(sample, name, value)
    few = solve(problem)
    assert few.excess == sum(report.excess for report in few.accesses) >= few.proof.excess.lower_bound
    assert few.status is Status.OPTIMAL or few.reason


def test_what_the_ablation_switches_off_is_there_and_in_its_table():
    table = (ROOT / "docs/model.md").read_text()
    for mechanism, parts in ablate.MECHANISMS.items():
        assert f"| {mechanism} |" in table
        assert all(callable(getattr(*ablate.place(target))) for target, _ in parts)


def test_pads_of_four_dimensions_at_once():
    """Climbs from places drawn at random alone ended at one excess wavefront."""
    problem = problem_of(
        "2x2x2x2x6 f32, 64 threads; families none pad",
        "a: store 4 [tid//24%2, tid//2%2, tid//48%2, tid%2, tid//4%6]",
        "b: load 4 [tid//2%2, tid//8%2, tid//4%2, tid%2, tid//16%6]",
    )
    assert solve(problem).excess == 0
