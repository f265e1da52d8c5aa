// ldmatrix and mma on tiles of 64 columns of 16 bits, neither padded nor swizzled.
// launch: {"entry": "gemm", "block": [128, 1, 1], "grid": [1, 1, 1], "args": [["u16*", 4096, "zeros"], ["u16*", 4096, "zeros"], ["f32*", 4096]]}
#include <cstdint>
__device__ __forceinline__ unsigned at(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
extern "C" __global__ void gemm(const uint4* a, const uint4* b, float* c) {
    __shared__ __align__(128) uint16_t As[64 * 64], Bs[64 * 64];
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    for (int i = t; i < 512; i += 128) {
        *reinterpret_cast<uint4*>(&As[i / 8 * 64 + i % 8 * 8]) = a[i];
        *reinterpret_cast<uint4*>(&Bs[i / 8 * 64 + i % 8 * 8]) = b[i];
    }
    __syncthreads();
    float d[8][4] = {};
    for (int k = 0; k < 64; k += 16) {
        unsigned x[4], y[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at(&As[(warp * 16 + lane % 16) * 64 + k + lane / 16 * 8])));
        for (int n = 0; n < 8; ++n) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                         : "=r"(y[0]), "=r"(y[1]) : "r"(at(&Bs[(k + lane % 16) * 64 + n * 8])));
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                         "{%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
                         : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
        }
    }
    for (int n = 0; n < 8; ++n)
        for (int i = 0; i < 4; ++i)
            c[(warp * 16 + lane / 4 + i / 2 * 8) * 64 + n * 8 + lane % 4 * 2 + i % 2] = d[n][i];
}
