"""Published tiles with known answers: what given layouts cost, and what is impossible."""

import numpy as np
import pytest
from conftest import ROOT
from oracle import toy
from written import problem_of, reads

from layoutopt.accesses.trace import trace
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.expressions.grammar import evaluate, parse
from layoutopt.files.file import load
from layoutopt.hardware.devices import device
from layoutopt.problems.answer import Status
from layoutopt.search.solve import solve

BASICS = ROOT / "problems" / "basics"


def cost(problem, offset, access, gpu=None):
    """Largest wavefronts of one phase set (an instruction) of `access` under an offset formula."""
    gpu = gpu or device(problem.target)
    grids = dict(
        zip((f"x{d}" for d in range(len(problem.tile.shape))), np.indices(problem.tile.shape), strict=True)
    )
    table = np.broadcast_to(evaluate(parse(offset, frozenset(grids)), grids), problem.tile.shape).ravel()
    (lanes,) = [a for a in trace(problem, gpu).accesses if a.name == access]
    counts = count_wavefronts(
        table[lanes.element] * problem.tile.element_bytes, lanes.active, lanes.operation, gpu
    )
    return int(counts.wavefronts.max()), int(counts.phases.max())


@pytest.mark.parametrize(
    ("name", "offset", "access", "ways"),
    [
        ("transpose_32x32_f32", "x0*32 + x1", "columns", 32),
        ("transpose_32x32_f32", "x0*33 + x1", "columns", 1),
        ("transpose_32x32_f32", "x0*33 + x1", "rows", 1),
        ("transpose_32x32_f32", "x0*32 + (x1 ^ x0)", "columns", 1),
        ("transpose_32x32_f32", "x0*32 + (x1 // 4 ^ x0 % 8)*4 + x1 % 4", "columns", 4),
        ("transpose_16x32_f32", "x0*32 + x1", "columns", 16),
        ("transpose_16x32_f32", "x0*33 + x1", "columns", 2),
        ("transpose_16x32_f32", "x0*34 + x1", "columns", 1),
        ("transpose_16x32_f32", "x0*32 + (x1 ^ 2*x0)", "columns", 1),
        ("transpose_16x32_f32", "x0*32 + (x1 ^ x0)", "columns", 2),
        ("scan_512_f32", "x0", "strides", 16),
        ("scan_512_f32", "x0 + x0 // 32", "strides", 1),
        ("scan_512_f32", "x0 ^ x0 // 32", "strides", 1),
    ],
)
def test_ways_of_given_layouts(name, offset, access, ways):
    assert cost(load(BASICS / f"{name}.json"), offset, access) == (ways, 1)


def test_half_warps_of_16_banks():
    problem = load(BASICS / "transpose_16x16_f32_sm_10.json")
    assert cost(problem, "x0*16 + x1", "columns") == (32, 2)  # two half-warps, 16-way each
    assert cost(problem, "x0*17 + x1", "columns") == (2, 2)
    assert solve(problem).bytes == 1024


def test_doubles_by_rows_are_served_by_half_warps():
    problem = load(BASICS / "rows_32x32_f64.json")
    assert cost(problem, "x0*32 + x1", "rows") == (2, 2)
    result = solve(problem)
    assert (result.family, result.bytes, result.excess) == ("none", 8192, 0)


def test_swizzle_inside_a_word_is_two_way():
    problem = problem_of("64x64 f16, 32 threads", "column: load 2 [tid, c]; c<64")
    assert cost(problem, "x0*64 + (x1 ^ x0)", "column") == (2, 1)
    assert solve(problem).excess == 0


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


@pytest.mark.parametrize(("n", "least"), [(2, 2), (4, 2)])
def test_wrapped_diagonals_are_impossible_for_even_n(n, least):
    problem = problem_of(f"""{n}x{n} f32, {n} threads; name diagonals
        rows: load 4 [i, tid]; i<{n}
        columns: load 4 [tid, i]; i<{n}
        diagonals: load 4 [tid, (tid + i) % {n}]; i<{n}""")
    result = solve(problem, target=toy.toy_device(n, n))
    assert result.status is Status.OPTIMAL
    assert result.excess == least
    assert solve(problem, target=toy.toy_device(n, n), conflict_free=True).status is Status.INFEASIBLE


def test_three_lines_of_a_plane_over_two_banks():
    """Words 00, 01, 10, 11 met in pairs along all three lines: no two banks can keep them apart."""
    accesses = [reads(f"line {d}", 4, [f"(tid * {d}) ^ c"], c=4) for d in (1, 2, 3)]
    problem = problem_of("4 f32, 2 threads", *accesses)
    result = solve(problem, target=toy.toy_device(2, 2))
    assert result.status is Status.OPTIMAL
    assert result.excess == 4  # one line stays in one bank, over its four translates
    for kept in ((0, 1), (0, 2), (1, 2)):
        two = problem_of("4 f32, 2 threads", *[accesses[k] for k in kept])
        assert solve(two, target=toy.toy_device(2, 2)).excess == 0
