// The same tree with an element left free after every 32.
// launch: {"entry": "scan", "block": [256, 1, 1], "grid": [1, 1, 1], "args": [["i32*", 512, "iota"], ["i32*", 512], ["i32", 512]], "shared": 2112}
#define AT(i) v[(i) + ((i) >> 5)]
extern "C" __global__ void scan(const int* in, int* out, int n) {
    extern __shared__ int v[];
    int t = threadIdx.x, offset = 1;
    AT(t) = in[t], AT(t + n / 2) = in[t + n / 2];
    for (int d = n >> 1; d > 0; d >>= 1, offset <<= 1) {
        __syncthreads();
        if (t < d) AT(offset * (2 * t + 2) - 1) += AT(offset * (2 * t + 1) - 1);
    }
    if (t == 0) AT(n - 1) = 0;
    for (int d = 1; d < n; d <<= 1) {
        offset >>= 1;
        __syncthreads();
        if (t < d) {
            int i = offset * (2 * t + 1) - 1, j = offset * (2 * t + 2) - 1, keep = AT(i);
            AT(i) = AT(j), AT(j) += keep;
        }
    }
    __syncthreads();
    out[t] = AT(t), out[t + n / 2] = AT(t + n / 2);
}
