// Softmax of rows of 96, a warp a row, with fast and slow paths of division and exp.
// launch: {"entry": "softmax", "block": [32, 4, 1], "grid": [2, 1, 1], "args": [["f32*", 768, "random"], ["f32*", 768]]}
extern "C" __global__ void softmax(const float* in, float* out) {
    __shared__ float row[4][96], top[4];
    int x = threadIdx.x, y = threadIdx.y, g = (blockIdx.x * 4 + y) * 96;
    float best = -3e38f, sum = 0;
    for (int c = x; c < 96; c += 32) row[y][c] = in[g + c], best = fmaxf(best, row[y][c]);
    for (int d = 16; d; d /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, d));
    if (x == 0) top[y] = best;
    __syncwarp();
    for (int c = x; c < 96; c += 32) row[y][c] = expf(row[y][c] - top[y]), sum += row[y][c];
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    for (int c = x; c < 96; c += 32) out[g + c] = row[y][c] / sum;
}
