// One warp fills, three consume; they meet at named barriers.
// launch: {"entry": "pipeline", "block": [128, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 4096, "iota"], ["f32*", 96], ["i32", 8]]}
extern "C" __global__ void pipeline(const float* in, float* out, int steps) {
    __shared__ float stage[2][16][32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 0) {
        for (int s = 0; s < steps; ++s) {
            if (s >= 2) asm volatile("bar.sync %0, 128;" ::"r"(3 + s % 2) : "memory");
            for (int r = 0; r < 16; ++r) stage[s % 2][r][lane] = in[s * 512 + r * 32 + lane];
            asm volatile("bar.sync %0, 128;" ::"r"(1 + s % 2) : "memory");
        }
    } else {
        float sum = 0;
        for (int s = 0; s < steps; ++s) {
            asm volatile("bar.sync %0, 128;" ::"r"(1 + s % 2) : "memory");
            for (int k = 0; k < 8; ++k) sum += stage[s % 2][lane % 16][(warp * 8 + k) % 32];
            if (s + 2 < steps) asm volatile("bar.arrive %0, 128;" ::"r"(3 + s % 2) : "memory");
        }
        out[threadIdx.x - 32] = sum;
    }
}
