//@ kernel
template <int KEPT>
__global__ void __launch_bounds__(@THREADS@)
@NAME@_pass(uint32_t* cells, const unsigned char* tiles, int repeats, int zero, Span* spans) {
    extern __shared__ __align__(1024) unsigned char tile[];
    uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
    int tid = threadIdx.x;
    uint32_t v[4] = {cells[tid], cells[tid + 1], cells[tid + 2], cells[tid + 3]}, sum = 0;
    __syncthreads();
    const long long start = clock64();
    #pragma unroll 1
    for (int repeat = 0; repeat < repeats; ++repeat) {
        if (!KEPT) { tid ^= zero; smem ^= zero; }
        const unsigned char* source = tiles + (blockIdx.x / SHARED + repeat * STEP) % @TILES@ * @TILE_BYTES@ull;
        (void)source;
@ACCESSES@    }
    const long long end = clock64();
    if (threadIdx.x == 0) spans[blockIdx.x] = {start, end, multiprocessor()};
    cells[threadIdx.x] = sum ^ v[0] ^ v[1] ^ v[2] ^ v[3];
}
//@ program
// Cycles of passes. nvcc -std=c++17 -arch=native -o passes passes.cu && ./passes
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>
@HEADERS@

namespace {

// So many blocks fill the same tile; from pass to pass it lies so many tiles further.
constexpr unsigned SHARED = 8, STEP = 977;

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); std::exit(3); } } while (0)

// When a block began and ended its passes, by the clock of its multiprocessor.
struct Span { long long start, end; unsigned processor; };

__device__ unsigned multiprocessor() {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}

@KERNELS@

typedef void (*Pass)(uint32_t*, const unsigned char*, int, int, Span*);

// What copies read.
const unsigned char* tiles() {
    static unsigned char* found = nullptr;
    if (!found) { CHECK(cudaMalloc(&found, @TILES_BYTES@)); CHECK(cudaMemset(found, 1, @TILES_BYTES@)); }
    return found;
}

// Cycles of a multiprocessor for one pass, the mean of those that had blocks: the median of some launches
// after the first.
double launch(Pass kernel, int blocks, int bytes) {
    std::vector<Span> spans(blocks);
    std::vector<double> means;
    uint32_t* d_cells; Span* d_spans;
    CHECK(cudaMalloc(&d_cells, 65536)); CHECK(cudaMemset(d_cells, 0, 65536));
    CHECK(cudaMalloc(&d_spans, blocks * sizeof(Span)));
    for (int again = 0; again <= @LAUNCHES@; ++again) {
        kernel<<<blocks, @THREADS@, bytes>>>(d_cells, tiles(), @REPEATS@, 0, d_spans);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(spans.data(), d_spans, blocks * sizeof(Span), cudaMemcpyDeviceToHost));
        std::map<unsigned, Span> whole;
        std::map<unsigned, int> count;
        for (const Span& each : spans) {
            Span& span = whole.emplace(each.processor, each).first->second;
            span.start = std::min(span.start, each.start);
            span.end = std::max(span.end, each.end);
            ++count[each.processor];
        }
        double sum = 0;
        for (const auto& [processor, span] : whole)
            sum += double(span.end - span.start) / count[processor] / @REPEATS@;
        if (again) means.push_back(sum / whole.size());
    }
    CHECK(cudaFree(d_cells)); CHECK(cudaFree(d_spans));
    std::sort(means.begin(), means.end());
    return means[means.size() / 2];
}

void prepare(Pass kernel, int bytes) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
}

void profile(Pass kernel, int bytes) {
    uint32_t* d_cells; Span* d_spans;
    CHECK(cudaMalloc(&d_cells, 65536)); CHECK(cudaMemset(d_cells, 0, 65536));
    CHECK(cudaMalloc(&d_spans, sizeof(Span)));
    prepare(kernel, bytes);
    kernel<<<1, @THREADS@, bytes>>>(d_cells, tiles(), 1, 0, d_spans);
    CHECK(cudaGetLastError());
    CHECK(cudaFree(d_cells)); CHECK(cudaFree(d_spans));
}

void time(int row, Pass once, Pass kept, int bytes) {
    for (Pass kernel : {once, kept}) prepare(kernel, bytes);
    int fit = 0, processors = 0;
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, once));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, once, @THREADS@, bytes));
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    std::printf("pass\t%d\t%d\t%d", row, fit, attributes.numRegs);
    for (Pass kernel : {once, kept})
        for (int blocks : {1, fit * processors}) std::printf("\t%.1f", launch(kernel, blocks, bytes));
    std::printf("\n");
    std::fflush(stdout);
}

}  // namespace

// A line a layout: its number; blocks that fit on a multiprocessor; registers of a thread; cycles of a pass,
// once by one block and together, kept by one block and together.
int main(int argc, char**) {
    if (argc > 1) {
@PROFILED@
    } else {
@RUNS@
    }
    CHECK(cudaDeviceSynchronize());
    return 0;
}
