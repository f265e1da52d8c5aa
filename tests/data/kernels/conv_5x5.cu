// A 5 x 5 convolution, weights in shared memory too, a tile of 12 x 36 from a block of 32 x 8.
// launch: {"entry": "convolve", "block": [32, 8, 1], "grid": [2, 2, 1], "args": [["f32*", 1360, "random"], ["f32*", 25, "random"], ["f32*", 1024], ["i32", 68]]}
extern "C" __global__ void convolve(const float* in, const float* weights, float* out, int pitch) {
    __shared__ float tile[12][36], w[25];
    int x = threadIdx.x, y = threadIdx.y, t = y * 32 + x;
    for (int i = t; i < 432; i += 256) tile[i / 36][i % 36] = in[(blockIdx.y * 8 + i / 36) * pitch + blockIdx.x * 32 + i % 36];
    if (t < 25) w[t] = weights[t];
    __syncthreads();
    float sum = 0;
    for (int r = 0; r < 5; ++r)
        for (int c = 0; c < 5; ++c) sum += w[r * 5 + c] * tile[y + r][x + c];
    out[(blockIdx.y * 8 + y) * 64 + blockIdx.x * 32 + x] = sum;
}
