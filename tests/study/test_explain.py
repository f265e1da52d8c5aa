"""Explanations: true sentences, drawings that agree with the engine, clashes that are minimal."""

import json
import re

import msgspec
import pytest
from click.testing import CliRunner
from command import layoutopt
from conftest import ROOT
from oracle import toy
from written import data_of, one_tile, planes, problem_of, reads, saved, writes

from layoutopt import explain, solve
from layoutopt.cli.explain import command
from layoutopt.engine.case import case_of
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data, load
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device, PhaseRule, device
from layoutopt.layout.families import without_each_part
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.report.explanation_text import explanation_report
from layoutopt.search.deal import lane_order
from layoutopt.study.relaxations import Relaxations

PROBLEMS = ROOT / "problems"


def explained(name, seconds=20, **changes):
    problem = load(PROBLEMS / f"{name}.json")
    if changes:
        problem = msgspec.structs.replace(problem, layout=msgspec.structs.replace(problem.layout, **changes))
    return explain(problem, budget=Budget(seconds))


def test_why_a_swizzle_works():
    found = explained("basics/gemm_a_128x32_f16")
    assert (found.conflict_free, found.excess, found.clashing_accesses) == (True, 0, ())
    assert "Lanes 0, 2, 4 and 6 read rows 0, 2, 4 and 6 of column 0" in found.reasons[0]
    assert "multiples of 128 bytes apart" in found.reasons[0]
    drawing = found.reasons[1].splitlines()[1:]
    assert drawing[1].split() == ["lane", "0", "2", "4", "6", "1", "3", "5", "7"]
    bits = [r for r in found.reasons if r.startswith("Without the XOR")]
    assert len(bits) == 2
    assert all("`fragments` +128 wavefronts" in bit for bit in bits)


def test_tiles_of_one_dimension():
    found = explained("basics/scan_512_f32")
    assert "Lanes 0, 2, ... 30 read elements 0, 32, ... 480" in found.reasons[0]


def test_row_major_that_tears_vectors_is_no_layout():
    problem = problem_of("8x6 f32, 8 threads; families none pad", "wide: store 16 [tid, 0]")
    found = explain(problem, budget=Budget(10))
    assert found.reasons[0] == (
        "Row-major, with no pad and no swizzle, cannot hold this tile: access 'wide' is misaligned: lane 1 of "
        "warp instruction 0 starts at byte 24, which is no multiple of 16."
    )
    assert any("the tile would not fit" in r for r in found.reasons)


def test_a_table_has_no_parts():
    row_major = Layout((4, 4), 4, (Digit(0, 1, 4, 4), Digit(1, 1, 4, 1)), (Target(0, 4),))
    assert [what for what, _ in without_each_part(row_major)] == ["the XOR of offset bit 2 into bit 0"]
    assert not list(without_each_part(Layout((4,), 4, (), lookup=(0, 2, 1, 3))))


def test_each_part_is_worth_what_it_says():
    """The wavefronts that come back without a pad are those of the layout without it."""
    found = explained("basics/transpose_32x32_f32", families=("none", "pad"))
    (part,) = [r for r in found.reasons if r.startswith("Without the pad")]
    assert "`columns` +992 wavefronts" in part
    assert found.offset == "x0*33 + x1"


def test_vectorised_transpose_is_a_floor_for_every_layout():
    told = []
    problem = load(PROBLEMS / "transposes/leimao_vectorised_swizzled_f32.json")
    found = explain(problem, progress=told.append)
    assert any(text.startswith("best so far excess ") for text in told)
    assert told[-1].endswith("; what could be given up")
    assert (found.conflict_free, found.scope, found.lower_bound, found.excess) == (
        False, "every layout", 384, 384,
    )  # fmt: skip
    (counting,) = [r for r in found.reasons if r.startswith("Counting")]
    assert "32 words at one such place" in counting
    assert "8 of the 32 banks only: 4 wavefronts" in counting
    assert found.clashing_accesses == ("store_rows_vec", "load_cols")
    assert found.clash_is_minimal
    kinds = {(r.kind, r.access) for r in found.relaxations}
    assert kinds == {
        ("drop_access", "store_rows_vec"), ("drop_access", "load_cols"), ("narrower", "store_rows_vec"),
        ("free_lanes", "load_cols"),
    }  # fmt: skip
    (freed,) = [r for r in found.relaxations if r.kind == "free_lanes"]
    assert "32 bytes along x0 together: x0*128 + (x1 ^ x0 % 8 * 4) and [tid % 8" in freed.message


