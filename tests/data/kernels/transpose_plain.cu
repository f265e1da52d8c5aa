// A 32x32 tile read by columns, as first written.
// launch: {"entry": "transpose", "block": [32, 8, 1], "grid": [2, 2, 1], "args": [["f32*", 4096, "iota"], ["f32*", 4096], ["i32", 64]], "bench": {"grid": [64, 64, 1], "args": [["f32*", 4194304, "iota"], ["f32*", 4194304], ["i32", 2048]]}}
extern "C" __global__ void transpose(const float* in, float* out, int n) {
    __shared__ float tile[32][32];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) out[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}
