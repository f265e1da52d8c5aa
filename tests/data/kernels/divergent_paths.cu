// A switch over the lane whose ways each touch the tile, joined again before the next access.
// launch: {"entry": "paths", "block": [96, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 1024, "iota"], ["f32*", 96], ["i32", 5]]}
extern "C" __global__ void paths(const float* in, float* out, int n) {
    __shared__ float tile[32][32];
    int t = threadIdx.x;
    for (int i = t; i < 1024; i += 96) tile[i / 32][i % 32] = in[i];
    __syncthreads();
    float v = 0;
    switch (t % 4) {
        case 0: for (int k = 0; k < n; ++k) v += tile[t % 32][k] * k; break;
        case 1: v = sqrtf(tile[5][t % 32]); for (int k = 0; k < t % 7; ++k) v = v * v + tile[k][3]; break;
        case 2: v = tile[t % 32][t % 32] / (1.f + n); break;
        default: for (int k = n; k > 0; k -= 2) v -= tile[k][t % 32];
    }
    v += tile[t / 3][7];
    out[t] = v;
}
