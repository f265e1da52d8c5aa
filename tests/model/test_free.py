"""Free assignments and folded pads, against enumeration of every placement of tiny tiles by plain loops."""

import random
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from oracle import toy
from oracle.banks import weighted_excess
from oracle.random_tiles import tiny
from oracle.toy import every_placement
from written import batched_rows_and_columns, data_of, problem_of, saved

from layoutopt.accesses.trace import trace
from layoutopt.engine.case import cases
from layoutopt.expressions.grammar import lookups
from layoutopt.files.file import from_data, load
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import device, load_devices
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Digit, Layout
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import EFFORT, _lowest, free_assignment
from layoutopt.problems.answer import EVERY_LAYOUT, Bound, Status
from layoutopt.proof import reasons
from layoutopt.report.text import report
from layoutopt.search.proposal import Ask, Proposal
from layoutopt.search.solve import solve
from layoutopt.search.tables import with_tables
from layoutopt.search.verify import verified


def free(problem, gpu, **options):
    lanes = trace(problem, gpu)
    sets = phase_sets(lanes, problem.tile, gpu)
    return lanes, free_assignment(sets, lanes, problem.tile, budget=Budget(), **options)


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
    problem = problem_of(f"{n}x{n} f32, {n} threads", *accesses)
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
    problem = problem_of("""64x64 i8, 32 threads; name bytes
        rows: store 1 [i, tid]; i<64
        columns: load 1 [tid, i]; i<64""")
    gpu = device("sm_90")
    lanes, found = free(problem, gpu)
    assert found.bound == found.excess == weighted_excess(found.table, lanes, gpu) == 0
    assert found.bytes >= found.bytes_bound == 4096
    assert len(np.unique(found.table)) == 4096


def test_narrow_elements_that_no_wide_access_binds_count_in_the_floor_alone():
    """A phase whose floor exceeds the units left: two firm words and six loose halves, on two banks."""
    problem = problem_of("""10 2B, 8 threads
        halves: load 2 [(tid + i) % 10]; i<2
        words: atomic 4 [2*tid]; where tid < 2""")
    narrow = toy.toy_device(8, 2)
    rules = {**narrow.rules, ("load", 2): narrow.rules["load", 4]}
    gpu = replace(narrow, rules=rules)
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
    assert free(problem_of("8 12B, 8 threads", "a: load 4 [tid]"), device(problem.target))[1] is None


def rows_columns_diagonals(n, m, **layout):
    last = n - 1
    return problem_of(
        f"""{n}x{m} f32, {m} threads
        rows: store 4 [i, tid]; i<{n}
        columns: load 4 [min(tid, {last}), i]; i<{m}
        diagonals: load 4 [min(tid, {last}), (tid + i) % {m}]; i<{m}""",
        layout=layout,
    )


@pytest.mark.parametrize("families", [["none", "pad", "table"], ["table"]])
def test_a_table_that_is_asked_for_holds_what_formulas_of_any_family_give(families):
    """Rotated lines have no excess; a table holds what they give."""
    problem = rows_columns_diagonals(15, 16, families=families)
    result = solve(problem, target=toy.toy_device(16, 16))
    assert (result.family, result.excess, result.bytes) == ("table", 0, 15 * 16 * 4)
    assert (result.proof.excess.scope, result.proof.bytes.scope) == ("every layout", "every layout")
    assert result.status is Status.OPTIMAL


def test_a_table_that_was_not_searched_to_the_end_is_not_proved_away():
    result = solve(rows_columns_diagonals(31, 32, families=["none", "pad", "table"]), time_limit=1e-3)
    # On a busy machine not even the accesses are evaluated in a millisecond.
    assert result.status in (Status.FEASIBLE, Status.UNKNOWN)
    left = ("tables of offsets were not searched to the end", "stopped before the proof", "out of time")
    assert any(words in result.reason for words in left)
    assert result.decided_by is None


def test_a_table_too_large_to_be_asked_for_is_named():
    result = solve(rows_columns_diagonals(256, 32, families=["none", "pad", "table"]), time_limit=5)
    assert result.proof.bytes.scope in ("families none, pad", "every layout")
    assert result.reason.endswith(
        "no table was searched: a table has at most 4,096 elements, the tile has 8,192"
    )


