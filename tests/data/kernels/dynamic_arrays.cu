// Three arrays carved out of dynamic shared memory, sizes from parameters.
// launch: {"entry": "carve", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 4096, "iota"], ["f32*", 64], ["i32", 64], ["i32", 16]], "shared": 4672}
extern "C" __global__ void carve(const float* in, float* out, int n, int rows) {
    extern __shared__ __align__(16) unsigned char memory[];
    float* tile = reinterpret_cast<float*>(memory);
    float* sums = tile + rows * n;
    unsigned short* order = reinterpret_cast<unsigned short*>(sums + n);
    int t = threadIdx.x;
    for (int r = 0; r < rows; ++r) tile[r * n + t] = in[r * n + t];
    order[t] = static_cast<unsigned short>(n - 1 - t);
    __syncthreads();
    float sum = 0;
    for (int r = 0; r < rows; ++r) sum += tile[(t % rows) * n + (t / rows + 4 * r) % n];
    sums[t] = sum;
    __syncthreads();
    out[t] = sums[order[t]];
}
