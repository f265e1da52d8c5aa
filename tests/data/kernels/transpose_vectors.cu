// Rows of 16-byte vectors, read back by columns of vectors.
// launch: {"entry": "transpose", "block": [16, 8, 1], "grid": [1, 2, 1], "args": [["f32*", 2048, "iota"], ["f32*", 2048]], "bench": {"grid": [1, 4096, 1], "args": [["f32*", 4194304, "iota"], ["f32*", 4194304]]}}
extern "C" __global__ void transpose(const float4* in, float4* out) {
    __shared__ float4 tile[16][16];
    in += blockIdx.y * 256, out += blockIdx.y * 256;
    for (int r = threadIdx.y; r < 16; r += 8) tile[r][threadIdx.x] = in[r * 16 + threadIdx.x];
    __syncthreads();
    for (int r = threadIdx.y; r < 16; r += 8) out[r * 16 + threadIdx.x] = tile[threadIdx.x][r];
}
