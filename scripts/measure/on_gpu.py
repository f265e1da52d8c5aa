"""What the measurements on a GPU share: steps, compiling, running, the profiler's counters, records."""

import argparse
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[2] / "tests"))  # where problems are written in few lines

from layoutopt.hardware import machine
from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS

CONFLICTS_SUM = f"{BANK_CONFLICTS}.sum"
WAVEFRONTS_SUM = f"{WAVEFRONTS}.sum"
# The part of the wavefronts that no shared access causes: one in a launch of one warp, and one for each
# instruction that all lanes skip by predicate, such as the loads that the compiler puts before cp.async.
ELSEWHERE_SUM = f"{machine.ELSEWHERE}.sum"
# What loads, stores and atomics count, by the names that `check` gives.
PARTS = ("ld", "st", "atom")
COUNTERS = {
    f"{ours}_{part}": f"{theirs}_op_{part}.sum"
    for ours, theirs in (("wavefronts", WAVEFRONTS), ("bank_conflicts", BANK_CONFLICTS))
    for part in PARTS
}
# One row a launch, a column a counter, plain numbers; clocks and caches as they are.
RAW_PAGE = (
    *("--csv", "--page", "raw", "--print-units", "base"),
    *("--clock-control", "none", "--cache-control", "none"),
)
# Of programs that use TMA and wgmma.
HOPPER_FLAGS = ("-std=c++17", "-O2", "-gencode=arch=compute_90a,code=sm_90a")


def tool(name: str) -> str:
    """The path of a CUDA tool; ends the script where there is none."""
    return machine.find_tool(name) or sys.exit(f"{name} is not on this machine")


def run(name: str, *arguments: str | Path, **options: Any) -> str:
    """What a CUDA tool prints; its failure ends the script."""
    command = [tool(name), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def compile_flags() -> list[str]:
    """What nvcc is told, for the GPU of this machine."""
    return ["-std=c++17", "-O3", f"-arch=sm_{machine.gpu_present().compute_capability.replace('.', '')}"]


def built(source: Path, *flags: str | Path, **options: Any) -> Path:
    """The program that nvcc makes of a source, beside it."""
    program = source.with_suffix("").absolute()
    run("nvcc", *(flags or compile_flags()), "-o", program, source, **options)
    return program


def printed(program: str | Path, *arguments: str | Path, **options: Any) -> str:
    """What a program prints that was built; its exit status may say that a value is wrong."""
    limits = {"timeout": 120, "check": False, **options}
    return subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True, **limits).stdout


def measured(
    folder: Path, *flags: str | Path, runs: int = 1, seconds: float = 120
) -> list[tuple[dict[str, Any], list[str]]]:
    """What each program of a folder is, and what it prints, run by run: all of them, then all of them again.

    Nothing, where nvcc refuses it or it does not end in so many seconds, which is told.
    """

    def compiled(number: int) -> Path | None:
        try:
            return built(folder / f"{number:03}.cu", *flags, stderr=subprocess.DEVNULL, timeout=120)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            print(f"nvcc refuses {number:03}.cu", flush=True)
            return None

    found: list[tuple[dict[str, Any], list[str]]] = [(entry, []) for entry in entries(folder)]
    with ThreadPoolExecutor() as pool:
        programs = list(pool.map(compiled, range(len(found))))
    for program, (_, texts) in [*zip(programs, found, strict=True)] * runs:
        try:
            texts.append(printed(program, timeout=seconds) if program else "")
        except (OSError, subprocess.TimeoutExpired) as error:
            texts.append("")
            print(error, flush=True)
    return found


