"""Two versions of a kernel on a GPU, as it is and with another layout: outputs, counters and times.

    python3 scripts/measure/record_fixes.py --fix FOLDER OUT [--jobs N]   needs nvcc: diffs, both as cubins
    python3 scripts/measure/record_fixes.py --patch OUT                   the PTX of our own, both as cubins
    python3 scripts/measure/record_fixes.py --measure OUT                 on the GPU: outputs, counters, times
    python3 scripts/measure/record_fixes.py --run FOLDER OUT              on the GPU: fix --run on slower ones
    python3 scripts/measure/record_fixes.py --write-docs

FOLDER holds sources and kernels.json: for each launch its `name`, where it is from (`repository`, `commit`,
`path`), the `file` and, as `options`, what `layoutopt fix` takes; `compiler` and `arguments` are those of the
options that say how to compile, and the values of the kernel's parameters. Our own are those of
tests/data/kernels. Nothing of the sources is kept: the records, tests/data/kernels/fixes.json and
patched.json, have names, launches, reasons and counts.

All steps may be ended and begun again: OUT keeps an answer a launch, and each race, by
`layoutopt.hardware.driver`, is a line of races.jsonl; `--race OUT`, which `--measure` starts, is started
again where a launch ended it. Times are those of `layoutopt fix --run`: of the launch, and of one that fills
the GPU: our own have one, other grids get copies along z where the kernel does not ask for it.
"""

import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernel_launches as collection
import numpy as np
import on_gpu
from kernel_launches import KERNELS, Launch
from on_gpu import COUNTERS, PARTS

from layoutopt.hardware.driver import Driver
from layoutopt.kernels.launches import argument
from layoutopt.kernels.machine.launch import element_type, is_pointer, type_size
from layoutopt.kernels.program import Program
from layoutopt.kernels.read.files import chosen, compile_source, kernels

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests/data/kernels/fixes.json"
PAGE = ROOT / "docs/public-fixes.md"
RACES = "races.jsonl"
KINDS = "plain", "patched"
SECONDS = 100
ELEMENTS = 1 << 22  # of each buffer
BLOCKS = 1 << 11  # that fill a GPU
MOST_TIME = 1.02  # of the time before
PROFILED = 30  # launches a run of the profiler
COMMAND = [sys.executable, "-c", 'from layoutopt.cli import run\nif __name__ == "__main__":\n    run()']


def answered(source: Path, row: dict[str, Any]) -> dict[str, Any]:
    """What `layoutopt fix` prints of a launch, or its `error`."""
    command = [*COMMAND, "fix", source, *row["options"], "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        return dict(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return {}
    except ValueError:
        return {"error": done.stderr.strip()}


def fixed(root: Path, out: Path, row: dict[str, Any]) -> tuple[dict[str, Any], list[Launch]]:
    """One launch: its diff applied to a copy of `root`, both versions compiled."""
    told = {key: row[key] for key in ("name", "repository", "commit", "path", "entry", "block", "grid")}
    source, kept = root / row["file"], out / f"{row['name']}.json"
    if not kept.exists():
        kept.write_text(json.dumps(answered(source, row)))
    found = json.loads(kept.read_text())
    if "diff" not in found:
        if "error" in found:
            return told | {"status": "refused", "reasons": [told_of(found["error"])]}, []
        return told | {"status": "out of time"}, []
    told["reasons"] = [told_of(one["reason"]) for one in found["arrays"] if one["reason"]]
    if not found["diff"]:
        return told | {"status": "refused" if found["arrays"] else "none"}, []
    told |= {"status": "fixed" if not found["after"]["bank_conflicts"] else "better"}
    told["predicted"] = {
        kind: {part: found[when][f"wavefronts_{part}"] for part in PARTS}
        | {"conflicts": found[when]["bank_conflicts"]}
        for kind, when in zip(KINDS, ("before", "after"), strict=True)
    }
    if not found["certain"]:
        told["most"] = {
            kind: {part: found[when].get(f"wavefronts_worst_{part}", 1 << 40) for part in PARTS}
            for kind, when in zip(KINDS, ("before", "after"), strict=True)
        }
    told |= {key: found[key] for key in ("unknown_bytes", "certain")}
    told["own_data"] = "--data" in row["options"]  # which is not that of the launches on the GPU
    shared = told["shared"] = [row["shared"], (found["shared_bytes"] if row["shared"] else 0)]
    top = root / Path(row["file"]).parts[0]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch, top.name)
        copy = shutil.copytree(top, place) if top.is_dir() else Path(shutil.copy(top, place)).parent
        for strip in map(str, range(12)):
            if not subprocess.run(["patch", f"-p{strip}", "-sf"], input=found["diff"], text=True, cwd=copy,
                                  capture_output=True).returncode:  # fmt: skip
                break
        cubins = [out / f"{row['name']}.{kind}.cubin" for kind in KINDS]
        for cubin, path in zip(cubins, (source, Path(scratch) / row["file"]), strict=True):
            if not cubin.exists():
                cubin.write_bytes(compile_source(path, "sm_90", row["compiler"]))
    before = launches_of(cubins[0], row)
    other = {"source": cubins[1], "shared": shared[1]}
    after = [replace(one, name=one.name.replace(" plain", " patched"), **other) for one in before]
    return told, [*before, *after]


