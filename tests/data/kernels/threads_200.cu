// 200 threads on a tile of 40 x 50: the last warp is not full.
// launch: {"entry": "turn", "block": [200, 1, 1], "grid": [2, 1, 1], "args": [["f32*", 4000, "iota"], ["f32*", 4000]], "bench": {"grid": [1024, 1, 1], "args": [["f32*", 2048000, "iota"], ["f32*", 2048000]]}}
extern "C" __global__ void turn(const float* in, float* out) {
    __shared__ float tile[40][50];
    in += blockIdx.x * 2000, out += blockIdx.x * 2000;
    for (int i = threadIdx.x; i < 2000; i += 200) tile[i / 50][i % 50] = in[i];
    __syncthreads();
    for (int i = threadIdx.x; i < 2000; i += 200) out[i] = tile[i % 40][i / 40];
}
