"""Validate on an H200 what is emitted for TMA, wgmma and bulk copies.

    python scripts/measure/validate_hopper.py --write FOLDER     anywhere: solve, emit
    python scripts/measure/validate_hopper.py --measure FOLDER   on the GPU, with nvcc and ncu

The second step writes h200_hopper.json and h200_copies.json into FOLDER.

Copies: tiles of 64 to 256 rows in every mode go in by TMA, are read through the emitted offsets and must be
what lies in global memory; then back. Products: 128x128xK by two warpgroups, every operand by TMA, every
descriptor as emitted, the epilogue by stmatrix or stores of 16 bytes, then TMA; small integers, so that the
product is exact. The profiler counts the epilogue's wavefronts.

Bulk copies: every copy of a tile goes in by cp.async.bulk and is read through the emitted offsets, then
written through them and copied back. Multicast: the blocks of a cluster that share a tile copy a part each,
and every block reads all of it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import on_gpu
from on_gpu import CONFLICTS_SUM, HOPPER_FLAGS, WAVEFRONTS_SUM

from layoutopt import solve
from layoutopt.accesses.hardware_access import map_element
from layoutopt.codegen.block import code_of, emit
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.problems.answer import TensorMap
from layoutopt.problems.types import ELEMENT_BYTES
from layoutopt.study.block import placed

HERE = Path(__file__).parent
TARGET = "sm_90a"
MODES = ("none", "32B", "64B", "128B")
RAW = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}
STORED = WAVEFRONTS_SUM.replace(".sum", "_op_st.sum")
METRICS = (CONFLICTS_SUM, WAVEFRONTS_SUM, CONFLICTS_SUM.replace(".sum", "_op_st.sum"), STORED)
# Epilogues: how accumulators come to the tile, and what the program calls for that.
EPILOGUES: dict[str, tuple[dict[str, Any], str]] = {
    "stmatrix.x4": (
        {"op": "stmatrix.x4", "fragment": "wgmma.m64n8k16.C.f16", "warps": [2, 1], "repeat": {"n": 16}},
        "by_matrices(acc, [&](int n, const uint32_t (&v)[4]) {{\n"
        "            {name}_d_accumulators({base}, tid, n, v);\n"
        "        }});",
    ),
    "st.shared.v4": (
        {"op": "store", "bytes": 16, "index": ["16*warp + lane // 4 + 8*h", "8*(lane % 4) + 32*n"],
         "for": {"h": 2, "n": 4}},
        "by_rows(acc, [&](int h, int n, const uint32_t (&v)[4]) {{\n"
        "            const uint32_t at = {base} + {name}_d_accumulators_bytes(tid, h, n);\n"
        '            asm volatile("st.shared.v4.b32 [%0], {{%1, %2, %3, %4}};"\n'
        '                ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");\n'
        "        }});",
    ),
}  # fmt: skip
# Products: bytes of an element, types in PTX and depth of one instruction.
TYPES = {
    "f16": (2, "f32.f16.f16", 16),
    "bf16": (2, "f32.bf16.bf16", 16),
    "tf32": (4, "f32.tf32.tf32", 8),
    "e4m3": (1, "f32.e4m3.e4m3", 32),
}
BITS = {
    "f16": "return __half_as_ushort(__float2half(float(v)));",
    "bf16": "const float f = float(v); uint32_t u; memcpy(&u, &f, 4); return uint16_t(u >> 16);",
    "tf32": "const float f = float(v); uint32_t u; memcpy(&u, &f, 4); return u;",
    # 1 and 2 are the exponents 7 and 8 of a bias of 7
    "e4m3": "const int a = v < 0 ? -v : v; return uint8_t((v < 0) << 7 | (a ? (6 + a) << 3 : 0));",
}


def copies() -> list[dict[str, Any]]:
    """Tiles that TMA loads and stores: rows, elements, modes; and shapes of more dimensions and boxes."""
    plain = [
        ([rows, 128 // max(1, ELEMENT_BYTES[element] // 2)], element, {"mode": mode})
        for element in ("f16", "bf16", "e4m3", "f32")
        for mode in MODES
        for rows in (64, 128, 192, 256)
    ]
    more = [
        *(([128, 64], "f16", {"mode": mode, "order": [1, 0]}) for mode in MODES),
        ([128, 128], "f16", {"mode": "128B", "box": [64, 64]}),
        ([16, 128], "f16", {"mode": "128B", "box": [4, 64]}),
        ([16, 128], "f16", {"mode": "64B", "box": [4, 32]}),
        *(([3, 32, 128], "f16", {"mode": mode}) for mode in ("none", "64B", "128B")),
        # rows shorter than the span
        ([64, 16], "f16", {"mode": "128B", "box": [64, 16]}),
        ([64, 16], "f16", {"mode": "64B", "box": [64, 16]}),
        ([64, 64], "f16", {"mode": "128B", "box": [64, 16]}),
        ([2, 3, 4, 8, 64], "bf16", {"mode": "128B"}),
        ([96, 64], "f64", {"mode": "128B"}),
        ([512, 32], "f32", {"mode": "128B"}),
        ([96, 24], {"bytes": 4}, {"mode": "none"}),
        ([64, 64], "f16", {"mode": "128B", "map": "u32"}),
    ]
    head = ("kind", "shape", "element")
    return [dict(zip(head, ("copy", *case[:2]), strict=True)) | case[2] for case in [*plain, *more]]


def products() -> list[dict[str, Any]]:
    """Operands of 128x128xK products: element, K, mode, and what is contiguous."""
    cases = [
        {"element": element, "k": k, "a": "K", "b": "K", "mode": mode}
        for element, k in (("f16", 64), ("bf16", 64), ("tf32", 32), ("e4m3", 128))
        for mode in MODES
    ]
    turned = [("MN", "K"), ("K", "MN"), ("MN", "MN")]
    cases += [{"element": "f16", "k": 64, "a": a, "b": b, "mode": mode} for a, b in turned for mode in MODES]
    cases += [{"element": "f16", "k": 128, "a": a, "b": "K", "mode": "128B"} for a in ("K", "MN")]
    cases += [{"element": "f16", "k": 32, "a": "K", "b": "K", "mode": "128B"}]  # half a span
    # Epilogues with conflicts: boxes of whole rows, and spans of 32 and 64 bytes.
    plain = {"element": "f16", "k": 64, "a": "K", "b": "K", "mode": "128B"}
    stores = [{"mode": "none", "box": [128, 64]}, *({"mode": mode} for mode in MODES)]
    cases += [{**plain, "d": store, "by": by} for by in EPILOGUES for store in stores]
    return [{"kind": "product", **case} for case in cases]


def struct(name: str, code: str, element_bytes: int, *members: str) -> str:
    """The code of a case and what the programs call of it."""
    own = "".join(f"    {member}\n" for member in members)
    return f"""{code}
