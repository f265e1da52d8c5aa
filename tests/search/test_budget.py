import itertools
import signal
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SOLVE_LIMIT
from written import data_of, lines_of, problem_of, refused_with, rows_of, saved

import layoutopt
from layoutopt import solve
from layoutopt.accesses.trace import Trace, trace
from layoutopt.cli.process import call
from layoutopt.engine.case import case_of
from layoutopt.files.file import from_data
from layoutopt.ground.budget import (
    DEFAULT_SECONDS,
    Budget,
    OutOfTime,
    checkpoint,
    current,
    deadline,
    spending,
    unhurried,
)
from layoutopt.hardware.devices import device
from layoutopt.layout.formula import offset_expression
from layoutopt.model.cp_sat import Model, Outcome, _response
from layoutopt.model.linearisations import unpadded
from layoutopt.model.pads import padded, unswizzled
from layoutopt.model.phases import phase_sets
from layoutopt.model.pitches import by_span
from layoutopt.model.space import space_of
from layoutopt.problems.types import FAMILIES
from layoutopt.proof.reasons import SearchLimits, every_layout
from layoutopt.search import block
from layoutopt.search.proposal import Ask
from layoutopt.search.search import Search
from layoutopt.search.solve import PROPOSERS, solve_cases
from layoutopt.study.compare import compare
from layoutopt.sweeps.sweep import sweep


def test_without_a_limit_there_is_always_time():
    budget = Budget()
    assert (budget.seconds, budget.part(0.5).seconds) == (None, None)
    assert budget.affords(1e9)
    assert list(budget.while_left(range(3))) == [0, 1, 2]
    budget.check()
    part = budget.portion(0.5, 1.0)
    part.charge(2.0)
    assert not part.spent


def test_a_part_ends_after_so_much_work_on_every_machine():
    whole = Budget(1e6)
    part = whole.portion(0.5, 1.0)
    for spent in (False, True):
        part.charge(0.6)
        assert part.spent is spent
    assert not whole.ran_out  # nothing ended for want of time


def test_any_limit_can_be_waited_for():
    """Longer than a thread can wait is as long as it can; of nothing, any share is nothing."""
    assert 1e6 < Budget(1e20).seconds + 1 < threading.TIMEOUT_MAX
    assert Budget(float("inf")).part(0.5).seconds < threading.TIMEOUT_MAX
    assert Budget(0).part(0.5).spent


GPU = device("sm_90")


def test_the_budget_in_force_is_the_innermost_and_no_longer_than_any():
    with deadline(5) as outer, deadline(1000) as inner:
        assert current() is inner
        assert inner.seconds <= 5
        with unhurried():
            assert current().seconds is None
        outer.stop()
        with pytest.raises(OutOfTime):
            checkpoint()
    checkpoint()


def test_a_portion_of_the_limit_is_work_and_no_time():
    whole = Budget(1000.0)
    whole.portion(0.5).charge(600.0)
    portion = whole.portion(0.5)
    assert portion.effort == 200.0
    assert portion.seconds > 900
    inner = portion.portion(0.5)
    portion.charge(250.0)  # what a portion of it has does not matter any more
    assert inner.spent
    assert whole.ran_out  # for the limit decided how much that was
    assert not whole.spent
    whole.charge(1000.0)
    assert whole.portion(0.5).effort > 0


def test_solve_has_the_limit_of_the_command(monkeypatch):
    left, problem = [], layoutopt.load("transpose_32x32_f32")
    found = block.solve_tile(problem, device(problem.target), Ask())
    monkeypatch.setitem(layoutopt.solve.__kwdefaults__, "time_limit", SOLVE_LIMIT)
    seen = "layoutopt.search.block.solve_tile"
    monkeypatch.setattr(seen, lambda *_: left.append(current().seconds) or found)
    layoutopt.solve(problem)
    layoutopt.solve(problem, time_limit=None)
    assert DEFAULT_SECONDS - 5 < left[0] <= DEFAULT_SECONDS
    assert left[1] is None


def test_an_answer_says_where_the_limit_ended_the_search_for_a_cheaper_index():
    problem = problem_of("8x8 f32, 32 threads", "a: load 4 [tid // 8 + i, tid % 8]; i<4")
    budget = Budget(1e6)
    with spending(budget):
        left = block.solve(problem, device(problem.target))
        assert (left.status, left.reason) == ("optimal", "")
        budget.cut_short()
        cut = block.solve(problem, device(problem.target))
    proved = cut.proof.index_cost.proved
    assert cut.reason == ("" if proved else "the time limit ended the search for a cheaper index")


