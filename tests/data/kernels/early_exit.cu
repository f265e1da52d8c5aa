// Threads beyond the end leave before the barrier.
// launch: {"entry": "leave", "block": [128, 1, 1], "grid": [3, 1, 1], "args": [["f32*", 300, "iota"], ["f32*", 300], ["i32", 300]]}
extern "C" __global__ void leave(const float* in, float* out, int n) {
    __shared__ float line[256];
    int g = blockIdx.x * 128 + threadIdx.x;
    if (g >= n) return;
    line[threadIdx.x * 2] = in[g];
    __syncthreads();
    int last = min(n - blockIdx.x * 128, 128) - 1;
    out[g] = line[(last - threadIdx.x) * 2];
}