class Ran(NamedTuple):
    """How a command ended, after how many seconds, and what it wrote."""

    code: int
    seconds: float
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def watched(command: Iterable[Any], seconds: float, folder: Path | None = None) -> Ran:
    """Run a command; one that takes longer is ended with all that it started."""
    began, piped = time.monotonic(), {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [*map(str, command)], cwd=folder, text=True, errors="replace", start_new_session=True, **piped
    ) as process:
        try:
            out, err = process.communicate(timeout=max(seconds, 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            err += f"no end after {seconds:.0f} s"
    return Ran(process.returncode, round(time.monotonic() - began, 2), out, err)


class Launched(NamedTuple):
    """A launch under the profiler: which, and its counters by our names, -1 what could not be read."""

    kernel: str
    block: tuple[int, ...]
    grid: tuple[int, ...]
    counts: dict[str, int]


def profiler(counters: Mapping[str, str], *more: str | Path) -> list[Any]:
    """The start of a command under the profiler; `counters`: by our names its own."""
    return [tool("ncu"), "--metrics", ",".join(counters.values()), *RAW_PAGE, *more]


def launched(text: str, counters: Mapping[str, str]) -> list[Launched]:
    """The launches that the profiler told of, in order."""
    found = []
    for row in machine.launches(text):
        values = {ours: float(row[theirs].replace(",", "")) for ours, theirs in counters.items()}
        counts = {ours: -1 if value != value else int(value) for ours, value in values.items()}  # nan
        sizes = (tuple(map(int, re.findall(r"\d+", row[f"{what} Size"]))) for what in ("Block", "Grid"))
        found.append(Launched(row["Kernel Name"].split("(")[0].removeprefix("void ").strip(), *sizes, counts))
    return found


def profiled(
    counters: Mapping[str, str], kernels: str, *command: str | Path, **options: Any
) -> list[Launched]:
    """Each launch of the kernels so named that a command makes."""
    _, *watch = profiler(counters, "--kernel-name", f"regex:{kernels}")
    return launched(run("ncu", *watch, *command, **options), counters)


def provenance(script: str) -> dict[str, str]:
    """GPU, driver, tools and date of a measurement made by `script`."""
    card = machine.gpu_present()
    found = {"gpu": card.name, "driver": card.driver}
    for key, name, pattern in (("cuda", "nvcc", r"V([\d.]+)"), ("ncu", "ncu", r"Version ([\d.]+)")):
        if machine.find_tool(name) is not None:
            found[key] = (re.search(pattern, run(name, "--version")) or ["", ""])[1]
    return {**found, "script": f"scripts/measure/{script}", "date": time.strftime("%Y-%m-%d")}


def write_record(path: Path, about: str, found: dict[str, Any], script: str = "") -> None:
    """Write what was found, with its provenance."""
    made = {"about": about, "provenance": provenance(script or Path(sys.argv[0]).name)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of({**made, **found}))
    print(f"wrote {path}")


def text_of(found: dict[str, Any]) -> str:
    """A record as JSON, the rows of its lists of objects one a line."""
    fields = []
    for key, value in found.items():
        text = json.dumps(value, indent=1).replace("\n", "\n ")
        if isinstance(value, list):
            lines = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in value)
            text = f"[\n{lines}\n ]" if value and isinstance(value[0], dict) else json.dumps(value)
        fields.append(f' "{key}": {text}')
    return "{\n" + ",\n".join(fields) + "\n}\n"


def write_programs(folder: Path, programs: Iterable[tuple[dict[str, Any], str]]) -> None:
    """What each program is, for the second step, and its source: 000.cu and so on."""
    found = []
    for entry, text in programs:
        (folder / f"{len(found):03}.cu").write_text(text)
        found.append(entry)
        print(*(value for value in entry.values() if isinstance(value, str)), flush=True)
    write_entries(folder, found)


def write_entries(folder: Path, found: list[dict[str, Any]]) -> None:
    """What the second step of a script is to know, by program."""
    (folder / "entries.json").write_text(json.dumps(found))
    print(f"wrote {folder}: {len(found)} entries")


def entries(folder: Path) -> list[dict[str, Any]]:
    """What the first step of a script wrote for the second."""
    found: list[dict[str, Any]] = json.loads((folder / "entries.json").read_text())
    return found


def put(page: Path, mark: str, text: str) -> None:
    """Put a text into a page, between its marks."""
    before, _, after = page.read_text().split(mark)
    page.write_text(f"{before}{mark}\n{text}\n{mark}{after}")


def command_line(doc: str, *steps: Callable[..., None]) -> None:
    """The command line of a script in steps: an option for each, named as its function.

    Its values are the function's arguments, paths; arguments by name alone are options of their own. What
    writes gets a folder that is there.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    named: dict[str, Any] = {}
    for step in steps:
        taken = inspect.signature(step).parameters.values()
        places = tuple(one.name.upper() for one in taken if one.kind is one.POSITIONAL_OR_KEYWORD)
        several = next((one.name.upper() for one in taken if one.kind is one.VAR_POSITIONAL), None)
        how = {"type": Path, "nargs": "+" if several else len(places), "metavar": several or places}
        how = how if several or places else {"action": "store_const", "const": ()}
        chosen.add_argument("--" + step.__name__.replace("_", "-"), **how)
        named |= {one.name: one.default for one in taken if one.kind is one.KEYWORD_ONLY}
    for name, value in named.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    given = vars(parser.parse_args())
    for step in steps:
        if given[step.__name__] is not None:
            for folder in given[step.__name__] if step.__name__.startswith("write") else ():
                folder.mkdir(parents=True, exist_ok=True)
            own = inspect.signature(step).parameters.keys() & named.keys()
            step(*given[step.__name__], **{name: given[name] for name in own})
