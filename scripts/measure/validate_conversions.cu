//@ start
// Conversions between register layouts, each in a kernel of its own: values against what the bases say.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

//@ kernel
@FUNCTION@
__global__ void @NAME@_kernel(const @TYPE@* given, @TYPE@* found) {
    __shared__ __align__(16) unsigned char scratch[@SCRATCH@];
    @TYPE@ in[@HELD@], out[@WANTED@];
    for (int r = 0; r < @HELD@; r++) in[r] = given[r * blockDim.x + threadIdx.x];
    @NAME@(in, out, scratch, threadIdx.x);
    for (int r = 0; r < @WANTED@; r++) found[r * blockDim.x + threadIdx.x] = out[r];
}
static int @NAME@_wrong() {
    return wrong<@TYPE@>(@NAME@_kernel, @HELD@, @WANTED@, {@SOURCE@}, {@DESTINATION@});
}
//@ check
// The number of an element: the XOR of the vectors of the bits of thread (lanes, then warps) and register.
static unsigned element(const std::vector<unsigned>& vectors, unsigned thread, unsigned reg, unsigned bits) {
    unsigned number = 0;
    for (unsigned b = 0; b < vectors.size(); b++)
        if ((b < bits ? reg >> b : thread >> (b - bits)) & 1) number ^= vectors[b];
    return number;
}
static unsigned bits_of(unsigned count) { return count > 1 ? 1 + bits_of(count / 2) : 0; }

template <typename T>
static int wrong(void (*kernel)(const T*, T*), unsigned held, unsigned wanted, std::vector<unsigned> source,
                 std::vector<unsigned> destination) {
    const unsigned threads = @THREADS@;
    std::vector<T> in(held * threads), out(wanted * threads);
    T *given, *found;
    cudaMalloc(&given, in.size() * sizeof(T));
    cudaMalloc(&found, out.size() * sizeof(T));
    int bad = 0;
    // A byte does not number all elements: another part of the number in each pass.
    for (unsigned shift = 0; shift < 16; shift += 8 * sizeof(T)) {
        for (unsigned r = 0; r < held; r++)
            for (unsigned t = 0; t < threads; t++)
                in[r * threads + t] = (T)(element(source, t, r, bits_of(held)) >> shift);
        cudaMemcpy(given, in.data(), in.size() * sizeof(T), cudaMemcpyHostToDevice);
        cudaMemset(found, 0xff, out.size() * sizeof(T));
        kernel<<<1, threads>>>(given, found);
        cudaMemcpy(out.data(), found, out.size() * sizeof(T), cudaMemcpyDeviceToHost);
        for (unsigned r = 0; r < wanted; r++)
            for (unsigned t = 0; t < threads; t++)
                bad += out[r * threads + t] != (T)(element(destination, t, r, bits_of(wanted)) >> shift);
    }
    bad += cudaDeviceSynchronize() != cudaSuccess;
    cudaFree(given);
    cudaFree(found);
    return bad;
}

//@ end
int main() {
@CALLS@    return 0;
}
