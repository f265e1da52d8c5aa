//@ encode
#ifdef CUDA_VERSION  // of cuda.h
// The tensor map of a global tensor: `encode` is cuTensorMapEncodeTiled (cuGetProcAddress),
// extents are innermost first, strides the @OTHERS@ others in bytes, multiples of 16.
template <class Encode>
inline CUresult @NAME@_encode(Encode encode, CUtensorMap* map, void* global,
                       const cuuint64_t* extents, const cuuint64_t* strides) {
    const cuuint32_t ones[@RANK@] = {@ONES@};
    return encode(map, @TYPE@, @RANK@, global, extents, strides, @NAME@_box_dim, ones,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, @SWIZZLE@,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}
#endif
//@ load
#ifdef __CUDACC__
// All boxes, by one thread: map is the tensor map's address (a __grid_constant__ parameter),
// the mbarrier expects @NAME@_boxes * @NAME@_box_bytes bytes; c0, ... are the tile's place.
__device__ __forceinline__ void @NAME@(uint32_t smem, const void* map, uint32_t mbarrier, @PLACE@) {
#pragma unroll
    for (uint32_t i = 0; i < @NAME@_boxes; ++i)
        asm volatile("cp.async.bulk.tensor.@RANK@d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {@HELD@}], [%2];"
            :: "r"(smem + @NAME@_box_offset(i)), "l"(map), "r"(mbarrier),
               @AT@ : "memory");
}
#endif
//@ multicast
#ifdef __CUDACC__
// The boxes of one block, by one thread, to all blocks of the cluster whose bit is set in mask:
// block is 0 to @NAME@_multicast - 1 among those that share the tile. Tile and mbarrier lie at
// the same place in all; each mbarrier expects @NAME@_boxes * @NAME@_box_bytes bytes.
__device__ __forceinline__ void @NAME@(uint32_t smem, const void* map, uint32_t mbarrier, uint32_t block,
    uint16_t mask, @PLACE@) {
#pragma unroll
    for (uint32_t k = 0; k < @NAME@_boxes / @NAME@_multicast; ++k) {
        const uint32_t i = block * (@NAME@_boxes / @NAME@_multicast) + k;
        asm volatile("cp.async.bulk.tensor.@RANK@d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".multicast::cluster [%0], [%1, {@HELD@}], [%2], %3;"
            :: "r"(smem + @NAME@_box_offset(i)), "l"(map), "r"(mbarrier), "h"(mask),
               @AT@ : "memory");
    }
}
#endif
//@ store
#ifdef __CUDACC__
// All boxes, by one thread: map is the tensor map's address (a __grid_constant__ parameter),
// then commit and wait for the bulk group; c0, ... are the tile's place.
__device__ __forceinline__ void @NAME@(uint32_t smem, const void* map, @PLACE@) {
#pragma unroll
    for (uint32_t i = 0; i < @NAME@_boxes; ++i)
        asm volatile("cp.async.bulk.tensor.@RANK@d.global.shared::cta.bulk_group [%0, {@HELD@}], [%1];"
            :: "l"(map), "r"(smem + @NAME@_box_offset(i)), @AT@ : "memory");
}
#endif
//@ descriptor
// The matrix descriptor of instruction i; smem: __cvta_generic_to_shared of the tile.
__host__ __device__ constexpr uint64_t @NAME@_descriptor(uint32_t smem, uint32_t i) {
    return @NAME@_fields | (((smem + @NAME@_start(i)) & 0x3FFFF) >> 4);
}
//@ bulk
#ifdef __CUDACC__
// Copy i, by one thread; source is aligned to 16 bytes.
__device__ __forceinline__ void @NAME@(uint32_t smem, const void* source, uint32_t mbarrier, uint32_t i) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(smem + @NAME@_offset(i)), "l"(__cvta_generic_to_global(source)),
           "r"(@NAME@_copy_bytes), "r"(mbarrier) : "memory");
}
// The other way; then commit and wait for the bulk group.
__device__ __forceinline__ void @NAME@_store(uint32_t smem, void* destination, uint32_t i) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
        :: "l"(__cvta_generic_to_global(destination)), "r"(smem + @NAME@_offset(i)),
           "r"(@NAME@_copy_bytes) : "memory");
}
#endif
//@ groups

#ifdef __CUDACC__
// The copies issued since the last commit are one group; wait until at most N are under way.
__device__ __forceinline__ void @NAME@_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void @NAME@_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
#endif
