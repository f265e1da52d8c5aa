//@ start
// Self-test. nvcc -std=c++17 -arch=native -o selftest selftest.cu && ./selftest
// Counters: ncu --kernel-name regex:_access_ --metrics \
//   l1tex__data_pipe_lsu_wavefronts_mem_shared.sum,l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum \
//   ./selftest profile
@HEADER@
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

namespace {

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); std::exit(3); } } while (0)

enum Mode { LOAD, STORE, ADD, LDMATRIX, STMATRIX };
struct Access {
    const char *name, *op;
    Mode mode;
    int width, matrices, transposed, ones, iterations;
    long long wavefronts, bank_conflicts;  // predicted
};

typedef void (*Values)(const unsigned char*, uint32_t*, unsigned char*);
typedef void (*Alone)(uint32_t*, int, long long*);

// Where register `reg` of `lane` lies: the lane that gives its row's address, and the byte in the row.
std::pair<int, int> matrix_place(int lane, int reg, int half, bool transposed) {
    int row = lane / 4, column = 2 * (lane % 4) + half;
    if (transposed) std::swap(row, column);
    return {8 * reg + row, 2 * column};
}

// Whether a byte has several owners, or another number of bytes has one.
template <class Owned>
int is_shared(size_t bytes, size_t expected, Owned owned) {
    unsigned* d_owners;
    std::vector<unsigned> owners(bytes);
    CHECK(cudaMalloc(&d_owners, owners.size() * 4));
    CHECK(cudaMemset(d_owners, 0, owners.size() * 4));
    owned(d_owners);
    CHECK(cudaMemcpy(owners.data(), d_owners, owners.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(d_owners));
    for (unsigned count : owners) { if (count > 1) return 1; expected -= count; }
    return expected != 0;
}

//@ tile
namespace test_of_@NAME@ {

__device__ uint32_t offset_of(uint32_t e) { return @NAME@_offset_bytes(@COORDINATES@); }

// Put the elements of `in`, row-major, where the layout says; nullptr for zeros.
__device__ uint32_t fill(const unsigned char* in, int tid) {
    extern __shared__ __align__(1024) unsigned char tile[];
    for (uint32_t k = tid; k < @NAME@_bytes; k += @THREADS@) tile[k] = 0;
    __syncthreads();
    for (uint32_t e = tid; in && e < @ELEMENTS@; e += @THREADS@)
        for (uint32_t k = 0; k < @SIZE@; ++k) tile[offset_of(e) + k] = in[e * @SIZE@ + k];
    __syncthreads();
    return static_cast<uint32_t>(__cvta_generic_to_shared(tile));
}

__device__ void read_back(unsigned char* out, int tid) {
    extern __shared__ __align__(1024) unsigned char tile[];
    __syncthreads();
    for (uint32_t e = tid; e < @ELEMENTS@; e += @THREADS@)
        for (uint32_t k = 0; k < @SIZE@; ++k) out[e * @SIZE@ + k] = tile[offset_of(e) + k];
}

__global__ void owned(unsigned* owners, uint32_t bytes, uint32_t base, uint32_t stage_bytes, uint32_t stages) {
    for (uint32_t e = threadIdx.x; e < @ELEMENTS@; e += @THREADS@)
        for (uint32_t k = 0; k < @SIZE@ * stages; ++k) {
            const uint32_t at = base + k / @SIZE@ * stage_bytes + offset_of(e) + k % @SIZE@;
            if (at < bytes) atomicAdd(&owners[at], 1u);
        }
}

@KERNELS@

template <class Kernel>
void allow_shared(Kernel kernel) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, @NAME@_bytes));
}

