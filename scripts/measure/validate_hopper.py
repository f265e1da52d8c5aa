"""Validate on an H200 what is emitted for TMA and wgmma: tensor maps, matrix descriptors, the epilogue.

    python scripts/measure/validate_hopper.py write DIR     # needs nvcc: writes DIR/hopper
    DIR/run.sh OUT                                        # on the GPU machine; needs ncu
    python scripts/measure/validate_hopper.py compare DIR OUT --json tests/data/h200_hopper.json

Copies: tiles of 64 to 256 rows in every mode go in by TMA, are read through the emitted offsets and must be
what lies in global memory; then back. Products: 128x128xK by two warpgroups, every operand by TMA, every
descriptor as emitted, the epilogue by stmatrix or stores of 16 bytes, then TMA; small integers, so that the
product is exact. The profiler counts the epilogue's wavefronts.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from on_gpu import CONFLICTS_SUM, HOPPER_FLAGS, RAW_PAGE, WAVEFRONTS_SUM, counted, write_or_compare

from layoutopt import solve
from layoutopt.accesses.hardware_access import map_element
from layoutopt.codegen.languages import emit
from layoutopt.codegen.tiles import arrangement_code
from layoutopt.files.file import from_data
from layoutopt.hardware import machine
from layoutopt.hardware.devices import device
from layoutopt.problems.answer import TensorMap
from layoutopt.problems.types import ELEMENT_BYTES

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
        {
            "op": "store",
            "bytes": 16,
            "index": ["16*warp + lane // 4 + 8*h", "8*(lane % 4) + 32*n"],
            "for": {"h": 2, "n": 4},
        },
        "by_rows(acc, [&](int h, int n, const uint32_t (&v)[4]) {{\n"
        "            const uint32_t at = {base} + {name}_d_accumulators_bytes(tid, h, n);\n"
        '            asm volatile("st.shared.v4.b32 [%0], {{%1, %2, %3, %4}};"\n'
        '                ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");\n'
        "        }});",
    ),
}
# Inline PTX of the products: types of the operands, flags behind the descriptors.
TYPES = {
    "f16": ("f16.f16", "f32.f16.f16", 16),
    "bf16": ("bf16", "f32.bf16.bf16", 16),
    "tf32": ("tf32", "f32.tf32.tf32", 8),
    "e4m3": ("e4m3", "f32.e4m3.e4m3", 32),
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
    cases = []
    for element in ("f16", "bf16", "e4m3", "f32"):
        for mode in MODES:
            for rows in (64, 128, 192, 256):
                cases.append(
                    {
                        "shape": [rows, 128 // max(1, ELEMENT_BYTES[element] // 2)],
                        "element": element,
                        "mode": mode,
                    }
                )
    more: list[dict[str, Any]] = [
        {"shape": [128, 64], "element": "f16", "mode": mode, "order": [1, 0]} for mode in MODES
    ]
    more += [{"shape": [128, 128], "element": "f16", "mode": "128B", "box": [64, 64]}]
    more += [
        {"shape": [16, 128], "element": "f16", "mode": mode, "box": [4, 64 // s]}
        for mode, s in (("128B", 1), ("64B", 2))
    ]
    more += [{"shape": [3, 32, 128], "element": "f16", "mode": mode} for mode in ("none", "64B", "128B")]
    more += [
        {"shape": [64, width], "element": "f16", "mode": mode, "box": [64, 16]}
        for width, mode in ((16, "128B"), (16, "64B"), (64, "128B"))
    ]  # rows shorter than the span
    more += [{"shape": [2, 3, 4, 8, 64], "element": "bf16", "mode": "128B"}]
    more += [
        {"shape": [96, 64], "element": "f64", "mode": "128B"},
        {"shape": [512, 32], "element": "f32", "mode": "128B"},
    ]
    more += [
        {"shape": [96, 24], "element": {"bytes": 4}, "mode": "none"},
        {"shape": [64, 64], "element": "f16", "mode": "128B", "map": "u32"},
    ]
    return cases + more


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
    stores = [
        {"mode": "none", "box": [128, 64]},
        *({"mode": mode} for mode in ("none", "32B", "64B", "128B")),
    ]
    return [*cases, *({**plain, "d": store, "by": by} for by in EPILOGUES for store in stores)]


def copy_case(number: int, case: dict[str, Any]) -> tuple[str, str]:
    """A case's code, and its name."""
    name = f"c{number}"
    fill = {key: case[key] for key in ("mode", "order", "box") if key in case}
    if "map" in case:
        fill["element"] = case["map"]
    problem = from_data(
        {
            "name": name,
            "target": TARGET,
            "threads": 128,
            "tile": {"shape": case["shape"], "element": case["element"]},
            "accesses": [
                {"name": "fill", "op": "tma.load", **fill},
                {"name": "back", "op": "tma.store", **fill},
            ],
        }
    )
    result = solve(problem)
    found = result.accesses[0].descriptor
    assert isinstance(found, TensorMap), result.reason
    rank, size = len(case["shape"]), problem.tile.element_bytes
    place = [case["shape"][d] for d in reversed(found.order)]
    use = problem.accesses[0].hardware
    assert use is not None
    unit = ELEMENT_BYTES[map_element(use, problem.tile)]
    place[0] = place[0] * size // unit
    at = ", ".join(map(str, place))
    x = ", ".join(f"x[{d}]" for d in range(rank))
    shape, order = ", ".join(map(str, case["shape"])), ", ".join(map(str, found.order))
    text = f"""{emit("cuda", problem, device(TARGET), result)}
struct Case_{name} {{
    using T = {RAW[size]};
    static constexpr int rank = {rank}, elements = {problem.tile.elements}, map_bytes = {unit};
    static constexpr uint32_t bytes = {name}_bytes, load_bytes = {name}_fill_boxes * {name}_fill_box_bytes;
    static constexpr bool stores = true;
    __host__ __device__ static constexpr int shape(int d) {{ const int s[] = {{{shape}}}; return s[d]; }}
    static constexpr int order(int d) {{ const int o[] = {{{order}}}; return o[d]; }}
    __device__ static uint32_t offset(const int* x) {{ return {name}_offset_bytes({x}); }}
    __device__ static void load(uint32_t s, const void* map, uint32_t bar) {{
        {name}_fill(s, map, bar, {at});
    }}
    __device__ static void store(uint32_t s, const void* map) {{ {name}_back(s, map, {at}); }}
    static CUresult encode_load(Encode e, CUtensorMap* m, void* g, Extents n, Extents b) {{
        return {name}_fill_encode(e, m, g, n, b);
    }}
    static CUresult encode_store(Encode e, CUtensorMap* m, void* g, Extents n, Extents b) {{
        return {name}_back_encode(e, m, g, n, b);
    }}
}};
"""
    return text, name


