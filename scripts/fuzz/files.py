"""Mutated files of every kind and hostile arguments through every command.

    python scripts/fuzz/files.py --seed 7 --count 1000

Each command must end with 0, 1, 2 or 3, without a traceback; 2 with one short printable line; inputs stay
as they were, nothing half written or temporary is left, time and memory stay bounded, and what is printed
holds no control characters. Exit code 1: there are findings, saved and shrunk.
"""

from __future__ import annotations

import base64
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import kernel_kinds
import kinds
import many_kinds
from campaign import Case, parser, run_cases
from command_lines import LIMIT_S
from mutate import jsonable
from oracle.answers import Finding, require
from process import MEMORY_BYTES, ROOT, Done, call, import_everything

CPU_S = 2 * (2 * LIMIT_S + 2)
WRITES = {"-o", "--table", "--code", "--svg", "--html", "--certificate"}
WRITES |= {"--into", "--export", "--page", "--plot"}
KINDS = [*kinds.KINDS, *kernel_kinds.KINDS, *many_kinds.KINDS]
MANY = {kind.__name__ for kind in (many_kinds.template_case, many_kinds.several_case, many_kinds.store_case)}
MANY_PROBLEMS = 8
CHECKER = ROOT / "scripts" / "checkers" / "check_certificate.py"


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
    stdin = files.pop("stdin", b"")
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    command = list(case["command"])
    script = None
    many = case["kind"] in MANY
    if command[0] == "CHECKER":
        command, script = command[1:], CHECKER
    allowed_s = CPU_S * (MANY_PROBLEMS if many else 1) * case.get("slack", 1)
    done = call(*command, folder=folder, stdin=stdin, cpu_s=allowed_s, script=script)
    verb = "checker" if script else " ".join(command[:2]) if command[0] == "import" else command[0]
    told[f"{case['kind']}: exit {done.code}"] += 1
    judge(verb, done, bool(script), allowed_s, many=many)
    outputs = {value for option, value in itertools.pairwise(command) if option in WRITES}
    kept = done.code in (0, 1, 3) or verb == "sweep"  # what is wrong stops nothing else
    left(verb, folder, files, outputs if kept else set())


def judge(verb: str, done: Done, script: bool, allowed_s: float, *, many: bool) -> None:
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
        require("\n" not in error or folder or many, f"{verb}: exit 2 with more than a line", about)
        require(not done.out or many, f"{verb}: exit 2 with output", done.out[:300])
    require(max(map(len, [*error.splitlines(), ""])) <= 1000, "a long line on stderr", error[:300])
    for text, stream in ((done.out, "stdout"), (done.err, "stderr")):
        bad = sorted({c for c in text if not c.isprintable() and c not in "\n\t"})
        require(not bad, f"{verb}: control characters on {stream}", (bad[:5], about))
    if "--json" in done.command and done.code in (0, 1) and done.command[0] != "count":
        try:
            for text in done.out.splitlines() if many and verb != "sweep" else [done.out]:
                json.loads(text, parse_constant=lambda text: require(False, f"{verb}: {text} in JSON", about))
        except ValueError as wrong:
            raise Finding(f"{verb}: output is no JSON", (str(wrong), about)) from None


def left(verb: str, folder: Path, files: dict[str, bytes], outputs: set[str]) -> None:
    """Inputs as they were, and nothing else beside declared outputs."""
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if name.split("/")[0] in outputs or (path.is_dir() and any(f.startswith(f"{name}/") for f in files)):
            continue
        require(name in files, f"{verb}: a file is left behind", name)
        require(path.read_bytes() == files[name], f"{verb}: an input is changed", name)
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
    for prepare in (kinds.answers, kernel_kinds.cubins, kernel_kinds.tile_result, many_kinds.store):
        prepare()
    sys.exit(run_cases(arguments, make, check, smaller))


if __name__ == "__main__":
    main()
