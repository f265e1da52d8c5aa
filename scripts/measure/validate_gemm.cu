#include <cstdio>
#include <cstdlib>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include "@ELEMENT@_a.cuh"
#include "@ELEMENT@_b.cuh"

using Element = @ELEMENT_TYPE@;
using Sum = @SUM_TYPE@;
using Register = @REGISTER_TYPE@;
constexpr int M = @M@, N = @N@, K = @K@, THREADS = @THREADS@;

__device__ __forceinline__ void multiply(Sum* c, const Register* a, const Register* b) {
    asm volatile("@PTX@ @GROUPS@;" : @OUTS@ : @INS@);
}

// What the emitted loads return, in registers.
__device__ __forceinline__ void load_a(const void* tile, uint32_t smem, int tid, int m_step, int k_step, Register (&v)[@A_LOADED@]) {
    @LOAD_A@
}
__device__ __forceinline__ void load_b(const void* tile, uint32_t smem, int tid, int n_step, int k_step, Register (&v)[@B_LOADED@]) {
    @LOAD_B@
}

// A is M rows of K, B is N rows of K, C is M rows of N.
__global__ void gemm(const Element* a, const Element* b, Sum* c, int twist) {
    __shared__ alignas(gemm_a_alignment) unsigned char tile_a[gemm_a_bytes];
    __shared__ alignas(gemm_b_alignment) unsigned char tile_b[gemm_b_bytes];
    const uint32_t smem_a = (uint32_t)__cvta_generic_to_shared(tile_a);
    const uint32_t smem_b = (uint32_t)__cvta_generic_to_shared(tile_b);
    const int tid = threadIdx.x;
    for (int i = 0; i < M * K * (int)sizeof(Element) / 16 / THREADS; ++i)
        gemm_a_fill(smem_a, tid, i, (const char*)a + 16 * (tid + THREADS * i));
    for (int i = 0; i < N * K * (int)sizeof(Element) / 16 / THREADS; ++i)
        gemm_b_fill(smem_b, tid, i, (const char*)b + 16 * (tid + THREADS * i));
    gemm_a_commit();
    gemm_a_wait<0>();
    __syncthreads();

    Sum sums[@M_REPEAT@][@N_REPEAT@][@C_REGISTERS@] = {};
    for (int k_step = 0; k_step < @K_REPEAT@; ++k_step)
        for (int m_step = 0; m_step < @M_REPEAT@; ++m_step) {
            Register va[@A_LOADED@];
            load_a(tile_a, smem_a, tid, m_step, k_step, va);
            for (int n_step = 0; n_step < @N_REPEAT@ / @B_PER_LOAD@; ++n_step) {
                Register vb[@B_LOADED@];
                load_b(tile_b, smem_b, tid ^ twist, n_step, k_step, vb);
                for (int j = 0; j < @B_PER_LOAD@; ++j)
                    multiply(sums[m_step][n_step * @B_PER_LOAD@ + j], va, vb + j * @B_REGISTERS@);
            }
        }

    // Accumulators in the PTX ISA's matrix fragments: two neighbours of row lane / 4, then of row + 8.
    const int lane = tid % 32, warp = tid / 32;
    for (int m_step = 0; m_step < @M_REPEAT@; ++m_step)
        for (int n_step = 0; n_step < @N_REPEAT@; ++n_step)
            for (int i = 0; i < @C_REGISTERS@; ++i) {
                const int row = (warp % @M_WARPS@ * @M_REPEAT@ + m_step) * @M_EACH@ + lane / 4 + 8 * (i / 2);
                const int column = (warp / @M_WARPS@ * @N_REPEAT@ + n_step) * @N_EACH@ + 2 * (lane % 4) + i % 2;
                c[row * N + column] = sums[m_step][n_step][i];
            }
}

static void check(cudaError_t status) {
    if (status != cudaSuccess) { std::fprintf(stderr, "%s\n", cudaGetErrorString(status)); std::exit(2); }
}

int main() {
    static int a[M * K], b[N * K];
    static Element ea[M * K], eb[N * K];
    static Sum c[M * N];
    std::srand(20261121);
    for (int i = 0; i < M * K; ++i) ea[i] = (Element)(float)(a[i] = std::rand() / 16 % 9 - 4);
    for (int i = 0; i < N * K; ++i) eb[i] = (Element)(float)(b[i] = std::rand() / 16 % 9 - 4);
    Element *da, *db;
    Sum* dc;
    check(cudaMalloc(&da, sizeof ea));
    check(cudaMalloc(&db, sizeof eb));
    check(cudaMalloc(&dc, sizeof c));
    check(cudaMemcpy(da, ea, sizeof ea, cudaMemcpyHostToDevice));
    check(cudaMemcpy(db, eb, sizeof eb, cudaMemcpyHostToDevice));
    for (int twist = 0; twist < 2; ++twist) {
        check(cudaMemset(dc, 0xff, sizeof c));
        gemm<<<1, THREADS>>>(da, db, dc, twist);
        check(cudaGetLastError());
        check(cudaMemcpy(c, dc, sizeof c, cudaMemcpyDeviceToHost));
        int wrong = 0;
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) {
                int want = 0;
                for (int k = 0; k < K; ++k) want += a[i * K + k] * b[j * K + k];
                wrong += !((double)c[i * N + j] == want);
            }
        std::printf("@KIND@%s %s %d of %d\n", twist ? " control" : "", wrong ? "WRONG" : "right", wrong, M * N);
    }
}
