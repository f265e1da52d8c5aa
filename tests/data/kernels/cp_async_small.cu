// cp.async of 4 bytes into a padded tile, borders switched off by predicate.
// launch: {"entry": "copy", "block": [32, 4, 1], "grid": [1, 3, 1], "args": [["f32*", 3000, "iota"], ["f32*", 3072], ["i32", 30]]}
extern "C" __global__ void copy(const float* in, float* out, int columns) {
    __shared__ float tile[32][34];
    unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(&tile[0][0]));
    in += blockIdx.y * 960, out += blockIdx.y * 1024;
    for (int r = threadIdx.y; r < 32; r += 4)
        if (threadIdx.x < columns)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(base + (r * 34 + threadIdx.x) * 4),
                         "l"(in + r * columns + threadIdx.x) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int r = threadIdx.y; r < 32; r += 4)
        if (r < columns) out[r * 32 + threadIdx.x] = tile[threadIdx.x][r];
}
