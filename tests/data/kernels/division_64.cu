// 64-bit division and remainder, signed and unsigned.
// launch: {"entry": "divide", "block": [64, 1, 1], "grid": [1, 2, 1], "args": [["f32*", 640, "iota"], ["f32*", 256], ["i64", 10000000019], ["u64", 7]]}
extern "C" __global__ void divide(const float* in, float* out, long long a, unsigned long long b) {
    __shared__ float tile[640];
    int t = threadIdx.x;
    for (int i = t; i < 640; i += 64) tile[i] = in[i];
    __syncthreads();
    long long x = a * (t + 1 + blockIdx.y) / -1234567, y = (a ^ t * 977) % 613;
    unsigned long long z = (static_cast<unsigned long long>(a) << 20) / (b + t);
    float sum = tile[(x < 0 ? -x : x) % 640] + tile[y] + tile[z % 640];
    out[(blockIdx.y * 64 + t) % 256] = sum;
}
