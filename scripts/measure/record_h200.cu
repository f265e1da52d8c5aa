//@ host
#include <cstdio>
#include <cstdlib>
#include <vector>
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); exit(3); } } while (0)

struct Record { unsigned op, active; unsigned address[32]; };

__device__ __forceinline__ unsigned shared_base() {
    extern __shared__ __align__(1024) unsigned char memory[];
    return static_cast<unsigned>(__cvta_generic_to_shared(memory));
}

extern "C" __global__ void k_none(const Record* r, const unsigned char* source, unsigned* out) {
    unsigned lane = threadIdx.x;
    out[lane] = shared_base() + r->address[lane] + source[lane];
}
@KERNELS@
typedef void (*Kernel)(const Record*, const unsigned char*, unsigned*);

int main(int argc, char** argv) {
    Kernel kernels[] = { @TABLE@ };
    FILE* file = argc > 1 ? fopen(argv[1], "rb") : nullptr;
    if (!file) { fprintf(stderr, "usage: program records.bin\n"); return 3; }
    std::vector<Record> records;
    for (Record r; fread(&r, sizeof r, 1, file) == 1;) records.push_back(r);
    fclose(file);
    Record* table; unsigned char* source; unsigned* out;
    CHECK(cudaMalloc(&table, records.size() * sizeof(Record)));
    CHECK(cudaMalloc(&source, 4096));
    CHECK(cudaMalloc(&out, 32 * 4));
    CHECK(cudaMemset(source, 0, 4096));
    CHECK(cudaMemcpy(table, records.data(), records.size() * sizeof(Record), cudaMemcpyHostToDevice));
    for (size_t i = 0; i < records.size(); ++i) {
        kernels[records[i].op]<<<1, 32, @SHARED_BYTES@>>>(table + i, source, out);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        if (i == 0) {  // k_none at address 0: where shared memory starts
            unsigned base[32];
            CHECK(cudaMemcpy(base, out, sizeof base, cudaMemcpyDeviceToHost));
            if (base[0] % 128) { fprintf(stderr, "shared memory starts at %u\n", base[0]); return 3; }
        }
    }
    return 0;
}
//@ kernel
extern "C" __global__ void @NAME@(const Record* r, const unsigned char* source, unsigned* out) {
    unsigned lane = threadIdx.x, a = shared_base() + r->address[lane];
    unsigned v0 = source[lane], v1 = source[lane + 32], v2 = source[lane + 64], v3 = source[lane + 96];
    if (r->active >> lane & 1) { @STATEMENT@ }
    out[lane] = v0 ^ v1 ^ v2 ^ v3;
}
