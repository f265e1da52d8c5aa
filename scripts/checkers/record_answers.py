"""Record what the commands answer on a large set of problems, and compare two records.

    python scripts/checkers/record_answers.py write RECORD.jsonl.gz [--of KIND ...] [--checkout FOLDER]
    python scripts/checkers/record_answers.py compare BEFORE.jsonl.gz AFTER.jsonl.gz
    python scripts/checkers/record_answers.py beside CHECKOUT [--of KIND ...]

The set (`questions`): every problem of the catalogue through `solve`, `compare` and `explain`; random
problems of the fuzzer's generator with constraints, weights, widths and toy devices; tiles of five to eight
dimensions and large ones; free lanes; sets of several tiles; every kernel of tests/data/kernels through
`check` and `import`. `write` keeps problem and answer, so that `compare` needs no generator. `beside` asks
this checkout and another one in turn, each in a process of its own, so that a busy machine slows both.

An answer is better or worse by its weighted excess and bytes, status, bounds and index cost, in this order.
What the time limit ended may differ from run to run: it is counted apart. Exit code 1: an answer is worse.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("scripts/fuzz", "scripts/measure", "tests")]

KINDS = ("catalogue", "random", "dimensions", "lanes", "sets", "kernels")
SLOWER, SLACK_S = 1.2, 0.05  # of processor time, by how much a question takes longer
RANKS = {"optimal": 0, "infeasible": 0, "feasible": 1, "unknown": 2}
# What a worker runs: commands of one checkout, in one process.
WORKER = """
import io, json, os, sys, time
from click.testing import CliRunner
import layoutopt.cli
from layoutopt.cli.commands import main
for line in sys.stdin:
    folder, commands = json.loads(line)
    os.chdir(folder)
    said = []
    for command in commands:
        begun = time.process_time()
        done = CliRunner().invoke(main, command)
        spent = time.process_time() - begun
        broken = done.exception is not None and not isinstance(done.exception, SystemExit)
        text = repr(done.exception) if broken else done.stdout
        said.append([done.exit_code, round(spent, 4), text, "" if broken else done.stderr[-300:]])
    print(json.dumps(said), flush=True)
"""


class Checkout:
    """A process that runs commands with the package of one checkout."""

    def __init__(self, root: Path) -> None:
        piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = {**os.environ, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", WORKER]
        self.process = subprocess.Popen(command, cwd=root, env=environment, **piped)

    def answers(self, question: dict[str, Any]) -> dict[str, Any]:
        """The question with what each of its commands answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            for name, data in question["files"].items():
                Path(folder, name).write_text(data if isinstance(data, str) else json.dumps(data))
            print(json.dumps([folder, question["commands"]]), file=self.process.stdin, flush=True)
            said = json.loads(self.process.stdout.readline())
            answers = [
                {"exit": code, "cpu_s": spent, "answer": decoded(text), "stderr": error}
                for code, spent, text, error in said
            ]
            imported = sorted(Path(folder).rglob("imported/*.json"))
            if imported:
                answers[-1]["files"] = {path.name: json.loads(path.read_text()) for path in imported}
        return {**question, "answers": answers}