def product_problem(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """A Hopper block: two operands by TMA, wgmma, an epilogue by lanes and TMA."""
    element = "f32" if case["element"] == "tf32" else case["element"]
    shapes = {side: [128, case["k"]] if case[side] == "K" else [case["k"], 128] for side in ("a", "b")}
    accesses = []
    for side in ("a", "b"):
        accesses.append({"tile": side, "name": "fill", "op": "tma.load"})
        accesses.append(
            {
                "tile": side,
                "name": "operand",
                "op": f"wgmma.{side.upper()}",
                "major": case[side],
                "mode": case["mode"],
            }
        )
    for access in accesses:
        access["name"] = f"{access['name']} {access['tile']}"
    return {
        "name": name,
        "target": TARGET,
        "threads": 256,
        "tiles": [
            *({"name": side, "shape": shape, "element": element} for side, shape in shapes.items()),
            {"name": "d", "shape": [128, 128], "element": "f16"},
        ],
        "accesses": [
            *accesses,
            {"tile": "d", "name": "accumulators", **EPILOGUES[case.get("by", "stmatrix.x4")][0]},
            {"tile": "d", "name": "store", "op": "tma.store", **case.get("d", {})},
        ],
    }  # fmt: skip


def product_case(number: int, case: dict[str, Any]) -> tuple[str, str, int]:
    """A case's code, its name, and the wavefronts that its epilogue takes."""
    name = f"p{number}"
    tiles = from_data(product_problem(name, case))
    found = solve(tiles)
    assert found.tiles, found.reason
    (epilogue,) = [a for t in found.tiles for a in t.result.accesses if a.name == "accumulators"]
    _, types, depth = TYPES[case["element"]]
    wide = case["element"] in ("f16", "bf16")
    flags = f", 1, 1{', ' + str(int(case['a'] == 'MN')) + ', ' + str(int(case['b'] == 'MN')) if wide else ''}"
    held = ", ".join(f"%{i}" for i in range(64))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(64))
    base = {side: f"s + {name}_{side}_base" for side in "abd"}
    size = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1}[case["element"]]
    loads = " ".join(f"{name}_{s}_fill_{s}({base[s]}, {s}, bar, 0, 0);" for s in "ab")
    expected = " + ".join(f"{name}_{s}_fill_{s}_boxes * {name}_{s}_fill_{s}_box_bytes" for s in "ab")
    encodes = "\n".join(
        f"    static CUresult encode_{s}(Encode e, CUtensorMap* m, void* g, Extents n, Extents b) {{"
        f" return {name}_{s}_{'store' if s == 'd' else 'fill_' + s}_encode(e, m, g, n, b); }}"
        for s in "abd"
    )
    text = f"""{arrangement_code(tiles, found, device(TARGET))}
struct Case_{name} {{
    using T = {RAW[size]};
    static constexpr int k = {case["k"]}, k_steps = {case["k"] // depth};
    static constexpr bool a_turned = {str(case["a"] == "MN").lower()};
    static constexpr bool b_turned = {str(case["b"] == "MN").lower()};
    static constexpr uint32_t bytes = {name}_bytes, load_bytes = {expected};
    static T bits(int v) {{ {BITS[case["element"]]} }}
    __device__ static void load(uint32_t s, const void* a, const void* b, uint32_t bar) {{ {loads} }}
    __device__ static uint64_t a_descriptor(uint32_t s, uint32_t i) {{
        return {name}_a_operand_a_descriptor({base["a"]}, i);
    }}
    __device__ static uint64_t b_descriptor(uint32_t s, uint32_t i) {{
        return {name}_b_operand_b_descriptor({base["b"]}, i);
    }}
    __device__ static void mma(float (&d)[64], uint64_t a, uint64_t b) {{
        asm volatile("{{ .reg .pred p; setp.ne.b32 p, 1, 0; "
            "wgmma.mma_async.sync.aligned.m64n128k{depth}.{types} {{{held}}}, %64, %65, p{flags}; }}"
            : {outputs} : "l"(a), "l"(b));
    }}
    __device__ static void epilogue(uint32_t s, int tid, const float (&acc)[64]) {{
        {EPILOGUES[case.get("by", "stmatrix.x4")][1].format(name=name, base=base["d"])}
    }}
    __device__ static void store(uint32_t s, const void* d) {{ {name}_d_store({base["d"]}, d, 0, 0); }}
{encodes}
}};
"""
    return text, name, int(epilogue.wavefronts)


