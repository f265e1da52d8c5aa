"""A 4096x4096 transpose with layouts of its tile, beside a device copy; `bench.py` runs it.

The kernels are the same but for the emitted address functions.
"""

from __future__ import annotations

from layoutopt.codegen import cuda
from layoutopt.codegen.plan import Plan

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

WRITTEN = {
    "f32": {"none": "x0*32 + x1", "pad": "x0*33 + x1"},
    "f16": {"none": "x0*64 + x1", "pad": "x0*66 + x1"},
}
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
typedef void (*Kernel)(const T*, T*);
int main() {
    std::vector<Bits> host(size_t(N) * N), back(host.size());
    for (size_t k = 0; k < host.size(); ++k) host[k] = Bits(k * 2654435761u >> 7) & 0x3bff;
    const size_t size = sizeof(T) * host.size();
    T *in, *out; cudaMalloc(&in, size); cudaMalloc(&out, size);
    cudaMemcpy(in, host.data(), size, cudaMemcpyHostToDevice);
    cudaMemset(out, 0, size);
    Run<Kernel> runs[] = {
@RUNS@, {"copy", nullptr}};
    auto launch = [&](Run<Kernel>& run) {
        if (run.kernel) run.kernel<<<dim3(N / SIDE, N / SIDE), 256>>>(in, out);
        else cudaMemcpyAsync(out, in, size, cudaMemcpyDeviceToDevice);
    };
    time_runs(runs, launch, [&](Run<Kernel>& run) {
        cudaMemcpy(back.data(), out, size, cudaMemcpyDeviceToHost);
        cudaMemset(out, 0, size);
        size_t wrong = 0;
        for (size_t r = 0; r < N; ++r)
            for (size_t c = 0; c < N; ++c)
                wrong += back[r * N + c] != (run.kernel ? host[c * N + r] : host[r * N + c]);
        return !wrong;
    });
}
"""


def program(plans: dict[str, Plan], kind: str) -> str:
    """The program that times every layout, and a copy; `kind` is f32 or f16."""
    element, bits, side = ("float", "unsigned", 32) if kind == "f32" else ("__half", "unsigned short", 64)
    types = f"using T = {element}; using Bits = {bits}; constexpr int N = 4096, SIDE = {side};"
    text = ['#include "bench.cuh"', "#include <cuda_fp16.h>", types]
    for name, planned in plans.items():
        text += [cuda.emit(planned).replace("#pragma once", ""), KERNELS[kind].replace("NAME", name)]
    runs = ",\n".join(f'        {{"{name}", {name}_transpose}}' for name in plans)
    return "\n".join([*text, MAIN.replace("@RUNS@", runs)])
