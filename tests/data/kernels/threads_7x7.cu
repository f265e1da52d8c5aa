// A block of 49 threads.
// launch: {"entry": "turn", "block": [7, 7, 1], "grid": [2, 3, 1], "args": [["f32*", 294, "iota"], ["f32*", 294]]}
extern "C" __global__ void turn(const float* in, float* out) {
    __shared__ float tile[7][8];
    int b = (blockIdx.y * gridDim.x + blockIdx.x) * 49;
    tile[threadIdx.y][threadIdx.x] = in[b + threadIdx.y * 7 + threadIdx.x];
    __syncthreads();
    out[b + threadIdx.y * 7 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
