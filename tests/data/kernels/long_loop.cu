// Ten thousand rounds over the same addresses.
// launch: {"entry": "rounds", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 256, "iota"], ["f32*", 64], ["i32", 10000]]}
extern "C" __global__ void rounds(const float* in, float* out, int n) {
    __shared__ volatile float line[256];
    int t = threadIdx.x;
    for (int i = t; i < 256; i += 64) line[i] = in[i];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < n; ++k) sum = sum * 0.5f + line[(t * 4 + k) & 255];
    out[t] = sum;
}