def test_dequantised_tile_of_bitsandbytes():
    found = explained("bitsandbytes/gemm4bit_b_128x64_bf16")
    assert (found.conflict_free, found.scope, found.lower_bound) == (False, "every layout", 384)
    assert any(r.startswith("Counting: `ldmatrix_B` moves whole vectors of 16 bytes") for r in found.reasons)
    assert ("free_lanes", "dequant_store") in {(r.kind, r.access) for r in found.relaxations}


def test_wrapped_diagonals():
    """Of an 8x8 tile on 8 banks; the catalogue has the 32x32 one."""
    data = json.loads(
        (PROBLEMS / "basics/diagonals_32x32_f32.json").read_text().replace("32", "8").replace("f8", "f32")
    )
    found = explain(from_data({**data, "threads": 64}), budget=Budget(6), target=toy.toy_device(8, 8))
    assert (found.conflict_free, found.scope, found.clique) == (False, "every layout", None)
    assert found.clashing_accesses == ("rows", "columns", "diagonals")
    assert found.clash_is_minimal
    assert any("that is 4 modulo 8" in r for r in found.reasons)


def test_three_lines_of_a_plane():
    problem, gpu = from_data(planes()), toy.toy_device(2, 2)
    found = explain(problem, budget=Budget(20), target=gpu)
    assert (found.conflict_free, found.scope) == (False, "every layout")
    assert len(found.clique["words"]) == 3
    assert len(found.clique["meetings"]) == 3
    assert found.clashing_accesses == ("line 1", "line 2", "line 3")
    assert {r.access for r in found.relaxations} >= set(found.clashing_accesses)


def test_an_access_that_does_not_clash_is_left_out():
    data = planes()
    data["accesses"].append(reads("alone", 4, ["0*tid"]))
    found = explain(from_data(data), budget=Budget(20), target=toy.toy_device(2, 2))
    assert found.clashing_accesses == ("line 1", "line 2", "line 3")
    assert found.clash_is_minimal


def test_a_narrower_access_does_what_the_explanation_says():
    problem = load(PROBLEMS / "transposes/leimao_vectorised_swizzled_f32.json")
    store = problem.accesses[0]
    narrow = msgspec.structs.replace(
        store, bytes=4, index=(store.index[0], f"({store.index[1]}) + part"), loops={**store.loops, "part": 4}
    )
    split = msgspec.structs.replace(problem, accesses=(narrow, *problem.accesses[1:]))
    assert solve(split).excess == 0


def test_lanes_in_another_order():
    """Eight-byte stores whose half-warps each stay in half of the banks."""
    data = data_of("""64 f32, 8 threads; families none
        order: store 8 [2*(tid // 4 * 2 + tid % 2 + tid // 2 % 2 * 4)]
        fill: load 4 [tid + 8*i]; i<8""")
    gpu = toy.toy_device(8, 8)
    found = explain(from_data(data), budget=Budget(10), target=gpu)
    assert found.excess == 2
    assert [r.kind for r in found.relaxations] == ["families", "lane_order"]
    order = found.relaxations[-1].order
    assert sorted(order) == list(range(8))
    assert f"n = {', '.join(map(str, order))}" in found.relaxations[-1].message
    dealt = {**data["accesses"][0], "index": [_with_lanes(data["accesses"][0]["index"][0], order)]}
    assert solve(from_data({**data, "accesses": [dealt, data["accesses"][1]]}), target=gpu).excess == 0
    # Another access that clashes by itself: no order of these lanes helps.
    stride = reads("stride", 4, ["8*tid"])
    worse = explain(
        from_data({**data, "accesses": [*data["accesses"], stride]}), budget=Budget(10), target=gpu
    )
    assert [r.kind for r in worse.relaxations] == ["families"]
    data["accesses"][0]["index"] = ["2*tid"]
    assert explain(from_data(data), budget=Budget(10), target=gpu).excess == 0
    data["accesses"][0]["index"] = ["2*(tid % 4 * 4 + tid // 4)"]  # four vectors in one bank pair
    stuck = explain(from_data(data), budget=Budget(10), target=gpu)
    assert (stuck.excess, [r.kind for r in stuck.relaxations]) == (6, ["families"])


