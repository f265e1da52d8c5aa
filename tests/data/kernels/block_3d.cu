// A permutation of three dimensions by a block of three.
// launch: {"entry": "permute", "block": [4, 8, 8], "grid": [1, 1, 1], "args": [["f32*", 1024, "iota"], ["f32*", 1024]]}
extern "C" __global__ void permute(const float* in, float* out) {
    __shared__ float cube[8][8][16];
    int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z;
    for (int j = 0; j < 16; j += 4) cube[z][y][x + j] = in[(z * 8 + y) * 16 + x + j];
    __syncthreads();
    for (int j = 0; j < 16; j += 4) out[((x + j) * 8 + z) * 8 + y] = cube[y][z][x + j];
}
