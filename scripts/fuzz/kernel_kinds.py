"""Kinds of cases of compiled kernels: PTX, machine code as text and as a binary, and Triton's GPU IR."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from functools import cache

from campaign import scratch
from command_lines import WORDS, command_of
from mutate import mutate_bytes, mutated
from originals import PIECES
from process import ROOT, call

KERNELS = ROOT / "tests" / "data" / "kernels"
NAMES = (
    "transpose_plain", "reduce_interleaved", "atomics_histogram", "early_exit", "threads_7x7", "scan_naive",
    "block_3d", "integer_division", "atomics_cas", "transpose_f64", "stmatrix_epilogue", "dynamic_arrays",
    "predicated_edges", "generic_pointer", "bulk_copy", "cp_async_small", "index_in_shared", "vote_loop",
    "constant_table", "divergent_paths", "reduce_shuffle", "sort_exchange", "structures_12",
)  # fmt: skip
OF_A_KERNEL = """
check KERNEL LAUNCH --no-fix LIMIT
check KERNEL LAUNCH --no-fix --json LIMIT
check KERNEL LAUNCH --json LIMIT
check KERNEL LAUNCH LIMIT
check KERNEL KERNEL LAUNCH --no-fix LIMIT
import kernel KERNEL LAUNCH -o o LIMIT
import kernel KERNEL LAUNCH -o o --array VALUE LIMIT
import kernel KERNEL LAUNCH -o o --array NAME --shape EXTENTS LIMIT
"""
OF_PTX = """
patch KERNEL LAUNCH -o o.ptx LIMIT
patch KERNEL LAUNCH -o o.ptx --json LIMIT
patch KERNEL LAUNCH -o o.ptx --array VALUE LIMIT
patch KERNEL LAUNCH -o o.ptx --array NAME --shape EXTENTS LIMIT
"""
OF_A_PATCH = """
patch KERNEL LAUNCH -o o.ptx --array tile --result r.json LIMIT
patch KERNEL LAUNCH -o o.ptx --array tile --result r.json --json LIMIT
patch KERNEL LAUNCH -o r.json --array tile --result r.json LIMIT
patch KERNEL LAUNCH -o r.json --data 0=r.json LIMIT
import kernel KERNEL LAUNCH -o r.json LIMIT
"""
STEPS = "20000"
SIZES = ["32", "1", "33", "1024", "1025", "32,8", "0", "-1", "", "4,4,4", "1,1,1,1", "x", "9" * 30, "2,2000"]
ARRAYS = ["tile", "tile", "shared+0", "s", "line"]
DATA = ["zeros", "iota", "random:7", "random:x", "no/such.npy", "", "KERNEL"]
PIECE = re.compile(r"0x[0-9a-fA-F]+|[%$.\w]+|\s+|.", re.S)
IR = """
#blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#mma = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [2, 2], instrShape = [16, 8]}>
#shared = #ttg.swizzled_shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [1, 0]}>
#smem = #ttg.shared_memory
module attributes {"ttg.num-warps" = 4 : i32, ttg.target = "cuda:80", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @kernel(%p: !tt.ptr<f16>) {
    %a = ttg.local_alloc : () -> !ttg.memdesc<3x128x32xf16, #shared, #smem, mutable> loc(#loc1)
    %a0 = ttg.memdesc_index %a[%c0] : !ttg.memdesc<3x128x32xf16, #shared, #smem, mutable> -> !ttg.memdesc<128x32xf16, #shared, #smem, mutable>
    %t = ttg.async_copy_global_to_local %p0, %a0 mask %m : tensor<128x32x!tt.ptr<f16>, #blocked> -> <128x32xf16, #shared, #smem, mutable>
    scf.for %i = %c0 to %n step %c1 {
      %s = ttg.memdesc_subslice %a0[0, 16] : !ttg.memdesc<128x32xf16, #shared, #smem, mutable> -> !ttg.memdesc<128x16xf16, #shared, #smem, mutable, 128x32>
      %v = ttg.local_load %s token %t : !ttg.memdesc<128x16xf16, #shared, #smem, mutable, 128x32> -> tensor<128x16xf16, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 2}>>
    }
  }
}
"""  # noqa: E501


@cache
def launch_of(name: str) -> dict[str, list[str]]:
    """The options of a kernel's launch, by option."""
    found = json.loads(re.search(r"^// launch: (\{.*\})$", (KERNELS / f"{name}.cu").read_text(), re.M)[1])
    numbers = [
        f"{k}={a[1]}" for k, a in enumerate(found["args"]) if not a[0].endswith("*") and a[0] != "struct"
    ]
    return {
        "--block": [",".join(map(str, found["block"]))],
        "--grid": [",".join(map(str, found["grid"]))],
        "--arg": numbers,
        "--shared": [str(found["shared"])] if "shared" in found else [],
        "--max-steps": [STEPS],
    }


def launch_words(name: str, rng: random.Random) -> list[str]:
    """The launch, in two of three cases with an option left out, changed or added."""
    options = {option: list(values) for option, values in launch_of(name).items()}
    if rng.random() < 0.3:
        option = rng.choice(
            ["--block", "--grid", "--arg", "--shared", "--data", "--assume", "--entry", "--target"]
        )
        numbers = rng.choice(["0", "2", "+8", "n", "99", "", "x=y"]) + "=" + rng.choice(WORDS["NUMBER"])
        data = rng.choice(["0", "1", "in"]) + "=" + rng.choice(DATA)
        drawn = {
            "--block": SIZES,
            "--grid": SIZES,
            "--arg": [numbers],
            "--assume": [numbers],
            "--data": [data],
            "--target": ["sm_90", "sm_80", "gfx942", "x", ""],
        }
        values = drawn.get(option, WORDS["VALUE"])
        options[option] = (
            [] if rng.random() < 0.2 else [*options.get(option, [])[:1], rng.choice(values)][-1:]
        )
    return [word for option, values in options.items() for value in values for word in (option, value)]


