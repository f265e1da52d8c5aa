// A pointer that is shared for some warps and global for others.
// launch: {"entry": "either", "block": [128, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 2048, "iota"], ["f32*", 128], ["i32", 2]]}
__device__ __noinline__ float total(const float* p, int stride) {
    float sum = 0;
    for (int k = 0; k < 4; ++k) sum += p[k * stride];
    return sum;
}
extern "C" __global__ void either(const float* in, float* out, int from) {
    __shared__ float tile[16][32];
    int t = threadIdx.x, warp = t / 32;
    for (int i = t; i < 512; i += 128) tile[i / 32][i % 32] = in[i];
    __syncthreads();
    const float* p = warp < from ? &tile[t % 16][warp] : in + t;
    out[t] = total(p, 2);
}
