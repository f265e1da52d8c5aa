// A 5-point stencil with a halo; the field ends inside the last blocks, indices are clamped.
// launch: {"entry": "stencil", "block": [16, 16, 1], "grid": [3, 2, 1], "args": [["f32*", 1200, "random"], ["f32*", 1200], ["i32", 40], ["i32", 30]]}
extern "C" __global__ void stencil(const float* in, float* out, int w, int h) {
    __shared__ float tile[18][18];
    int x0 = blockIdx.x * 16, y0 = blockIdx.y * 16;
    for (int i = threadIdx.y * 16 + threadIdx.x; i < 324; i += 256) {
        int x = min(max(x0 + i % 18 - 1, 0), w - 1), y = min(max(y0 + i / 18 - 1, 0), h - 1);
        tile[i / 18][i % 18] = in[y * w + x];
    }
    __syncthreads();
    int x = x0 + threadIdx.x, y = y0 + threadIdx.y, tx = threadIdx.x + 1, ty = threadIdx.y + 1;
    if (x < w && y < h)
        out[y * w + x] = tile[ty][tx] + tile[ty - 1][tx] + tile[ty + 1][tx] + tile[ty][tx - 1] + tile[ty][tx + 1];
}
