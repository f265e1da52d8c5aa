"""Launches of compiled kernels: which they are, a driver for them, and the profiler's counters of each.

A kernel of tests/data/kernels holds one line `// launch: {...}`: `entry` (demangled), `block`, `grid`,
`args`, perhaps `shared` (dynamic bytes), `symbol` (where mangled), `data_dependent` (addresses or branches
come from input data) and `bench` (a grid and arguments at which its time means something). Arguments are
`[type, value]`, buffers `[type*, elements, fill]` with fill zeros, iota, random, `below N` or `line A B`
(A + B k), and structures by value `["struct", [fields]]`.

    python3 scripts/measure/kernel_launches.py FOLDER NAME ...

launches cubins of a folder by its launches.json, three times each; `profile` runs it under Nsight Compute.
"""

import functools
import hashlib
import json
import re
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import on_gpu

from layoutopt.hardware.driver import Driver, Kernel
from layoutopt.kernels.machine.launch import Launch as Called
from layoutopt.kernels.program import GLOBAL_BASE, GLOBAL_STEP
from layoutopt.kernels.read import elf

KERNELS = Path(__file__).parents[2] / "tests/data/kernels"
TYPES = {
    name: np.dtype(code)
    for name, code in {
        "u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8", "i16": "i2", "i32": "i4", "i64": "i8",
        "f16": "f2", "f32": "f4", "f64": "f8",
    }.items()
}  # fmt: skip
REPEAT = 3
GROUP = 8  # kernels a run of the profiler: one that hangs takes few others with it
SECONDS_A_RUN = 40


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, of a source or a cubin."""

    name: str
    source: Path
    symbol: str
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    shared: int
    args: list[Any]
    entry: str = ""
    data_dependent: bool = False
    bench: dict[str, Any] = field(default_factory=dict)


LAUNCH = {one.name for one in fields(Launch)}


def launches(folder: Path = KERNELS) -> list[Launch]:
    """All launches, by name."""
    return [launch(path) for path in sorted(folder.glob("*.cu"))]


def launch(path: Path) -> Launch:
    found = re.search(r"^// launch: (\{.*\})$", path.read_text(), re.M)
    if found is None:
        raise SystemExit(f"{path}: a line '// launch: {{...}}' is missing")
    d = {"shared": 0, "symbol": None, **json.loads(found[1])}
    d |= {"symbol": d["symbol"] or d["entry"], "block": tuple(d["block"]), "grid": tuple(d["grid"])}
    return Launch(path.stem, path, **d)


def write_list(folder: Path, kernels: Iterable[Launch]) -> None:
    """Write launches.json of a folder that holds the cubins."""
    keys = ("name", "symbol", "block", "grid", "shared", "args")
    rows = [{key: getattr(k, key) for key in keys} | {"source": k.source.name} for k in kernels]
    (folder / "launches.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def listed(folder: Path) -> list[Launch]:
    """The launches of a folder's launches.json."""
    rows = json.loads((folder / "launches.json").read_text())
    known = [{key: value for key, value in row.items() if key in LAUNCH} for row in rows]
    return [Launch(**{**row, "source": folder / row["source"]}) for row in known]


def scalars(kernel: Launch) -> dict[str, Any]:
    """The arguments that are numbers, by position."""
    return {str(k): a[1] for k, a in enumerate(kernel.args) if a[0] != "struct" and not a[0].endswith("*")}


def called(kernel: Launch, **more: Any) -> Called:
    """The launch as the package takes it; of the arguments the numbers, unless others are given."""
    given = {"arguments": scalars(kernel), **more}
    return Called(block=kernel.block, grid=kernel.grid, shared_bytes=kernel.shared, **given)


def options(kernel: Launch) -> dict[str, list[str]]:
    """What `layoutopt check` takes for a launch, by option."""
    return {
        "--block": [",".join(map(str, kernel.block))],
        "--grid": [",".join(map(str, kernel.grid))],
        "--arg": [f"{position}={value}" for position, value in scalars(kernel).items()],
        "--shared": [str(kernel.shared)] if kernel.shared else [],
    }


def benches(kernel: Launch) -> list[Launch]:
    """The kernel at a size at which its time means something, if it has one."""
    if not kernel.bench:
        return []
    grid = tuple(kernel.bench.get("grid", kernel.grid))
    return [replace(kernel, grid=grid, args=kernel.bench.get("args", kernel.args), bench={})]


