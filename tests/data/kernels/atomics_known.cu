// Atomics on addresses that the thread decides.
// launch: {"entry": "count", "block": [256, 1, 1], "grid": [2, 1, 1], "args": [["i32*", 512, "iota"], ["i32*", 128]]}
extern "C" __global__ void count(const int* in, int* out) {
    __shared__ int bins[64];
    int t = threadIdx.x;
    if (t < 64) bins[t] = 0;
    __syncthreads();
    atomicAdd(&bins[t % 64], in[blockIdx.x * 256 + t]);
    atomicMax(&bins[t * 4 % 64], t);
    atomicAdd(&bins[t / 8], 1);
    __syncthreads();
    if (t < 64) out[blockIdx.x * 64 + t] = bins[t];
}
