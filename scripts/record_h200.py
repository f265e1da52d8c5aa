"""Record what an NVIDIA GPU of compute capability 9.0 counts for single warp instructions.

    python3 scripts/record_h200.py --out h200_more.jsonl.gz

Writes a CUDA program with one kernel an instruction, each of which issues exactly one warp-wide
shared-memory access with addresses and mask from a table in global memory; profiles one launch a
record with Nsight Compute; and writes records in the form of tests/data/h200_wavefronts.jsonl.gz.
Needs nvcc, ncu, numpy and permission to read the counters; not layoutopt.

    python3 scripts/record_h200.py --compare h200_more.jsonl.gz

prints, per op, how many records layoutopt's engine disagrees with (needs layoutopt, no GPU).
"""

from __future__ import annotations

import argparse
import csv
import glob
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
SHARED_BYTES = 32768
LANES = np.arange(32)
FULL = 0xFFFFFFFF

# op -> (bytes at each lane's address, CUDA statement run by the active lanes). The statement sees
# `a` (shared address), `v0`..`v3` (values that the compiler cannot know) and `source` (global).
STATEMENTS: dict[str, tuple[int, str]] = {
    "ld.shared.u8": (1, 'asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v0) : "r"(a) : "memory");'),
    "ld.shared.u16": (2, 'asm volatile("{ .reg .u16 h; ld.shared.u16 h, [%1]; cvt.u32.u16 %0, h; }" '
                      ': "=r"(v0) : "r"(a) : "memory");'),
    "ld.shared.b32": (4, 'asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v0) : "r"(a) : "memory");'),
    "ld.shared.b64": (8, 'asm volatile("{ .reg .b64 d; ld.shared.b64 d, [%2]; mov.b64 {%0, %1}, d; }" '
                      ': "=r"(v0), "=r"(v1) : "r"(a) : "memory");'),
    "ld.shared.v2.b32": (8, 'asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" '
                         ': "=r"(v0), "=r"(v1) : "r"(a) : "memory");'),
    "ld.shared.v4.b32": (16, 'asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" '
                         ': "=r"(v0), "=r"(v1), "=r"(v2), "=r"(v3) : "r"(a) : "memory");'),
    "st.shared.u8": (1, 'asm volatile("st.shared.u8 [%0], %1;" :: "r"(a), "r"(v0) : "memory");'),
    "st.shared.u16": (2, 'asm volatile("{ .reg .u16 h; cvt.u16.u32 h, %1; st.shared.u16 [%0], h; }" '
                      ':: "r"(a), "r"(v0) : "memory");'),
    "st.shared.b32": (4, 'asm volatile("st.shared.b32 [%0], %1;" :: "r"(a), "r"(v0) : "memory");'),
    "st.shared.b64": (8, 'asm volatile("{ .reg .b64 d; mov.b64 d, {%1, %2}; st.shared.b64 [%0], d; }" '
                      ':: "r"(a), "r"(v0), "r"(v1) : "memory");'),
    "st.shared.v2.b32": (8, 'asm volatile("st.shared.v2.b32 [%0], {%1, %2};" '
                         ':: "r"(a), "r"(v0), "r"(v1) : "memory");'),
    "st.shared.v4.b32": (16, 'asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" '
                         ':: "r"(a), "r"(v0), "r"(v1), "r"(v2), "r"(v3) : "memory");'),
    "atom.shared.add.u32": (4, 'asm volatile("atom.shared.add.u32 %0, [%1], %2;" '
                            ': "=r"(v0) : "r"(a), "r"(v1) : "memory");'),
    "red.shared.add.u32": (4, 'asm volatile("red.shared.add.u32 [%0], %1;" :: "r"(a), "r"(v1) : "memory");'),
}  # fmt: skip
for _n in (4, 8, 16):
    STATEMENTS[f"cp.async.ca.{_n}"] = (
        _n,
        f'asm volatile("cp.async.ca.shared.global [%0], [%1], {_n};" '
        f':: "r"(a), "l"(source + {_n} * lane) : "memory"); asm volatile("cp.async.wait_all;" ::: "memory");',
    )
for _m in (1, 2, 4):
    for _trans in ("", ".trans"):
        _out = ", ".join(f"%{i}" for i in range(_m))
        _in = ", ".join(f"%{i + 1}" for i in range(_m))
        _written = ", ".join(f'"=r"(v{i})' for i in range(_m))
        _read = ", ".join(f'"r"(v{i})' for i in range(_m))
        STATEMENTS[f"ldmatrix.x{_m}{_trans}"] = (
            16,
            f'asm volatile("ldmatrix.sync.aligned.m8n8.x{_m}{_trans}.shared.b16 {{{_out}}}, [%{_m}];" '
            f': {_written} : "r"(a) : "memory");',
        )
        STATEMENTS[f"stmatrix.x{_m}{_trans}"] = (
            16,
            f'asm volatile("stmatrix.sync.aligned.m8n8.x{_m}{_trans}.shared.b16 [%0], {{{_in}}};" '
            f':: "r"(a), {_read} : "memory");',
        )

