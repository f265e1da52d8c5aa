"""Run lanes that were chosen on a GPU: fills and drains, and transposes at a copy's bandwidth.

    python scripts/measure/record_free_lanes.py --write FOLDER     here: solve, and write the programs
    python scripts/measure/record_free_lanes.py --measure FOLDER   on the GPU, with nvcc and ncu

Every fill or drain is a program that tests its own values; ncu counts its conflicts. The transposes move 256
to 512 MB with 16-byte accesses to global memory on both sides, beside a device-to-device copy of as much.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

import on_gpu
from on_gpu import counted

# The total of wavefronts also counts what no shared access causes; the total of conflicts does not.
WAVEFRONTS: Final = tuple(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum" for op in ("ld", "st"))
CONFLICTS: Final = ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",)
METRICS: Final = (*WAVEFRONTS, *CONFLICTS)

# Element bytes, its name, bytes of one shared load, rows and columns of the tile, rows of the matrix.
TRANSPOSES: Final = (
    (1, "u8", 4, 128, 128, 16384),
    (1, "u8", 4, 256, 128, 16384),
    (1, "u8", 4, 256, 256, 16384),
    (2, "f16", 4, 64, 64, 16384),
    (2, "f16", 4, 128, 64, 16384),
    (2, "f16", 4, 128, 128, 16384),
    (2, "f16", 4, 256, 128, 16384),
    (4, "f32", 4, 32, 32, 8192),
    (4, "f32", 4, 64, 64, 8192),
    (4, "f32", 4, 128, 64, 8192),
    (8, "f64", 8, 32, 32, 8192),
    (8, "f64", 8, 64, 32, 8192),
    (16, "b128", 16, 16, 16, 4096),
    (16, "b128", 16, 32, 32, 4096),
)


def _drain(contiguous: int, **more: Any) -> dict[str, Any]:
    side = {"contiguous": contiguous, "order": "column"}
    return {"name": "drain", "op": "load", "bytes": 4, "lanes": "free", "global": side, **more}


def assignments() -> list[dict[str, Any]]:
    """Problems with free lanes or values, as data."""
    rows = {
        "name": "rows", "op": "store", "bytes": 16, "index": ["tid//32 + 8*i", "4*(tid%32)"], "for": {"i": 4},
    }  # fmt: skip
    words = {
        "name": "words", "op": "store", "bytes": 4, "index": ["tid//2", "32*(tid%2) + 2*i"], "for": {"i": 16},
        "values": "free",
    }  # fmt: skip
    matrices = {
        "name": "matrices", "op": "ldmatrix.x2", "for": {"i": 32},
        "index": ["64*(warp%2) + 8*(i%8) + tid%8", "16*(i//8) + 8*((tid%16)//8)"],
    }  # fmt: skip
    parts = {
        "name": "parts", "op": "store", "bytes": 4, "index": ["tid//32 + 8*i", "4*(tid%32) + j"],
        "for": {"i": 4, "j": 4}, "values": "free",
    }  # fmt: skip
    columns = {
        "name": "columns", "op": "load", "bytes": 4, "index": ["tid%32", "tid//32 + 8*i"], "for": {"i": 16},
    }  # fmt: skip
    pairs = {
        "name": "pairs", "op": "store", "bytes": 16, "index": ["tid//32 + 8*i", "2*(tid%32)"], "for": {"i": 8},
    }  # fmt: skip
    lines = {"name": "lines", "op": "store", "bytes": 16, "lanes": "free", "global": {"contiguous": 96}}
    made = [
        ("drain of columns", [32, 128], "f32", 256, [rows, _drain(32)]),
        ("words in turn", [128, 64], "f16", 256, [words, matrices]),
        ("parts in turn", [32, 128], "f32", 256, [parts, columns]),
        ("part of a tile", [32, 128], "f32", 256, [rows, _drain(16, covers=[[8, 24], [32, 64]], threads=96)]),
        # Lanes of a warp change places: by an expression, beside threads that take no part, by a table.
        ("places in a warp", [64, 64], "f64", 256, [pairs, {**_drain(128), "bytes": 8}]),
        ("places beside idle threads", [96, 96], "u8", 128, _transposing(4, 64)),
        ("places by a table", [3, 24], "f32", 32, [lines]),
        *(
            (f"transpose {size} {n}x{m}", [n, m], kind, 256, _transposing(width))
            for size, kind, width, n, m, _ in TRANSPOSES
        ),
    ]
    pitch = {"places by a table": {"layout": {"pitch_multiple_bytes": 208}}}
    return [
        {"name": name, "tile": {"shape": shape, "element": element}, "threads": threads, "accesses": accesses}
        | pitch.get(name, {})
        for name, shape, element, threads, accesses in made
    ]  # fmt: skip


def _transposing(width: int, contiguous: int = 128) -> list[dict[str, Any]]:
    return [
        {"name": "fill", "op": "store", "bytes": 16, "lanes": "free", "global": {"contiguous": contiguous}},
        {"name": "drain", "op": "load", "bytes": width, "lanes": "free",
         "global": {"contiguous": contiguous, "order": "column", "bytes": 16}},
    ]  # fmt: skip


KERNEL: Final = r"""
// @SIZE@-byte elements, tiles of @ROWS@ x @COLUMNS@, 16 bytes of global memory a thread on both sides.
__global__ void __launch_bounds__(256) @NAME@_transpose(const unsigned char* in, unsigned char* out, size_t n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    constexpr int FILLS = @FILLS@, DRAINS = @DRAINS@, STEPS = @STEPS@, SIDE = @SIDE@;
    const int tid = threadIdx.x;
    const size_t row = size_t(blockIdx.y) * @ROWS@, column = size_t(blockIdx.x) * @COLUMNS@;
    uint4 v[FILLS];
    #pragma unroll
    for (int i = 0; i < FILLS; ++i)
        v[i] = __ldcs(reinterpret_cast<const uint4*>(
            in + ((row + @NAME@_fill_x0(@FILL_AT@)) * n + column + @NAME@_fill_x1(@FILL_AT@)) * @SIZE@));
    #pragma unroll
    for (int i = 0; i < FILLS; ++i) *reinterpret_cast<uint4*>(@NAME@_fill(smem, @FILL_AT@)) = v[i];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < DRAINS; ++i) {
        uint32_t w[4 * SIDE];
        #pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            const @WORD@ word = *reinterpret_cast<const @WORD@*>(@NAME@_drain(smem, @DRAIN_AT@));
            @KEEP@
        }
        turn<@SIZE@>(w);
        const int j = 0; (void)j;
        #pragma unroll
        for (int side = 0; side < SIDE; ++side)
            __stcs(reinterpret_cast<uint4*>(
                out + ((column + @NAME@_drain_x1(@DRAIN_AT@) + side) * n + row + @NAME@_drain_x0(@DRAIN_AT@)) * @SIZE@),
                make_uint4(w[4 * side], w[4 * side + 1], w[4 * side + 2], w[4 * side + 3]));
    }
}
"""

MAIN: Final = r"""
__device__ unsigned char byte_of(size_t k) { return static_cast<unsigned char>((k * 2654435761u + 12345u) >> 13); }
__global__ void fill_bytes(unsigned char* p, size_t n) {
    for (size_t k = blockIdx.x * size_t(blockDim.x) + threadIdx.x; k < n; k += size_t(gridDim.x) * blockDim.x) p[k] = byte_of(k);
}
__global__ void compare_bytes(const unsigned char* p, size_t n, int size, unsigned long long* wrong) {
    const size_t total = n * n * size;
    for (size_t k = blockIdx.x * size_t(blockDim.x) + threadIdx.x; k < total; k += size_t(gridDim.x) * blockDim.x) {
        const size_t element = k / size, from = (element % n * n + element / n) * size + k % size;
        if (p[k] != byte_of(from)) atomicAdd(wrong, 1ull);
    }
}
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); std::exit(3); } } while (0)
typedef void (*Transpose)(const unsigned char*, unsigned char*, size_t);

