// Fragments written by stmatrix, rows read as 16-byte vectors.
// launch: {"entry": "epilogue", "block": [128, 1, 1], "grid": [1, 1, 1], "args": [["u32*", 512, "iota"], ["u32*", 2048]]}
#include <cstdint>
extern "C" __global__ void epilogue(const unsigned* in, uint4* out) {
    __shared__ __align__(128) uint16_t tile[64][64];
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    unsigned v[4];
    for (int i = 0; i < 4; ++i) v[i] = in[t * 4 + i];
    for (int n = 0; n < 64; n += 16) {
        unsigned p = static_cast<unsigned>(__cvta_generic_to_shared(&tile[warp * 16 + lane % 16][n + lane / 16 * 8]));
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(p), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
    }
    __syncthreads();
    for (int i = t; i < 512; i += 128) out[i] = *reinterpret_cast<uint4*>(&tile[i / 8][i % 8 * 8]);
}
