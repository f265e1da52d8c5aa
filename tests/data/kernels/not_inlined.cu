// A function that is not inlined reads and writes a row of the tile.
// launch: {"entry": "rows", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 2048, "iota"], ["f32*", 2048]]}
__device__ __noinline__ float turn(float (*tile)[32], int row, int k) {
    float v = tile[row][k];
    tile[row][k] = v * 2.f + 1.f;
    return v;
}
extern "C" __global__ void rows(const float* in, float* out) {
    __shared__ float tile[64][32];
    for (int i = threadIdx.x; i < 2048; i += 64) tile[i / 32][i % 32] = in[i];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 32; ++k) sum += turn(tile, threadIdx.x, k);
    __syncthreads();
    for (int i = threadIdx.x; i < 2048; i += 64) out[i] = tile[i / 32][i % 32] + sum;
}