def write(folder: Path) -> None:
    """The program, its cases and the script that runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    parts, entries, known = [], [], []
    for number, case in enumerate(copies()):
        text, name = copy_case(number, case)
        parts.append(text)
        entries.append(f'{{"{name}", copies<Case_{name}>}}')
        known.append({"name": name, "kind": "copy", **case})
    for number, case in enumerate(products()):
        text, name, wavefronts = product_case(number, case)
        parts.append(text)
        entries.append(f'{{"{name}", products<Case_{name}>}}')
        known.append({"name": name, "kind": "product", "wavefronts": wavefronts, **case})
    lines = [
        *parts,
        "static const Entry entries[] = {",
        ",\n".join(f"    {entry}" for entry in entries),
        "};",
    ]
    # One file of headers: each says `#pragma once`, which is for files of its own.
    (folder / "cases.cuh").write_text("\n".join(lines).replace("#pragma once\n", "") + "\n")
    (folder / "cases.json").write_text(json.dumps(known, indent=1) + "\n")
    source, program = HERE / "validate_hopper.cu", folder / "hopper"
    subprocess.run(["nvcc", *HOPPER_FLAGS, "-I", str(folder), str(source), "-o", str(program)], check=True)
    profiled = [case["name"] for case in known if "d" in case]
    script = ["#!/bin/bash", 'here=$(cd "$(dirname "$0")" && pwd); out=${1:?folder}; mkdir -p "$out"']
    script.append('timeout 120 "$here/hopper" "$out/hopper.jsonl" | tail -n 40')
    page, metrics, names = " ".join(RAW_PAGE), ",".join(METRICS), " ".join(profiled)
    script.append(
        f"timeout 180 ncu {page} --metrics {metrics} --kernel-name regex:product "
        f'"$here/hopper" "$out/profiled.jsonl" {names} > "$out/profiled.csv" || echo "ncu failed"'
    )
    script.append(
        'nvidia-smi --query-gpu=name,driver_version --format=csv,noheader > "$out/gpu.txt"; echo done'
    )
    (folder / "run.sh").write_text("\n".join(script) + "\n")
    (folder / "run.sh").chmod(0o755)


def compare(folder: Path, out: Path) -> dict[str, Any]:
    """What the machine found, case by case."""
    cases = {case["name"]: case for case in json.loads((folder / "cases.json").read_text())}
    card, _, driver = (out / "gpu.txt").read_text().strip().partition(", ")
    found: dict[str, Any] = {
        "about": "Tiles that TMA loaded and stored, and products by wgmma, with the code that is emitted "
        "for them: wrong counts elements. counted: the profiler's, of the epilogue.",
        "gpu": card,
        "driver": driver,
        "script": "scripts/measure/validate_hopper.py",
        "date": time.strftime("%Y-%m-%d"),
        "copies": [],
        "products": [],
    }
    launched = machine.launches((out / "profiled.csv").read_text())  # without the stores, and with them
    pairs = zip(launched[::2], launched[1::2], strict=True)
    for line in (out / "hopper.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["name"] == "narrow":
            # 16 rows of 64 bytes in mode 128B, as 2-byte words
            found["short rows"] = row["seen"][: 16 * 64]
            continue
        case = dict(cases[row["name"]])
        kind = {"copy": "copies", "product": "products"}[case.pop("kind")]
        case |= {"wrong": row["wrong"]} | ({"error": row["error"]} if row["error"] else {})
        if "d" in case:
            without, with_stores = next(pairs)
            case["counted"] = {key: counted(with_stores, key) - counted(without, key) for key in METRICS}
        found[kind].append(case)
    return found


def wrong(found: dict[str, Any]) -> str:
    """What is not as it should be."""
    kinds = ("copies", "products")
    names = [case["name"] for kind in kinds for case in found[kind] if case["wrong"] or "error" in case]
    counts = [
        (case["name"], case["wavefronts"], case["counted"][STORED])
        for case in found["products"]
        if "counted" in case and case["counted"][STORED] != case["wavefronts"]
    ]
    return (
        f"{len(found['copies'])} copies, {len(found['products'])} products; wrong: {names or 'none'}; "
        f"wavefronts other than predicted: {counts or 'none'}"
    )


if __name__ == "__main__":
    write_or_compare(__doc__, write, compare, wrong)
