"""What `solve` prints beside its answer: what would do better, and what it cannot estimate."""

import json

import pytest
from command import layoutopt
from conftest import ROOT
from msgspec.structs import replace
from written import one_tile, reads, saved

from layoutopt import compare, load, problem, solve
from layoutopt.engine.case import case_of
from layoutopt.engine.estimate import why_no_estimate
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import device
from layoutopt.study.hints import with_hints

LUD = ROOT / "problems/linear_algebra/rodinia_lud_diagonal_16_f32.json"
VECTORS = ROOT / "problems/transposes/leimao_vectorised_swizzled_f32.json"


def hint_of(asked):
    found = solve(asked)
    (hint,) = with_hints(asked, found, device(asked.target), budget=Budget(10)).hints
    return found, hint


def test_narrower_accesses_that_have_fewer_wavefronts_are_said_with_what_to_type():
    """The file stores 16 bytes a lane, so that columns of words conflict in every layout."""
    asked = load(VECTORS)
    found, hint = hint_of(asked)
    assert found.excess == 384
    assert hint.startswith('"bytes": [16, 4] for `store_rows_vec`: 384 fewer wavefronts, x')
    data = json.loads(VECTORS.read_text())
    data["accesses"][0] |= {"bytes": [16, 4]}
    typed = solve(problem(data))
    total = [sum(a.wavefronts for a in result.accesses) for result in (typed, found)]
    assert total[1] - total[0] == 384
    printed = layoutopt("solve", str(VECTORS))
    assert hint in printed.stdout
    assert json.loads(layoutopt("solve", str(VECTORS), "--json").stdout)["hints"] == [hint]


def test_other_lanes_are_said_where_no_width_helps():
    """A store of words whose threads may have other values is free of conflicts; narrower it cannot be."""
    asked = load(ROOT / "problems/bitsandbytes/gemm4bit_b_128x64_bf16.json")
    found, hint = hint_of(asked)
    assert found.excess == 384
    assert hint.startswith('`dequant_store` with `"values": "free"`: x')
    accesses = [
        replace(access, values="free") if access.name == "dequant_store" else access
        for access in asked.accesses
    ]
    assert solve(replace(asked, accesses=tuple(accesses))).excess == 0


@pytest.mark.parametrize("change", [{"bytes": [16, 8]}, {"index": ["tid // 8", "4*(tid % 8)"]}])
def test_nothing_is_said_where_widths_are_open_or_nothing_conflicts(change, tmp_path):
    access = {"name": "a", "op": "store", "bytes": 16, "index": ["tid % 32", "4*(tid // 32)"], **change}
    data = one_tile("open", [32, 32], "f32", 256, [access])
    answer = json.loads(layoutopt("solve", saved(tmp_path, "p.json", data), "--json").stdout)
    assert answer["hints"] == []


def test_the_estimate_of_loops_that_diverge_is_not_made_and_recommends_nothing():
    """Estimated 5,420 and 5,372 cycles, where an H200 takes 18,652 and 3,618."""
    asked = load(LUD)
    said = "480 iterations of loads run under predicates that their loops change"
    assert why_no_estimate(case_of(asked, device("sm_90"))) == said
    answer = layoutopt("solve", str(LUD)).stdout
    assert f"no time is estimated, as {said}" in answer
    assert "cycles a pass" not in answer
    found = compare(asked, time_limit=10)
    assert all(row.cycles is None and row.time is None for row in found.rows)
    assert found.no_estimate == said
    assert f"no time is estimated, as {said}, so wavefronts decide" in found.recommendation.text
    taken = next(row for row in found.rows if row.family == found.recommendation.family)
    assert taken.wavefronts == min(row.wavefronts for row in found.rows if row.wavefronts is not None)
    first = layoutopt("solve", str(LUD), "--minimise", "time", "--json")
    assert (first.returncode, json.loads(first.stdout)["estimate"]) == (0, None)


def test_loops_whose_lanes_stay_the_same_are_estimated():
    accesses = [reads("a", 4, ["i", "tid"], i=128, where="tid < 8")]
    asked = problem(one_tile("t", [128, 32], "f32", 32, accesses))
    assert why_no_estimate(case_of(asked, device("sm_90"))) is None