def told_of(reason: str) -> str:
    """The line, the array and why; not the code that is quoted behind, nor the folders of a file."""
    return re.sub(r"(?<![\w.])/([^\s()/]+/)+", "", ": ".join(reason.split(": ")[:3]))[:160]


def launches_of(cubin: Path, row: dict[str, Any]) -> list[Launch]:
    """The launch as it is, and one that fills a GPU; with buffers of random floats and of small integers."""
    program = chosen(kernels(cubin), row["entry"]).read()
    block, grid = (tuple(row[name]) for name in ("block", "grid"))
    if "own" in row:
        own = collection.launch(KERNELS / row["file"])
        one = replace(own, name=f"{row['name']} plain", source=cubin)
        return [one, *filling(one, program)]
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
    one = Launch(f"{row['name']} plain", cubin, program.name, block, grid, row["shared"], given)
    return [one, *filling(one, program)]


def filling(one: Launch, program: Program) -> list[Launch]:
    """The same so that it fills a GPU, if it can be."""
    copies = -(-BLOCKS // math.prod(one.grid))
    apart = copies == 1 or any("SR_CTAID.Z" in step.text for step in program.steps)
    x, y, z = one.grid
    more = collection.benches(one) or ([] if apart else [replace(one, grid=(x, y, z * copies))])
    return [replace(each, name=f"{one.name} bench") for each in more]


def code(dtype: np.dtype[Any]) -> str:
    return f"{'i' if dtype.kind == 'b' else dtype.kind}{8 * dtype.itemsize}"


def launched(folder: Path) -> Iterator[tuple[str, tuple[Path, dict[str, Any]]]]:
    """All launches by name, with the folder that each row's file is in."""
    for row in json.loads((folder / "kernels.json").read_text()):
        yield row["name"], (folder, row)
    for kernel in collection.launches():
        row = {"name": kernel.name, "repository": "", "commit": "", "own": True, "file": kernel.source.name}
        row |= {"path": f"tests/data/kernels/{kernel.source.name}", "compiler": [], "shared": kernel.shared}
        row |= {"entry": kernel.symbol, "block": kernel.block, "grid": kernel.grid}
        yield kernel.name, (KERNELS, row | {"options": ["--entry", kernel.symbol, *words_of(kernel)]})


def fix(folder: Path, out: Path, *, jobs: int = 2) -> None:
    out.mkdir(exist_ok=True)
    with ThreadPoolExecutor(jobs) as workers:
        found = list(workers.map(lambda one: fixed(one[1][0], out, one[1][1]), launched(folder)))
    collection.write_list(out, [launch for _, launches in found for launch in launches])
    about = "`layoutopt fix` on public kernels and our own: both versions, predicted, counted and timed."
    keep_rows(out, "fixes.json", about, [told for told, _ in found if told["status"] != "none"])


def patch(out: Path) -> None:
    """Layouts put into the PTX of our own kernels, of those that have conflicts and can be patched."""
    from layoutopt.errors import ProblemFileError
    from layoutopt.hardware.devices import device
    from layoutopt.kernels.question.summary import summary
    from layoutopt.kernels.read.files import assemble, from_ptx
    from layoutopt.study import source_fix
    from layoutopt.study.patch import PtxCode

    out.mkdir(exist_ok=True)
    rows, launches = [], []
    for kernel in collection.launches():
        text = kernel.source.with_suffix(".ptx").read_text()
        request = source_fix.Request(collection.called(kernel), device("sm_90"), minimise="excess")
        try:
            (program,) = [one.read() for one in from_ptx(text) if one.name == kernel.symbol]
            found = source_fix.fix(PtxCode(text, kernel.name, kernel.symbol), program, request)
        except ProblemFileError as error:
            print(f"{kernel.name}: {error}", flush=True)
            continue
        if found.after is found.before:
            continue
        shared, changed = found.after.evaluation.launch.shared_bytes, found.files[kernel.name].decode()
        for kind, ptx, size in zip(KINDS, (text, changed), (kernel.shared, shared), strict=True):
            cubin = out / f"{kernel.name}.{kind}.cubin"
            cubin.write_bytes(assemble(ptx, "sm_90"))
            for more, one in (("", kernel), *((" bench", one) for one in collection.benches(kernel))):
                launches.append(replace(one, name=f"{kernel.name} {kind}{more}", source=cubin, shared=size))
        layouts = {m.name: [m.bytes_before, m.bytes_after] for m in found.arrays if m.offset is not None}
        both = zip(KINDS, (found.before, found.after), strict=True)
        told = {kind: totals(summary(one.evaluation).totals) for kind, one in both}
        certain = found.after.evaluation.certain
        rows.append({"name": kernel.name, "layouts": layouts, "certain": certain, "predicted": told})
        print(rows[-1], flush=True)
    collection.write_list(out, launches)
    about = "Kernels as compiled and with layouts patched into their PTX: predicted, counted and timed."
    keep_rows(out, "patched.json", about, rows)


def keep_rows(out: Path, record: str, about: str, rows: list[dict[str, Any]]) -> None:
    """What the GPU's step is to know: rows, and the record that they become, of this commit."""
    commit = ("git", "-C", ROOT, "rev-parse", "--short", "HEAD")
    told = subprocess.run(commit, capture_output=True, text=True).stdout.strip()
    kept = {"record": record, "about": about, "commit": told, "kernels": rows}
    (out / "kernels.json").write_text(json.dumps(kept, indent=1))


def race(out: Path) -> None:
    """Both versions of what was not raced yet; a launch that fails ends it, as the GPU is lost to it."""
    driver, launches = Driver(), {launch.name: launch for launch in collection.listed(out)}
    for name in races_left(out):
        row: dict[str, Any] = {"name": name}
        first, _, bench = name.partition(" ")
        both = (launches[f"{first} {kind}{bench and f' {bench}'}"] for kind in KINDS)
        try:
            found = driver.race(*map(collection.kernel_of, both))
            row |= {"seconds": found.seconds, "differing": found.differing, "changing": found.changing}
        finally:
            keep(out, row if "seconds" in row else row | {"error": f"{sys.exception()}"})


def keep(out: Path, row: dict[str, Any]) -> None:
    with (out / RACES).open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, flush=True)