def decoded(text: str) -> Any:
    """JSON as data, anything else as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def questions(kinds: list[str], count: int, seed: int, limit: float) -> Iterator[dict[str, Any]]:
    """The set: name, kind, files and commands; as many random ones as `count` says."""
    import free_lanes
    from generate import random_tile_set

    makers = {
        "catalogue": lambda: catalogue(limit),
        "random": lambda: (random_question(seed, k, limit) for k in range(count)),
        "dimensions": lambda: (many_dimensions(seed, k, limit) for k in range(count // 10)),
        "lanes": lambda: (
            solve_of(f"lanes {k}", free_lanes.random_problem(seed * 10_000 + k), limit)
            for k in range(count // 20)
        ),
        "sets": lambda: (
            solve_of(f"set {k}", random_tile_set(random.Random(f"{seed} set {k}")), limit)
            for k in range(count // 10)
        ),
        "kernels": kernels,
    }
    for kind in kinds:
        for question in makers[kind]():
            yield {"kind": kind, **question}


def solve_of(name: str, problem: dict[str, Any], limit: float, *more: str) -> dict[str, Any]:
    command = ["solve", "p.json", "--json", "--time-limit", str(limit), *more]
    return {"name": name, "files": {"p.json": problem}, "commands": [command]}


def catalogue(limit: float) -> Iterator[dict[str, Any]]:
    for path in sorted((ROOT / "problems").rglob("*/*.json")):
        data = json.loads(path.read_text())
        found = solve_of(f"{path.parent.name}/{path.stem}", data, 2 * limit)
        for verb in ("compare", "explain", *(["check"] if "published" in data else [])):
            found["commands"].append([verb, "p.json", "--json", "--time-limit", str(limit)])
        yield found


def random_question(seed: int, number: int, limit: float) -> dict[str, Any]:
    """A problem of the fuzzer, real or toy device, with options as the fuzzer draws them."""
    from generate import random_problem

    from problems import constraints

    rng = random.Random(f"{seed} random {number}")
    problem, devices = random_problem(rng, toy=0.4)
    more = constraints(rng, problem) if rng.random() < 0.2 else []
    if devices is None:
        return solve_of(f"random {number}", problem, limit, *more)
    found = solve_of(f"random {number}", problem, limit, *more, "--device-file", "d.json")
    return {**found, "files": {**found["files"], "d.json": devices}}


def many_dimensions(seed: int, number: int, limit: float) -> dict[str, Any]:
    """A tile of five to eight dimensions, or one of tens of thousands of elements."""
    rng = random.Random(f"{seed} dimensions {number}")
    if rng.random() < 0.7:
        shape = [rng.choice([2, 2, 3, 4]) for _ in range(rng.randint(5, 8))]
    else:
        shape = [rng.choice([64, 96, 128, 160]), rng.choice([64, 100, 128, 256])]
    shape[-1] *= rng.choice([1, 2, 4])
    element = rng.choice(["f16", "f32", "f32", "f64"])
    accesses = []
    for k in range(rng.choice([2, 2, 3])):
        order, below, index = rng.sample(range(len(shape)), len(shape)), 1, ["0"] * len(shape)
        for d in order:
            index[d] = f"(tid + 64*i) // {below} % {shape[d]}"
            below *= shape[d]
        op = "store" if k == 0 else "load"
        size, loops = {"f16": 2, "f32": 4, "f64": 8}[element], {"i": max(1, min(8, below // 64))}
        accesses.append({"name": f"a{k}", "op": op, "bytes": size, "index": index, "for": loops})
    problem = {"name": f"d{number}", "tile": {"shape": shape, "element": element}, "threads": 64}
    return solve_of(f"dimensions {number}", {**problem, "accesses": accesses}, limit)


def kernels() -> Iterator[dict[str, Any]]:
    """Every kernel's machine code, checked and imported at the launch that its source tells."""
    from kernel_launches import launches, options

    for kernel in launches():
        for path in sorted(kernel.source.parent.glob(f"{kernel.name}.*.sass")):
            given = {"--entry": [kernel.symbol], **options(kernel)}
            launch = [f"{option}={value}" for option, values in given.items() for value in values]
            check = ["check", "k.sass", *launch, "--json", "--time-limit", "60"]
            imported = ["import", "kernel", "k.sass", *launch, "-o", "imported"]
            files = {"k.sass": path.read_text()}
            yield {"name": path.name, "files": files, "commands": [check, imported]}


def standing(answer: Any, minimise: str) -> tuple[Any, ...] | None:
    """What ranks an answer of `solve`: smaller is better; None for what has no such rank."""
    if not isinstance(answer, dict) or "proof" not in answer:
        return None
    proof, none = answer["proof"], float("inf")
    bound = proof.get("weighted_excess") or proof["excess"]
    excess = answer.get("weighted_excess")
    excess = answer.get("excess") if excess is None else excess
    found = [none if excess is None else excess, answer.get("bytes") or none]
    if minimise == "bytes":
        found.reverse()
    cost = (proof.get("index_cost") or {}).get("value", 0)
    bounds = -bound["lower_bound"], -proof["bytes"]["lower_bound"]
    return (*found, RANKS[answer["status"]], *bounds, cost)


