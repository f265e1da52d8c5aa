"""The catalogue: every public kernel at its known optimum, and what its published layout costs."""

import numpy as np
import pytest
from conftest import PROBLEMS, problem_id

from layoutopt.accesses import trace
from layoutopt.conflicts import count_wavefronts
from layoutopt.devices import device
from layoutopt.expressions import evaluate, parse
from layoutopt.model import Status
from layoutopt.problem_file import load
from layoutopt.synthesize import solve

KNOWN = [path for path in PROBLEMS if load(path).known_optimum is not None]

# What an expert would write; published formulas agree where they are optimal.
FORMULAS = {
    "basics/transpose_32x32_f32": "x0*32 + (x1 ^ x0)",
    "basics/transpose_16x32_f32": "x0*32 + (x1 ^ x0*2)",
    "basics/scan_512_f32": "x0 ^ x0 // 32",
    "marlin/a_64x64_f16": "x0*64 + (x1 ^ x0 % 8 * 8)",
    "awq/a_128x32_f16": "x0*32 + (x1 ^ x0 // 2 % 4 * 8)",
    "flashinfer/kv_64x128_f16": "x0*128 + (x1 ^ x0 % 8 * 8)",
    "cuda_samples/tensorcore_gemm_f16": "x0*72 + x1",
    "cutlass/sm80_tf32_m_major_32x128": "x0*128 + (x1 ^ x0 % 4 * 8)",
}


def published_cost(problem):
    """Excess wavefronts and bytes used of the published layout, by the conflict engine."""
    gpu = device(problem.target)
    grids = np.indices(problem.tile.shape)
    env = {f"x{d}": grid for d, grid in enumerate(grids)}
    offsets = evaluate(parse(problem.published.offset, frozenset(env)), env) * problem.tile.element_bytes
    table = np.broadcast_to(offsets, problem.tile.shape).ravel()
    excess = 0
    for access in trace(problem, gpu).accesses:
        counts = count_wavefronts(table[access.element], access.active, access.operation, gpu)
        excess += int((counts.wavefronts - counts.ideal).sum())
    return excess, int(table.max()) + problem.tile.element_bytes


@pytest.mark.parametrize("path", KNOWN, ids=problem_id)
def test_optimal_at_the_known_optimum(path):
    problem = load(path)
    result = solve(problem)
    assert result.status is Status.OPTIMAL
    assert (result.excess, result.bytes) == (problem.known_optimum.excess, problem.known_optimum.bytes)
    assert result.proof.excess.lower_bound == result.excess
    assert result.proof.excess.scope == "every layout"
    assert result.proof.bytes.lower_bound == result.bytes
    if result.bytes == problem.tile.bytes:
        assert result.proof.bytes.scope == "every layout"
    else:
        assert result.proof.bytes.scope.startswith("families")
    name = problem_id(path)
    if name in FORMULAS:
        assert result.offset == FORMULAS[name]


def test_published_layouts_beaten():
    """Most kernels in wavefronts or bytes, many in both (basics are not kernels)."""
    either = both = kernels = 0
    for path in KNOWN:
        problem = load(path)
        if problem_id(path).startswith("basics/"):
            continue
        kernels += 1
        excess, size = published_cost(problem)
        known = problem.known_optimum
        assert (known.excess, known.bytes) <= (excess, size)
        fewer = known.excess < excess
        smaller = known.bytes < size
        either += fewer or smaller
        both += fewer and smaller
    assert kernels == 48
    assert (either, both) == (39, 16)


@pytest.mark.parametrize(
    ("name", "excess", "size"),
    [("ggml/flash_attention_tile_k_d112", 3272, 8176), ("awq/a_128x32_f16", 64, 10224)],
)
def test_published_costs_known_from_the_sources(name, excess, size):
    (path,) = [p for p in PROBLEMS if problem_id(p) == name]
    assert published_cost(load(path)) == (excess, size)


def test_same_problem_same_answer():
    for path in KNOWN[::5]:
        problem = load(path)
        first, second, two = solve(problem), solve(problem), solve(problem, workers=2)
        assert first == second == two