struct Case_{name} {{
    using T = {RAW[element_bytes]};
    static constexpr uint32_t bytes = {name}_bytes;
{own}}};
"""


def encoding(kind: str, emitted: str) -> str:
    """A function that makes the tensor map of an access."""
    taken = "Encode e, CUtensorMap* m, void* g, Extents n, Extents b"
    return f"static CUresult {kind}({taken}) {{ return {emitted}_encode(e, m, g, n, b); }}"


def copy_case(name: str, case: dict[str, Any]) -> str:
    """Code for a tile that TMA loads and stores."""
    fill = {key: case[key] for key in ("mode", "order", "box") if key in case}
    if "map" in case:
        fill["element"] = case["map"]
    accesses = [{"name": "fill", "op": "tma.load", **fill}, {"name": "back", "op": "tma.store", **fill}]
    problem = from_data(one_tile(name, case, accesses))
    result = solve(problem)
    found = result.accesses[0].descriptor
    assert isinstance(found, TensorMap), result.reason
    rank, size = len(case["shape"]), problem.tile.element_bytes
    place = [case["shape"][d] for d in reversed(found.order)]
    use = problem.accesses[0].hardware
    assert use is not None
    unit = ELEMENT_BYTES[map_element(use, problem.tile)]
    place[0] = place[0] * size // unit
    at, shape, order = (", ".join(map(str, numbers)) for numbers in (place, case["shape"], found.order))
    x = ", ".join(f"x[{d}]" for d in range(rank))
    return struct(
        name, emit(problem, result), size,
        f"static constexpr int rank = {rank}, elements = {problem.tile.elements}, map_bytes = {unit};",
        f"static constexpr uint32_t load_bytes = {name}_fill_boxes * {name}_fill_box_bytes;",
        "static constexpr bool stores = true;",
        f"__host__ __device__ static constexpr int shape(int d) {{ const int n[] = {{{shape}}};",
        "    return n[d]; }",
        f"static constexpr int order(int d) {{ const int n[] = {{{order}}}; return n[d]; }}",
        f"__device__ static uint32_t offset(const int* x) {{ return {name}_offset_bytes({x}); }}",
        "__device__ static void load(uint32_t s, const void* map, uint32_t bar) {",
        f"    {name}_fill(s, map, bar, {at});",
        "}",
        f"__device__ static void store(uint32_t s, const void* map) {{ {name}_back(s, map, {at}); }}",
        encoding("encode_load", f"{name}_fill"),
        encoding("encode_store", f"{name}_back"),
    )  # fmt: skip


def product_problem(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """A Hopper block: two operands by TMA, wgmma, an epilogue by lanes and TMA."""
    element = "f32" if case["element"] == "tf32" else case["element"]
    shapes = {side: [128, case["k"]] if case[side] == "K" else [case["k"], 128] for side in ("a", "b")}
    accesses: list[dict[str, Any]] = []
    for side in ("a", "b"):
        operand = {"op": f"wgmma.{side.upper()}", "major": case[side], "mode": case["mode"]}
        accesses.append({"tile": side, "name": f"fill {side}", "op": "tma.load"})
        accesses.append({"tile": side, "name": f"operand {side}", **operand})
    accesses += [
        {"tile": "d", "name": "accumulators", **EPILOGUES[case.get("by", "stmatrix.x4")][0]},
        {"tile": "d", "name": "store", "op": "tma.store", **case.get("d", {})},
    ]
    tiles = [
        *({"name": side, "shape": shape, "element": element} for side, shape in shapes.items()),
        {"name": "d", "shape": [128, 128], "element": "f16"},
    ]
    return {"name": name, "target": TARGET, "threads": 256, "tiles": tiles, "accesses": accesses}


def one_tile(name: str, case: dict[str, Any], accesses: list[dict[str, Any]]) -> dict[str, Any]:
    """The problem of a case's tile."""
    tile = {"shape": case["shape"], "element": case["element"]}
    return {"name": name, "target": TARGET, "threads": 128, "tile": tile, "accesses": accesses}


