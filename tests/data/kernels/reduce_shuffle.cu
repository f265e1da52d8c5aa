// Warps reduce by shuffles, then one warp reduces what they left in shared memory.
// launch: {"entry": "reduce", "block": [256, 1, 1], "grid": [2, 1, 1], "args": [["f32*", 512, "iota"], ["f32*", 2]]}
extern "C" __global__ void reduce(const float* in, float* out) {
    __shared__ float part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float v = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp) return;
    v = lane < blockDim.x / 32 ? part[lane] : 0.f;
    for (int d = 4; d; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    if (lane == 0) out[blockIdx.x] = v;
}
