// A histogram of what the input holds.
// launch: {"entry": "histogram", "block": [128, 1, 1], "grid": [2, 1, 1], "args": [["u8*", 1024, "random"], ["i32*", 256], ["i32", 1024]], "data_dependent": true}
extern "C" __global__ void histogram(const unsigned char* in, int* out, int n) {
    __shared__ int bins[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) atomicAdd(&bins[in[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&out[i], bins[i]);
}