def product_case(name: str, case: dict[str, Any]) -> str:
    """Code for a product; the wavefronts that its epilogue takes are put into the case."""
    tiles = from_data(product_problem(name, case))
    found = solve(tiles)
    assert found.tiles, found.reason
    (epilogue,) = [a for t in found.tiles for a in t.result.accesses if a.name == "accumulators"]
    case["wavefronts"] = int(epilogue.wavefronts)
    size, types, depth = TYPES[case["element"]]
    turned = [str(case[side] == "MN").lower() for side in "ab"]
    flags = "".join(f", {int(one == 'true')}" for one in turned) if size == 2 else ""
    held = ", ".join(f"%{i}" for i in range(64))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(64))
    base = {side: f"s + {name}_{side}_base" for side in "abd"}
    loads = " ".join(f"{name}_{s}_fill_{s}({base[s]}, {s}, bar, 0, 0);" for s in "ab")
    expected = " + ".join(f"{name}_{s}_fill_{s}_boxes * {name}_{s}_fill_{s}_box_bytes" for s in "ab")
    by = EPILOGUES[case.get("by", "stmatrix.x4")][1]
    return struct(
        name, code_of("cuda", placed(tiles, device(TARGET), found)), size,
        f"static constexpr int k = {case['k']}, k_steps = {case['k'] // depth};",
        f"static constexpr bool a_turned = {turned[0]}, b_turned = {turned[1]};",
        f"static constexpr uint32_t load_bytes = {expected};",
        f"static T bits(int v) {{ {BITS[case['element']]} }}",
        f"__device__ static void load(uint32_t s, const void* a, const void* b, uint32_t bar) {{ {loads} }}",
        *(
            f"__device__ static uint64_t {s}_descriptor(uint32_t s, uint32_t i) "
            f"{{ return {name}_{s}_operand_{s}_descriptor({base[s]}, i); }}"
            for s in "ab"
        ),
        "__device__ static void mma(float (&d)[64], uint64_t a, uint64_t b) {",
        '    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; "',
        f'        "wgmma.mma_async.sync.aligned.m64n128k{depth}.{types} "',
        f'        "{{{held}}}, %64, %65, p, 1, 1{flags}; }}"',
        f'        : {outputs} : "l"(a), "l"(b));',
        "}",
        "__device__ static void epilogue(uint32_t s, int tid, const float (&acc)[64]) {",
        f"    {by.format(name=name, base=base['d'])}",
        "}",
        "__device__ static void store(uint32_t s, const void* d) {",
        f"    {name}_d_store({base['d']}, d, 0, 0);",
        "}",
        *(encoding(f"encode_{s}", f"{name}_{s}_{'store' if s == 'd' else 'fill_' + s}") for s in "abd"),
    )  # fmt: skip


