"""What the measurements on a GPU share: tools, where figures come from, the profiler's rows, records."""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "tests"))  # where problems are written in few lines

from layoutopt.hardware import machine
from layoutopt.hardware.devices import BANK_CONFLICTS, WAVEFRONTS

CONFLICTS_SUM = f"{BANK_CONFLICTS}.sum"
WAVEFRONTS_SUM = f"{WAVEFRONTS}.sum"
# The part of the wavefronts that no shared access causes: one in a launch of one warp, and one for each
# instruction that all lanes skip by predicate, such as the loads that the compiler puts before cp.async.
ELSEWHERE_SUM = f"{machine.ELSEWHERE}.sum"
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


def profiled(
    metrics: Sequence[str], kernels: str, *command: str | Path, **options: Any
) -> list[dict[str, str]]:
    """Counters of each launch of the kernels so named that a command makes, a row each."""
    watch = ("--metrics", ",".join(metrics), *RAW_PAGE, "--kernel-name", f"regex:{kernels}")
    return machine.launches(run("ncu", *watch, *command, **options))


def provenance(script: str) -> dict[str, str]:
    """GPU, driver, tools and date of a measurement made by `script`."""
    card = machine.gpu_present()
    found = {"gpu": card.name, "driver": card.driver}
    for key, name, pattern in (("cuda", "nvcc", r"V([\d.]+)"), ("ncu", "ncu", r"Version ([\d.]+)")):
        if machine.find_tool(name) is not None:
            found[key] = (re.search(pattern, run(name, "--version")) or ["", ""])[1]
    return {**found, "script": f"scripts/measure/{script}", "date": time.strftime("%Y-%m-%d")}


def counted(row: dict[str, str], metric: str) -> int:
    """A counter in a row of `layoutopt.hardware.machine.launches`."""
    value = float(row[metric].replace(",", ""))
    return -1 if value != value else int(value)  # ncu prints nan for what it could not read


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


def write_or_measure(doc: str, write: Callable[[Path], None], measure: Callable[[Path], None]) -> None:
    """The command line of a script in two steps: `--write FOLDER` anywhere, `--measure FOLDER` on the GPU.

    The first gets a folder that is there.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_mutually_exclusive_group(required=True)
    steps.add_argument("--write", type=Path, metavar="FOLDER")
    steps.add_argument("--measure", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.measure:
        measure(args.measure)
    else:
        args.write.mkdir(parents=True, exist_ok=True)
        write(args.write)