def test_a_table_without_conflicts_is_found_where_any_conflict_is_infeasible():
    result = solve(
        rows_columns_diagonals(7, 8, families=["none", "table"]),
        target=toy.toy_device(8, 8),
        conflict_free=True,
    )
    assert (result.family, result.excess, result.status) == ("table", 0, Status.OPTIMAL)
    everything = rows_columns_diagonals(7, 8)
    assert solve(everything, target=toy.toy_device(8, 8), conflict_free=True).excess == 0


@pytest.mark.parametrize("families", [None, ["none", "table"]])
def test_a_table_keeps_to_the_bytes_there_are(families):
    """Three words that never meet share the bank that three others leave them: 36 bytes."""
    data = data_of("6 f32, 4 threads", "a: load 4 [i if tid == 0 else tid + 2]; i<3")
    gpu = toy.toy_device(4, 4)
    assert (solve(from_data(data), target=gpu).excess, solve(from_data(data), target=gpu).bytes) == (0, 36)
    data["layout"] = {"max_bytes": 24} | ({"families": families} if families else {})
    bound = solve(from_data(data), target=gpu)
    assert (bound.bytes, bound.excess) == (24, 1)


def test_no_table_evades_a_pitch_or_an_order():
    """Rows of 128 bytes that a pitch multiple of 256 bytes spreads."""
    data = data_of("8x32 f32, 32 threads; pitch_multiple_bytes 256", "a: load 4 [i, tid]; i<8")
    result = solve(from_data(data))
    assert (result.family, result.bytes, result.layout.digits[0].stride) == ("pad", 1920, 64)
    assert (result.proof.bytes.lower_bound, result.proof.bytes.scope[:8]) == (1920, "families")
    data["layout"]["families"] = ["none", "pad", "table"]
    assert "no table was searched: a table has no pitch" in solve(from_data(data)).reason
    for families in (["interval"], ["rotate"], ["matrix"], ["table"], ["none", "split"]):
        data["layout"]["families"] = families
        assert solve(from_data(data)).status is Status.INFEASIBLE
    data["layout"] = {"families": ["none", "table"], "order": [0, 1]}
    data["accesses"][0]["index"] = ["tid % 8", "i"]
    assert solve(from_data(data)).layout.lookup == ()


@pytest.mark.parametrize(("families", "briefly"), [(None, False), (["none", "pad"], True)])
def test_what_cannot_change_the_answer_is_asked_briefly(families, briefly, monkeypatch):
    """Without tables among the families, what a table would give is worth a second at most."""
    efforts = []

    def free_assignment(*arguments, effort, **options):
        efforts.append(effort)

    monkeypatch.setattr(reasons, "free_assignment", free_assignment)
    layout = {"families": families} if families else {}
    result = solve(rows_columns_diagonals(10, 8, **layout), target=toy.toy_device(8, 8))
    assert result.excess
    (effort,) = efforts
    assert effort == (0.5 if briefly else EFFORT)


def test_a_better_table_is_named_in_the_unit_of_what_was_found():
    """A ring of five words, each pair met with two more, over four banks: one pair must share, a light one."""
    accesses = [
        {"name": f"a{k}", "op": "load", "bytes": 4, "weight": 2 if k else 3,
         "index": [f"{k} if tid == 0 else ({(k + 1) % 5} if tid == 1 else tid + 3)"]}
        for k in range(5)
    ]  # fmt: skip
    problem = problem_of("7 f32, 4 threads; families none", *accesses)
    result = solve(problem, target=toy.toy_device(4, 4))
    assert (result.excess, result.weighted_excess) == (4, 9)
    assert result.reason == "a table of offsets would have 2 weighted excess in 36 bytes"


def test_a_table_fits_where_no_formula_does():
    """Nine f32 a row, read in pairs: every formula needs a pad; a table keeps the pairs together in any order."""
    data = data_of("""4x9 f32, 32 threads; max_bytes 144
        pairs: load 8 [tid // 4 % 4, 2*(tid % 4)]
        words: load 4 [tid % 4, tid // 4 % 9]""")
    result = solve(from_data(data))
    assert (result.status is not Status.INFEASIBLE, result.bytes, result.family) == (True, 144, "table")
    data["layout"]["families"] = ["none", "order", "pad"]
    assert solve(from_data(data)).status is Status.INFEASIBLE
    data["layout"] = {"max_bytes": 143}
    assert solve(from_data(data)).status is Status.INFEASIBLE


