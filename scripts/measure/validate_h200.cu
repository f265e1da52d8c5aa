// Template of scripts/measure/validate_h200.py, which fills in the kernels and the tests.
#include <sys/stat.h>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include "layoutopt_record.cuh"
#include "transposed.cuh"
#include "gemm_a.cuh"

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); std::exit(1); } } while (0)

//KERNELS

// The transpose of the CUDA samples: rows in, columns out; PITCH 0 takes the layout that was solved.
template <int PITCH>
__device__ int tile_index(int row, int column) {
    return PITCH ? row * PITCH + column : transposed_offset_bytes(row, column) / 4;
}
template <int PITCH, bool RECORD>
__global__ void transpose(const float* in, float* out) {
    __shared__ alignas(128) float tile[32 * 33];
    int x = threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += 8) {
        float* p = &tile[tile_index<PITCH>(y, x)];
        if (RECORD) LAYOUTOPT_RECORD("rows", "st.shared.b32", tile, p);
        *p = in[y * 32 + x];
    }
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 8) {
        float* p = &tile[tile_index<PITCH>(x, y)];
        if (RECORD) LAYOUTOPT_RECORD("columns", "ld.shared.b32", tile, p);
        out[y * 32 + x] = *p;
    }
}
// The A tile of a matrix product: 16-byte stores, ldmatrix.x4.
template <bool SOLVED, bool RECORD>
__global__ void gemm(const uint4* in, uint32_t* out) {
    __shared__ alignas(128) unsigned char tile[8192];
    uint32_t base = __cvta_generic_to_shared(tile), r[4], sum = 0;
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    for (int i = 0; i < 4; ++i) {
        int row = tid / 8 + 16 * i, column = tid % 8 * 8;
        uint32_t at = SOLVED ? gemm_a_offset_bytes(row, column) : row * 128 + column * 2;
        if (RECORD) LAYOUTOPT_RECORD("fill", "st.shared.v4.b32", tile, base + at);
        uint4 v = in[row * 8 + tid % 8];
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" :: "r"(base + at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
    }
    __syncthreads();
    for (int i = 0; i < 4; ++i) {
        int row = 16 * warp + lane % 16, column = lane / 16 * 8 + 16 * i;
        uint32_t at = SOLVED ? gemm_a_offset_bytes(row, column) : row * 128 + column * 2;
        if (RECORD) LAYOUTOPT_RECORD("fragments", "ldmatrix.x4", tile, base + at);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(base + at) : "memory");
        for (int j = 0; j < 4; ++j) sum = sum * 31 + r[j];
    }
    out[tid] = sum;
}

struct Test { void (*kernel)(const uint32_t*, uint32_t*); size_t start; int outputs; };
const Test tests[] = {
//TESTS
};

int main(int argc, char** argv) {
    if (argc < 2) return 2;
    std::string folder = argv[1];
    mkdir(folder.c_str(), 0777);
    std::ifstream file("in.bin", std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    uint32_t *in, *out;
    CHECK(cudaMalloc(&in, bytes.size()));
    CHECK(cudaMalloc(&out, 1 << 20));
    CHECK(cudaMemcpy(in, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    std::ofstream result(folder + "/out.bin", std::ios::binary);
    std::vector<char> read;
    auto keep = [&](int words) {
        CHECK(cudaDeviceSynchronize());
        read.resize(words * 4);
        CHECK(cudaMemcpy(read.data(), out, read.size(), cudaMemcpyDeviceToHost));
        result.write(read.data(), read.size());
        CHECK(cudaMemset(out, 0, 1 << 20));
    };
    CHECK(cudaMemset(out, 0, 1 << 20));
    for (const Test& test : tests) {
        test.kernel<<<1, 32>>>(in + test.start, out);
        keep(test.outputs);
    }
    const float* floats = reinterpret_cast<const float*>(in);
    float* sink = reinterpret_cast<float*>(out);
    dim3 block(32, 8);
    transpose<32, true><<<1, block>>>(floats, sink);
    if (!layoutopt_record::dump((folder + "/transpose_none.jsonl").c_str())) return 1;
    transpose<33, true><<<1, block>>>(floats, sink);
    if (!layoutopt_record::dump((folder + "/transpose_pad.jsonl").c_str())) return 1;
    gemm<false, true><<<1, 128>>>((const uint4*)in, out);
    if (!layoutopt_record::dump((folder + "/gemm_none.jsonl").c_str())) return 1;
    transpose<32, false><<<1, block>>>(floats, sink);
    transpose<33, false><<<1, block>>>(floats, sink);
    transpose<0, false><<<1, block>>>(floats, sink);
    keep(1024);
    gemm<false, false><<<1, 128>>>((const uint4*)in, out);
    keep(128);
    gemm<true, false><<<1, 128>>>((const uint4*)in, out);
    keep(128);
    std::printf("done\n");
}
