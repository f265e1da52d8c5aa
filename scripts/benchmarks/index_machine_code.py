"""Index instructions in machine code: what nvcc makes of emitted pieces, formulas and CuTe's Swizzle.

    python scripts/benchmarks/index_machine_code.py [--arch sm_90] [--only NAME]...
    python scripts/benchmarks/index_machine_code.py --against-published [--arch sm_90] [--only NAME]...

The first compares the cost of index code with machine code. For each access of the catalogue, and each of
several layouts of its tile (the one that was found when the catalogue last ran on a GPU, the published one,
row-major, a vector of padding, column ^ row), a kernel makes one pass over the access's loops with the emitted
base and step. Printed is how often the predicted number (`layoutopt.index.index_code`) is within one of what is
counted, and how often it orders two layouts of an access right that differ by two or more.

The second compares ways to write it. For each access of each problem whose optimum is known kernels make one pass
over its iterations, all of them unrolled: with the emitted pieces of our layout and of the published one, with the
published formula at the access's coordinates, and, where our layout is a `Swizzle<B, M, S>`, with CuTe's composed
layout at the same coordinates. It needs CUTLASS's headers (nvidia-cutlass), too.

Counted are the integer instructions that the addresses of the shared-memory instructions depend on, followed back
through the machine code; in a loop that the compiler kept, times its iterations. In no count are moves, constants,
what decides whether an instruction is executed, reading `threadIdx` and finding where shared memory starts. Needs
nvcc and nvdisasm.
"""

import argparse
import itertools
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from layoutopt import solve
from layoutopt.codegen import cuda, cute
from layoutopt.codegen.c_family import address_from, arguments, base_of, guarded_loops, parameter
from layoutopt.codegen.c_text import to_c
from layoutopt.codegen.languages import run_plan
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.codegen.selftest import access_instruction
from layoutopt.errors import LayoutoptError
from layoutopt.expressions.grammar import Const, Op, Var, names, substituted
from layoutopt.files.catalogue import of_one_tile
from layoutopt.files.file import load
from layoutopt.hardware.devices import device
from layoutopt.index.address_forms import over_tid
from layoutopt.kernels.program import Exit, Jump, Memory, Program, Step, read_by
from layoutopt.kernels.read.files import kernels
from layoutopt.problems.types import Problem

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests/data/h200_runs.json"
MAX_ITERATIONS = 64
Rows = list[dict[str, Any]]
# Ours, CuTe's, the published layout as emitted, and as its kernel writes it.
WAYS = ("ours", "cute", "reduced", "published")

# Machine code -------------------------------------------------------------------------------------

FREE = ("S2R", "S2UR", "MOV", "UMOV", "IMAD.MOV", "LDC", "ULDC", "CS2R", "R2UR", "NOP", "HFMA2")


def functions(title: str, text: str, source: Path, arch: str, *flags: str) -> dict[str, Program]:
    """The kernels of a source as machine code; none where nvcc refuses it."""
    source.write_text(text)
    try:
        return {kernel.name: kernel.read() for kernel in kernels(source, arch, ["-std=c++17", "-w", *flags])}
    except LayoutoptError as error:
        print(title, error, file=sys.stderr)
        return {}


def is_shared(step: Step) -> bool:
    return isinstance(step.action, Memory) and step.action.space == "shared"


def counts(step: Step) -> bool:
    """Whether it is an integer instruction that a program pays for."""
    name = opcode(step)
    # The window of shared memory, and the block's place in its cluster.
    finds_start = name in ("LEA", "ULEA") and step.text.split()[-1] == "0x18"
    return not name.startswith(FREE) and not finds_start


def opcode(step: Step) -> str:
    return next(word for word in step.text.split() if not word.startswith("@"))


def guarded(step: Step) -> str:
    """The predicate under which a step happens, such as `!P0`; empty for always."""
    first = step.text.split()[0]
    return first[1:] if first.startswith("@") and step.guard is not None else ""


# Registers that later instructions read, each with the predicate under which they do.
Needs = set[tuple[str, str]]


def _makes(one: Step, needed: Needs) -> bool:
    """Whether an instruction may make a value that is needed: not under the opposite predicate."""
    own = guarded(one)
    opposite = own[1:] if own.startswith("!") else f"!{own}"
    return any(r in one.dests and not (own and guard == opposite) for r, guard in needed)


