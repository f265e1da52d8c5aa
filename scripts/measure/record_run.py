"""Run every problem of the catalogue on a GPU, our layout and the published one, under the profiler.

    python scripts/measure/record_run.py --write FOLDER     here: solve, and write one program a layout
    python scripts/measure/record_run.py --measure FOLDER   on the GPU: compile, run, profile: measured.json

The second step needs nvcc and ncu, numpy and msgspec; no solver. All programs are linked into one, so
that the profiler starts once. `tests/data/h200_runs.json` is what it wrote; tests compare it with what
the engine predicts today.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import on_gpu

from layoutopt.errors import LayoutError
from layoutopt.hardware import machine

_PROFILES = 3


def write(folder: Path) -> None:
    from layoutopt.codegen.languages import run_plan
    from layoutopt.codegen.selftest import program
    from layoutopt.expressions.grammar import to_text
    from layoutopt.files.catalogue import of_one_tile
    from layoutopt.files.file import load
    from layoutopt.hardware.devices import counters, device
    from layoutopt.layout.layout import Layout
    from layoutopt.search.solve import solve

    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for name, path in of_one_tile().items():
        problem = load(path)
        gpu = device("sm_90")
        ours = solve(problem, time_limit=10)
        # A layout solved for another GPU is predicted for this one too.
        answers = {"ours": ours if ours.target == gpu.name else str(ours.offset)}
        if problem.published is not None:
            answers["published"] = problem.published.offset
        for kind, answer in answers.items():
            named = msgspec.structs.replace(problem, name=f"{problem.name} {kind}")
            try:
                planned = run_plan(named, gpu, answer)
                text = program(planned)
            except LayoutError as error:
                print(f"{path.stem} {kind}: {error}", file=sys.stderr)
                continue
            number = f"{len(entries):03}"
            (folder / f"{number}.cu").write_text(text)
            layout = msgspec.to_builtins(planned.layout) if isinstance(planned.layout, Layout) else None
            entries.append(
                {
                    "problem": f"{name}.json",
                    "layout": kind,
                    "offset": to_text(planned.offset),
                    "digits": layout,
                    "bytes": planned.bytes,
                    "accesses": [
                        {
                            "name": a.access.name,
                            "op": a.access.op,
                            "predicted": counters(
                                gpu, a.lanes.operation, a.report.wavefronts, a.report.bank_conflicts
                            ),
                        }
                        for a in planned.accesses
                    ],
                }
            )
    (folder / "entries.json").write_text(json.dumps(entries))
    print(f"{len(entries)} programs, {sum(len(e['accesses']) for e in entries)} accesses")


def measure(folder: Path) -> None:
    entries = json.loads((folder / "entries.json").read_text())
    flags = on_gpu.compile_flags()
    build = Path("/tmp/layoutopt_record_run")
    build.mkdir(exist_ok=True)
    start = time.monotonic()

    def compile_one(number: int) -> Path:
        out = build / f"{number:03}.o"
        name = f"-Dmain=main_{number:03}"
        on_gpu.run("nvcc", *flags, name, "-c", "-o", out, folder / f"{number:03}.cu")
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
    program = build / "all"
    on_gpu.run("nvcc", *flags, "-o", program, driver, *objects)
    print(f"compiled in {time.monotonic() - start:.0f} s", flush=True)
    accesses = sum(len(e["accesses"]) for e in entries)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    parts = re.split(r"^program \d+\n", done.stdout, flags=re.M)[1:]
    print(f"ran in {time.monotonic() - start:.0f} s, status {done.returncode}", done.stderr[:500], flush=True)
    # The profiler replays a kernel for every few counters, and now and then a replay counts one more.
    read, *again = [machine.run_counters(program, accesses) for _ in range(_PROFILES)]
    print(f"profiled in {time.monotonic() - start:.0f} s", flush=True)
    at = wrong = differ = 0
    for entry, part in zip(entries, parts, strict=True):
        entry["distinct"], values = machine.parse_values(part)
        for access, (right, cycles) in zip(entry["accesses"], values, strict=True):
            access |= {"values": "right" if right else "WRONG", "cycles": cycles}
            if read is not None:
                access["measured"] = machine.compared(access["predicted"], read[at])
                if access["measured"] != access["predicted"]:
                    differ += 1
                    access["measured_again"] = [
                        machine.compared(access["predicted"], other[at])
                        for other in again
                        if other is not None
                    ]
                    print(entry["problem"], entry["layout"], access, flush=True)
            wrong += not right
            if not right:
                print("WRONG", entry["problem"], entry["layout"], access["name"], flush=True)
            at += 1
    head = {
        "about": "Every problem of the catalogue on a GPU: values, cycles of a block for one pass of each "
        "access, and the profiler's counters beside those predicted.",
        "provenance": on_gpu.provenance("record_run.py"),
    }
    (folder / "measured.json").write_text(on_gpu.record(head, "runs", entries))
    print(f"{accesses} accesses: {wrong} with wrong values, {differ} with other counters than predicted")


if __name__ == "__main__":
    on_gpu.write_or_measure(__doc__, write, measure)
