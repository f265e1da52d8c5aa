"""Record what an NVIDIA GPU of compute capability 9.0 counts for single warp instructions.

    python3 scripts/measure/record_h200.py --record h200_more.jsonl.gz [--per-op N] [--seed N]

Writes a CUDA program with one kernel an instruction, each of which issues exactly one warp-wide
shared-memory access with addresses and mask from a table in global memory; profiles one launch a
record with Nsight Compute; and writes records in the form of tests/data/h200_wavefronts.jsonl.gz.
Needs nvcc, cuobjdump, ncu, numpy and permission to read the counters; no solver. Before it
profiles, it reads the machine code: each kernel must hold exactly one shared-memory instruction, of
the kind meant. tests/engine/test_conflicts.py holds the engine against the records.
"""

import gzip
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import on_gpu
from on_gpu import CONFLICTS_SUM, ELSEWHERE_SUM, WAVEFRONTS_SUM

from layoutopt.codegen.templates import filled_text, parts_of

KNOWN = Path(__file__).parents[2] / "tests/data/h200_wavefronts.jsonl.gz"
LANES = np.arange(32)
FULL = 0xFFFFFFFF
SHARED_BYTES = 32768
PARTS = parts_of(Path(__file__).with_suffix(".cu").read_text())

# Of each op: bytes at each lane's address, the pattern of its machine instruction's name, the CUDA statement
# that active lanes run. It sees `a` (shared address), `v0`..`v3` (values that the compiler cannot know) and
# `source` (global).
INSTRUCTIONS: dict[str, tuple[int, str, str]] = {}


def _add(op: str, width: int, machine: str, text: str, writes: int = 0, reads: Sequence[int] = ()) -> None:
    written = ", ".join(f'"=r"(v{k})' for k in range(writes))
    read = ", ".join(['"r"(a)', *(f'"r"(v{k})' for k in reads)])
    INSTRUCTIONS[op] = width, machine, f'asm volatile("{text}" : {written} : {read} : "memory");'


def _held(first: int, count: int) -> str:
    names = ", ".join(f"%{first + k}" for k in range(count))
    return names if count == 1 else f"{{{names}}}"


_WIDTHS = {"u8": r"\.U8", "u16": r"\.U16", "b32": "", "b64": r"\.64", "v2.b32": r"\.64", "v4.b32": r"\.128"}
_WORDS = {"b64": 2, "v2.b32": 2, "v4.b32": 4}
for _kind, _suffix in _WIDTHS.items():
    _op, _n = f"ld.shared.{_kind}", _WORDS.get(_kind, 1)
    _text = f"{_op} {_held(0, _n)}, [%{_n}];"
    if _kind == "u16":
        _text = f"{{ .reg .u16 h; {_op} h, [%1]; cvt.u32.u16 %0, h; }}"
    if _kind == "b64":
        _text = f"{{ .reg .b64 d; {_op} d, [%2]; mov.b64 {{%0, %1}}, d; }}"
    _add(_op, {"u8": 1, "u16": 2}.get(_kind, 4 * _n), f"LDS{_suffix}", _text, _n)
for _kind, _suffix in _WIDTHS.items():
    _op, _n = f"st.shared.{_kind}", _WORDS.get(_kind, 1)
    _text = f"{_op} [%0], {_held(1, _n)};"
    if _kind == "u16":
        _text = f"{{ .reg .u16 h; cvt.u16.u32 h, %1; {_op} [%0], h; }}"
    if _kind == "b64":
        _text = f"{{ .reg .b64 d; mov.b64 d, {{%1, %2}}; {_op} [%0], d; }}"
    _add(_op, {"u8": 1, "u16": 2}.get(_kind, 4 * _n), f"STS{_suffix}", _text, reads=range(_n))
