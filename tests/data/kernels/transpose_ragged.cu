// Ragged edges: 50 columns, 45 rows, so that blocks differ and lanes are off.
// launch: {"entry": "transpose", "block": [32, 8, 1], "grid": [2, 2, 1], "args": [["f32*", 2250, "iota"], ["f32*", 2250], ["i32", 50], ["i32", 45]], "bench": {"grid": [64, 63, 1], "args": [["f32*", 4096000, "iota"], ["f32*", 4096000], ["i32", 2047], ["i32", 2000]]}}
extern "C" __global__ void transpose(const float* in, float* out, int columns, int rows) {
    __shared__ float tile[32][32];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < columns && y + j < rows) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * columns + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x, y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8)
        if (x < rows && y + j < columns) out[(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
}
