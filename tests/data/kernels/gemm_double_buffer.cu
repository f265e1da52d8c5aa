// Two buffers chosen by the parity of the step.
// launch: {"entry": "gemm", "block": [16, 16, 1], "grid": [1, 1, 1], "args": [["f32*", 2048, "random"], ["f32*", 2048, "random"], ["f32*", 1024], ["i32", 4]]}
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int steps) {
    __shared__ float As[2][16][32], Bs[2][16][32];
    int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
    float sum[4] = {};
    auto fill = [&](int s, int to) {
        for (int i = t; i < 512; i += 256) {
            As[to][i % 16][i / 16] = a[(i / 16) * 64 + s * 16 + i % 16];
            Bs[to][i / 32][i % 32] = b[(s * 16 + i / 32) * 32 + i % 32];
        }
    };
    fill(0, 0);
    __syncthreads();
    for (int s = 0; s < steps; ++s) {
        if (s + 1 < steps) fill(s + 1, (s + 1) & 1);
        for (int k = 0; k < 16; ++k) {
            float x0 = As[s & 1][k][ty], x1 = As[s & 1][k][ty + 16];
            float y0 = Bs[s & 1][k][tx], y1 = Bs[s & 1][k][tx + 16];
            sum[0] += x0 * y0, sum[1] += x0 * y1, sum[2] += x1 * y0, sum[3] += x1 * y1;
        }
        __syncthreads();
    }
    c[ty * 32 + tx] = sum[0], c[ty * 32 + tx + 16] = sum[1];
    c[(ty + 16) * 32 + tx] = sum[2], c[(ty + 16) * 32 + tx + 16] = sum[3];
}
