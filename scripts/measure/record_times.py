"""Time the layouts that one chooses from, every problem of the catalogue, on a GPU.

    python scripts/measure/record_times.py --write FOLDER     here: compare, and write one program a problem
    python scripts/measure/record_times.py --measure FOLDER   on the GPU: compile, run: times.json

The published layout, ours, the best pad, the best XOR, row-major and the nearest edit, in one program a
problem (`layoutopt.codegen.passes`), all programs twice. The second step needs nvcc, numpy and msgspec; no
solver.
`tests/data/h200_times.json` is what it wrote; `scripts/measure/fit_time.py` fits the estimate to it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import on_gpu

from layoutopt.errors import LayoutError, ProblemFileError
from layoutopt.hardware import machine

_TIMES = ("once", "once_together", "kept", "kept_together")
_FAMILIES = ("published", "all", "pad", "xor", "none", "edit")


def programs() -> Iterator[tuple[dict[str, Any], str]]:
    """The layouts that one chooses from, of every problem."""
    from layoutopt.codegen.languages import run_plan
    from layoutopt.codegen.passes import program
    from layoutopt.files.catalogue import of_one_tile
    from layoutopt.files.file import load
    from layoutopt.hardware.devices import device
    from layoutopt.study.compare import compare

    gpu = device("sm_90")
    for name, path in of_one_tile().items():
        problem = load(path)
        try:
            comparison = compare(problem, target=gpu, time_limit=10)
        except ProblemFileError as error:  # values known only at run time
            print(f"{name}: {error}", file=sys.stderr)
            continue
        found: dict[str, list[str]] = {}
        for row in comparison.rows:
            if row.family in _FAMILIES and row.offset and row.wavefronts and "lookup" not in row.offset:
                found.setdefault(row.offset, []).append(row.family)
        plans, rows = [], []
        for offset, families in found.items():
            named = msgspec.structs.replace(problem, name=f"row {len(plans)}", target=gpu.name)
            try:
                plans.append(run_plan(named, gpu, offset))
            except LayoutError as error:
                print(f"{name} {offset}: {error}", file=sys.stderr)
                continue
            rows.append({"layouts": families, "offset": offset})
        yield {"problem": f"{name}.json", "rows": rows}, program(plans)


def write(folder: Path) -> None:
    on_gpu.write_programs(folder, programs())


def measure(folder: Path) -> None:
    measured = on_gpu.measured(folder, runs=2, seconds=15)
    for entry, texts in measured:
        for again, printed in enumerate(texts):
            for found in machine.parse_times(printed):
                times = msgspec.to_builtins(found)
                row = entry["rows"][times.pop("row")]
                row |= {"again": [times[name] for name in _TIMES]} if again else times
        missing = [row["offset"] for row in entry["rows"] if not {"once", "again"} <= row.keys()]
        if missing:
            print(f"{entry['problem']}: no times of {missing}", flush=True)
    about = (
        "The layouts to choose from, every problem of the catalogue: cycles of one pass of a block over all "
        "accesses, computing its addresses in every pass (once) or keeping what does not change (kept), by "
        "one block alone; of a multiprocessor for one pass where as many blocks run as fit (together); and "
        "the same again, later."
    )
    on_gpu.write_record(folder / "times.json", about, {"problems": [entry for entry, _ in measured]})


if __name__ == "__main__":
    on_gpu.command_line(__doc__, write, measure)