template <class Loops>
int @NAME@_test(Access a, int index, Values values, Alone alone, bool profile, Loops loops) {
    std::vector<unsigned char> in(@ELEMENTS@ * @SIZE@ + 16), out(in.size());
    std::vector<uint32_t> cells(4ull * @THREADS@ * a.iterations + 4096), after(cells.size());
    for (size_t k = 0; k < in.size(); ++k) in[k] = static_cast<unsigned char>((k * 2654435761u + 12345u) >> 13);
    unsigned char *d_in, *d_out; uint32_t* d_cells; long long* d_cycles;
    CHECK(cudaMalloc(&d_in, in.size())); CHECK(cudaMalloc(&d_out, out.size()));
    CHECK(cudaMalloc(&d_cells, cells.size() * 4)); CHECK(cudaMalloc(&d_cycles, 8));
    CHECK(cudaMemset(d_cells, 0, cells.size() * 4));
    allow_shared(values); allow_shared(alone);
    long long cycles = 0;
    int wrong = 0;
    if (profile) {
        alone<<<1, @THREADS@, @NAME@_bytes>>>(d_cells, 1, d_cycles);
        CHECK(cudaDeviceSynchronize());
    } else {
        // The first element of each active lane, by iteration and thread.
        std::vector<long long> element(static_cast<size_t>(a.iterations) * @THREADS@, -1);
        loops([&](int i, int tid, uint32_t e) { element[static_cast<size_t>(i) * @THREADS@ + tid] = e; });
        std::vector<unsigned char> want(in.size(), 0);  // the tile afterwards
        std::vector<uint32_t> want_cells(cells.size(), 0);
        std::map<size_t, unsigned long long> sums;
        for (size_t at = 0; at < element.size(); ++at) {
            if (element[at] < 0) continue;
            unsigned char* cell = reinterpret_cast<unsigned char*>(&cells[4 * at]);
            unsigned char* want_cell = reinterpret_cast<unsigned char*>(&want_cells[4 * at]);
            const size_t lane = at % @THREADS@ % 32, warp = at - lane, place = element[at] * @SIZE@;
            if (a.mode == LOAD) std::memcpy(want_cell, &in[place], a.width);
            if (a.mode == STORE) { std::memcpy(cell, &in[place], a.width); std::memcpy(&want[place], cell, a.width); }
            if (a.mode == ADD) {
                cells[4 * at] = static_cast<uint32_t>(at * 7 + 1);
                sums[place] += a.ones ? 1 : cells[4 * at];
            }
            for (int reg = 0; reg < a.matrices; ++reg)
                for (int half = 0; half < 2; ++half) {
                    std::pair<int, int> p = matrix_place(static_cast<int>(lane), reg, half, a.transposed);
                    const size_t source = element[warp + p.first] * @SIZE@ + p.second;
                    if (a.mode == LDMATRIX) std::memcpy(want_cell + 4 * reg + 2 * half, &in[source], 2);
                    else { std::memcpy(cell + 4 * reg + 2 * half, &in[source], 2); std::memcpy(&want[source], &in[source], 2); }
                }
        }
        for (auto& sum : sums) std::memcpy(&want[sum.first], &sum.second, a.width);
        const bool reads = a.mode == LOAD || a.mode == LDMATRIX;
        if (reads) want = in;
        CHECK(cudaMemcpy(d_in, in.data(), in.size(), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(d_cells, cells.data(), cells.size() * 4, cudaMemcpyHostToDevice));
        values<<<1, @THREADS@, @NAME@_bytes>>>(reads ? d_in : nullptr, d_cells, d_out);
        CHECK(cudaMemcpy(out.data(), d_out, out.size(), cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(after.data(), d_cells, cells.size() * 4, cudaMemcpyDeviceToHost));
        for (size_t k = 0; k < @ELEMENTS@ * @SIZE@; ++k) wrong += out[k] != want[k];
        for (size_t at = 0; reads && at < element.size(); ++at)
            for (int k = 0; element[at] >= 0 && k < (a.matrices ? a.matrices : (a.width + 3) / 4); ++k)
                wrong += after[4 * at + k] != want_cells[4 * at + k];
        for (int again = 0; again < 2; ++again)
            alone<<<1, @THREADS@, @NAME@_bytes>>>(d_cells, @REPEATS@, d_cycles);
        CHECK(cudaMemcpy(&cycles, d_cycles, 8, cudaMemcpyDeviceToHost));
        std::printf("%d\t%s\t%s\t%s\t%lld\t%lld\t%.1f\n", index, a.name, a.op, wrong ? "WRONG" : "right",
                    a.wavefronts, a.bank_conflicts, static_cast<double>(cycles) / @REPEATS@);
    }
    CHECK(cudaFree(d_in)); CHECK(cudaFree(d_out)); CHECK(cudaFree(d_cells)); CHECK(cudaFree(d_cycles));
    return wrong != 0;
}

int @NAME@_selftest(bool profile) {
    static_assert((@NAME@_alignment & (@NAME@_alignment - 1)) == 0, "a power of two");
    int wrong = 0;
    if (!profile) {
        wrong = is_shared(@NAME@_bytes, @ELEMENTS@ * @SIZE@, [](unsigned* owners) {
            owned<<<1, @THREADS@>>>(owners, @NAME@_bytes, 0, 0, 1);
        });
        std::printf("@NAME@: every element has its own bytes: %s\n", wrong ? "NO" : "yes");
        std::printf("access\tname\top\tvalues\twavefronts predicted\tbank conflicts predicted\tcycles\n");
    }
@RUNS@
    return wrong;
}

}  // namespace test_of_@NAME@

//@ apart
int apart() {
    static_assert((@BLOCK@_alignment & (@BLOCK@_alignment - 1)) == 0, "a power of two");
    const int wrong = @TIMES@;
    std::printf("tiles that live together share no byte: %s\n", wrong ? "NO" : "yes");
    return wrong;
}

//@ end
}  // namespace

// Without arguments: values and cycles. With `profile`: each access once, for a profiler.
int main(int argc, char** argv) {
    const bool profile = argc > 1 && !std::strcmp(argv[1], "profile");
    const int wrong = @TESTS@;
    CHECK(cudaDeviceSynchronize());
    return wrong != 0;
}
//@ access
static uint32_t @NAME@_element_@INDEX@(@PARAMETERS@) { return @ELEMENT@; }
__global__ void @NAME@_values_@INDEX@(const unsigned char* in, uint32_t* cells, unsigned char* out) {
    const int tid = threadIdx.x;
    const uint32_t smem = fill(in, tid);
    uint32_t v[4] = {0, 0, 0, 0};
@BASE@@VALUES@@WAIT@    read_back(out, tid);
}
__global__ void @NAME@_access_@INDEX@(uint32_t* cells, int repeats, long long* cycles) {
    const int tid = threadIdx.x;
    extern __shared__ __align__(1024) unsigned char tile[];
    const uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
@CELL@    uint32_t v[4] = {cells[tid], cells[tid + 1], cells[tid + 2], cells[tid + 3]}, sum = 0;
@BASE@    __syncthreads();
    const long long start = clock64();
    #pragma unroll 1
    for (int repeat = 0; repeat < repeats; ++repeat) {
@ALONE@@WAIT_INSIDE@    }
    __syncthreads();
    if (tid == 0) *cycles = clock64() - start;
    cells[tid] = sum ^ v[0] ^ v[1] ^ v[2] ^ v[3];
}
