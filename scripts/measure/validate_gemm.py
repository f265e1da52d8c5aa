"""Multiply matrices on a GPU through the code that is emitted for the problems of `layoutopt new gemm`.

    python scripts/measure/validate_gemm.py --write FOLDER     here: solve, emit, write one program a type
    python scripts/measure/validate_gemm.py --measure FOLDER   on the GPU: compile, run; writes measured.json

Operands A and B are what `new gemm` writes without options but the type, solved and emitted as CUDA.
The kernel fills both tiles from global memory, reads the fragments, multiplies them by `mma.sync` and
stores the accumulators where the PTX ISA says that they lie; all addresses in shared memory and all
instructions on it are the emitted ones. Small random integers, so the product must be exact. The control
reads B as the neighbouring lane: a program that calls this right too compares nothing. The second
step needs nvcc and msgspec; no solver. `tests/data/h200_gemm.json` is what it wrote.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import on_gpu

# Tile element, as --element takes it: operand type and accumulator of the instruction, their C++ types
# and the C++ type of one register.
TYPES = {
    "f16": ("f16", "f32", "__half", "float", "uint32_t"),
    "bf16": ("bf16", "f32", "__nv_bfloat16", "float", "uint32_t"),
    "tf32": ("tf32", "f32", "float", "float", "uint32_t"),
    "i8": ("s8", "s32", "signed char", "int", "uint32_t"),
    "f8": ("e4m3", "f32", "__nv_fp8_e4m3", "float", "uint32_t"),
    "f64": ("f64", "f64", "double", "double", "double"),
}
CONSTRAINT = {"uint32_t": "r", "int": "r", "float": "f", "double": "d"}

PROGRAM = """\
#include <cstdio>
#include <cstdlib>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include "{element}_a.cuh"
#include "{element}_b.cuh"

using Element = {element_type};
using Sum = {sum_type};
using Register = {register_type};
constexpr int M = {m}, N = {n}, K = {k}, THREADS = {threads};

__device__ __forceinline__ void multiply(Sum* c, const Register* a, const Register* b) {{
    asm volatile("{ptx} {groups};" : {outs} : {ins});
}}

// What the emitted loads return, in registers.
__device__ __forceinline__ void load_a(const void* tile, uint32_t smem, int tid, int m_step, int k_step, Register (&v)[{a_loaded}]) {{
    {load_a}
}}
__device__ __forceinline__ void load_b(const void* tile, uint32_t smem, int tid, int n_step, int k_step, Register (&v)[{b_loaded}]) {{
    {load_b}
}}

// A is M rows of K, B is N rows of K, C is M rows of N.
__global__ void gemm(const Element* a, const Element* b, Sum* c, int twist) {{
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

    Sum sums[{m_repeat}][{n_repeat}][{c_registers}] = {{}};
    for (int k_step = 0; k_step < {k_repeat}; ++k_step)
        for (int m_step = 0; m_step < {m_repeat}; ++m_step) {{
            Register va[{a_loaded}];
            load_a(tile_a, smem_a, tid, m_step, k_step, va);
            for (int n_step = 0; n_step < {n_repeat} / {b_per_load}; ++n_step) {{
                Register vb[{b_loaded}];
                load_b(tile_b, smem_b, tid ^ twist, n_step, k_step, vb);
                for (int j = 0; j < {b_per_load}; ++j)
                    multiply(sums[m_step][n_step * {b_per_load} + j], va, vb + j * {b_registers});
            }}
        }}

    // Accumulators in the PTX ISA's matrix fragments: two neighbours of row lane / 4, then of row + 8.
    const int lane = tid % 32, warp = tid / 32;
    for (int m_step = 0; m_step < {m_repeat}; ++m_step)
        for (int n_step = 0; n_step < {n_repeat}; ++n_step)
            for (int i = 0; i < {c_registers}; ++i) {{
                const int row = (warp % {m_warps} * {m_repeat} + m_step) * {m_each} + lane / 4 + 8 * (i / 2);
                const int column = (warp / {m_warps} * {n_repeat} + n_step) * {n_each} + 2 * (lane % 4) + i % 2;
                c[row * N + column] = sums[m_step][n_step][i];
            }}
}}

static void check(cudaError_t status) {{
    if (status != cudaSuccess) {{ std::fprintf(stderr, "%s\\n", cudaGetErrorString(status)); std::exit(2); }}
}}

