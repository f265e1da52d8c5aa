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
