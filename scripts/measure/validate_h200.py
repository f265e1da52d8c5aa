"""Validate fragments and traces on an H200.

    python scripts/measure/validate_h200.py --write FOLDER     anywhere: solve, emit
    python scripts/measure/validate_h200.py --measure FOLDER   on the GPU, with nvcc and ncu

The second step writes h200_fragments.json, and the traces of two kernels, into FOLDER.

Products: random small integers go into the registers that the fragments say, through the instruction,
and out of the accumulators that the fragments say; the product must be exact. Matrices: every lane's
address of the expanded access goes to ldmatrix or stmatrix, and the registers must hold the fragment.
Counters: two kernels, recorded, with no layout, a pad and what is solved, by Nsight Compute.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import on_gpu
from on_gpu import CONFLICTS_SUM, ELSEWHERE_SUM, HOPPER_FLAGS, WAVEFRONTS_SUM
from written import problem_of

from layoutopt import solve
from layoutopt.accesses.trace import trace
from layoutopt.codegen.block import emit
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.hardware.fragments import fragments

HERE = Path(__file__).parent
COUNTERS = {"bank_conflicts": CONFLICTS_SUM, "wavefronts": WAVEFRONTS_SUM, "elsewhere": ELSEWHERE_SUM}
# instruction, operand types (A and B, accumulator), what follows the types in PTX
PRODUCTS = [
    *(("m16n8k16", t, c, "") for t in ("f16", "bf16") for c in ("f32", "f16") if (t, c) != ("bf16", "f16")),
    *(("m16n8k8", t, c, "") for t in ("f16", "bf16") for c in ("f32", "f16") if (t, c) != ("bf16", "f16")),
    ("m16n8k4", "tf32", "f32", ""), ("m16n8k8", "tf32", "f32", ""),
    *((s, "f64", "f64", "") for s in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")),
    *((s, t, "s32", "") for s in ("m8n8k16", "m16n8k16", "m16n8k32") for t in ("s8", "u8")),
    *((s, t, "s32", "") for s in ("m8n8k32", "m16n8k32", "m16n8k64") for t in ("s4", "u4")),
    *((s, "b1", "s32", ".and.popc") for s in ("m8n8k128", "m16n8k128", "m16n8k256")),
    *(("m16n8k32", t, "f32", "") for t in ("e4m3", "e5m2")),
    ("m8n8k4", "f16", "f32", ""), ("m8n8k4", "f16", "f16", ""),
]  # fmt: skip
MATRICES = [
    *((f"{kind}matrix.x{x}", "mma.m16n8k16.A.f16", "f16", None) for kind in ("ld", "st") for x in (1, 2, 4)),
    *((f"{kind}matrix.x{x}.trans", "mma.m16n8k16.A.f16", "f16", ["k", "m"])
      for kind in ("ld", "st") for x in (1, 2, 4)),
    *((f"ldmatrix.x{x}", "mma.m16n8k16.B.bf16", "bf16", ["n", "k"]) for x in (1, 2)),
    *((f"ldmatrix.x{x}.trans", "mma.m16n8k16.B.f16", "f16", None) for x in (1, 2)),
    ("ldmatrix.x2", "mma.m16n8k8.A.f16", "f16", None),
    ("ldmatrix.x4", "mma.m16n8k8.A.tf32", "f32", None),
    ("ldmatrix.x2", "mma.m16n8k8.B.tf32", "f32", ["n", "k"]),
    ("ldmatrix.x2", "mma.m16n8k16.A.s8", "i8", None),
    ("ldmatrix.x4", "mma.m16n8k32.A.s8", "i8", None),
    ("ldmatrix.x2", "mma.m16n8k32.B.e4m3", "f8", ["n", "k"]),
    ("ldmatrix.x4", "mma.m16n8k64.A.s4", "u8", None),
    ("stmatrix.x2", "mma.m16n8k16.C.f16", "f16", None),
]  # fmt: skip


def bits_of(values: np.ndarray, kind: str) -> np.ndarray:
    """Integers as the bit patterns of a type, uint64."""
    match kind:
        case "f16":
            return values.astype(np.float16).view(np.uint16).astype(np.uint64)
        case "bf16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint64)
        case "f32" | "tf32":
            return values.astype(np.float32).view(np.uint32).astype(np.uint64)
        case "f64":
            return values.astype(np.float64).view(np.uint64)
        case "e4m3" | "e5m2":
            bias, mantissa = (7, 3) if kind == "e4m3" else (15, 2)
            exponent = np.frexp(np.maximum(np.abs(values), 1))[1] - 1
            fraction = (np.abs(values) << mantissa >> exponent) - (1 << mantissa)
            code = ((exponent + bias) << mantissa) + fraction
            return np.where(values == 0, 0, code + np.where(values < 0, 128, 0)).astype(np.uint64)
    width = {"s4": 4, "u4": 4, "b1": 1, "s8": 8, "u8": 8, "s32": 32}[kind]
    return (values & ((1 << width) - 1)).astype(np.uint64)


def pack(values: np.ndarray, width: int) -> np.ndarray:
    """(lanes, values) bit patterns to (lanes, words) of 32 bits, low bits first."""
    bits = (values[..., None] >> np.arange(width, dtype=np.uint64) & np.uint64(1)).astype(np.uint8)
    return np.packbits(bits.reshape(len(values), -1), axis=1, bitorder="little").view(np.uint32)


def operands(test):
    shape, kind, acc, _ = test
    known = fragments()
    letters = ("A.row", "B.col") if (shape, kind) == ("m8n8k4", "f16") else ("A", "B")
    return [known[f"mma.{shape}.{letter}.{kind}"] for letter in letters] + [known[f"mma.{shape}.C.{acc}"]]


def product_registers(number, test):
    """Words of the registers of A and B, and of C after the product; exact, as integers are small."""
    a, b, c = operands(test)
    rng = np.random.default_rng(number)
    low, high = {"u4": (0, 15), "u8": (0, 15), "b1": (0, 1)}.get(test[1], (-7, 7))
    # Each quad pair has matrices of its own where the instruction multiplies four.
    four = 4 if "quad pair" in a.note and test[1] == "f16" else 1
    left, right = (rng.integers(low, high + 1, (four, *f.extent.values())) for f in (a, b))
    product = np.einsum("qmk,qkn->qmn", left, right)
    pair = np.arange(32) // 4 % 4 if four == 4 else np.zeros(32, np.int64)
    words = []
    for held, matrix, kind in ((a, left, test[1]), (b, right, test[1]), (c, product, test[2])):
        first, second = (t[:, 0] for t in held.at.values())
        words.append(pack(bits_of(matrix[pair[:, None], first, second], kind), held.bits))
    return words


def product_kernel(number, test):
    shape, kind, acc, tail = test
    a, b, c = operands(test)
    n = [max(1, f.values * f.bits // 32) // (2 if f.bits == 64 else 1) for f in (a, b, c)]
    cast = {"f64": ("double", "d", "0"), "f32": ("float", "f", "0"), "tf32": ("uint32_t", "r", "0")}
    ta, ca, _ = cast["f64"] if kind == "f64" else cast["tf32"]
    tc, cc, _ = cast.get(acc, ("uint32_t", "r", "0"))
    slot = iter(range(100))
    groups = ["{" + ", ".join(f"%{next(slot)}" for _ in range(k)) + "}" for k in (n[2], n[0], n[1])]
    out = ", ".join(f'"+{cc}"(c[{i}])' for i in range(n[2]))
    ins = ", ".join([f'"{ca}"(a[{i}])' for i in range(n[0])] + [f'"{ca}"(b[{i}])' for i in range(n[1])])
    ptx = f"mma.sync.aligned.{shape}.row.col.{acc}.{kind}.{kind}.{acc}{tail}"
    return f"""
