// A loop that a vote ends, a mask of the voters and its population count as an address.
// launch: {"entry": "vote", "block": [64, 1, 1], "grid": [1, 1, 1], "args": [["f32*", 1024, "iota"], ["f32*", 64], ["i32", 40]]}
extern "C" __global__ void vote(const float* in, float* out, int limit) {
    __shared__ float line[1024];
    int t = threadIdx.x;
    for (int i = t; i < 1024; i += 64) line[i] = in[i];
    __syncthreads();
    int i = t;
    float sum = 0;
    while (__any_sync(~0u, i < limit * 8)) {
        if (i < limit * 8) sum += line[i];
        i += t + 3;
    }
    unsigned even = __ballot_sync(~0u, t % 3 == 0);
    sum += line[__popc(even & ((1u << t % 32) - 1)) * 32];
    out[t] = sum;
}
