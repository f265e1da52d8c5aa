"""Two versions of a kernel, `NAME plain` and `NAME patched` in a folder's launches.json, on a GPU.

    python3 scripts/measure/versions.py --race FOLDER

races them by `layoutopt.hardware.driver`: outputs bit for bit, and times. It may be ended and begun again, as
each race is a line of races.jsonl; `compared` starts it, and again where a launch ended it.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kernel_launches as collection
import on_gpu
from on_gpu import COUNTERS, PARTS

from layoutopt.hardware.driver import Driver

RACES = "races.jsonl"
KINDS = "plain", "patched"
Seen = dict[str, list[dict[str, int]] | str]


def race(folder: Path) -> None:
    """Both versions of what was not raced yet; a launch that fails ends it, as the GPU is lost to it."""
    driver, launches = Driver(), {launch.name: launch for launch in collection.listed(folder)}
    for name in races_left(folder):
        row: dict[str, Any] = {"name": name}
        first, _, bench = name.partition(" ")
        both = (launches[f"{first} {kind}{bench and f' {bench}'}"] for kind in KINDS)
        try:
            found = driver.race(*map(collection.kernel_of, both))
            row |= {"seconds": found.seconds, "differing": found.differing, "changing": found.changing}
        finally:
            keep(folder, row if "seconds" in row else row | {"error": f"{sys.exception()}"})


def keep(folder: Path, row: dict[str, Any]) -> None:
    with (folder / RACES).open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, flush=True)


def races_left(folder: Path) -> list[str]:
    """Names of launches of which no race is known."""
    known = raced(folder)
    names = (launch.name for launch in collection.listed(folder) if " plain" in launch.name)
    return [name for one in names if (name := one.replace(" plain", "")) not in known]


def raced(folder: Path) -> dict[str, dict[str, Any]]:
    """The races by name."""
    lines = (folder / RACES).read_text().splitlines() if (folder / RACES).exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def compared(folder: Path) -> dict[str, dict[str, Any]]:
    """All races, in a process that a launch may end."""
    while left := races_left(folder):
        subprocess.run([sys.executable, __file__, "--race", folder])
        if races_left(folder) == left:
            keep(folder, {"name": left[0], "error": "the process ended"})
    return raced(folder)


def profile(folder: Path, names: Sequence[str], size: int) -> Seen:
    """Counters of both versions, three launches each: wavefronts by part, and conflicts."""
    found = collection.profile(folder, COUNTERS, [f"{name} {kind}" for name in names for kind in KINDS], size)
    return {name: seen if isinstance(seen, str) else [*map(totals, seen)] for name, seen in found.items()}


def totals(counts: dict[str, int]) -> dict[str, int]:
    """Wavefronts by part, and the conflicts of all parts."""
    found = {part: counts[f"wavefronts_{part}"] for part in PARTS}
    return found | {"conflicts": sum(counts[f"bank_conflicts_{part}"] for part in PARTS)}


if __name__ == "__main__":
    on_gpu.command_line(__doc__, race)
