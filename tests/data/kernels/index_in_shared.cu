// Indices that the kernel computes, keeps in shared memory and follows.
// launch: {"entry": "follow", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 4096, "iota"], ["f32*", 64]]}
extern "C" __global__ void follow(const float* in, float* out) {
    __shared__ float tile[64][64];
    __shared__ int next[64];
    int t = threadIdx.x;
    next[t] = (t * 37 + 11) % 64;
    for (int r = 0; r < 64; ++r) tile[r][t] = in[r * 64 + t];
    __syncthreads();
    int i = t;
    float sum = 0;
    for (int k = 0; k < 6; ++k) i = next[i], sum += tile[i][k];
    out[t] = sum;
}
