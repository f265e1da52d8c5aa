// A picture of bytes turned by 90 degrees.
// launch: {"entry": "rotate", "block": [32, 8, 1], "grid": [2, 1, 1], "args": [["u8*", 8192, "iota"], ["u8*", 8192]], "bench": {"grid": [2048, 1, 1], "args": [["u8*", 8388608, "iota"], ["u8*", 8388608]]}}
extern "C" __global__ void rotate(const unsigned char* in, unsigned char* out) {
    __shared__ unsigned char tile[64][64];
    in += blockIdx.x * 4096, out += blockIdx.x * 4096;
    for (int r = threadIdx.y; r < 64; r += 8)
        for (int c = threadIdx.x; c < 64; c += 32) tile[r][c] = in[r * 64 + c];
    __syncthreads();
    for (int r = threadIdx.y; r < 64; r += 8)
        for (int c = threadIdx.x; c < 64; c += 32) out[r * 64 + c] = tile[63 - c][r];
}
