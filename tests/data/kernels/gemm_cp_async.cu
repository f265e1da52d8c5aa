// Three stages filled by cp.async, read by ldmatrix, 16-byte columns XORed with the row.
// launch: {"entry": "gemm", "block": [128, 1, 1], "grid": [2, 1, 1], "args": [["u16*", 24576, "zeros"], ["f32*", 8192], ["i32", 6]]}
#include <cstdint>
__device__ __forceinline__ unsigned at(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
extern "C" __global__ void gemm(const uint16_t* a, float* c, int steps) {
    __shared__ __align__(128) uint16_t As[3][64 * 32];
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    a += blockIdx.x * 64 * 32 * steps, c += blockIdx.x * 4096;
    auto fill = [&](int s) {
        for (int i = t; i < 256; i += 128) {
            int r = i / 4, q = (i % 4) ^ (r / 2 % 4);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(&As[s % 3][r * 32 + q * 8])),
                         "l"(a + s * 2048 + i * 8) : "memory");
        }
        asm volatile("cp.async.commit_group;");
    };
    fill(0), fill(1);
    float d[4] = {};
    for (int s = 0; s < steps; ++s) {
        asm volatile("cp.async.wait_group 1;");
        __syncthreads();
        if (s + 2 < steps) fill(s + 2); else asm volatile("cp.async.commit_group;");
        for (int k = 0; k < 32; k += 16) {
            unsigned x[4];
            int r = warp * 16 + lane % 16, q = (k / 8 + lane / 16) ^ (r / 2 % 4);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at(&As[s % 3][r * 32 + q * 8])));
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                         "{%4, %5}, {%0, %1, %2, %3};"
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]));
        }
    }
    for (int i = 0; i < 4; ++i) c[t * 4 + i] = d[i];
}