def test_a_part_ends_before_the_whole_and_stops_with_it():
    whole, seen = Budget(1000.0), []
    part = whole.part(0.25)
    assert part.seconds < 251
    assert (part.affords(300), whole.affords(300)) == (False, True)
    for item in part.while_left(range(10)):
        seen.append(item)
        if item == 2:
            whole.stop()
    assert seen == [0, 1, 2]
    assert part.spent
    assert part.stopped
    with pytest.raises(OutOfTime):
        part.part(0.5).check()


def test_a_running_solve_is_left_behind_and_its_error_reaches_the_caller():
    budget, release = Budget(), threading.Event()

    def stop_search():
        raise AssertionError("races with the solve")

    def solve(proto):
        budget.stop()
        release.wait()

    def wrong(proto):
        raise ValueError("wrong")

    with spending(budget):
        assert _response(SimpleNamespace(solve=solve, stop_search=stop_search), None) is None
    release.set()
    with pytest.raises(ValueError, match="wrong"):
        _response(SimpleNamespace(solve=wrong), None)


def test_a_stopped_budget_solves_and_traces_nothing():
    budget, model = Budget(), Model()
    budget.stop()
    model.clause([model.boolean()])
    with spending(budget):
        assert model.solve().outcome is Outcome.UNKNOWN
        with pytest.raises(OutOfTime):
            trace(problem_of("32x32 f32, 32 threads", "a: load 4 [i, tid]; i<32"), GPU)
    assert model.solve().outcome is Outcome.OPTIMAL


def test_a_trace_in_pieces_is_the_trace():
    (lanes,) = trace(problem_of("""64x1024 f32, 1000 threads
        a: load 4 [i, (tid*5 + 3*j) % 1024]; i<64, j<3; where tid % 3 != j; weight i + j"""), GPU).accesses  # fmt: skip
    i, j = np.divmod(np.arange(64 * 3), 3)
    tid = np.arange(1024)
    active = (tid < 1000) & (tid % 3 != j[:, None])
    element = i[:, None] * 1024 + (tid * 5 + 3 * j[:, None]) % 1024
    assert (lanes.active.reshape(-1, 1024) == active).all()
    assert (lanes.element.reshape(-1, 1024) == np.where(active, element, 0)).all()
    assert (lanes.weight == np.repeat(i + j, 32)).all()
    assert (lanes.starts == np.unique(lanes.element[lanes.active])).all()


def test_many_loops_take_the_memory_of_few():
    asked = problem_of("32 f32, 32 threads", "a: load 4 [tid]; " + ", ".join(f"v{k}<2" for k in range(17)))
    (lanes,) = trace(asked, GPU).accesses
    assert lanes.element.shape == (1 << 17, 32)
    (phases,) = phase_sets(Trace((lanes,), 1), asked.tile)
    assert phases.elements.shape == (1, 32)
    assert phases.repeats.tolist() == phases.weight.tolist() == [1 << 17]


@pytest.fixture
def ticking(monkeypatch):
    """Makes the clock go on by as much each time that it is asked."""

    def start(tick):
        clock = itertools.count(tick, tick)
        given = SimpleNamespace(monotonic=lambda: next(clock))
        monkeypatch.setattr("layoutopt.ground.budget.time", given)

    return start


def test_a_short_limit_is_used_for_pads_that_are_not_the_smallest(ticking):
    element = "(lane + 5*warp + 8*i) % 24"
    index = f"{element} // 6, {element} // 3 % 2, {element} % 3"
    asked = problem_of("4x2x3 13B, 32 threads", f"a: store 1 [{index}]; i<5")
    ticking(1e-4)
    assert layoutopt.solve(asked, time_limit=0.3).excess == 0


def test_a_comparison_without_time_names_what_it_did_not_finish(ticking):
    asked = problem_of("32x32 f32, 32 threads", "a: load 4 [tid, i]; i<8")
    ticking(1e-2)
    pad = rows_of(compare(asked, time_limit=0.1))["pad"]
    assert (pad.status, pad.reason, pad.bytes is not None) == ("feasible", "out of time", True)