def _with_lanes(index, order):
    """The index with tid k doing what tid order[k] did."""
    table = sum(lane << 4 * k for k, lane in enumerate(order))
    return index.replace("tid", f"({table} >> 4*tid & 15)")


TWO_HALVES = data_of("""16 f32, 8 threads
    pairs: store 8 [2*((3*tid + tid // 1) % 8)]
    singles: load 4 [(2*tid + tid // 2 + 4*i) % 16]; i<2
    more: store 8 [2*((tid // 2 + tid % 2 * 4) % 8)]""")


def test_lanes_in_another_order_have_no_index_code(monkeypatch):
    """Their expressions say the order that they had, so that layouts are not compared by it."""
    monkeypatch.setattr("layoutopt.index.index_code._codes", {})
    accesses = [
        writes("rows", 8, ["tid // 4", "2*(tid % 4)"], i=1),
        reads("columns", 4, ["tid % 8", "tid // 8 + 4*i"], i=2, weight=2.5),
    ]
    data = one_tile("t", [8, 8], "f32", 32, accesses, layout={"minimise": "instructions"})
    problem = from_data(data)
    assert explain(problem).excess is not None


def test_lane_orders_where_every_layout_has_conflicts():
    """Each of the three is needed for the clash; with some dealt anew, a layout serves all."""
    found = explain(from_data(TWO_HALVES), budget=Budget(20), target=toy.toy_device(8, 4))
    assert found.conflict_free is False
    assert found.scope == "every layout"
    orders = {r.access: r.order for r in found.relaxations if r.kind == "lane_order"}
    assert orders
    for name, order in orders.items():
        accesses = [
            {**a, "index": [_with_lanes(a["index"][0], order)]} if a["name"] == name else a
            for a in TWO_HALVES["accesses"]
        ]
        again = from_data({**TWO_HALVES, "accesses": accesses})
        assert solve(again, target=toy.toy_device(8, 4)).excess == 0


def test_the_search_has_the_time_that_solve_has(monkeypatch):
    given = []

    def search(cases, ask):
        given.append(ask.budget.seconds)
        raise ProblemFileError("stop", "here")

    monkeypatch.setattr("layoutopt.study.known.solve_cases", search)
    path = str(PROBLEMS / "basics/scan_512_f32.json")
    done = CliRunner().invoke(command, [path, "--time-limit", "40"])
    assert isinstance(done.exception, ProblemFileError)
    (seconds,) = given
    assert 39 < seconds <= 40


def test_a_pair_is_proved_once_the_others_are_gone(monkeypatch):
    data = planes()
    verdicts = {"01": False, "02": None, "12": None, "0": True, "1": True, "2": True}
    case = case_of(from_data(data), toy.toy_device(2, 2))
    names = [a.name for a in case.lowered.accesses]
    monkeypatch.setattr(
        Relaxations,
        "possible",
        lambda _, accesses: verdicts["".join(str(names.index(a.name)) for a in accesses)],
    )
    clash, minimal = Relaxations(case, Budget(20)).smallest(case.lowered.accesses)
    assert ([a.name for a in clash], minimal) == (names[:2], True)


def test_a_table_shows_that_a_smaller_set_can_be_served():
    """No formula serves the first access alone; some placement does, so that the pair is minimal."""
    gpu = Device("toy", "toy", 8, 4, 4, {
        ("load", 8): PhaseRule(tuple((lane, lane + 1) for lane in range(0, 8, 2)), 4, 4, merges_pairs=True)
    })  # fmt: skip
    starts = {
        "a1": ((1946493238, 1629708370, 809662033), 3358111),
        "a2": ((390410278, 288686452, 1948647763), 15297527),
    }
    accesses = []
    for name, ((a, b, c), mask) in starts.items():
        flat = f"(({a} if i == 0 else {b} if i == 1 else {c}) >> 4*tid & 15)"
        accesses.append(
            reads(name, 8, [f"{flat} // 2", f"{flat} % 2"], i=3, where=f"{mask} >> (tid + 8*i) & 1")
        )
    data = data_of("4x2 8B, 8 threads", *accesses)
    found = explain(from_data(data), budget=Budget(20), target=gpu)
    got = found.conflict_free, found.clashing_accesses, found.clash_is_minimal
    assert got == (False, ("a1", "a2"), True)
    assert (
        "`a1` and `a2` cannot both be free of conflicts; each can without the other."
        in explanation_report(from_data(data), found)
    )


