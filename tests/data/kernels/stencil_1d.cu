// A radius from a parameter; the first threads fill the halo.
// launch: {"entry": "smooth", "block": [96, 1, 1], "grid": [4, 1, 1], "args": [["f32*", 400, "random"], ["f32*", 400], ["i32", 5], ["i32", 384]], "shared": 424}
extern "C" __global__ void smooth(const float* in, float* out, int radius, int n) {
    extern __shared__ float line[];
    int g = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
    line[t + radius] = in[g];
    if (t < radius) {
        line[t] = g >= radius ? in[g - radius] : 0.f;
        line[t + radius + blockDim.x] = g + blockDim.x < n ? in[g + blockDim.x] : 0.f;
    }
    __syncthreads();
    float sum = 0;
    for (int k = -radius; k <= radius; ++k) sum += line[t + radius + k];
    out[g] = sum;
}
