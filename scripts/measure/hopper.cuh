// What the programs share that run emitted code on Hopper: TMA's driver call, barriers, the list of cases.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#define CHECK(call)                                                                    \
    do {                                                                               \
        cudaError_t error_ = (call);                                                   \
        if (error_ != cudaSuccess) return std::string(cudaGetErrorString(error_));     \
    } while (0)

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

using Extents = const cuuint64_t*;

static Encode encode_tiled() {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<Encode>(found);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void barrier_begin(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ bool barrier_done(uint32_t bar) {
    uint32_t done = 0;
    for (int tries = 0; tries < 1 << 20 && !done; ++tries)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.b32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(bar) : "memory");
    return done != 0;
}

// 16 rows of so many bytes into 2 KiB of shared memory, of which everything is written to `out`.
__global__ void copy_rows(const __grid_constant__ CUtensorMap map, uint32_t row_bytes, uint16_t* out, int* failed) {
    __shared__ __align__(1024) unsigned char smem[2048];
    __shared__ __align__(8) uint64_t bar;
    const uint32_t base = shared_address(smem), barrier = shared_address(&bar);
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) reinterpret_cast<uint16_t*>(smem)[i] = 0xFFFF;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_begin(barrier, 16 * row_bytes);
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(base),
            "l"(&map), "r"(barrier), "r"(0), "r"(0) : "memory");
    }
    __syncthreads();
    if (!barrier_done(barrier)) *failed = 1;
    __syncthreads();
    for (int i = threadIdx.x; i < 1024; i += blockDim.x) out[i] = reinterpret_cast<uint16_t*>(smem)[i];
}

// Where TMA puts 16 rows of so many 2-byte words, numbered row by row, in a mode; 0xFFFF is where it puts none.
static std::string rows_seen(Encode encode, CUtensorMapSwizzle swizzle, unsigned words, std::vector<uint16_t>& seen) {
    std::vector<uint16_t> global(1024);
    for (size_t i = 0; i < global.size(); ++i) global[i] = static_cast<uint16_t>(i);
    uint16_t* device = nullptr;
    int *device_failed = nullptr, failed = 0;
    CHECK(cudaMalloc(&device, 4096));
    CHECK(cudaMalloc(&device_failed, sizeof(int)));
    CHECK(cudaMemset(device_failed, 0, sizeof(int)));
    CHECK(cudaMemcpy(device, global.data(), 2048, cudaMemcpyHostToDevice));
    CUtensorMap map;
    const cuuint64_t extents[2] = {words, 16}, strides[1] = {2 * words};
    const cuuint32_t box[2] = {words, 16}, ones[2] = {1, 1};
    const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, device, extents, strides, box, ones,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) return "encode: CUresult " + std::to_string(static_cast<int>(result));
    copy_rows<<<1, 128>>>(map, 2 * words, device + 1024, device_failed);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&failed, device_failed, sizeof(int), cudaMemcpyDeviceToHost));
    seen.assign(1024, 0);
    CHECK(cudaMemcpy(seen.data(), device + 1024, 2048, cudaMemcpyDeviceToHost));
    return failed ? "the barrier was not reached" : "";
}

// The same as a line of a file, under a name.
static void write_rows(Encode encode, FILE* out, const std::string& name, int mode, unsigned words) {
    std::vector<uint16_t> seen;
    const std::string error = rows_seen(encode, static_cast<CUtensorMapSwizzle>(mode), words, seen);
    fprintf(out, "{\"name\": \"%s\", \"error\": \"%s\", \"seen\": [", name.c_str(), error.c_str());
    for (size_t i = 0; i < seen.size(); ++i) fprintf(out, "%s%u", i ? ", " : "", seen[i]);
    fprintf(out, "]}\n");
    printf("%s: %s\n", name.c_str(), error.empty() ? "copied" : error.c_str());
    if (!error.empty() && cudaGetLastError() != cudaSuccess) cudaDeviceReset();
}

struct Entry {
    const char* name;
    std::string (*run)(Encode, int&);  // why it could not run, or how many elements are wrong
};

// Every case, or those that are named: a line each in OUT.jsonl. What `more` writes comes behind all of them.
template <size_t Count, class More>
static int run_cases(int count, char** arguments, const Entry (&entries)[Count], More more) {
    FILE* out = fopen(count > 1 ? arguments[1] : "/dev/stdout", "w");
    const Encode encode = encode_tiled();
    if (!out || !encode) {
        fprintf(stderr, "no file or no cuTensorMapEncodeTiled\n");
        return 2;
    }
    int bad = 0;
    for (const Entry& entry : entries) {
        bool named = count <= 2;
        for (int k = 2; k < count; ++k) named |= strcmp(arguments[k], entry.name) == 0;
        if (!named) continue;
        int wrong = 0;
        const std::string error = entry.run(encode, wrong);
        fprintf(out, "{\"name\": \"%s\", \"wrong\": %d, \"error\": \"%s\"}\n", entry.name, wrong, error.c_str());
        fflush(out);
        printf("%s: %d wrong %s\n", entry.name, wrong, error.c_str());
        bad += wrong != 0 || !error.empty();
        if (!error.empty() && cudaGetLastError() != cudaSuccess) cudaDeviceReset();  // the next gets a new context
    }
    if (count <= 2) more(encode, out);
    printf("%d cases wrong\n", bad);
    return fclose(out) != 0 || bad != 0;
}
