"""Kinds of cases: valid files, what is changed in them, and a command that reads them."""

import gzip
import json
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import mutate
from campaign import scratch
from mutate import HOSTILE, NUMBERS, PROBLEMS, TEMPLATE, changed, jsonable, lines, mutate_bytes, mutate_code
from process import ROOT, call

sys.path.insert(0, str(ROOT / "scripts/measure"))

from kernel_launches import KERNELS, launch, options

LIMIT_S = 0.2
LIMIT = ["--time-limit", str(LIMIT_S)]
LIMITED = {"solve", "check", "compare", "explain", "show", "emit", "run", "sweep", "patch"}
Files = dict[str, bytes]


class Kind(NamedTuple):
    """How often a kind of case is drawn, its commands, its files, and whether they hold many problems."""

    weight: int
    commands: str
    files: Callable[[random.Random], Files]
    many: bool = False


# Command lines: [in brackets] what may be left out, one|of|several, CAPITALS what is drawn from `WORDS`.
OF_A_PROBLEM = """
solve p.json [--json]
solve p.json --code o.cuh --table o.npy
solve p.json --certificate o.json
check p.json [--json]
check p.json --no-fix --offset EXPRESSION
compare p.json [--markdown|--csv|--json]
explain p.json [--json]
show p.json [--json]
show p.json [--layout published] --svg o.svg --html o.html
emit p.json --lang LANGUAGE -o o.txt
emit p.json --self-test
emit p.json --offset published --lang LANGUAGE --json
run p.json
problems p.json [--expanded|--json]
import cute ((4,8),(2,2)):((32,1),(16,8)) --tile 16x8 --element f32 --into p.json
"""
OF_A_RESULT = """
emit r.json --lang LANGUAGE [--problem p.json]
emit r.json --lang c -o o.h --problem p.json
emit r.json --lang cuda --problem p.json --self-test
emit r.json --problem p.json --json
run r.json --problem p.json
"""
OF_A_TABLE = """
check p.json --table t.npy --no-fix|--json
count t.npy --op load --bytes 4
count t.npy --op ld.shared.v4.b32|ldmatrix.x4|atom.shared.add.u32 [--json]
count t.npy --op VALUE
import trace tr.jsonl --tile 8x8 --element f32 --threads 64 --table t.npy
"""
OF_DEVICES = """
solve p.json [--json] --device-file d.json
targets [sm_90|--json] --device-file d.json
count n.jsonl --device-file d.json
check p.json --no-fix --offset x0*9+x1 --device-file d.json
compare|show|explain p.json --device-file d.json
"""
OF_RECORDS = """
count n.jsonl [--json]
count n.jsonl --target gfx942
count n.jsonl.gz
import trace tr.jsonl --tile TILE --element ELEMENT --threads 64 --offset EXPRESSION
import trace tr.jsonl --tile 16x32 --element f32 --threads 64 --offset x0*32+x1 -o o.json
"""
OF_ARGUMENTS = """
check p.json --no-fix --offset EXPRESSION
check p.json --offset x0*9+x1 --time-limit NUMBER
emit p.json --lang c --offset EXPRESSION
emit p.json --lang VALUE
solve|explain p.json --time-limit NUMBER
solve p.json --workers|--max-bytes|--pitch-multiple|--alignment NUMBER
solve p.json --families VALUE
solve p.json --table p.json
solve p.json --code no/such/o.h
solve p.json --table o.npy --code o.npy
solve|compare|problems|targets VALUE
count n.jsonl --target VALUE
show p.json --width|--warp NUMBER
show p.json --access|--iteration|--layout VALUE
new KIND --tile TILE [--threads NUMBER --element ELEMENT]
new KIND -o p.json
new gemm --mma VALUE
new transpose --name VALUE
new hopper --tile TILE --element ELEMENT -o o.json
new gemm --stages NUMBER --operand B
import trace --header
import cute THREADS --tile TILE --element ELEMENT
import cute THREADS --tile 16x8 --element f32 --name VALUE
import cute (4,8):(8,1) --tile 8x4 --element f32 --order VALUE
import triton THREADS --tile 32x32 --element f16
"""
OF_A_TEMPLATE = """
solve p.json [--over OVER] [--json]
check p.json --no-fix --offset EXPRESSION
check p.json --over OVER --json
compare|show p.json --over OVER
explain p.json
emit p.json --lang LANGUAGE [-o o.txt]
problems p.json [--expanded]
sweep p.json [--over OVER] -o o.sqlite --workers 1 [--json]
"""
OF_SEVERAL = """
solve p.json q.json|- --json
solve q.json p.json
solve -|f|l.jsonl --json
check p.json q.json --no-fix --offset EXPRESSION
compare q.json p.json --json
explain l.jsonl
show p.json l.jsonl
emit p.json q.json --lang c
sweep p.json q.json l.jsonl -o o.sqlite --workers 1
sweep f -o o.sqlite --workers 1 --export o.csv|f/a.json
sweep - -o o.sqlite --workers 1 --json
solve f --table f/a.json
"""
OF_A_STORE = """
sweep --report s.sqlite [--json]
sweep --report s.sqlite --export o.csv|o.json|o.parquet|o.cuh
sweep --report s.sqlite --export VALUE
sweep p.json -o s.sqlite --workers 1 [--export o.csv --json]
solve p.json --store s.sqlite [--json]
compare p.json --store s.sqlite
"""
OF_A_KERNEL = """
check KERNEL LAUNCH [--no-fix] [--json]
check KERNEL KERNEL LAUNCH --no-fix
import kernel KERNEL LAUNCH -o o
import kernel KERNEL LAUNCH -o o --array VALUE
import kernel KERNEL LAUNCH -o o --array NAME --shape EXTENTS
"""
OF_PTX = """
patch KERNEL LAUNCH -o o.ptx [--json]
patch KERNEL LAUNCH -o o.ptx --array VALUE
"""
OF_A_PATCH = """
patch KERNEL LAUNCH -o r.json --minimise excess [--json]
patch KERNEL LAUNCH -o r.json --data 0=r.json
import kernel KERNEL LAUNCH -o r.json
"""
TEXTS = [h for h in HOSTILE if isinstance(h, str) and "\x00" not in h and "\ud800" not in h]
WORDS: dict[str, list[str]] = {
    "EXPRESSION": mutate.EXPRESSIONS,
    "NUMBER": NUMBERS,
    "VALUE": [*NUMBERS, *TEXTS],
    "LANGUAGE": ["cuda", "hip", "opencl", "c", "cute", "gluon", "tilelang", "numba"],
    "EXTENTS": ["32x32", "16x64", "8x8x8", "1024", "0x1", "3x5", "64x64"],
    "TILE": mutate.TILES,
    "ELEMENT": ["f32", "f16", "s4", "c128", "", "f\n", "12"],
    "OVER": mutate.PARAMETERS,
    "KIND": ["gemm", "transpose", "conv", "stencil", "attention", "blank"],
    "NAME": ["tile", "tile", "shared+0", "s", "line"],
    "THREADS": [
        *("((4,8),(2,2)):((32,1),(16,8))", "(4,8:1", "4:1:1", "((", "", "(" * 5000, f"(4,8):(1,{'9' * 100})"),
        "#ttg.blocked<{sizePerThread=[1,4], threadsPerWarp=[8,4], warpsPerCTA=[4,1], order=[1,0]}>",
        *("BlockedLayout([1,4],[8,4],[1,1],[1,0])", "BlockedLayout([1," * 99),
    ],
}  # fmt: skip


