"""Programs, what `layoutopt capture` records of them, and the profiler: do launches and counters agree?

    python3 scripts/measure/record_applications.py --measure FOLDER OUT
    python3 scripts/measure/record_applications.py --record OUT/applications.json ...
    python3 scripts/measure/record_applications.py --write-docs

FOLDER/programs.json lists programs: `name`, `of` (where it is from), `command` (run in FOLDER), perhaps
`data` (bytes of --data), `expected` (launches, where the profiler cannot tell), `first` (the profiler counts
so many launches only), `most_s` (seconds that the profiler may take) and `records_itself`. The first step
needs a GPU and ncu: it runs each alone, recorded, and under the profiler, audits what was recorded, and
writes OUT/applications.json after each program. The second keeps what the page needs in
tests/data/launches/applications.json. Nothing of the sources is kept.
"""

import collections
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import on_gpu
from on_gpu import COUNTERS, PARTS, watched

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests/data/launches/applications.json"
PAGE = ROOT / "docs/applications.md"
MARK = "<!-- programs: scripts/measure/record_applications.py --write-docs -->"
LONGEST_S, SECONDS_A_RUN = 600, 100
WAVES = len(PARTS)  # wavefronts of loads, stores and atomics come first of the counters
Key = tuple[str, tuple[int, ...], tuple[int, ...]]


