// The first GEMM of every course: 16x16 tiles, k from a parameter.
// launch: {"entry": "gemm", "block": [16, 16, 1], "grid": [2, 2, 1], "args": [["f32*", 2048, "random"], ["f32*", 2048, "random"], ["f32*", 1024], ["i32", 32], ["i32", 64]]}
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int n, int depth) {
    __shared__ float As[16][16], Bs[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < depth; k += 16) {
        As[threadIdx.y][threadIdx.x] = a[row * depth + k + threadIdx.x];
        Bs[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += As[threadIdx.y][i] * Bs[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
