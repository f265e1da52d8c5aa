//@ start
#include "bench.cuh"
using T = @ELEMENT@; using V = @VECTOR@;
constexpr int VEC = @COUNT@, K = 4096 / VEC;
//@ kernel
__global__ void __launch_bounds__(256) @NAME@_kernel(const T* x, const T* y, T* out) {
    extern __shared__ __align__(1024) unsigned char memory[];
    constexpr int tile = (@NAME@_bytes + 127) / 128 * 128;
    const int tid = threadIdx.x;
    x += (blockIdx.x / 16 * 64 + tid / 8) * K + VEC * (tid % 8);
    y += (blockIdx.x % 16 * 64 + tid / 8) * K + VEC * (tid % 8);
    V xs[2], ys[2];
    auto fetch = [&](int at) {
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
            xs[i] = *reinterpret_cast<const V*>(x + 32 * i * K + at);
            ys[i] = *reinterpret_cast<const V*>(y + 32 * i * K + at);
        }
    };
    auto keep = [&](unsigned char* page) {
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
            *reinterpret_cast<V*>(@NAME@_sts(page, tid, i)) = xs[i];
            *reinterpret_cast<V*>(@NAME@_sts(page + tile, tid, i)) = ys[i];
        }
    };
    T acc[4][4] = {};
    fetch(0);
    keep(memory);
    __syncthreads();
    #pragma unroll 1
    for (int at = 0, page = 0; at < K; at += 8 * VEC, page ^= 1) {
        if (at + 8 * VEC < K) fetch(at + 8 * VEC);
        unsigned char* here = memory + page * 2 * tile;
        #pragma unroll
        for (int k = 0; k < 8; ++k) {
            union { V v; T t[VEC]; } a[4], b[4];
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                a[i].v = *reinterpret_cast<const V*>(@NAME@_lds_x(here, tid, k, i));
                b[i].v = *reinterpret_cast<const V*>(@NAME@_lds_y(here + tile, tid, k, i));
            }
            #pragma unroll
            for (int i = 0; i < 4; ++i)
                #pragma unroll
                for (int j = 0; j < 4; ++j)
                    #pragma unroll
                    for (int v = 0; v < VEC; ++v) acc[i][j] += a[i].t[v] * b[j].t[v];
        }
        if (at + 8 * VEC < K) keep(memory + (page ^ 1) * 2 * tile);
        __syncthreads();
    }
    T sum = 0;
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        #pragma unroll
        for (int j = 0; j < 4; ++j) sum += acc[i][j] * T(1 + j + 4 * i);
    out[blockIdx.x * 256 + tid] = sum;
}
//@ main
typedef void (*Kernel)(const T*, const T*, T*);
int main() {
    const int blocks = 256 * 8;
    std::vector<T> host(2048 * 4 * size_t(K)), sums(blocks * 256), first;
    for (size_t k = 0; k < host.size(); ++k) host[k] = T((k * 2654435761u >> 9) % 9) / 8 - T(0.5);
    T *x, *y, *out;
    cudaMalloc(&x, host.size() * sizeof(T)); cudaMalloc(&y, host.size() * sizeof(T));
    cudaMalloc(&out, sums.size() * sizeof(T));
    cudaMemcpy(x, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
    std::reverse(host.begin(), host.end());
    cudaMemcpy(y, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
    Run<Kernel> runs[] = {
@RUNS@};
    auto launch = [&](Run<Kernel>& run) { run.kernel<<<blocks, 256, run.shared>>>(x, y, out); };
    time_runs(runs, launch, [&](Run<Kernel>&) {
        cudaMemcpy(sums.data(), out, sums.size() * sizeof(T), cudaMemcpyDeviceToHost);
        if (first.empty()) first = sums;
        return sums == first;
    });
}
