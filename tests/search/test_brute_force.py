"""Tiny tiles against exhaustive search, in excess and in bytes; tiles that need each family; and `--method model`."""

import re
from unittest.mock import Mock

import pytest
from command import layoutopt
from conftest import ROOT, answer_of
from oracle import toy
from oracle.random_tiles import constrained as constrained_case
from oracle.random_tiles import random_case
from written import constrained, data_of, problem_of, refused_with, rows_of

from layoutopt import Status, compare, load, solve
from layoutopt.engine.case import case_of
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.problems.answer import METHODS
from layoutopt.search.mask_tree import within_ceilings
from layoutopt.search.proposal import Ask
from layoutopt.search.reach_floor import ReachFloor, Verdict
from layoutopt.search.search import Search
from layoutopt.search.solve import PROPOSERS

# Families that one model decides together.
FEW = [
    ["none", "xor"], ["pad", "xor"], ["order", "pad", "xor"], ["order", "pad"], ["none", "order"],
    ["order", "split", "xor"], ["none", "rotate", "interval", "xor"], ["pad", "matrix"],
]  # fmt: skip


def case(seed, families=None, minimise=None, **shapes):
    """A random problem, its device, and the best (weighted excess, words) of all its layouts."""
    data, plain, lanes, banks, its_families = random_case(seed, **shapes)
    data["layout"] = {"families": families or its_families, **({"minimise": minimise} if minimise else {})}
    given = tuple(data["tile"]["shape"]), plain, lanes, banks, families or its_families
    best = toy.best(*given)
    if best is not None and minimise == "bytes":
        best = toy.best_by_bytes(*given)
    return data, toy.toy_device(lanes, banks), best


FLAT = [(1, 8), (8, 1), (4, 1, 3), (1, 3, 4), (3, 4, 1), (1, 1, 6), (2, 1, 6), (5, 1), (1, 5)]
AUTO, BY_MODEL = {}, {"method": "model"}
CAMPAIGNS = {
    "every family": (range(400), case, [AUTO, {"conflict_free": True}]),
    "larger tiles": (range(30), lambda seed: case(seed, larger=True), [AUTO, {"conflict_free": True}]),
    "extents of one": (range(20_000, 20_080), lambda seed: case(seed, shapes=FLAT), [AUTO]),
    "bytes first": (range(1000, 1080), lambda seed: case(seed, minimise="bytes"), [AUTO]),
    "one model": (
        range(9000, 9160),
        lambda seed: case(seed, families=FEW[seed % len(FEW)]),
        [BY_MODEL, {**BY_MODEL, "conflict_free": True}],
    ),
    # `max_bytes`, `pitch_multiple_bytes` and bytes first, with one worker and with two; scripts/fuzz goes on.
    "constraints": (
        range(180),
        constrained_case,
        [{"method": method, "workers": n} for method, n in zip(METHODS, (1, 2), strict=True)],
    ),
    "constraints, extents of one": (
        range(30_000, 30_060),
        lambda seed: constrained_case(seed, FLAT),
        [AUTO, BY_MODEL],
    ),
}
BLOCKS = [(name, block) for name, (seeds, _, _) in CAMPAIGNS.items() for block in range(0, len(seeds), 40)]


@pytest.mark.parametrize(("campaign", "block"), BLOCKS)
def test_same_minimum_as_exhaustive_search(campaign, block):
    seeds, asked, ways = CAMPAIGNS[campaign]
    for seed in seeds[block : block + 40]:
        data, target, best = asked(seed)
        for options in ways:
            result = solve(from_data(data), target=target, **options)
            if best is None or (best[0] and options.get("conflict_free")):
                assert result.status is Status.INFEASIBLE, (seed, data)
                continue
            found = result.status, result.weighted_excess, result.bytes
            assert found == (Status.OPTIMAL, best[0], 4 * best[1]), (seed, data, options)
            assert result.proof.excess.lower_bound <= result.excess, (seed, data)
            assert result.proof.objective.lower_bound == best[0], (seed, data)
            assert result.decided_by is not None or campaign == "every family", (seed, data)


