// Structures of 12 bytes, and their fields apart.
// launch: {"entry": "unzip", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 192, "iota"], ["f32*", 192]]}
struct Point { float x, y, z; };
extern "C" __global__ void unzip(const float* in, float* out) {
    __shared__ Point points[64];
    __shared__ double wide[64][3];
    int t = threadIdx.x;
    for (int i = t; i < 192; i += 64) reinterpret_cast<float*>(points)[i] = in[i];
    __syncthreads();
    Point p = points[t];
    wide[t][0] = p.x, wide[t][1] = p.y, wide[63 - t][2] = p.z;
    __syncthreads();
    for (int k = 0; k < 3; ++k) out[k * 64 + t] = float(wide[t][k]);
}
