"""`--method model`, the answers of `auto` by one model of everything; and what is known before it is asked."""

import re

import pytest
from command import layoutopt
from written import constrained, problem_of, refused_with

from layoutopt import Status, load, solve
from layoutopt.search.reach_floor import ReachFloor, Verdict

QUICK = [
    "awq/b_64x32_f16",
    "basics/transpose_16x32_f32",
    "cuda_samples/dmma_gemm_f64",
    "cutlass/sm75_s4_crosswise_128x128",
    "ggml/flash_attention_tile_k_d40",
    "histogram/any_bin_expected_256_u32",
    "scan/blelloch_256_16_banks",
    "sparse/tc_gnn_sddmm_x_16x8_tf32",
]
TILE_K = "ggml/flash_attention_tile_k_d40"


def answer(result):
    return result.status, result.weighted_excess, result.bytes


@pytest.mark.parametrize("name", QUICK)
def test_answers_of_the_catalogue(name):
    usual, found = (solve(load(name), method=method) for method in ("auto", "model"))
    assert answer(found) == answer(usual)
    assert (usual.method, found.method) == ("auto", "model")
    assert found.model.rounds > 0
    assert found.decided_by is not None


@pytest.mark.parametrize("name", [TILE_K, "sparse/tc_gnn_sddmm_x_16x8_tf32"])
def test_workers_do_not_change_the_answer(name):
    one, two = (solve(load(name), method="model", workers=n).to_json() for n in (1, 2))
    assert one == two


def test_the_widest_pitches():
    """Sums stay within what the solver takes."""
    problem = constrained(load("transposes/leimao_padded_f64"), pitch_multiple_bytes=1 << 20)
    assert answer(solve(problem, method="model")) == answer(solve(problem))


def test_what_no_time_leaves():
    result = solve(load("stencils/halo_34x34_f32"), method="model", time_limit=0.02)
    assert result.status in (Status.FEASIBLE, Status.UNKNOWN)
    assert result.decided_by is None


def test_what_the_method_does_not_do_is_refused():
    problem = load("basics/transpose_16x32_f32")
    with refused_with("instructions cannot come first"):
        solve(constrained(problem, minimise="instructions"), method="model")
    with refused_with("expected one of auto, model"):
        solve(problem, method="modal")


def test_the_command_prints_what_the_model_took():
    done = layoutopt("solve", "basics/transpose_16x32_f32", "--method", "model")
    assert re.search(r"one model: rounds \d+, .* variables \d+, constraints \d+\n", done.stdout)


def test_dense_layouts_that_do_need_no_model():
    grown = solve(load("stencils/cuda_samples_optical_flow_8x34_f32")).model
    assert (grown.rounds, grown.written_out) == (0, 0)


def test_what_the_tree_refutes_is_never_written_out(monkeypatch):
    few = solve(load(TILE_K)).model.written_out
    monkeypatch.setattr(ReachFloor, "_by_tree", lambda self, *_: Verdict())
    assert few < solve(load(TILE_K)).model.written_out


def test_out_of_time_nothing_is_infeasible_that_was_not_looked_at(monkeypatch):
    """Nothing that was looked at fits into the fewest bytes; what does was not."""
    monkeypatch.setattr(ReachFloor, "_solved", lambda self: False)
    problem = problem_of("""32x32 f16, 32 threads; pitch_multiple_bytes 6; minimise bytes
        a: store 4 [tid // 16, 2*(tid % 16)]""")
    assert solve(problem).status != "infeasible"