def test_other_clashes_are_named():
    """Three widths of which every two clash: that one pair does is not all."""
    data = data_of("""48x40 f32, 128 threads
        v4: store 16 [(tid+128*i)//10, (tid+128*i)%10*4]; i<4; where tid+128*i<480
        v2: load 8 [lane+16*(warp%2), 2*(warp//2)+4*i]; i<10
        col: load 4 [lane, warp+4*i]; i<10""")
    found = explain(from_data(data), budget=Budget(20))
    assert (found.clashing_accesses, found.clash_is_minimal) == (("v2", "col"), True)
    assert found.other_clashes == (("v4", "col"), ("v4", "v2"))
    # None alone helps, but two together.
    assert [(r.kind, r.access, r.with_access) for r in found.relaxations] == [("narrower", "v4", "v2")]
    assert "without one of them, there still clash" in explanation_report(from_data(data), found)


def test_families_in_the_way():
    found = explained("basics/transpose_32x32_f32", families=("none",))
    assert found.conflict_free is False
    assert found.scope == "families none"
    (freed,) = [r for r in found.relaxations if r.kind == "families"]
    assert "x0*32 + (x1 ^ x0), 4,096 bytes, no conflicts" in freed.message


def test_command_line(tmp_path):
    """Rows stored as vectors and columns loaded by words, of a 16x16 tile."""
    data = data_of("""16x16 f32, 64 threads
        rows: store 16 [tid // 4, 4*(tid % 4)]
        columns: load 4 [tid % 16, tid // 16 + 4*i]; i<4""")
    path = saved(tmp_path, "vectors.json", data)
    done = layoutopt("explain", "sparse/tc_gnn_sddmm_x_16x8_tf32", "--json")
    assert done.returncode == 1
    data = json.loads(done.stdout)
    assert {"conflict_free", "scope", "clique", "clashing_accesses", "lower_bound"} <= data.keys()
    assert next(iter(data)) == "schema"
    text = layoutopt("explain", path)
    assert max(map(len, text.stdout.splitlines())) < 125
    clash = "Clash: `rows` and `columns` cannot both be free of conflicts; each can without the other."
    assert clash in " ".join(text.stdout.split())
    good = layoutopt("explain", str(PROBLEMS / "basics/scan_512_f32.json"))
    assert good.returncode == 0
    assert re.search(r"^free of conflicts: ", good.stdout, re.M)


@pytest.mark.parametrize("weight", [10, 0.5, 1])
def test_what_is_weighted_is_called_so(weight):
    """Eight-byte elements read by half: two wavefronts where one could do, in every layout."""
    problem = problem_of("64 f64, 32 threads", f"a: load 4 [lane]; weight {weight}")
    found = explain(problem)
    assert (found.lower_bound, found.weighted_excess, found.excess) == (weight, weight, 1)
    what = "weighted excess wavefronts" if weight != 1 else "excess wavefronts"
    text = " ".join(explanation_report(problem, found).split())
    assert f"at least {weight:g} {what} in every layout; the best found has {weight:g}" in text
    assert f"In all {weight:g} {what} that no layout avoids." in text
    assert text.count("without weights") == (weight != 1)


def test_with_lanes_that_are_chosen_a_bound_is_of_these():
    """Rows by vectors want halves of rows apart by what the store's lanes, as chosen, have in one bank."""
    free = writes("d", 4, ["tid//2", "32*(tid%2) + 2*i"], i=16)
    rows = reads("c", 16, ["tid%64", "4*(tid//64) + 8*i"], i=8)
    problem = problem_of("64x64 f32, 128 threads", {**free, "values": "free", "weight": 4}, rows)
    found = explain(problem)
    assert (found.conflict_free, found.lower_bound) == (False, 256)
    assert found.scope == "every layout, with the lanes chosen"
    assert "The lanes are chosen" in found.reasons[0]


@pytest.mark.parametrize("option", [["--time-limit", "0"], ["--time-limit", "x"]])
def test_wrong_options(option):
    assert layoutopt("explain", str(PROBLEMS / "basics/scan_512_f32.json"), *option).returncode == 2


