//@ start
// Each kernel computes one instruction of PTX for all operands.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); std::exit(3); } } while (0)
typedef void (*Kernel)(const uint64_t*, uint64_t*, int);
#define KERNEL(NAME, GIVEN, IN, FOUND, OUT, PTX) \
    __global__ void NAME(const uint64_t* in, uint64_t* out, int n) { \
        const int k = blockIdx.x * blockDim.x + threadIdx.x; \
        const GIVEN a = in[k], b = in[n + k], c = in[2 * n + k]; \
        FOUND d; \
        asm volatile(PTX : OUT(d) : IN(a), IN(b), IN(c)); \
        out[k] = d; \
    }
#define WORDS(NAME, PTX) KERNEL(NAME, uint32_t, "r", uint32_t, "=r", PTX)
#define DOUBLES(NAME, PTX) KERNEL(NAME, uint64_t, "l", uint64_t, "=l", PTX)
#define NARROWER(NAME, PTX) KERNEL(NAME, uint64_t, "l", uint32_t, "=r", PTX)
#define WIDER(NAME, PTX) KERNEL(NAME, uint32_t, "r", uint64_t, "=l", PTX)
//@ host
// Operands are read from a file, three tables of @COUNT@ words and three of as many doubles; results are written behind
// one another.
int main(int, char** argv) {
    const struct { Kernel kernel; int wide; } all[] = { @TABLE@ };
    const int n = @COUNT@;
    std::vector<uint64_t> in(6 * n), out(n);
    FILE *given = std::fopen(argv[1], "rb"), *found = std::fopen(argv[2], "wb");
    if (!given || !found || std::fread(in.data(), 8, in.size(), given) != in.size()) return 3;
    uint64_t *from, *to;
    CHECK(cudaMalloc(&from, 8 * in.size())); CHECK(cudaMalloc(&to, 8 * n));
    CHECK(cudaMemcpy(from, in.data(), 8 * in.size(), cudaMemcpyHostToDevice));
    for (const auto& one : all) {
        one.kernel<<<n / 256, 256>>>(from + one.wide * 3 * n, to, n);
        CHECK(cudaMemcpy(out.data(), to, 8 * n, cudaMemcpyDeviceToHost));
        std::fwrite(out.data(), 8, n, found);
    }
    return std::fclose(found) ? 3 : 0;
}
