"""Mutated files of every kind and hostile arguments through every command.

    python scripts/fuzz/files.py --seed 7 --count 1000

Each command must end with 0, 1, 2 or 3, without a traceback; 2 with one short printable line; inputs stay
as they were, nothing half written or temporary is left, time and memory stay bounded, and what is printed
holds no control characters. Exit code 1: there are findings, saved and shrunk.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from campaign import Case, parser, run_cases, scratch
from mutate import (
    EXPRESSIONS,
    HOSTILE,
    NUMBERS,
    jsonable,
    lines,
    mutate_array,
    mutate_bytes,
    mutate_data,
)
from originals import DEVICES, PROBLEMS, RECORDS, TRACE
from process import MEMORY_BYTES, ROOT, Done, call, import_everything
from verify import Finding, require

LIMIT_S = 0.2
CPU_S = 2 * (2 * LIMIT_S + 2)
WRITES = ("-o", "--table", "--code", "--svg", "--html", "--certificate", "--into")
CHECKER = ROOT / "scripts" / "checkers" / "check_certificate.py"
LIMIT = ["--time-limit", str(LIMIT_S)]


@cache
def answers() -> list[tuple[dict, dict, dict]]:
    """A problem, its result and its certificate, for those that have them."""
    found = []
    for problem in PROBLEMS[:3] + PROBLEMS[4:5]:
        with scratch() as folder:
            (folder / "p.json").write_text(json.dumps(problem))
            done = call("solve", "p.json", "--json", "--certificate", "c.json", *LIMIT, folder=folder)
            if done.code in (0, 1):
                found.append((problem, json.loads(done.out), json.loads((folder / "c.json").read_text())))
    return found


# Command lines of each kind; words in capitals are filled in with a value drawn for the case.
OF_A_PROBLEM = """
solve p.json --json LIMIT
solve p.json LIMIT --code o.cuh --table o.npy
solve p.json --certificate o.json LIMIT
check p.json --no-fix --offset EXPRESSION
check p.json LIMIT
compare p.json LIMIT
compare p.json --markdown LIMIT
compare p.json --csv LIMIT
compare p.json --json LIMIT
explain p.json LIMIT
show p.json LIMIT
show p.json --svg o.svg --html o.html LIMIT
emit p.json --lang LANGUAGE -o o.txt LIMIT
emit p.json --self-test LIMIT
problems p.json --expanded
problems p.json --json
problems p.json
import cute ((4,8),(2,2)):((32,1),(16,8)) --tile 16x8 --element f32 --into p.json
"""
OF_A_RESULT = """
emit r.json --lang LANGUAGE
emit r.json --lang c -o o.h --problem p.json
emit r.json --lang cuda --problem p.json --self-test
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
import trace --header
import cute THREADS --tile TILE --element ELEMENT
import cute THREADS --tile 16x8 --element f32 --name VALUE
import cute (4,8):(8,1) --tile 8x4 --element f32 --order VALUE
import triton THREADS --tile 32x32 --element f16
"""
WORDS: dict[str, list[str]] = {
    "EXPRESSION": EXPRESSIONS,
    "NUMBER": NUMBERS,
    "VALUE": [
        *NUMBERS,
        *(h for h in HOSTILE if isinstance(h, str) and "\x00" not in h and "\ud800" not in h),
    ],
    "LANGUAGE": ["cuda", "hip", "opencl", "c", "cute", "gluon", "tilelang", "numba"],
    "TILE": [
        "8x8",
        "4x32",
        "16x8",
        "32x32",
        "0x1",
        "9" * 5000 + "x1",
        "3",
        "axb",
        "-1x4",
        "4x4x4",
        "100000x100000",
    ],
    "ELEMENT": ["f32", "f16", "s4", "c128", "", "f\n", "12"],
    "KIND": ["gemm", "transpose", "conv", "stencil", "attention", "blank"],
    "THREADS": [
        "((4,8),(2,2)):((32,1),(16,8))",
        "(4,8:1",
        "4:1:1",
        "((",
        "(4,8):(1,9" + "9" * 99 + ")",
        "(" * 5000,
        "",
        "#ttg.blocked<{sizePerThread=[1,4], threadsPerWarp=[8,4], warpsPerCTA=[4,1], order=[1,0]}>",
        "BlockedLayout([1,4],[8,4],[1,1],[1,0])",
        "BlockedLayout([1," * 99,
    ],
}


def command_of(lines: str, rng: random.Random) -> list[str]:
    """One of the command lines, its open words filled in."""
    words = rng.choice(lines.strip().splitlines()).split()
    filled = [rng.choice(WORDS[word]) if word in WORDS else word for word in words if word != "LIMIT"]
    return filled + (LIMIT if "LIMIT" in words else [])


def mutated(value: object, rng: random.Random) -> bytes:
    """JSON with fields changed, more often than with bytes changed."""
    return jsonable(mutate_data(value, rng)) if rng.random() < 0.85 else mutate_bytes(jsonable(value), rng)


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


def make(rng: random.Random) -> Case:
    kind = rng.choice(KINDS)
    files, command = kind(rng)
    return {
        "kind": kind.__name__,
        "command": command,
        "files": {name: text_of(data) for name, data in files.items()},
    }


def text_of(data: bytes) -> str:
    """Text as it is, anything else in base 64, so that a saved case can be read."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "base64:"
    return "base64:" + base64.b64encode(data).decode() if text.startswith("base64:") else text


