"""Mutated files of every kind and hostile arguments through every command.

    python scripts/fuzz/files.py --seed 7 --count 1000

Each command must end with 0, 1, 2 or 3, without a traceback; 2 with one short printable line; inputs stay
as they were, nothing half written or temporary is left, time and memory stay bounded, and what is printed
holds no control characters. Exit code 1: there are findings, saved and shrunk.
"""

import itertools
import random
import sys
from collections import Counter
from pathlib import Path

import kinds
from campaign import Case, judge, run_campaign
from oracle.answers import require
from process import ROOT, call

CPU_S = 2 * (2 * kinds.LIMIT_S + 2)
WRITES = {"-o", "--table", "--code", "--svg", "--html", "--certificate", "--into", "--export"}
MANY_PROBLEMS = 8
CHECKER = ROOT / "scripts" / "checkers" / "check_certificate.py"


def make(rng: random.Random) -> Case:
    for prepare in kinds.PREPARED:
        prepare()
    kind, files, command = kinds.drawn(rng)
    texts = {name: text_of(data) for name, data in files.items()}
    return {"kind": kind, "command": command, "files": texts}


def text_of(data: bytes) -> dict[str, str]:
    """Text as it is, anything else byte by byte, under its encoding, so that a saved case can be read."""
    try:
        return {"utf-8": data.decode()}
    except UnicodeDecodeError:
        return {"latin-1": data.decode("latin-1")}


def bytes_of(text: dict[str, str]) -> bytes:
    ((encoding, content),) = text.items()
    return content.encode(encoding, "replace")


def check(case: Case, folder: Path, told: Counter) -> None:
    files = {name: bytes_of(text) for name, text in case["files"].items()}
    stdin = files.pop("stdin", b"")
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    command, many = case["command"], kinds.KINDS[case["kind"]].many
    verb = " ".join(command[:2]) if command[0] == "import" else command[0].lower()
    script = CHECKER if verb == "checker" else None
    allowed_s = CPU_S * (MANY_PROBLEMS if many else 1) * case.get("slack", 1)
    done = call(*command[bool(script) :], folder=folder, stdin=stdin, cpu_s=allowed_s, script=script)
    told[f"{case['kind']}: exit {done.code}"] += 1
    in_folder = bool({".", "..", "./"} & set(command))  # a line for each file in it
    judge(done, verb, allowed_s, lines=many or in_folder or bool(script))
    outputs = {value for option, value in itertools.pairwise(command) if option in WRITES}
    kept = done.code in (0, 1, 3) or verb == "sweep"  # what is wrong stops nothing else
    left(verb, folder, files, outputs if kept else set())


def left(verb: str, folder: Path, files: dict[str, bytes], outputs: set[str]) -> None:
    """Inputs as they were, and nothing else beside declared outputs."""
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if name.split("/")[0] in outputs or (path.is_dir() and any(f.startswith(f"{name}/") for f in files)):
            continue
        require(name in files, f"{verb}: a file is left behind", name)
        require(path.read_bytes() == files[name], f"{verb}: an input is changed", name)
    require(all((folder / name).exists() for name in files), f"{verb}: an input is gone")


if __name__ == "__main__":
    sys.exit(run_campaign(__doc__, make, check))
