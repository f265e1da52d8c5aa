"""Tiny tiles against exhaustive search, in excess and in bytes; tiles of public kernels that need each family."""

import json

import pytest
from command import layoutopt
from conftest import ROOT
from oracle import toy
from oracle.random_tiles import constrained, random_case
from written import one_tile, problem_of, saved

from layoutopt.files.file import from_data, load
from layoutopt.problems.answer import METHODS, Status
from layoutopt.search.solve import solve


def compare(seed, larger=False):
    """Solve random problem `seed`, and try every layout of its families."""
    data, plain, lanes, banks, families = random_case(seed, larger)
    result = solve(from_data(data), target=toy.toy_device(lanes, banks))
    expected = toy.best(tuple(data["tile"]["shape"]), plain, lanes, banks, families)
    if expected is None:
        assert result.status is Status.INFEASIBLE, (seed, data)
        return
    assert result.status is Status.OPTIMAL, (seed, data)
    assert (result.weighted_excess, result.bytes) == (expected[0], 4 * expected[1]), (seed, data, result)
    bound = result.proof.objective
    assert bound.lower_bound == expected[0], (seed, data)
    assert result.proof.excess.lower_bound <= result.excess, (seed, data)
    clean = solve(from_data(data), target=toy.toy_device(lanes, banks), conflict_free=True)
    assert (clean.status is Status.INFEASIBLE) == (expected[0] > 0), (seed, data)


def compare_constrained(seed):
    """Solve random problem `seed` by both methods, with one worker and with two."""
    data, device, best = constrained(seed)
    for method, workers in zip(METHODS, (1 + seed % 2, 2 - seed % 2), strict=True):
        result = solve(from_data(data), target=device, method=method, workers=workers)
        if best is None:
            assert result.status is Status.INFEASIBLE, (seed, method, data)
            continue
        found = result.status, result.weighted_excess, result.bytes
        assert found == (Status.OPTIMAL, best[0], 4 * best[1]), (seed, method, data, found, best)
        assert result.decided_by is not None, (seed, method)


@pytest.mark.parametrize("block", range(20))
def test_same_minimum_as_exhaustive_search(block):
    for seed in range(block * 20, block * 20 + 20):
        compare(seed)


@pytest.mark.parametrize("block", range(6))
def test_same_minimum_on_larger_tiles(block):
    for seed in range(block * 5, block * 5 + 5):
        compare(seed, larger=True)


@pytest.mark.parametrize("block", range(6))
def test_constraints_on_pitches_by_both_methods(block):
    """`max_bytes`, `pitch_multiple_bytes` and bytes first, against every layout; scripts/fuzz goes on."""
    for seed in range(30 * block, 30 * block + 30):
        compare_constrained(seed)


@pytest.mark.parametrize("block", range(4))
def test_bytes_first(block):
    for seed in range(1000 + block * 20, 1020 + block * 20):
        data, plain, lanes, banks, families = random_case(seed)
        data["layout"]["minimise"] = "bytes"
        if not toy.best(tuple(data["tile"]["shape"]), plain, lanes, banks, families):
            continue
        result = solve(from_data(data), target=toy.toy_device(lanes, banks))
        expected = toy.best_by_bytes(tuple(data["tile"]["shape"]), plain, lanes, banks, families)
        assert result.status is Status.OPTIMAL, (seed, data)
        assert (result.weighted_excess, result.bytes) == (expected[0], 4 * expected[1]), (seed, data, result)


def test_instructions_first():
    """Never more of them than where excess comes first, and with as many never more excess."""
    for seed in range(2000, 2016):
        data, _, lanes, banks, _ = random_case(seed)
        target = toy.toy_device(lanes, banks)
        data["layout"]["minimise"] = "instructions"
        cheap = solve(from_data(data), target=target)
        data["layout"]["minimise"] = "excess"
        usual = solve(from_data(data), target=target)
        assert (cheap.layout is None) is (usual.layout is None), (seed, data)
        if usual.layout is None:
            continue
        cost, other = cheap.proof.index_cost, usual.proof.index_cost
        assert cheap.status is Status.FEASIBLE or cost.proved, (seed, data)
        assert cost.value <= other.value, (seed, data)
        if cost.value == other.value:
            assert cheap.weighted_excess <= usual.weighted_excess, (seed, data)
        if usual.weighted_excess == 0:
            free = solve(from_data(data | {"layout": {**data["layout"], "minimise": "instructions"}}),
                         target=target, conflict_free=True)  # fmt: skip
            least = free.proof.index_cost
            assert free.status is Status.FEASIBLE or least.proved, (seed, data)
            assert free.weighted_excess == 0, (seed, data)
            assert cost.value <= least.value <= other.value, (seed, data)


