"""Compare emitted C with the table, at every coordinate and every access, on random problems and layouts.

    python scripts/fuzz/fuzz_emit.py --count 2000 --seed 1

Layouts are random, not solved: dimension orders, pads, splits, rotated lines, swizzles of any masks.
Accesses are random expressions of the file's whole grammar, kept inside the tile by `%`. Each batch is
one C program (and one Python module of Numba's functions, without Numba). Exit code 1 on any difference.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from layoutopt.accesses.trace import trace
from layoutopt.codegen import languages, numba
from layoutopt.codegen.plan import Plan, make_plan
from layoutopt.errors import LayoutoptError
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.problems.answer import AccessReport
from layoutopt.problems.types import Problem

LANGUAGES = ("c", "cuda", "numba")


def random_layout(rng: random.Random) -> Layout:
    shape = tuple(
        rng.choice([1, 2, 3, 4, 5, 7, 8, 12, 16, 32, 33]) for _ in range(rng.choice([1, 2, 2, 2, 3]))
    )
    size = rng.choice([1, 2, 4, 4, 8, 12, 16])
    pieces = []
    for d, extent in enumerate(shape):
        split = rng.choice([0, 0, 2, 3, 4])
        if split and extent > split:
            pieces += [(d, 1, split), (d, split, -(-extent // split))]
        else:
            pieces.append((d, 1, extent))
    rng.shuffle(pieces)
    digits, stride = [], 1
    turn = 0
    for k, (d, divide, n) in enumerate(pieces):
        if k == 1 and rng.random() < 0.2 and n > 1:
            turn = rng.randrange(1, max(2, pieces[0][2]))
        if k and not turn and rng.random() < 0.3:
            stride += rng.choice([1, 2, 3, 4, 8])
        digits.insert(0, Digit(d, divide, n, stride))
        stride *= n
    if digits[-1].size == 1 and turn:
        turn = 0
    targets = []
    if size & (size - 1) == 0 and rng.random() < 0.6:
        width = max(stride.bit_length(), 2)
        for bit in sorted(rng.sample(range(width - 1), min(width - 1, rng.randrange(1, 5)))):
            mask = sum(1 << s for s in range(bit + 1, width) if rng.random() < 0.4)
            if mask:
                targets.append(Target(bit, mask))
    return Layout(shape, size, tuple(digits), tuple(targets), turn)


def random_expression(rng: random.Random, names: list[str], depth: int) -> str:
    if depth == 0 or rng.random() < 0.15:
        return rng.choice([*names, str(rng.randrange(0, 40))])

    def sub() -> str:
        return random_expression(rng, names, depth - 1)

    kind = rng.randrange(9)
    if kind < 4:
        return f"({sub()} {rng.choice(['+', '-', '*', '+'])} {sub()})"
    if kind < 6:
        return f"({sub()} {rng.choice(['//', '%'])} {rng.choice([2, 3, 4, 5, 8, 16, 32])})"
    if kind == 6:
        return f"({sub()} {rng.choice('&|^')} {sub()})"
    if kind == 7:
        return f"{rng.choice(['min', 'max'])}({sub()}, {sub()})"
    return f"({sub()} if {sub()} {rng.choice(['<', '==', '>='])} {sub()} else {sub()})"


def typical_expression(rng: random.Random, names: list[str]) -> str:
    """What kernels write: a sum of digits of the thread and multiples of the loop variables."""
    terms = []
    for name in names:
        if rng.random() < 0.7:
            text = f"{name} // {rng.choice([2, 4, 8])}" if rng.random() < 0.3 else name
            text = f"{text} % {rng.choice([2, 4, 8, 16])}" if rng.random() < 0.5 else text
            terms.append(f"{rng.choice([1, 1, 2, 4, 8, 16, 3])}*({text})")
    return " + ".join(terms) or "0"


def random_problem(rng: random.Random, name: str) -> tuple[Problem, Layout]:
    layout = random_layout(rng)
    accesses = []
    for k in range(rng.randrange(1, 4)):
        loops = {
            v: rng.choice([1, 2, 3, 4, 5, 8])
            for v in rng.sample(["i", "j", "int", "base"], rng.randrange(0, 3))
        }
        names = ["tid", rng.choice(["lane", "warp"]), *loops]
        index = []
        for extent in layout.shape:
            text = typical_expression(rng, names) if rng.random() < 0.6 else random_expression(rng, names, 3)
            index.append(f"({text}) % {extent}")
        entry: dict[str, object] = {
            "name": f"a{k}", "op": "load", "bytes": min(4, layout.element_bytes & -layout.element_bytes),
            "index": index, "for": loops,
        }  # fmt: skip
        if rng.random() < 0.3:
            entry["where"] = random_expression(rng, names, 2)
        accesses.append(entry)
    problem = from_data(
        {
            "name": name,
            "tile": {"shape": list(layout.shape), "element": {"bytes": layout.element_bytes}},
            "threads": rng.choice([1, 20, 32, 64, 100, 128]),
            "accesses": accesses,
        }
    )
    return problem, layout


def plans(problem: Problem, layout: Layout) -> dict[int, Plan]:
    """The plan in bytes and in elements."""
    gpu = device("sm_90")
    reports = [AccessReport(a.name, a.op, 0, 0, 0, 0) for a in problem.accesses]
    return {
        unit: make_plan(
            problem, gpu, offset_expression(layout), layout.table(), reports=reports, layout=layout,
            alignment_bytes=128, about=["random"], unit_bytes=unit,
        )
        for unit in {1, layout.element_bytes}
    }  # fmt: skip


def c_checker(plan: Plan) -> list[str]:
    """Statements that write every offset and every address as uint32."""
    shape = plan.problem.tile.shape
    nest = "".join(f"for (x{d} = 0; x{d} < {n}; ++x{d}) " for d, n in enumerate(shape))
    coordinates = ", ".join(f"x{d}" for d in range(len(shape)))
    lines = [f"{nest}put({plan.name}_offset_bytes({coordinates}));"]
    for access in plan.accesses:
        trips = list(access.access.loops.values())
        nest = "".join(f"for (v{k} = 0; v{k} < {n}; ++v{k}) " for k, n in enumerate(trips))
        values = ", ".join(["t", *(f"v{k}" for k in range(len(trips)))])
        guard = f"!{access.name}_active({values}) ? 0xffffffffu : " if access.active is not None else ""
        lines.append(
            f"{nest}for (t = 0; t < {plan.problem.threads}; ++t) put({guard}{access.name}_bytes({values}));"
        )
    return lines


def expected(plan: Plan) -> list[np.ndarray]:
    values = [plan.table.ravel()]
    for access, lanes in zip(plan.problem.accesses, trace(plan.problem, plan.device).accesses, strict=True):
        iterations = int(np.prod(list(access.loops.values()), dtype=int))
        rows = (iterations, -1)
        offsets = plan.table.ravel()[lanes.element].reshape(rows)[:, : plan.problem.threads]
        active = lanes.active.reshape(rows)[:, : plan.problem.threads]
        values.append(np.where(active, offsets, 0xFFFFFFFF).ravel())
    return values


def run_c(batch: list[Plan], language: str, folder: Path) -> np.ndarray:
    compiler, suffix = ("gcc", ".c") if language == "c" else ("g++", ".cpp")
    found = shutil.which(compiler) or shutil.which("cc" if language == "c" else "c++")
    if found is None:
        sys.exit(f"no {compiler} on this machine")
    text = "\n".join(languages.code(replace(plan, language=language)) for plan in batch)
    body = [line for plan in batch for line in c_checker(plan)]
    program = folder / f"fuzz{suffix}"
    program.write_text(
        f"#include <stdio.h>\n#include <stdint.h>\n{text.replace('#pragma once', '')}\n"
        "static void put(uint32_t v) { fwrite(&v, 4, 1, stdout); }\n"
        "int main(void) {\nuint32_t x0, x1, x2; int t, v0, v1;\n" + "\n".join(body) + "\nreturn 0;\n}\n"
    )
    standard = ["-std=c99"] if language == "c" else ["-std=c++14"]
    # Random expressions compare constants and the like: the compiler's warnings are about those.
    subprocess.run([found, *standard, "-w", "-O0", "-o", folder / "fuzz", program], check=True)
    done = subprocess.run([folder / "fuzz"], check=True, stdout=subprocess.PIPE)
    return np.frombuffer(done.stdout, "<u4").astype(np.int64)


def run_python(plan: Plan) -> np.ndarray:
    """The functions for Numba as plain Python."""
    stub = types.ModuleType("numba")
    stub.cuda = types.SimpleNamespace(jit=lambda **_: lambda f: f)  # type: ignore[attr-defined]
    kept = sys.modules.get("numba")
    sys.modules["numba"] = stub
    try:
        space: dict[str, object] = {}
        exec(numba.emit(plan), space)
    finally:
        if kept is None:
            del sys.modules["numba"]
        else:
            sys.modules["numba"] = kept
    size = plan.element_bytes
    values = [space[f"{plan.name}_offset"](*map(int, x)) * size for x in np.ndindex(plan.table.shape)]  # type: ignore[operator]
    for access in plan.accesses:
        for iteration in np.ndindex(*access.access.loops.values()):
            for tid in range(plan.problem.threads):
                arguments = (tid, *map(int, iteration))
                on = access.active is None or space[f"{access.name}_active"](*arguments)  # type: ignore[operator]
                values.append(space[access.name](*arguments) * size if on else 0xFFFFFFFF)  # type: ignore[operator]
    return np.array(values, np.int64)


def check(batch: list[dict[int, Plan]], folder: Path) -> Counter[str]:
    """Differences by language; inactive threads may compute anything and are not compared."""
    wrong: Counter[str] = Counter()
    wanted = [np.concatenate(expected(plan[1])) for plan in batch]
    together = np.concatenate(wanted)
    for language in ("c", "cuda"):
        wrong[language] = int((run_c([plan[1] for plan in batch], language, folder) != together).sum())
    for plan, want in zip(batch, wanted, strict=True):
        element = max(plan)
        wrong["numba"] += int((run_python(plan[element]) != want).sum())
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=50)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    wrong: Counter[str] = Counter()
    forms: Counter[str] = Counter()
    values = 0
    with tempfile.TemporaryDirectory() as name:
        done = 0
        while done < args.count:
            batch: list[dict[int, Plan]] = []
            while len(batch) < min(args.batch, args.count - done):
                try:
                    problem, layout = random_problem(rng, f"p{done + len(batch)}")
                    batch.append(plans(problem, layout))
                except LayoutoptError as error:
                    if "table" in str(error):  # a VerificationError: ours
                        raise
                    forms["refused problems"] += 1
                    continue
                for access in batch[-1][1].accesses:
                    forms[access.hoisting.partition(" for each")[0] or "no loop"] += 1
            wrong += check(batch, Path(name))
            values += sum(len(v) for plan in batch for v in expected(plan[1]))
            done += len(batch)
            print(f"{done} problems, {values} values, differences: {dict(wrong) or 'none'}", flush=True)
    for form, count in forms.most_common():
        print(f"{count:>7}  {form}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
