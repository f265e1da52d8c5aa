"""Public kernels and the profiler: record an H200's counters, compare what `check` predicts.

    python3 scripts/measure/record_public.py --measure FOLDER OUT        needs a GPU and ncu
    python3 scripts/measure/record_public.py --take FILE                 what was measured anew
    python3 scripts/measure/record_public.py --compare FOLDER            needs nvdisasm
    python3 scripts/measure/record_public.py --write-docs

FOLDER holds cubins and launches.json: for each kernel the fields of `kernel_launches.Launch`, and where it
is from (`repository`, `commit`, `file`), what C++ calls it (`entry`) and whether its addresses, lanes or
branches come from data (`data_dependent`). Nothing of the sources is kept: tests/data/kernels/public.json
holds names, launches and counts. The first step writes the counters of three launches each to
OUT/public.json; the third puts beside them what is predicted from the machine code, without and with the
contents of the buffers, and its processor time.
"""

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kernel_launches
import on_gpu
from kernel_launches import Launch
from on_gpu import COUNTERS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs/kernels.md"
PAGE = ROOT / "docs/public-kernels.md"
MARK = "<!-- public kernels: scripts/measure/record_public.py --write-docs -->"
RECORD = ROOT / "tests/data/kernels/public.json"
SECONDS = 60.0
OURS = tuple(COUNTERS)
# What a row says of where a kernel is from and how it is launched.
ORIGIN = ("repository", "commit", "file", "entry", "block", "grid", "shared", "data_dependent")


def digest(kernel: Launch) -> str:
    return kernel_launches.code_digest(kernel.source.read_bytes(), kernel.symbol)


# ------------------------------------------------------------------ measure


def measure(folder: Path, out: Path) -> None:
    records = []
    given = {row["name"]: row for row in json.loads((folder / "launches.json").read_text())}
    codes = {kernel.name: digest(kernel) for kernel in kernel_launches.listed(folder)}
    for name, seen in kernel_launches.profile(folder, COUNTERS).items():
        told = {key: given[name][key] for key in ORIGIN if given[name].get(key)}
        what = {"error": seen} if isinstance(seen, str) else {"counters": counters(seen)}
        records.append({"name": name, **told, "code": codes[name], **what})
    about = "Nsight Compute's counters of public kernels, three launches each."
    on_gpu.write_record(out / "public.json", about, {"kernels": records})
    print(f"{len(records)} kernels, {sum('error' in r for r in records)} with errors")


def counters(launches: Sequence[dict[str, int]]) -> dict[str, int | list[int]]:
    """By our name of a counter its value, or those of all repetitions where they differ."""
    seen = {ours: [launch[ours] for launch in launches] for ours in OURS}
    return {ours: some[0] if len(set(some)) == 1 else some for ours, some in seen.items()}


# ------------------------------------------------------------------ compare


def call(kernel: Launch, data: bool) -> Any:
    """The launch as `check` takes it, with or without the contents of the buffers."""
    numbers: dict[str, int | float | str] = {}
    buffers = {}
    for k, argument in enumerate(kernel.args):
        kind, value = argument[0], argument[1]
        if kind == "struct":
            numbers[str(k)] = int.from_bytes(kernel_launches.packed(argument)[0], "little")
        elif not kind.endswith("*"):
            numbers[str(k)] = value
        elif data:
            buffers[str(k)] = kernel_launches.contents(argument)
        else:
            numbers[str(k)] = "pointer"
    return kernel_launches.called(kernel, arguments=numbers, buffers=buffers)


def predicted(program: Any, kernel: Launch, data: bool) -> dict[str, Any]:
    """What `check` says of a launch."""
    from layoutopt.errors import LayoutoptError
    from layoutopt.ground.budget import OutOfTime, deadline
    from layoutopt.hardware.devices import device
    from layoutopt.kernels.machine.evaluate import evaluate
    from layoutopt.kernels.question.summary import summary

    try:
        with deadline(SECONDS):
            found = summary(evaluate(program, call(kernel, data), device("sm_90")))
    except OutOfTime:
        return {"refused": f"no end after {SECONDS:.0f} s"}
    except LayoutoptError as error:
        return {"refused": _without_folders(str(error))}
    why = {} if found.certain else {"why": _without_folders(found.unknown[0])}
    return {"certain": found.certain, **{one: found.totals[one] for one in OURS}, **why}


def _without_folders(text: str) -> str:
    """A reason, of which the places are files without the folders of this machine."""
    return re.sub(r"\((?:[^()]*/)?([^/()]+:\d+)\)", r"(\1)", text)[:160]


def take(file: Path) -> None:
    """Put launches that were measured anew into the record."""
    record, new = (json.loads(path.read_text()) for path in (RECORD, file))
    rows = {row["name"]: row for row in [*record["kernels"], *new["kernels"]]}
    RECORD.write_text(on_gpu.text_of(record | {"kernels": list(rows.values())}))