int main() {{
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
    for (int twist = 0; twist < 2; ++twist) {{
        check(cudaMemset(dc, 0xff, sizeof c));
        gemm<<<1, THREADS>>>(da, db, dc, twist);
        check(cudaGetLastError());
        check(cudaMemcpy(c, dc, sizeof c, cudaMemcpyDeviceToHost));
        int wrong = 0;
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) {{
                int want = 0;
                for (int k = 0; k < K; ++k) want += a[i * K + k] * b[j * K + k];
                wrong += !((double)c[i * N + j] == want);
            }}
        std::printf("{kind}%s %s %d of %d\\n", twist ? " control" : "", wrong ? "WRONG" : "right", wrong, M * N);
    }}
}}
"""  # noqa: E501


def effective(header: str) -> list[str]:
    """The lines of an emitted header that compute addresses or are instructions."""
    return [line.strip() for line in header.splitlines() if "return " in line or "asm volatile" in line]


def operand(element: str, letter: str) -> tuple[dict, str, str]:
    """The problem that `new gemm` writes, the offset of its layout and the emitted header."""
    from layoutopt.codegen.languages import emit
    from layoutopt.files.file import from_data
    from layoutopt.files.starters import Options, starter
    from layoutopt.hardware.devices import device
    from layoutopt.search.solve import solve

    data = starter("gemm", Options(element=element, operand=letter))
    problem = from_data(data)
    answer = solve(problem, time_limit=30)
    return data, str(answer.offset), emit("cuda", problem, device(data["target"]), answer)


def fragment_load(letter: str, op: str, outer: str) -> str:
    if op.startswith("ldmatrix"):
        return f"gemm_{letter}_fragments(smem, tid, {outer}, k_step, v);"
    return f"v[0] = *gemm_{letter}_fragments(tile, tid, {outer}, k_step);"


def program(element: str, a: dict, b: dict) -> str:
    """The source of one type's program, for the problems of its operands."""
    from layoutopt.hardware.fragments import fragments

    kind, acc, element_type, sum_type, register_type = TYPES[element]
    (_, load_a), (_, load_b) = a["accesses"], b["accesses"]
    instruction = load_a["fragment"].removesuffix(f".A.{kind}")
    held = [fragments()[f"{instruction}.{end}"] for end in (f"A.{kind}", f"B.{kind}", f"C.{acc}")]
    bits = 64 if register_type == "double" else 32
    na, nb, nc = (f.values * f.bits // bits for f in held)
    loaded = [int(load["op"][-1]) if load["op"].startswith("ldmatrix") else 1 for load in (load_a, load_b)]
    slot = iter(range(nc + na + nb))
    groups = ["{" + ", ".join(f"%{next(slot)}" for _ in range(n)) + "}" for n in (nc, na, nb)]
    each = held[2].extent
    return PROGRAM.format(
        element=element,
        kind=kind,
        element_type=element_type,
        sum_type=sum_type,
        register_type=register_type,
        m=a["tile"]["shape"][0],
        n=b["tile"]["shape"][0],
        k=a["tile"]["shape"][1],
        threads=a["threads"],
        ptx=f"mma.sync.aligned.{instruction.removeprefix('mma.')}.row.col.{acc}.{kind}.{kind}.{acc}",
        groups=", ".join([*groups, groups[0]]),
        outs=", ".join(f'"+{CONSTRAINT[sum_type]}"(c[{i}])' for i in range(nc)),
        ins=", ".join(
            f'"{CONSTRAINT[register_type]}"({v}[{i}])' for v, n in (("a", na), ("b", nb)) for i in range(n)
        ),
        load_a=fragment_load("a", load_a["op"], "m_step"),
        load_b=fragment_load("b", load_b["op"], "n_step"),
        a_loaded=loaded[0],
        b_loaded=loaded[1],
        b_registers=nb,
        b_per_load=loaded[1] // nb,
        c_registers=nc,
        m_repeat=load_a["repeat"]["m"],
        n_repeat=load_b["repeat"]["n"],
        k_repeat=load_a["repeat"]["k"],
        m_warps=load_a["warps"][0],
        m_each=each["m"],
        n_each=each["n"],
    )


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for element, (kind, *_) in TYPES.items():
        parts = {letter: operand(element, letter) for letter in "AB"}
        for letter, (_, _, header) in parts.items():
            (folder / f"{element}_{letter.lower()}.cuh").write_text(header)
        (folder / f"{element}.cu").write_text(program(element, parts["A"][0], parts["B"][0]))
        entries.append(
            {
                "element": element,
                "type": kind,
                "operands": {
                    letter: {"problem": data, "offset": offset, "code": effective(header)}
                    for letter, (data, offset, header) in parts.items()
                },
            }
        )
    (folder / "entries.json").write_text(json.dumps(entries))
    print(f"wrote {len(entries)} programs")


def measure(folder: Path) -> None:
    entries = json.loads((folder / "entries.json").read_text())
    flags = on_gpu.compile_flags()
    for entry in entries:
        source = folder / f"{entry['element']}.cu"
        program = on_gpu.built(source, *flags)
        done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
        print(done.stdout, done.stderr, end="", flush=True)
        found = re.findall(r"^\w+( control)? (right|WRONG) (\d+) of (\d+)$", done.stdout, flags=re.M)
        for control, word, wrong, elements in found:
            entry["control" if control else "product"] = word
            entry["control_wrong" if control else "product_wrong"] = int(wrong)
            entry["elements"] = int(elements)
    data = {
        "about": "Products through the code emitted for the problems of `layoutopt new gemm`; the control "
        "reads B as the neighbouring lane. code: the lines of the headers that compute or do something.",
        "provenance": on_gpu.provenance("validate_gemm.py"),
        "products": entries,
    }
    (folder / "measured.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    on_gpu.write_or_measure(__doc__, write, measure)
