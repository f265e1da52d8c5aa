"""Run lanes that were chosen on a GPU: fills and drains, and transposes at a copy's bandwidth.

    python scripts/measure/record_free_lanes.py --write FOLDER     here: solve, and write the programs
    python scripts/measure/record_free_lanes.py --measure FOLDER   on the GPU, with nvcc and ncu

Every fill or drain is a program that tests its own values; ncu counts its conflicts. The transposes move 256
to 512 MB with 16-byte accesses to global memory on both sides, beside a device-to-device copy of as much.
"""

from pathlib import Path
from typing import Any, Final

import on_gpu
from on_gpu import CONFLICTS_SUM, COUNTERS
from written import data_of

from layoutopt.codegen.templates import filled_text, parts_of

PARTS: Final = parts_of(Path(__file__).with_suffix(".cu").read_text())
# The total of wavefronts also counts what no shared access causes; the total of conflicts does not.
WAVEFRONTS: Final = ("wavefronts_ld", "wavefronts_st")
METRICS: Final = {**{name: COUNTERS[name] for name in WAVEFRONTS}, "bank_conflicts": CONFLICTS_SUM}

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


ROWS: Final = "rows: store 16 [tid//32 + 8*i, 4*(tid%32)]; i<4"
# Problems with free lanes or values, as tests/written.py reads them, but for the accesses whose lanes are free.
ASSIGNMENTS: Final = {
    "drain of columns": f"32x128 f32, 256 threads\n{ROWS}",
    "words in turn": """128x64 f16, 256 threads
        words: store 4 [tid//2, 32*(tid%2) + 2*i]; i<16; values free
        matrices: ldmatrix.x2 [64*(warp%2) + 8*(i%8) + tid%8, 16*(i//8) + 8*((tid%16)//8)]; i<32""",
    "parts in turn": """32x128 f32, 256 threads
        parts: store 4 [tid//32 + 8*i, 4*(tid%32) + j]; i<4, j<4; values free
        columns: load 4 [tid%32, tid//32 + 8*i]; i<16""",
    "part of a tile": f"32x128 f32, 256 threads\n{ROWS}",
    # Lanes of a warp change places: by an expression, beside threads that take no part, by a table.
    "places in a warp": "64x64 f64, 256 threads\npairs: store 16 [tid//32 + 8*i, 2*(tid%32)]; i<8",
    "places beside idle threads": "96x96 u8, 128 threads",
    "places by a table": "3x24 f32, 32 threads; pitch_multiple_bytes 208",
    **{f"transpose {size} {n}x{m}": f"{n}x{m} {kind}, 256 threads" for size, kind, _, n, m, _ in TRANSPOSES},
}


def _drain(contiguous: int, **more: Any) -> dict[str, Any]:
    side = {"contiguous": contiguous, "order": "column"}
    return {"name": "drain", "op": "load", "bytes": 4, "lanes": "free", "global": side, **more}


def assignments() -> list[dict[str, Any]]:
    """The problems as data."""
    free = {
        "drain of columns": [_drain(32)],
        "part of a tile": [_drain(16, covers=[[8, 24], [32, 64]], threads=96)],
        "places in a warp": [{**_drain(128), "bytes": 8}],
        "places beside idle threads": _transposing(4, 64),
        "places by a table": [
            {"name": "lines", "op": "store", "bytes": 16, "lanes": "free", "global": {"contiguous": 96}}
        ],
        **{f"transpose {size} {n}x{m}": _transposing(width) for size, _, width, n, m, _ in TRANSPOSES},
    }
    return [data_of(text, *free.get(name, ()), name=name) for name, text in ASSIGNMENTS.items()]


def _transposing(width: int, contiguous: int = 128) -> list[dict[str, Any]]:
    return [
        {"name": "fill", "op": "store", "bytes": 16, "lanes": "free", "global": {"contiguous": contiguous}},
        {"name": "drain", "op": "load", "bytes": width, "lanes": "free",
         "global": {"contiguous": contiguous, "order": "column", "bytes": 16}},
    ]  # fmt: skip


def write(folder: Path) -> None:
    """Solve, and write the programs."""
    from layoutopt import problem, solve
    from layoutopt.codegen.languages import run_plan
    from layoutopt.codegen.selftest import program
    from layoutopt.hardware.devices import device

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
    main = filled_text(PARTS["main"], RUNS="\n".join(runs))
    text = PARTS["start"] + "\n".join(parts) + main
    (folder / "transposes.cu").write_text(text)


def _kernel(data: dict[str, Any], planned: Any) -> str:
    from layoutopt.codegen import cuda

    size, word = planned.element_bytes, data["accesses"][1]["bytes"]
    fill, drain = (part.access for part in planned.accesses)
    keep = "w[j] = word;" if word == 4 else "w[2 * j] = word.x; w[2 * j + 1] = word.y;"
    if word == 16:
        keep = "w[0] = word.x; w[1] = word.y; w[2] = word.z; w[3] = word.w;"
    kernel = filled_text(
        PARTS["kernel"],
        NAME=planned.name,
        SIZE=size,
        ROWS=planned.problem.tile.shape[0],
        COLUMNS=planned.problem.tile.shape[1],
        FILLS=fill.loops.get("i", 1),
        DRAINS=drain.loops.get("i", 1),
        STEPS=16 // size,
        SIDE=max(1, word // size),
        WORD={4: "uint32_t", 8: "uint2", 16: "uint4"}[word],
        KEEP=keep,
        FILL_AT=", ".join(["tid", *fill.loops]),
        DRAIN_AT=", ".join(["tid", *drain.loops]),
    )
    return cuda.emit(planned).replace("#pragma once\n", "") + kernel


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
    found: dict[str, Any] = {"accesses": [], "transposes": []}
    for source in sorted(folder.glob("*.cu")):
        program, transposes = on_gpu.built(source), source.stem == "transposes"
        head, *lines = on_gpu.printed(program).splitlines()
        print(head, *lines, sep="\n", flush=True)
        kernels = "_transpose" if transposes else "_access_"
        launched = on_gpu.profiled(METRICS, kernels, program, "profile")
        for line, seen in zip(lines if transposes else lines[1:], launched, strict=True):
            counts = [sum(seen.counts[one] for one in WAVEFRONTS), seen.counts["bank_conflicts"]]
            if transposes:
                figures = dict(zip(head.split("\t"), line.split("\t"), strict=True))
                found["transposes"].append({**figures, "bank_conflicts": counts[1]})
                continue
            _, access, op, values, *told, _ = line.split("\t")
            row = {"problem": head.split(":")[0], "access": access, "op": op, "values": values}
            found["accesses"].append(row | {"predicted": [*map(int, told)], "counted": counts})
    about = "Lanes that were chosen: counters of fills and drains, and transposes beside a plain copy."
    on_gpu.write_record(folder / "h200_free_lanes.json", about, found)


if __name__ == "__main__":
    on_gpu.command_line(__doc__, write, measure)