def races_left(out: Path) -> list[str]:
    """Names of launches of which no race is known."""
    known = raced(out)
    names = (launch.name for launch in collection.listed(out) if " plain" in launch.name)
    return [name for one in names if (name := one.replace(" plain", "")) not in known]


def raced(out: Path) -> dict[str, dict[str, Any]]:
    """The races by name."""
    lines = (out / RACES).read_text().splitlines() if (out / RACES).exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def totals(counts: dict[str, int]) -> dict[str, int]:
    """Wavefronts by part, and the conflicts of all parts."""
    found = {part: counts[f"wavefronts_{part}"] for part in PARTS}
    return found | {"conflicts": sum(counts[f"bank_conflicts_{part}"] for part in PARTS)}


def measure(out: Path) -> None:
    """Races, each in a process that it may end, and the counters of launches that end."""
    while left := races_left(out):
        subprocess.run([sys.executable, __file__, "--race", out])
        if races_left(out) == left:
            keep(out, {"name": left[0], "error": "the process ended"})
    races = raced(out)
    write(out, races, {})
    ran = [f"{name} {kind}" for name, one in races.items() if "seconds" in one for kind in KINDS]
    ran = [name for name in ran if " bench" not in name]
    write(out, races, collection.profile(out, COUNTERS, ran, PROFILED))