def compare(folder: Path) -> None:
    """Write what is predicted into the record, and print where it is not what was counted."""
    from layoutopt.kernels.read.files import kernels

    record = json.loads(RECORD.read_text())
    rows = {row["name"]: row for row in record["kernels"]}
    for kernel in kernel_launches.listed(folder):
        row = rows.get(kernel.name)
        if row is None or row["code"] != digest(kernel):
            print(f"{kernel.name}: not measured, or other machine code", flush=True)
            continue
        program = next(one for one in kernels(kernel.source) if one.name == kernel.symbol).read()
        row["predicted"] = predicted(program, kernel, False)
        started = time.process_time()
        row["with_data"] = predicted(program, kernel, True)
        row["seconds"] = round(time.process_time() - started, 2)
        for found in (row["predicted"], row["with_data"]):
            if "counters" not in row or "refused" in found or not exact(row, found):
                print(f"{kernel.name}: {found}, counted {row.get('counters')}", flush=True)
    RECORD.write_text(on_gpu.text_of(record))


# ------------------------------------------------------------------ documentation


def summary_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table by collection, and the launches that are not certain even with data."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in _compared(rows):
        groups.setdefault(row["repository"], []).append(row)
    head = "| from | launches | with conflicts | certain | certain with data | exact of the certain |"
    lines = [head, "| --- | --- | --- | --- | --- | --- |"]
    totals = [0] * 5
    for name, found in groups.items():
        numbers = [len(found), *map(sum, zip(*map(_kinds, found), strict=True))]
        totals = [a + b for a, b in zip(totals, numbers, strict=True)]
        lines.append(_table_line(name, numbers))
    lines.append(_table_line("all", totals))
    left = [row for found in groups.values() for row in found if not _kinds(row)[2]]
    times = sorted(row["seconds"] for row in rows if "seconds" in row)
    median = times[len(times) // 2]
    took = f"Processor time of a launch, once it is read: {median} s (median), {times[-1]} s at most."
    return [*lines, "", took, "", *(f"- {row['name']}: {_reason(row)}" for row in left)]


def _compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "predicted" in row and "counters" in row]


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Every launch: where it is from, how it is launched, what the profiler counts, what is certain."""
    lines = [
        "# Public kernels",
        "",
        "What `scripts/measure/record_public.py` compared",
        "([how](kernels.md#public-kernels-against-the-profiler)): wavefronts and bank conflicts of loads,",
        "stores and atomics as an H200 counts them, the fewest where its repetitions differ, and whether",
        "`check` is certain of them, by the launch or with the contents of the buffers. All are compiled for",
        "sm_90: CUDA sources with `-O3`, those in Python by Triton.",
    ]
    repository = None
    for row in _compared(rows):
        if row["repository"] != repository:
            repository = row["repository"]
            lines += ["", f"## {repository}", "", f"At {row['commit'][:12]}.", ""]
            lines += ["| file | kernel | block | grid | wavefronts | conflicts | certain |"]
            lines += ["| --- | --- | --- | --- | ---: | ---: | --- |"]
        block, grid = (" x ".join(map(str, row[key])) for key in ("block", "grid"))
        fewest = {one: min(n) if isinstance(n, list) else n for one, n in row["counters"].items()}
        counts = (
            f"{sum(n for one, n in fewest.items() if one.startswith(part)):,}"
            for part in ("wavefronts", "bank_conflicts")
        )
        alone, known = (row[key].get("certain") for key in ("predicted", "with_data"))
        sure = "yes" if alone else "with data" if known else "no"
        cells = (row["file"], f"`{row['entry']}`", block, grid, *counts, sure)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _table_line(title: str, numbers: Sequence[int]) -> str:
    return f"| {title} | " + " | ".join(map(str, numbers)) + " |"


def _kinds(row: dict[str, Any]) -> tuple[int, int, int, int]:
    """1 or 0 each: has conflicts, is certain, is certain at least with data, and what is certain is exact."""
    none = 0, [0] * kernel_launches.REPEAT
    conflicts = any(row["counters"][one] not in none for one in OURS if "conflicts" in one)
    alone, known = row["predicted"], row["with_data"]
    sure = [one for one in (alone, known) if one.get("certain")]
    right = bool(sure) and all(exact(row, one) for one in sure)
    return conflicts, bool(alone.get("certain")), bool(sure), right


def exact(row: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether every counter is as predicted, except those that differ between the repetitions."""
    return all(isinstance(row["counters"][one], list) or found[one] == row["counters"][one] for one in OURS)


def _reason(row: dict[str, Any]) -> str:
    found = row["with_data"]
    why = re.sub(r" \([^()]*:\d+\)", "", str(found.get("why", found.get("refused", ""))))
    return why.split(": lanes")[0].split(": both")[0].split(": of rounds")[0]


def write_docs() -> None:
    """Put the table into docs/kernels.md, between its marks."""
    rows = json.loads(RECORD.read_text())["kernels"]
    PAGE.write_text(page(rows))
    on_gpu.put(DOCS, MARK, "\n".join(summary_lines(rows)))


if __name__ == "__main__":
    on_gpu.command_line(__doc__, measure, take, compare, write_docs)
