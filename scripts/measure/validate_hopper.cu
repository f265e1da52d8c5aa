// What TMA, wgmma and stmatrix do with the code that layoutopt emits: see validate_hopper.py.
//
//   validate_hopper OUT.jsonl            every case, a line each
//   validate_hopper OUT.jsonl NAME...    some, for the profiler
#include <cuda_fp16.h>

#include "hopper.cuh"

template <class Case>
__device__ __forceinline__ void place(int element, int* x) {
    for (int d = Case::rank - 1; d >= 0; --d) {
        x[d] = element % Case::shape(d);
        element /= Case::shape(d);
    }
}

// The tile at its second place along every dimension, read through the emitted offsets.
template <class Case>
__global__ void load_tile(const __grid_constant__ CUtensorMap map, typename Case::T* out, int* failed) {
    extern __shared__ unsigned char dynamic[];
    unsigned char* const smem = dynamic + (-shared_address(dynamic) & 1023);
    __shared__ __align__(8) uint64_t bar;
    const uint32_t base = shared_address(smem), barrier = shared_address(&bar);
    if (threadIdx.x == 0) {
        barrier_begin(barrier, Case::load_bytes);
        Case::load(base, &map, barrier);
    }
    __syncthreads();
    if (!barrier_done(barrier)) {
        *failed = 1;
        return;
    }
    for (int e = threadIdx.x; e < Case::elements; e += blockDim.x) {
        int x[8];
        place<Case>(e, x);
        out[e] = *reinterpret_cast<const typename Case::T*>(smem + Case::offset(x));
    }
}