def objective(question: dict[str, Any], command: list[str]) -> str:
    """What comes first, as the file or the command has it."""
    if "--minimise" in command:
        return command[command.index("--minimise") + 1]
    return str(question["files"].get("p.json", {}).get("layout", {}).get("minimise", "excess"))


def was_cut(answer: Any) -> bool:
    """Whether a limit of time ended the search."""
    reason = str(answer.get("reason")) if isinstance(answer, dict) else ""
    return "time limit" in reason or "out of time" in reason


def without_times(value: Any) -> Any:
    """The same data without what may differ from run to run: seconds, and what a model took."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in ("seconds", "model", "cpu_s")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def judged(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each command of a question: how its second answer stands to its first, and in what it differs."""
    for command, old, new in zip(before["commands"], before["answers"], after["answers"], strict=True):
        verb = command[0]
        asked = objective(before, command)
        ranks = standing(old["answer"], asked), standing(new["answer"], asked)
        known, now = ([answer["answer"], answer.get("files")] for answer in (old, new))
        if without_times(known) == without_times(now):
            yield verb, "same"
        elif ranks[0] is None or ranks[1] is None or verb == "check":
            yield verb, "differs" if old["exit"] == new["exit"] else f"exit {old['exit']} -> {new['exit']}"
        elif ranks[0] == ranks[1]:
            yield verb, "equal"
        else:
            how = "better" if ranks[1] < ranks[0] else "worse"
            if was_cut(old["answer"]) or was_cut(new["answer"]):
                how += ", cut by time"
            yield verb, f"{how}: {ranks[0]} -> {ranks[1]}"


class Report:
    """Counts what was judged, and prints what is not the same."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.cpu_s = [0.0, 0.0]

    def add(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        for verb, how in judged(before, after):
            kind, _, figures = how.partition(":")
            self.counts[f"{before['kind']} {verb}: {kind}"] += 1
            if kind not in ("same", "equal"):
                print(f"{before['name']} {verb}: {kind}{figures}", flush=True)
        took = [sum(a["cpu_s"] for a in question["answers"]) for question in (before, after)]
        self.cpu_s = [sum(pair) for pair in zip(self.cpu_s, took, strict=True)]
        if took[1] > SLOWER * took[0] + SLACK_S:
            self.counts["slower"] += 1
            print(f"{before['name']}: slower, {took[0]:.3f} -> {took[1]:.3f} s", flush=True)

    @property
    def worse(self) -> int:
        wrong = (": worse", ": differs", "exit")
        return sum(n for what, n in self.counts.items() if any(part in what for part in wrong))

    def print(self) -> None:
        for what, number in sorted(self.counts.items()):
            print(f"{number:6} {what}")
        print(f"processor seconds: {self.cpu_s[0]:.1f} -> {self.cpu_s[1]:.1f}")


def read(path: Path) -> dict[str, dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        return {(question := json.loads(line))["name"]: question for line in lines}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("mode", choices=("write", "compare", "beside"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--of", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--count", type=int, default=2000, help="random problems")
    parser.add_argument("--seed", type=int, default=29)
    parser.add_argument("--time-limit", type=float, default=5.0, metavar="S", help="of each command")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose package answers (write)")
    args = parser.parse_args()
    report = Report()
    if args.mode == "compare":
        before, after = (read(path) for path in args.paths)
        for name in before.keys() & after.keys():
            report.add(before[name], after[name])
        report.print()
        return int(report.worse > 0)
    asked = questions(args.of, args.count, args.seed, args.time_limit)
    if args.mode == "write":
        side = Checkout(args.checkout.resolve())
        with gzip.open(args.paths[0], "wt") as record:
            for question in asked:
                print(json.dumps(side.answers(question)), file=record, flush=True)
        return 0
    sides = [Checkout(path.resolve()) for path in (args.paths[0], ROOT)]
    for question in asked:
        report.add(*(side.answers(question) for side in sides))
    report.print()
    return int(report.worse > 0)


if __name__ == "__main__":
    sys.exit(main())