def index_instructions(program: Program, iterations: int) -> float:
    """Integer instructions that addresses of shared-memory instructions depend on, of one pass."""
    code = program.steps
    after: list[Needs] = [set() for _ in range(len(code) + 1)]
    marked: set[int] = set()
    changed = True
    while changed:
        changed = False
        for k in reversed(range(len(code))):
            one, action = code[k], code[k].action
            own = guarded(one)
            decides = isinstance(action, Jump) and action.target is not None and one.sources
            leaves = not own and not decides and isinstance(action, Exit | Jump)
            needed = set() if leaves else set(after[k + 1])
            if isinstance(action, Jump) and action.target is not None:
                needed |= after[action.target]
            made = _makes(one, needed)
            if made:
                marked.add(k)
                # Under its own predicate, nothing that it writes is needed from before it.
                needed = {(r, g) for r, g in needed if r not in one.dests or own not in ("", g)}
                if not isinstance(action, Memory):
                    needed |= {(r, own) for r in read_by(one.sources)}
            # Above what writes it, a predicate says something else.
            needed = {(r, "" if g.lstrip("!") in one.dests else g) for r, g in needed}
            if is_shared(one):
                needed |= {(r, own) for r in one.sources[0].cells}
            if needed != after[k]:
                after[k] = needed
                changed = True
    jumps = [(one.action.target, k) for k, one in enumerate(code) if isinstance(one.action, Jump)]
    back = [(start, k) for start, k in jumps if start is not None and start < k]
    return sum((_times(k, code, back, iterations) for k in marked if counts(code[k])), 0.0)


def _times(k: int, code: Sequence[Step], back: list[tuple[int, int]], iterations: int) -> float:
    """How often an instruction of a kept loop is executed: as its innermost loop's accesses tell."""
    around = [loop for loop in back if loop[0] <= k <= loop[1]]
    if not around:
        return 1
    inner = min(around, key=lambda loop: loop[1] - loop[0])
    accesses = [j for j, one in enumerate(code) if is_shared(one)]
    inside = sum(inner[0] <= j <= inner[1] for j in accesses)
    outside = len(accesses) - inside
    return max(1.0, (iterations - outside) / inside) if inside else 1.0


