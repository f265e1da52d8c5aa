"""Explanations: true sentences, drawings that agree with the engine, clashes that are minimal; hints beside answers."""

import json
import re
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from command import layoutopt
from conftest import ROOT
from msgspec.structs import replace
from oracle import toy
from written import (
    access_from,
    constrained,
    data_of,
    lines_of,
    planes,
    problem_of,
    refused_with,
    rows_of,
    saved,
)

from layoutopt import compare, explain, load, problem, solve
from layoutopt.cli.explain import command
from layoutopt.engine.case import case_of
from layoutopt.engine.estimate import why_no_estimate
from layoutopt.errors import ProblemFileError
from layoutopt.files.catalogue import find
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget, current, spending
from layoutopt.hardware.devices import Device, PhaseRule, device
from layoutopt.layout.families import without_each_part
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.report.explanation_text import explanation_report
from layoutopt.search import block
from layoutopt.search.mask_tree import Searched
from layoutopt.search.reach_floor import ReachFloor, Verdict
from layoutopt.study.relaxations import Relaxations
from layoutopt.study.solve import other_instructions, with_faster, with_hints

PROBLEMS = ROOT / "problems"


def explained(name, seconds=20, **changes):
    return explain(constrained(load(PROBLEMS / f"{name}.json"), **changes), time_limit=seconds)


def kinds(found):
    """What could be given up, and of which access."""
    return {(r.kind, r.access) for r in found.relaxations}


