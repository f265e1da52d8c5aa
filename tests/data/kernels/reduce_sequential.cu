// A tree of halves, the last warp without barriers.
// launch: {"entry": "reduce", "block": [256, 1, 1], "grid": [3, 1, 1], "args": [["f32*", 768, "iota"], ["f32*", 3]]}
extern "C" __global__ void reduce(const float* in, float* out) {
    __shared__ volatile float part[256];
    int t = threadIdx.x;
    part[t] = in[blockIdx.x * 256 + t];
    __syncthreads();
    for (int s = 128; s > 32; s /= 2) {
        if (t < s) part[t] = part[t] + part[t + s];
        __syncthreads();
    }
    if (t < 32)
        for (int s = 32; s; s /= 2) {
            float v = part[t] + part[t + s];
            __syncwarp();
            part[t] = v;
            __syncwarp();
        }
    if (t == 0) out[blockIdx.x] = part[0];
}
