// golden on sm_90: layout by layoutopt VERSION
// element offset = x0*64 + (x1 ^ x0 % 8 * 8)
// 4096 bytes, 0 excess wavefronts; optimal: excess >= 0 (every layout), bytes >= 4096 (every layout)
#pragma once
#include <cstdint>
#ifdef __CUDACC__
#include <cuda_fp16.h>
#else  // plain C++, for tests on the host
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
// index instructions: 4 once, 0 in 2 iterations
// i < 2; an iteration costs an immediate
__host__ __device__ constexpr uint32_t golden_fill_base(int tid) {
    return (uint32_t)((tid * 16) ^ ((tid & 56) * 2));
}
__host__ __device__ constexpr uint32_t golden_fill_step(uint32_t base, int i) {
    return (uint32_t)(base + i * 2048);
}
__host__ __device__ constexpr uint32_t golden_fill_bytes(int tid, int i) {
    return golden_fill_step(golden_fill_base(tid), i);
}
#ifdef __CUDACC__
// smem: __cvta_generic_to_shared of the tile
__device__ __forceinline__ void golden_fill(uint32_t smem, int tid, int i, const void* source) {
    const uint32_t address = golden_fill_step(smem + golden_fill_base(tid), i);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(__cvta_generic_to_global(source)) : "memory");
}
template <class Body>  // calls body(address, i)
__device__ __forceinline__ void golden_fill_each(uint32_t smem, int tid, Body body) {
    const uint32_t base = smem + golden_fill_base(tid);
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        body(golden_fill_step(base, i), i);
    }
}
#endif

// read: ldmatrix.x4; 64 wavefronts, ideal 64, bank_conflicts 0
// index instructions: 8 once, 3 in 4 iterations
// k < 4; an iteration costs one XOR
__host__ __device__ constexpr uint32_t golden_read_base(int tid) {
    return (uint32_t)(((tid & 15) * 128) ^ ((tid & 32) * 64) ^ ((tid & 7) * 16) ^ (tid & 16));
}
__host__ __device__ constexpr uint32_t golden_read_step(uint32_t base, int k) {
    return (uint32_t)(base ^ (k * 32));
}
__host__ __device__ constexpr uint32_t golden_read_bytes(int tid, int k) {
    return golden_read_step(golden_read_base(tid), k);
}
#ifdef __CUDACC__
// smem: __cvta_generic_to_shared of the tile
__device__ __forceinline__ void golden_read(uint32_t smem, int tid, int k, uint32_t (&v)[4]) {
    const uint32_t address = golden_read_step(smem + golden_read_base(tid), k);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(address) : "memory");
}
template <class Body>  // calls body(address, k)
__device__ __forceinline__ void golden_read_each(uint32_t smem, int tid, Body body) {
    const uint32_t base = smem + golden_read_base(tid);
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        body(golden_read_step(base, k), k);
    }
}
#endif

static_assert(golden_offset_bytes(0, 0) == 0, "the layout");
static_assert(golden_offset_bytes(1, 1) == 146, "the layout");
static_assert(golden_offset_bytes(16, 32) == 2112, "the layout");
static_assert(golden_offset_bytes(31, 63) == 3982, "the layout");
static_assert(golden_fill_bytes(127, 1) == 3968, "golden_fill");
static_assert(golden_read_bytes(127, 3) == 3968, "golden_read");

#ifdef __CUDACC__
// The copies issued since the last commit are one group; wait until at most N are under way.
__device__ __forceinline__ void golden_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void golden_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
#endif