__global__ void product_{number}(const uint32_t* in, uint32_t* out) {{
    {ta} a[{n[0]}], b[{n[1]}]; {tc} c[{n[2]}] = {{}};
    memcpy(a, in + threadIdx.x * sizeof a / 4, sizeof a);
    memcpy(b, in + 32 * sizeof a / 4 + threadIdx.x * sizeof b / 4, sizeof b);
    asm volatile("{ptx} {groups[0]}, {groups[1]}, {groups[2]}, {groups[0]};" : {out} : {ins});
    memcpy(out + threadIdx.x * sizeof c / 4, c, sizeof c);
}}"""


def matrix_case(test):
    """The problem of one ldmatrix or stmatrix, its addresses, and the bytes of every register."""
    op, name, element, index = test
    held = fragments()[name]
    extents = list(held.extent.values())
    if index is not None:
        extents = [held.extent[c] for c in index]
    size = {"f32": 4, "i8": 1, "f8": 1, "u8": 1}.get(element, 2)
    shrink = 8 * size // held.bits if held.bits < 8 else 1
    extents[-1] //= shrink
    access = {"name": "x", "op": op, "fragment": name} | ({"index": index} if index else {})
    data = {"name": "p", "tile": {"shape": extents, "element": element}, "threads": 32, "accesses": [access]}
    problem = from_data(data)
    (lanes,) = trace(problem, device("sm_90")).accesses
    at = {c: t[:, 0, ::shrink] for c, t in held.at.items()}
    order = index or list(held.extent)
    at[order[-1]] = at[order[-1]] // shrink
    flat = np.ravel_multi_index([at[c] for c in order], extents)
    tags = np.arange(problem.tile.bytes // 2, dtype=np.uint16).view(np.uint8)
    bytes_of = tags[(flat[..., None] * size + np.arange(size))].reshape(32, -1)
    return (lanes.element * size).astype(np.uint32), np.ascontiguousarray(bytes_of).view(np.uint32), tags


def matrix_kernel(number, test):
    op = test[0]
    x = int(re.search(r"x(\d)", op)[1])
    trans = ".trans" if op.endswith(".trans") else ""
    regs = ", ".join(f"%{i + (op[0] == 's')}" for i in range(x))
    if op.startswith("ld"):
        outs = ", ".join(f'"=r"(r[{i}])' for i in range(x))
        line = f'asm volatile("ldmatrix.sync.aligned.m8n8.x{x}{trans}.shared.b16 {{{regs}}}, [%{x}];" : {outs} : "r"(base + at[threadIdx.x]) : "memory");'  # noqa: E501
        body = f"{line} for (int i = 0; i < {x}; ++i) out[threadIdx.x * total + p * {x} + i] = r[i];"
    else:
        ins = ", ".join(f'"r"(r[{i}])' for i in range(x))
        line = f'asm volatile("stmatrix.sync.aligned.m8n8.x{x}{trans}.shared.b16 [%0], {{{regs}}};" :: "r"(base + at[threadIdx.x]), {ins} : "memory");'  # noqa: E501
        body = f"for (int i = 0; i < {x}; ++i) r[i] = values[threadIdx.x * total + p * {x} + i]; {line}"
    return f"""
