// A rank by counting: places depend on the data.
// launch: {"entry": "place", "block": [128, 1, 1], "grid": [1, 1, 1], "args": [["i32*", 128, "random"], ["i32*", 128]], "data_dependent": true}
extern "C" __global__ void place(const int* in, int* out) {
    __shared__ int key[128], sorted[128];
    int t = threadIdx.x, mine = in[t], rank = 0;
    key[t] = mine;
    __syncthreads();
    for (int j = 0; j < 128; ++j) rank += key[j] < mine || (key[j] == mine && j < t);
    sorted[rank] = mine;
    __syncthreads();
    out[t] = sorted[t];
}
