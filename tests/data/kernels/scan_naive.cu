// Hillis and Steele, two buffers swapped by index.
// launch: {"entry": "scan", "block": [128, 1, 1], "grid": [1, 1, 1], "args": [["i32*", 128, "iota"], ["i32*", 128]], "shared": 1024}
extern "C" __global__ void scan(const int* in, int* out) {
    extern __shared__ int two[];
    int t = threadIdx.x, n = blockDim.x, from = 1, to = 0;
    two[t] = in[t];
    __syncthreads();
    for (int d = 1; d < n; d *= 2) {
        to = 1 - to, from = 1 - from;
        two[to * n + t] = two[from * n + t] + (t >= d ? two[from * n + t - d] : 0);
        __syncthreads();
    }
    out[t] = two[to * n + t];
}