def test_it_starts_from_the_layout_in_use():
    """Published, or the file's own; what would mend it is said as an edit."""
    found = explained("cutlass/cute_tutorial_sgemm_tn_8x128")
    assert found.reasons[0].startswith("In use, x0*129 + x1: `cp_async_4B`")
    assert [(r.kind, r.message) for r in found.relaxations] == [
        ("edit", "change 129 to 132: x0*132 + x1 has no conflicts, 4,208 bytes")
    ]
    own = explained("basics/transpose_32x32_f32", offset="x0*32 + x1")
    assert own.reasons[0].startswith("In use, x0*32 + x1: `columns`")
    good = explained("basics/transpose_32x32_f32")
    assert good.reasons[0].startswith("Row-major: `columns`")
    assert good.reasons[-1] == "The layout in use, x0*33 + x1, has no conflicts."
    torn = explained("basics/gemm_a_128x32_f16", offset="x0*33 + x1")
    assert "cannot hold this tile" in torn.reasons[0]
    with pytest.raises(ProblemFileError, match=r"layout\.offset"):
        explained("basics/transpose_32x32_f32", offset="x0*32 +")


def test_two_widths_where_one_does_not_help():
    """Rows are moved by two accesses of 16 bytes; columns need both to be narrower."""
    problem = problem_of("""32x32 f32, 32 threads
        in: store 16 [tid // 8 + 4*i, 4*(tid % 8)]; i<8
        out: load 16 [tid // 8 + 4*i, 4*(tid % 8)]; i<8
        columns: load 4 [tid, i]; i<32""")
    found = explain(problem, budget=Budget(20))
    pairs = [r for r in found.relaxations if r.with_access is not None]
    assert [(r.kind, r.access, r.with_access) for r in pairs] == [("narrower", "in", "out")]
    assert pairs[0].message == (
        "`in` as 4 accesses of 4 bytes each and `out` as 4 accesses of 4 bytes each: "
        "a layout free of conflicts exists"
    )


def test_how_the_model_came_to_the_layout(tmp_path):
    """Two pads are tried before one serves; `explain` names them, and says who decided."""
    problem = load(ROOT / "problems" / "stencils" / "halo_34x34_f32.json")
    explained = explain(problem)
    grown = explained.model
    assert explained.decided_by == solve(problem).decided_by
    assert grown.rounds > 0
    assert len(grown.proposed) == grown.rejected
    assert len(grown.written) == grown.written_out
    assert grown.branches > 0
    text = explanation_report(problem, explained)
    assert f"The model: rounds {grown.rounds}, " in text
    assert f"proposed and rejected: {'; '.join(grown.proposed)}" in text
    assert f"decided by: {explained.decided_by}" in text
    assert explained.to_json()["model"]["rounds"] == grown.rounds


def test_least_excess_is_told_with_the_model():
    """Rows, columns and wrapped diagonals of 4x4 words on 4 banks: no layout serves them all."""
    load_ = {"op": "load", "bytes": 4, "for": {"i": 4}}
    data = data_of(
        "4x4 f32, 4 threads",
        {"name": "rows", "index": ["i", "tid"], **load_},
        {"name": "columns", "index": ["tid", "i"], **load_},
        {"name": "diagonals", "index": ["tid", "(tid + i) % 4"], **load_},
    )
    data["layout"] = {"families": ["none", "order", "pad", "xor"]}
    device = toy.toy_device(4, 4)
    told = {method: solve(from_data(data), target=device, method=method) for method in ("auto", "model")}
    assert told["auto"].excess == told["model"].excess > 0
    assert all(result.model.trees > 0 == result.model.batches for result in told.values())


def test_what_cannot_be_is_no_open_question(tmp_path):
    data = data_of("32x32 f32, 32 threads; max_bytes 4000", "c: load 4 [lane, i]; i<32")
    path = saved(tmp_path, "p.json", data)
    done = layoutopt("explain", path)
    assert done.returncode == 1
    assert "no layout keeps to the constraints" in done.stdout
    assert "max_bytes is 4000" in done.stdout


