// Sums of columns: 64-bit values, threads of one column 16 rows apart.
// launch: {"entry": "sums", "block": [16, 16, 1], "grid": [1, 1, 1], "args": [["f64*", 1024, "iota"], ["f64*", 16]]}
extern "C" __global__ void sums(const double* in, double* out) {
    __shared__ double part[16][16];
    double sum = 0;
    for (int r = threadIdx.y; r < 64; r += 16) sum += in[r * 16 + threadIdx.x];
    part[threadIdx.x][threadIdx.y] = sum;
    __syncthreads();
    for (int s = 8; s; s /= 2) {
        if (threadIdx.y < s) part[threadIdx.x][threadIdx.y] += part[threadIdx.x][threadIdx.y + s];
        __syncthreads();
    }
    if (threadIdx.y == 0) out[threadIdx.x] = part[threadIdx.x][0];
}