def mutate_code(text: str, rng: random.Random) -> str:
    """Lines and tokens of a listing exchanged, dropped, doubled and replaced: 1 to 4 of these."""
    rows = text.splitlines()
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        k, j = rng.randrange(len(rows)), rng.randrange(len(rows))
        kind = rng.random()
        if kind < 0.1:
            del rows[k]
        elif kind < 0.2:
            rows.insert(j, rows[k])
        elif kind < 0.3:
            rows[k], rows[j] = rows[j], rows[k]
        elif kind < 0.33:
            del rows[min(k, j) : max(k, j)]
        else:
            pieces = PIECE.findall(rows[k]) or [""]
            at = rng.randrange(len(pieces))
            others = PIECE.findall(rows[j])
            if kind < 0.7:  # another register for a register, another number for a number
                others = [p for p in PIECE.findall(text) if alike(p, pieces[at])]
            pieces[at] = rng.choice(others if others and kind < 0.8 else PIECES)
            rows[k] = "".join(pieces)
        if not rows:
            return ""
    return "\n".join(rows) + "\n"


def alike(one: str, other: str) -> bool:
    """Whether two tokens are of one kind: the same but for digits, or both opcodes."""
    return re.sub(r"[0-9a-fx]+", "0", one) == re.sub(r"[0-9a-fx]+", "0", other) or (
        one != other and one[:1].isupper() and other[:1].isupper() and "." in one and "." in other
    )


def listing_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    name = rng.choice(NAMES)
    ptx = rng.random() < 0.6
    path = KERNELS / (f"{name}.ptx" if ptx else f"{name}.sm_90.sass")
    text = path.read_text()
    changed = rng.random()
    if changed < 0.8:
        data = mutate_code(text, rng).encode("utf-8", "replace")
    else:
        data = mutate_bytes(text.encode(), rng) if changed < 0.9 else text.encode()
    return kernel_case("k.ptx" if ptx else "k.sass", data, name, OF_A_KERNEL + OF_PTX * ptx, rng)


def kernel_case(
    file: str, data: bytes, name: str, commands: str, rng: random.Random
) -> tuple[dict[str, bytes], list[str]]:
    words: list[str] = []
    for word in command_of(commands, rng):
        given = {"LAUNCH": launch_words(name, rng), "KERNEL": [file], "NAME": [rng.choice(ARRAYS)]}
        words += given.get(word, [word])
    return {file: data}, words


@cache
def cubins() -> list[tuple[str, bytes]]:
    """Some kernels assembled, where there is an assembler."""
    assembler = shutil.which("ptxas")
    found = []
    for name in NAMES[:4] if assembler else ():
        with scratch() as folder:
            command = [assembler, "-arch=sm_90", "-o", str(folder / "k"), str(KERNELS / f"{name}.ptx")]
            if not subprocess.run(command, capture_output=True, check=False).returncode:
                found.append((name, (folder / "k").read_bytes()))
    return found


def binary_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    """A binary with numbers of its tables replaced; without an assembler, what is none."""
    name, data = rng.choice(cubins() or [(NAMES[0], b"\x7fELF\x02\x01\x01" + bytes(57))])
    changed = bytearray(data)
    if rng.random() < 0.7:
        for _ in range(rng.choice([1, 1, 3, 10])):
            at = rng.choice([rng.randrange(64), rng.randrange(len(data))])
            size = rng.choice([1, 2, 4, 8])
            value = rng.choice([0, 1, 0x7F, 0xFF, 1 << 20, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, len(data)])
            changed[at : at + size] = value.to_bytes(8, "little")[:size]
    else:
        changed = bytearray(mutate_bytes(data, rng))
    return kernel_case(rng.choice(["k.cubin", "k.cubin", "k.o"]), bytes(changed), name, OF_A_KERNEL, rng)


@cache
def tile_result() -> dict:
    """The answer to the problem of a kernel's array."""
    name = NAMES[0]
    with scratch() as folder:
        (folder / "k.sass").write_text((KERNELS / f"{name}.sm_90.sass").read_text())
        words = [word for option, values in launch_of(name).items() for v in values for word in (option, v)]
        call("import", "kernel", "k.sass", *words, "-o", "o", folder=folder)
        (array,) = (folder / "o").glob("*.json")
        return json.loads(call("solve", array, "--json", folder=folder).out)


def result_of_a_tile_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    """A kernel as it is, and a changed result to put into it."""
    data = (KERNELS / f"{NAMES[0]}.ptx").read_bytes()
    files, command = kernel_case("k.ptx", data, NAMES[0], OF_A_PATCH, rng)
    return {**files, "r.json": mutated(tile_result(), rng)}, command


def ir_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    changed = rng.random() < 0.85
    data = mutate_code(IR, rng).encode("utf-8", "replace") if changed else mutate_bytes(IR.encode(), rng)
    return {"k.ttgir": data}, ["import", "ttgir", "k.ttgir", "-o", "o"]


KINDS = [listing_case, listing_case, listing_case, binary_case, result_of_a_tile_case, ir_case]
