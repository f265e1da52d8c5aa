// 64x64 tile of C, 4x4 a thread, A stored transposed with conflicts.
// launch: {"entry": "gemm", "block": [256, 1, 1], "grid": [1, 2, 1], "args": [["f32*", 4096, "random"], ["f32*", 4096, "random"], ["f32*", 8192], ["i32", 32]], "bench": {"grid": [1, 1024, 1], "args": [["f32*", 16777216, "random"], ["f32*", 16384, "random"], ["f32*", 4194304], ["i32", 256]]}}
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int depth) {
    __shared__ __align__(16) float As[16][64], Bs[16][64];
    int t = threadIdx.x, tx = t % 16, ty = t / 16;
    a += blockIdx.y * 64 * depth, c += blockIdx.y * 64 * 64;
    float sum[4][4] = {};
    for (int k0 = 0; k0 < depth; k0 += 16) {
        float4 v = *reinterpret_cast<const float4*>(a + (t / 4) * depth + k0 + t % 4 * 4);
        As[t % 4 * 4 + 0][t / 4] = v.x, As[t % 4 * 4 + 1][t / 4] = v.y;
        As[t % 4 * 4 + 2][t / 4] = v.z, As[t % 4 * 4 + 3][t / 4] = v.w;
        *reinterpret_cast<float4*>(&Bs[t / 16][t % 16 * 4]) =
            *reinterpret_cast<const float4*>(b + (k0 + t / 16) * 64 + t % 16 * 4);
        __syncthreads();
        for (int k = 0; k < 16; ++k) {
            float x[4], y[4];
            for (int i = 0; i < 4; ++i) x[i] = As[k][ty * 4 + i], y[i] = Bs[k][tx * 4 + i];
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) sum[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) c[(ty * 4 + i) * 64 + tx * 4 + j] = sum[i][j];
}
