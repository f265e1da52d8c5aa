// Offsets from a table in constant memory.
// launch: {"entry": "gather", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 1024, "iota"], ["f32*", 64]]}
__constant__ int shift[8] = {0, 3, 32, 35, 64, 99, 160, 511};
extern "C" __global__ void gather(const float* in, float* out) {
    __shared__ float line[1024];
    int t = threadIdx.x;
    for (int i = t; i < 1024; i += 64) line[i] = in[i];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 8; ++k) sum += line[(t * 8 + shift[k]) % 1024] + line[shift[t % 8] + k];
    out[t] = sum;
}