template <class Launch> float milliseconds(Launch launch) {
    cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b);
    std::vector<float> times;
    for (int k = 0; k < 23; ++k) {
        cudaEventRecord(a); launch(); cudaEventRecord(b); cudaEventSynchronize(b);
        float t; cudaEventElapsedTime(&t, a, b);
        if (k > 2) times.push_back(t);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

void measure(const char* name, Transpose kernel, int size, int rows, int columns, int bytes, size_t n, bool profile) {
    if (profile) n = 4 * (rows > columns ? rows : columns);
    const size_t total = n * n * size;
    unsigned char *in, *out; unsigned long long* wrong; unsigned long long count = 0;
    CHECK(cudaMalloc(&in, total)); CHECK(cudaMalloc(&out, total)); CHECK(cudaMalloc(&wrong, 8));
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    const dim3 grid(n / columns, n / rows);
    if (!profile) { fill_bytes<<<1024, 256>>>(in, total); CHECK(cudaMemset(wrong, 0, 8)); }
    kernel<<<grid, 256, bytes>>>(in, out, n);
    CHECK(cudaDeviceSynchronize());
    if (!profile) {
        compare_bytes<<<1024, 256>>>(out, n, size, wrong);
        CHECK(cudaMemcpy(&count, wrong, 8, cudaMemcpyDeviceToHost));
        const float copy = milliseconds([&] { cudaMemcpyAsync(out, in, total, cudaMemcpyDeviceToDevice); });
        const float turned = milliseconds([&] { kernel<<<grid, 256, bytes>>>(in, out, n); });
        const float again = milliseconds([&] { cudaMemcpyAsync(out, in, total, cudaMemcpyDeviceToDevice); });
        const float least = copy < again ? copy : again;
        std::printf("%s\t%d\t%zu\t%llu\t%.4f\t%.4f\t%.1f\t%.3f\n", name, size, n, count, least, turned,
                    2e-6 * total / turned, least / turned);
        std::fflush(stdout);
    }
    CHECK(cudaFree(in)); CHECK(cudaFree(out)); CHECK(cudaFree(wrong));
}

// Without arguments: values and times. With `profile`: each kernel once on few tiles.
int main(int argc, char**) {
    const bool profile = argc > 1;
    if (!profile) std::printf("name\tbytes\tn\twrong\tcopy ms\ttranspose ms\tGB/s\tcopy/transpose\n");
@RUNS@
    return 0;
}
"""

TURNS: Final = r"""
// Words of rows, as words of columns: what one thread holds of a tile.
template <int SIZE> __device__ __forceinline__ void turn(uint32_t*) {}
template <> __device__ __forceinline__ void turn<2>(uint32_t* w) {
    uint32_t t[8];
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        t[k] = __byte_perm(w[2 * k], w[2 * k + 1], 0x5410);
        t[k + 4] = __byte_perm(w[2 * k], w[2 * k + 1], 0x7632);
    }
    #pragma unroll
    for (int k = 0; k < 8; ++k) w[k] = t[k];
}
template <> __device__ __forceinline__ void turn<1>(uint32_t* w) {
    uint32_t t[16];
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        const uint32_t a = __byte_perm(w[4 * k], w[4 * k + 1], 0x5140), b = __byte_perm(w[4 * k + 2], w[4 * k + 3], 0x5140);
        const uint32_t c = __byte_perm(w[4 * k], w[4 * k + 1], 0x7362), d = __byte_perm(w[4 * k + 2], w[4 * k + 3], 0x7362);
        t[k] = __byte_perm(a, b, 0x5410);
        t[4 + k] = __byte_perm(a, b, 0x7632);
        t[8 + k] = __byte_perm(c, d, 0x5410);
        t[12 + k] = __byte_perm(c, d, 0x7632);
    }
    #pragma unroll
    for (int k = 0; k < 16; ++k) w[k] = t[k];
}
"""


def write(folder: Path) -> None:
    """Solve, and write the programs."""
    from layoutopt import problem, solve
    from layoutopt.codegen.languages import run_plan
    from layoutopt.codegen.selftest import program
    from layoutopt.hardware.devices import device

    folder.mkdir(parents=True, exist_ok=True)
    gpu, parts, runs = device("sm_90"), [], []
    for number, data in enumerate(assignments()):
        asked = problem(data)
        result = solve(asked, time_limit=20)
        print(f"{asked.name}: {result.status}, excess {result.excess}, {result.offset}")
        for report in result.accesses:
            print(f"    {report.name}: {report.index} {report.loops}")
        planned = run_plan(asked, gpu, result)
        (folder / f"{number:02}.cu").write_text(program(planned))
        if asked.name.startswith("transpose"):
            parts.append(_kernel(data, planned))
            runs.append(_run(data, planned))
    text = (
        "#include <algorithm>\n#include <cstdint>\n#include <cstdio>\n#include <cstdlib>\n#include <vector>\n"
    )
    text += TURNS + "\n".join(parts) + MAIN.replace("@RUNS@", "\n".join(runs))
    (folder / "transposes.cu").write_text(text)


def _kernel(data: dict[str, Any], planned: Any) -> str:
    from layoutopt.codegen import cuda

    size, word = planned.element_bytes, data["accesses"][1]["bytes"]
    fill, drain = (part.access for part in planned.accesses)
    steps = 16 // size
    keep = "w[j] = word;" if word == 4 else "w[2 * j] = word.x; w[2 * j + 1] = word.y;"
    if word == 16:
        keep = "w[0] = word.x; w[1] = word.y; w[2] = word.z; w[3] = word.w;"
    text = KERNEL
    for key, value in {
        "NAME": planned.name, "SIZE": str(size), "ROWS": str(planned.problem.tile.shape[0]),
        "COLUMNS": str(planned.problem.tile.shape[1]), "FILLS": str(fill.loops.get("i", 1)),
        "DRAINS": str(drain.loops.get("i", 1)), "STEPS": str(steps), "SIDE": str(max(1, word // size)),
        "WORD": {4: "uint32_t", 8: "uint2", 16: "uint4"}[word], "KEEP": keep,
        "FILL_AT": ", ".join(["tid", *fill.loops]), "DRAIN_AT": ", ".join(["tid", *drain.loops]),
    }.items():  # fmt: skip
        text = text.replace(f"@{key}@", value)
    return cuda.emit(planned).replace("#pragma once\n", "") + text


def _run(data: dict[str, Any], planned: Any) -> str:
    rows, columns = planned.problem.tile.shape
    size = planned.element_bytes
    n = next(n for s, _, _, r, c, n in TRANSPOSES if (s, r, c) == (size, rows, columns))
    return (
        f'    measure("{data["name"]}", {planned.name}_transpose, {size}, {rows}, {columns}, '
        f"{planned.bytes}, {n}, profile);"
    )


def measure(folder: Path) -> None:
    """Run and profile every program: of every access its values and counters, of every transpose its times."""
    found: dict[str, Any] = {"provenance": on_gpu.provenance("record_free_lanes.py")}
    found |= {"accesses": [], "transposes": []}
    for source in sorted(folder.glob("*.cu")):
        program, transposes = on_gpu.built(source, *on_gpu.compile_flags()), source.stem == "transposes"
        printed = subprocess.run([program], check=False, stdout=subprocess.PIPE, text=True, timeout=60).stdout
        print(printed, flush=True)
        kernels = "_transpose" if transposes else "_access_"
        launched = on_gpu.profiled(METRICS, kernels, program, "profile")
        counts = [
            [sum(counted(row, m) for m in names) for names in (WAVEFRONTS, CONFLICTS)] for row in launched
        ]
        head, *lines = printed.splitlines()
        for line, row in zip(lines if transposes else lines[1:], counts, strict=True):
            if transposes:
                figures = dict(zip(head.split("\t"), line.split("\t"), strict=True))
                found["transposes"].append({**figures, "bank_conflicts": row[1]})
                continue
            _, access, op, values, wavefronts, conflicts, _ = line.split("\t")
            found["accesses"].append(
                {"problem": head.split(":")[0], "access": access, "op": op, "values": values,
                 "predicted": [int(wavefronts), int(conflicts)], "counted": row}
            )  # fmt: skip
    (folder / "h200_free_lanes.json").write_text(on_gpu.records(found))


if __name__ == "__main__":
    on_gpu.write_or_measure(__doc__, write, measure)
