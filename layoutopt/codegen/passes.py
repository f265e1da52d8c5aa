"""A CUDA program that times whole passes: several layouts of one tile, one after the other.

One pass of a block executes all accesses in the order of the problem, each by its emitted address and in all
of its iterations, with a barrier after each. A layout has one kernel, in two modes:

    once    every address is computed in every pass, as a block does that comes once
    kept    what does not change from pass to pass may be kept, as in a main loop

each by one block, and by as many blocks as fit on every multiprocessor, together: then a multiprocessor's
cycles for one of the passes that its blocks make. Called with `profile`, the
program runs one pass of one block of each layout, for a profiler to count.

`run_passes` of `layoutopt.hardware.machine` reads what it prints: a line for each layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from layoutopt.codegen import cuda
from layoutopt.codegen.c_family import arguments, guarded_loops, parameter
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.codegen.selftest import access_instruction

REPEATS: Final = 64
LAUNCHES: Final = 5


def program(plans: Sequence[Plan]) -> str:
    """The text of the program; `nvcc -arch=native` compiles it.

    Args:
        plans: the layouts, all of one tile with the same threads; their names differ.
    """
    headers = [cuda.emit(plan).replace("#pragma once\n", "") for plan in plans]
    kernels = [_kernel(plan) for plan in plans]
    profiled = [f"        profile({plan.name}_pass<0>, {plan.bytes});" for plan in plans]
    runs = [
        f"        time({k}, {plan.name}_pass<0>, {plan.name}_pass<1>, {plan.bytes});"
        for k, plan in enumerate(plans)
    ]
    text = _PROGRAM
    for key, value in {
        "HEADERS": "\n".join(headers),
        "KERNELS": "\n".join(kernels),
        "RUNS": "\n".join(runs),
        "PROFILED": "\n".join(profiled),
        "THREADS": str(plans[0].problem.threads),
        "REPEATS": str(REPEATS),
        "LAUNCHES": str(LAUNCHES),
    }.items():
        text = text.replace(f"@{key}@", value)
    return text


def _kernel(plan: Plan) -> str:
    """Both modes.

    In the first the thread and the tile's start pass through an XOR with a zero that the compiler does not
    know, so that no address outlives a pass: it takes an empty `asm` for nothing, and hoists or computes anew
    as it likes, layout by layout.
    """
    parts = []
    for access in plan.accesses:
        parts += _access(access)
    return "\n".join(
        [
            "template <int KEPT>",
            f"__global__ void __launch_bounds__({plan.problem.threads})",
            f"{plan.name}_pass(uint32_t* cells, int repeats, int zero, Span* spans) {{",
            "    extern __shared__ __align__(1024) unsigned char tile[];",
            "    uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(tile));",
            "    int tid = threadIdx.x;",
            "    uint32_t v[4] = {cells[tid], cells[tid + 1], cells[tid + 2], cells[tid + 3]}, sum = 0;",
            "    __syncthreads();",
            "    const long long start = clock64();",
            "    #pragma unroll 1",
            "    for (int repeat = 0; repeat < repeats; ++repeat) {",
            "        if (!KEPT) { tid ^= zero; smem ^= zero; }",
            *parts,
            "    }",
            "    const long long end = clock64();",
            "    if (threadIdx.x == 0) spans[blockIdx.x] = {start, end, multiprocessor()};",
            "    cells[threadIdx.x] = sum ^ v[0] ^ v[1] ^ v[2] ^ v[3];",
            "}",
        ]
    )


def _access(access: AccessPlan) -> list[str]:
    """All iterations of one access, then the barrier."""
    operation = access.lanes.operation
    address = f"smem + {access.name}_bytes({arguments(access)})"
    base = []
    if access.form.has_step:
        step = ", ".join(map(parameter, access.access.loops))
        address = f"smem + {access.name}_step(base, {step})"
        base = [f"            const uint32_t base = {access.name}_base(tid); (void)base;"]
    does = operation.does
    # What is loaded must be used, or the assembler leaves the load out; into registers of its own, or a load
    # under a predicate waits for the one before.
    words = operation.matrices or max(1, operation.width_bytes // 4)
    own = "uint32_t v[4]; " if does.returns and not does.adds else ""
    use = f" sum ^= {' ^ '.join(f'v[{k}]' for k in range(words))};" if does.returns else ""
    statement = f"{{ {own}{access_instruction(access, address)}{use} }}"
    cell = [f"            const uint32_t* cell = cells + {operation.width_bytes // 4} * tid;"]
    wait = ['            asm volatile("cp.async.wait_all;" ::: "memory");']
    return [
        "        {",
        *base,
        *(cell if does.copies else []),
        *(f"        {line}" for line in guarded_loops(access, statement)),
        *(wait if does.copies else []),
        "            __syncthreads();",
        "        }",
    ]


_PROGRAM: Final = r"""// Cycles of passes. nvcc -std=c++17 -arch=native -o passes passes.cu && ./passes
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>
@HEADERS@

