// A bulk copy that a barrier in memory announces, read by columns.
// launch: {"entry": "columns", "block": [64, 1, 1], "grid": [2, 1, 1], "args": [["f32*", 4096, "iota"], ["f32*", 4096]]}
#include <cstdint>
__device__ __forceinline__ unsigned at(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
extern "C" __global__ void columns(const float* in, float* out) {
    __shared__ __align__(128) float tile[32][64];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&full)) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 8192;" ::"r"(at(&full)) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 8192, [%2];"
                     ::"r"(at(tile)), "l"(in + blockIdx.x * 2048), "r"(at(&full)) : "memory");
    }
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(at(&full)) : "memory");
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int j = warp; j < 64; j += 2) out[blockIdx.x * 2048 + j * 32 + lane] = tile[lane][j];
}
