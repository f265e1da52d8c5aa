// Compare and swap: each word belongs to one lane, so that every attempt succeeds.
// launch: {"entry": "swap", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["i32*", 64, "iota"], ["i32*", 64]]}
extern "C" __global__ void swap(const int* in, int* out) {
    __shared__ int word[128];
    int t = threadIdx.x;
    word[2 * t] = 0, word[2 * t + 1] = 1;
    __syncthreads();
    atomicCAS(&word[2 * t], 0, in[t]);
    atomicExch(&word[2 * t + 1], t);
    __syncthreads();
    out[t] = word[2 * t] + word[2 * t + 1];
}
