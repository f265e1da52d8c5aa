// Records the shared-memory addresses that a kernel issues, for `layoutopt import trace`.
//
//   #include "layoutopt_record.cuh"
//   __global__ void kernel(...) {
//       __shared__ float tile[32][33];
//       LAYOUTOPT_RECORD("columns", "ld.shared.b32", tile, &tile[threadIdx.x][threadIdx.y]);
//       float value = tile[threadIdx.x][threadIdx.y];   // the access itself, as it was
//   }
//   int main() { kernel<<<grid, block>>>(...); layoutopt_record::dump("trace.jsonl"); }
//
// Put the macro beside each access, inside the same condition: lanes that do not reach it are recorded as
// inactive. It takes the name of the access, the instruction, the start of the tile and the address that
// the lane uses; for ldmatrix the address that the lane gives. The address may be a pointer or, as asm
// wants it, an unsigned from __cvta_generic_to_shared. Only block (0, 0, 0) is recorded.
#pragma once
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#ifndef LAYOUTOPT_RECORD_CAPACITY
#define LAYOUTOPT_RECORD_CAPACITY 16384
#endif

namespace layoutopt_record {

struct Entry {
    char access[32];
    char op[40];
    unsigned warp, active, address[32];
};

static __device__ Entry entries[LAYOUTOPT_RECORD_CAPACITY];
static __device__ unsigned taken;

static __device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
static __device__ __forceinline__ unsigned shared_address(unsigned p) { return p; }

template <class Base, class Address>
static __device__ __noinline__ void record(const char* access, const char* op, Base base, Address address) {
    if (blockIdx.x | blockIdx.y | blockIdx.z) return;
    unsigned active = __activemask();
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned lane = thread % 32, first = __ffs(active) - 1, slot = 0;
    if (lane == first) slot = atomicAdd(&taken, 1u);
    slot = __shfl_sync(active, slot, first);
    if (slot >= LAYOUTOPT_RECORD_CAPACITY) return;
    Entry& entry = entries[slot];
    if (lane == first) {
        for (unsigned i = 0; i < sizeof entry.access; ++i) {
            entry.access[i] = *access;
            if (*access) ++access;
        }
        for (unsigned i = 0; i < sizeof entry.op; ++i) {
            entry.op[i] = *op;
            if (*op) ++op;
        }
        entry.warp = thread / 32;
        entry.active = active;
    }
    entry.address[lane] = shared_address(address) - shared_address(base);
}

// Write what was recorded, oldest first, and forget it. Returns false, and says why, if that fails.
static bool dump(const char* path) {
    cudaError_t error = cudaDeviceSynchronize();
    unsigned count = 0, none = 0;
    if (error == cudaSuccess) error = cudaMemcpyFromSymbol(&count, taken, sizeof count);
    unsigned kept = count < LAYOUTOPT_RECORD_CAPACITY ? count : LAYOUTOPT_RECORD_CAPACITY;
    std::vector<Entry> read(kept);
    if (error == cudaSuccess && kept) error = cudaMemcpyFromSymbol(read.data(), entries, kept * sizeof(Entry));
    if (error == cudaSuccess) error = cudaMemcpyToSymbol(taken, &none, sizeof none);
    if (error != cudaSuccess) {
        std::fprintf(stderr, "layoutopt_record: %s\n", cudaGetErrorString(error));
        return false;
    }
    std::FILE* file = std::fopen(path, "w");
    if (!file) {
        std::fprintf(stderr, "layoutopt_record: cannot write %s\n", path);
        return false;
    }
    std::map<std::pair<std::string, unsigned>, unsigned> executed;
    for (Entry& entry : read) {
        entry.access[sizeof entry.access - 1] = entry.op[sizeof entry.op - 1] = 0;
        unsigned sequence = executed[{entry.access, entry.warp}]++;
        std::fprintf(file, "{\"access\": \"%s\", \"op\": \"%s\", \"warp\": %u, \"sequence\": %u, \"byte_address\": [",
                     entry.access, entry.op, entry.warp, sequence);
        for (unsigned lane = 0; lane < 32; ++lane)
            std::fprintf(file, "%s%u", lane ? ", " : "", entry.active >> lane & 1 ? entry.address[lane] : 0u);
        std::fprintf(file, "], \"active\": \"0x%08x\"}\n", entry.active);
    }
    bool whole = std::fclose(file) == 0;
    if (count > kept) {
        std::fprintf(stderr, "layoutopt_record: %u of %u records lost; define LAYOUTOPT_RECORD_CAPACITY\n",
                     count - kept, count);
        whole = false;
    }
    return whole;
}

}  // namespace layoutopt_record

#define LAYOUTOPT_RECORD(access, op, base, address) layoutopt_record::record(access, op, base, address)