__global__ void matrix_{number}(const uint32_t* in, uint32_t* out) {{
    __shared__ alignas(1024) uint32_t tile[1024];
    uint32_t pieces = in[0], words = in[1], total = pieces * {x};
    const uint32_t *values = in + 2 + 32 * pieces, *content = values + 32 * total;
    for (uint32_t i = threadIdx.x; i < words; i += 32) tile[i] = {"content[i]" if op[0] == "l" else "0"};
    __syncwarp();
    uint32_t base = __cvta_generic_to_shared(tile), r[{x}];
    for (uint32_t p = 0; p < pieces; ++p) {{ const uint32_t* at = in + 2 + 32 * p; {body} }}
    __syncwarp();
    {"" if op[0] == "l" else "for (uint32_t i = threadIdx.x; i < words; i += 32) out[i] = tile[i];"}
}}"""


# Tiles that are recorded, then run with the layout that was solved; as tests/written.py reads them.
RECORDED = (
    """32x32 f32, 256 threads; name transposed
        rows: st.shared.b32 [tid // 32 + 8*i, tid % 32]; i<4
        columns: ld.shared.b32 [tid % 32, tid // 32 + 8*i]; i<4""",
    """64x64 f16, 128 threads; name gemm_a
        fill: st.shared.v4.b32 [tid // 8 + 16*i, tid % 8 * 8]; i<4
        fragments: ldmatrix.x4 [16*warp + lane % 16, lane // 16 * 8 + 16*i]; i<4""",
)


def tests():
    """Every test: its group, name, kernel and its text, input, and the output expected."""
    for number, test in enumerate(PRODUCTS):
        a, b, c = product_registers(number, test)
        name = f"mma.{test[0]}.{test[1]}.{test[2]}"
        given = np.concatenate([a.ravel(), b.ravel()])
        yield "products", name, f"product_{number}", product_kernel(number, test), given, c
    for number, test in enumerate(MATRICES):
        addresses, held, tags = matrix_case(test)
        content = tags.view(np.uint32)
        given = [[len(addresses), len(content)], addresses.ravel(), held.ravel(), content]
        left = held if test[0][0] == "l" else content
        name = f"{test[0]} {test[1]} {','.join(test[3] or [])}".strip()
        kernel = matrix_kernel(number, test)
        yield "matrices", name, f"matrix_{number}", kernel, np.concatenate(given), left


def write(folder: Path) -> None:
    entries, inputs, outputs, kernels, rows, place = [], [], [], [], [], 0
    for group, name, kernel, text, given, left in tests():
        entries.append({"group": group, "name": name, "words": left.size})
        inputs.append(given.astype(np.uint32))
        outputs.append(left.ravel().astype(np.uint32))
        kernels.append(text)
        rows.append(f"    {{{kernel}, {place}, {left.size}}},")
        place += given.size
    on_gpu.write_entries(folder, entries)
    np.concatenate(inputs).tofile(folder / "in.bin")
    np.concatenate(outputs).tofile(folder / "expected.bin")
    for text in RECORDED:
        problem = problem_of(text)
        (folder / f"{problem.name}.cuh").write_text(emit(problem, solve(problem, time_limit=30)))
    shutil.copy(HERE.parents[1] / "layoutopt/imports/layoutopt_record.cuh", folder)
    source = (HERE / "validate_h200.cu").read_text()
    source = source.replace("//KERNELS", "\n".join(kernels)).replace("//TESTS", "\n".join(rows))
    (folder / "main.cu").write_text(source)


def measure(folder: Path) -> None:
    """Run the program, profile it, and compare what it wrote with what the fragments say."""
    program = on_gpu.built(folder / "main.cu", *HOPPER_FLAGS)
    on_gpu.printed(program, ".", cwd=folder, check=True)
    counts = {}
    for kernel, _, _, seen in on_gpu.profiled(COUNTERS, "^(transpose|gemm)", program, "profiled", cwd=folder):
        wavefronts = seen["wavefronts"] - seen["elsewhere"]
        counts[kernel] = {"wavefronts": wavefronts, "bank_conflicts": seen["bank_conflicts"]}
    seen, expected = (np.fromfile(folder / name, np.uint32) for name in ("out.bin", "expected.bin"))
    report: dict[str, dict] = {"products": {}, "matrices": {}}
    place = 0
    for entry in on_gpu.entries(folder):
        part = slice(place, place := place + entry["words"])
        report[entry["group"]][entry["name"]] = bool((seen[part] == expected[part]).all())
    about = "What fragments say, and recorded kernels, on the machine."
    on_gpu.write_record(folder / "h200_fragments.json", about, {**report, "kernels": counts})
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    on_gpu.command_line(__doc__, write, measure)
