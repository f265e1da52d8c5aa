"""Count index instructions in machine code: emitted addresses, the published formula, CuTe's Swizzle.

    python scripts/benchmarks/count_index_ops.py [--json FILE]

For each access of each catalogue problem kernels make one pass over its iterations, all of them unrolled: with
the emitted pieces of our layout and of the published one, with the published formula at the access's
coordinates, and, where our layout is a `Swizzle<B, M, S>`, with CuTe's composed layout at the same coordinates. nvcc compiles all for
sm_90; `cuobjdump` prints the machine code; counted is every integer instruction that a shared-memory
address depends on, followed back from the address registers. Reading `threadIdx` and the base of
shared memory is in none of the counts. Needs nvcc, cuobjdump and CUTLASS's headers (nvidia-cutlass).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from machine_code import REGISTER, functions

from layoutopt.codegen import cuda, cute
from layoutopt.codegen.c_family import arguments, parameter
from layoutopt.codegen.c_text import to_c
from layoutopt.codegen.languages import run_plan
from layoutopt.codegen.plan import AccessPlan, Plan
from layoutopt.expressions.grammar import Const, Op, Var, substituted
from layoutopt.files.catalogue import of_one_tile
from layoutopt.files.file import load
from layoutopt.hardware.devices import device
from layoutopt.index.address_forms import over_tid
from layoutopt.search.solve import solve

ROOT = Path(__file__).parents[2]
MAX_ITERATIONS = 64


def coordinates(plan_: Plan, access: AccessPlan) -> list[str]:
    ranges = {parameter(v): r for v, r in access.ranges.items()}
    texts = []
    for text in access.access.index:
        node = over_tid(str(text), access.access, plan_.device.lanes)
        texts.append(to_c(substituted(node, {v: Var(parameter(v)) for v in access.ranges}), ranges))
    return texts


def emitted(name: str, plan_: Plan, access: AccessPlan) -> str:
    """A kernel that takes the addresses of the emitted pieces."""
    start = f"const uint32_t base = smem + {access.name}_base(tid);" if access.form.has_step else ""
    loops = ", ".join(map(parameter, access.access.loops))
    stepped = f"{access.name}_step(base, {loops})"
    whole = f"smem + {access.name}_bytes({arguments(access)})"
    return kernel(name, plan_, access, start, stepped if access.form.has_step else whole)


def kernel(name: str, plan_: Plan, access: AccessPlan, start: str, address: str) -> str:
    """A kernel whose only shared-memory accesses are those of the access."""
    nest = "".join(
        f'_Pragma("unroll") for (int {parameter(v)} = 0; {parameter(v)} < {n}; ++{parameter(v)}) '
        for v, n in access.access.loops.items()
    )
    guard = f"if ({access.name}_active({arguments(access)})) " if access.active is not None else ""
    width = access.lanes.operation.width_bytes
    kind = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}[width]
    words = max(1, width // 4)
    held = ", ".join(f"%{k}" for k in range(words))
    held = held if words == 1 else f"{{{held}}}"
    outputs = ", ".join(f'"=r"(v[{k}])' for k in range(words))
    load = f'asm volatile("ld.volatile.shared.{kind} {held}, [%{words}];" : {outputs} : "r"(address));'
    if width == 2:
        load = 'asm volatile("{ .reg .u16 h; ld.volatile.shared.u16 h, [%1]; cvt.u32.u16 %0, h; }" : "=r"(v[0]) : "r"(address));'
    return (
        # The tile's start is an argument, so that finding it is in no count.
        f'extern "C" __global__ void {name}(float* out, uint32_t smem) {{\n'
        f"    const int tid = threadIdx.x; uint32_t v[4] = {{}}; float sum = 0;\n    {start}\n"
        f"    {nest}{guard}{{ const uint32_t address = {address}; {load}\n"
        # A float sum: its instructions are no integer ones.
        "        sum += __uint_as_float(v[0]) + __uint_as_float(v[1]) + __uint_as_float(v[2]) + __uint_as_float(v[3]); }\n"
        "    *out = sum;\n}\n"
    )


def sources(path: Path) -> tuple[list[dict[str, object]], str]:
    problem = load(path)
    gpu = device("sm_90")
    try:
        result = solve(problem, time_limit=10)
        ours = run_plan(problem, gpu, result)
    except Exception as error:
        print(path.stem, error, file=sys.stderr)
        return [], ""
    theirs = (
        run_plan(msgspec.structs.replace(problem, name=problem.name + " pub"), gpu, problem.published.offset)
        if problem.published
        else None
    )
    swizzled = ours.layout is not None and cute.swizzle_of(ours.layout) is not None
    text = "#define Y __device__\n" + cuda.emit(ours).replace("#pragma once", "")
    if theirs is not None:
        body = to_c(Op("*", (theirs.offset, Const(theirs.element_bytes))), theirs.coordinate_ranges)
        declared = ", ".join(f"int {x}" for x in theirs.coordinate_ranges)
        text += f"__device__ __forceinline__ uint32_t published({declared}) {{ return {body}; }}\n"
        text += cuda.emit(theirs).replace("#pragma once", "")
    if swizzled:
        text += cute.emit(ours).replace("#pragma once", "").replace("constexpr int", "// constexpr int")
    rows = []
    for k, access in enumerate(ours.accesses):
        count = 1
        for n in access.access.loops.values():
            count *= n
        if count > MAX_ITERATIONS or access.lanes.operation.width_bytes == 12:
            continue
        where = ", ".join(coordinates(ours, access))
        text += emitted(f"ours_{k}", ours, access)
        if theirs is not None:
            text += kernel(f"published_{k}", ours, access, "", f"smem + published({where})")
            text += emitted(f"reduced_{k}", theirs, theirs.accesses[k])
        if swizzled:
            call = f"smem + {ours.element_bytes} * {ours.name}_layout{{}}({where})"
            text += kernel(f"cute_{k}", ours, access, "", call)
        waves = [sum(a.report.wavefronts for a in p.accesses) for p in (ours, theirs) if p is not None]
        rows.append({"conflicts": len(waves) > 1 and waves[1] > waves[0], "problem": path.relative_to(ROOT / "problems").with_suffix("").as_posix(),
                     "access": access.access.name, "number": k, "iterations": count})  # fmt: skip
    return rows, text


LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?(U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
FREE = ("S2R", "S2UR", "MOV", "UMOV", "LDC", "ULDC", "CS2R", "R2UR", "UIADD3.X")


def index_instructions(lines: list[str]) -> int:
    """Integer instructions that addresses of shared-memory instructions depend on, in straight-line code."""
    code = []
    for line in lines:
        if match := LINE.search(line):
            code.append((match[1], match[2], match[3]))
    needed: set[str] = set()
    count = 0
    for predicate, name, operands in reversed(code):
        parts = [p.strip() for p in operands.split(",")]
        if name.startswith(("LDS", "STS", "LDSM")):
            address = re.search(r"\[(.*?)\]", operands)
            needed |= set(REGISTER.findall(address[1])) if address else set()
            continue
        if not parts or name.startswith(("ST", "BRA", "EXIT", "NOP", "BAR", "WARPSYNC", "BSYNC", "BSSY")):
            continue
        written = [p for p in parts[:2] if re.fullmatch(r"U?R\d+|U?P\d+", p)]
        # The second operand is written too only where it is a predicate beside a register.
        outputs = {written[0]} if written else set()
        if len(written) == 2 and "P" in written[1] and "P" not in written[0]:
            outputs.add(written[1])
        if not outputs & needed:
            continue
        if predicate is None:
            needed -= outputs
        inputs = set(REGISTER.findall(", ".join(parts[1:])))
        if ".WIDE" in name or name.startswith("LDG"):
            continue
        needed |= inputs
        if not name.startswith(FREE) and not (
            name.startswith("ULEA") and "UR" in parts[0] and "0x18" in operands
        ):
            count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    import cutlass_library

    include = Path(cutlass_library.__file__).parent / "source" / "include"
    rows: list[dict[str, object]] = []
    paths = [p for name, p in of_one_tile().items() if args.only in name]
    paths = [p for p in paths if load(p).known_optimum is not None]
    with tempfile.TemporaryDirectory() as name:

        def work(job: tuple[int, Path]) -> list[dict[str, object]]:
            number, path = job
            mine, text = sources(path)
            if not mine:
                return []
            code = "#include <cstdint>\n" + text
            found = functions(path.stem, code, Path(name) / f"{number}.cubin", "sm_90", f"-I{include}")
            for row in mine:
                for kind in ("ours", "reduced", "published", "cute"):
                    lines = found.get(f"{kind}_{row['number']}")
                    row[kind] = index_instructions(lines) if lines else None
            return mine if found else []

        with ThreadPoolExecutor(2) as pool:
            for mine in pool.map(work, enumerate(paths)):
                rows += mine
    kinds = ("ours", "cute", "reduced", "published")
    print("| problem and access | iterations | ours | CuTe | published, emitted | published, as written |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        cells = ["-" if row[kind] is None else str(row[kind]) for kind in kinds]
        if row["conflicts"]:
            cells[-1] += " (conflicts)"
        print(f"| {row['problem']} {row['access']} | {row['iterations']} | {' | '.join(cells)} |")
    free = [row for row in rows if not row["conflicts"]]
    for what, among, a, b in (
        ("ours has no more than CuTe's, the same layout", rows, "ours", "cute"),
        ("the published layout, emitted, has no more than as written", rows, "reduced", "published"),
        ("ours has no more than the published formula, where that costs no more wavefronts", free, "ours", "published"),
        ("ours has no more than the published formula, all", rows, "ours", "published"),
    ):  # fmt: skip
        both = [(row[a], row[b]) for row in among if row[a] is not None and row[b] is not None]
        print(f"{what}: {sum(x <= y for x, y in both)} of {len(both)}")  # type: ignore[operator]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
