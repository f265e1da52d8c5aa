// Compare and exchange: addresses known, stores depend on the data unless both are always written.
// launch: {"entry": "sort", "block": [256, 1, 1], "grid": [1, 1, 1], "args": [["i32*", 512, "random"], ["i32*", 512]]}
extern "C" __global__ void sort(const int* in, int* out) {
    __shared__ int v[512];
    for (int i = threadIdx.x; i < 512; i += 256) v[i] = in[i];
    for (int size = 2; size <= 512; size *= 2)
        for (int stride = size / 2; stride; stride /= 2) {
            __syncthreads();
            int i = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
            int a = v[i], b = v[i + stride], up = (i & size) == 0;
            v[i] = up ? min(a, b) : max(a, b), v[i + stride] = up ? max(a, b) : min(a, b);
        }
    __syncthreads();
    for (int i = threadIdx.x; i < 512; i += 256) out[i] = v[i];
}
