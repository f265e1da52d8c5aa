// golden on sm_90: layout by layoutopt VERSION
// element offset = x0*64 + (x1 ^ x0 % 8 * 8)
// 4096 bytes, 0 excess wavefronts; optimal: excess >= 0 (every layout), bytes >= 4096 (every layout)
#pragma once
#include <cstdint>
#ifndef __CUDACC__  // plain C++, for tests on the host
#ifndef __host__
#define __host__
#define __device__
#endif
#endif

constexpr uint32_t golden_bytes = 4096;
constexpr uint32_t golden_alignment = 128;
// __shared__ alignas(golden_alignment) unsigned char smem[golden_bytes];
// or __shared__ alignas(golden_alignment) __half smem[2048];

// Byte offset of an element.
__host__ __device__ constexpr uint32_t golden_offset_bytes(uint32_t x0, uint32_t x1) {
    return (x0 * 64 + (x1 ^ ((x0 & 7) * 8))) * 2;
}

// fill: cp.async; 32 wavefronts, ideal 32, bank_conflicts 0
// i < 2
__host__ __device__ constexpr uint32_t golden_fill_bytes(int tid, int i) {
    return static_cast<uint32_t>((tid >> 3) * 128 + (((tid & 7) * 8) ^ (((tid >> 3) & 7) * 8)) * 2 + i * 2048);
}

// read: ldmatrix.x4; 64 wavefronts, ideal 64, bank_conflicts 0
// k < 4
__host__ __device__ constexpr uint32_t golden_read_bytes(int tid, int k) {
    return static_cast<uint32_t>((tid & 15) * 128 + ((k * 16 + ((tid & 31) >> 4) * 8) ^ ((tid & 7) * 8)) * 2 + ((tid >> 5) & 1) * 2048);
}
