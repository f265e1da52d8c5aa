"""Time whole kernels with the layouts of their tiles: a GEMM main loop, transposes, RAFT's contractions.

    python scripts/measure/bench.py --write FOLDER     here: solve and compare, write one program a kernel
    python scripts/measure/bench.py --measure FOLDER   on the GPU: compile, run twice: bench.json

Each with no layout or what is published, a pad, what `layoutopt solve` answers (ours) and what
`layoutopt compare` recommends, where that is yet another. The first step needs nvcc and CUTLASS's headers
(`pip install nvidia-cutlass`), and copies what the second, which needs nvcc, numpy and msgspec, includes.
`tests/data/h200_bench.json` is what it wrote.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import bench_contractions
import bench_gemm
import bench_transpose
import msgspec
import on_gpu

if TYPE_CHECKING:
    from layoutopt.codegen.plan import Plan
    from layoutopt.problems.types import Problem

_RUNS = 2


class Bench(NamedTuple):
    """A kernel: the problem of its tile, what people write for it, and the program of some layouts."""

    name: str
    problem: Problem
    written: dict[str, str]
    program: Callable[[dict[str, Plan]], str]


def benches() -> Iterator[Bench]:
    from layoutopt.files.catalogue import of_one_tile
    from layoutopt.files.file import from_data, load

    yield Bench("GEMM f16", from_data(bench_gemm.PROBLEM), bench_gemm.WRITTEN, bench_gemm.program)
    for kind, data in (("f32", bench_transpose.F32), ("f16", bench_transpose.F16)):
        written = bench_transpose.WRITTEN[kind]
        yield Bench(
            f"transpose {kind}", from_data(data), written, partial(bench_transpose.program, kind=kind)
        )
    for kind, (name, *_) in bench_contractions.TYPES.items():
        problem = load(of_one_tile()[name])
        assert problem.published is not None
        yield Bench(
            f"RAFT {kind}",
            problem,
            {"published": problem.published.offset},
            partial(bench_contractions.program, kind=kind),
        )


def write(folder: Path) -> None:
    from layoutopt.codegen.languages import plan
    from layoutopt.hardware.devices import device
    from layoutopt.search.solve import solve
    from layoutopt.study.compare import compare

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("bench.cuh"), folder)
    gpu, entries = device("sm_90"), []
    for number, bench in enumerate(benches()):
        advice = compare(bench.problem, target=gpu, time_limit=10).recommendation
        assert advice is not None
        ours = solve(bench.problem, target=gpu)
        layouts = {**bench.written, "ours": str(ours.offset)}
        if advice.offset not in layouts.values():
            layouts["recommended"] = advice.offset
        plans = {
            name: plan(
                msgspec.structs.replace(bench.problem, name=name), gpu, ours if name == "ours" else offset
            )
            for name, offset in layouts.items()
        }
        source = folder / f"{number}.cu"
        source.write_text(bench.program(plans))
        _copy_headers(source, folder / "include")
        entries.append({"kernel": bench.name, "recommended": advice.offset, "layouts": layouts})
        print(entries[-1], flush=True)
    (folder / "entries.json").write_text(json.dumps(entries))


def _copy_headers(source: Path, folder: Path) -> None:
    """Copy the headers of CUTLASS that a program includes."""
    found = importlib.util.find_spec("cutlass_library")
    assert found is not None
    assert found.origin is not None
    headers = Path(found.origin).parent / "source/include"
    for name in on_gpu.run("nvcc", "-std=c++17", "-M", "-I", headers, source).split():
        path = Path(name)
        if path.is_relative_to(headers):
            copy = folder / path.relative_to(headers)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def measure(folder: Path) -> None:
    entries = json.loads((folder / "entries.json").read_text())
    for number, entry in enumerate(entries):
        include = ("-I", folder / "include")
        program = on_gpu.built(folder / f"{number}.cu", *on_gpu.compile_flags(), *include)
        rows: dict[str, dict[str, object]] = {}
        for _ in range(_RUNS):
            done = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True, timeout=60)
            for line in done.stdout.splitlines():
                _, name, time, registers, blocks, same, error = line.split("\t")
                new = {"microseconds": [], "registers": int(registers), "blocks": int(blocks)}
                row = rows.setdefault(name, {"layout": name, **new, "same_results": True, "error": error})
                row["microseconds"].append(float(time))  # type: ignore[attr-defined]
                row["same_results"] = row["same_results"] and same == "1"
        entry["times"] = list(rows.values())
        print(entry, flush=True)
        head = {
            "about": "Whole kernels with the layouts of their tiles: median times, run by run.",
            "provenance": on_gpu.provenance("bench.py"),
        }
        (folder / "bench.json").write_text(on_gpu.record(head, "kernels", entries))


if __name__ == "__main__":
    on_gpu.write_or_measure(__doc__, write, measure)