// The tile written through the emitted offsets, and stored by TMA.
template <class Case>
__global__ void store_tile(const __grid_constant__ CUtensorMap map, const typename Case::T* in) {
    extern __shared__ unsigned char dynamic[];
    unsigned char* const smem = dynamic + (-shared_address(dynamic) & 1023);
    for (int e = threadIdx.x; e < Case::elements; e += blockDim.x) {
        int x[8];
        place<Case>(e, x);
        *reinterpret_cast<typename Case::T*>(smem + Case::offset(x)) = in[e];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        Case::store(shared_address(smem), &map);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

template <class Case>
static std::string copies(Encode encode, int& wrong) {
    using T = typename Case::T;
    // A global tensor twice as large in every dimension, its dimensions in the case's order.
    cuuint64_t extents[8], strides[8], step[8];
    size_t total = 1;
    for (int k = 0; k < Case::rank; ++k) {  // innermost first
        const int d = Case::order(Case::rank - 1 - k);
        extents[k] = 2 * Case::shape(d);
        step[d] = total;
        total *= extents[k];
        strides[k] = total * sizeof(T);
    }
    extents[0] = extents[0] * sizeof(T) / Case::map_bytes;
    std::vector<T> global(total), tile(Case::elements), back(total);
    for (size_t i = 0; i < total; ++i) global[i] = static_cast<T>(i * 2654435761u >> 7);
    T *device_global = nullptr, *device_tile = nullptr;
    int *device_failed = nullptr, failed = 0;
    CHECK(cudaMalloc(&device_global, total * sizeof(T)));
    CHECK(cudaMalloc(&device_tile, Case::elements * sizeof(T)));
    CHECK(cudaMalloc(&device_failed, sizeof(int)));
    CHECK(cudaMemset(device_failed, 0, sizeof(int)));
    CHECK(cudaMemcpy(device_global, global.data(), total * sizeof(T), cudaMemcpyHostToDevice));
    CUtensorMap load_map, store_map;
    if (Case::encode_load(encode, &load_map, device_global, extents, strides) != CUDA_SUCCESS) return "encode load";
    CHECK(cudaFuncSetAttribute(load_tile<Case>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    CHECK(cudaFuncSetAttribute(store_tile<Case>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    load_tile<Case><<<1, 128, Case::bytes + 1024>>>(load_map, device_tile, device_failed);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&failed, device_failed, sizeof(int), cudaMemcpyDeviceToHost));
    if (failed) return "the barrier was not reached";
    CHECK(cudaMemcpy(tile.data(), device_tile, Case::elements * sizeof(T), cudaMemcpyDeviceToHost));
    auto at = [&](int element) {  // of the second place along every dimension
        size_t index = 0;
        for (int d = Case::rank - 1; d >= 0; --d) {
            index += (element % Case::shape(d) + Case::shape(d)) * step[d];
            element /= Case::shape(d);
        }
        return index;
    };
    for (int e = 0; e < Case::elements; ++e) wrong += tile[e] != global[at(e)];
    if (Case::stores) {
        CHECK(cudaMemset(device_global, 0, total * sizeof(T)));
        if (Case::encode_store(encode, &store_map, device_global, extents, strides) != CUDA_SUCCESS)
            return "encode store";
        store_tile<Case><<<1, 128, Case::bytes + 1024>>>(store_map, device_tile);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(back.data(), device_global, total * sizeof(T), cudaMemcpyDeviceToHost));
        for (int e = 0; e < Case::elements; ++e) {
            wrong += back[at(e)] != global[at(e)];
            back[at(e)] = 0;
        }
        for (size_t i = 0; i < total; ++i) wrong += back[i] != 0;  // nothing else was written
    }
    CHECK(cudaFree(device_global));
    CHECK(cudaFree(device_tile));
    CHECK(cudaFree(device_failed));
    return "";
}

__device__ __forceinline__ uint32_t pair(float first, float second) {
    const __half2 both = __floats2half2_rn(first, second);
    return *reinterpret_cast<const uint32_t*>(&both);
}

// An epilogue by stmatrix.x4: 16 columns at a time, as the accumulators lie.
template <class Store>
__device__ __forceinline__ void by_matrices(const float (&acc)[64], Store store) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = pair(acc[8 * n + 2 * i], acc[8 * n + 2 * i + 1]);
        store(n, v);
    }
}

// An epilogue by stores of 16 bytes: the four lanes of a row exchange what they hold of four times 8 columns, so
// that lane q has all of the q-th.
template <class Store>
__device__ __forceinline__ void by_rows(const float (&acc)[64], Store store) {
    const int lane = threadIdx.x % 32, q = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            uint32_t held[4], v[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < 4; ++i) held[i] = pair(acc[16 * n + 4 * i + 2 * h], acc[16 * n + 4 * i + 2 * h + 1]);
#pragma unroll
            for (int step = 0; step < 4; ++step) {
                uint32_t sent = 0;
#pragma unroll
                for (int i = 0; i < 4; ++i) sent = i == (q - step & 3) ? held[i] : sent;
                const uint32_t got = __shfl_sync(0xFFFFFFFF, sent, (lane & ~3) + (q + step & 3));
#pragma unroll
                for (int i = 0; i < 4; ++i) v[i] = i == (q + step & 3) ? got : v[i];
            }
            store(h, n, v);
        }
}

// D = A B, 128x128, by two warpgroups: TMA in, wgmma, the epilogue, TMA out.
template <class Case>
__global__ void __launch_bounds__(256)
    product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
            const __grid_constant__ CUtensorMap d, int* failed, bool stores) {
    extern __shared__ unsigned char dynamic[];
    unsigned char* const smem = dynamic + (-shared_address(dynamic) & 1023);
    __shared__ __align__(8) uint64_t bar;
    const uint32_t base = shared_address(smem), barrier = shared_address(&bar);
    const int tid = threadIdx.x, group = tid / 128;
    if (tid == 0) {
        barrier_begin(barrier, Case::load_bytes);
        Case::load(base, &a, &b, barrier);
    }
    __syncthreads();
    if (!barrier_done(barrier)) {
        *failed = 1;
        return;
    }
    float acc[64];
    for (int i = 0; i < 64; ++i) acc[i] = 0;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < Case::k_steps; ++k)
        Case::mma(acc, Case::a_descriptor(base, group * Case::k_steps + k), Case::b_descriptor(base, k));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(acc[i])::"memory");
    if (!stores) {  // the same but for the stores, to be subtracted
        float sum = 0;
        for (int i = 0; i < 64; ++i) sum += acc[i];
        if (sum == 1.5f) *failed = 2;
        return;
    }
    Case::epilogue(base, tid, acc);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (tid == 0) {
        Case::store(base, &d);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

template <class T, class Value>
static std::string operand(T** device, const int* values, int rows, int columns, bool turned, Value value) {
    std::vector<T> bits(rows * columns);
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < columns; ++c)
            bits[turned ? c * rows + r : r * columns + c] = value(values[r * columns + c]);
    CHECK(cudaMalloc(device, bits.size() * sizeof(T)));
    CHECK(cudaMemcpy(*device, bits.data(), bits.size() * sizeof(T), cudaMemcpyHostToDevice));
    return "";
}