def run(folder: Path, out: Path) -> None:
    """`layoutopt fix --run` on what took longer, as launched or filling the GPU: what it says of each."""
    record, sources = json.loads((out / "fixes.json").read_text()), dict(launched(folder))
    for row in record["kernels"]:
        root, given = sources[row["name"]]
        for key, options in (("race", given["options"]), ("bench", filled_options(row, given))):
            if (ratio(row, key) or 0) > MOST_TIME and key not in row.get("run", {}):
                found = answered(root / given["file"], given | {"options": [*options, "--run"]})
                if "arrays" in found:
                    reasons = [told_of(one["reason"]) for one in found["arrays"] if one["reason"]]
                    seconds = (found["race"] or {}).get("seconds")
                    row.setdefault("run", {})[key] = {"seconds": seconds, "reasons": reasons}
                print(row["name"], key, row.get("run"), found.get("error", ""), flush=True)
                (out / "fixes.json").write_text(on_gpu.text_of(record))


def filled_options(row: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """The options of the launch that fills the GPU."""
    x, y, z = row["grid"]
    grid = (x, y, z * -(-BLOCKS // (x * y * z)))
    if "own" not in given:
        return [*given["options"], "--grid", ",".join(map(str, grid))]
    own = collection.launch(KERNELS / given["file"])
    return ["--entry", own.symbol, *words_of(next(iter(collection.benches(own)), replace(own, grid=grid)))]


def words_of(kernel: Launch) -> list[str]:
    """A launch as options."""
    options = collection.options(kernel).items()
    return [word for name, each in options for one in each for word in (name, one)]


def write(out: Path, races: dict[str, Any], seen: dict[str, Any]) -> None:
    """The record, with what was measured beside what is predicted; counters are the least of three."""
    kept = json.loads((out / "kernels.json").read_text())
    for row in kept["kernels"]:
        for key, name in (("race", row["name"]), ("bench", f"{row['name']} bench")):
            race = {k: v for k, v in races.get(name, {}).items() if k != "name"}
            if key == "bench":  # copies of a block write to the same places
                race = {k: v for k, v in race.items() if k == "seconds"}
            row |= {key: race} if race else {}
        each = {kind: seen.get(f"{row['name']} {kind}") for kind in KINDS}
        if all(isinstance(found, list) for found in each.values()):
            each = {kind: [*map(totals, found)] for kind, found in each.items()}
            row["counted"] = {
                kind: {part: min(one[part] for one in found) for part in found[0]}
                for kind, found in each.items()
            }
            row["varies"] = any(one != found[0] for found in each.values() for one in found)
    name, about = kept.pop("record"), kept.pop("about")
    on_gpu.write_record(out / name, about, kept)


def ratio(row: dict[str, Any], key: str) -> float | None:
    """The time of a race after the change, of that before."""
    before, after = row.get(key, {}).get("seconds", (0, 0))
    return after / before if before else None


def summary(rows: list[dict[str, Any]]) -> str:
    """The lines about a table."""
    changed = [row for row in rows if "predicted" in row]
    counts = {status: sum(row["status"] == status for row in rows) for status in ("fixed", "better")}
    before, after = (sum(row["predicted"][kind][part] for row in changed for part in PARTS) for kind in KINDS)
    ran = [row for row in changed if "seconds" in row.get("race", ())]
    counted = [row for row in changed if "counted" in row]
    other = [row for row in counted if row["counted"] != row["predicted"]]
    data = [row["name"] for row in other if is_within(row)]
    given = [row["name"] for row in other if row["own_data"]]
    rest = [row for row in other if row["name"] not in (*data, *given)]
    varying = [row["name"] for row in rest if row["varies"]]
    wrong_counts = [row["name"] for row in rest if not row["varies"]]
    unknown = [row["name"] for row in changed if row["unknown_bytes"]]
    loose = [row["name"] for row in ran if row["race"]["changing"]]
    wrong = [row["name"] for row in ran if row["race"]["differing"] and not row["race"]["changing"]]
    failed = [row["name"] for row in changed if "error" in row.get("race", ())]
    found = [
        f"{len(rows)} launches: {counts['fixed']} are changed to have no conflicts, {counts['better']} to "
        f"have fewer, {len(rows) - len(changed)} are not changed. What is changed took {before:,} "
        f"wavefronts and takes {after:,}.",
        f"{len(ran)} of {len(changed)} changed ones ran"
        + _but(failed, "which leave the memory made up for them, before the change, too")
        + f". {len(ran) - len(loose) - len(wrong)} write the same bytes in both versions, {len(wrong)} others"
        + _but(loose, "whose first version writes others in each launch")
        + ".",
        f"Of {len(changed) - len(unknown)} of them the evaluation compared all bytes that the first block "
        f"writes{_but(unknown)}.",
        f"{len(counted) - len(other)} of {len(counted)} have all counters of both versions as predicted"
        + _but(data, "whose data decides, up to the most that is predicted")
        + _but(given, "evaluated with data that the GPU was not given")
        + _but(varying, "where the profiler counts a few more, others in each launch")
        + _but(wrong_counts, "where the profiler counts others")
        + ".",
    ]
    for key, what in (("race", "as launched"), ("bench", "where the grid fills the GPU")):
        times = sorted(one for row in changed if (one := ratio(row, key)) is not None)
        slower = [row["name"] for row in changed if (ratio(row, key) or 0) > MOST_TIME]
        found.append(
            f"Time {what} ({len(times)} launches): {times[0]:.2f} to {times[-1]:.2f} of that before, "
            f"{statistics.median(times):.2f} in the median. Over 2 % longer: {', '.join(slower) or 'none'}."
        )
    for key, what in (("race", "as launched"), ("bench", "where the grid fills the GPU")):
        again = [row for row in changed if key in row.get("run", ())]
        kept = [row["name"] for row in again if row["run"][key]["seconds"]]
        took = [row["run"][key]["seconds"] for row in again if row["run"][key]["seconds"]]
        times = ", ".join(f"{after / before:.2f}" for before, after in took)
        if again:
            found.append(
                f"`fix --run` on {len(again)} of those that took over 2 % longer {what}: "
                f"{len(again) - len(kept)} changes are taken back"
                f"{_but(kept, f'which take {times} of the time')}."
            )
    return "\n".join(f"- {one}" for one in found)


def is_within(row: dict[str, Any]) -> bool:
    """Whether the data decides what is counted, up to the most that is predicted."""
    return not row["certain"] and all(
        row["counted"][kind][part] <= row["most"][kind][part] for kind in KINDS for part in PARTS
    )


def _but(names: list[str], why: str = "") -> str:
    """Exceptions of a sentence."""
    return f"; not {', '.join(names)}{why and f', {why}'}" if names else ""


def page(rows: list[dict[str, Any]]) -> str:
    """The table of all launches."""
    lines = [
        "| kernel | from | | wavefronts | time | filled | why not, or not more |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        took = [f"{one:.2f}" if (one := ratio(row, key)) else "" for key in ("race", "bench")]
        totals = [sum(row["predicted"][kind][part] for part in PARTS) for kind in row.get("predicted", ())]
        failed = row.get("race", {}).get("error", "")
        again = [why for one in row.get("run", {}).values() for why in one["reasons"]]
        why = (failed or [*again, *row.get("reasons", ()), ""][0])[:160]
        place = f"{row['repository']}/blob/{row['commit']}/{row['path']}"
        source = f"[{row['repository']}](https://github.com/{place})" if row["repository"] else ""
        spent, why = " to ".join(f"{total:,}" for total in totals), why.replace("|", "/")
        lines.append(f"| {row['name']} | {source} | {row['status']} | {spent} | {' | '.join(took)} | {why} |")
    return "\n".join(lines)


def write_docs() -> None:
    record = json.loads(RECORD.read_text())
    made, parts = record["provenance"], []
    own = [row for row in record["kernels"] if not row["repository"]]
    public = [row for row in record["kernels"] if row["repository"]]
    places = len({row["repository"] for row in public})
    for title, some in (
        (f"{places} public repositories", public),
        ("The kernels of tests/data/kernels", own),
    ):
        if some:
            parts.append(f"## {title}\n\n{summary(some)}\n\n{page(some)}\n")
    about = (
        "Launches that have bank conflicts, and what `layoutopt fix` makes of them, compiled for sm_90. Time "
        "is that after the change, of that before: of the launch, and with the grid repeated until it fills "
        "the GPU. Many of the launches take 1 to 3 microseconds: one block or a few, which wait for every "
        "instruction. Memory is made up. All figures and reasons are those of layoutopt at commit "
        f"{record['commit']}: later versions may change other launches, and say why not in other words. "
        f"Measured on {made['gpu']}, driver {made['driver']}, CUDA {made['cuda']}, Nsight Compute "
        f"{made['ncu']}, {made['date']}.\n\n"
    )
    head = "# Public kernels, fixed\n\n<!-- scripts/measure/record_fixes.py --write-docs -->\n\n"
    PAGE.write_text(head + about + "\n".join(parts))


if __name__ == "__main__":
    on_gpu.command_line(__doc__, fix, patch, measure, race, run, write_docs)