def drawn(rng: random.Random) -> tuple[str, Files, list[str]]:
    """A case: its kind, its files and a command that reads them."""
    (name,) = rng.choices(list(KINDS), [kind.weight for kind in KINDS.values()])
    files = KINDS[name].files(rng)
    return name, files, command_of(KINDS[name].commands, files, rng)


def command_of(table: str, files: Files, rng: random.Random) -> list[str]:
    """One of the command lines, its open words filled in: of a kernel by its file, others drawn."""
    line = rng.choice(table.strip().splitlines())
    given = {}
    for file in files:
        if (name := file.partition(".")[0]) in NAMES:
            given = {"KERNEL": [file], "LAUNCH": launched(name, rng)}
    line = re.sub(r"\[(.*?)\]", lambda part: part[1] if rng.random() < 0.5 else "", line)
    words: list[str] = []
    for word in line.split():
        one = rng.choice(word.split("|"))
        words += given.get(one) or [rng.choice(WORDS[one]) if one in WORDS else one]
    limited = words[0] in LIMITED or words[:2] == ["import", "kernel"]
    limited = limited and not {"--report", "--time-limit"} & set(words)
    return words + LIMIT * limited


# One problem --------------------------------------------------------------------------------------


@cache
def answers() -> list[tuple[dict, dict, dict]]:
    """A problem, its result and its certificate, for those that have them."""
    found = []
    for problem in PROBLEMS:
        with scratch() as folder:
            (folder / "p.json").write_text(json.dumps(problem))
            done = call("solve", "p.json", "--json", "--certificate", "c.json", *LIMIT, folder=folder)
            if done.code in (0, 1):
                found.append((problem, json.loads(done.out), json.loads((folder / "c.json").read_text())))
    return found