def test_a_last_word_that_is_not_full_lies_last():
    """Bytes in rows of seven, of which a store takes four: 35 bytes are nine words, one of them of three."""
    data = data_of("""5x7 u8, 8 threads; name rows; max_bytes 35
        rows: store 4 [i, 0]; i<5; where tid < 1
        pairs: load 2 [2 + tid, 4]; where tid < 3""")
    result = solve(from_data(data))
    assert (result.status, result.bytes, result.excess) == (Status.OPTIMAL, 35, 0)
    data["layout"] = {"max_bytes": 34}
    assert solve(from_data(data)).status is Status.INFEASIBLE


def test_fewest_bytes_first_means_those_of_a_table_too():
    """Pairs begin rows of three: a table without conflicts takes 40 bytes, the smallest table 36."""
    data = data_of("""3x3 f32, 8 threads; name rows; minimise bytes
        pairs: load 8 [tid % 3, 0]; where tid < 3
        words: load 4 [[3, 0, 8, 0, 2, 3, 0, 0][tid] // 3, [3, 0, 8, 0, 2, 3, 0, 0][tid] % 3]""")
    for families in ({}, {"families": ["none", "pad", "table"]}):
        data["layout"] = {"minimise": "bytes", **families}
        result = solve(from_data(data), target=toy.toy_device(8, 4))
        assert (result.bytes, result.excess) == (36, 1)
    data["layout"] = {"minimise": "bytes"}
    result = solve(from_data(data), target=toy.toy_device(8, 4), conflict_free=True)
    assert (result.bytes, result.excess) == (40, 0)


def test_a_table_saves_bytes_where_elements_have_a_low_alignment():
    """Whether 28 bytes are the fewest is not known, for elements may start anywhere; no formula takes so few."""
    problem = problem_of("""2x3 4B@1, 8 threads
        words: load 4 [i, tid % 3]; i<2; where tid < 3
        pairs: store 8 [tid % 2, 0]; where tid < 2""")
    result = solve(problem, target=toy.toy_device(8, 4))
    assert (result.bytes, result.excess, result.family) == (28, 0, "table")
    assert (result.status, result.proof.bytes.lower_bound) == (Status.FEASIBLE, 24)


def test_infeasible_means_that_tables_were_refuted_too():
    """A tile too large for tables: formulas give nothing, but that is not said of every layout."""
    data = data_of(f"""576x9 f32, 32 threads; max_bytes {576 * 36}
        pairs: load 8 [tid + 32*r, 2*i]; i<4, r<18""")
    result = solve(from_data(data))
    assert result.status is Status.UNKNOWN
    assert "a table has at most 4,096 elements, the tile has 5,184" in result.reason
    data["layout"]["order"] = [0, 1]  # tables have none
    assert solve(from_data(data)).status is Status.INFEASIBLE


def test_nothing_counts_and_no_time_is_left():
    """An access of weight 0 binds what stays whole, and costs nothing wherever it lies."""
    problem = problem_of("16x31 i8, 32 threads", "a: cp.async 4 [tid // 4 % 16, 4*(tid % 7)]; weight 0")
    gpu = device("sm_90")
    lanes = trace(problem, gpu)
    sets = phase_sets(lanes, problem.tile, gpu)
    found = free_assignment(sets, lanes, problem.tile, budget=Budget(0.0))
    assert found is None or found.excess in (0, None)


def test_narrow_elements_leave_no_bound_below_zero(tmp_path):
    """Sixteen bytes that may share words or not: the bound of every layout was -10, and nothing was optimal."""
    about = {"confidence": "inferred", "source": "made up"}
    rule = {"ops": ["load", "store"], "bytes": [1, 4], "phase": 16, **about}
    gpu = {"name": "toy0", "title": "toy", "aliases": [], "lanes": 16, "banks": 4, "bank_bytes": 4}
    path = saved(
        tmp_path,
        "devices.json",
        {"schema": "layoutopt.devices/1", "devices": [{**gpu, "instructions": [rule]}]},
    )
    problem = problem_of("""4x6 i8, 64 threads; target toy0
        a0: store 4 [tid % 4, 0]
        a1: store 1 [(2*tid + 16*kk) % 4, (tid + 16*kk) // 4 % 6]; kk<4
        a2: load 4 [(lane + i) % 4, 0]; i<4; weight 2.5""")
    (toy0,) = load_devices(path)
    result = solve(problem, target=toy0, time_limit=20)
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, 0, 24)
    assert result.proof.objective.lower_bound == 0


