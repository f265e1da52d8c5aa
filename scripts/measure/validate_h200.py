"""Validate fragments, traces and TMA layouts on an H200.

    python scripts/measure/validate_h200.py --write FOLDER     anywhere: solve, emit
    python scripts/measure/validate_h200.py --measure FOLDER   on the GPU, with nvcc and ncu

The second step writes h200_fragments.json, and the traces of two kernels, into FOLDER.

Products: random small integers go into the registers that the fragments say, through the instruction,
and out of the accumulators that the fragments say; the product must be exact. Matrices: every lane's
address of the expanded access goes to ldmatrix or stmatrix, and the registers must hold the fragment.
TMA: a tile laid out by a candidate of must_be is stored to global memory by the tensor copy engine.
Counters: the epilogue's stores under every mode, and two kernels before and after, by Nsight Compute.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import on_gpu
from on_gpu import CONFLICTS_SUM, ELSEWHERE_SUM, HOPPER_FLAGS, WAVEFRONTS_SUM, counted

from layoutopt.accesses.trace import trace
from layoutopt.codegen.block import emit
from layoutopt.engine.case import case_of
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.hardware.fragments import fragments
from layoutopt.search import dictated
from layoutopt.search.solve import solve

HERE = Path(__file__).parent
METRICS = (CONFLICTS_SUM, WAVEFRONTS_SUM, ELSEWHERE_SUM)
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
    (op, name, element, index)
    for op, name, element, index in [
        *((f"{kind}matrix.x{x}", "mma.m16n8k16.A.f16", "f16", None) for kind in ("ld", "st") for x in (1, 2, 4)),  # noqa: E501
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
    ]
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


def values_of(bits: np.ndarray, kind: str) -> np.ndarray:
    """Accumulators as numbers."""
    match kind:
        case "f16":
            return bits.astype(np.uint16).view(np.float16).astype(np.float64)
        case "f32":
            return bits.astype(np.uint32).view(np.float32).astype(np.float64)
        case "f64":
            return bits.view(np.float64)
    return bits.astype(np.uint32).view(np.int32).astype(np.float64)


def pack(values: np.ndarray, width: int) -> np.ndarray:
    """(lanes, values) bit patterns to (lanes, words) of 32 bits, low bits first."""
    if width == 64:
        return (
            np.stack([values & 0xFFFFFFFF, values >> np.uint64(32)], -1)
            .reshape(len(values), -1)
            .astype(np.uint32)
        )
    per = 32 // width
    grouped = values.reshape(len(values), -1, per)
    shifts = (np.arange(per) * width).astype(np.uint64)
    return (grouped << shifts).sum(-1).astype(np.uint32)


def unpack(words: np.ndarray, width: int) -> np.ndarray:
    """The inverse of `pack`."""
    wide = words.astype(np.uint64)
    if width == 64:
        return wide[:, ::2] | wide[:, 1::2] << np.uint64(32)
    shifts = (np.arange(32 // width) * width).astype(np.uint64)
    return ((wide[..., None] >> shifts) & np.uint64((1 << width) - 1)).reshape(len(words), -1)


def operands(test):
    shape, kind, acc, _ = test
    known = fragments()
    letters = ("A.row", "B.col") if (shape, kind) == ("m8n8k4", "f16") else ("A", "B")
    return [known[f"mma.{shape}.{letter}.{kind}"] for letter in letters] + [known[f"mma.{shape}.C.{acc}"]]


def random_operands(number, test):
    """Matrices A and B; four of each where every quad pair has its own."""
    a, b, _ = operands(test)
    rng = np.random.default_rng(number)
    low, high = {"u4": (0, 15), "u8": (0, 15), "b1": (0, 1)}.get(test[1], (-7, 7))
    four = 4 if "quad pair" in a.note and test[1] == "f16" else 1
    return [rng.integers(low, high + 1, (four, *f.extent.values())) for f in (a, b)]


def pair_of(four):
    return np.arange(32) // 4 % 4 if four == 4 else np.zeros(32, np.int64)


def registers(number, test):
    words = []
    for held, matrix in zip(operands(test)[:2], random_operands(number, test), strict=True):
        first, second = (t[:, 0] for t in held.at.values())
        picked = matrix[pair_of(len(matrix))[:, None], first, second]
        words.append(pack(bits_of(picked, test[1]), held.bits))
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


EPILOGUE = {
    "schema": "layoutopt.problem/1", "name": "epilogue_64x64_bf16", "target": "sm_90",
    "tile": {"shape": [64, 64], "element": "bf16"}, "threads": 128, "layout": {"must_be": "tma"},
    "accesses": [
        {"name": "stmatrix", "op": "stmatrix.x4", "fragment": "wgmma.m64n8k16.C.f16", "repeat": {"n": 8}},
        {"name": "rows", "op": "store", "copy": {"bytes": 16}},
        {"name": "own row", "op": "store", "bytes": 16, "index": ["tid % 64", "8*i + 32*(tid // 64)"], "for": {"i": 4}},  # noqa: E501
    ],
}  # fmt: skip
TRANSPOSE = {
    "schema": "layoutopt.problem/1", "name": "transposed", "tile": {"shape": [32, 32], "element": "f32"},
    "threads": 256,
    "accesses": [
        {"name": "rows", "op": "st.shared.b32", "index": ["tid // 32 + 8*i", "tid % 32"], "for": {"i": 4}},
        {"name": "columns", "op": "ld.shared.b32", "index": ["tid % 32", "tid // 32 + 8*i"], "for": {"i": 4}},
    ],
}  # fmt: skip
GEMM = {
    "schema": "layoutopt.problem/1", "name": "gemm_a", "tile": {"shape": [64, 64], "element": "f16"},
    "threads": 128,
    "accesses": [
        {"name": "fill", "op": "st.shared.v4.b32", "index": ["tid // 8 + 16*i", "tid % 8 * 8"], "for": {"i": 4}},  # noqa: E501
        {"name": "fragments", "op": "ldmatrix.x4", "index": ["16*warp + lane % 16", "lane // 16 * 8 + 16*i"],
         "for": {"i": 4}},
    ],
}  # fmt: skip


def epilogue_cases():
    """One candidate of must_be a mode, of whole pages of all rows, with the addresses of each access."""
    problem = from_data(EPILOGUE)
    rows, columns = problem.tile.shape
    lanes = trace(problem, device("sm_90"))
    found = {}
    for candidate in dictated.candidates(problem):
        table, span = candidate.layout.table(), span_of(candidate.name)
        pages = np.arange(0, columns, span) * 2 * rows  # in bytes; the swizzle repeats after 8 rows
        whole = (table[0, ::span] == pages).all() and table[8, 0] == 16 * span
        if candidate.name.endswith("x1 contiguous") and whole:
            found.setdefault(candidate.name, (candidate, problem, lanes, table))
    return list(found.values())


def mode_of(name: str) -> str:
    """`128B` of `tma.128B, x1 contiguous`."""
    return name.partition(",")[0].partition(".")[2]


def span_of(name: str) -> int:
    """Elements of a row of a page."""
    return int({"none": "128"}.get(mode_of(name), mode_of(name).rstrip("B"))) // 2


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    chunks, tests, kernels = [], [], []

    def add(kernel: str, words: np.ndarray, outputs: int, threads: int) -> None:
        tests.append(f"    {{{kernel}, {sum(map(len, chunks))}, {outputs}, {threads}}},")
        chunks.append(np.ascontiguousarray(words).ravel().astype(np.uint32))

    for number, test in enumerate(PRODUCTS):
        kernels.append(product_kernel(number, test))
        words = np.concatenate([w.ravel() for w in registers(number, test)])
        c = operands(test)[2]
        add(f"product_{number}", words, 32 * c.values * c.bits // 32, 32)
    for number, test in enumerate(MATRICES):
        kernels.append(matrix_kernel(number, test))
        addresses, held, tags = matrix_case(test)
        content = tags.view(np.uint32)
        head = np.array([len(addresses), len(content)], np.uint32)
        count = held.size if test[0][0] == "l" else len(content)
        add(f"matrix_{number}", np.concatenate([head, addresses.ravel(), held.ravel(), content]), count, 32)
    names = []
    for candidate, _, lanes, table in epilogue_cases():
        mode = mode_of(candidate.name)
        for access in lanes.accesses:
            name = f"epilogue_{access.operation.kind}_{mode}_{access.name.replace(' ', '_')}"
            names.append(name)
            kind = "stm" if access.operation.kind == "stmatrix" else "st16"
            kernels.append(f"__global__ void {name}(const uint32_t* in, uint32_t*) {{ {kind}(in); }}")
            at = table.ravel()[access.element].reshape(-1, 4, 32)
            add(name, np.concatenate([[len(at)], at.ravel()]), 1, 128)
    boxes = []
    for candidate, problem, _, table in epilogue_cases():
        mode, span = mode_of(candidate.name), span_of(candidate.name)
        image = np.zeros(problem.tile.elements, np.uint16)
        image[table.ravel() // 2] = np.arange(problem.tile.elements)
        boxes.append((mode, span, image))
    tma = np.concatenate([image.view(np.uint32) for _, _, image in boxes])
    start = sum(map(len, chunks))
    chunks.append(tma)
    rows = ", ".join(f'{{"{m}", {s}, {i}}}' for i, (m, s, _) in enumerate(boxes))
    np.concatenate(chunks).tofile(folder / "in.bin")
    for data in (TRANSPOSE, GEMM):
        problem = from_data(data)
        (folder / f"{problem.name}.cuh").write_text(emit(problem, solve(problem, time_limit=30)))
    header = (HERE.parents[1] / "layoutopt/imports/layoutopt_record.cuh").read_text()
    (folder / "layoutopt_record.cuh").write_text(header)
    template = (HERE / "validate_h200.cu").read_text()
    source = (
        template.replace("//KERNELS", "\n".join(kernels))
        .replace("//TESTS", "\n".join(tests))
        .replace("TMA_START", str(start))
        .replace("/*BOXES*/", rows)
    )
    (folder / "main.cu").write_text(source)
    print(f"wrote {folder}: {len(tests)} tests")


def measure(folder: Path) -> None:
    """Run the program, profile it, and compare what it wrote with what the fragments say."""
    program = on_gpu.built(folder / "main.cu", *HOPPER_FLAGS)
    subprocess.run([program, "."], cwd=folder, check=True, timeout=120)
    launched = on_gpu.profiled(METRICS, "^(epilogue_|transpose|gemm)", program, "profiled", cwd=folder)
    measured = {
        row["Kernel Name"].partition("(")[0].removeprefix("void "): {m: counted(row, m) for m in METRICS}
        for row in launched
    }
    words = np.fromfile(folder / "out.bin", np.uint32)
    place = 0

    def take(count: int) -> np.ndarray:
        nonlocal place
        place += count
        return words[place - count : place]

    report = {"provenance": on_gpu.provenance("validate_h200.py"), "products": {}, "matrices": {}}
    for number, test in enumerate(PRODUCTS):
        c = operands(test)[2]
        got = values_of(unpack(take(32 * c.values * c.bits // 32).reshape(32, -1), c.bits), test[2])
        a, b = random_operands(number, test)
        want = np.einsum("qmk,qkn->qmn", a, b)
        first, second = (t[:, 0] for t in c.at.values())
        right = bool((got == want[pair_of(len(a))[:, None], first, second]).all())
        report["products"][f"mma.{test[0]}.{test[1]}.{test[2]}"] = right
    for test in MATRICES:
        _, held, tags = matrix_case(test)
        want = held if test[0][0] == "l" else tags.view(np.uint32)
        report["matrices"][f"{test[0]} {test[1]} {','.join(test[3] or [])}".strip()] = bool(
            (take(want.size) == want.ravel()).all()
        )
    report["epilogue"] = {}
    for candidate, problem, lanes, _ in epilogue_cases():
        take(len(lanes.accesses))
        mode = f"tma.{mode_of(candidate.name)}"
        reports = case_of(problem, device("sm_90")).measure(candidate.layout)
        for access, ours in zip(lanes.accesses, reports, strict=True):
            name = f"epilogue_{access.operation.kind}_{mode[4:]}_{access.name.replace(' ', '_')}"
            row = measured[name]
            report["epilogue"][f"{mode} {access.name}"] = {
                "wavefronts": row[WAVEFRONTS_SUM] - row[ELSEWHERE_SUM],
                "bank_conflicts": row[CONFLICTS_SUM],
                "layoutopt_wavefronts": ours.wavefronts,
                "layoutopt_bank_conflicts": ours.bank_conflicts,
            }
    report["tma"] = {}
    for candidate, problem, _, _ in epilogue_cases():
        got = take(problem.tile.elements // 2).view(np.uint16)
        report["tma"][candidate.name] = bool((got == np.arange(problem.tile.elements)).all())
    report["kernels"] = {
        name: {"bank_conflicts": row[CONFLICTS_SUM], "wavefronts": row[WAVEFRONTS_SUM] - row[ELSEWHERE_SUM]}
        for name, row in measured.items()
        if not name.startswith("epilogue")
    }
    (folder / "h200_fragments.json").write_text(on_gpu.records(report))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    on_gpu.write_or_measure(__doc__, write, measure)
