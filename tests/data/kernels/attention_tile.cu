// Scores of a 32 x 64 tile of queries and keys, then the sum of values, as one block.
// launch: {"entry": "attend", "block": [32, 4, 1], "grid": [1, 1, 1], "args": [["f32*", 2048, "random"], ["f32*", 2048, "random"], ["f32*", 2048, "random"], ["f32*", 2048]]}
extern "C" __global__ void attend(const float* q, const float* k, const float* v, float* out) {
    __shared__ float K[32][64], S[32][32];
    int x = threadIdx.x, y = threadIdx.y, t = y * 32 + x;
    for (int i = t; i < 2048; i += 128) K[i / 64][i % 64] = k[i];
    __syncthreads();
    for (int r = y; r < 32; r += 4) {
        float s = 0;
        for (int d = 0; d < 64; ++d) s += q[r * 64 + d] * K[x][d];
        S[r][x] = s;
    }
    __syncthreads();
    for (int i = t; i < 2048; i += 128) K[i / 64][i % 64] = v[i];
    __syncthreads();
    for (int r = y; r < 32; r += 4)
        for (int d = x; d < 64; d += 32) {
            float s = 0;
            for (int j = 0; j < 32; ++j) s += S[r][j] * K[j][d];
            out[r * 64 + d] = s;
        }
}
