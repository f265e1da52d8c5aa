"""Time a 4096x4096 transpose on the GPU with three layouts of its tile, beside a device copy.

    python scripts/measure/bench_transpose.py --write bench.cu     here: solve, and write the program
    nvcc -O3 -std=c++17 -arch=sm_90 -o bench bench.cu && ./bench

The kernels are the same but for the emitted address functions: no layout, one word of padding, ours.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from layoutopt.codegen import cuda
from layoutopt.codegen.languages import plan
from layoutopt.hardware.devices import device
from layoutopt.problems.file import from_data
from layoutopt.problems.types import Problem
from layoutopt.synthesis.solve import solve

F32 = {
    "name": "f32", "tile": {"shape": [32, 32], "element": "f32"}, "threads": 256,
    "accesses": [
        {"name": "rows", "op": "store", "bytes": 4, "index": ["warp + 8*i", "lane"], "for": {"i": 4}},
        {"name": "columns", "op": "load", "bytes": 4, "index": ["lane", "warp + 8*i"], "for": {"i": 4}},
    ],
}  # fmt: skip
F16 = {
    "name": "f16", "tile": {"shape": [64, 64], "element": "f16"}, "threads": 256,
    "accesses": [
        {"name": "rows", "op": "store", "bytes": 4, "index": ["warp + 8*i", "2*lane"], "for": {"i": 8}},
        {"name": "columns", "op": "load", "bytes": 2, "index": ["2*lane + h", "warp + 8*i"], "for": {"i": 8, "h": 2}},
    ],
}  # fmt: skip

KERNELS = {
    "f32": r"""
__global__ void NAME_transpose(const float* in, float* out) {
    __shared__ alignas(NAME_alignment) unsigned char smem[NAME_bytes];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const float* from = in + (blockIdx.y * 32 + warp) * N + blockIdx.x * 32 + lane;
    float* to = out + (blockIdx.x * 32 + warp) * N + blockIdx.y * 32 + lane;
    float v[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = from[8 * i * N];
    #pragma unroll
    for (int i = 0; i < 4; ++i) *NAME_rows(smem, tid, i) = v[i];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 4; ++i) to[8 * i * N] = *NAME_columns(smem, tid, i);
}
""",
    "f16": r"""
__global__ void NAME_transpose(const __half* in, __half* out) {
    __shared__ alignas(NAME_alignment) unsigned char smem[NAME_bytes];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const __half* from = in + (blockIdx.y * 64 + warp) * N + blockIdx.x * 64 + 2 * lane;
    __half* to = out + (blockIdx.x * 64 + warp) * N + blockIdx.y * 64 + 2 * lane;
    __half2 v[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = *reinterpret_cast<const __half2*>(from + 8 * i * N);
    #pragma unroll
    for (int i = 0; i < 8; ++i) *NAME_rows(smem, tid, i) = v[i];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        *reinterpret_cast<__half2*>(to + 8 * i * N) =
            __halves2half2(*NAME_columns(smem, tid, i, 0), *NAME_columns(smem, tid, i, 1));
}
""",
}
MAIN = r"""
#include <algorithm>
#include <cstdio>
#include <vector>
template <class T, class Launch>
void time_it(const char* name, Launch launch, const std::vector<T>& host, T* in, T* out, bool transposes) {
    cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
    std::vector<float> times;
    cudaMemset(out, 0, sizeof(T) * size_t(N) * N);
    for (int k = 0; k < 60; ++k) {
        cudaEventRecord(a); launch(in, out); cudaEventRecord(b); cudaEventSynchronize(b);
        float ms; cudaEventElapsedTime(&ms, a, b);
        if (k >= 10) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    std::vector<T> back(host.size());
    cudaMemcpy(back.data(), out, sizeof(T) * back.size(), cudaMemcpyDeviceToHost);
    size_t wrong = 0;
    for (size_t r = 0; r < N; ++r)
        for (size_t c = 0; c < N; ++c)
            wrong += back[r * N + c] != (transposes ? host[c * N + r] : host[r * N + c]);
    float ms = times[times.size() / 2];
    std::printf("%-12s %8.1f us %8.0f GB/s  %s %s\n", name, ms * 1000, 2e-6 * sizeof(T) * N * N / ms,
                wrong ? "WRONG" : "right", cudaGetErrorString(cudaGetLastError()));
}
"""


def variants(data: dict[str, object]) -> dict[str, Problem]:
    problem = from_data(data)
    return {
        kind: msgspec.structs.replace(problem, name=f"{problem.name}_{kind}")
        for kind in ("none", "pad", "ours")
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, required=True)
    args = parser.parse_args()
    gpu = device("sm_90")
    text = ["#include <cuda_fp16.h>", "constexpr int N = 4096;"]
    body = []
    for data, side, pad in ((F32, 32, 1), (F16, 64, 2)):
        kind = str(data["name"])
        host = "unsigned" if kind == "f32" else "unsigned short"
        body.append(
            f"{{ std::vector<{host}> host(size_t(N) * N); for (size_t k = 0; k < host.size(); ++k) "
            f"host[k] = ({host})(k * 2654435761u >> 7) & 0x3bff; {host} *in, *out; size_t size = sizeof({host}) * host.size(); "
            "cudaMalloc(&in, size); cudaMalloc(&out, size); cudaMemcpy(in, host.data(), size, cudaMemcpyHostToDevice);\n"
            f'time_it<{host}>("{kind} copy", [&](auto a, auto b) {{ cudaMemcpyAsync(b, a, size, '
            "cudaMemcpyDeviceToDevice); }, host, in, out, false);"
        )
        element = "float" if kind == "f32" else "__half"
        for layout, problem in variants(data).items():
            answer = (
                solve(problem) if layout == "ours" else f"x0*{side + (pad if layout == 'pad' else 0)} + x1"
            )
            planned = plan(problem, gpu, answer)
            text += [
                cuda.emit(planned).replace("#pragma once", ""),
                KERNELS[kind].replace("NAME", planned.name),
            ]
            body.append(
                f'time_it<{host}>("{planned.name}", [&](auto a, auto b) {{ {planned.name}_transpose<<<dim3(N / {side}, '
                f"N / {side}), 256>>>(reinterpret_cast<const {element}*>(a), reinterpret_cast<{element}*>(b)); }}, "
                "host, in, out, true);"
            )
        body.append("cudaFree(in); cudaFree(out); }")
    args.write.write_text("\n".join([*text, MAIN, "int main() {", *body, "}"]) + "\n")


if __name__ == "__main__":
    main()
