"""Kinds of cases of one problem: what is changed, and the commands that read it."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from functools import cache

from campaign import scratch
from command_lines import LIMIT, command_of
from mutate import jsonable, lines, mutate_array, mutate_bytes, mutate_data, mutated
from originals import DEVICES, PROBLEMS, RECORDS, TRACE
from process import call


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


OF_A_PROBLEM = """
solve p.json --json LIMIT
solve p.json LIMIT --code o.cuh --table o.npy
solve p.json --certificate o.json LIMIT
check p.json --no-fix --offset EXPRESSION
check p.json LIMIT
check p.json --json LIMIT
compare p.json LIMIT
compare p.json --markdown LIMIT
compare p.json --csv LIMIT
compare p.json --json LIMIT
explain p.json LIMIT
show p.json LIMIT
show p.json --svg o.svg --html o.html LIMIT
emit p.json --lang LANGUAGE -o o.txt LIMIT
emit p.json --self-test LIMIT
emit p.json --edit LIMIT
emit p.json --offset published --lang LANGUAGE --json
emit p.json --only access --lang LANGUAGE LIMIT
run p.json LIMIT
explain p.json --json LIMIT
show p.json --json LIMIT
show p.json --layout published --html o.html LIMIT
problems p.json --expanded
problems p.json --json
problems p.json
import cute ((4,8),(2,2)):((32,1),(16,8)) --tile 16x8 --element f32 --into p.json
"""
OF_A_RESULT = """
emit r.json --lang LANGUAGE
emit r.json --lang c -o o.h --problem p.json
emit r.json --lang cuda --problem p.json --self-test
emit r.json --lang LANGUAGE --problem p.json
emit r.json --problem p.json --edit
emit r.json --problem p.json --json
run r.json --problem p.json
show p.json --layout r.json LIMIT
"""
OF_A_TABLE = """
check p.json --table t.npy --no-fix
check p.json --table t.npy --json LIMIT
show p.json --layout t.npy LIMIT
count t.npy --op load --bytes 4
count t.npy --op ld.shared.v4.b32 --json
count t.npy --op ldmatrix.x4
count t.npy --op atom.shared.add.u32
count t.npy --op VALUE
import trace tr.jsonl --tile 8x8 --element f32 --threads 64 --table t.npy
"""
OF_DEVICES = """
solve p.json LIMIT --json
targets
targets sm_90
targets --json
count n.jsonl
check p.json --no-fix --offset x0*9+x1
compare p.json LIMIT
show p.json LIMIT
explain p.json LIMIT
"""
OF_RECORDS = """
count n.jsonl
count n.jsonl --json
count n.jsonl --target gfx942
import trace n.jsonl --tile TILE --element ELEMENT --threads 64 --offset EXPRESSION
import trace n.jsonl --tile 16x32 --element f32 --threads 64 --offset x0*32+x1 -o o.json
"""
OF_ARGUMENTS = """
check p.json --no-fix --offset EXPRESSION
check p.json --offset x0*9+x1 --time-limit NUMBER
emit p.json --lang c --offset EXPRESSION LIMIT
emit p.json --lang VALUE
solve p.json --time-limit NUMBER
solve p.json --workers NUMBER LIMIT
solve p.json --families VALUE LIMIT
solve p.json --max-bytes NUMBER LIMIT
solve p.json --pitch-multiple NUMBER LIMIT
solve p.json --alignment NUMBER LIMIT
solve p.json --table p.json LIMIT
solve p.json --code no/such/o.h LIMIT
solve p.json --table o.npy --code o.npy LIMIT
solve VALUE LIMIT
compare VALUE LIMIT
problems VALUE
targets VALUE
count n.jsonl --target VALUE
explain p.json --time-limit NUMBER
show p.json --width NUMBER LIMIT
show p.json --warp NUMBER LIMIT
show p.json --access VALUE LIMIT
show p.json --iteration VALUE LIMIT
show p.json --layout VALUE LIMIT
new KIND --tile TILE --threads NUMBER --element ELEMENT
new KIND --tile TILE
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
# Each kind makes files (name -> bytes) and a command line.


def problem_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    return {"p.json": mutated(rng.choice(PROBLEMS), rng)}, command_of(OF_A_PROBLEM, rng)


def result_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    problem, result, _ = rng.choice(answers())
    return {"p.json": jsonable(problem), "r.json": mutated(result, rng)}, command_of(OF_A_RESULT, rng)


def certificate_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    problem, _, certificate = rng.choice(answers())
    if rng.random() < 0.75:
        files = {"p.json": jsonable(problem), "c.json": mutated(certificate, rng)}
    else:
        files = {"p.json": mutated(problem, rng), "c.json": jsonable(certificate)}
    return files, ["CHECKER", "p.json", "c.json"]


def table_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    files = {"p.json": jsonable(PROBLEMS[0]), "tr.jsonl": lines(TRACE), "t.npy": mutate_array(rng)}
    return files, command_of(OF_A_TABLE, rng)


def device_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    files = {"p.json": jsonable(PROBLEMS[0]), "n.jsonl": lines(RECORDS), "d.json": mutated(DEVICES, rng)}
    return files, [*command_of(OF_DEVICES, rng), "--device-file", "d.json"]


def records_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    command = command_of(OF_RECORDS, rng)
    records = TRACE if command[0] == "import" else RECORDS
    if rng.random() < 0.8:
        data = lines([mutate_data(r, rng) if rng.random() < 0.5 else r for r in records])
    else:
        data = mutate_bytes(lines(records), rng)
    if command[0] == "count" and rng.random() < 0.2:
        return {"n.jsonl.gz": gzip.compress(data)}, ["count", "n.jsonl.gz"]
    return {"n.jsonl": data}, command


def argument_case(rng: random.Random) -> tuple[dict[str, bytes], list[str]]:
    return {"p.json": jsonable(PROBLEMS[0]), "n.jsonl": lines(RECORDS)}, command_of(OF_ARGUMENTS, rng)


KINDS: list[Callable[[random.Random], tuple[dict[str, bytes], list[str]]]] = [
    problem_case,
    problem_case,
    problem_case,
    result_case,
    certificate_case,
    table_case,
    device_case,
    records_case,
    argument_case,
]
