"""Record what an NVIDIA GPU of compute capability 9.0 counts for single warp instructions.

    python3 scripts/measure/record_h200.py --out h200_more.jsonl.gz

Writes a CUDA program with one kernel an instruction, each of which issues exactly one warp-wide
shared-memory access with addresses and mask from a table in global memory; profiles one launch a
record with Nsight Compute; and writes records in the form of tests/data/h200_wavefronts.jsonl.gz.
Needs nvcc, cuobjdump, ncu, numpy and permission to read the counters; no solver. Before it
profiles, it reads the machine code: each kernel must hold exactly one shared-memory instruction, of
the kind meant.

    python3 scripts/measure/record_h200.py --split h200_counter_split.json

records which of the profiler's shared-memory counters each op moves, a few patterns an op.

    python3 scripts/measure/record_h200.py --compare h200_more.jsonl.gz

prints, per op, how many records layoutopt's engine disagrees with (needs no GPU).
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import on_gpu
from on_gpu import CONFLICTS_SUM, ELSEWHERE_SUM, RAW_PAGE, WAVEFRONTS_SUM, counted, provenance, run, tool
from warp_instructions import OPS, SHARED_BYTES, STATEMENTS, build, kernel_name, machine_code

from layoutopt.hardware import machine

LANES = np.arange(32)
FULL = 0xFFFFFFFF

# PTX does not tell these apart from the ops of the same name, so their records say what they are.
RECORDED_AS: dict[str, dict[str, object]] = {
    op: {"op": "atomic", "bytes": 4, "ptx": op} for op in OPS if " of " in op
}
# cp.async.cg moves neither counter; compare-and-swap is of no kind that layoutopt knows.
NOT_RECORDED = ("cp.async.cg.16", "atom.shared.cas.b32")
NOT_SPLIT = ("ld.shared.b64", "st.shared.b64", "ldmatrix.x1.trans", "ldmatrix.x2.trans",
             "stmatrix.x1.trans", "stmatrix.x2.trans")  # fmt: skip


def addresses(rng: np.random.Generator, width: int) -> tuple[str, np.ndarray]:
    """One pattern: its family's name, and 32 multiples of `width` inside shared memory."""
    units = SHARED_BYTES // width

    def base() -> np.ndarray:
        kind = rng.integers(4)
        if kind == 0:
            group = int(rng.choice([2, 4, 8, 16]))
            return LANES % group * rng.integers(0, 41) + LANES // group * rng.integers(0, 41)
        if kind == 1:
            return rng.permutation(32) * rng.integers(1, 20)
        if kind == 2:
            return rng.integers(0, rng.choice([3, 5, 12, 24, 40, 100, 1000]), 32)
        row = LANES * rng.integers(1, 70)
        return np.asarray(row ^ (LANES >> rng.integers(0, 4)) % rng.choice([2, 4, 8, 16, 32]))

    family = str(rng.choice(["plain", "offset", "equal", "pair1", "pair2", "pair_halves", "pair_broken"]))
    unit = base()
    if family == "offset":
        unit = unit + rng.integers(0, 64)
    elif family == "equal":
        copies = rng.random(32) < rng.uniform(0.1, 0.9)
        unit = np.where(copies, unit[rng.integers(32)], unit)
    elif family == "pair1":
        unit = unit[LANES & ~1]
    elif family == "pair2":
        unit = unit[LANES & ~2]
    elif family == "pair_halves":
        unit = np.where(LANES < 16, unit[LANES & ~1], unit[LANES & ~2])
    elif family == "pair_broken":
        unit = unit[LANES & ~int(rng.choice([1, 2]))]
        unit[rng.integers(32)] += rng.integers(1, 9)
    return family, np.asarray(unit % units * width)


