"""A CUDA program with one kernel a warp instruction, each of one shared-memory access; its machine code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from on_gpu import run

from layoutopt.codegen.templates import filled_text, parts_of

SHARED_BYTES = 32768
PARTS = parts_of(Path(__file__).with_suffix(".cu").read_text())

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
    # The one reduction that the compiler turns into an instruction of its own: it counts lanes.
    "red.shared.add.u32": (4, 'asm volatile("red.shared.add.u32 [%0], 1;" :: "r"(a) : "memory");'),
}  # fmt: skip
# The machine instruction of each op, as a pattern of its name in full.
MACHINE: dict[str, str] = {
    "ld.shared.u8": r"LDS\.U8",
    "ld.shared.u16": r"LDS\.U16",
    "st.shared.u8": r"STS\.U8",
    "st.shared.u16": r"STS\.U16",
    "atom.shared.add.u32": r"ATOMS\.ADD",
    "red.shared.add.u32": r"ATOMS\.POPC\.INC\.32",
}
for _bytes, _suffix in ((4, ""), (8, r"\.64"), (16, r"\.128")):
    for _op, (_width, _) in STATEMENTS.items():
        if _op[:2] in ("ld", "st") and _width == _bytes:
            MACHINE[_op] = ("LDS" if _op[:2] == "ld" else "STS") + _suffix
for _n, _cache, _suffix in (
    (4, "ca", ""),
    (8, "ca", r"\.64"),
    (16, "ca", r"\.128"),
    (16, "cg", r"\.BYPASS\.128"),
):
    STATEMENTS[f"cp.async.{_cache}.{_n}"] = (
        _n,
        f'asm volatile("cp.async.{_cache}.shared.global [%0], [%1], {_n};" '
        f':: "r"(a), "l"(source + {_n} * lane) : "memory"); asm volatile("cp.async.wait_all;" ::: "memory");',
    )
    MACHINE[f"cp.async.{_cache}.{_n}"] = rf"LDGSTS\.E{_suffix}"
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
        _move = r"\.MT88" if _trans else r"\.M88"
        for _kind, _name in (("ldmatrix", "LDSM"), ("stmatrix", "STSM")):
            MACHINE[f"{_kind}.x{_m}{_trans}"] = f"{_name}\\.16{_move}" + (rf"\.{_m}" if _m > 1 else "")
STATEMENTS |= {
    "red.shared.add.u32 of a register": (4, 'asm volatile("red.shared.add.u32 [%0], %1;" '
                                         ':: "r"(a), "r"(v1) : "memory");'),
    "red.shared.max.u32": (4, 'asm volatile("red.shared.max.u32 [%0], %1;" :: "r"(a), "r"(v1) : "memory");'),
    "atom.shared.add.u32 of 1": (4, 'asm volatile("atom.shared.add.u32 %0, [%1], 1;" '
                                 ': "=r"(v0) : "r"(a) : "memory");'),
    "atom.shared.max.u32": (4, 'asm volatile("atom.shared.max.u32 %0, [%1], %2;" '
                            ': "=r"(v0) : "r"(a), "r"(v1) : "memory");'),
    "atom.shared.exch.b32": (4, 'asm volatile("atom.shared.exch.b32 %0, [%1], %2;" '
                             ': "=r"(v0) : "r"(a), "r"(v1) : "memory");'),
    "atom.shared.cas.b32": (4, 'asm volatile("atom.shared.cas.b32 %0, [%1], %2, %3;" '
                            ': "=r"(v0) : "r"(a), "r"(v1), "r"(v2) : "memory");'),
}  # fmt: skip
MACHINE |= {
    "red.shared.add.u32 of a register": r"ATOMS\.ADD",
    "red.shared.max.u32": r"ATOMS\.MAX",
    "atom.shared.add.u32 of 1": r"ATOMS\.ADD",
    "atom.shared.max.u32": r"ATOMS\.MAX",
    "atom.shared.exch.b32": r"ATOMS\.EXCH",
    "atom.shared.cas.b32": r"ATOMS\.CAS",
}

OPS = list(STATEMENTS)


def kernel_name(op: str) -> str:
    return "k_" + re.sub(r"\W", "_", op)


def cuda_source() -> str:
    kernels = "".join(
        filled_text(PARTS["kernel"], NAME=kernel_name(op), STATEMENT=statement)
        for op, (_, statement) in STATEMENTS.items()
    )
    table = ", ".join(["k_none", *map(kernel_name, OPS)])
    return filled_text(PARTS["host"], KERNELS=kernels, TABLE=table, SHARED_BYTES=SHARED_BYTES)


def build(folder: Path) -> Path:
    (folder / "record.cu").write_text(cuda_source())
    print(f"compiling {len(OPS)} kernels", flush=True)
    program = folder / "record"
    run("nvcc", "-O2", "-arch=sm_90", "-o", program, folder / "record.cu")
    return program


SHARED = "(?:LDS|STS|ATOMS|RED|ATOM|LDGSTS|UBLKCP|LD|ST)"


def machine_code(program: Path) -> dict[str, str]:
    """The one shared-memory instruction of each op; stops where it is not the one meant."""
    found: dict[str, list[str]] = {}
    names = {kernel_name(op): op for op in OPS}
    op = ""
    for line in run("cuobjdump", "--dump-sass", program).splitlines():
        if match := re.search(r"Function : (\S+)", line):
            op = names.get(match[1], "none")
            found[op] = []
        # After a predicate register or none; not after @!PT, by which no lane ever runs it.
        elif match := re.search(rf"^\s*/\*[0-9a-f]{{4,}}\*/\s+(?:@!?U?P[0-9]\s+)?({SHARED}M?\b[\w.]*)", line):
            found[op].append(match[1])
    wrong = [f"none: {found.get('none')}"] if found.get("none") != [] else []
    for op in OPS:
        print(f"{op:<34}{' '.join(found[op])}")
        if len(found[op]) != 1 or not re.fullmatch(MACHINE[op], found[op][0]):
            wrong.append(f"{op}: {' '.join(found[op]) or 'nothing'}, expected {MACHINE[op]}")
    if wrong:
        sys.exit("not one shared-memory instruction of the kind meant:\n" + "\n".join(wrong))
    print(f"each of {len(OPS)} kernels holds one shared-memory instruction, of the kind meant", flush=True)
    return {op: found[op][0] for op in OPS}