@pytest.mark.parametrize("block", range(2))
def test_stores_that_see_half_of_the_banks(block):
    """Their masks may read bits that loads select banks by; what the last block takes is not looked at."""
    for seed in range(60 * block, 60 * block + 60):
        data, plain, lanes, banks, _ = random_case(seed)
        if toy.starts_of_pairs(plain):  # a bank bit may flip one inside a vector that nobody asks for
            continue
        families = FEW[seed % len(FEW)]
        target = toy.toy_device(lanes, banks, stores=banks // 2)
        layouts = toy.layouts(tuple(data["tile"]["shape"]), plain, banks, families)
        least = min((toy.excess(plain, lanes, o, banks, banks // 2) for o in layouts), default=None)
        found = solve(from_data({**data, "layout": {"families": families}}), target=target)
        assert found.weighted_excess == least, (seed, data)
        assert least is None or found.proof.objective.lower_bound == least, (seed, data)


def test_instructions_first():
    """Never more of them than where excess comes first, and with as many never more excess."""
    for seed in range(2000, 2010):
        data, _, lanes, banks, _ = random_case(seed)
        target, first = toy.toy_device(lanes, banks), {**data["layout"], "minimise": "instructions"}
        usual, cheap = (solve(from_data(asked), target=target) for asked in (data, {**data, "layout": first}))
        assert (cheap.layout is None) is (usual.layout is None), (seed, data)
        if usual.layout is None:
            continue
        cost, other = cheap.proof.index_cost, usual.proof.index_cost
        assert cheap.status is Status.FEASIBLE or cost.proved, (seed, data)
        rows = compare(from_data(data), target=target).rows
        every = [row.instructions for row in rows if row.instructions is not None]
        assert cost.value <= min(every), (seed, data)
        assert cost.value < other.value or cheap.weighted_excess <= usual.weighted_excess, (seed, data)
        if usual.weighted_excess == 0:
            free = solve(from_data({**data, "layout": first}), target=target, conflict_free=True)
            least = free.proof.index_cost
            assert free.status is Status.FEASIBLE or least.proved, (seed, data)
            assert (free.weighted_excess, cost.value <= least.value <= other.value) == (0, True), (seed, data)


def rows_of_lanes(rows, columns, element, vector):
    """A cooperative 16-byte fill, then a row a lane, then every second row a lane."""
    chunks, fill = columns // vector, "(tid + 128*i)"
    pieces = rows * chunks
    return data_of(f"""{rows}x{columns} {element}, 128 threads; name rows {rows}x{columns}
        fill: store 16 [{fill} // {chunks}, {vector}*({fill} % {chunks})]; i<{-(-pieces // 128)}; where {fill} < {pieces}
        rows: load 16 [lane, {vector}*j]; j<{chunks}
        even: load 16 [2*lane % {rows}, {vector}*j]; j<{chunks}""")


# A warp reads blocks of 16x2, and blocks of 4x8.
BLOCKS_24X20 = data_of("""24x20 f32, 32 threads; name blocks 24x20
    16x2: load 4 [lane // 2, lane % 2 + 2*j]; j<10
    4x8: load 4 [lane // 8 + 4*k, lane % 8 + 8*j]; k<6, j<2""")
# Least excess and bytes with pads alone, with an XOR alone, and with both; any order of dimensions.
TILES = [
    ("flash_attention_tile_k_d40", (32, 5120), (32, 5120), (0, 8144)),
    ("flash_attention_tile_k_d96", (48, 7152), (32, 6144), (0, 8160)),
    ("flash_attention_tile_k_d112", (48, 7168), (48, 7168), (0, 8176)),
    (rows_of_lanes(48, 48, "f32", 4), (216, 9968), (128, 9216), (0, 12224)),
    (rows_of_lanes(64, 96, "f16", 8), (224, 13296), (128, 12288), (0, 16320)),
    (BLOCKS_24X20, (10, 2224), (5, 1920), (0, 2288)),
]
FAMILIES = ("none", "order", "pad"), ("none", "order", "xor"), ("none", "order", "pad", "xor")


@pytest.mark.parametrize(("tile", "pad", "xor", "both"), TILES, ids=str)
def test_neither_alone_but_both_together(tile, pad, xor, both):
    problem = load(tile) if isinstance(tile, str) else from_data(tile)
    for families, expected in zip(FAMILIES, (pad, xor, both), strict=True):
        result = solve(constrained(problem, families=families))
        assert (result.status, (result.weighted_excess, result.bytes)) == (Status.OPTIMAL, expected)


@pytest.mark.parametrize(
    ("name", "excess", "size"),
    [
        ("libceed_interp2d_p5q6_f64", 7, 2304),
        ("rodinia_needleman_wunsch_32_i32", 1, 4484),
        ("diagonals_32x32_f32", 16, 4096),
    ],
)
def test_tiles_whose_conflicts_no_layout_of_whole_rows_avoids(name, excess, size):
    """Every order, pad and XOR is ruled out, in seconds."""
    problem = constrained(load(name), families=("none", "order", "pad", "xor"))
    case = case_of(problem, device(problem.target))
    answer = Search(case, Ask(), PROPOSERS, case.lanes).proposal()
    assert (answer.found.weighted_excess, answer.found.bytes) == (excess, size)
    assert (answer.complete, answer.decided_by) == (True, "tree")


@pytest.mark.parametrize("method", METHODS)
def test_pads_of_a_period_and_more_where_bytes_allow(method):
    """A 4x4 tile on two banks whose XOR needs bits that no pad of less than a period moves."""
    data, _, lanes, banks, _ = random_case(70821)
    options = {"target": toy.toy_device(lanes, banks), "method": method}
    layouts = ({"families": ["order", "pad", "xor"], **more} for more in ({}, {"max_bytes": 200}))
    usual, larger = (solve(from_data({**data, "layout": layout}), **options) for layout in layouts)
    assert (usual.status, usual.excess, usual.bytes) == (Status.OPTIMAL, 1, 88)
    assert (larger.status, larger.excess, larger.bytes) == (Status.OPTIMAL, 0, 136)
    assert "any length" not in usual.proof.excess.scope
    assert larger.proof.bytes.scope.endswith("pads of any length within 200 bytes")


# A 2x2x3 tile whose pitches are even: one pad under the XOR leaves a conflict, two do not.
EVEN, _, *EVEN_GPU, _ = random_case(20134)
EVEN["layout"] = {"families": ["order", "pad", "xor"], "pitch_multiple_bytes": 8}


@pytest.mark.parametrize("method", METHODS)
def test_xor_over_two_pads(method):
    found = solve(from_data(EVEN), target=toy.toy_device(*EVEN_GPU), method=method)
    assert (found.status, found.excess, found.family) == (Status.OPTIMAL, 0, "pad+xor")


def test_both_are_a_row_of_compare_where_both_are_allowed():
    problem, target = from_data(EVEN), toy.toy_device(*EVEN_GPU)
    rows = rows_of(compare(problem, target=target))
    costs = {family: (rows[family].excess, rows[family].bytes) for family in ("pad+xor", "xor", "pad")}
    assert costs == {"pad+xor": (0, 92), "xor": (1, 48), "pad": (2, 60)}
    refused = rows_of(compare(constrained(problem, families=("order", "xor")), target=target))["pad+xor"]
    said = "not allowed by the problem's layout constraints"
    assert (refused.status, refused.reason) == ("infeasible", said)


# One model of everything, and what is known before it is asked -------------------------------------

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
    """The same by either method, and by the model to the byte, whoever works."""
    path = ROOT / "problems" / f"{name}.json"
    usual, found = answer_of(path), solve(load(path), method="model")
    assert answer(found) == answer(usual)
    assert (usual.method, found.method) == ("auto", "model")
    assert found.model.rounds > 0
    assert found.decided_by is not None
    if name in (TILE_K, "sparse/tc_gnn_sddmm_x_16x8_tf32"):
        assert found.to_json() == solve(load(path), method="model", workers=2).to_json()


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


def test_phases_that_refuted_one_layout_refute_most_of_the_others(monkeypatch):
    """Of a thousand orders, cuts and rotations few are searched mask by mask."""
    looked = Mock(side_effect=within_ceilings)
    monkeypatch.setattr("layoutopt.search.scene.within_ceilings", looked)
    solve(load("spectral_elements/libceed_interp2d_p5q6_f64"))
    assert looked.call_count < 500


def test_out_of_time_nothing_is_infeasible_that_was_not_looked_at(monkeypatch):
    """Nothing that was looked at fits into the fewest bytes; what does was not."""
    monkeypatch.setattr(ReachFloor, "_solved", lambda self: False)
    problem = problem_of("""32x32 f16, 32 threads; pitch_multiple_bytes 6; minimise bytes
        a: store 4 [tid // 16, 2*(tid % 16)]""")
    assert solve(problem).status != "infeasible"
