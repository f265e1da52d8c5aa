// What cp.async.bulk and the multicast of TMA do with the code that layoutopt emits: see validate_hopper.py.
//
//   validate_copies OUT.jsonl            every case, a line each
#include "hopper.cuh"

// The tile row-major in global memory, copy by copy into shared memory, read through the emitted offsets;
// then written through them into other bytes, and copied back.
template <class Case>
__global__ void bulk(const typename Case::T* in, typename Case::T* seen, typename Case::T* back, int* failed) {
    extern __shared__ __align__(1024) unsigned char smem[];
    __shared__ __align__(8) uint64_t bar;
    using T = typename Case::T;
    const uint32_t base = shared_address(smem), barrier = shared_address(&bar);
    if (threadIdx.x == 0) {
        barrier_begin(barrier, Case::copies * Case::copy_bytes);
        for (uint32_t i = 0; i < Case::copies; ++i)
            Case::load(base, reinterpret_cast<const char*>(in) + i * Case::copy_bytes, barrier, i);
    }
    __syncthreads();
    if (!barrier_done(barrier)) *failed = 1;
    for (int e = threadIdx.x; e < Case::rows * Case::columns; e += blockDim.x)
        seen[e] = *reinterpret_cast<const T*>(smem + Case::offset(e / Case::columns, e % Case::columns));
    __syncthreads();
    for (int e = threadIdx.x; e < Case::rows * Case::columns; e += blockDim.x)
        *reinterpret_cast<T*>(smem + Case::offset(e / Case::columns, e % Case::columns)) = in[e] + 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < Case::copies; ++i)
            Case::store(base, reinterpret_cast<char*>(back) + i * Case::copy_bytes, i);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

template <class Case>
static std::string bulk_case(Encode, int& wrong) {
    using T = typename Case::T;
    constexpr int total = Case::rows * Case::columns;
    std::vector<T> in(total), seen(total), back(total);
    for (int i = 0; i < total; ++i) in[i] = static_cast<T>(i * 2654435761u >> 7);
    T *device = nullptr;
    int *device_failed = nullptr, failed = 0;
    CHECK(cudaMalloc(&device, 3 * total * sizeof(T)));
    CHECK(cudaMalloc(&device_failed, sizeof(int)));
    CHECK(cudaMemset(device_failed, 0, sizeof(int)));
    CHECK(cudaMemset(device, 0, 3 * total * sizeof(T)));
    CHECK(cudaMemcpy(device, in.data(), total * sizeof(T), cudaMemcpyHostToDevice));
    CHECK(cudaFuncSetAttribute(bulk<Case>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    bulk<Case><<<1, 128, Case::bytes>>>(device, device + total, device + 2 * total, device_failed);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&failed, device_failed, sizeof(int), cudaMemcpyDeviceToHost));
    if (failed) return "the barrier was not reached";
    CHECK(cudaMemcpy(seen.data(), device + total, total * sizeof(T), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(back.data(), device + 2 * total, total * sizeof(T), cudaMemcpyDeviceToHost));
    for (int i = 0; i < total; ++i) wrong += (seen[i] != in[i]) + (back[i] != static_cast<T>(in[i] + 1));
    CHECK(cudaFree(device));
    CHECK(cudaFree(device_failed));
    return "";
}

// Every `shared` blocks of the cluster copy one tile together; each reads all of it through the emitted offsets.
template <class Case>
__global__ void multicast(const __grid_constant__ CUtensorMap map, typename Case::T* seen, int* failed) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    unsigned char* const smem = dynamic + (-shared_address(dynamic) & 1023);
    __shared__ __align__(8) uint64_t bar;
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const uint32_t base = shared_address(smem), barrier = shared_address(&bar);
    const uint32_t group = rank / Case::shared;
    if (threadIdx.x == 0) barrier_begin(barrier, Case::load_bytes);
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x == 0) {
        const uint16_t mask = static_cast<uint16_t>(((1u << Case::shared) - 1) << group * Case::shared);
        Case::load(base, &map, barrier, rank % Case::shared, mask, group * Case::rows);
    }
    if (!barrier_done(barrier)) *failed = 1;
    __syncthreads();
    for (int e = threadIdx.x; e < Case::rows * Case::columns; e += blockDim.x)
        seen[rank * Case::rows * Case::columns + e] = *reinterpret_cast<const typename Case::T*>(
            smem + Case::offset(e / Case::columns, e % Case::columns));
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");  // nobody leaves while others copy
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <class Case>
static std::string multicast_case(Encode encode, int& wrong) {
    using T = typename Case::T;
    constexpr int tile = Case::rows * Case::columns, groups = Case::cluster / Case::shared;
    std::vector<T> global(groups * tile), seen(Case::cluster * tile);
    for (size_t i = 0; i < global.size(); ++i) global[i] = static_cast<T>(i * 2654435761u >> 7);
    T *device_global = nullptr, *device_seen = nullptr;
    int *device_failed = nullptr, failed = 0;
    CHECK(cudaMalloc(&device_global, global.size() * sizeof(T)));
    CHECK(cudaMalloc(&device_seen, seen.size() * sizeof(T)));
    CHECK(cudaMalloc(&device_failed, sizeof(int)));
    CHECK(cudaMemset(device_failed, 0, sizeof(int)));
    CHECK(cudaMemcpy(device_global, global.data(), global.size() * sizeof(T), cudaMemcpyHostToDevice));
    CUtensorMap map;
    const cuuint64_t extents[2] = {Case::columns, groups * Case::rows}, strides[1] = {Case::columns * sizeof(T)};
    if (Case::encode(encode, &map, device_global, extents, strides) != CUDA_SUCCESS) return "encode";
    CHECK(cudaFuncSetAttribute(multicast<Case>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    CHECK(cudaFuncSetAttribute(multicast<Case>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(Case::cluster);
    launch.blockDim = dim3(128);
    launch.dynamicSmemBytes = Case::bytes + 1024;
    cudaLaunchAttribute size[1];
    size[0].id = cudaLaunchAttributeClusterDimension;
    size[0].val.clusterDim = {Case::cluster, 1, 1};
    launch.attrs = size;
    launch.numAttrs = 1;
    int fitting = 0;
    CHECK(cudaOccupancyMaxActiveClusters(&fitting, multicast<Case>, &launch));
    printf("clusters of %d that run at once: %d\n", Case::cluster, fitting);
    CHECK(cudaLaunchKernelEx(&launch, multicast<Case>, map, device_seen, device_failed));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&failed, device_failed, sizeof(int), cudaMemcpyDeviceToHost));
    if (failed) return "the barrier was not reached";
    CHECK(cudaMemcpy(seen.data(), device_seen, seen.size() * sizeof(T), cudaMemcpyDeviceToHost));
    for (int rank = 0; rank < Case::cluster; ++rank)
        for (int e = 0; e < tile; ++e) wrong += seen[rank * tile + e] != global[rank / Case::shared * tile + e];
    CHECK(cudaFree(device_global));
    CHECK(cudaFree(device_seen));
    CHECK(cudaFree(device_failed));
    return "";
}

// Where TMA puts rows of 128 bytes in the modes whose atoms are larger than 16 bytes.
static void atoms(Encode encode, FILE* out) {
    for (int mode = 3; mode <= 6; ++mode)  // 128B, 128B_ATOM_32B, 128B_ATOM_32B_FLIP_8B, 128B_ATOM_64B
        write_rows(encode, out, "swizzle " + std::to_string(mode), mode, 64);
}

#include "cases.cuh"

int main(int count, char** arguments) { return run_cases(count, arguments, entries, atoms); }
