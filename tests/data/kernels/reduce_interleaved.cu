// A tree whose strides double: the textbook example of conflicts.
// launch: {"entry": "reduce", "block": [256, 1, 1], "grid": [2, 1, 1], "args": [["f32*", 512, "iota"], ["f32*", 2]], "bench": {"grid": [8192, 1, 1], "args": [["f32*", 2097152, "iota"], ["f32*", 8192]]}}
extern "C" __global__ void reduce(const float* in, float* out) {
    __shared__ float part[256];
    int t = threadIdx.x;
    part[t] = in[blockIdx.x * 256 + t];
    __syncthreads();
    for (int s = 1; s < blockDim.x; s *= 2) {
        int i = 2 * s * t;
        if (i < blockDim.x) part[i] += part[i + s];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}
