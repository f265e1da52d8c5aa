// 256 complex points, butterflies in place after a bit reversal.
// launch: {"entry": "fft", "block": [128, 1, 1], "grid": [2, 1, 1], "args": [["f32*", 1024, "random"], ["f32*", 1024]], "bench": {"grid": [4096, 1, 1], "args": [["f32*", 2097152, "random"], ["f32*", 2097152]]}}
extern "C" __global__ void fft(const float2* in, float2* out) {
    __shared__ float2 x[256];
    in += blockIdx.x * 256, out += blockIdx.x * 256;
    for (int i = threadIdx.x; i < 256; i += 128) x[__brev(i) >> 24] = in[i];
    for (int half = 1; half < 256; half *= 2) {
        __syncthreads();
        int t = threadIdx.x, k = t & (half - 1), i = 2 * (t - k) + k;
        float s, c;
        sincospif(-float(k) / float(half), &s, &c);
        float2 a = x[i], b = x[i + half], w = {b.x * c - b.y * s, b.x * s + b.y * c};
        x[i] = {a.x + w.x, a.y + w.y}, x[i + half] = {a.x - w.x, a.y - w.y};
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += 128) out[i] = x[i];
}
