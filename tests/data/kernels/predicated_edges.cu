// Triangles: a lane works on as many columns as its row has.
// launch: {"entry": "lower", "block": [32, 4, 1], "grid": [1, 1, 1], "args": [["f32*", 1024, "iota"], ["f32*", 32]]}
extern "C" __global__ void lower(const float* in, float* out) {
    __shared__ float tile[32][32], part[4][32];
    int x = threadIdx.x, y = threadIdx.y;
    for (int r = y; r < 32; r += 4)
        if (x <= r) tile[r][x] = in[r * 32 + x];
    __syncthreads();
    float sum = 0;
    for (int c = y; c <= x; c += 4) sum += tile[x][c];
    part[y][x] = sum;
    __syncthreads();
    if (y == 0) out[x] = part[0][x] + part[1][x] + part[2][x] + part[3][x];
}