def test_a_limit_on_bytes():
    """The least excess within every number of bytes that some layout takes, and one byte less."""
    for seed in range(3000, 3010):
        data, plain, lanes, banks, families = random_case(seed)
        target = toy.toy_device(lanes, banks)
        shape = tuple(data["tile"]["shape"])
        sizes = {4 * (max(offsets) + 1) for offsets in toy.layouts(shape, plain, banks, families)}
        for limit in sorted(sizes)[:3]:
            for most in (limit - 1, limit):
                data["layout"]["max_bytes"] = most
                result = solve(from_data(data), target=target)
                fitting = [
                    (toy.excess(plain, lanes, offsets, banks), 4 * (max(offsets) + 1))
                    for offsets in toy.layouts(shape, plain, banks, families, within=most // 4)
                    if 4 * (max(offsets) + 1) <= most
                ]
                if fitting:
                    assert result.status is Status.OPTIMAL, (seed, most)
                    assert (result.weighted_excess, result.bytes) == min(fitting), (seed, most)
                else:
                    assert result.status is Status.INFEASIBLE, (seed, most)


def test_row_operations_of_an_xor_shorten_the_last_block():
    """A source bit inside the bank field moves no word into another conflict, but the last rows together."""
    problem = problem_of(
        """33x16 f16, 32 threads; families none order pad split rotate xor
        diagonals: store 2 [tid, (144 - tid + i) % 16]; i<16
        rows: load 16 [(tid + 32*i) % 66 // 2, 8*((tid + 32*i) % 66 % 2)]; i<3""",
        name="anti-diagonals",
    )
    result = solve(problem)
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, 0, 1120)


BASICS = ROOT / "problems" / "basics"


@pytest.mark.parametrize("k", [32, 64])
def test_gemm_tiles_get_the_shape_of_cutes_swizzle(k):
    problem = load(BASICS / f"gemm_a_128x{k}_f16.json")
    result = solve(problem)
    assert result.offset == problem.published.offset
    assert (result.excess, result.bytes) == (0, problem.tile.bytes)


def test_pads_alone():
    problem = load(BASICS / "transpose_32x32_f32.json")
    padded = solve(restricted(problem, ["none", "pad"]))
    assert (padded.offset, padded.bytes, padded.declared_bytes) == ("x0*33 + x1", 4220, 4224)
    assert padded.proof.bytes.scope == "families none, pad"
    plain = solve(restricted(problem, ["none"]))
    assert (plain.status, plain.excess) == (Status.OPTIMAL, 32 * 31)
    two_columns = solve(restricted(load(BASICS / "transpose_16x32_f32.json"), ["none", "pad"]))
    assert two_columns.offset == "x0*34 + x1"


def restricted(problem, families):
    import msgspec

    return msgspec.structs.replace(
        problem, layout=msgspec.structs.replace(problem.layout, families=tuple(families))
    )


def test_wrapped_diagonals_on_32_banks():
    """Impossible in every layout; without a swizzle the true minimum is a 2-way conflict a diagonal."""
    problem = load(BASICS / "diagonals_32x32_f32.json")
    result = solve(restricted(problem, ["none", "order", "pad", "split"]))
    assert (result.status, result.excess) == (Status.OPTIMAL, 32)
    assert result.proof.excess.scope == "families none, order, pad, split"
    limited = solve(problem, time_limit=2)
    assert 0 < limited.excess <= 32
    assert limited.proof.excess.lower_bound <= 16  # a swizzle with 16 exists