namespace {

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); std::exit(3); } } while (0)

// When a block began and ended its passes, by the clock of its multiprocessor.
struct Span { long long start, end; unsigned processor; };

__device__ unsigned multiprocessor() {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

@KERNELS@

typedef void (*Pass)(uint32_t*, int, int, Span*);

// Cycles of a multiprocessor for one pass, the mean of those that had blocks: the median of some launches
// after the first.
double launch(Pass kernel, int blocks, int bytes) {
    std::vector<Span> spans(blocks);
    std::vector<double> means;
    uint32_t* d_cells; Span* d_spans;
    CHECK(cudaMalloc(&d_cells, 65536)); CHECK(cudaMemset(d_cells, 0, 65536));
    CHECK(cudaMalloc(&d_spans, blocks * sizeof(Span)));
    for (int again = 0; again <= @LAUNCHES@; ++again) {
        kernel<<<blocks, @THREADS@, bytes>>>(d_cells, @REPEATS@, 0, d_spans);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(spans.data(), d_spans, blocks * sizeof(Span), cudaMemcpyDeviceToHost));
        std::map<unsigned, Span> whole;
        std::map<unsigned, int> count;
        for (const Span& each : spans) {
            Span& span = whole.emplace(each.processor, each).first->second;
            span.start = std::min(span.start, each.start);
            span.end = std::max(span.end, each.end);
            ++count[each.processor];
        }
        double sum = 0;
        for (const auto& [processor, span] : whole)
            sum += double(span.end - span.start) / count[processor] / @REPEATS@;
        if (again) means.push_back(sum / whole.size());
    }
    CHECK(cudaFree(d_cells)); CHECK(cudaFree(d_spans));
    std::sort(means.begin(), means.end());
    return means[means.size() / 2];
}

void prepare(Pass kernel, int bytes) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
}

void profile(Pass kernel, int bytes) {
    uint32_t* d_cells; Span* d_spans;
    CHECK(cudaMalloc(&d_cells, 65536)); CHECK(cudaMemset(d_cells, 0, 65536));
    CHECK(cudaMalloc(&d_spans, sizeof(Span)));
    prepare(kernel, bytes);
    kernel<<<1, @THREADS@, bytes>>>(d_cells, 1, 0, d_spans);
    CHECK(cudaGetLastError());
    CHECK(cudaFree(d_cells)); CHECK(cudaFree(d_spans));
}

void time(int row, Pass once, Pass kept, int bytes) {
    for (Pass kernel : {once, kept}) prepare(kernel, bytes);
    int fit = 0, processors = 0;
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, once));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, once, @THREADS@, bytes));
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    std::printf("pass\t%d\t%d\t%d", row, fit, attributes.numRegs);
    for (Pass kernel : {once, kept})
        for (int blocks : {1, fit * processors}) std::printf("\t%.1f", launch(kernel, blocks, bytes));
    std::printf("\n");
    std::fflush(stdout);
}

}  // namespace

// A line a layout: its number; blocks that fit on a multiprocessor; registers of a thread; cycles of a pass,
// once by one block and together, kept by one block and together.
int main(int argc, char**) {
    if (argc > 1) {
@PROFILED@
    } else {
@RUNS@
    }
    CHECK(cudaDeviceSynchronize());
    return 0;
}
"""
