// Extents and strides come in a structure by value.
// launch: {"entry": "copy", "block": [64, 1, 1], "grid": [2, 1, 1], "args": [["struct", [["u8", 3], ["i32", 20], ["i64", 36], ["u16", 24], ["f32*", 2000, "iota"]]], ["f32*", 2000]], "shared": 2880}
struct View { unsigned char kind; int rows; long long pitch; unsigned short columns; const float* data; };
extern "C" __global__ void copy(View v, float* out) {
    extern __shared__ float tile[];
    int t = threadIdx.x, columns = v.columns, n = v.rows * columns;
    for (int i = t; i < n; i += 64) tile[i / columns * v.pitch + i % columns] = v.data[blockIdx.x * n + i];
    __syncthreads();
    for (int i = t; i < n; i += 64) out[blockIdx.x * n + i] = tile[i % v.rows * v.pitch + i / v.rows] + v.kind;
}
