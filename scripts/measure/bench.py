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
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import on_gpu

from layoutopt.codegen.templates import filled_text, parts_of

if TYPE_CHECKING:
    from layoutopt.codegen.plan import Plan
    from layoutopt.problems.types import Problem

_RUNS = 2


class Bench(NamedTuple):
    """A kernel with several layouts of its tile.

    Attributes:
        name: of the kernel.
        problem: its tile.
        written: what people write for it.
        source: the file with its text, whose parts are `start`, a kernel and `main`.
        kernel: which part is the kernel.
        values: what `start` is filled in with.
        run: how `main` lists a kernel.
    """

    name: str
    problem: Problem
    written: dict[str, str]
    source: str
    kernel: str
    values: dict[str, object]
    run: str

    def program(self, plans: dict[str, Plan]) -> str:
        """The program that times every layout."""
        from layoutopt.codegen import cuda, cute

        parts = parts_of(Path(__file__).with_name(f"{self.source}.cu").read_text())
        text, names = [filled_text(parts["start"], **self.values)], list(plans)
        for name, planned in plans.items():
            text.append(cuda.emit(planned).replace("#pragma once", ""))
            text.append(filled_text(parts[self.kernel], NAME=name))
        if "cute" in parts:  # CuTe's form of ours
            swizzled = cute.emit(plans["ours"]).replace("#pragma once", "")
            swizzled = swizzled.replace("constexpr int ours_", "// constexpr int ours_")
            text += [swizzled, parts["cute"], filled_text(parts[self.kernel], NAME="cute")]
            names.append("cute")
        runs = ",\n".join(f'        {{"{name}", {self.run.replace("NAME", name)}}}' for name in names)
        return "\n".join([*text, filled_text(parts["main"], RUNS=runs)])


# Tiles, as tests/written.py reads them.
GEMM = """128x32 f16, 256 threads; name gemm
    fill: cp.async 16 [tid // 4 + 64*i, 8*(tid % 4)]; i<2
    a: ldmatrix.x4 [32*(warp % 4) + lane % 16 + 16*m, 8*(lane // 16) + 16*k]; m<2, k<2
    b: ldmatrix.x4 [64*(warp // 4) + 16*n + lane % 8 + 8*(lane // 16), 8*(lane // 8 % 2) + 16*k]; n<4, k<2"""
TRANSPOSE_F32 = """32x32 f32, 256 threads; name f32
    rows: store 4 [warp + 8*i, lane]; i<4
    columns: load 4 [lane, warp + 8*i]; i<4"""
TRANSPOSE_F16 = """64x64 f16, 256 threads; name f16
    rows: store 4 [warp + 8*i, 2*lane]; i<8
    columns: load 2 [2*lane + h, warp + 8*i]; i<8, h<2"""


def benches() -> Iterator[Bench]:
    from written import problem_of

    from layoutopt.files.catalogue import of_one_tile
    from layoutopt.files.file import load

    # CuTe's swizzle is its composed layout, called at each coordinate; all others have the emitted pieces.
    written = {"none": "x0*32 + x1", "pad": "x0*40 + x1"}
    run = "NAME_kernel, shared(NAME_bytes)"
    yield Bench("GEMM f16", problem_of(GEMM), written, "bench_gemm", "kernel", {}, run)
    for kind, text, element, bits, side, written in (
        ("f32", TRANSPOSE_F32, "float", "unsigned", 32, {"none": "x0*32 + x1", "pad": "x0*33 + x1"}),
        ("f16", TRANSPOSE_F16, "__half", "unsigned short", 64, {"none": "x0*64 + x1", "pad": "x0*66 + x1"}),
    ):
        values: dict[str, object] = {"ELEMENT": element, "BITS": bits, "SIDE": side}
        name, kernel = f"transpose {kind}", f"kernel_{kind}"
        yield Bench(name, problem_of(text), written, "bench_transpose", kernel, values, "NAME_transpose")
    for kind, file, element, vector, count in (
        ("f32", "raft/contractions_64x32_f32", "float", "float4", 4),
        ("f64", "raft/contractions_64x16_f64", "double", "double2", 2),
    ):
        problem = load(of_one_tile()[file])
        assert problem.published is not None
        written = {"published": problem.published.offset}
        values = {"ELEMENT": element, "VECTOR": vector, "COUNT": count}
        run = "NAME_kernel, (NAME_bytes + 127) / 128 * 128 * 4"
        yield Bench(f"RAFT {kind}", problem, written, "bench_contractions", "kernel", values, run)


def write(folder: Path) -> None:
    shutil.copy(Path(__file__).with_name("bench.cuh"), folder)
    on_gpu.write_programs(folder, programs())
    for source in folder.glob("*.cu"):
        _copy_headers(source, folder / "include")


def programs() -> Iterator[tuple[dict[str, Any], str]]:
    """Each kernel with its layouts: what is published, ours, and what is recommended where that is another."""
    from layoutopt import solve
    from layoutopt.codegen.languages import plan
    from layoutopt.hardware.devices import device
    from layoutopt.study.compare import compare

    gpu = device("sm_90")
    for bench in benches():
        advice = compare(bench.problem, target=gpu, time_limit=10).recommendation
        assert advice is not None
        ours = solve(bench.problem, target=gpu, time_limit=None)
        layouts = {**bench.written, "ours": str(ours.offset)}
        if advice.offset not in layouts.values():
            layouts["recommended"] = advice.offset
        plans = {}
        for name, offset in layouts.items():
            named = msgspec.structs.replace(bench.problem, name=name)
            plans[name] = plan(named, gpu, ours if name == "ours" else offset)
        yield {"kernel": bench.name, "recommended": advice.offset, "layouts": layouts}, bench.program(plans)


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
    found = on_gpu.measured(folder, *on_gpu.compile_flags(), "-I", folder / "include", runs=_RUNS)
    for entry, texts in found:
        rows: dict[str, dict[str, Any]] = {}
        for line in "".join(texts).splitlines():
            _, name, time, registers, blocks, same, error = line.split("\t")
            new = {"microseconds": [], "registers": int(registers), "blocks": int(blocks)}
            row = rows.setdefault(name, {"layout": name, **new, "same_results": True, "error": error})
            row["microseconds"].append(float(time))
            row["same_results"] = row["same_results"] and same == "1"
        entry["times"] = list(rows.values())
        print(entry, flush=True)
    about = "Whole kernels with the layouts of their tiles: median times, run by run."
    on_gpu.write_record(folder / "bench.json", about, {"kernels": [entry for entry, _ in found]})


if __name__ == "__main__":
    on_gpu.command_line(__doc__, write, measure)
