// The address comes from another lane.
// launch: {"entry": "exchange", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 2048, "iota"], ["f32*", 256]]}
extern "C" __global__ void exchange(const float* in, float* out) {
    __shared__ float tile[64][32];
    int t = threadIdx.x, lane = t % 32;
    for (int i = t; i < 2048; i += 64) tile[i / 32][i % 32] = in[i];
    __syncthreads();
    int row = t * 5 % 64;
    float sum = tile[__shfl_xor_sync(~0u, row, 3)][lane / 2];
    sum += tile[__shfl_up_sync(~0u, row, 2)][1];
    sum += tile[__shfl_down_sync(~0u, row, 7, 8)][2];
    sum += tile[__shfl_sync(~0u, row, lane / 4, 16)][lane];
    out[t] = sum;
}
