// Blocks of three dimensions, a halo of one, z marched in a loop.
// launch: {"entry": "stencil", "block": [8, 8, 4], "grid": [1, 1, 2], "args": [["f32*", 4096, "random"], ["f32*", 4096], ["i32", 16]]}
extern "C" __global__ void stencil(const float* in, float* out, int depth) {
    __shared__ float tile[6][10][10];
    int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z;
    for (int base = blockIdx.z * 8; base < blockIdx.z * 8 + 8; base += 4) {
        for (int i = (z * 8 + y) * 8 + x; i < 600; i += 256) {
            int a = i % 10 - 1, b = i / 10 % 10 - 1, c = base + i / 100 - 1;
            bool in_field = a >= 0 && a < 8 && b >= 0 && b < 8 && c >= 0 && c < depth;
            tile[i / 100][i / 10 % 10][i % 10] = in_field ? in[(c * 8 + b) * 8 + a] : 0.f;
        }
        __syncthreads();
        out[((base + z) * 8 + y) * 8 + x] =
            tile[z][y + 1][x + 1] + tile[z + 2][y + 1][x + 1] + tile[z + 1][y][x + 1] + tile[z + 1][y + 2][x + 1] +
            tile[z + 1][y + 1][x] + tile[z + 1][y + 1][x + 2];
        __syncthreads();
    }
}
