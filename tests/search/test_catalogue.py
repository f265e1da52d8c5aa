"""The catalogue: every public kernel at its known optimum, and what its published layout costs."""

import pytest
from conftest import PROBLEMS, answer_of, problem_id

from layoutopt import Status, check, load, solve

KNOWN = [path for path in PROBLEMS if load(path).known_optimum is not None]

# What an expert would write; published formulas agree where they are optimal.
FORMULAS = {
    "basics/transpose_32x32_f32": "x0*32 + (x1 ^ x0)",
    "basics/transpose_16x32_f32": "x0*32 + (x1 ^ x0*2)",
    "basics/scan_512_f32": "x0 ^ x0 // 32",
    "basics/gemm_a_128x32_f16": "x0*32 + (x1 ^ x0 // 2 % 4 * 8)",
    "basics/gemm_a_128x64_f16": "x0*64 + (x1 ^ x0 % 8 * 8)",
    "marlin/a_64x64_f16": "x0*64 + (x1 ^ x0 % 8 * 8)",
    "awq/a_128x32_f16": "x0*32 + (x1 ^ x0 // 2 % 4 * 8)",
    "flashinfer/kv_64x128_f16": "x0*128 + (x1 ^ x0 % 8 * 8)",
    "cuda_samples/tensorcore_gemm_f16": "x0*72 + x1",
    "cutlass/sm80_tf32_m_major_32x128": "x0*128 + (x1 ^ x0 % 4 * 8)",
}

# Excess and bytes used of published layouts that have some excess, and of a few without, derived from the
# sources; the notes of the files say how and quote what the authors claim.
PUBLISHED = {
    "awq/a_128x32_f16": (64, 10224),
    "ggml/flash_attention_tile_k_d112": (3272, 8176),
    "convolution/arrayfire_convolve_2d_5x5_f32": (212, 2304),
    "convolution/depthwise_3x3_7x7_f32": (490, 8064),
    "convolution/depthwise_5x5_7x7_f32": (294, 9856),
    "cuda_samples/bf16_gemm_256x128": (1536, 73696),
    "cuda_samples/imma_gemm_u8": (1536, 73696),
    "cutlass/sm75_s4_crosswise_128x128": (0, 8192),
    "fft/shoc_fft512_second_transpose_f64": (0, 4544),
    "histogram/cuda_samples_histogram64_u8": (128, 4096),
    "linear_algebra/cudpp_cyclic_reduction_512_f32": (40, 2048),
    "linear_algebra/magma_dgemm_batched_10_trans_f64": (152, 8792),
    "linear_algebra/magma_dgeqrf_batched_10_f64": (140, 10560),
    "linear_algebra/rodinia_lud_diagonal_16_f32": (301, 1024),
    "marlin/c_64x256_f16": (0, 33776),
    "reduction/cuda_samples_reduce1_256_f32": (105, 1024),
    "histogram/any_bin_8x256_u32": (0, 8192),
    "sparse/tc_gnn_sddmm_x_16x8_tf32": (32, 512),
    "stencils/arrayfire_morph_3x3_f32": (81, 1368),
    "stencils/cuda_samples_sobel_6x328_u8": (252, 2248),
    "stencils/unified_cache_27_point_f32": (216, 2400),
    "stencils/unified_cache_7_point_f32": (56, 2400),
    "stencils/unified_cache_7_point_f64": (112, 4800),
    "transforms/cuda_samples_walsh_2048_f32": (896, 8192),
    "transposes/arrayfire_transpose_c128": (0, 16880),
}


@pytest.mark.parametrize("path", KNOWN, ids=problem_id)
def test_optimal_at_the_known_optimum(path):
    problem = load(path)
    result = answer_of(path)
    assert result.status is Status.OPTIMAL
    assert (result.excess, result.bytes) == (problem.known_optimum.excess, problem.known_optimum.bytes)
    assert result.proof.excess.lower_bound == result.excess
    restricted = problem.layout.families is not None
    assert result.proof.excess.scope == "every layout" or restricted
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
    fewer, smaller, costs = [], [], {}
    for path in PROBLEMS:
        problem, name = load(path), problem_id(path)
        known = problem.known_optimum
        if (
            name.startswith("basics/")
            or problem.published is None
            or (known is None and name not in PUBLISHED)
        ):
            continue
        audit = check(problem)
        costs[name] = audit.excess, audit.bytes
        if known is not None:
            assert (known.excess, known.bytes) <= costs[name]
            fewer.append(known.excess < audit.excess)
            smaller.append(known.bytes < audit.bytes)
    assert len(fewer) >= 85
    assert sum(map(max, fewer, smaller)) >= 60
    assert sum(map(min, fewer, smaller)) >= 20
    # Known from the sources.
    assert {name: costs[name] for name in PUBLISHED} == PUBLISHED


def test_same_problem_same_answer():
    for path in KNOWN[::5]:
        problem = load(path)
        assert answer_of(path) == solve(problem) == solve(problem, workers=2)
