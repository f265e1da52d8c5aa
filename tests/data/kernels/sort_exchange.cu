// Odd-even transposition where a pair is written only if it is out of order.
// launch: {"entry": "sort", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["i32*", 128, "random"], ["i32*", 128]], "data_dependent": true}
extern "C" __global__ void sort(const int* in, int* out) {
    __shared__ int v[128];
    int t = threadIdx.x;
    v[2 * t] = in[2 * t], v[2 * t + 1] = in[2 * t + 1];
    for (int step = 0; step < 128; ++step) {
        __syncthreads();
        int i = 2 * t + step % 2;
        if (i + 1 < 128) {
            int a = v[i], b = v[i + 1];
            if (a > b) v[i] = b, v[i + 1] = a;
        }
    }
    __syncthreads();
    out[2 * t] = v[2 * t], out[2 * t + 1] = v[2 * t + 1];
}
