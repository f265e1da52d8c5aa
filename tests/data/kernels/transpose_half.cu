// 64x64 elements of 16 bits: pairs written by rows, single elements read by columns.
// launch: {"entry": "transpose", "block": [32, 8, 1], "grid": [1, 1, 1], "args": [["u32*", 2048, "iota"], ["u16*", 4096]]}
extern "C" __global__ void transpose(const unsigned* in, unsigned short* out) {
    __shared__ __align__(16) unsigned short tile[64][64];
    for (int r = threadIdx.y; r < 64; r += 8)
        *reinterpret_cast<unsigned*>(&tile[r][2 * threadIdx.x]) = in[r * 32 + threadIdx.x];
    __syncthreads();
    for (int r = threadIdx.y; r < 64; r += 8) {
        out[r * 64 + threadIdx.x] = tile[threadIdx.x][r];
        out[r * 64 + threadIdx.x + 32] = tile[threadIdx.x + 32][r];
    }
}
