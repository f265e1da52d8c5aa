"""Run layouts on a GPU, under the profiler: of the catalogue, ours and the published; of instructions chosen.

    python scripts/measure/record_run.py --write FOLDER         here: solve the catalogue, a program a layout
    python scripts/measure/record_run.py --write-tiles FOLDER   here: ten tiles with the instructions of their
                                                                files, and with those that are chosen
    python scripts/measure/record_run.py --measure FOLDER       on the GPU: compile, run, profile: measured.json

The last step needs nvcc and ncu, numpy and msgspec; no solver. All programs are linked into one, so that the
profiler starts once. `tests/data/h200_runs.json` and `h200_instructions.json` are what it wrote; tests compare
them with what the engine predicts today.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import on_gpu

from layoutopt.errors import LayoutError
from layoutopt.hardware import machine

if TYPE_CHECKING:
    from layoutopt.problems.answer import Result
    from layoutopt.problems.types import Problem

TARGET = "sm_90"
_PROFILES = 3
ABOUT = "Values, cycles of a block for one pass of each access, and the profiler's counters beside those predicted."
FILL = "fill: store 16 [tid // 8 + 16*i, tid % 8 * 8]; i<4"
# As tests/written.py reads them; `instructions` are free, or free over these loops.
TILES = {
    "sgemm A, columns of a row-major tile": """128x8 f32, 256 threads
        fill: store 4 [tid // 8 + 32*i, tid % 8]; i<4
        read: load 4 [tid // 16 * 8 + i, k]; k<8, i<8; instructions i""",
    "sgemm B, rows": """8x128 f32, 256 threads
        fill: store 4 [tid // 128 + 2*i, tid % 128]; i<4
        read: load 4 [k, tid % 16 * 8 + j]; k<8, j<8; instructions j""",
    "dgemm A": """64x16 f64, 256 threads
        fill: store 8 [tid // 16 + 16*i, tid % 16]; i<4
        read: load 8 [tid // 16 * 4 + i, k]; k<16, i<4; instructions i""",
    "mma A": f"""64x64 f16, 128 threads
        {FILL}
        a: load 4 [warp*16 + lane // 4 + 8*i, 16*k + lane % 4 * 2 + 8*j]; k<4, j<2, i<2; instructions free""",
    "mma B, stored by rows of k": f"""64x64 f16, 128 threads
        {FILL}
        b: load 2 [16*k + lane % 4 * 2 + h + 8*j, 8*n + lane // 4]; k<4, n<8, j<2, h<2; instructions free""",
    "attention, P from accumulators to rows": """64x64 f16, 128 threads
        p: store 2 [warp*16 + lane // 4 + 8*i, 8*n + lane % 4 * 2 + h]; n<8, i<2, h<2; instructions free
        rows: load 2 [tid // 8 + 16*i, tid % 8 * 8 + j]; i<4, j<8; instructions free""",
    "transpose of words": """32x32 f32, 256 threads
        w: store 4 [tid // 32 + 8*i, tid % 32]; i<4; instructions free
        r: load 4 [tid % 32, tid // 32 + 8*i]; i<4; instructions free""",
    "transpose of halves": """64x64 f16, 256 threads
        w: store 2 [tid // 8 + 32*i, tid % 8 * 8 + j]; i<2, j<8; instructions free
        r: load 2 [tid % 8 * 8 + j, tid // 8 + 32*i]; i<2, j<8; instructions free""",
    "transpose of doubles": """32x32 f64, 256 threads
        w: store 8 [tid // 16 + 16*i, tid % 16 * 2 + j]; i<2, j<2; instructions free
        r: load 8 [tid % 16 * 2 + j, tid // 16 + 16*i]; i<2, j<2; instructions free""",
    "transpose of three dimensions": """8x16x32 f32, 128 threads
        w: store 4 [i, tid // 8, tid % 8 * 4 + j]; i<8, j<4; instructions free
        r: load 4 [tid % 8, tid // 8, i]; i<32; instructions free""",
}


def write(folder: Path) -> None:
    on_gpu.write_programs(folder, programs())


def write_tiles(folder: Path) -> None:
    on_gpu.write_programs(folder, tiles())


def programs() -> Iterator[tuple[dict[str, Any], str]]:
    """Ours and the published layout of every problem: what is predicted, and a program."""
    from layoutopt import solve
    from layoutopt.files.catalogue import of_one_tile
    from layoutopt.files.file import load

    for name, path in of_one_tile().items():
        problem = load(path)
        ours = solve(problem, time_limit=10)
        # A layout solved for another GPU is predicted for this one too.
        answers = {"ours": ours if ours.target == TARGET else str(ours.offset)}
        if problem.published is not None:
            answers["published"] = problem.published.offset
        for kind, answer in answers.items():
            try:
                yield predicted(problem, answer, kind, {"problem": f"{name}.json", "layout": kind})
            except LayoutError as error:
                print(f"{path.stem} {kind}: {error}", file=sys.stderr)


def tiles() -> Iterator[tuple[dict[str, Any], str]]:
    """Each tile with the instructions of its file, and with those that are chosen."""
    from written import data_of

    from layoutopt import problem, solve

    for name, text in TILES.items():
        data = data_of(text, name=name.replace(",", ""), target=TARGET)
        for access in data["accesses"]:
            if access.get("instructions", "free") != "free":
                access["instructions"] = [access["instructions"]]
        asked = problem(data)
        plain = tuple(msgspec.structs.replace(a, instructions=None) for a in asked.accesses)
        for kind, one in (("given", msgspec.structs.replace(asked, accesses=plain)), ("free", asked)):
            answer = solve(one, time_limit=20)
            told = {"problem": name, "instructions": kind, "offset": str(answer.offset)}
            yield predicted(one, answer, kind, told)


def predicted(
    problem: Problem, answer: Result | str, kind: str, told: dict[str, str]
) -> tuple[dict[str, Any], str]:
    """What is predicted of a layout, beside what is told of it, and the program that tests it."""
    from layoutopt.codegen.languages import run_plan
    from layoutopt.codegen.selftest import program
    from layoutopt.expressions.grammar import to_text
    from layoutopt.hardware.devices import counters, device
    from layoutopt.layout.layout import Layout

    gpu = device(TARGET)
    planned = run_plan(msgspec.structs.replace(problem, name=f"{problem.name} {kind}"), gpu, answer)
    layout = msgspec.to_builtins(planned.layout) if isinstance(planned.layout, Layout) else None
    entry = {"offset": to_text(planned.offset), **told, "digits": layout, "bytes": planned.bytes}
    accesses = []
    for a in planned.accesses:
        report = (a.report.wavefronts, a.report.bank_conflicts)
        what = {"name": a.access.name, "op": a.access.op, "bytes": a.access.bytes}
        accesses.append({**what, "predicted": counters(gpu, a.lanes.operation, *report)})
    return {**entry, "accesses": accesses}, program(planned)


def measure(folder: Path) -> None:
    entries = on_gpu.entries(folder)
    build = Path("/tmp/layoutopt_record_run")
    build.mkdir(exist_ok=True)

    def compile_one(number: int) -> Path:
        out, name = build / f"{number:03}.o", f"-Dmain=main_{number:03}"
        on_gpu.run("nvcc", *on_gpu.compile_flags(), name, "-c", "-o", out, folder / f"{number:03}.cu")
        return out

    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(compile_one, range(len(entries))))
    names = [f"main_{n:03}" for n in range(len(entries))]
    driver = build / "driver.cu"
    driver.write_text(
        "#include <cstdio>\n"
        + "".join(f"int {n}(int, char**);\n" for n in names)
        + "int main(int c, char** v) { int wrong = 0;\n"
        + "".join(f'std::printf("program {k}\\n"); wrong += {n}(c, v);\n' for k, n in enumerate(names))
        + "return wrong != 0; }\n"
    )
    program = on_gpu.built(driver, *on_gpu.compile_flags(), *objects)
    parts = re.split(r"^program \d+\n", on_gpu.printed(program, timeout=300), flags=re.M)[1:]
    accesses = [access for entry in entries for access in entry["accesses"]]
    values = []
    for entry, part in zip(entries, parts, strict=True):
        entry["distinct"], told = machine.parse_values(part)
        values += told
    # The profiler replays a kernel for every few counters, and now and then a replay counts one more.
    profiles = [machine.run_counters(program, len(accesses)) for _ in range(_PROFILES)]
    for number, (access, (right, cycles)) in enumerate(zip(accesses, values, strict=True)):
        read = [machine.compared(access["predicted"], one[number]) for one in profiles if one is not None]
        access |= {"values": "right" if right else "WRONG", "cycles": cycles}
        if read:
            access["measured"] = read[0]
        if read and read[0] != access["predicted"]:
            access["measured_again"] = read[1:]
        if not right or "measured_again" in access:
            print(access, flush=True)
    on_gpu.write_record(folder / "measured.json", ABOUT, {"runs": entries})
    wrong, differ = sum(not right for right, _ in values), sum("measured_again" in a for a in accesses)
    print(f"{len(accesses)} accesses: {wrong} with wrong values, {differ} with other counters than predicted")


if __name__ == "__main__":
    on_gpu.command_line(__doc__, write, write_tiles, measure)