def test_what_holds_of_the_families_is_not_said_of_every_layout():
    """Seven in the families, six in every layout, which a table has."""
    problem = problem_of("""33x16 i8, 64 threads; families none pad rotate
        fill: cp.async 16 [tid % 33, 0]
        read: load 4 [tid % 32 % 33, 4*(tid % 32 // 33 % 4)]""")
    found, explained = solve(problem), explain(problem)
    assert (found.excess, found.proof.excess.lower_bound, found.proof.excess.everywhere) == (7, 7, False)
    assert (explained.lower_bound, explained.scope, explained.excess) == (6, "every layout", 7)


def test_what_an_access_weighs_does_not_free_it_of_conflicts():
    """Words of 16-byte elements share 8 banks: `idle` conflicts in every layout, with no weight, too."""
    load = {"op": "load", "bytes": 4, "index": ["tid"]}
    problem = problem_of(
        "32 b128, 32 threads", {"name": "busy", **load}, {"name": "idle", **load, "weight": 0}
    )
    explanation = explain(problem)
    assert explanation.clashing_accesses
    assert not [r for r in explanation.relaxations if r.kind == "drop_access"]


def test_what_only_the_constraints_rule_out_is_not_said_of_every_layout():
    explanation = explain(problem_of("4 6B, 4 threads; families none order", "a: load 4 [tid]"))
    assert (explanation.conflict_free, explanation.lower_bound) == (False, 0)
    assert explanation.scope == "the layouts that the constraints allow"


def test_what_the_constraints_do_not_allow_is_no_relaxation():
    """Without `rows` an XOR or a pad serves the columns, and row-major, all that may be, does not."""
    problem = problem_of("""16x16 f32, 16 threads; families none
        rows: store 16 [tid, 4*i]; i<4
        columns: load 4 [tid, i]; i<16""")
    explanation = explain(problem)
    assert explanation.clashing_accesses == ("rows", "columns")
    assert not [r for r in explanation.relaxations if r.kind in ("drop_access", "narrower")]
    assert any(r.startswith("Without `rows` there is a layout free of") for r in explanation.reasons)


@pytest.mark.parametrize(
    "change", [{"layout": {"alignment_bytes": 16, "families": ["xor"]}}, {"weight": 0}], ids=["base", "idle"]
)
def test_an_edit_that_is_told_may_be_made_and_leaves_no_conflict(change):
    """The mask needs a base at a row of banks; an access of weight 0 conflicts after the edit."""
    load = {"op": "load", "bytes": 4, "index": ["tid", "0"]}
    accesses = [{"name": "columns", **load}]
    if "weight" in change:
        accesses.append({"name": "idle", **load, "index": ["tid", "tid % 16"], "weight": 0})
    problem = problem_of(
        "32x32 f32, 32 threads; published 4096 x0*32 + (x1 ^ x0 % 16)",
        *accesses,
        layout=change.get("layout", {"families": ["xor"]}),
    )
    edits = [r.message for r in explain(problem).relaxations if r.kind == "edit"]
    assert not edits


COLUMNS = reads("columns", 8, ["tid", "0"])


def columns():
    return problem_of("64x32 f64, 64 threads", COLUMNS)


def test_questions_stay_open_once_the_time_is_over():
    case = case_of(columns(), device("sm_90"))
    assert Relaxations(case, Budget()).possible(case.lowered.accesses) is True
    late = Relaxations(case, Budget(0))
    assert late.possible(case.lowered.accesses) is None
    assert late.smallest(case.lowered.accesses) == (list(case.lowered.accesses), False)


def test_no_order_of_lanes_is_sought_once_the_time_is_over(monkeypatch):
    case = case_of(columns(), device("sm_90"))
    access = case.lanes.accesses[0]
    monkeypatch.setattr("layoutopt.search.deal.free_assignment", None)
    rule = case.device.rule(access.operation)
    assert lane_order((), case.lanes, case.lowered.tile, access, rule, budget=Budget(0)) is None


def test_phases_of_hundreds_of_accesses_are_not_gathered_once_the_time_is_over(monkeypatch):
    case = case_of(columns(), device("sm_90"))
    layout = Layout((64, 32), 8, (Digit(0, 1, 64, 32), Digit(1, 1, 32, 1)))
    monkeypatch.setattr("layoutopt.study.relaxations.phase_sets", None)
    monkeypatch.setattr("layoutopt.study.relaxations.lane_order", None)
    late = Relaxations(case, Budget(0))
    assert not list(late.lane_orders(layout, ()))