# Bulk copies and multicast ------------------------------------------------------------------------


def bulk_cases() -> list[dict[str, Any]]:
    """Rows, parts of rows and several rows at a time, with pads and without."""
    shapes = [
        ([128, 32], "f32", 128), ([128, 32], "f32", 64), ([128, 32], "f32", 256), ([64, 64], "f16", 128),
        ([64, 64], "f16", 16), ([96, 24], "f64", 192), ([33, 48], "f32", 192), ([256, 16], "bf16", 32),
        ([7, 208], "e4m3", 208), ([64, 128], "f16", 16384),
    ]  # fmt: skip
    return [
        {"kind": "bulk", "shape": shape, "element": element, "bytes": size, "columns": columns}
        for shape, element, size in shapes
        for columns in (False, True)
    ]


def multicast_cases() -> list[dict[str, Any]]:
    """Clusters, the blocks of them that share a tile, and modes."""
    sizes = [(2, 2), (4, 2), (4, 4), (8, 8), (3, 3), (6, 2), (16, 16)]
    plain = [
        ([192, 64], "f16", cluster, shared, mode)
        for cluster, shared in sizes
        for mode in MODES
        if 192 * 64 // shared * shared == 192 * 64
    ]
    more = [
        ([8, 64], "f16", 2, 2, "128B"),
        ([64, 128], "e4m3", 4, 4, "128B"),
        ([64, 256], "f16", 4, 4, "128B"),
    ]
    fields = ("shape", "element", "cluster", "shared", "mode")
    return [{"kind": "multicast", **dict(zip(fields, case, strict=True))} for case in [*plain, *more]]