def result_files(rng: random.Random) -> Files:
    problem, result, _ = rng.choice(answers())
    return {"p.json": jsonable(problem), "r.json": changed(result, rng)}


def certificate_files(rng: random.Random) -> Files:
    problem, _, certificate = rng.choice(answers())
    files = {"p.json": jsonable(problem), "c.json": jsonable(certificate)}
    one = {"c.json": certificate} if rng.random() < 0.75 else {"p.json": problem}
    return files | {name: changed(data, rng) for name, data in one.items()}


def records_files(rng: random.Random) -> Files:
    def mutated(records: list[dict[str, Any]]) -> bytes:
        if rng.random() < 0.2:
            return mutate_bytes(lines(records), rng)
        return lines([mutate.mutate_data(r, rng) if rng.random() < 0.5 else r for r in records])

    records = mutated(mutate.RECORDS)
    return {"n.jsonl": records, "n.jsonl.gz": gzip.compress(records), "tr.jsonl": mutated(mutate.TRACE)}


def beside_a_problem(**files: bytes) -> Files:
    """These files, a valid problem, and records."""
    records = {"n.jsonl": lines(mutate.RECORDS), "tr.jsonl": lines(mutate.TRACE)}
    return {"p.json": jsonable(PROBLEMS[0]), **records, **files}


# Many problems ------------------------------------------------------------------------------------


def several_files(rng: random.Random) -> Files:
    """Problems of which some are wrong, as files, lines and standard input."""
    small = [*PROBLEMS[:3], TEMPLATE, mutate.COORDINATES]
    rows = [changed(one, rng) if rng.random() < 0.5 else jsonable(one) for one in rng.choices(small, k=3)]
    many = b"\n".join(row.replace(b"\n", b" ") for row in rows) + b"\n"
    files = {"p.json": jsonable(rng.choice(small)), "q.json": rows[0], "stdin": rng.choice([many, rows[1]])}
    files["l.jsonl"] = mutate_bytes(many, rng) if rng.random() < 0.3 else many
    return files | {"f/a.json": rows[1], "f/b.jsonl": many, "f/g/c.json": rows[2]}


@cache
def store() -> bytes:
    """The store of a small sweep."""
    with scratch() as folder:
        (folder / "p.json").write_text(json.dumps(TEMPLATE))
        call("sweep", "p.json", "-o", "s.sqlite", "--workers", "1", *LIMIT, folder=folder, cpu_s=60)
        return (folder / "s.sqlite").read_bytes()


def store_files(rng: random.Random) -> Files:
    data, kind = bytearray(store()), rng.random()
    if kind < 0.1:
        for _ in range(20):
            data[rng.randrange(len(data))] = rng.randrange(256)
    else:
        data = mutate_bytes(store(), rng) if kind < 0.3 else with_changed_cells(store(), rng)
    return {"s.sqlite": bytes(data), "p.json": jsonable(TEMPLATE)}