def measure(folder: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    folder, out = folder.absolute(), out.absolute()
    found: list[dict[str, Any]] = []
    waiting: list[Any] = []

    def write() -> None:
        about = "Programs, alone, recorded and under the profiler."
        on_gpu.write_record(out / "applications.json", about, {"programs": found})

    with ThreadPoolExecutor(4) as pool:
        for program in json.loads((folder / "programs.json").read_text()):
            one = {key: program[key] for key in ("name", "of", "expected", "first") if key in program}
            found.append(one)
            recording = out / program["name"]
            alone = watched(program["command"], LONGEST_S, folder)
            data = ["--data", program["data"]] if "data" in program else []
            command = ["layoutopt", "capture", "-o", recording, *data, "--", *program["command"]]
            if program.get("records_itself"):  # by layoutopt.capture
                command = [*program["command"], recording]
            recorded = watched(command, LONGEST_S, folder)
            one |= {"code": recorded.code, "alone_s": alone.seconds, "recorded_s": recorded.seconds}
            said = [line for line in recorded.text.splitlines() if "record" in line or "distinct" in line]
            one["spent_us"] = sum(map(float, re.findall(r"([\d.]+) us a launch", "\n".join(said))))
            waiting.append(pool.submit(audited, recording, one))
            if "expected" not in program:
                one["profiled"] = profiled(program, folder, out)
            took = one.get("profiled", {}).get("seconds")
            print(program["name"], alone[:2], recorded[:2], said, took, flush=True)
            write()
        for answer in waiting:
            answer.result()
    write()


def audited(recording: Path, one: dict[str, Any]) -> None:
    """What `check` says of a recording; seconds, its report, and launches by kernel and shape."""
    command = ["layoutopt", "check", recording, "--no-fix"]
    done = watched([*command, "--json"], 200)
    one["audit_s"] = done.seconds
    try:
        data = json.loads(done.out)
    except ValueError:
        one["audit"] = done.text[-400:]
        return
    one |= {key: data[key] for key in ("launches", "not_recorded", "missed", "wavefronts", "bank_conflicts")}
    one["distinct"] = len(data["kernels"])
    one["kernels"] = [
        {
            "name": kernel["name"], "block": kernel["block"], "grid": kernel["grid"],
            "launches": kernel["launches"], "certain": kernel["certain"],
            "totals": [kernel["totals"][ours] for ours in COUNTERS], "unknown": kernel.get("unknown", [])[:2],
        }
        if "totals" in kernel
        else {"name": kernel["entry"], "launches": kernel["launches"], "failure": kernel["failure"]}
        for kernel in data["kernels"]
    ]  # fmt: skip
    said = watched(command, SECONDS_A_RUN).out
    line = r"^  (\S.*wavefronts in shared memory are bank conflicts.*)$"
    one["lines"] = re.findall(line, said, re.MULTILINE)


def profiled(program: dict[str, Any], folder: Path, out: Path) -> dict[str, Any]:
    """The profiler's counters, by kernel and shape: how many launches had which."""
    log = out / "ncu.csv"
    log.unlink(missing_ok=True)
    most = ["--launch-count", program["first"]] if "first" in program else []
    all_of = ("--print-kernel-base", "mangled", "--target-processes", "all", "--log-file", log)
    command = [*on_gpu.profiler(COUNTERS, *most, *all_of), *program["command"]]
    done = watched(command, program.get("most_s", SECONDS_A_RUN), folder)
    told = log.read_text(errors="replace") if log.exists() else ""
    groups: dict[Key, collections.Counter[tuple[int, ...]]] = {}
    for *key, counts in (seen := on_gpu.launched(told, COUNTERS)):
        groups.setdefault((*key,), collections.Counter())[(*counts.values(),)] += 1
    listed = [
        {"name": name, "block": block, "grid": grid, "counters": [[list(c), n] for c, n in counts.items()]}
        for (name, block, grid), counts in groups.items()
    ]
    error = {} if seen else {"error": (done.text + told)[-400:]}
    return {"seconds": done.seconds, "code": done.code, "launches": len(seen), "kernels": listed, **error}


# ------------------------------------------------------------------ compare


def agreement(one: dict[str, Any]) -> dict[str, Any]:
    """Kernels and shapes by how counters agree, and wavefronts of those called certain: ours, counted."""
    own: dict[Key, list[dict[str, Any]]] = {}
    failed = {kernel["name"] for kernel in one["kernels"] if "failure" in kernel}
    for kernel in one["kernels"]:
        if "failure" not in kernel:
            own.setdefault((kernel["name"], (*kernel["block"],), (*kernel["grid"],)), []).append(kernel)
    verdicts: collections.Counter[str] = collections.Counter()
    ours = counted = 0
    for seen in one["profiled"]["kernels"]:
        known = own.get((seen["name"], (*seen["block"],), (*seen["grid"],)), [])
        if known:
            verdict = _verdict(seen["counters"], known, "first" in one)
        else:
            verdict = "not evaluated" if seen["name"] in failed else "not recorded"
        verdicts[verdict] += 1
        if verdict in ("equal", "varies") and "first" not in one:
            ours += sum(kernel["launches"] * sum(kernel["totals"][:WAVES]) for kernel in known)
            counted += sum(times * sum(counts[:WAVES]) for counts, times in seen["counters"])
    return {"verdicts": dict(verdicts), "wavefronts": [ours, counted]}


def _verdict(seen: list[Any], known: list[dict[str, Any]], some: bool) -> str:
    """Of one kernel and shape; `some`: the profiler did not count all launches."""
    if not all(kernel["certain"] for kernel in known):
        return "uncertain"
    if sum(kernel["launches"] for kernel in known) != sum(times for _, times in seen) and not some:
        return "other launches"
    told = {tuple(kernel["totals"]) for kernel in known}
    if {tuple(counts) for counts, _ in seen} == told:
        return "equal"
    least = [min(counts[k] for counts, _ in seen) for k in range(len(COUNTERS))]
    ours = [min(totals[k] for totals in told) for k in range(len(COUNTERS))]
    # More launches than kinds of them, and what differs is beyond ours: wavefronts that waited for others.
    waits = all(a <= b for a, b in zip(ours, least, strict=True))
    return "varies" if waits and len(seen) > len(told) else "differs"


def record(*files: Path) -> None:
    """Keep what the page needs, of each program the last measurement that is whole."""
    rows: dict[str, dict[str, Any]] = {}
    for file in files:
        data = json.loads(file.read_text())
        for one in data["programs"]:
            counted = one.get("profiled", {"launches": 0})
            row = {key: one[key] for key in ("name", "of", "launches", "distinct", "not_recorded", "missed")}
            row["counted"] = one.get("expected") or counted["launches"]
            if "first" in one:
                row["first"] = one["first"]
            row |= {key: one[key] for key in ("code", "alone_s", "recorded_s", "audit_s", "spent_us")}
            row["not_evaluated"] = sum("failure" in kernel for kernel in one["kernels"])
            if counted["launches"]:
                row |= agreement(one)
            row["lines"] = one["lines"][:10]
            rows[one["name"]] = row
    about = "Programs recorded and profiled: launches, how counters agree, seconds; the worst lines."
    made = {"about": about, "provenance": data["provenance"], "programs": list(rows.values())}
    RECORD.write_text(on_gpu.text_of(made))


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The table of the page: programs of others."""
    lines = [
        "| program | launches | counted | equal | varies | uncertain | recording, us a launch | audit, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        if row["of"].startswith("ours"):
            continue
        seen = row.get("verdicts", {})
        counts = [seen.get(key, 0) for key in ("equal", "varies")]
        others = sum(seen.values()) - sum(counts)
        took = round(row["spent_us"]), round(row["audit_s"])
        figures = (row["launches"], row["counted"], *counts, others, *took)
        cells = [row["name"], *(f"{figure:,}" if figure or seen else "" for figure in figures)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def write_docs() -> None:
    """Put the table into the page, between its marks."""
    on_gpu.put(PAGE, MARK, "\n".join(table(json.loads(RECORD.read_text())["programs"])))


if __name__ == "__main__":
    on_gpu.command_line(__doc__, measure, record, write_docs)