@pytest.fixture
def usual_signals():
    """A command that ends leaves SIGINT ignored, which the processes of other tests would inherit."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("command", ["solve", "show", "compare", "explain"])
def test_what_cannot_be_evaluated_in_time_ends_with_one_line(monkeypatch, ticking, capsys, tmp_path, command):
    path = saved(tmp_path, "p.json", data_of("32 f32, 32 threads", "a: load 4 [tid]; i<65536"))
    ticking(1.0)
    monkeypatch.setattr(sys, "argv", ["layoutopt", command, str(path), "--time-limit", "1"])
    assert call() == 3
    printed = capsys.readouterr()
    assert "out of time" in printed.out + printed.err
    assert "Traceback" not in printed.err


def test_an_optimum_of_some_families_says_that_time_ended_the_search_for_others():
    asked = problem_of("""32 threads; families none
        tile A: 32x32 f32
        tile B: 16x8 f32
        rows: load 4 [lane, i]; i<32; tile A
        columns: load 4 [i, lane]; i<32; tile A
        B: load 4 [lane // 8, lane % 8]; tile B""")
    for late in (False, True):
        with spending(Budget()) as budget:
            if late:
                budget.cut_short()
            found = solve(asked, time_limit=None)
        assert (found.status, found.excess) == ("optimal", 992)
        assert ("layouts outside the scope" in found.reason) == late


def nothing_is_asked_of(shape, more=""):
    origin = ", ".join("0" for _ in shape.split("x"))
    return problem_of(f"{shape} 3B, 1 threads{more}", f"a: store 1 [{origin}]")


def test_candidates_end_where_none_that_follows_can_fit(monkeypatch):
    """Millions of pads of four strides are larger than the tile's own bytes."""
    taken = []

    def counted(*arguments):
        for candidate in padded(*arguments):
            taken.append(candidate)
            assert len(taken) < 100
            yield candidate

    monkeypatch.setattr("layoutopt.search.scene.padded", counted)
    assert solve(nothing_is_asked_of("6x2x4x6", "; max_bytes 864"), time_limit=None).bytes == 864


def laid(space):
    return (candidate.layout(space.shape, 3) for candidate in unswizzled(space))


def test_formulas_are_made_of_the_best_layouts_only(monkeypatch):
    """Thousands of splits and pads are counted in one batch; few of them are as small as the best."""
    made, counted = [], sys.modules["layoutopt.search.counted"]
    monkeypatch.setattr(
        counted, "offset_expression", lambda layout: made.append(layout) or offset_expression(layout)
    )
    case = case_of(nothing_is_asked_of("4x8"), GPU)
    space = space_of(case.lowered, case.lanes, 128, ("none", "order", "pad", "split"))
    best = counted.best(laid(space), counted.Counter(case), 0, None)
    assert best.table().max() == 93
    assert {layout.table().max() for layout in made} == {93}
    made.clear()
    with spending(Budget(0)):
        counted.best(laid(space), counted.Counter(case), 0, None)
    assert len(made) == 1


def test_listing_asks_the_clock_and_leaves_the_first():
    """Eight dimensions have 40,320 orders; where the time is over, the first of them is there."""
    found = nothing_is_asked_of("2x2x3x2x2x3x2x2")
    late = space_of(found, trace(found, GPU), 128, ("none", "order", "pad", "rotate"))
    with spending(Budget(0)) as none:
        for listed in (unpadded(late, 0), by_span(late, 10**6)):
            assert next(listed).span >= 576
            with pytest.raises(OutOfTime):
                list(listed)
        with pytest.raises(OutOfTime):
            list(padded(late))
        assert not list(none.while_left(unpadded(late, 0)))


def found_without_time(asked):
    case = case_of(asked, GPU)
    with spending(Budget(0)):
        return Search(case, Ask(), PROPOSERS, case.lanes).proposal()


@pytest.mark.parametrize("element", ["f32", "6B"])
@pytest.mark.parametrize("minimise", ["excess", "bytes", "instructions"])
def test_whatever_the_time_there_is_a_plain_layout(minimise, element):
    shape, bits = "x".join("2" * 8), ", ".join(f"tid // {2**d} % 2" for d in range(8))
    asked = f"{shape} {element}, 32 threads; max_bytes 4096; minimise {minimise}"
    found = problem_of(asked, f"a: load 4 [{bits}]")
    answer = found_without_time(found)
    assert answer.found is not None
    # Complete only where nothing of any kind can be better.
    best = answer.found.weighted_excess, answer.found.bytes
    assert not answer.complete or best == (0, found.tile.bytes)


@pytest.mark.parametrize("element", ["f32", "12B"])
def test_without_time_to_count_two_layouts_it_is_the_padded_one(ticking, element):
    """The first of some phases are looked at in any case, so that row-major is not the answer to a transpose."""
    found = problem_of(f"""96x96 {element}, 96 threads
        rows: store 4 [i, tid]; i<96
        columns: load 4 [tid, i]; i<96""")
    row_major = layoutopt.check(found, "x0*96 + x1").excess
    ticking(1e-4)
    assert found_without_time(found).found.weighted_excess < row_major


@pytest.mark.parametrize("tick", [1e-3, 1e-2, 3e-2])
def test_bytes_of_several_tiles_without_time_are_no_error(ticking, tick):
    tiles = problem_of("""1 threads; max_bytes 8400
        tile T0: 33x8 f64; stages 3
        tile T1: 2x32 f64; stages 3
        a: load 8 [0, 0]; tile T0
        b: load 8 [0, 0]; tile T1""")
    ticking(tick)
    assert layoutopt.solve(tiles, time_limit=0.1).status is not None


@pytest.mark.parametrize("seconds", [float("nan"), -1])
@pytest.mark.parametrize("asked", [solve, sweep])
def test_what_is_no_time_is_refused(asked, seconds):
    with refused_with("time_limit: expected seconds, 0 or more, got"):
        asked(nothing_is_asked_of("4x4"), time_limit=seconds)


@pytest.mark.parametrize(("threads", "asked"), [(32, True), (64, False)])
def test_without_time_nothing_is_asked_of_every_layout_of_many_lanes(threads, asked):
    """Gathering words and cliques takes as long as a search; of few lanes it takes no time."""
    asking, told = from_data({**lines_of(64), "threads": threads}), []
    lanes = trace(asking, GPU)
    with spending(Budget(0)):
        asked_of = {"enough": None, "progress": lambda *line: told.append(line)}
        every_layout(asking.tile, GPU, lanes, SearchLimits(), **asked_of)
    assert bool(told) is asked


def minimised(objective):
    return from_data(lines_of(8, lines=("rows", "columns"), minimise=objective))


def test_where_time_comes_first_pads_are_there_before_everything_is_searched(monkeypatch):
    """Of millions of lanes everything takes all of the time; the lanes are traced once."""
    solving, traced = sys.modules[solve_cases.__module__], []
    proposed, cases = solving.proposed, solving.cases

    def only_pads(case, *asked):
        if "table" in (case.lowered.layout.families or FAMILIES):
            raise OutOfTime
        return proposed(case, *asked)

    monkeypatch.setattr(solving, "cases", lambda *a: (traced.append(1) or case for case in cases(*a)))
    monkeypatch.setattr(solving, "proposed", only_pads)
    found = solve(minimised("time"), time_limit=None)
    assert found.family == "pad"
    assert found.estimate is not None
    assert len(traced) == 1


def test_the_plainest_formula_stays_where_the_time_is_over_before_others(monkeypatch):
    def late(*_):
        raise OutOfTime

    monkeypatch.setattr(sys.modules[solve_cases.__module__], "_best_by_families", late)
    assert solve(minimised("instructions"), time_limit=None).offset == "x0*9 + x1"


@pytest.mark.parametrize("minimise", ["instructions", "time"])
def test_the_best_of_a_few_families_claims_what_holds_of_every_layout(minimise):
    """Row-major may win by its cheap index; that nothing of it has less excess says nothing of pads."""
    problem = problem_of(f"""64x20 f64, 64 threads; families pad; minimise {minimise}; target sm_90
        a: load 16 [(lane + 8*warp + 4*i) % 64, 2*((lane + 8*warp + 4*i) // 64 % 10)]; i<3
        b: load 8 [((lane + 32*warp + 4*i) // 20 + 3*lane) % 64, (lane + 32*warp + 4*i) % 20]; i<4""")
    proof = solve(problem, time_limit=9).proof
    assert {proof.objective.scope, proof.bytes.scope} <= {"every layout", "families pad"}


def test_no_effort_left_is_no_answer():
    """CP-SAT takes none below 0 for an invalid model."""
    model = Model()
    model.exactly_one([model.boolean(), model.boolean()])
    assert model.solve(effort=-0.01).outcome is Outcome.UNKNOWN
    assert model.solve(effort=1.0).outcome is Outcome.OPTIMAL