# A problem, what its layout may be, and how a reason or a relaxation begins or what it says.
SAID = {
    "tiles of one dimension": ("basics/scan_512_f32", {}, ["Lanes 0, 2, ... 30 read elements 0, 32, ... 480"]),
    "each part is worth what comes back without it": (
        "basics/transpose_32x32_f32", {"families": ("none", "pad")}, ["Without the pad", "`columns` +992 wavefronts"],
    ),
    "whole vectors": (
        "bitsandbytes/gemm4bit_b_128x64_bf16", {},
        ["Counting: `ldmatrix_B` moves whole vectors of 16 bytes", "`dequant_store` with"],
    ),
    "families in the way": (
        "basics/transpose_32x32_f32", {"families": ("none",)}, ["x0*32 + (x1 ^ x0), 4,096 bytes, no conflicts"],
    ),
    "the layout in use is published": (
        "cutlass/cute_tutorial_sgemm_tn_8x128", {},
        ["In use, x0*129 + x1: `cp_async_4B`"],
    ),
    "the layout in use is the file's own": (
        "basics/transpose_32x32_f32", {"offset": "x0*32 + x1"}, ["In use, x0*32 + x1: `columns`"],
    ),
    "the layout in use is good": (
        "basics/transpose_32x32_f32", {}, ["Row-major: `columns`", "The layout in use, x0*33 + x1, has no conflicts."],
    ),
    "the layout in use is none": ("basics/gemm_a_128x32_f16", {"offset": "x0*33 + x1"}, ["cannot hold this tile"]),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_what_is_said(case):
    name, changes, phrases = SAID[case]
    found = explained(name, **changes)
    said = [*found.reasons, *(relaxation.message for relaxation in found.relaxations)]
    assert [phrase for phrase in phrases if not any(phrase in text for text in said)] == []


# What a phase takes, as sentences and pictures say it, on GPUs that serve lanes in other ways: atomics wait for equal
# addresses, Kepler serves two words of a row, Fermi adds a pass, Tesla serves one word of each lane at a time.
PHASES = [
    ("sm_90", "atomic 4", "[0, lane // 8]", "touch one word, and are served one after the other, so they take 8 wavefronts"),
    ("sm_90", "atomic 4", "[lane % 2, 0]", "holds 2 of their words, for which 32 lanes wait"),
    ("sm_30", "load 4", "[lane, 0]", "bank 0 holds 32 of their words, so they take 16 wavefronts"),
    ("sm_20", "load 16", "[lane, 0]", "so they take 9 wavefronts, 1 of which serves nothing"),
    ("sm_10", "load 16", "[lane, 0]", "so they take 16 wavefronts, for each of the 4 words of a lane"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "op", "index", "said"), PHASES)
def test_what_a_phase_takes_is_what_the_engine_counts(target, op, index, said):
    asked = replace(problem_of("32x32 f32, 32 threads; families none", f"a: {op} {index}"), target=target)
    found = explain(asked)
    (first,) = [reason for reason in found.reasons if reason.startswith("Row-major")]
    assert said in first
    drawn = first.split("\n")[2:]  # rows of the picture, each a wavefront
    more = int(drawn.pop().split()[1]) if drawn[-1].startswith("    and") else 0
    taken = int(re.search(r"take (\d+) wavefronts(, 1 of which)?", said + first)[1])
    assert len(drawn) + more == taken - ("serves nothing" in first)


def test_row_major_that_tears_vectors_is_no_layout():
    problem = problem_of("8x6 f32, 8 threads; families none pad", "wide: store 16 [tid, 0]")
    first, *others = explain(problem, time_limit=10).reasons
    assert first == (
        "Row-major, with no pad and no swizzle, cannot hold this tile: access 'wide' is misaligned: lane 1 of "
        "warp instruction 0 starts at byte 24, which is no multiple of 16."
    )
    assert any("the tile would not fit" in r for r in others)
    with refused_with("layout.offset"):
        explained("basics/transpose_32x32_f32", offset="x0*32 +")


def test_a_table_has_no_parts():
    row_major = Layout((4, 4), 4, (Digit(0, 1, 4, 4), Digit(1, 1, 4, 1)), (Target(0, 4),))
    assert [what for what, _ in without_each_part(row_major)] == ["the XOR of offset bit 2 into bit 0"]
    assert not list(without_each_part(Layout((4,), 4, (), lookup=(0, 2, 1, 3))))


def test_vectorised_transpose_is_a_floor_for_every_layout():
    told = []
    problem = load(PROBLEMS / "transposes/leimao_vectorised_swizzled_f32.json")
    found = explain(problem, time_limit=20, progress=told.append)
    assert told[-1].endswith("; what could be given up")
    got = found.conflict_free, found.scope, found.lower_bound, found.excess
    assert got == (False, "every layout", 384, 384)
    (counting,) = [r for r in found.reasons if r.startswith("Counting")]
    assert "32 words at one such place" in counting
    assert "8 of the 32 banks only: 4 wavefronts" in counting
    store, load_ = "store_rows_vec", "load_cols"
    assert (found.clashing_accesses, found.clash_is_minimal) == ((store, load_), True)
    each = {("drop_access", store), ("drop_access", load_), ("narrower", store), ("free_lanes", load_)}
    assert kinds(found) == {*each, ("instructions", None)}
    (freed,) = [r for r in found.relaxations if r.kind == "free_lanes"]
    assert "32 bytes along x0 together: x0*128 + (x1 ^ x0 % 8 * 4) and [tid % 8" in freed.message


def test_wrapped_diagonals():
    """Of an 8x8 tile on 8 banks; the catalogue has the 32x32 one."""
    found = explain(from_data(lines_of(8)), time_limit=60, target=toy.toy_device(8, 8))
    assert (found.conflict_free, found.scope, found.clique) == (False, "every layout", None)
    assert (found.clashing_accesses, found.clash_is_minimal) == (("rows", "columns", "diagonals"), True)
    assert any("that is 4 modulo 8" in r for r in found.reasons)


def test_three_lines_of_a_plane_and_an_access_that_does_not_clash():
    data = planes()
    data["accesses"].append(access_from("alone: load 4 [0*tid]"))
    found = explain(from_data(data), time_limit=20, target=toy.toy_device(2, 2))
    assert (found.conflict_free, found.scope) == (False, "every layout")
    assert (len(found.clique["words"]), len(found.clique["meetings"])) == (3, 3)
    assert (found.clashing_accesses, found.clash_is_minimal) == (("line 1", "line 2", "line 3"), True)
    assert {access for _, access in kinds(found)} >= set(found.clashing_accesses)


def test_counting_says_what_the_words_would_take_spread_evenly():
    """Sixteen words of one phase on four banks take four wavefronts at best."""
    found = explain(problem_of("64 f64, 16 threads", "a: load 4 [lane]"), target=toy.toy_device(16, 4))
    assert found.lower_bound == 4
    assert any("8 wavefronts where 4 could do. In all 4 excess" in reason for reason in found.reasons)


@pytest.mark.parametrize(("first", "families"), [("instructions", None), ("bytes", ("none",))])
def test_conflicts_that_the_objective_costs_are_no_constraints(first, families):
    """Row-major takes the fewest instructions, and bytes; a file's other limits are not in the way."""
    asked = problem_of(
        "8x8 f32, 32 threads", "r: store 4 [tid//8 + 4*i, tid%8]; i<2", "c: load 4 [2*(tid%4), tid//4]"
    )
    asked = constrained(asked, max_bytes=2000, minimise=first, families=families)
    found = explain(asked)
    helps = "minimise" if families is None else "families"
    assert (found.excess, found.conflict_free) == (1, families is None)
    assert found.relaxations[0].kind == helps
    assert "max_bytes" not in [relaxation.kind for relaxation in found.relaxations]
    assert ("a layout free of conflicts exists" in explanation_report(asked, found)) == (families is None)


def test_weighted_figures_are_called_so(tmp_path):
    asked = data_of(
        "32x32 f32, 32 threads; families none",
        "r: store 16 [lane//8 + 4*i, 4*(lane%8)]; i<8; weight 10",
        "c: load 4 [lane, i]; i<32; weight 10",
    )
    told = layoutopt("solve", saved(tmp_path, "w.json", asked), "--time-limit", "60").stdout
    assert "\n  weighted excess >= 960 in every layout" in told
    assert "weighted wavefronts instead of" in told


def test_lanes_in_another_order():
    """Eight-byte stores whose half-warps each stay in half of the banks; with free lanes they need not."""
    problem = problem_of("""64 f32, 8 threads; families none
        order: store 8 [2*(tid // 4 * 2 + tid % 2 + tid // 2 % 2 * 4)]
        fill: load 4 [tid + 8*i]; i<8""")
    found = explain(problem, time_limit=10, target=toy.toy_device(8, 8))
    assert (found.excess, [r.kind for r in found.relaxations]) == (2, ["families", "free_lanes"])


def test_the_search_has_the_time_that_solve_has(monkeypatch):
    given = []

    def search(cases, ask):
        given.append(current().seconds)
        raise ProblemFileError("stop", "here")

    monkeypatch.setattr("layoutopt.study.rows.solve_cases", search)
    done = CliRunner().invoke(command, ["scan_512_f32", "--time-limit", "40"])
    assert isinstance(done.exception, ProblemFileError)
    assert 39 < given[0] <= 40


def test_a_pair_is_proved_once_the_others_are_gone(monkeypatch):
    verdicts = {"12": False, "13": None, "23": None, "1": True, "2": True, "3": True}
    case = case_of(from_data(planes()), toy.toy_device(2, 2))

    def possible(_, accesses):
        return verdicts["".join(access.name[-1] for access in accesses)]

    monkeypatch.setattr(Relaxations, "can_be_free", possible)
    with spending(Budget(20)):
        clash, minimal = Relaxations(case).smallest_clash(case.lowered.accesses)
    assert ([a.name for a in clash], minimal) == (["line 1", "line 2"], True)


def test_a_table_shows_that_a_smaller_set_can_be_served():
    """No formula serves the first access alone; some placement does, so that the pair is minimal."""
    merged = PhaseRule(tuple((lane, lane + 1) for lane in range(0, 8, 2)), 4, 4, merges_pairs=True)
    accesses = []
    for name, (a, b, c), mask in (
        ("a1", (1946493238, 1629708370, 809662033), 3358111),
        ("a2", (390410278, 288686452, 1948647763), 15297527),
    ):
        flat = f"(({a} if i == 0 else {b} if i == 1 else {c}) >> 4*tid & 15)"
        where = f"{mask} >> (tid + 8*i) & 1"
        accesses.append(access_from(f"{name}: load 8 [{flat} // 2, {flat} % 2]; i<3; where {where}"))
    problem = problem_of("4x2 8B, 8 threads", *accesses)
    found = explain(problem, time_limit=20, target=Device("toy", "toy", 8, 4, 4, {("load", 8): merged}))
    got = found.conflict_free, found.clashing_accesses, found.clash_is_minimal
    assert got == (False, ("a1", "a2"), True)
    said = "`a1` and `a2` cannot both be free of conflicts; each can without the other."
    assert said in explanation_report(problem, found)


def test_other_clashes_are_named():
    """Three widths of which every two clash: that one pair does is not all."""
    problem = problem_of("""48x40 f32, 128 threads
        v4: store 16 [(tid+128*i)//10, (tid+128*i)%10*4]; i<4; where tid+128*i<480
        v2: load 8 [lane+16*(warp%2), 2*(warp//2)+4*i]; i<10
        col: load 4 [lane, warp+4*i]; i<10""")
    found = explain(problem, time_limit=20)
    assert (found.clashing_accesses, found.clash_is_minimal) == (("v2", "col"), True)
    assert found.other_clashes == (("v4", "col"), ("v4", "v2"))
    assert ("narrower", "v4", "v2") in [(r.kind, r.access, r.with_access) for r in found.relaxations]
    assert "without one of them, there still clash" in explanation_report(problem, found)


def test_command_line(tmp_path):
    """Rows stored as vectors and columns loaded by words, of a 16x16 tile."""
    vectors = data_of("""16x16 f32, 64 threads
        rows: store 16 [tid // 4, 4*(tid % 4)]
        columns: load 4 [tid % 16, tid // 16 + 4*i]; i<4""")
    text = layoutopt("explain", saved(tmp_path, "vectors.json", vectors)).stdout
    assert max(map(len, text.splitlines())) < 125
    clash = "Clash: `rows` and `columns` cannot both be free of conflicts; each can without the other."
    assert clash in " ".join(text.split())
    good = layoutopt("explain", "scan_512_f32")
    assert (good.returncode, "\nfree of conflicts: " in good.stdout) == (0, True)
    for seconds in ("0", "x"):
        assert layoutopt("explain", "scan_512_f32", "--time-limit", seconds).returncode == 2
    small = data_of("32x32 f32, 32 threads; max_bytes 4000", "c: load 4 [lane, i]; i<32")
    done = layoutopt("explain", saved(tmp_path, "p.json", small))
    assert (done.returncode, "no layout keeps to the constraints" in done.stdout) == (1, True)
    assert "max_bytes is 4000" in done.stdout


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
    problem = problem_of("""32x32 f32, 64 threads
        d: store 4 [tid//2, 16*(tid%2) + 2*i]; i<8; values free; weight 4
        c: load 16 [tid%32, 4*(tid//32) + 8*i]; i<4""")
    found = explain(problem, time_limit=20)
    assert (found.conflict_free, found.lower_bound) == (False, 64)
    assert found.scope == "every layout, with the lanes chosen"
    assert "The lanes are chosen" in found.reasons[0]


def test_two_widths_where_one_does_not_help():
    """Rows are moved by two accesses of 16 bytes; columns need both to be narrower."""
    problem = problem_of("""32x32 f32, 32 threads
        in: store 16 [tid // 8 + 4*i, 4*(tid % 8)]; i<8
        out: load 16 [tid // 8 + 4*i, 4*(tid % 8)]; i<8
        columns: load 4 [tid, i]; i<32""")
    (pair,) = [r for r in explain(problem, time_limit=20).relaxations if r.with_access is not None]
    said = '"bytes": [16, 4] for `in` and "bytes": [16, 4] for `out`: 96 fewer wavefronts, x1*32 + (x0 ^ x1 // 4 * 4)'
    assert (pair.kind, pair.access, pair.with_access, pair.message) == ("narrower", "in", "out", said)


@pytest.mark.parametrize("minimise", ["instructions", "time"])
def test_the_layout_that_solve_answers_is_explained(minimise):
    """A swizzle has as little excess as the pad in fewer bytes; its index takes more instructions."""
    asked = problem_of(f"""32x32 f32, 32 threads; families none pad xor; minimise {minimise}; target sm_90
        r: store 8 [i, 2*(tid % 16)]; i<32
        c: load 4 [tid, i]; i<32""")
    found = solve(asked, time_limit=None)
    assert (explain(asked).offset, "^" in found.offset) == (found.offset, False)


def test_how_the_model_came_to_the_layout(monkeypatch):
    """Where the tree refutes nothing, the model is asked; `explain` names what it proposed, and who decided."""
    monkeypatch.setattr(ReachFloor, "_by_tree", lambda self, *_: Verdict())
    problem = load("flash_attention_tile_k_d40")
    explained = explain(problem)
    grown = explained.model
    assert explained.decided_by == solve(problem).decided_by
    assert (len(grown.proposed), len(grown.written)) == (grown.rejected, grown.written_out)
    assert min(grown.rounds, grown.branches) > 0
    assert explained.to_json()["model"]["rounds"] == grown.rounds
    told = replace(explained, model=replace(grown, proposed=("x0*34 + x1", "x0*35 + x1"), rejected=2))
    text = explanation_report(problem, told)
    assert f"The model: rounds {grown.rounds}, " in text
    assert "proposed and rejected: x0*34 + x1; x0*35 + x1" in text
    assert f"decided by: {explained.decided_by}" in text


def test_least_excess_is_told_with_the_model():
    """Rows, columns and wrapped diagonals of 4x4 words on 4 banks: no layout serves them all."""
    problem = from_data(lines_of(4, families=["none", "order", "pad", "xor"]))
    auto, model = (solve(problem, target=toy.toy_device(4, 4), method=m) for m in ("auto", "model"))
    assert auto.excess == model.excess > 0
    assert all(result.model.trees > 0 == result.model.batches for result in (auto, model))


def test_a_linearisation_is_one_tree_however_often_it_is_searched(monkeypatch):
    """The first few are searched once before the three rounds of all: where none is decided, four times."""
    looked = Mock(return_value=Searched(None, complete=False))
    monkeypatch.setattr("layoutopt.search.formulas.least_of_masks", looked)
    problem = from_data(lines_of(4, families=["none", "order", "pad", "xor"]))
    trees = solve(problem, target=toy.toy_device(4, 4)).model.trees
    assert 4 * trees == looked.call_count > 0


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
    problem = problem_of("32 b128, 32 threads", "busy: load 4 [tid]", "idle: load 4 [tid]; weight 0")
    explanation = explain(problem)
    assert explanation.clashing_accesses
    assert not [r for r in explanation.relaxations if r.kind == "drop_access"]


@pytest.mark.parametrize(
    ("tiles", "accesses"),
    [("4 6B, 4 threads", "a: load 4 [tid]"),
     ("4 threads", "tile A: 4 6B\ntile B: 4 f32\na: load 4 [tid]; tile A\nb: load 4 [tid]; tile B")],
)  # fmt: skip
def test_what_only_the_constraints_rule_out_is_not_said_of_every_layout(tiles, accesses):
    explanation = explain(problem_of(f"{tiles}; families none order\n{accesses}"))
    assert (explanation.conflict_free, explanation.lower_bound) == (False, 0)
    assert explanation.scope == "the layouts that the constraints allow"
    assert not any("has conflicts" in reason for reason in explanation.reasons)


def test_what_the_constraints_do_not_allow_is_no_relaxation():
    """Without `rows` an XOR or a pad serves the columns, and row-major, all that may be, does not."""
    problem = problem_of("""16x16 f32, 16 threads; families none
        rows: store 16 [tid, 4*i]; i<4
        columns: load 4 [tid, i]; i<16""")
    explanation = explain(problem)
    assert explanation.clashing_accesses == ("rows", "columns")
    assert not [r for r in explanation.relaxations if r.kind in ("drop_access", "narrower")]


def test_questions_stay_open_once_the_time_is_over():
    case = case_of(problem_of("64x32 f64, 64 threads", "columns: load 8 [tid, 0]"), device("sm_90"))
    accesses = case.lowered.accesses
    assert Relaxations(case).can_be_free(accesses) is True
    with spending(Budget(0)):
        late = Relaxations(case)
        assert late.can_be_free(accesses) is None
        assert late.smallest_clash(accesses) == (list(accesses), False)


def test_what_a_layout_costs_is_explained_over_the_values_at_run_time():
    """Where row-major alone is allowed, each digit's column is in few banks; nothing is said of other lanes."""
    problem = load(find("any_digit_radix_rank_128x16_u8"))
    found = explain(problem)
    assert (found.conflict_free, found.excess) == (True, 0)
    assert "no more wavefronts than the values need: " in explanation_report(problem, found)
    found = explain(constrained(replace(problem, published=None), families=("none",)))
    assert found.excess > 0
    assert any("at worst over all values, one takes" in reason for reason in found.reasons)
    assert {r.kind for r in found.relaxations} == {"families"}


def hint_of(asked):
    found = solve(asked)
    with spending(Budget(60)):
        (hint,) = with_hints(asked, found, device(asked.target)).hints
    return found, hint


def test_narrower_accesses_that_have_fewer_wavefronts_are_said_with_what_to_type():
    """The file stores 16 bytes a lane, so that columns of words conflict in every layout."""
    path = find("leimao_vectorised_swizzled_f32")
    found, hint = hint_of(load(path))
    assert found.excess == 384
    assert hint.startswith('"bytes": [16, 4] for `store_rows_vec`: 384 fewer wavefronts, x')
    data = json.loads(path.read_text())
    data["accesses"][0] |= {"bytes": [16, 4]}
    wide, narrow = (sum(a.wavefronts for a in result.accesses) for result in (found, solve(problem(data))))
    assert wide - narrow == 384
    assert hint in layoutopt("solve", path, "--time-limit", "60").stdout
    assert json.loads(layoutopt("solve", path, "--time-limit", "60", "--json").stdout)["hints"] == [hint]


def test_widths_that_the_file_leaves_open_are_not_told_again():
    asked = load("leimao_vectorised_swizzled_f32")
    (fixed, *others) = asked.accesses
    others[-1] = replace(others[-1], bytes=(others[-1].bytes, 4) if others[-1].bytes != 4 else (4,))
    told = explain(replace(asked, accesses=(fixed, *others)), time_limit=60)
    assert "narrower" in [relaxation.kind for relaxation in told.relaxations]


@pytest.mark.parametrize(("trips", "said"), [(4, ()), (3, ("[24, 0]",))])
def test_what_is_read_and_never_written_is_said(trips, said):
    asked = problem_of(f"""32x32 f32, 256 threads
        rows: store 4 [tid // 32 + 8*i, tid % 32]; i<{trips}
        columns: load 4 [tid % 32, tid // 32 + 8*j]; j<4""")
    hints = solve(asked).hints
    what = "`columns` reads elements that no access writes"
    assert list(hints) == [f"{what}, such as {s}: is a loop too short?" for s in said]


def test_an_answer_that_takes_all_of_the_time_has_its_estimate():
    asked = load("transpose_32x32_f32")
    answer = block.solve(asked, device(asked.target))
    with spending(Budget(0)):
        assert with_faster(asked, answer, device(asked.target), None).estimate is not None


def test_other_instructions_are_said_where_no_width_helps():
    """A store of words, which may be wider or have its values in another order; narrower it cannot be."""
    asked = load("gemm4bit_b_128x64_bf16")
    found, hint = hint_of(asked)
    assert found.excess == 384
    saved = 'with `"instructions": "free"` 640 wavefronts instead of 1,024: '
    saved += "`dequant_store` 16 x store 4 bytes -> 4 x store 16 bytes"
    assert hint == saved
    free = [replace(a, values="free") if a.name == "dequant_store" else a for a in asked.accesses]
    assert solve(replace(asked, accesses=tuple(free))).excess == 0


def test_what_scalar_loads_of_a_loop_would_take_as_vectors():
    """The fill and the eight loads of a column of an SGEMM, as `import kernel` has them; rows are as they are."""
    fill = "fill: store 4 [tid // 8 + i*32, tid % 8]; i<4"
    read = "read: load 4 [tid // 16 * 8 + i % 8, i // 8]; i<64"
    text = other_instructions(problem_of("128x8 f32, 256 threads", fill, read))
    assert text is not None
    assert text.startswith('with `"instructions": "free"` 288 wavefronts instead of 544: ')
    assert "`read` 64 x load 4 bytes -> 16 x load 16 bytes" in text
    for tile, access in (
        ("8x128 f32", "read: load 4 [i // 8, tid % 16 + i % 8 * 16]; i<64"),
        ("32x32 f32", "a: load 16 [tid // 8, tid % 8 * 4]"),
    ):
        assert other_instructions(problem_of(f"{tile}, 256 threads", access)) is None


@pytest.mark.parametrize("access", ["16|8 [tid % 32, 4*(tid // 32)]", "16 [tid // 8, 4*(tid % 8)]"])
def test_nothing_is_said_where_widths_are_open_or_nothing_conflicts(access, tmp_path):
    path = saved(tmp_path, "p.json", data_of("32x32 f32, 256 threads", f"a: store {access}"))
    assert json.loads(layoutopt("solve", path, "--time-limit", "60", "--json").stdout)["hints"] == []


def test_the_estimate_of_loops_that_diverge_is_not_made_and_recommends_nothing():
    """Estimated 5,420 and 5,372 cycles, where an H200 takes 18,652 and 3,618."""
    path = find("rodinia_lud_diagonal_16_f32")
    asked, said = load(path), "480 iterations of loads run under predicates that their loops change"
    assert why_no_estimate(case_of(asked, device("sm_90"))) == said
    answer = layoutopt("solve", path, "--time-limit", "60").stdout
    assert f"no time is estimated, as {said}" in answer
    assert "cycles a pass" not in answer
    found = compare(asked, time_limit=10)
    assert all(row.cycles is None and row.time is None for row in found.rows)
    assert found.no_estimate == said
    assert f"no time is estimated, as {said}, so wavefronts decide" in found.recommendation.text
    taken = rows_of(found)[found.recommendation.family]
    assert taken.wavefronts == min(row.wavefronts for row in found.rows if row.wavefronts is not None)
    first = layoutopt("solve", path, "--minimise", "time", "--json")
    assert (first.returncode, json.loads(first.stdout)["estimate"]) == (0, None)
    same = problem_of("128x32 f32, 32 threads", "a: load 4 [i, tid]; i<128; where tid < 8")
    assert why_no_estimate(case_of(same, device("sm_90"))) is None  # lanes that stay the same


def test_nothing_more_is_said_of_an_access_that_leaves_something_to_the_solver():
    """A file whose lanes are free gives one width, and its own instructions; values are free in the lanes given."""
    asked = from_data(data_of("12x64 f32, 32 threads",
        {"name": "a", "op": "load", "bytes": 8, "lanes": "free", "global": {"contiguous": 32, "order": "column"}},
        "b: store 4 [(tid + 32*n) % 12, (tid + 32*n) // 12 % 64]; n<24; weight 2"))  # fmt: skip
    found = explain(asked).relaxations
    assert {r.kind for r in found if r.access == "a" or "`a`" in r.message} == {"drop_access"}
    assert "free_lanes" in {r.kind for r in found if r.access == "b"}