_add("atom.shared.add.u32", 4, r"ATOMS\.ADD", "atom.shared.add.u32 %0, [%1], %2;", 1, [1])
# The one reduction that the compiler turns into an instruction of its own: it counts lanes.
_add("red.shared.add.u32", 4, r"ATOMS\.POPC\.INC\.32", "red.shared.add.u32 [%0], 1;")
for _n, _suffix in ((4, ""), (8, r"\.64"), (16, r"\.128")):
    INSTRUCTIONS[f"cp.async.ca.{_n}"] = (
        _n,
        rf"LDGSTS\.E{_suffix}",
        f'asm volatile("cp.async.ca.shared.global [%0], [%1], {_n};" '
        f':: "r"(a), "l"(source + {_n} * lane) : "memory"); asm volatile("cp.async.wait_all;" ::: "memory");',
    )
for _n in (1, 2, 4):
    for _trans in ("", ".trans"):
        _move = (r"\.MT88" if _trans else r"\.M88") + (rf"\.{_n}" if _n > 1 else "")
        _form, _list = f"x{_n}{_trans}", [f"%{k}" for k in range(_n + 1)]
        _text = f"ldmatrix.sync.aligned.m8n8.{_form}.shared.b16 {{{', '.join(_list[:_n])}}}, [%{_n}];"
        _add(f"ldmatrix.{_form}", 16, rf"LDSM\.16{_move}", _text, _n)
        _text = f"stmatrix.sync.aligned.m8n8.{_form}.shared.b16 [%0], {{{', '.join(_list[1:])}}};"
        _add(f"stmatrix.{_form}", 16, rf"STSM\.16{_move}", _text, reads=range(_n))
_add("red.shared.add.u32 of a register", 4, r"ATOMS\.ADD", "red.shared.add.u32 [%0], %1;", reads=[1])
_add("red.shared.max.u32", 4, r"ATOMS\.MAX", "red.shared.max.u32 [%0], %1;", reads=[1])
_add("atom.shared.add.u32 of 1", 4, r"ATOMS\.ADD", "atom.shared.add.u32 %0, [%1], 1;", 1)
_add("atom.shared.max.u32", 4, r"ATOMS\.MAX", "atom.shared.max.u32 %0, [%1], %2;", 1, [1])
_add("atom.shared.exch.b32", 4, r"ATOMS\.EXCH", "atom.shared.exch.b32 %0, [%1], %2;", 1, [1])

OPS = list(INSTRUCTIONS)


def kernel_name(op: str) -> str:
    return "k_" + re.sub(r"\W", "_", op)


def cuda_source() -> str:
    kernels = "".join(
        filled_text(PARTS["kernel"], NAME=kernel_name(op), STATEMENT=statement)
        for op, (_, _, statement) in INSTRUCTIONS.items()
    )
    table = ", ".join(["k_none", *map(kernel_name, OPS)])
    return filled_text(PARTS["host"], KERNELS=kernels, TABLE=table, SHARED_BYTES=SHARED_BYTES)


def build(folder: Path) -> Path:
    (folder / "record.cu").write_text(cuda_source())
    print(f"compiling {len(OPS)} kernels", flush=True)
    program = folder / "record"
    on_gpu.run("nvcc", "-O2", "-arch=sm_90", "-o", program, folder / "record.cu")
    return program


SHARED = "(?:LDS|STS|ATOMS|RED|ATOM|LDGSTS|UBLKCP|LD|ST)"


def check_machine_code(program: Path) -> None:
    """Stop where an op is not one shared-memory instruction, the one meant."""
    found: dict[str, list[str]] = {}
    names = {kernel_name(op): op for op in OPS}
    op = ""
    for line in on_gpu.run("cuobjdump", "--dump-sass", program).splitlines():
        if match := re.search(r"Function : (\S+)", line):
            op = names.get(match[1], "none")
            found[op] = []
        # After a predicate register or none; not after @!PT, by which no lane ever runs it.
        elif match := re.search(rf"^\s*/\*[0-9a-f]{{4,}}\*/\s+(?:@!?U?P[0-9]\s+)?({SHARED}M?\b[\w.]*)", line):
            found[op].append(match[1])
    wrong = [f"none: {found.get('none')}"] if found.get("none") != [] else []
    for op in OPS:
        print(f"{op:<34}{' '.join(found[op])}")
        if len(found[op]) != 1 or not re.fullmatch(INSTRUCTIONS[op][1], found[op][0]):
            wrong.append(f"{op}: {' '.join(found[op]) or 'nothing'}, expected {INSTRUCTIONS[op][1]}")
    if wrong:
        sys.exit("not one shared-memory instruction of the kind meant:\n" + "\n".join(wrong))
    print(f"each of {len(OPS)} kernels holds one shared-memory instruction, of the kind meant", flush=True)


