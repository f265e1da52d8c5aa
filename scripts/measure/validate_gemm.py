"""Multiply matrices on a GPU through the code that is emitted for the problems of `layoutopt new gemm`.

    python scripts/measure/validate_gemm.py --write FOLDER     here: solve, emit, write one program a type
    python scripts/measure/validate_gemm.py --measure FOLDER   on the GPU: compile, run; writes measured.json

Operands A and B are what `new gemm` writes without options but the type, solved and emitted as CUDA.
The kernel fills both tiles from global memory, reads the fragments, multiplies them by `mma.sync` and
stores the accumulators where the PTX ISA says that they lie; all addresses in shared memory and all
instructions on it are the emitted ones. Small random integers, so the product must be exact. The control
reads B as the neighbouring lane: a program that calls this right too compares nothing. The second
step needs nvcc and msgspec; no solver. `tests/data/h200_gemm.json` is what it wrote.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import on_gpu

from layoutopt.codegen.templates import filled_text

# Tile element, as --element takes it: operand type and accumulator of the instruction, their C++ types
# and the C++ type of one register.
TYPES = {
    "f16": ("f16", "f32", "__half", "float", "uint32_t"),
    "bf16": ("bf16", "f32", "__nv_bfloat16", "float", "uint32_t"),
    "tf32": ("tf32", "f32", "float", "float", "uint32_t"),
    "i8": ("s8", "s32", "signed char", "int", "uint32_t"),
    "f8": ("e4m3", "f32", "__nv_fp8_e4m3", "float", "uint32_t"),
    "f64": ("f64", "f64", "double", "double", "double"),
}
CONSTRAINT = {"uint32_t": "r", "int": "r", "float": "f", "double": "d"}


def effective(header: str) -> list[str]:
    """The lines of an emitted header that compute addresses or are instructions."""
    return [line.strip() for line in header.splitlines() if "return " in line or "asm volatile" in line]


def operand(element: str, letter: str) -> tuple[dict, str, str]:
    """The problem that `new gemm` writes, the offset of its layout and the emitted header."""
    from layoutopt import solve
    from layoutopt.codegen.block import emit
    from layoutopt.files.file import from_data
    from layoutopt.files.starters import starter

    data = starter("gemm", element=element, operand=letter)
    problem = from_data(data)
    answer = solve(problem, time_limit=30)
    return data, str(answer.offset), emit(problem, answer)


def fragment_load(letter: str, op: str, outer: str) -> str:
    if op.startswith("ldmatrix"):
        return f"gemm_{letter}_fragments(smem, tid, {outer}, k_step, v);"
    return f"v[0] = *gemm_{letter}_fragments(tile, tid, {outer}, k_step);"


def program(element: str, a: dict, b: dict) -> str:
    """The source of one type's program, for the problems of its operands."""
    from layoutopt.hardware.fragments import fragments

    kind, acc, element_type, sum_type, register_type = TYPES[element]
    (_, load_a), (_, load_b) = a["accesses"], b["accesses"]
    instruction = load_a["fragment"].removesuffix(f".A.{kind}")
    held = [fragments()[f"{instruction}.{end}"] for end in (f"A.{kind}", f"B.{kind}", f"C.{acc}")]
    bits = 64 if register_type == "double" else 32
    na, nb, nc = (f.values * f.bits // bits for f in held)
    loaded = [int(load["op"][-1]) if load["op"].startswith("ldmatrix") else 1 for load in (load_a, load_b)]
    slot = iter(range(nc + na + nb))
    groups = ["{" + ", ".join(f"%{next(slot)}" for _ in range(n)) + "}" for n in (nc, na, nb)]
    each = held[2].extent
    text = Path(__file__).with_suffix(".cu").read_text()
    return filled_text(
        text,
        ELEMENT=element,
        KIND=kind,
        ELEMENT_TYPE=element_type,
        SUM_TYPE=sum_type,
        REGISTER_TYPE=register_type,
        M=a["tile"]["shape"][0],
        N=b["tile"]["shape"][0],
        K=a["tile"]["shape"][1],
        THREADS=a["threads"],
        PTX=f"mma.sync.aligned.{instruction.removeprefix('mma.')}.row.col.{acc}.{kind}.{kind}.{acc}",
        GROUPS=", ".join([*groups, groups[0]]),
        OUTS=", ".join(f'"+{CONSTRAINT[sum_type]}"(c[{i}])' for i in range(nc)),
        INS=", ".join(
            f'"{CONSTRAINT[register_type]}"({v}[{i}])' for v, n in (("a", na), ("b", nb)) for i in range(n)
        ),
        LOAD_A=fragment_load("a", load_a["op"], "m_step"),
        LOAD_B=fragment_load("b", load_b["op"], "n_step"),
        A_LOADED=loaded[0],
        B_LOADED=loaded[1],
        B_REGISTERS=nb,
        B_PER_LOAD=loaded[1] // nb,
        C_REGISTERS=nc,
        M_REPEAT=load_a["repeat"]["m"],
        N_REPEAT=load_b["repeat"]["n"],
        K_REPEAT=load_a["repeat"]["k"],
        M_WARPS=load_a["warps"][0],
        M_EACH=each["m"],
        N_EACH=each["n"],
    )


def write(folder: Path) -> None:
    on_gpu.write_programs(folder, programs(folder))


def programs(folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """A product of each type, whose headers are put into the folder."""
    for element, (kind, *_) in TYPES.items():
        parts = {letter: operand(element, letter) for letter in "AB"}
        for letter, (_, _, header) in parts.items():
            (folder / f"{element}_{letter.lower()}.cuh").write_text(header)
        operands = {
            letter: {"problem": data, "offset": offset, "code": effective(header)}
            for letter, (data, offset, header) in parts.items()
        }
        entry = {"element": element, "type": kind, "operands": operands}
        yield entry, program(element, parts["A"][0], parts["B"][0])


def measure(folder: Path) -> None:
    measured = on_gpu.measured(folder)
    for entry, (printed,) in measured:
        print(printed, end="", flush=True)
        found = re.findall(r"^\w+( control)? (right|WRONG) (\d+) of (\d+)$", printed, flags=re.M)
        for control, word, wrong, elements in found:
            entry["control" if control else "product"] = word
            entry["control_wrong" if control else "product_wrong"] = int(wrong)
            entry["elements"] = int(elements)
    about = (
        "Products through the code emitted for the problems of `layoutopt new gemm`; the control reads B as "
        "the neighbouring lane. code: the lines of the headers that compute or do something."
    )
    on_gpu.write_record(folder / "measured.json", about, {"products": [entry for entry, _ in measured]})


if __name__ == "__main__":
    on_gpu.command_line(__doc__, write, measure)
