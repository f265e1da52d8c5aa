// Counters of a byte for each thread, summed by rows of words.
// launch: {"entry": "histogram", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["u8*", 1024, "random"], ["i32*", 64]], "data_dependent": true}
extern "C" __global__ void histogram(const unsigned char* in, int* out) {
    __shared__ unsigned char bins[64 * 64];
    int t = threadIdx.x;
    for (int i = t; i < 1024; i += 64) reinterpret_cast<unsigned*>(bins)[i] = 0;
    __syncthreads();
    for (int i = 0; i < 16; ++i) bins[(in[i * 64 + t] & 63) * 64 + t]++;
    __syncthreads();
    int sum = 0;
    for (int j = 0; j < 64; ++j) sum += bins[t * 64 + j];
    out[t] = sum;
}
