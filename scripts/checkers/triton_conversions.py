"""Random conversions between register layouts: what Triton compiles for sm_90, and what `convert` finds.

    pip install triton -e '.[cuda]'
    python scripts/checkers/triton_conversions.py --seed 1 --count 500 --out conversions.jsonl
    python scripts/checkers/triton_conversions.py --report conversions.jsonl

Half of the layouts are blocked ones of 4 warps, the others accumulators of m16n8 and operands of it. Triton
compiles a kernel of one `ttg.convert_layout`; the wavefronts are those of its machine code, as `layoutopt
check` counts it. Conversions for which Triton uses no shared memory are told apart. Needs no GPU.
"""

import argparse
import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import layoutopt

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from oracle.conversions import execute, expected

ELEMENT_BYTES = {"f16": 2, "f32": 4, "e4m3": 1}
WARPS = 4
# What keeps Triton's loads alive where only one of several replicas writes its result.
OPAQUE = {"f16": ("h", 1), "f32": ("r", 1), "e4m3": ("r", 4)}

Bases = dict[str, list[list[int]]]


def unit(d: int, step: int) -> list[int]:
    return [step if k == d else 0 for k in range(2)]


def blocked(rng: random.Random, shape: list[int]) -> Bases:
    """As Triton's blocked layouts: (sizePerThread, threadsPerWarp, warpsPerCTA) along the order."""
    order = rng.choice([[0, 1], [1, 0]])
    per_thread = [1, 1]
    per_thread[rng.randrange(2)] = rng.choice([1, 2, 4, 8])
    if rng.random() < 0.15:
        per_thread[order[0]] = rng.choice([1, 2, 4])
    lanes = rng.choice([1, 2, 4, 8, 16, 32])
    warps = rng.choice([1, 2, 4])
    counts = {"register": per_thread, "lane": [lanes, 32 // lanes], "warp": [warps, WARPS // warps]}
    bases: Bases = {part: [] for part in counts}
    size = [1, 1]
    for part, count in counts.items():
        for d in order:
            for _ in range(count[d].bit_length() - 1):
                bases[part].append(unit(d, size[d] if size[d] < shape[d] else 0))
                size[d] *= 2
    return covering(bases, size, shape, order)


def matrix(shape: list[int], element: str, operand: bool) -> Bases:
    """The accumulator of m16n8, or the operand A of the same instruction."""
    word = 4 // ELEMENT_BYTES[element] if operand else 2
    registers = [unit(1, 1 << k) for k in range(word.bit_length() - 1)] + [unit(0, 8)]
    registers += [unit(1, 4 * word)] if operand else []
    lanes = [unit(1, word), unit(1, 2 * word), *(unit(0, 1 << k) for k in range(3))]
    size = [16, 8 * word if operand else 8]
    warps = []
    for d in (0, 0 if not operand else 1):
        fits = size[d] < shape[d] and not (operand and d == 1)
        warps.append(unit(d, size[d] if fits else 0))
        size[d] *= 2 if fits else 1
    return covering({"register": registers, "lane": lanes, "warp": warps}, size, shape, [1, 0])


def covering(bases: Bases, size: list[int], shape: list[int], order: list[int]) -> Bases:
    for d in order:
        while size[d] < shape[d]:
            bases["register"].append(unit(d, size[d]))
            size[d] *= 2
    return bases


def question(seed: int) -> tuple[list[int], str, Bases, Bases]:
    rng = random.Random(seed)
    while True:
        shape = [rng.choice([32, 64, 128]), rng.choice([32, 64])]
        element = rng.choice(sorted(ELEMENT_BYTES))
        sides = [
            blocked(rng, shape) if rng.random() < 0.5 else matrix(shape, element, rng.random() < 0.5)
            for _ in range(2)
        ]
        vectors = (v for side in sides for part in side.values() for v in part)
        inside = all(v[0] < shape[0] and v[1] < shape[1] for v in vectors)
        if inside and sides[0] != sides[1]:
            return shape, element, *sides


def kernel(shape: list[int], element: str, source: Bases, destination: Bases) -> str:
    """The kernel as Triton's GPU dialect."""
    rows, columns = shape
    kind = {"f16": "f16", "f32": "f32", "e4m3": "i8"}[element]
    tile = f"{rows}x{columns}"

    def linear(bases: Bases) -> str:
        parts = ", ".join(f"{part} = {vectors}" for part, vectors in bases.items())
        return f"#ttg.linear<{{{parts}, block = []}}>"

    def pointers(n: int, layout: str) -> str:
        def vector(d: int) -> str:
            return f"tensor<{shape[d]}xi32, #ttg.slice<{{dim = {1 - d}, parent = {layout}}}>>"

        def thin(d: int) -> str:
            return f"tensor<{rows}x1xi32, {layout}>" if d == 0 else f"tensor<1x{columns}xi32, {layout}>"

        whole, address = f"tensor<{tile}xi32, {layout}>", f"tensor<{tile}x!tt.ptr<{kind}>, {layout}>"
        text = ""
        for d in (0, 1):
            text += f"""
    %r{n}{d} = tt.make_range {{end = {shape[d]} : i32, start = 0 : i32}} : {vector(d)}
    %e{n}{d} = tt.expand_dims %r{n}{d} {{axis = {1 - d} : i32}} : {vector(d)} -> {thin(d)}
    %b{n}{d} = tt.broadcast %e{n}{d} : {thin(d)} -> {whole}"""
        return f"""{text}
    %n{n} = arith.constant dense<{columns}> : {whole}
    %m{n} = arith.muli %b{n}0, %n{n} : {whole}
    %o{n} = arith.addi %m{n}, %b{n}1 : {whole}
    %s{n} = tt.splat %p{n} : !tt.ptr<{kind}> -> {address}
    %a{n} = tt.addptr %s{n}, %o{n} : {address}, {whole}"""

    letter, packed = OPAQUE[element]
    return f"""#A = {linear(source)}
#B = {linear(destination)}
module attributes {{"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = {WARPS} : i32, ttg.target = "cuda:90",
                    "ttg.threads-per-warp" = 32 : i32}} {{
  tt.func public @kernel(%p0: !tt.ptr<{kind}>, %p1: !tt.ptr<{kind}>) {{{pointers(0, "#A")}{pointers(1, "#B")}
    %v = tt.load %a0 : tensor<{tile}x!tt.ptr<{kind}>, #A>
    %w = ttg.convert_layout %v : tensor<{tile}x{kind}, #A> -> tensor<{tile}x{kind}, #B>
    %x = tt.elementwise_inline_asm "mov.b{32 if letter == "r" else 16} $0, $1;"
      {{constraints = "={letter},{letter}", packed_element = {packed} : i32, pure = false}}
      %w : tensor<{tile}x{kind}, #B> -> tensor<{tile}x{kind}, #B>
    tt.store %a1, %x : tensor<{tile}x!tt.ptr<{kind}>, #B>
    tt.return
  }}
}}
"""


def by_triton(text: str, folder: Path) -> dict[str, int]:
    """Scratch and wavefronts of what Triton makes of it."""
    import triton
    from triton.backends.compiler import GPUTarget

    source = folder / "kernel.ttgir"
    source.write_text(text)
    compiled = triton.compile(str(source), target=GPUTarget("cuda", 90, 32))
    launch = layoutopt.Launch(block=(32 * WARPS, 1, 1), shared_bytes=compiled.metadata.shared)
    found = layoutopt.check_kernel(compiled.asm["cubin"], launch, entry="kernel", mend=False).report
    if not found.certain:
        raise ValueError(f"not certain: {found.unknown}")
    wavefronts = found.totals["wavefronts_ld"] + found.totals["wavefronts_st"]
    return {"bytes": compiled.metadata.shared, "wavefronts": wavefronts}


def rows(seed: int, count: int) -> Iterator[dict]:
    for number in range(seed, seed + count):
        asked = question(number)
        with tempfile.TemporaryDirectory() as folder:
            yield {"seed": number, "triton": by_triton(kernel(*asked), Path(folder))}


def report(path: Path) -> None:
    """Both sides counted: fewer, as many, more; bounds met; times."""
    tally = {"fewer": 0, "as many": 0, "more": 0, "more bytes": 0, "bound met": 0, "bound met by Triton": 0}
    sums, seconds, alone = [0, 0], [], 0
    for row in map(json.loads, path.read_text().splitlines()):
        shape, element, source, destination = question(row["seed"])
        start = time.perf_counter()
        asked = {"shape": shape, "element": element, "source": source, "destination": destination}
        found = layoutopt.convert(**asked, threads=32 * WARPS)
        seconds.append(time.perf_counter() - start)
        if execute(found.to_json(), source, destination, ELEMENT_BYTES[element]) != expected(destination):
            raise SystemExit(f"seed {row['seed']}: an element does not arrive")
        theirs = row["triton"]["wavefronts"]
        if not theirs:
            alone += 1
            continue
        change = found.wavefronts - theirs
        tally["fewer" if change < 0 else "more" if change else "as many"] += 1
        tally["more bytes"] += found.bytes > row["triton"]["bytes"]
        tally["bound met"] += found.status == "optimal"
        tally["bound met by Triton"] += theirs == found.proof.lower_bound
        sums = [sums[0] + found.wavefronts, sums[1] + theirs]
        if change > 0 or found.bytes > row["triton"]["bytes"]:
            print(f"seed {row['seed']}: {found.wavefronts} wavefronts, {found.bytes} bytes; {row['triton']}")
    for name, value in tally.items():
        print(f"{value:5}  {name}")
    print(f"{sums[0]} wavefronts, Triton {sums[1]}; without shared memory in Triton: {alone}")
    seconds.sort()
    at = [seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]]
    print(f"median {at[0] * 1e3:.2f} ms, p99 {at[1] * 1e3:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    if given.out:
        warnings.simplefilter("ignore")
        with given.out.open("w") as file:
            for row in rows(given.seed, given.count):
                file.write(json.dumps(row) + "\n")
                file.flush()
    report(given.report or given.out)


if __name__ == "__main__":
    main()