template <class Case>
static std::string products(Encode encode, int& wrong) {
    using T = typename Case::T;
    constexpr int M = 128, N = 128, K = Case::k;
    std::vector<int> a(M * K), b(N * K);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int>((i * 2654435761u >> 9) % 5) - 2;
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<int>((i * 2246822519u >> 9) % 5) - 2;
    T *device_a = nullptr, *device_b = nullptr;
    std::string error = operand(&device_a, a.data(), M, K, Case::a_turned, Case::bits);
    if (error.empty()) error = operand(&device_b, b.data(), N, K, Case::b_turned, Case::bits);
    if (!error.empty()) return error;
    __half* device_d = nullptr;
    int *device_failed = nullptr, failed = 0;
    CHECK(cudaMalloc(&device_d, M * N * sizeof(__half)));
    CHECK(cudaMalloc(&device_failed, sizeof(int)));
    CHECK(cudaMemset(device_failed, 0, sizeof(int)));
    CUtensorMap map_a, map_b, map_d;
    auto plain = [](int rows, int columns, bool turned, size_t size, cuuint64_t* extents, cuuint64_t* strides) {
        extents[0] = turned ? rows : columns;
        extents[1] = turned ? columns : rows;
        strides[0] = extents[0] * size;
    };
    cuuint64_t extents[2], strides[2];
    plain(M, K, Case::a_turned, sizeof(T), extents, strides);
    if (Case::encode_a(encode, &map_a, device_a, extents, strides) != CUDA_SUCCESS) return "encode A";
    plain(N, K, Case::b_turned, sizeof(T), extents, strides);
    if (Case::encode_b(encode, &map_b, device_b, extents, strides) != CUDA_SUCCESS) return "encode B";
    plain(M, N, false, sizeof(__half), extents, strides);
    if (Case::encode_d(encode, &map_d, device_d, extents, strides) != CUDA_SUCCESS) return "encode D";
    CHECK(cudaFuncSetAttribute(product<Case>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    product<Case><<<1, 256, Case::bytes + 1024>>>(map_a, map_b, map_d, device_failed, false);
    product<Case><<<1, 256, Case::bytes + 1024>>>(map_a, map_b, map_d, device_failed, true);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&failed, device_failed, sizeof(int), cudaMemcpyDeviceToHost));
    if (failed) return "the barrier was not reached";
    std::vector<__half> d(M * N);
    CHECK(cudaMemcpy(d.data(), device_d, d.size() * sizeof(__half), cudaMemcpyDeviceToHost));
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) {
            int sum = 0;
            for (int k = 0; k < K; ++k) sum += a[m * K + k] * b[n * K + k];
            wrong += static_cast<float>(sum) != __half2float(d[m * N + n]);
        }
    CHECK(cudaFree(device_a));
    CHECK(cudaFree(device_b));
    CHECK(cudaFree(device_d));
    CHECK(cudaFree(device_failed));
    return "";
}

// Rows that are narrower than the swizzle's span.
static void narrow(Encode encode, FILE* out) { write_rows(encode, out, "narrow", CU_TENSOR_MAP_SWIZZLE_128B, 32); }

#include "cases.cuh"

int main(int count, char** arguments) { return run_cases(count, arguments, entries, narrow); }
