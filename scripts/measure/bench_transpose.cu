//@ start
#include "bench.cuh"
#include <cuda_fp16.h>
using T = @ELEMENT@; using Bits = @BITS@; constexpr int N = 4096, SIDE = @SIDE@;
//@ kernel_f32
__global__ void @NAME@_transpose(const float* in, float* out) {
    __shared__ alignas(@NAME@_alignment) unsigned char smem[@NAME@_bytes];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const float* from = in + (blockIdx.y * 32 + warp) * N + blockIdx.x * 32 + lane;
    float* to = out + (blockIdx.x * 32 + warp) * N + blockIdx.y * 32 + lane;
    float v[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = from[8 * i * N];
    #pragma unroll
    for (int i = 0; i < 4; ++i) *@NAME@_rows(smem, tid, i) = v[i];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 4; ++i) to[8 * i * N] = *@NAME@_columns(smem, tid, i);
}
//@ kernel_f16
__global__ void @NAME@_transpose(const __half* in, __half* out) {
    __shared__ alignas(@NAME@_alignment) unsigned char smem[@NAME@_bytes];
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const __half* from = in + (blockIdx.y * 64 + warp) * N + blockIdx.x * 64 + 2 * lane;
    __half* to = out + (blockIdx.x * 64 + warp) * N + blockIdx.y * 64 + 2 * lane;
    __half2 v[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = *reinterpret_cast<const __half2*>(from + 8 * i * N);
    #pragma unroll
    for (int i = 0; i < 8; ++i) *@NAME@_rows(smem, tid, i) = v[i];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 8; ++i)
        *reinterpret_cast<__half2*>(to + 8 * i * N) =
            __halves2half2(*@NAME@_columns(smem, tid, i, 0), *@NAME@_columns(smem, tid, i, 1));
}
//@ main
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
