"""What the measurements on a GPU share: tools, where figures come from, the profiler's rows, records."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from layoutopt.hardware import machine
from layoutopt.hardware.counters import BANK_CONFLICTS, WAVEFRONTS

CONFLICTS_SUM = f"{BANK_CONFLICTS}.sum"
WAVEFRONTS_SUM = f"{WAVEFRONTS}.sum"
# The part of the wavefronts that no shared access causes: one in a launch of one warp, and one for each
# instruction that all lanes skip by predicate, such as the loads that the compiler puts before cp.async.
ELSEWHERE_SUM = f"{machine.ELSEWHERE}.sum"
# One row a launch, a column a counter, plain numbers; clocks and caches as they are.
RAW_PAGE = (
    "--csv",
    "--page",
    "raw",
    "--print-units",
    "base",
    "--clock-control",
    "none",
    "--cache-control",
    "none",
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
    return int(float(row[metric].replace(",", "")))


def record(head: dict[str, Any], key: str, rows: Sequence[Any]) -> str:
    """JSON text of `head` with `rows` under `key`, one a line."""
    lines = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in rows)
    return json.dumps(head, indent=1)[:-2] + f',\n "{key}": [\n{lines}\n ]\n}}\n'


def write_or_measure(doc: str, write: Callable[[Path], None], measure: Callable[[Path], None]) -> None:
    """The command line of a script in two steps: `--write FOLDER` anywhere, `--measure FOLDER` on the GPU."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_mutually_exclusive_group(required=True)
    steps.add_argument("--write", type=Path, metavar="FOLDER")
    steps.add_argument("--measure", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    write(args.write) if args.write else measure(args.measure)


def write_or_compare(
    doc: str,
    write: Callable[[Path], None],
    compare: Callable[[Path, Path], dict[str, Any]],
    wrong: Callable[[dict[str, Any]], str],
) -> None:
    """The command line of a script that writes a program, and compares what it found on the GPU.

    Args:
        doc: of the script.
        write: puts the program into a folder, with a `run.sh` that takes the folder of what it finds.
        compare: of both folders: what was found; its lists are printed a line each.
        wrong: what of it is not as predicted, in a line.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "write":
        write(args.folder)
        return
    if args.out is None:
        parser.error("compare needs OUT, the folder of what was found")
    found = compare(args.folder, args.out)
    print(wrong(found))
    if args.json is not None:
        listed = {key: rows for key, rows in found.items() if isinstance(rows, list)}
        lists = (
            f' "{key}": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "\n ]"
            if isinstance(rows[0], dict)
            else f' "{key}": {json.dumps(rows)}'
            for key, rows in listed.items()
        )
        head = json.dumps({key: value for key, value in found.items() if key not in listed}, indent=1)[:-2]
        args.json.write_text(",\n".join([head, *lists]) + "\n}\n")
