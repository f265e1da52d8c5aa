"""`layoutopt fix` on kernels of others: what is changed, what refused, and both versions on a GPU.

    python3 scripts/measure/record_fixes.py --fix FOLDER OUT [--jobs N]   needs nvcc: diffs, both as cubins
    python3 scripts/measure/record_fixes.py --measure OUT                 on the GPU: outputs, counters, times
    python3 scripts/measure/record_fixes.py --write-docs

FOLDER holds sources and kernels.json: for each launch its `name`, where it is from (`repository`, `commit`,
`path`), the `file` and, as `options`, what `layoutopt fix` takes. Nothing of the sources is kept: the record,
tests/data/kernels/fixes.json, has names, launches, reasons and counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kernel_launches as collection
import numpy as np
import record_patched
from kernel_launches import PARTS, Launch

from layoutopt.kernels.launches import argument
from layoutopt.kernels.machine.launch import element_type, is_pointer, type_size
from layoutopt.kernels.read.files import chosen, compile_source, kernels

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests/data/kernels/fixes.json"
PAGE = ROOT / "docs/public-fixes.md"
SECONDS = 100
ELEMENTS = 1 << 22  # of each buffer
COMMAND = [sys.executable, "-c", 'from layoutopt.cli import run\nif __name__ == "__main__":\n    run()']


def fixed(folder: Path, out: Path, row: dict[str, Any]) -> dict[str, Any]:
    """One launch: its diff applied to a copy, both versions compiled."""
    told = {key: row[key] for key in ("name", "repository", "commit", "path", "entry", "block", "grid")}
    source = folder / row["file"]
    try:
        done = subprocess.run([*COMMAND, "fix", source, *row["options"], "--json"], capture_output=True,
                              text=True, timeout=SECONDS)  # fmt: skip
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return told | {"status": "out of time"}
    except ValueError:
        return told | {"status": "refused", "reasons": [told_of(done.stderr.strip())]}
    told["reasons"] = [told_of(one["reason"]) for one in found["arrays"] if one["reason"]]
    if not found["diff"]:
        return told | {"status": "refused"}
    told |= {"status": "fixed" if not found["after"]["bank_conflicts"] else "better"}
    told["predicted"] = {
        kind: {part: found[when][f"wavefronts_{part}"] for part in PARTS}
        | {"conflicts": found[when]["bank_conflicts"]}
        for kind, when in (("plain", "before"), ("patched", "after"))
    }
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(folder / Path(row["file"]).parts[0], Path(scratch, "copy")))
        for strip in map(str, range(12)):
            if not subprocess.run(["patch", f"-p{strip}", "-sf"], input=found["diff"], text=True, cwd=copy,
                                  capture_output=True).returncode:  # fmt: skip
                break
        changed = copy / Path(*Path(row["file"]).parts[1:])
        shared = told["shared"] = [row.get("shared", 0), found["shared_bytes"] or row.get("shared", 0)]
        listed = []
        for kind, path, size in zip(("plain", "patched"), (source, changed), shared, strict=True):
            cubin = out / f"{row['name']}.{kind}.cubin"
            cubin.write_bytes(compile_source(path, "sm_90", row["compiler"]))
            listed.append(launch_of(cubin, row, kind, size))
    return told | {"launches": listed}


def told_of(reason: str) -> str:
    """The line, the array and why; not the code that is quoted behind."""
    return ": ".join(reason.split(": ")[:3])[:160]


def launch_of(cubin: Path, row: dict[str, Any], kind: str, shared: int) -> Launch:
    """The launch, with buffers of random floats and of small integers."""
    program = chosen(kernels(cubin), row["entry"]).read()
    given: list[Any] = []
    for position, parameter in enumerate(program.parameters or ()):
        if parameter.pointer or is_pointer(parameter.type):
            dtype = element_type(parameter.type) or np.dtype(np.float32)
            given.append([f"{code(dtype)}*", ELEMENTS, "random" if dtype.kind == "f" else "below 64"])
            continue
        value = argument(row["arguments"].get(str(position), row["arguments"].get(parameter.name, 0)))
        size = type_size(parameter.type) or parameter.size
        floats = parameter.type in ("float", "double") or isinstance(value, float)
        given.append([f"{'f' if floats else 'i'}{8 * size}", value])
    block, grid = (tuple(row[name]) for name in ("block", "grid"))
    return Launch(f"{row['name']} {kind}", cubin, program.name, block, grid, shared, given)


def code(dtype: np.dtype[Any]) -> str:
    return f"{'i' if dtype.kind == 'b' else dtype.kind}{8 * dtype.itemsize}"


def fix(folder: Path, out: Path, jobs: int) -> None:
    rows = json.loads((folder / "kernels.json").read_text())
    with ThreadPoolExecutor(jobs) as workers:
        found = list(workers.map(lambda row: fixed(folder, out, row), rows))
    collection.write_list(out, [launch for row in found for launch in row.pop("launches", ())])
    (out / "kernels.json").write_text(json.dumps(found, indent=1))


def measure(out: Path) -> None:
    """Measure both versions, put what is refused beside them."""
    every = json.loads((out / "kernels.json").read_text())
    record_patched.measure(out)
    measured = json.loads((out / "patched.json").read_text())
    measured["about"] = "`layoutopt fix` on public kernels: both versions, three launches each."
    ran = {row["name"]: row for row in measured["kernels"]}
    measured["kernels"] = [ran.get(row["name"], row) for row in every]
    (out / "fixes.json").write_text(json.dumps(measured, indent=1) + "\n")


def summary(rows: list[dict[str, Any]]) -> str:
    """The sentence of the page."""
    changed = [row for row in rows if "predicted" in row]
    ran = [row for row in changed if row.get("nanoseconds")]
    as_told = [
        row for row in ran
        if all(one == row["predicted"][kind] for kind, each in row["counted"].items() for one in each)
    ]  # fmt: skip
    ratios = [min(row["nanoseconds"]["patched"]) / min(row["nanoseconds"]["plain"]) for row in ran]
    counts = {status: sum(row["status"] == status for row in rows) for status in ("fixed", "better")}
    same = sum(row["outputs_equal"] is True for row in ran)
    places = len({row["repository"] for row in rows})
    before, after = (
        sum(row["predicted"][kind][part] for row in changed for part in PARTS)
        for kind in ("plain", "patched")
    )
    text = (
        f"{len(rows)} launches of {places} repositories: {counts['fixed']} are changed to have no conflicts, "
        f"{counts['better']} to have fewer, {len(rows) - len(changed)} are not changed. What is changed took "
        f"{before:,} wavefronts and takes {after:,}."
    )
    if not ran:
        return text
    return (
        f"{text} {len(ran)} changed ones ran on an H200: {same} write the same bytes, {len(as_told)} have "
        f"all counters as predicted, and the time is {statistics.median(ratios):.2f} of that before in the "
        f"median; {sum(ratio > 1.02 for ratio in ratios)} take over 2 % longer."
    )


def page(rows: list[dict[str, Any]]) -> str:
    """The table of all launches."""
    lines = [
        "| kernel | from | | wavefronts | time | why not, or not more |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        times = row.get("nanoseconds", {})
        took = f"{min(times['patched']) / min(times['plain']):.2f}" if times else ""
        totals = [sum(row["predicted"][kind][part] for part in PARTS) for kind in row.get("predicted", ())]
        why = (row.get("reasons") or [""])[0].replace("|", "/")[:160]
        source = f"[{row['repository']}](https://github.com/{row['repository']}/blob/{row['commit']}/{row['path']})"
        spent = " to ".join(f"{total:,}" for total in totals)
        lines.append(f"| {row['name']} | {source} | {row['status']} | {spent} | {took} | {why} |")
    return "\n".join(lines)


def write_docs() -> None:
    record = json.loads(RECORD.read_text())
    head = "# Public kernels, fixed\n\n<!-- scripts/measure/record_fixes.py --write-docs -->\n\n"
    PAGE.write_text(f"{head}{summary(record['kernels'])}\n\n{page(record['kernels'])}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fix", nargs=2, type=Path, metavar=("FOLDER", "OUT"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--measure", type=Path, metavar="OUT")
    parser.add_argument("--write-docs", action="store_true")
    asked = parser.parse_args()
    if asked.fix:
        asked.fix[1].mkdir(exist_ok=True)
        fix(asked.fix[0], asked.fix[1], asked.jobs)
    if asked.measure:
        measure(asked.measure)
    if asked.write_docs:
        write_docs()