def rows_of_lanes(rows, columns, element, vector):
    """A cooperative 16-byte fill, then a row a lane, then every second row a lane."""
    chunks = columns // vector
    fill = "tid + 128*i"
    every = {"op": "load", "bytes": 16, "for": {"j": chunks}}
    accesses = [
        {
            "name": "fill", "op": "store", "bytes": 16, "for": {"i": -(-rows * chunks // 128)},
            "index": [f"({fill}) // {chunks}", f"{vector}*(({fill}) % {chunks})"],
            "where": f"{fill} < {rows * chunks}",
        },
        {"name": "rows", "index": ["lane", f"{vector}*j"], **every},
        {"name": "even", "index": [f"2*lane % {rows}", f"{vector}*j"], **every},
    ]  # fmt: skip
    return of(f"rows {rows}x{columns}", (rows, columns), element, 128, accesses)


def blocks(rows, columns):
    """A warp reads blocks of 16x2, and blocks of 4x8."""
    load = {"op": "load", "bytes": 4}
    tall = {"name": "16x2", "index": ["lane // 2", "lane % 2 + 2*j"], "for": {"j": columns // 2}}
    wide = {"name": "4x8", "index": ["lane // 8 + 4*k", "lane % 8 + 8*j"]}
    wide["for"] = {"k": rows // 4, "j": columns // 8}
    return of(f"blocks {rows}x{columns}", (rows, columns), "f32", 32, [{**tall, **load}, {**wide, **load}])


def of(name, shape, element, threads, accesses):
    return one_tile(name, list(shape), element, threads, accesses, target="sm_90")


def shipped(name):
    return json.loads((ROOT / "problems" / "ggml" / f"{name}.json").read_text())


# Least excess and bytes with pads alone, with an XOR alone, and with both; any order of dimensions.
TILES = [
    (shipped("flash_attention_tile_k_d40"), (32, 5120), (32, 5120), (0, 8144)),
    (shipped("flash_attention_tile_k_d96"), (48, 7152), (32, 6144), (0, 8160)),
    (shipped("flash_attention_tile_k_d112"), (48, 7168), (48, 7168), (0, 8176)),
    (rows_of_lanes(48, 48, "f32", 4), (216, 9968), (128, 9216), (0, 12224)),
    (rows_of_lanes(64, 96, "f16", 8), (224, 13296), (128, 12288), (0, 16320)),
    (blocks(24, 20), (10, 2224), (5, 1920), (0, 2288)),
]
FAMILIES = ["none", "order", "pad"], ["none", "order", "xor"], ["none", "order", "pad", "xor"]


@pytest.mark.parametrize(("data", "pad", "xor", "both"), TILES, ids=[data["name"] for data, *_ in TILES])
def test_neither_alone_but_both_together(data, pad, xor, both):
    for families, (excess, size) in zip(FAMILIES, (pad, xor, both), strict=True):
        result = solve(from_data({**data, "layout": {"families": families}}))
        assert (result.weighted_excess, result.bytes) == (excess, size)
        assert result.status is Status.OPTIMAL


def test_both_are_a_row_of_compare(tmp_path):
    file = saved(tmp_path, "tile.json", blocks(24, 20))
    rows = {
        row["family"]: row for row in json.loads(layoutopt("compare", str(file), "--json").stdout)["rows"]
    }
    assert (rows["pad+xor"]["excess"], rows["pad+xor"]["bytes"]) == (0, 2288)
    assert (rows["xor"]["excess"], rows["xor"]["bytes"]) == (5, 1920)
    assert rows["pad"]["excess"] >= 10


def test_both_need_both_to_be_allowed(tmp_path):
    file = saved(tmp_path, "tile.json", {**blocks(24, 20), "layout": {"families": ["none", "order", "xor"]}})
    rows = {
        row["family"]: row for row in json.loads(layoutopt("compare", str(file), "--json").stdout)["rows"]
    }
    assert rows["pad+xor"]["status"] == "infeasible"
    assert rows["pad+xor"]["reason"] == "not allowed by the problem's layout constraints"
