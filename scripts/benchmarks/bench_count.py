"""Throughput of the conflict engine, beside what memory and a plain NumPy sort allow.

    python scripts/benchmarks/bench_count.py [--instructions 1000000]

One process, one thread. Each row counts a table of warp instructions through the same function as
`layoutopt count ADDR.npy`, file reading and checks included; in the same run it copies the same
bytes in memory, and sorts the same table along its lanes. Best of several repetitions.
"""

from __future__ import annotations

import argparse
import gzip
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.engine.records import count_lines, count_table
from layoutopt.hardware.devices import device
from layoutopt.hardware.operations import parse_operation

LANES = 32
RECORDS = Path(__file__).parents[2] / "tests/data/h200_wavefronts.jsonl.gz"


def seconds(work: Callable[[], object], repeat: int) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def table(kind: str, width: int, rows: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if kind == "random":
        return rng.integers(0, 49152 // width, (rows, LANES)) * width
    lanes = np.arange(LANES)
    start = rng.integers(0, 1024, (rows, 1))
    stride = {"free": 1, "2-way": 2, "column": 32}[kind]
    return (start + lanes * stride) % (49152 // width) * width


def measure_table(op: str, kind: str, rows: int, repeat: int, folder: Path) -> None:
    gpu, operation = device("sm_90"), parse_operation(op, None)
    address = table(kind, operation.width_bytes, rows)
    path = folder / "address.npy"
    np.save(path, address)
    copy = np.empty_like(address)
    took = seconds(lambda: count_table(path, op, None, gpu), repeat)
    copying = seconds(lambda: np.copyto(copy, address), repeat)
    sorting = seconds(lambda: np.sort(address, axis=1), max(1, repeat // 2))
    rates = "".join(f"{address.size / s / 1e6:>13.0f}" for s in (took, copying, sorting))
    print(f"{op:<20} {kind:<7}{rates}{took / copying:>13.1f}{took / sorting:>13.2f}")


def measure_small(op: str, rows: int) -> None:
    gpu, operation = device("sm_90"), parse_operation(op, None)
    address = table("random", operation.width_bytes, rows)
    active = np.ones(address.shape, bool)
    took = seconds(lambda: count_wavefronts(address, active, operation, gpu), 50)
    print(f"{op:<20} {rows:>4} instructions: {took * 1e6:.0f} us a call")


def measure_lines(repeat: int) -> None:
    lines = gzip.decompress(RECORDS.read_bytes())
    many = lines * 40
    count = many.count(b"\n")
    took = seconds(lambda: list(count_lines(io.BytesIO(many).read, device("sm_90"))), repeat)
    print(f"JSON lines: {count / took:,.0f} records/s ({len(many) / took / 1e6:.0f} MB/s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instructions", type=int, default=500_000)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    print("million lane accesses a second, and time as a multiple of the copy's and the sort's")
    heads = ("count", "memory copy", "NumPy sort", "/copy", "/sort")
    print("op                   table  " + "".join(f"{head:>13}" for head in heads))
    with tempfile.TemporaryDirectory() as folder:
        for op in (
            "ld.shared.u8",
            "ld.shared.b32",
            "st.shared.b32",
            "atom.shared.add.u32",
            "ld.shared.v2.b32",
            "st.shared.v2.b32",
            "ld.shared.v4.b32",
            "st.shared.v4.b32",
            "ldmatrix.x4",
            "cp.async.ca.16",
        ):
            for kind in ("free", "random", "column") if "b32" in op else ("random",):
                measure_table(op, kind, args.instructions, args.repeat, Path(folder))
    measure_lines(args.repeat)
    for op in ("ld.shared.b32", "ld.shared.v4.b32"):
        for rows in (32, 256):
            measure_small(op, rows)


if __name__ == "__main__":
    main()
