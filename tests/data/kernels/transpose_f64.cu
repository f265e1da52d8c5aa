// 8-byte elements, 16 x 32, a pitch of 32.
// launch: {"entry": "transpose", "block": [16, 16, 1], "grid": [3, 1, 1], "args": [["f64*", 1536, "iota"], ["f64*", 1536]], "bench": {"grid": [4096, 1, 1], "args": [["f64*", 2097152, "iota"], ["f64*", 2097152]]}}
extern "C" __global__ void transpose(const double* in, double* out) {
    __shared__ double tile[32][16];
    in += blockIdx.x * 512, out += blockIdx.x * 512;
    for (int j = 0; j < 32; j += 16) tile[threadIdx.y + j][threadIdx.x] = in[(threadIdx.y + j) * 16 + threadIdx.x];
    __syncthreads();
    for (int j = 0; j < 32; j += 16) out[threadIdx.y * 32 + threadIdx.x + j] = tile[threadIdx.x + j][threadIdx.y];
}
