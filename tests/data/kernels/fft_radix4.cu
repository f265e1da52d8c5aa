// Four points a thread exchanged through split real and imaginary arrays.
// launch: {"entry": "fft", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 512, "random"], ["f32*", 512]]}
extern "C" __global__ void fft(const float2* in, float2* out) {
    __shared__ float re[256], im[256];
    int t = threadIdx.x;
    float2 v[4];
    for (int k = 0; k < 4; ++k) v[k] = in[t + 64 * k];
    for (int span = 1; span < 256; span *= 4) {
        float2 s = {v[0].x + v[2].x, v[0].y + v[2].y}, d = {v[0].x - v[2].x, v[0].y - v[2].y};
        float2 p = {v[1].x + v[3].x, v[1].y + v[3].y}, q = {v[1].y - v[3].y, v[3].x - v[1].x};
        v[0] = {s.x + p.x, s.y + p.y}, v[1] = {d.x + q.x, d.y + q.y};
        v[2] = {s.x - p.x, s.y - p.y}, v[3] = {d.x - q.x, d.y - q.y};
        int low = t % span, at = (t - low) * 4 + low;
        for (int k = 0; k < 4; ++k) re[at + k * span] = v[k].x, im[at + k * span] = v[k].y;
        __syncthreads();
        for (int k = 0; k < 4; ++k) v[k] = {re[t + 64 * k], im[t + 64 * k]};
        __syncthreads();
    }
    for (int k = 0; k < 4; ++k) out[t + 64 * k] = v[k];
}
