"""`--method model`, the answers of `auto` by one model of everything; and what is known before it is asked."""

import re

import msgspec
import pytest
from command import layoutopt
from oracle import toy
from oracle.random_tiles import random_case
from written import access_from, problem_of

from layoutopt import Status, load, solve
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import Device, PhaseRule
from layoutopt.search.reach_floor import ReachFloor, Verdict

FAMILIES = [
    ["none", "xor"],
    ["pad", "xor"],
    ["order", "pad", "xor"],
    ["order", "pad"],
    ["none", "order"],
    ["order", "split", "xor"],
    ["none", "rotate", "interval", "xor"],
    ["pad", "matrix"],
]


def asked(seed):
    """A random problem within few families, and the least excess and words of its layouts."""
    data, plain, lanes, banks, _ = random_case(seed)
    families = FAMILIES[seed % len(FAMILIES)]
    data["layout"]["families"] = families
    return data, plain, toy.toy_device(lanes, banks), families


def best(data, plain, device, families):
    shape = tuple(data["tile"]["shape"])
    return toy.best(shape, plain, device.lanes, device.banks, families)


def by_model(data, device, **options):
    return solve(from_data(data), target=device, method="model", **options)


@pytest.mark.parametrize("block", range(8))
def test_same_minimum_as_exhaustive_search(block):
    for seed in range(9000 + 20 * block, 9020 + 20 * block):
        data, plain, device, families = asked(seed)
        expected = best(data, plain, device, families)
        result = by_model(data, device)
        if expected is None:
            assert result.status is Status.INFEASIBLE, seed
            continue
        assert result.status is Status.OPTIMAL, seed
        found, wanted = (result.weighted_excess, result.bytes), (expected[0], 4 * expected[1])
        assert found == wanted, seed
        assert result.decided_by is not None, seed
        clean = by_model(data, device, conflict_free=True)
        assert (clean.status is Status.INFEASIBLE) == (result.weighted_excess > 0), seed


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


@pytest.mark.parametrize("name", QUICK)
def test_answers_of_the_catalogue(name):
    usual, found = solve(load(name)), solve(load(name), method="model")
    assert (found.status, found.excess, found.bytes) == (usual.status, usual.excess, usual.bytes)
    assert (usual.method, found.method) == ("auto", "model")
    assert found.model.rounds > 0
    assert found.decided_by is not None


@pytest.mark.parametrize("name", ["ggml/flash_attention_tile_k_d40", "sparse/tc_gnn_sddmm_x_16x8_tf32"])
def test_workers_do_not_change_the_answer(name):
    one, two = (solve(load(name), method="model", workers=n).to_json() for n in (1, 2))
    assert one == two


def narrowed(name, families):
    problem = load(name)
    layout = msgspec.structs.replace(problem.layout, families=families)
    return msgspec.structs.replace(problem, layout=layout)


def test_pad_and_xor_are_decided_together():
    """Neither alone serves 20 words a row in 16-byte accesses; padded to 32, an XOR has bits to read."""
    sizes = {}
    for families in (("none", "pad"), ("none", "xor"), ("none", "pad", "xor")):
        found = solve(narrowed("ggml/flash_attention_tile_k_d40", families), method="model")
        assert found.status is Status.OPTIMAL
        sizes[families] = found.excess, found.bytes
    assert sizes == {
        ("none", "pad"): (32, 5120),
        ("none", "xor"): (32, 5120),
        ("none", "pad", "xor"): (0, 8144),
    }


def test_xor_over_two_pads():
    """A 2x2x3 tile whose pitches are even: one pad under the XOR leaves a conflict, two do not."""
    data, _, device, _ = asked(20134)
    data["layout"] = {"families": ["order", "pad", "xor"], "pitch_multiple_bytes": 8}
    for found in (solve(from_data(data), target=device), by_model(data, device)):
        assert (found.status, found.excess, found.family) == (Status.OPTIMAL, 0, "pad+xor")


@pytest.mark.parametrize("method", ["auto", "model"])
def test_pads_of_a_period_and_more_where_bytes_allow(method):
    """A 4x4 tile on two banks whose XOR needs bits that no pad of less than a period moves."""
    data, _, device, _ = asked(70821)
    found = {}
    for most in (None, 200):
        data["layout"] = {"families": ["order", "pad", "xor"], **({"max_bytes": most} if most else {})}
        found[most] = solve(from_data(data), target=device, method=method)
        assert found[most].status is Status.OPTIMAL
    assert (found[None].excess, found[None].bytes) == (1, 88)
    assert (found[200].excess, found[200].bytes) == (0, 136)
    assert "any length" not in found[None].proof.excess.scope
    assert found[200].proof.bytes.scope.endswith("pads of any length within 200 bytes")


