// Blelloch's tree, unpadded: strides are powers of two.
// launch: {"entry": "scan", "block": [256, 1, 1], "grid": [2, 1, 1], "args": [["i32*", 1024, "iota"], ["i32*", 1024], ["i32", 512]], "shared": 2048, "bench": {"grid": [4096, 1, 1], "args": [["i32*", 2097152, "iota"], ["i32*", 2097152], ["i32", 512]]}}
extern "C" __global__ void scan(const int* in, int* out, int n) {
    extern __shared__ int v[];
    int t = threadIdx.x, offset = 1, g = blockIdx.x * n;
    v[2 * t] = in[g + 2 * t], v[2 * t + 1] = in[g + 2 * t + 1];
    for (int d = n >> 1; d > 0; d >>= 1, offset <<= 1) {
        __syncthreads();
        if (t < d) v[offset * (2 * t + 2) - 1] += v[offset * (2 * t + 1) - 1];
    }
    if (t == 0) v[n - 1] = 0;
    for (int d = 1; d < n; d <<= 1) {
        offset >>= 1;
        __syncthreads();
        if (t < d) {
            int i = offset * (2 * t + 1) - 1, j = offset * (2 * t + 2) - 1, keep = v[i];
            v[i] = v[j], v[j] += keep;
        }
    }
    __syncthreads();
    out[g + 2 * t] = v[2 * t], out[g + 2 * t + 1] = v[2 * t + 1];
}