def moved_problem(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """The tile of a case and its accesses."""
    accesses: list[dict[str, Any]]
    if case["kind"] == "bulk":
        accesses = [{"name": "fill", "op": "cp.async.bulk", "bytes": case["bytes"]}]
        if case["columns"]:
            # Columns of 4 bytes ask for a pad between the copies.
            rows, size = case["shape"][0], ELEMENT_BYTES[case["element"]]
            index = [f"tid % {rows}", "i"]
            accesses.append({"name": "columns", "op": "load", "index": index, "for": {"i": 4}, "bytes": size})
    else:
        accesses = [{"name": "fill", "op": "tma.load", "mode": case["mode"], "multicast": case["shared"]}]
    whole = one_tile(name, case, accesses)
    return whole if case["kind"] == "bulk" else {**whole, "block": {"cluster": case["cluster"]}}


def moved_case(name: str, case: dict[str, Any]) -> str:
    """Code for a bulk copy or a multicast."""
    problem = from_data(moved_problem(name, case))
    result = solve(problem)
    assert result.layout is not None, (case, result.reason)
    rows, columns = case["shape"]
    own = {
        "bulk": (
            f"static constexpr uint32_t copies = {name}_fill_copies, copy_bytes = {name}_fill_copy_bytes;",
            "__device__ static void load(uint32_t s, const void* from, uint32_t bar, uint32_t i) {",
            f"    {name}_fill(s, from, bar, i);",
            "}",
            "__device__ static void store(uint32_t s, void* to, uint32_t i) {",
            f"    {name}_fill_store(s, to, i);",
            "}",
        ),
        "multicast": (
            f"static constexpr uint32_t load_bytes = {name}_fill_boxes * {name}_fill_box_bytes;",
            f"static constexpr int cluster = {name}_cluster, shared = {name}_fill_multicast;",
            "__device__ static void load(uint32_t s, const void* map, uint32_t bar, uint32_t block,",
            "    uint16_t mask, int row) {",
            f"    {name}_fill(s, map, bar, block, mask, 0, row);",
            "}",
            encoding("encode", f"{name}_fill"),
        ),
    }  # fmt: skip
    return struct(
        name, emit(problem, result), problem.tile.element_bytes,
        f"static constexpr int rows = {rows}, columns = {columns};",
        f"__device__ static uint32_t offset(int r, int c) {{ return {name}_offset_bytes(r, c); }}",
        *own[case["kind"]],
    )  # fmt: skip


# Of each kind: how a case is named, its code, and what of the program runs it.
KINDS = {
    "copy": ("c", copy_case, "copies"),
    "product": ("p", product_case, "products"),
    "bulk": ("c", moved_case, "bulk_case"),
    "multicast": ("m", moved_case, "multicast_case"),
}


def write(folder: Path) -> None:
    """Both programs and their cases."""
    write_program(folder / "hopper", copies(), products())
    write_program(folder / "copies", bulk_cases(), multicast_cases())


def write_program(folder: Path, *groups: list[dict[str, Any]]) -> None:
    """The code of the cases, what they are, and the program that runs them."""
    folder.mkdir(parents=True, exist_ok=True)
    parts, listed, known = [], [], []
    for number, case in ((number, case) for group in groups for number, case in enumerate(group)):
        letter, code, runs = KINDS[case["kind"]]
        name = f"{letter}{number}"
        parts.append(code(name, case))
        listed.append(f'    {{"{name}", {runs}<Case_{name}>}}')
        known.append({"name": name, **case})
    text = "\n".join([*parts, "static const Entry entries[] = {", ",\n".join(listed), "};"])
    # One file of headers: each says `#pragma once`, which is for files of its own.
    (folder / "cases.cuh").write_text(text.replace("#pragma once\n", "") + "\n")
    (folder / "entries.json").write_text(json.dumps(known, indent=1) + "\n")
    for name in (f"validate_{folder.name}.cu", "hopper.cuh"):
        shutil.copy(HERE / name, folder)


def found_by(folder: Path) -> tuple[Path, dict[str, Any], list[dict[str, Any]]]:
    """A program compiled and run: where it is, its cases by name, and the lines that it wrote."""
    program = on_gpu.built(folder / f"validate_{folder.name}.cu", *HOPPER_FLAGS, "-I", folder)
    out = folder / "found.jsonl"
    on_gpu.printed(program, out)
    cases = {case["name"]: case for case in on_gpu.entries(folder)}
    return program, cases, [json.loads(line) for line in out.read_text().splitlines()]


def measure(folder: Path) -> None:
    """Run both programs and write what they found, case by case."""
    program, cases, lines = found_by(folder / "hopper")
    found: dict[str, Any] = {"copies": [], "products": []}
    names = [case["name"] for case in cases.values() if "d" in case]
    counters = {name: name for name in METRICS}
    launched = on_gpu.profiled(counters, "product", program, folder / "profiled.jsonl", *names)
    pairs = zip(launched[::2], launched[1::2], strict=True)  # without the stores, and with them
    for row in lines:
        if row["name"] == "narrow":
            # 16 rows of 64 bytes in mode 128B, as 2-byte words
            found["short rows"] = row["seen"]
            continue
        case = cases[row["name"]]
        case |= {"wrong": row["wrong"]} | ({"error": row["error"]} if row["error"] else {})
        if "d" in case:
            without, stored = next(pairs)
            case["counted"] = {key: stored.counts[key] - without.counts[key] for key in METRICS}
        found[KINDS[case.pop("kind")][2]].append(case)
    told = [c for c in found["products"] if "counted" in c]
    other = [c["name"] for c in told if c["counted"][STORED] != c["wavefronts"]]
    print(f"wavefronts other than predicted: {other or 'none'}")
    about = (
        "Tiles that TMA loaded and stored, and products by wgmma, with the code that is emitted for them: "
        "wrong counts elements. counted: the profiler's, of the epilogue."
    )
    print_wrong(found["copies"] + found["products"])
    on_gpu.write_record(folder / "h200_hopper.json", about, found)
    _, cases, lines = found_by(folder / "copies")
    rows = [cases[row["name"]] | row for row in lines if row["name"] in cases]
    # 2-byte words by place, of 16 rows of 128 bytes, words numbered row by row
    seen = [row for row in lines if "seen" in row]
    told = ("name", "error"), ("name", "error", "seen")
    swizzles = [{key: row[key] for key in told[not row["error"]]} for row in seen]
    about = (
        "Tiles that cp.async.bulk copied in and out, and tiles that the blocks of a cluster copied together "
        "by TMA, with the code that is emitted for them: wrong counts elements."
    )
    print_wrong(rows)
    on_gpu.write_record(folder / "h200_copies.json", about, {"cases": rows, "swizzles": swizzles})


def print_wrong(rows: list[dict[str, Any]]) -> None:
    wrong = [row["name"] for row in rows if row["wrong"] or row.get("error")]
    print(f"{len(rows)} cases; wrong: {wrong or 'none'}")


if __name__ == "__main__":
    on_gpu.command_line(__doc__, write, measure)