def contents(argument: list[Any]) -> np.ndarray[Any, Any]:
    """What a buffer holds at the start: zeros, its own indices, or numbers that its length decides.

    Random numbers are below 1, or of integers below 2**30; `below N` says another bound.
    """
    return _contents(argument[0].rstrip("*"), argument[1], [*argument, "zeros"][2])


@functools.cache
def _contents(kind: str, elements: int, fill: str) -> np.ndarray[Any, Any]:
    dtype = TYPES[kind]
    if fill == "zeros":
        return np.zeros(elements, dtype)
    if fill == "iota":
        return np.arange(elements).astype(dtype)
    if fill.startswith("line "):
        start, step = map(int, fill.split()[1:])
        return (start + step * np.arange(elements)).astype(dtype)
    rng = np.random.default_rng(zlib.crc32(f"{kind} {elements}".encode()))
    if fill.startswith("below "):
        return (rng.random(elements) * float(fill.removeprefix("below "))).astype(dtype)
    if dtype.kind == "f":
        return rng.random(elements).astype(dtype)
    return rng.integers(0, min(int(np.iinfo(dtype).max), 2**30) + 1, elements).astype(dtype)


def packed(argument: list[Any]) -> tuple[bytearray, dict[int, np.ndarray[Any, Any]], int]:
    """The bytes of an argument, the buffers that pointers at these places of it have, and its alignment.

    Pointers are zero until a buffer is given.
    """
    kind, value = argument[0], argument[1]
    if kind.endswith("*"):
        return bytearray(8), {0: contents(argument)}, 8
    if kind != "struct":
        data = bytearray(np.array([value], TYPES[kind]).tobytes())
        return data, {}, len(data)
    data, buffers, alignment = bytearray(), {}, 1
    for part, own, size in map(packed, value):
        data += bytes(-len(data) % size)
        buffers |= {len(data) + at: buffer for at, buffer in own.items()}
        data += part
        alignment = max(alignment, size)
    return data + bytes(-len(data) % alignment), buffers, alignment


def kernel_of(launch: Launch) -> Kernel:
    """What the driver launches: parameters as they lie in memory, and buffers at addresses made up."""
    content, memory = bytearray(), {}
    for data, buffers, size in map(packed, launch.args):
        for at, buffer in buffers.items():
            address = GLOBAL_BASE + len(memory) * GLOBAL_STEP
            data[at : at + 8] = address.to_bytes(8, "little")
            memory[address] = buffer.tobytes()
        content += bytes(-len(content) % size) + data
    shape = launch.grid, launch.block, launch.shared
    return Kernel(launch.source.read_bytes(), launch.symbol, *shape, bytes(content), memory)


def code_digest(cubin: bytes, symbol: str) -> str:
    """The first 16 digits of SHA-256 of the section that holds the kernel's machine code."""
    for section in elf.sections(cubin):
        if section.name == f".text.{symbol}":
            return hashlib.sha256(section.content).hexdigest()[:16]
    raise SystemExit(f"no code of {symbol}")


def profile(
    folder: Path, counters: Mapping[str, str], names: Sequence[str] = (), size: int = GROUP
) -> dict[str, list[dict[str, int]] | str]:
    """Counters of the launches of a folder by name: a row for each repetition, or the text of an error.

    `counters`: by our names the profiler's. Several kernels, `size` of those named or all, share a run of the
    profiler; where one fails, fewer do.
    """
    found: dict[str, list[dict[str, int]] | str] = {}
    every = names or [kernel.name for kernel in listed(folder)]
    groups = [every[k : k + size] for k in range(0, len(every), size)]
    while groups:
        group = groups.pop(0)
        command = on_gpu.profiler(counters, sys.executable, __file__, folder, *group)
        ran = on_gpu.watched(command, SECONDS_A_RUN)
        rows = [one.counts for one in on_gpu.launched(ran.out, counters)]
        failed = len(rows) != REPEAT * len(group) or any(-1 in row.values() for row in rows)
        if failed and len(group) > 1:
            print(f"in halves: {' '.join(group)}: {ran.err.strip()[-300:]}", flush=True)
            groups = [group[: len(group) // 2], group[len(group) // 2 :], *groups]
            continue
        for k, name in enumerate(group):
            error = f"launch failed: {ran.err.strip()[-300:]}"
            found[name] = error if failed else rows[k * REPEAT :][:REPEAT]
            print(name, error if failed else "counted", flush=True)
    return found


def main() -> None:
    folder, *names = sys.argv[1:]
    driver, known = Driver(), {kernel.name: kernel for kernel in listed(Path(folder))}
    for name in names:
        driver.left(kernel_of(known[name]), REPEAT)


if __name__ == "__main__":
    main()
