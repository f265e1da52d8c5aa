// LU of a 24 x 24 matrix in shared memory, without pivots: loops shrink.
// launch: {"entry": "lu", "block": [24, 8, 1], "grid": [1, 1, 1], "args": [["f32*", 576, "random"], ["f32*", 576], ["i32", 24]]}
extern "C" __global__ void lu(const float* in, float* out, int n) {
    __shared__ float m[24][24];
    int x = threadIdx.x, y = threadIdx.y;
    for (int r = y; r < n; r += 8) m[r][x] = in[r * n + x] + (r == x ? 100.f : 0.f);
    for (int k = 0; k + 1 < n; ++k) {
        __syncthreads();
        if (x > k && y == 0) m[x][k] /= m[k][k];
        __syncthreads();
        for (int r = k + 1 + y; r < n; r += 8)
            if (x > k) m[r][x] -= m[r][k] * m[k][x];
    }
    __syncthreads();
    for (int r = y; r < n; r += 8) out[r * n + x] = m[r][x];
}
