"""The cost of index code against machine code: what nvcc makes of the emitted pieces of many layouts.

    python scripts/benchmarks/index_machine_code.py [--arch sm_90] [--json FILE] [--only NAME]... [--show N]

For each access of the catalogue, and each of several layouts of its tile (the one that was found when the
catalogue last ran on a GPU, the published one, row-major, a vector of padding, column ^ row), a kernel makes
one pass over the access's loops with the emitted base and step. Counted are the integer instructions that
the addresses of its shared-memory instructions depend on, followed back through the machine code; in a loop
that the compiler kept, times its iterations. In no count are moves, constants, what decides whether an
instruction is executed, reading `threadIdx` and finding where shared memory starts. Printed is how often
the predicted number (`layoutopt.index.index_code`) is within one of that, and how often it orders two
layouts of an access right that differ by two or more. Needs nvcc and cuobjdump.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from machine_code import REGISTER, functions

from layoutopt.codegen import cuda
from layoutopt.codegen.c_family import address_from, base_of, guarded_loops
from layoutopt.codegen.languages import run_plan
from layoutopt.codegen.plan import AccessPlan
from layoutopt.codegen.selftest import access_instruction
from layoutopt.errors import LayoutoptError
from layoutopt.expressions.grammar import names, to_text
from layoutopt.files.catalogue import of_one_tile
from layoutopt.files.file import load
from layoutopt.hardware.devices import device
from layoutopt.problems.types import Problem

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests/data/h200_runs.json"


def layouts(name: str, problem: Problem, record: dict[tuple[str, str], str]) -> dict[str, str]:
    """Element offsets over x0, x1, ... by what they are called; equal ones once."""
    shape = problem.tile.shape
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    terms = [f"x{d}*{s}" for d, s in enumerate(strides)]
    found = {"ours": record.get((f"{name}.json", "ours")), "row-major": " + ".join(terms)}
    if problem.published is not None:
        found["published"] = problem.published.offset
    if len(shape) > 1:
        bits = problem.tile.element_bits
        widths = [
            w for a in problem.accesses for w in (a.bytes if isinstance(a.bytes, tuple) else (a.bytes,))
        ]
        vector = max(1, 8 * max((w for w in widths if w), default=16) // bits)
        pitch = shape[-1] + vector
        rows = [f"x{d}*{s // shape[-1]}" for d, s in enumerate(strides[:-1])]
        found["pad"] = f"({' + '.join(rows)})*{pitch} + x{len(shape) - 1}"
        slots = shape[-1] // vector
        if slots > 1:
            turns = 1 << (slots.bit_length() - 1)
            flip = f"(x{len(shape) - 1} ^ x{len(shape) - 2} % {turns} * {vector})"
            found["xor"] = " + ".join([*terms[:-1], flip])
    once: dict[str, str] = {}
    for kind, text in found.items():
        if text is not None and text not in once.values():
            once[kind] = text
    return once


def kernel(name: str, access: AccessPlan) -> str:
    """A kernel whose only shared-memory instructions are those of the access, by its emitted pieces."""
    operation = access.lanes.operation
    base, address = base_of(access, "smem"), address_from(access, "smem", "base")
    start = f"const uint32_t base = {base};" if base else ""
    # What is loaded must be used, or the assembler leaves the load out.
    use = " sum ^= v[0] ^ v[1] ^ v[2] ^ v[3];" if operation.does.returns else ""
    body = f"{{ const uint32_t address = {address}; {access_instruction(access, 'address')}{use} }}"
    return "\n".join(
        [
            f'extern "C" __global__ void {name}(uint32_t* cell) {{',
            "    extern __shared__ __align__(1024) unsigned char tile[];",
            "    const uint32_t smem = static_cast<uint32_t>(__cvta_generic_to_shared(tile));",
            f"    const int tid = threadIdx.x; uint32_t v[4] = {{1, 2, 3, 4}}, sum = 0; {start}",
            *guarded_loops(access, body),
            "    *cell = sum;",
            "}\n",
        ]
    )


def sources(name: str, path: Path, record: dict[tuple[str, str], str]) -> tuple[list[dict[str, Any]], str]:
    """What is predicted for each access and layout of a problem, and a source of all their kernels."""
    problem, gpu = load(path), device("sm_90")
    rows, text = [], "#include <cstdint>\n"
    for number, (kind, offset) in enumerate(layouts(name, problem, record).items()):
        named = msgspec.structs.replace(problem, name=f"layout {number}")
        try:
            planned = run_plan(named, gpu, offset)
        except LayoutoptError:
            continue
        text += cuda.emit(planned).replace("#pragma once", "")
        for k, access in enumerate(planned.accesses):
            if access.lanes.operation.width_bytes == 12:
                continue
            symbol = f"k_{number}_{k}"
            text += kernel(symbol, access)
            cost = access.code.instructions
            rows.append({"problem": name, "access": access.access.name, "number": k, "layout": kind,
                         "offset": offset, "kernel": symbol, "iterations": cost.iterations, "once": cost.once,
                         "predicted": cost.total, "predicated": _predicated(access),
                         "address": to_text(access.form.address)})  # fmt: skip
    return rows, text


def _predicated(access: AccessPlan) -> bool:
    """Whether threads part anew in each iteration."""
    return access.active is not None and bool(names(access.active) & set(access.access.loops))


LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[T\d]+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
FREE = ("S2R", "S2UR", "MOV", "UMOV", "IMAD.MOV", "LDC", "ULDC", "CS2R", "R2UR", "NOP", "HFMA2")
NO_RESULT = ("ST", "RED", "BRA", "EXIT", "NOP", "BAR", "WARPSYNC", "BSYNC", "BSSY", "LDGDEPBAR", "DEPBAR")


class Instruction:
    """One line of machine code: what it reads, writes and where control goes on."""

    def __init__(self, address: int, predicate: str | None, name: str, operands: str) -> None:
        self.address, self.predicate, self.name = address, predicate, name
        parts = [p.strip() for p in operands.split(",")]
        # The window of shared memory, and the block's place in its cluster.
        self.finds_start = name in ("LEA", "ULEA") and parts[-1] == "0x18"
        self.shared = name.startswith(("LDS", "STS", "LDSM", "STSM", "ATOMS", "LDGSTS"))
        self.target = int(operands.split()[-1].strip("`()"), 16) if name.startswith("BRA") else None
        self.ends = name.startswith("EXIT") and predicate is None
        self.seeds: set[str] = set()
        self.writes: set[str] = set()
        self.reads: set[str] = set()
        if self.shared:
            cell = re.search(r"\[(.*?)\]", operands)
            self.seeds = set(REGISTER.findall(cell[1])) if cell else set()
        if not self.shared and not name.startswith(NO_RESULT) and parts:
            written = [p for p in parts[:2] if re.fullmatch(r"U?R\d+|U?P\d+", p)]
            if written:
                self.writes = {written[0]}
            # The second operand is written too only where it is a predicate.
            if len(written) == 2 and "P" in written[1] and re.match(r"U?P\d", parts[1]):
                self.writes.add(written[1])
            if ".WIDE" in name or ".64" in name:
                self.writes |= {_next(w) for w in set(self.writes) if "R" in w}
            self.reads = set(REGISTER.findall(", ".join(parts[len(written) if len(written) == 2 and
                             "P" in written[1] else 1 :])))  # fmt: skip

    def counts(self) -> bool:
        """Whether it is an integer instruction that a program pays for."""
        return not self.name.startswith(FREE) and not self.finds_start


def _next(register: str) -> str:
    found = re.fullmatch(r"(U?R)(\d+)", register)
    assert found is not None
    return f"{found[1]}{int(found[2]) + 1}"


# Registers that later instructions read, each with the predicate under which they do.
Needs = set[tuple[str, str | None]]


def _makes(one: Instruction, needed: Needs) -> bool:
    """Whether an instruction may make a value that is needed: not under the opposite predicate."""
    opposite = None if one.predicate is None else f"!{one.predicate}".removeprefix("!!")
    return any(r in one.writes and (guard is None or guard != opposite) for r, guard in needed)


def _without_written(one: Instruction, needed: Needs) -> Needs:
    """What is needed from before an instruction: under its own predicate, nothing that it writes."""
    return {(r, guard) for r, guard in needed if r not in one.writes or one.predicate not in (None, guard)}


def index_instructions(lines: list[str], iterations: int) -> float:
    """Integer instructions that addresses of shared-memory instructions depend on, of one pass."""
    code = [Instruction(int(m[1], 16), m[2], m[3], m[4]) for m in map(LINE.search, lines) if m]
    position = {one.address: k for k, one in enumerate(code)}
    after: list[Needs] = [set() for _ in range(len(code) + 1)]
    marked: set[int] = set()
    changed = True
    while changed:
        changed = False
        for k in reversed(range(len(code))):
            one = code[k]
            needed = set() if one.ends or (one.name == "BRA" and one.predicate is None) else set(after[k + 1])
            if one.target is not None:
                needed |= after[position.get(one.target, k)]
            if _makes(one, needed):
                marked.add(k)
                if not one.name.startswith(("LDG", "LDS")):
                    needed = _without_written(one, needed) | {(r, one.predicate) for r in one.reads}
                else:
                    needed = _without_written(one, needed)
            # Above what writes it, a predicate says something else.
            needed = {
                (r, None if guard and guard.lstrip("!") in one.writes else guard) for r, guard in needed
            }
            needed |= {(r, one.predicate) for r in one.seeds}
            if needed != after[k]:
                after[k] = needed
                changed = True
    back = [(position[one.target], k) for k, one in enumerate(code)
            if one.target is not None and position.get(one.target, k) < k]  # fmt: skip
    total = 0.0
    for k in marked:
        if code[k].counts():
            total += _times(k, code, back, iterations)
    return total


def _times(k: int, code: list[Instruction], back: list[tuple[int, int]], iterations: int) -> float:
    """How often an instruction of a kept loop is executed: as its innermost loop's accesses tell."""
    around = [loop for loop in back if loop[0] <= k <= loop[1]]
    if not around:
        return 1
    inner = min(around, key=lambda loop: loop[1] - loop[0])
    accesses = [j for j, one in enumerate(code) if one.shared]
    inside = sum(inner[0] <= j <= inner[1] for j in accesses)
    outside = len(accesses) - inside
    return max(1.0, (iterations - outside) / inside) if inside else 1.0