def test_the_widest_pitches():
    """Sums stay within what the solver takes."""
    problem = load("transposes/leimao_padded_f64")
    layout = msgspec.structs.replace(problem.layout, pitch_multiple_bytes=1 << 20)
    problem = msgspec.structs.replace(problem, layout=layout)
    usual, found = solve(problem), solve(problem, method="model")
    assert (found.status, found.excess, found.bytes) == (usual.status, usual.excess, usual.bytes)


def test_what_no_time_leaves():
    result = solve(load("stencils/halo_34x34_f32"), method="model", time_limit=0.02)
    assert result.status in (Status.FEASIBLE, Status.UNKNOWN)
    assert result.decided_by is None


def test_what_the_method_does_not_do_is_refused():
    problem = load("basics/transpose_16x32_f32")
    layout = msgspec.structs.replace(problem.layout, minimise="instructions")
    with pytest.raises(ProblemFileError, match="instructions cannot come first"):
        solve(msgspec.structs.replace(problem, layout=layout), method="model")
    with pytest.raises(ProblemFileError, match="expected one of auto, model"):
        solve(problem, method="modal")


def test_the_command_prints_what_the_model_took():
    done = layoutopt("solve", "basics/transpose_16x32_f32", "--method", "model")
    assert re.search(r"one model: rounds \d+, .* variables \d+, constraints \d+\n", done.stdout)


def answer(result):
    return result.status, result.weighted_excess, result.bytes


def test_dense_layouts_that_do_need_no_model():
    grown = solve(load("stencils/cuda_samples_optical_flow_8x34_f32")).model
    assert (grown.rounds, grown.written_out) == (0, 0)


def test_what_the_tree_refutes_is_never_written_out(monkeypatch):
    problem = load("ggml/flash_attention_tile_k_d40")
    few = solve(problem).model.written_out
    monkeypatch.setattr(ReachFloor, "_by_tree", lambda self, *_: Verdict())
    assert few < solve(problem).model.written_out


@pytest.mark.parametrize("method", ["auto", "model"])
def test_words_that_merge_cost_no_bytes_to_keep_apart(method):
    """Where 8 words of a group are served by 4 banks, dense rows take more passes, all of them needed."""
    rules = {
        ("load", 4): PhaseRule((tuple(range(8)),), 4, 4, row_words=8),
        ("load", 16): PhaseRule(((0, 1), (2, 3), (4, 5), (6, 7)), 4, 4),
    }
    rows = {"op": "load", "bytes": 4, "index": ["(tid + i) // 8 % 8", "(tid + i) % 8"], "for": {"i": 3}}
    vectors = {"op": "load", "bytes": 16, "index": ["tid % 8", "4*(tid // 8 % 2)"]}
    problem = problem_of("8x8 f32, 16 threads", {"name": "rows", **rows}, {"name": "vectors", **vectors})
    result = solve(problem, target=Device("toy", "toy", 8, 4, 4, rules), method=method)
    assert answer(result) == ("optimal", 0, 256)


def test_out_of_time_nothing_is_infeasible_that_was_not_looked_at(monkeypatch):
    """Nothing that was looked at fits into the fewest bytes; what does was not."""
    monkeypatch.setattr(ReachFloor, "_solved", lambda self: False)
    problem = problem_of("""32x32 f16, 32 threads; pitch_multiple_bytes 6; minimise bytes
        a: store 4 [tid // 16, 2*(tid % 16)]""")
    assert solve(problem).status != "infeasible"


def test_the_one_order_of_thousands_that_does_is_found():
    """Eight dimensions, so 40,320 orders; the first that do come behind more than there is time to look at."""
    fill = access_from(
        "fill: store 4 [lane % 2, i, lane // 2 % 2, j, lane // 4 % 2, k, lane // 8 % 2, lane // 16]; i<3, j<3, k<3"
    )
    read = access_from(
        "read: load 4 [i, lane % 3, j, lane // 3 % 3, k, lane // 9, l, m]; i<2, j<2, k<2, l<2, m<5; where lane < 27"
    )
    data = {"name": "many", "tile": {"shape": [2, 3, 2, 3, 2, 3, 2, 5], "element": "f32"}, "threads": 32}
    found = solve(from_data(data | {"accesses": [fill, read]}))
    assert (found.status, found.family, found.excess, found.bytes) == ("optimal", "order", 0, 8640)
    assert found.model.rounds == 0