def test_the_lowest_places_come_first():
    generator = np.random.default_rng(0)
    for _ in range(100):
        height = generator.integers(0, generator.integers(1, 9), generator.integers(1, 9))
        filled, wanted = height.copy(), []
        for _ in range(generator.integers(0, 30)):
            column = int(filled.argmin())
            wanted.append((int(filled[column]), column))
            filled[column] += 1
        rows, columns = _lowest(height, len(wanted))
        assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == wanted


@pytest.mark.parametrize(
    ("size", "count", "element", "width", "strides"),
    [
        (10, 12, "f32", 4, (10, 129, 1)),
        (10, 12, "f64", 8, (10, 121, 1)),
        (11, 11, "f32", 4, (11, 129, 1)),
        (11, 16, "f64", 8, (11, 177, 1)),
    ],
)
def test_a_pad_is_folded_into_the_bytes_of_the_tile(size, count, element, width, strides):
    problem = from_data(batched_rows_and_columns(size, count, element, width))
    gpu = device("sm_90")
    padded = sum(s * x for s, x in zip(strides, np.indices(problem.tile.shape), strict=True)) * width
    lanes, found = free(problem, gpu, hint=padded)
    assert padded.max() + width > problem.tile.bytes
    assert found.complete
    assert (found.excess, found.bytes) == (0, problem.tile.bytes)
    assert sorted(found.table.ravel()) == list(range(0, problem.tile.bytes, width))
    assert weighted_excess(found.table, lanes, gpu) == 0


def test_what_weighs_nothing_has_no_conflicts_either():
    data = batched_rows_and_columns(7, 7, "f32", 4)
    for access in data["accesses"]:
        access["weight"] = "j"
    problem = from_data(data)
    result = solve(problem, time_limit=20)
    assert (result.excess, result.bytes) == (0, 1372)
    assert ("table      343 entries, 686 bytes" in report(problem, result)) == ("lookup" in result.offset)


def test_excess_stays_what_it_is_where_bytes_are_saved():
    problem = from_data(batched_rows_and_columns(6, 5, "f32", 4))
    gpu = device("sm_90")
    lanes = trace(problem, gpu)
    padded = sum(s * x for s, x in zip((43, 7, 1), np.indices(problem.tile.shape), strict=True)) * 4
    sets = phase_sets(lanes, problem.tile, gpu)
    found = free_assignment(sets, lanes, problem.tile, budget=Budget(), hint=padded)
    assert found.excess <= weighted_excess(padded, lanes, gpu)
    assert found.bytes == problem.tile.bytes


def test_a_table_is_found_where_the_search_ended_before_it_asked_for_one():
    problem, gpu = from_data(batched_rows_and_columns(10, 12, "f32", 4)), device("sm_90")
    case = next(iter(cases(problem, gpu, Budget())))
    digits = (Digit(1, 1, 10, 129), Digit(0, 1, 12, 10), Digit(2, 1, 10, 1))
    padded = Layout(problem.tile.shape, 4, digits)
    open_bytes = Proposal(
        layout=padded,
        family="pad",
        weighted_excess=0,
        bytes=int(padded.table().max()) + 4,
        excess_bound=Bound(0, EVERY_LAYOUT),
        bytes_bound=Bound(problem.tile.bytes, EVERY_LAYOUT),
        plain_floor=0,
        reason="out of time",
    )
    better = with_tables(case, open_bytes, Ask())
    result = verified(case, better).result
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, 0, 4800)


def spelling(table, element_bytes):
    layout = Layout(table.shape, element_bytes, (), lookup=tuple((table.ravel() // element_bytes).tolist()))
    return offset_expression(layout)


def test_the_end_of_a_pad_goes_into_its_holes_by_a_small_table():
    problem, gpu = from_data(batched_rows_and_columns(10, 12, "f64", 8)), device("sm_90")
    x, y, z = np.indices(problem.tile.shape)
    lanes, found = free(problem, gpu, hint=(10 * x + 121 * y + z) * 8)
    assert (found.excess, found.bytes, found.complete) == (0, problem.tile.bytes, True)
    assert weighted_excess(found.table, lanes, gpu) == 0
    (small,) = lookups(spelling(found.table, 8))
    assert len(small.values) == 9