OPS = list(STATEMENTS)

HOST = r"""
#include <cstdio>
#include <cstdlib>
#include <vector>
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); exit(3); } } while (0)

struct Record { unsigned op, active; unsigned address[32]; };

__device__ __forceinline__ unsigned shared_base() {
    extern __shared__ __align__(1024) unsigned char memory[];
    return static_cast<unsigned>(__cvta_generic_to_shared(memory));
}

extern "C" __global__ void k_none(const Record* r, const unsigned char* source, unsigned* out) {
    unsigned lane = threadIdx.x;
    out[lane] = shared_base() + r->address[lane] + source[lane];
}
KERNELS
typedef void (*Kernel)(const Record*, const unsigned char*, unsigned*);

int main(int argc, char** argv) {
    Kernel kernels[] = { TABLE };
    FILE* file = argc > 1 ? fopen(argv[1], "rb") : nullptr;
    if (!file) { fprintf(stderr, "usage: program records.bin\n"); return 3; }
    std::vector<Record> records;
    for (Record r; fread(&r, sizeof r, 1, file) == 1;) records.push_back(r);
    fclose(file);
    Record* table; unsigned char* source; unsigned* out;
    CHECK(cudaMalloc(&table, records.size() * sizeof(Record)));
    CHECK(cudaMalloc(&source, 4096));
    CHECK(cudaMalloc(&out, 32 * 4));
    CHECK(cudaMemset(source, 0, 4096));
    CHECK(cudaMemcpy(table, records.data(), records.size() * sizeof(Record), cudaMemcpyHostToDevice));
    for (size_t i = 0; i < records.size(); ++i) {
        kernels[records[i].op]<<<1, 32, SHARED_BYTES>>>(table + i, source, out);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        if (i == 0) {  // k_none at address 0: where shared memory starts
            unsigned base[32];
            CHECK(cudaMemcpy(base, out, sizeof base, cudaMemcpyDeviceToHost));
            if (base[0] % 128) { fprintf(stderr, "shared memory starts at %u\n", base[0]); return 3; }
        }
    }
    return 0;
}
"""

KERNEL = r"""
extern "C" __global__ void NAME(const Record* r, const unsigned char* source, unsigned* out) {
    unsigned lane = threadIdx.x, a = shared_base() + r->address[lane];
    unsigned v0 = source[lane], v1 = source[lane + 32], v2 = source[lane + 64], v3 = source[lane + 96];
    if (r->active >> lane & 1) { STATEMENT }
    out[lane] = v0 ^ v1 ^ v2 ^ v3;
}
"""


def kernel_name(op: str) -> str:
    return "k_" + op.replace(".", "_")


def cuda_source() -> str:
    kernels = "".join(
        KERNEL.replace("NAME", kernel_name(op)).replace("STATEMENT", statement)
        for op, (_, statement) in STATEMENTS.items()
    )
    table = ", ".join(["k_none", *map(kernel_name, OPS)])
    return HOST.replace("KERNELS", kernels).replace("TABLE", table).replace("SHARED_BYTES", str(SHARED_BYTES))


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
        return row ^ (LANES >> rng.integers(0, 4)) % rng.choice([2, 4, 8, 16, 32])

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
    return family, unit % units * width


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


def make_records(per_op: int, seed: int, known: set[tuple[object, ...]]) -> list[dict[str, object]]:
    rng = np.random.default_rng(seed)
    records: list[dict[str, object]] = []
    for op in OPS:
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


def tool(name: str) -> str:
    candidates = [shutil.which(name), f"/usr/local/cuda/bin/{name}"]
    candidates += sorted(glob.glob(f"/opt/nvidia/nsight-compute/*/{name}"), reverse=True)
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    sys.exit(f"{name} was not found on PATH, in /usr/local/cuda/bin or in /opt/nvidia/nsight-compute")


def profile(program: Path, table: Path, launches: int) -> list[dict[str, str]]:
    """One row of Nsight Compute's raw page a launch, in launch order."""
    command = [tool("ncu"), "--metrics", f"{WAVEFRONTS},{CONFLICTS}", "--clock-control", "none"]
    command += ["--cache-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--kernel-name-base", "function", str(program), str(table)]
    print("running", " ".join(command), flush=True)
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
    header = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if header is None:
        sys.exit("no CSV in ncu's output:\n" + "".join(lines[-30:]))
    table_lines = [line for line in lines[header:] if line.startswith('"')]
    rows = [row for row in csv.DictReader(table_lines) if row["ID"].strip()]  # the second line holds units
    for name in ("Kernel Name", WAVEFRONTS, CONFLICTS):
        if not rows or name not in rows[0]:
            sys.exit(f"no column {name!r} in ncu's CSV; first lines:\n" + "".join(table_lines[:3]))
    rows.sort(key=lambda row: int(row["ID"]))
    if len(rows) != launches:
        sys.exit(f"{launches} launches, but ncu reports {len(rows)}")
    return rows


