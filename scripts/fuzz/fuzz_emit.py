"""Compare emitted code with the table, at every coordinate and every access, on random problems and layouts.

    python scripts/fuzz/fuzz_emit.py --count 80 --seed 1

Layouts are random, not solved: dimension orders, pads, splits, rotated lines, swizzles of any masks.
Accesses are random expressions of the file's whole grammar, kept inside the tile by `%`. Each case is a batch
of 25 problems, one program in C and one in C++; Numba's functions run as plain Python. Exit code 1 on any
difference.
"""

import random
import sys
from collections import Counter
from pathlib import Path

from campaign import Case, run_campaign
from emit_programs import GCC, GXX, expected, planned, run, run_python
from oracle.answers import Finding

from layoutopt.errors import LayoutoptError, VerificationError
from layoutopt.expressions.grammar import to_text
from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Digit, Layout, Target

# Random expressions compare constants and the like: the compiler's warnings are about those.
COMPILERS = {"c": [GCC, "-std=c99", "-w", "-O0"], "cuda": [GXX, "-std=c++14", "-w", "-O0"]}
BATCH = 25
GPU = device("sm_90")


def random_layout(rng: random.Random) -> Layout:
    extents = [1, 2, 3, 4, 5, 7, 8, 12, 16, 32, 33]
    shape = tuple(rng.choice(extents) for _ in range(rng.choice([1, 2, 2, 2, 3])))
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


def random_case(rng: random.Random, name: str) -> tuple:
    """A problem, its device and a layout as a formula."""
    layout = random_layout(rng)
    accesses = []
    for k in range(rng.randrange(1, 4)):
        counted = rng.sample(["i", "j", "int", "base"], rng.randrange(0, 3))
        loops = {v: rng.choice([1, 2, 3, 4, 5, 8]) for v in counted}
        names = ["tid", rng.choice(["lane", "warp"]), *loops]
        index = []
        for extent in layout.shape:
            text = typical_expression(rng, names) if rng.random() < 0.6 else random_expression(rng, names, 3)
            index.append(f"({text}) % {extent}")
        width = min(4, layout.element_bytes & -layout.element_bytes)
        entry = {"name": f"a{k}", "op": "load", "bytes": width, "index": index, "for": loops}
        if rng.random() < 0.3:
            entry["where"] = random_expression(rng, names, 2)
        accesses.append(entry)
    tile = {"shape": list(layout.shape), "element": {"bytes": layout.element_bytes}}
    threads = rng.choice([1, 20, 32, 64, 100, 128])
    problem = from_data({"name": name, "tile": tile, "threads": threads, "accesses": accesses})
    case = problem, GPU, to_text(offset_expression(layout))
    planned(*case)
    return case


def make(rng: random.Random) -> Case:
    return {"seed": rng.randrange(10**9)}


def check(case: Case, folder: Path, told: Counter) -> None:
    """The code of a batch of problems, compiled and run, gives the addresses of their tables."""
    rng, batch = random.Random(case["seed"]), []
    while len(batch) < BATCH:
        try:
            batch.append(random_case(rng, f"p{len(batch)}"))
        except VerificationError:
            raise
        except LayoutoptError:
            told["refused problems"] += 1
            continue
        for access in planned(*batch[-1]).accesses:
            told[access.hoisting.partition(" for each")[0] or "no loop"] += 1
    try:
        for language, command in COMPILERS.items():
            run(command, language, batch, folder)
        for one in batch:
            run_python(*one)
    except AssertionError as error:
        raise Finding("emitted code differs from the table", error) from None
    told["values"] += sum(len(expected(*one)) for one in batch)


if __name__ == "__main__":
    sys.exit(run_campaign(__doc__, make, check))