def with_changed_cells(data: bytes, rng: random.Random) -> bytes:
    """A store that SQLite reads and in which a cell, a row, a column or a table is not as it was."""
    with scratch() as folder:
        path = folder / "s.sqlite"
        path.write_bytes(data)
        db = sqlite3.connect(path)
        for _ in range(rng.choice([1, 1, 2])):
            names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
            ((table,),) = rng.choices(names)
            if rng.random() < 0.85:
                change_cell(db, table, rng)
                continue
            db.execute(rng.choice([
                f"DELETE FROM {table}", f"ALTER TABLE {table} RENAME COLUMN hash TO hush",
                "PRAGMA user_version = 2", "PRAGMA application_id = 7", f"DROP TABLE {table}",
            ]))  # fmt: skip
            break
        db.commit()
        db.close()
        return path.read_bytes()


def change_cell(db: sqlite3.Connection, table: str, rng: random.Random) -> None:
    column = rng.choice([row[1] for row in db.execute(f"PRAGMA table_info({table})")])
    rows = db.execute(f"SELECT hash, {column} FROM {table} WHERE hash IS NOT NULL").fetchall()
    if not rows:
        return
    hash_, value = rng.choice(rows)
    try:
        change = f"UPDATE OR REPLACE {table} SET {column} = ? WHERE hash = ?"
        db.execute(change, (new_value(value, rng), hash_))
    except (sqlite3.IntegrityError, OverflowError, UnicodeEncodeError):
        return


def new_value(value: Any, rng: random.Random) -> Any:
    """JSON with a field changed, or something hostile."""
    try:
        decoded = json.loads(value)
    except (ValueError, TypeError):
        decoded = None
    if isinstance(decoded, dict | list) and rng.random() < 0.8:
        text = json.dumps(mutate.mutate_data(decoded, rng))
        return text.encode() if isinstance(value, bytes) else text
    hostile = rng.choice(HOSTILE)
    return json.dumps(hostile) if isinstance(hostile, list | dict) else hostile


# Compiled kernels ---------------------------------------------------------------------------------

NAMES = (
    "transpose_plain", "reduce_interleaved", "atomics_histogram", "early_exit", "threads_7x7", "scan_naive",
    "block_3d", "integer_division", "atomics_cas", "transpose_f64", "stmatrix_epilogue", "dynamic_arrays",
    "predicated_edges", "generic_pointer", "bulk_copy", "cp_async_small", "index_in_shared", "vote_loop",
    "constant_table", "divergent_paths", "reduce_shuffle", "sort_exchange", "structures_12",
)  # fmt: skip
BLOCKS = ["32", "1", "33", "1024", "1025", "32,8", "0", "-1", "", "4,4,4", "1,1,1,1", "x", "9" * 30, "2,2000"]
DATA = ["zeros", "iota", "random:7", "random:x", "no/such.npy", "", "KERNEL"]
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


def launched(name: str, rng: random.Random | None = None) -> list[str]:
    """The options of a kernel's launch, in a third of the cases with one left out, changed or added."""
    given = options(launch(KERNELS / f"{name}.cu")) | {"--max-steps": ["20000"]}
    if rng is not None and rng.random() < 0.3:
        numbers = rng.choice(["0", "2", "+8", "n", "99", "", "x=y"]) + "=" + rng.choice(NUMBERS)
        drawn = {
            "--block": BLOCKS, "--grid": BLOCKS, "--arg": [numbers], "--assume": [numbers],
            "--shared": WORDS["VALUE"], "--entry": WORDS["VALUE"],
            "--data": [rng.choice(["0", "1", "in"]) + "=" + rng.choice(DATA)],
            "--target": ["sm_90", "sm_80", "gfx942", "x", ""],
        }  # fmt: skip
        option = rng.choice(list(drawn))
        given[option] = [] if rng.random() < 0.2 else [rng.choice(drawn[option])]
    return [word for option, values in given.items() for value in values for word in (option, value)]


def listing_files(rng: random.Random, kind: str = "") -> Files:
    """PTX or machine code as text, changed or as it is."""
    file = f"{rng.choice(NAMES)}.{kind or rng.choice(['ptx', 'sm_90.sass'])}"
    text, how = (KERNELS / file).read_text(), rng.random()
    plain = text.encode()
    return {file: mutate_code(text, rng) if how < 0.8 else mutate_bytes(plain, rng) if how < 0.9 else plain}