def bytes_of(text: str) -> bytes:
    return base64.b64decode(text[7:]) if text.startswith("base64:") else text.encode()


def check(case: Case, folder: Path, told: Counter) -> None:
    files = {name: bytes_of(text) for name, text in case["files"].items()}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    command = list(case["command"])
    script = None
    if command[0] == "CHECKER":
        command, script = command[1:], CHECKER
    allowed_s = CPU_S * case.get("slack", 1)
    done = call(*command, folder=folder, cpu_s=allowed_s, script=script)
    verb = "checker" if script else " ".join(command[:2]) if command[0] == "import" else command[0]
    told[f"{case['kind']}: exit {done.code}"] += 1
    judge(verb, done, bool(script), allowed_s)
    outputs = {value for option, value in itertools.pairwise(command) if option in WRITES}
    left(verb, folder, files, outputs if done.code in (0, 1, 3) else set())


def judge(verb: str, done: Done, script: bool, allowed_s: float) -> None:
    """The exit code, what was printed, and what it took."""
    error = "\n".join(line for line in done.err.strip().split("\n") if not line.startswith("warning: "))
    about = (done.command, done.code, error[-900:])
    late = done.cpu_s > allowed_s or done.code in (-24, -9, -999)
    require(not late, f"{verb}: processor time", (done.cpu_s, done.command))
    require(
        "Traceback" not in done.err,
        f"{verb if script else 'command'}: traceback {error.splitlines()[-1:]}"[:110],
        about,
    )
    require(done.code in (0, 1, 2, 3), f"{verb}: exit code {done.code}", about)
    require(done.memory_bytes <= MEMORY_BYTES, f"{verb}: memory", (done.memory_bytes, done.command))
    if done.code == 2 and not script:
        require(error, f"{verb}: exit 2 without a word", about)
        folder = bool({".", "..", "./"} & set(done.command))  # a line for each file in it
        require("\n" not in error or folder, f"{verb}: exit 2 with more than a line", about)
        require(not done.out, f"{verb}: exit 2 with output", done.out[:300])
    require(
        max(map(len, [*error.splitlines(), ""])) <= 1000,
        "a long line on stderr",
        error[:300],
    )
    for text, stream in ((done.out, "stdout"), (done.err, "stderr")):
        bad = sorted({c for c in text if not c.isprintable() and c not in "\n\t"})
        require(not bad, f"{verb}: control characters on {stream}", (bad[:5], about))
    if "--json" in done.command and done.code in (0, 1) and done.command[0] != "count":
        try:
            json.loads(done.out, parse_constant=lambda text: require(False, f"{verb}: {text} in JSON", about))
        except ValueError as wrong:
            raise Finding(f"{verb}: output is no JSON", (str(wrong), about)) from None


def left(verb: str, folder: Path, files: dict[str, bytes], outputs: set[str]) -> None:
    """Inputs as they were, and nothing else beside declared outputs."""
    for path in folder.iterdir():
        if path.name in outputs:
            continue
        require(path.name in files, f"{verb}: a file is left behind", path.name)
        require(path.read_bytes() == files[path.name], f"{verb}: an input is changed", path.name)
    require(all((folder / name).exists() for name in files), f"{verb}: an input is gone")


def smaller(case: Case) -> Iterator[Case]:
    """Files with one field or half of their bytes less."""
    for name, text in case["files"].items():
        data = bytes_of(text)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            for size in (len(data) // 2, len(data) // 10, 16):
                for k in range(0, len(data), max(1, size)):
                    if 0 < size < len(data):
                        yield with_file(case, name, data[:k] + data[k + size :])
            continue
        for fewer in without(value):
            yield with_file(case, name, jsonable(fewer))


def without(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
        for key in value:
            for fewer in without(value[key]):
                yield {**value, key: fewer}
    elif isinstance(value, list):
        for k in range(len(value)):
            yield value[:k] + value[k + 1 :]
        for k in range(len(value)):
            for fewer in without(value[k]):
                yield [*value[:k], fewer, *value[k + 1 :]]


def with_file(case: Case, name: str, data: bytes) -> Case:
    return {**case, "files": {**case["files"], name: text_of(data)}}


def main() -> None:
    arguments = parser(__doc__, 1000).parse_args()
    import_everything()
    answers()
    sys.exit(run_cases(arguments, make, check, smaller))


if __name__ == "__main__":
    main()
