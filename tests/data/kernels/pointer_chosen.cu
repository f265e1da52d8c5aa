// Which array is read depends on the warp and on a parameter: the address is one of two.
// launch: {"entry": "choose", "block": [128, 1, 1], "grid": [2, 1, 1], "args": [["f32*", 2048, "iota"], ["f32*", 256], ["i32", 1]]}
extern "C" __global__ void choose(const float* in, float* out, int flip) {
    __shared__ float a[32][32], b[16][64];
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    for (int i = t; i < 1024; i += 128) a[i / 32][i % 32] = in[i], b[i / 64][i % 64] = in[1024 + i];
    __syncthreads();
    const float* p = (warp + flip) % 2 ? &a[0][0] : &b[0][0];
    int pitch = (warp + flip) % 2 ? 32 : 64;
    float sum = 0;
    for (int k = 0; k < 8; ++k) sum += p[(lane % 16) * pitch + k + blockIdx.x * 8];
    out[blockIdx.x * 128 + t] = sum;
}
