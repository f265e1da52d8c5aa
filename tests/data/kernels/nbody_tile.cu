// Bodies of 16 bytes, all lanes read one at a time.
// launch: {"entry": "forces", "block": [128, 1, 1], "grid": [2, 1, 1], "args": [["f32*", 1024, "random"], ["f32*", 768], ["i32", 256]]}
extern "C" __global__ void forces(const float4* bodies, float* out, int n) {
    __shared__ float4 tile[128];
    int g = blockIdx.x * 128 + threadIdx.x;
    float4 me = bodies[g];
    float x = 0, y = 0, z = 0;
    for (int b = 0; b < n; b += 128) {
        tile[threadIdx.x] = bodies[b + threadIdx.x];
        __syncthreads();
        for (int j = 0; j < 128; ++j) {
            float4 o = tile[j];
            float dx = o.x - me.x, dy = o.y - me.y, dz = o.z - me.z;
            float s = o.w * rsqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
            x += dx * s, y += dy * s, z += dz * s;
        }
        __syncthreads();
    }
    out[g * 3] = x, out[g * 3 + 1] = y, out[g * 3 + 2] = z;
}
