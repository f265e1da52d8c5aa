"""Validate on an H200 what is emitted for bulk copies, and for TMA copies that a cluster shares.

    python scripts/measure/validate_copies.py write DIR     # needs nvcc: writes DIR/copies and its run.sh
    DIR/run.sh OUT                                        # on the GPU machine
    python scripts/measure/validate_copies.py compare DIR OUT --json tests/data/h200_copies.json

Bulk copies: every copy of a tile goes in by cp.async.bulk and is read through the emitted offsets, then
written through them and copied back. Multicast: the blocks of a cluster that share a tile copy a part each,
and every block reads all of it.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from on_gpu import HOPPER_FLAGS, write_or_compare

from layoutopt.codegen.languages import emit
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.problems.types import ELEMENT_BYTES
from layoutopt.search.solve import solve

HERE = Path(__file__).parent
TARGET = "sm_90a"
RAW = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}
# Columns of 4 bytes ask for a pad between the copies.
COLUMNS = {"name": "columns", "op": "load", "index": ["tid % M", "i"], "for": {"i": 4}}


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
    cases = [
        {
            "kind": "multicast",
            "shape": [192, 64],
            "element": "f16",
            "cluster": cluster,
            "shared": shared,
            "mode": mode,
        }
        for cluster, shared in sizes
        for mode in ("none", "32B", "64B", "128B")
        if 192 * 64 // shared * shared == 192 * 64
    ]
    more = [([8, 64], "f16", 2, "128B"), ([64, 128], "e4m3", 4, "128B"), ([64, 256], "f16", 4, "128B")]
    cases += [
        {"kind": "multicast", "shape": shape, "element": element, "cluster": n, "shared": n, "mode": mode}
        for shape, element, n, mode in more
    ]
    return cases


def problem_of(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """The tile of a case and its accesses."""
    accesses: list[dict[str, Any]]
    if case["kind"] == "bulk":
        accesses = [{"name": "fill", "op": "cp.async.bulk", "bytes": case["bytes"]}]
        if case["columns"]:
            rows, size = case["shape"][0], ELEMENT_BYTES[case["element"]]
            accesses.append({**COLUMNS, "bytes": size, "index": [f"tid % {rows}", "i"]})
    else:
        accesses = [{"name": "fill", "op": "tma.load", "mode": case["mode"], "multicast": case["shared"]}]
    tile = {"shape": case["shape"], "element": case["element"]}
    whole = {"name": name, "target": TARGET, "threads": 128, "tile": tile, "accesses": accesses}
    return whole if case["kind"] == "bulk" else {**whole, "block": {"cluster": case["cluster"]}}


def case_code(name: str, case: dict[str, Any]) -> str:
    """A case's header and what the program calls of it."""
    problem = from_data(problem_of(name, case))
    result = solve(problem)
    assert result.layout is not None, (case, result.reason)
    rows, columns = case["shape"]
    own = (
        f"""
    static constexpr uint32_t copies = {name}_fill_copies, copy_bytes = {name}_fill_copy_bytes;
    __device__ static void load(uint32_t s, const void* from, uint32_t bar, uint32_t i) {{
        {name}_fill(s, from, bar, i);
    }}
    __device__ static void store(uint32_t s, void* to, uint32_t i) {{ {name}_fill_store(s, to, i); }}"""
        if case["kind"] == "bulk"
        else f"""
    static constexpr uint32_t load_bytes = {name}_fill_boxes * {name}_fill_box_bytes;
    static constexpr int cluster = {name}_cluster, shared = {name}_fill_multicast;
    __device__ static void load(uint32_t s, const void* map, uint32_t bar, uint32_t block,
        uint16_t mask, int row) {{
        {name}_fill(s, map, bar, block, mask, 0, row);
    }}
    static CUresult encode(Encode e, CUtensorMap* m, void* g, Extents n, Extents b) {{
        return {name}_fill_encode(e, m, g, n, b);
    }}"""
    )
    return f"""{emit("cuda", problem, device(TARGET), result)}
struct Case_{name} {{
    using T = {RAW[problem.tile.element_bytes]};
    static constexpr int rows = {rows}, columns = {columns};
    static constexpr uint32_t bytes = {name}_bytes;
    __device__ static uint32_t offset(int r, int c) {{ return {name}_offset_bytes(r, c); }}{own}
}};
"""


def write(folder: Path) -> None:
    """The program, its cases and the script that runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    parts, entries, known = [], [], []
    for number, case in enumerate([*bulk_cases(), *multicast_cases()]):
        name = f"c{number}"
        parts.append(case_code(name, case))
        entries.append(f'    {{"{name}", {case["kind"]}_case<Case_{name}>}}')
        known.append({"name": name, **case})
    text = "\n".join([*parts, "static const Entry entries[] = {", ",\n".join(entries), "};"])
    (folder / "cases.cuh").write_text(
        text.replace("#pragma once\n", "") + "\n"
    )  # each is for a file of its own
    (folder / "cases.json").write_text(json.dumps(known, indent=1) + "\n")
    source, program = HERE / "validate_copies.cu", folder / "copies"
    subprocess.run(["nvcc", *HOPPER_FLAGS, "-I", str(folder), str(source), "-o", str(program)], check=True)
    script = folder / "run.sh"
    script.write_text(
        '#!/bin/bash\nhere=$(cd "$(dirname "$0")" && pwd); out=${1:?folder}; mkdir -p "$out"\n'
        'timeout 60 "$here/copies" "$out/copies.jsonl"\n'
        'nvidia-smi --query-gpu=name,driver_version --format=csv,noheader > "$out/gpu.txt"; echo done\n'
    )
    script.chmod(0o755)


def compare(folder: Path, out: Path) -> dict[str, Any]:
    """What the machine found, case by case."""
    cases = {case["name"]: case for case in json.loads((folder / "cases.json").read_text())}
    card, _, driver = (out / "gpu.txt").read_text().strip().partition(", ")
    lines = [json.loads(line) for line in (out / "copies.jsonl").read_text().splitlines()]
    rows = [row for row in lines if row["name"] in cases]
    return {
        "about": "Tiles that cp.async.bulk copied in and out, and tiles that the blocks of a cluster copied "
        "together by TMA, with the code that is emitted for them: wrong counts elements.",
        "gpu": card,
        "driver": driver,
        "script": "scripts/measure/validate_copies.py",
        "date": time.strftime("%Y-%m-%d"),
        "cases": [cases[row["name"]] | row for row in rows],
        # 2-byte words by place, of 16 rows of 128 bytes, words numbered row by row
        "swizzles": [
            {key: row[key] for key in ("name", "error", "seen") if key != "seen" or not row["error"]}
            for row in lines
            if "seen" in row
        ],
    }


def wrong(found: dict[str, Any]) -> str:
    """What is not as it should be."""
    names = [case["name"] for case in found["cases"] if case["wrong"] or case["error"]]
    return f"{len(found['cases'])} cases; wrong: {names or 'none'}"


if __name__ == "__main__":
    write_or_compare(__doc__, write, compare, wrong)