# The cost against machine code --------------------------------------------------------------------


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
        given = (a.bytes if isinstance(a.bytes, tuple) else (a.bytes,) for a in problem.accesses)
        widths = [width for some in given for width in some if width]
        vector = max(1, 8 * max(widths, default=16) // bits)
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


def kernel(name: str, access: AccessPlan, base: str, address: str, given: bool = True) -> str:
    """A kernel whose only shared-memory instructions are those of the access, at addresses from a base.

    `given`: where the tile starts is an argument, so that finding it is in no count.
    """
    operation = access.lanes.operation
    start = f"const uint32_t base = {base};" if base else ""
    # What is loaded must be used, or the assembler leaves the load out.
    use = " sum ^= v[0] ^ v[1] ^ v[2] ^ v[3];" if operation.does.returns else ""
    body = f"{{ const uint32_t address = {address}; {access_instruction(access, 'address')}{use} }}"
    return "\n".join([
            f'extern "C" __global__ void {name}(uint32_t* cell, uint32_t smem) {{',
            "    extern __shared__ __align__(1024) unsigned char tile[];" * (not given),
            "    smem = static_cast<uint32_t>(__cvta_generic_to_shared(tile));" * (not given),
            f"    const int tid = threadIdx.x; uint32_t v[4] = {{1, 2, 3, 4}}, sum = 0; {start}",
            *guarded_loops(access, body),
            "    *cell = sum;",
            "}\n",
    ])  # fmt: skip


def emitted(planned: Plan) -> str:
    return cuda.emit(planned).replace("#pragma once", "")


def counted(planned: Plan, most: float = math.inf) -> Iterator[tuple[int, AccessPlan]]:
    """The accesses whose instructions are counted, by number."""
    for k, access in enumerate(planned.accesses):
        if access.lanes.operation.width_bytes != 12 and math.prod(access.access.loops.values()) <= most:
            yield k, access


def predicted(record: dict[tuple[str, str], str], name: str, problem: Problem) -> tuple[Rows, str]:
    """What is predicted for each access and layout of a problem, and a source of all their kernels."""
    gpu, rows, text = device("sm_90"), [], ""
    for number, offset in enumerate(layouts(name, problem, record).values()):
        try:
            planned = run_plan(msgspec.structs.replace(problem, name=f"layout {number}"), gpu, offset)
        except LayoutoptError:
            continue
        text += emitted(planned)
        for k, access in counted(planned):
            symbol, cost = f"k_{number}_{k}", access.instructions
            # Whether threads part anew in each iteration.
            parts = access.active is not None and bool(names(access.active) & set(access.access.loops))
            base, address = base_of(access, "smem"), address_from(access, "smem", "base")
            text += kernel(symbol, access, base, address, given=False)
            rows.append({"problem": name, "number": k, "iterations": cost.iterations, "predicted": cost.total,
                         "predicated": parts, "kernels": {"machine": symbol}})  # fmt: skip
    return rows, text


def summary(rows: Rows) -> Iterator[str]:
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


def _ordered(rows: Rows) -> Iterator[bool]:
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


# Ways to write it ---------------------------------------------------------------------------------


def coordinates(planned: Plan, access: AccessPlan) -> str:
    ranges = {parameter(v): r for v, r in access.ranges.items()}
    over = (over_tid(str(text), access.access, planned.device.lanes) for text in access.access.index)
    spelled = {v: Var(parameter(v)) for v in access.ranges}
    return ", ".join(to_c(substituted(node, spelled), ranges) for node in over)


def pieces(access: AccessPlan) -> tuple[str, str]:
    """The emitted base and step, from where the tile starts."""
    if not access.form.has_step:
        return "", f"smem + {access.name}_bytes({arguments(access)})"
    step = f"{access.name}_step(base, {arguments(access, access.access.loops)})"
    return f"smem + {access.name}_base(tid)", step


def ways(name: str, problem: Problem) -> tuple[Rows, str]:
    """Each access of a problem, and a source of all ways to write its addresses."""
    gpu, rows = device("sm_90"), []
    if problem.known_optimum is None:
        return [], ""
    try:
        ours = run_plan(problem, gpu, solve(problem, time_limit=10))
    except LayoutoptError as error:
        print(name, error, file=sys.stderr)
        return [], ""
    text, theirs = emitted(ours), None
    if problem.published:
        named = msgspec.structs.replace(problem, name=problem.name + " pub")
        theirs = run_plan(named, gpu, problem.published.offset)
        body = to_c(Op("*", (theirs.offset, Const(theirs.element_bytes))), theirs.coordinate_ranges)
        declared = ", ".join(f"int {x}" for x in theirs.coordinate_ranges)
        text += f"__device__ __forceinline__ uint32_t published({declared}) {{ return {body}; }}\n"
        text += emitted(theirs)
    swizzled = ours.layout is not None and ours.layout.swizzle_triple() is not None
    if swizzled:
        text += cute.emit(ours).replace("#pragma once", "").replace("constexpr int", "// constexpr int")
    waves = [sum(a.report.wavefronts for a in plan.accesses) for plan in (ours, theirs) if plan is not None]
    for k, access in counted(ours, MAX_ITERATIONS):
        where, made = coordinates(ours, access), {"ours": kernel(f"ours_{k}", access, *pieces(access))}
        if swizzled:
            call = f"smem + {ours.element_bytes} * {ours.name}_layout{{}}({where})"
            made["cute"] = kernel(f"cute_{k}", access, "", call)
        if theirs is not None:
            made["reduced"] = kernel(f"reduced_{k}", theirs.accesses[k], *pieces(theirs.accesses[k]))
            made["published"] = kernel(f"published_{k}", access, "", f"smem + published({where})")
        text += "".join(made.values())
        rows.append({"conflicts": len(waves) > 1 and waves[1] > waves[0], "problem": name,
                     "access": access.access.name, "iterations": access.instructions.iterations,
                     "kernels": {kind: f"{kind}_{k}" for kind in made}})  # fmt: skip
    return rows, text


def comparison(rows: Rows) -> Iterator[str]:
    """A table of all counts, and what is no more than what."""
    yield "| problem and access | iterations | ours | CuTe | published, emitted | published, as written |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in rows:
        cells = [f"{row[kind]:g}" if kind in row else "-" for kind in WAYS]
        if row["conflicts"]:
            cells[-1] += " (conflicts)"
        yield f"| {row['problem']} {row['access']} | {row['iterations']} | {' | '.join(cells)} |"
    free = [row for row in rows if not row["conflicts"]]
    for what, among, a, b in (
        ("ours has no more than CuTe's, the same layout", rows, "ours", "cute"),
        ("the published layout, emitted, has no more than as written", rows, "reduced", "published"),
        ("ours has no more than the published formula, where that costs no more wavefronts", free, "ours", "published"),
        ("ours has no more than the published formula, all", rows, "ours", "published"),
    ):  # fmt: skip
        both = [(row[a], row[b]) for row in among if a in row and b in row]
        yield f"{what}: {sum(x <= y for x, y in both)} of {len(both)}"


# Both ---------------------------------------------------------------------------------------------


def compiled(make: Callable[[str, Problem], tuple[Rows, str]], only: list[str], *flags: str) -> Rows:
    """The rows of all problems, with what is counted of their kernels."""
    chosen = [(n, path) for n, path in of_one_tile().items() if not only or any(part in n for part in only)]

    def work(folder: Path, name: str, path: Path) -> Rows:
        mine, text = make(name, load(path))
        source = folder / f"{name.replace('/', '_')}.cu"
        found = functions(name, "#include <cstdint>\n" + text, source, *flags) if mine else {}
        for row in mine if found else ():
            for kind, symbol in row.pop("kernels").items():
                row[kind] = index_instructions(found[symbol], row["iterations"])
        return mine if found else []

    rows: Rows = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        for mine in pool.map(lambda one: work(Path(folder), *one), chosen):
            rows += mine
            print(f"\r{len(rows)} accesses", end="", file=sys.stderr)
    print(file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--against-published", action="store_true")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--only", action="append", default=[])
    args = parser.parse_args()
    if args.against_published:
        import cutlass_library

        include = Path(cutlass_library.__file__).parent / "source" / "include"
        rows = compiled(ways, args.only, args.arch, f"-I{include}")
        print("\n".join(comparison(rows)))
    else:
        runs = json.loads(RECORD.read_text())["runs"]
        record = {(run["problem"], run["layout"]): run["offset"] for run in runs}
        rows = compiled(partial(predicted, record), args.only, args.arch)
        print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