# Records ------------------------------------------------------------------------------------------

# PTX does not tell these apart from the ops of the same name, so their records say what they are.
RECORDED_AS: dict[str, dict[str, object]] = {
    op: {"op": "atomic", "bytes": 4, "ptx": op} for op in OPS if " of " in op
}
COUNTERS = {"wavefronts": WAVEFRONTS_SUM, "elsewhere": ELSEWHERE_SUM, "bank_conflicts": CONFLICTS_SUM}


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


def record_of(op: str, family: str, address: np.ndarray, active: int) -> dict[str, Any]:
    return {"op": op, "active": f"0x{active:08x}", "byte_address": address.tolist(), "family": family}


def make_records(per_op: int, seed: int) -> list[dict[str, Any]]:
    """Random patterns of each op, none of which is in the record of the repository."""
    rng = np.random.default_rng(seed)
    with gzip.open(KNOWN, "rt") as file:
        known = {identity(json.loads(line)) for line in file}
    records: list[dict[str, Any]] = []
    for op in OPS:
        made = 0
        while made < per_op:
            family, address = addresses(rng, INSTRUCTIONS[op][0])
            suffix, active = mask(rng, op)
            record = record_of(op, family + suffix, address, active)
            if identity(record) not in known:
                known.add(identity(record))
                made += 1
                records.append(record)
    return records


def identity(record: dict[str, Any]) -> tuple[object, ...]:
    return record["op"], int(record["active"], 16), *record["byte_address"]


def measure(records: list[dict[str, Any]], program: Path) -> list[dict[str, int]]:
    """What each record's launch counts, between two launches that touch no shared memory."""
    nothing = record_of("none", "", LANES * 0, FULL)
    launches = [nothing, *records, nothing]
    index = {"none": 0, **{op: i for i, op in enumerate(OPS, 1)}}
    packed = [[index[op], active, *where] for op, active, *where in map(identity, launches)]
    table = program.with_name("records.bin")
    table.write_bytes(np.array(packed, "<u4").tobytes())
    found = on_gpu.profiled(COUNTERS, "^k_", program, table)
    for i, (launch, seen) in enumerate(zip(launches, found, strict=True)):
        if seen.kernel != kernel_name(launch["op"]):
            sys.exit(f"launch {i} should be {kernel_name(launch['op'])}, but ncu reports {seen.kernel}")
    first, *counts, last = (seen.counts for seen in found)
    if first != last or first["wavefronts"] != first["elsewhere"] or first["bank_conflicts"]:
        sys.exit(f"something else moves the counters: first launch {first}, last launch {last}")
    return counts


def record(out: Path, *, per_op: int = 48, seed: int = 20240907) -> None:
    records = make_records(per_op, seed)
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        check_machine_code(program)
        counts = measure(records, program)
    with gzip.open(out, "wt") as file:
        for r, counters in zip(records, counts, strict=True):
            r["wavefronts"] = counters["wavefronts"] - counters["elsewhere"]
            r["bank_conflicts"] = counters["bank_conflicts"]
            if r["wavefronts"] < 1:
                sys.exit(f"no wavefront counted for {r}")
            file.write(json.dumps(r | RECORDED_AS.get(r["op"], {}), separators=(",", ":")) + "\n")
    print(f"wrote {len(records)} records to {out}: {dict(Counter(r['op'] for r in records))}")


if __name__ == "__main__":
    on_gpu.command_line(__doc__, record)
