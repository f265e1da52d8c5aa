// Dynamic programming along anti-diagonals of a square of 33 x 33.
// launch: {"entry": "align", "block": [32, 1, 1], "grid": [1, 1, 1], "args": [["i32*", 1024, "iota"], ["i32*", 1024]]}
extern "C" __global__ void align(const int* cost, int* out) {
    __shared__ int best[33][33], price[32][32];
    int t = threadIdx.x;
    for (int r = 0; r < 32; ++r) price[r][t] = cost[r * 32 + t];
    best[0][t + 1] = -t, best[t + 1][0] = -t;
    if (t == 0) best[0][0] = 0;
    __syncthreads();
    for (int d = 0; d < 63; ++d) {
        int x = d - t;
        if (x >= 0 && x < 32)
            best[t + 1][x + 1] = max(best[t][x] + price[t][x], max(best[t][x + 1], best[t + 1][x]) - 1);
        __syncthreads();
    }
    for (int r = 0; r < 32; ++r) out[r * 32 + t] = best[r + 1][t + 1];
}