def mask(rng: np.random.Generator, op: str) -> tuple[str, int]:
    # Matrix instructions are executed by the whole warp.
    if "matrix" in op or rng.random() < 0.4:
        return "", FULL
    kind = rng.integers(4)
    if kind == 0:
        lanes = rng.random(32) < rng.uniform(0.05, 0.95)
    elif kind == 1:
        lanes = rng.integers(0, 2, 4)[LANES // 8].astype(bool)
    elif kind == 2:
        lanes = (LANES & int(rng.choice([1, 2, 3, 4]))) == 0
    else:
        lanes = rng.integers(0, 2, 16)[LANES // 2] == LANES % 2
    lanes[rng.integers(32)] = True
    return "_mask", int(sum(1 << int(lane) for lane in np.flatnonzero(lanes)))


def make_records(
    ops: Sequence[str], per_op: int, seed: int, known: set[tuple[object, ...]]
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    records: list[dict[str, Any]] = []
    for op in ops:
        width, made = STATEMENTS[op][0], 0
        while made < per_op:
            family, address = addresses(rng, width)
            suffix, active = mask(rng, op)
            key = (op, active, *address.tolist())
            if key in known:
                continue
            known.add(key)
            made += 1
            records.append(
                {
                    "op": op,
                    "active": f"0x{active:08x}",
                    "byte_address": address.tolist(),
                    "family": family + suffix,
                }
            )
    return records


def profile(program: Path, table: Path, launches: int, metrics: Sequence[str]) -> list[dict[str, str]]:
    """One row of Nsight Compute's raw page a launch, in launch order."""
    command = [tool("ncu"), "--metrics", ",".join(metrics), *RAW_PAGE]
    command += ["--kernel-name-base", "function", str(program), str(table)]
    print("running", " ".join(command)[:2000], flush=True)
    start, lines, seen = time.monotonic(), [], 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "==ERROR==" in line or "==WARNING==" in line:
                print(line.rstrip(), flush=True)
            if "==PROF== Profiling" in line:
                seen += 1
                if seen % 100 == 0:
                    took = time.monotonic() - start
                    print(f"{seen} of {launches} launches, {took:.0f} s", flush=True)
    if process.returncode:
        sys.exit(f"ncu failed with exit status {process.returncode}:\n" + "".join(lines[-30:]))
    rows = machine.launches("".join(lines))
    for name in ("Kernel Name", *metrics):
        if not rows or name not in rows[0]:
            sys.exit(f"no column {name!r} in ncu's CSV:\n" + "".join(lines[-30:]))
    if len(rows) != launches:
        sys.exit(f"{launches} launches, but ncu reports {len(rows)}")
    return rows


def measure(records: list[dict[str, Any]], program: Path, metrics: Sequence[str]) -> list[dict[str, int]]:
    """What each record's launch counts, between two launches that touch no shared memory."""
    launches = [("none", FULL, [0] * 32)]
    launches += [(r["op"], int(r["active"], 16), r["byte_address"]) for r in records]
    launches += [("none", FULL, [0] * 32)]
    index = {"none": 0, **{op: i for i, op in enumerate(OPS, 1)}}
    packed = np.array([[index[op], active, *where] for op, active, where in launches], "<u4")
    table = program.with_name("records.bin")
    table.write_bytes(packed.tobytes())
    rows = profile(program, table, len(launches), metrics)
    for i, ((op, _, _), row) in enumerate(zip(launches, rows, strict=True)):
        given = row["Kernel Name"].split("(")[0].strip()
        if given != kernel_name(op):
            sys.exit(f"launch {i} should be {kernel_name(op)}, but ncu reports {given}")
    first, *counts, last = ({name: counted(row, name) for name in metrics} for row in rows)
    print("launches without a shared access count", {k: v for k, v in first.items() if v}, flush=True)
    if (
        first != last
        or first.get(WAVEFRONTS_SUM, 0) != first.get(ELSEWHERE_SUM, 0)
        or first.get(CONFLICTS_SUM)
    ):
        sys.exit(f"something else moves the counters: first launch {first}, last launch {last}")
    return counts


def record(args: argparse.Namespace) -> None:
    known: set[tuple[object, ...]] = set()
    if args.known.exists():
        with gzip.open(args.known, "rt") as file:
            for line in file:
                r = json.loads(line)
                known.add((r["op"], int(r["active"], 16), *r["byte_address"]))
    records = make_records([op for op in OPS if op not in NOT_RECORDED], args.per_op, args.seed, known)
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        machine_code(program)
        counted = measure(records, program, (WAVEFRONTS_SUM, ELSEWHERE_SUM, CONFLICTS_SUM))
    with gzip.open(args.out, "wt") as file:
        for r, counters in zip(records, counted, strict=True):
            r["wavefronts"] = counters[WAVEFRONTS_SUM] - counters[ELSEWHERE_SUM]
            r["bank_conflicts"] = counters[CONFLICTS_SUM]
            if r["wavefronts"] < 1:
                sys.exit(f"no wavefront counted for {r}")
            file.write(json.dumps(r | RECORDED_AS.get(r["op"], {}), separators=(",", ":")) + "\n")
    print(f"wrote {len(records)} records to {args.out}")
    for op, count in Counter(r["op"] for r in records).items():
        waves = [r["wavefronts"] for r in records if r["op"] == op]
        print(f"{op:<34}{count:>5} records, wavefronts {min(waves)} to {max(waves)}")


def split_records(seed: int) -> list[dict[str, Any]]:
    """A few patterns of each op, from free of conflicts to the worst."""
    rng = np.random.default_rng(seed)
    records = []
    for op in OPS:
        if op in NOT_SPLIT:
            continue
        width = STATEMENTS[op][0]
        every_third = FULL if "matrix" in op else sum(1 << lane for lane in range(0, 32, 3))
        patterns: list[tuple[str, np.ndarray, int]] = [
            ("consecutive", LANES * width, FULL),
            ("one_bank", LANES * 128, FULL),
            ("one_address", LANES * 0, FULL),
            ("random", rng.integers(0, 64, 32) * width, every_third),
        ]
        if op.startswith(("ld", "st")):  # predicated; the others are branched around
            patterns.append(("nobody", LANES * 0, 0))
        if op.startswith("cp.async.cg"):  # only the counters of patched code say how it is served
            patterns += [(*addresses(rng, width), FULL) for _ in range(12)]
        for family, address, active in patterns:
            records.append(
                {"op": op, "active": f"0x{active:08x}", "byte_address": address.tolist(), "family": family}
            )
    return records


def shared_metrics() -> tuple[list[str], list[str]]:
    """Counters of shared-memory passes: the hardware's, and those of code that the profiler patches."""
    hardware, patched = [], ["memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal"]
    for line in run("ncu", "--query-metrics").splitlines():
        name = line.partition(" ")[0]
        if re.match(r"l1tex__data_(bank_conflicts|pipe_lsu_wavefronts)\w*_mem_shared", name):
            hardware.append(f"{name}.sum")
        elif re.match(r"smsp__sass_l1tex_\w*_mem_shared", name):
            patched.append(f"{name}.sum")
    return hardware, patched


def split(args: argparse.Namespace) -> None:
    records = split_records(args.seed)
    hardware, patched = shared_metrics()
    print(f"{len(hardware)} hardware metrics and {len(patched)} of patched code", flush=True)
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        codes = machine_code(program)
        counted = measure(records, program, hardware)
        counted = [a | b for a, b in zip(counted, measure(records, program, patched), strict=True)]
    metrics = [*hardware, *patched]
    moved = [name for name in metrics if any(counters[name] for counters in counted)]
    head: dict[str, object] = {
        "about": "Which of Nsight Compute's counters single warp instructions move, one launch a record, as "
        "read. `counters` of a record is in the order of `moved`; those of `still` stayed at zero in every "
        "record. `machine`: each op's machine instruction. Family nobody: no lane is active, so that the "
        "instruction is predicated off. smsp__sass and memory_l1 counters are of code that the profiler "
        "patches; the others are the hardware's.",
        "provenance": provenance("record_h200.py --split"),
        "machine": {op: name for op, name in codes.items() if op not in NOT_SPLIT},
        "still": [name for name in metrics if name not in moved],
        "moved": moved,
    }
    for r, counters in zip(records, counted, strict=True):
        r["counters"] = [counters[name] for name in moved]
    args.split.write_text(on_gpu.record(head, "records", records))
    print(f"wrote {len(records)} records to {args.split}")


def compare(path: Path) -> None:
    from layoutopt.engine.conflicts import count_wavefronts
    from layoutopt.hardware.devices import device
    from layoutopt.hardware.operations import parse_operation

    with gzip.open(path, "rt") as file:
        records = [json.loads(line) for line in file]
    print(f"{'op':<22}{'records':>8}{'wavefronts differ':>19}{'conflicts differ':>18}")
    for op, width in dict.fromkeys((r["op"], r.get("bytes")) for r in records):
        mine = [r for r in records if r["op"] == op]
        active = np.array([[int(r["active"], 16) >> lane & 1 for lane in range(32)] for r in mine], bool)
        address = np.array([r["byte_address"] for r in mine], np.int64)
        counts = count_wavefronts(address, active, parse_operation(op, width), device("sm_90"))
        waves = sum(int(c) != r["wavefronts"] for c, r in zip(counts.wavefronts, mine, strict=True))
        conflicts = sum(
            int(c) != r.get("bank_conflicts", int(c))
            for c, r in zip(counts.bank_conflicts, mine, strict=True)
        )
        print(f"{op:<22}{len(mine):>8}{waves:>19}{conflicts:>18}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="records to write, .jsonl.gz")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare records with layoutopt")
    parser.add_argument("--split", type=Path, metavar="FILE", help="counters that each op moves, .json")
    parser.add_argument("--check-code", action="store_true", help="compile, read the machine code, and stop")
    parser.add_argument("--compile-only", action="store_true", help="compile, and stop")
    parser.add_argument("--per-op", type=int, default=48, help="records of each op")
    parser.add_argument("--seed", type=int, default=20240907)
    parser.add_argument(
        "--known",
        type=Path,
        default=Path(__file__).parents[2] / "tests/data/h200_wavefronts.jsonl.gz",
        help="records not to take again",
    )
    args = parser.parse_args()
    if args.compare:
        compare(args.compare)
    elif args.compile_only or args.check_code:
        with tempfile.TemporaryDirectory() as name:
            program = build(Path(name))
            if args.check_code:
                machine_code(program)
    elif args.split:
        split(args)
    elif args.out:
        record(args)
    else:
        parser.error("one of --out, --split, --compare, --check-code or --compile-only is needed")


if __name__ == "__main__":
    main()
