// Rows and columns by division by a parameter that the compiler does not know.
// launch: {"entry": "divide", "block": [96, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 1023, "iota"], ["f32*", 1023], ["i32", 33], ["u32", 31]], "shared": 4092}
extern "C" __global__ void divide(const float* in, float* out, int columns, unsigned rows) {
    extern __shared__ float tile[];
    int n = columns * static_cast<int>(rows);
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i / columns * columns + i % columns] = in[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) out[i] = tile[i % rows * columns + i / rows];
}