def count(
    rows: list[dict[str, Any]], text: str, folder: Path, number: int, arch: str
) -> list[dict[str, Any]]:
    """The rows with what machine code takes."""
    found = functions(rows[0]["problem"], text, folder / f"{number}.cubin", arch)
    for row in rows if found else ():
        row["machine"] = index_instructions(found[row["kernel"]], row["iterations"])
    return rows if found else []


def summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    """How often the prediction is near, and orders two layouts right."""
    for title, chosen in (
        ("all accesses", rows),
        ("no predicate that a loop changes", [row for row in rows if not row["predicated"]]),
        ("such a predicate", [row for row in rows if row["predicated"]]),
    ):
        near = [abs(row["predicted"] - round(row["machine"])) <= 1 for row in chosen]
        right = list(_ordered(chosen))
        yield f"{title}: within one instruction {_share(near)}; pairs of layouts that differ by two or more"
        yield f"    in the right order {_share(right)}"
    errors = Counter(max(-9, min(9, round(row["predicted"] - row["machine"]))) for row in rows)
    yield "predicted less counted: " + ", ".join(f"{k:+}: {n}" for k, n in sorted(errors.items()))


def _ordered(rows: list[dict[str, Any]]) -> Iterator[bool]:
    """Whether the prediction orders each two layouts of an access that differ by two or more."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["problem"], row["number"]), []).append(row)
    for group in groups.values():
        for a, b in itertools.combinations(group, 2):
            apart = a["machine"] - b["machine"]
            if abs(apart) >= 2:
                yield (a["predicted"] - b["predicted"]) * apart > 0


def _share(flags: list[bool]) -> str:
    return f"{sum(flags)} of {len(flags)} ({100 * sum(flags) / max(1, len(flags)):.1f} %)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--show", type=int, default=0, help="The so many largest errors.")
    parser.add_argument("--keep", type=Path, help="Keep the machine code in this folder.")
    args = parser.parse_args()
    runs = json.loads(RECORD.read_text())["runs"]
    record = {(run["problem"], run["layout"]): run["offset"] for run in runs}
    chosen = [(n, p) for n, p in of_one_tile().items() if not args.only or any(o in n for o in args.only)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(2) as pool:
        folder = args.keep or Path(temporary)
        folder.mkdir(exist_ok=True)

        def work(job: tuple[int, tuple[str, Path]]) -> list[dict[str, Any]]:
            mine, text = sources(*job[1], record)
            return count(mine, text, folder, job[0], args.arch) if mine else []

        for mine in pool.map(work, enumerate(chosen)):
            rows += mine
            print(f"\r{len(rows)} accesses", end="", file=sys.stderr)
    print(file=sys.stderr)
    print("\n".join(summary(rows)))
    for row in sorted(rows, key=lambda r: -abs(r["predicted"] - r["machine"]))[: args.show]:
        print(f"{row['predicted']:>5} {row['machine']:>7.1f} {row['iterations']:>4}  "
              f"{row['problem']} {row['access']} [{row['layout']}] {row['address'][:150]}")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
