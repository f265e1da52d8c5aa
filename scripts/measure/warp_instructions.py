"""A CUDA program with one kernel a warp instruction, each of one shared-memory access; its machine code."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from on_gpu import run

from layoutopt.codegen.templates import filled_text, parts_of

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
    run("nvcc", "-O2", "-arch=sm_90", "-o", program, folder / "record.cu")
    return program


SHARED = "(?:LDS|STS|ATOMS|RED|ATOM|LDGSTS|UBLKCP|LD|ST)"


def check_machine_code(program: Path) -> None:
    """Stop where an op is not one shared-memory instruction, the one meant."""
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
        if len(found[op]) != 1 or not re.fullmatch(INSTRUCTIONS[op][1], found[op][0]):
            wrong.append(f"{op}: {' '.join(found[op]) or 'nothing'}, expected {INSTRUCTIONS[op][1]}")
    if wrong:
        sys.exit("not one shared-memory instruction of the kind meant:\n" + "\n".join(wrong))
    print(f"each of {len(OPS)} kernels holds one shared-memory instruction, of the kind meant", flush=True)
