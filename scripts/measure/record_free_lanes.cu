//@ start
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
// Words of rows, as words of columns: what one thread holds of a tile.
template <int SIZE> __device__ __forceinline__ void turn(uint32_t*) {}
template <> __device__ __forceinline__ void turn<2>(uint32_t* w) {
    uint32_t t[8];
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        t[k] = __byte_perm(w[2 * k], w[2 * k + 1], 0x5410);
        t[k + 4] = __byte_perm(w[2 * k], w[2 * k + 1], 0x7632);
    }
    #pragma unroll
    for (int k = 0; k < 8; ++k) w[k] = t[k];
}
template <> __device__ __forceinline__ void turn<1>(uint32_t* w) {
    uint32_t t[16];
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        const uint32_t a = __byte_perm(w[4 * k], w[4 * k + 1], 0x5140), b = __byte_perm(w[4 * k + 2], w[4 * k + 3], 0x5140);
        const uint32_t c = __byte_perm(w[4 * k], w[4 * k + 1], 0x7362), d = __byte_perm(w[4 * k + 2], w[4 * k + 3], 0x7362);
        t[k] = __byte_perm(a, b, 0x5410);
        t[4 + k] = __byte_perm(a, b, 0x7632);
        t[8 + k] = __byte_perm(c, d, 0x5410);
        t[12 + k] = __byte_perm(c, d, 0x7632);
    }
    #pragma unroll
    for (int k = 0; k < 16; ++k) w[k] = t[k];
}
//@ kernel
// @SIZE@-byte elements, tiles of @ROWS@ x @COLUMNS@, 16 bytes of global memory a thread on both sides.
__global__ void __launch_bounds__(256) @NAME@_transpose(const unsigned char* in, unsigned char* out, size_t n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    constexpr int FILLS = @FILLS@, DRAINS = @DRAINS@, STEPS = @STEPS@, SIDE = @SIDE@;
    const int tid = threadIdx.x;
    const size_t row = size_t(blockIdx.y) * @ROWS@, column = size_t(blockIdx.x) * @COLUMNS@;
    uint4 v[FILLS];
    #pragma unroll
    for (int i = 0; i < FILLS; ++i)
        v[i] = __ldcs(reinterpret_cast<const uint4*>(
            in + ((row + @NAME@_fill_x0(@FILL_AT@)) * n + column + @NAME@_fill_x1(@FILL_AT@)) * @SIZE@));
    #pragma unroll
    for (int i = 0; i < FILLS; ++i) *reinterpret_cast<uint4*>(@NAME@_fill(smem, @FILL_AT@)) = v[i];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < DRAINS; ++i) {
        uint32_t w[4 * SIDE];
        #pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            const @WORD@ word = *reinterpret_cast<const @WORD@*>(@NAME@_drain(smem, @DRAIN_AT@));
            @KEEP@
        }
        turn<@SIZE@>(w);
        const int j = 0; (void)j;
        #pragma unroll
        for (int side = 0; side < SIDE; ++side)
            __stcs(reinterpret_cast<uint4*>(
                out + ((column + @NAME@_drain_x1(@DRAIN_AT@) + side) * n + row + @NAME@_drain_x0(@DRAIN_AT@)) * @SIZE@),
                make_uint4(w[4 * side], w[4 * side + 1], w[4 * side + 2], w[4 * side + 3]));
    }
}
//@ main
__device__ unsigned char byte_of(size_t k) { return static_cast<unsigned char>((k * 2654435761u + 12345u) >> 13); }
__global__ void fill_bytes(unsigned char* p, size_t n) {
    for (size_t k = blockIdx.x * size_t(blockDim.x) + threadIdx.x; k < n; k += size_t(gridDim.x) * blockDim.x) p[k] = byte_of(k);
}
__global__ void compare_bytes(const unsigned char* p, size_t n, int size, unsigned long long* wrong) {
    const size_t total = n * n * size;
    for (size_t k = blockIdx.x * size_t(blockDim.x) + threadIdx.x; k < total; k += size_t(gridDim.x) * blockDim.x) {
        const size_t element = k / size, from = (element % n * n + element / n) * size + k % size;
        if (p[k] != byte_of(from)) atomicAdd(wrong, 1ull);
    }
}
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); std::exit(3); } } while (0)
typedef void (*Transpose)(const unsigned char*, unsigned char*, size_t);

template <class Launch> float milliseconds(Launch launch) {
    cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
    std::vector<float> times;
    for (int k = 0; k < 23; ++k) {
        cudaEventRecord(a); launch(); cudaEventRecord(b); cudaEventSynchronize(b);
        float t; cudaEventElapsedTime(&t, a, b);
        if (k > 2) times.push_back(t);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

void measure(const char* name, Transpose kernel, int size, int rows, int columns, int bytes, size_t n, bool profile) {
    if (profile) n = 4 * (rows > columns ? rows : columns);
    const size_t total = n * n * size;
    unsigned char *in, *out; unsigned long long* wrong; unsigned long long count = 0;
    CHECK(cudaMalloc(&in, total)); CHECK(cudaMalloc(&out, total)); CHECK(cudaMalloc(&wrong, 8));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    const dim3 grid(n / columns, n / rows);
    if (!profile) { fill_bytes<<<1024, 256>>>(in, total); CHECK(cudaMemset(wrong, 0, 8)); }
    kernel<<<grid, 256, bytes>>>(in, out, n);
    CHECK(cudaDeviceSynchronize());
    if (!profile) {
        compare_bytes<<<1024, 256>>>(out, n, size, wrong);
        CHECK(cudaMemcpy(&count, wrong, 8, cudaMemcpyDeviceToHost));
        const float copy = milliseconds([&] { cudaMemcpyAsync(out, in, total, cudaMemcpyDeviceToDevice); });
        const float turned = milliseconds([&] { kernel<<<grid, 256, bytes>>>(in, out, n); });
        const float again = milliseconds([&] { cudaMemcpyAsync(out, in, total, cudaMemcpyDeviceToDevice); });
        const float least = copy < again ? copy : again;
        std::printf("%s\t%d\t%zu\t%llu\t%.4f\t%.4f\t%.1f\t%.3f\n", name, size, n, count, least, turned,
                    2e-6 * total / turned, least / turned);
        std::fflush(stdout);
    }
    CHECK(cudaFree(in)); CHECK(cudaFree(out)); CHECK(cudaFree(wrong));
}

// Without arguments: values and times. With `profile`: each kernel once on few tiles.
int main(int argc, char**) {
    const bool profile = argc > 1;
    if (!profile) std::printf("name\tbytes\tn\twrong\tcopy ms\ttranspose ms\tGB/s\tcopy/transpose\n");
@RUNS@
    return 0;
}
