// The column is XORed with the row: no conflicts, no bytes more.
// launch: {"entry": "transpose", "block": [32, 4, 1], "grid": [1, 1, 1], "args": [["f32*", 1024, "iota"], ["f32*", 1024]]}
extern "C" __global__ void transpose(const float* in, float* out) {
    __shared__ float tile[1024];
    int x = threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += 4) tile[y * 32 + (x ^ y)] = in[y * 32 + x];
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 4) out[y * 32 + x] = tile[x * 32 + (x ^ y)];
}