def number(row: dict[str, str], name: str) -> int:
    return int(float(row[name].replace(",", "")))


def record(args: argparse.Namespace) -> None:
    known: set[tuple[object, ...]] = set()
    if args.known.exists():
        with gzip.open(args.known, "rt") as file:
            for line in file:
                r = json.loads(line)
                known.add((r["op"], int(r["active"], 16), *r["byte_address"]))
    records = make_records(args.per_op, args.seed, known)
    # The first and last launches touch no shared memory: what they count is not the instruction's.
    launches = [("none", FULL, [0] * 32)]
    launches += [(str(r["op"]), int(str(r["active"]), 16), r["byte_address"]) for r in records]
    launches += [("none", FULL, [0] * 32)]
    index = {"none": 0, **{op: i for i, op in enumerate(OPS, 1)}}
    packed = np.array([[index[op], active, *where] for op, active, where in launches], "<u4")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "record.cu").write_text(cuda_source())
        program, table = folder / "record", folder / "records.bin"
        table.write_bytes(packed.tobytes())
        print(f"compiling {len(OPS)} kernels", flush=True)
        subprocess.run(
            [tool("nvcc"), "-O2", "-arch=sm_90", "-o", str(program), str(folder / "record.cu")], check=True
        )
        if args.compile_only:
            print("compiled")
            return
        rows = profile(program, table, len(launches))
    for i, ((op, _, _), row) in enumerate(zip(launches, rows, strict=True)):
        given = row["Kernel Name"].split("(")[0].strip()
        if given != kernel_name(op):
            sys.exit(f"launch {i} should be {kernel_name(op)}, but ncu reports {given}")
    baseline = [(number(row, WAVEFRONTS), number(row, CONFLICTS)) for row in (rows[0], rows[-1])]
    print("launches without a shared access count", baseline, flush=True)
    if baseline[0] != baseline[1]:
        sys.exit("the two launches without a shared access differ: something else moves the counters")
    with gzip.open(args.out, "wt") as file:
        for r, row in zip(records, rows[1:-1], strict=True):
            r["wavefronts"] = number(row, WAVEFRONTS) - baseline[0][0]
            r["bank_conflicts"] = number(row, CONFLICTS) - baseline[0][1]
            if int(str(r["wavefronts"])) < 1:
                sys.exit(f"no wavefront counted for {r}")
            file.write(json.dumps(r, separators=(",", ":")) + "\n")
    print(f"wrote {len(records)} records to {args.out}")
    for op, count in Counter(str(r["op"]) for r in records).items():
        waves = [int(str(r["wavefronts"])) for r in records if r["op"] == op]
        print(f"{op:<22}{count:>5} records, wavefronts {min(waves)} to {max(waves)}")


def compare(path: Path) -> None:
    from layoutopt.conflicts import count_wavefronts
    from layoutopt.devices import device
    from layoutopt.operations import parse_operation

    with gzip.open(path, "rt") as file:
        records = [json.loads(line) for line in file]
    print(f"{'op':<22}{'records':>8}{'wavefronts differ':>19}{'conflicts differ':>18}")
    for op in dict.fromkeys(r["op"] for r in records):
        mine = [r for r in records if r["op"] == op]
        active = np.array([[int(r["active"], 16) >> lane & 1 for lane in range(32)] for r in mine], bool)
        address = np.array([r["byte_address"] for r in mine], np.int64)
        counts = count_wavefronts(address, active, parse_operation(op, None), device("sm_90"))
        waves = sum(int(c) != r["wavefronts"] for c, r in zip(counts.wavefronts, mine, strict=True))
        conflicts = sum(
            int(c) != r["bank_conflicts"] for c, r in zip(counts.bank_conflicts, mine, strict=True)
        )
        print(f"{op:<22}{len(mine):>8}{waves:>19}{conflicts:>18}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="records to write, .jsonl.gz")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare records with layoutopt")
    parser.add_argument("--compile-only", action="store_true", help="compile, and stop")
    parser.add_argument("--per-op", type=int, default=48, help="records of each op")
    parser.add_argument("--seed", type=int, default=20240907)
    parser.add_argument(
        "--known",
        type=Path,
        default=Path(__file__).parent.parent / "tests/data/h200_wavefronts.jsonl.gz",
        help="records not to take again",
    )
    args = parser.parse_args()
    if args.compare:
        compare(args.compare)
    elif args.out or args.compile_only:
        record(args)
    else:
        parser.error("one of --out, --compare or --compile-only is needed")


if __name__ == "__main__":
    main()
