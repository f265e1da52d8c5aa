// A lane reads a row of its own, four elements at a time.
// launch: {"entry": "matvec", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 4096, "random"], ["f32*", 64, "random"], ["f32*", 64]]}
extern "C" __global__ void matvec(const float4* m, const float* v, float* out) {
    __shared__ __align__(16) float tile[64][64];
    __shared__ __align__(16) float x[64];
    int t = threadIdx.x;
    for (int i = t; i < 1024; i += 64) *reinterpret_cast<float4*>(&tile[i / 16][i % 16 * 4]) = m[i];
    x[t] = v[t];
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 64; k += 4) {
        float4 a = *reinterpret_cast<float4*>(&tile[t][k]), b = *reinterpret_cast<float4*>(&x[k]);
        sum += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
    out[t] = sum;
}