@cache
def cubins() -> list[tuple[str, bytes]]:
    """Some kernels assembled; without an assembler, what is none."""
    assembler, found = shutil.which("ptxas"), []
    for name in NAMES[:4] if assembler else ():
        with scratch() as folder:
            command = [assembler, "-arch=sm_90", "-o", str(folder / "k"), str(KERNELS / f"{name}.ptx")]
            if not subprocess.run(command, capture_output=True, check=False).returncode:
                found.append((name, (folder / "k").read_bytes()))
    return found or [(NAMES[0], b"\x7fELF\x02\x01\x01" + bytes(57))]


def binary_files(rng: random.Random) -> Files:
    """A binary with numbers of its tables replaced."""
    name, data = rng.choice(cubins())
    binary = bytearray(data)
    if rng.random() < 0.7:
        for _ in range(rng.choice([1, 1, 3, 10])):
            at = rng.choice([rng.randrange(64), rng.randrange(len(data))])
            size = rng.choice([1, 2, 4, 8])
            value = rng.choice([0, 1, 0x7F, 0xFF, 1 << 20, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, len(data)])
            binary[at : at + size] = value.to_bytes(8, "little")[:size]
    else:
        binary = bytearray(mutate_bytes(data, rng))
    return {f"{name}.{rng.choice(['cubin', 'cubin', 'o'])}": bytes(binary)}


@cache
def tile_result() -> dict:
    """The answer to the problem of a kernel's array."""
    with scratch() as folder:
        (folder / "k.sass").write_text((KERNELS / f"{NAMES[0]}.sm_90.sass").read_text())
        call("import", "kernel", "k.sass", *launched(NAMES[0]), "-o", "o", folder=folder)
        (problem,) = (folder / "o").glob("*.json")
        return json.loads(call("solve", problem, "--json", folder=folder).out)


def result_of_a_tile_files(rng: random.Random) -> Files:
    """A kernel as it is, and a changed result to put into it."""
    name = f"{NAMES[0]}.ptx"
    return {name: (KERNELS / name).read_bytes(), "r.json": changed(tile_result(), rng)}


KINDS = {
    "problem": Kind(3, OF_A_PROBLEM, lambda rng: {"p.json": changed(rng.choice(PROBLEMS), rng)}),
    "numbers": Kind(1, OF_A_PROBLEM, lambda rng: {"p.json": changed(mutate.COORDINATES, rng)}),
    "result": Kind(1, OF_A_RESULT, result_files),
    "certificate": Kind(1, "CHECKER p.json c.json", certificate_files),
    "table": Kind(1, OF_A_TABLE, lambda rng: beside_a_problem(**{"t.npy": mutate.mutate_array(rng)})),
    "device": Kind(1, OF_DEVICES, lambda rng: beside_a_problem(**{"d.json": changed(mutate.DEVICES, rng)})),
    "records": Kind(1, OF_RECORDS, records_files),
    "argument": Kind(1, OF_ARGUMENTS, lambda _: beside_a_problem()),
    "template": Kind(2, OF_A_TEMPLATE, lambda rng: {
        "p.json": changed(TEMPLATE, rng) if rng.random() < 0.8 else jsonable(TEMPLATE)}, many=True),
    "several": Kind(2, OF_SEVERAL, several_files, many=True),
    "store": Kind(2, OF_A_STORE, store_files, many=True),
    "listing": Kind(3, OF_A_KERNEL, listing_files),
    "ptx": Kind(1, OF_PTX, lambda rng: listing_files(rng, "ptx")),
    "binary": Kind(1, OF_A_KERNEL, binary_files),
    "result of a tile": Kind(1, OF_A_PATCH, result_of_a_tile_files),
    "ir": Kind(1, "import ttgir k.ttgir -o o", lambda rng: {
        "k.ttgir": mutate_code(IR, rng) if rng.random() < 0.85 else mutate_bytes(IR.encode(), rng)}),
}  # fmt: skip
PREPARED = (answers, cubins, tile_result, store)
