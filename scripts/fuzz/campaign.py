"""What both fuzzers share: the loop over seeded cases, what holds of every command, saving and shrinking."""

import argparse
import contextlib
import json
import random
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # where the oracle is

from oracle.answers import Finding, require
from process import MEMORY_BYTES, Done, import_everything

Case = dict
Check = Callable[[Case, Path, Counter], None]
Smaller = Callable[[Case], Iterator[Case]]
SHRINK_RUNS = 500
SHRINK_S = 60
KEPT = {"seed", "limit"}  # of a case: another one would be another case
A_LINE = 200


def smaller(case: Any) -> Iterator[Any]:
    """JSON with something less, outer things first: a field, an entry, half of a number, a part of a text.

    Of a text that is JSON itself, one with something less; a line becomes 0, as expressions may.
    """
    if isinstance(case, dict | list):
        keyed = dict(case) if isinstance(case, dict) else dict(enumerate(case))
        again = dict if isinstance(case, dict) else lambda entries: list(dict(entries).values())
        for key in keyed:
            yield again((k, v) for k, v in keyed.items() if k != key)
        for key in keyed:
            for less in smaller(keyed[key]) if key not in KEPT else ():
                yield again({**keyed, key: less}.items())
    elif isinstance(case, str) and len(case) > 1:
        try:
            yield from map(json.dumps, smaller(json.loads(case)))
        except (ValueError, RecursionError):
            sizes = [size for size in (len(case) // 2, len(case) // 10, 16) if 0 < size < len(case)]
            parts = (case[:k] + case[k + size :] for size in sizes for k in range(0, len(case), size))
            yield from parts if "\n" in case or len(case) > A_LINE else ("0",)
    elif type(case) is int and abs(case) > 1:
        yield case // 2


def run_campaign(
    text: str, make: Callable[[random.Random], Case], check: Check, smaller: Smaller = smaller
) -> int:
    """The command line of a fuzzer; each kind of finding is shrunk and saved once. Returns the exit code."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="case k of a seed is always the same")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--save", type=Path, default=Path("fuzz_findings"), help="folder for what fails")
    parser.add_argument("--case", type=Path, help="run this saved case and nothing else")
    parser.add_argument("--slack", type=float, default=1, help="times the processor time that is allowed")
    parser.add_argument("--no-shrink", action="store_true")
    arguments = parser.parse_args()
    import_everything()
    if arguments.case:
        cases = iter([json.loads(arguments.case.read_text())])
    else:
        cases = (make(random.Random(f"{arguments.seed}/{number}")) for number in range(arguments.count))
    told: Counter[str] = Counter()
    kinds: set[str] = set()
    began, done = time.monotonic(), 0
    for number, case in enumerate(cases):
        if time.monotonic() - began > arguments.seconds:
            break
        found = attempt(case | {"slack": arguments.slack}, check, told)
        done += 1
        kind = found and re.sub(r"\d+", "0", found.kind)
        if found and kind:
            told[f"FINDING {kind}"] += 1
        if found and kind and kind not in kinds:
            kinds.add(kind)
            if not arguments.no_shrink and not arguments.case:
                case, found = shrink(case, found, check, smaller)
            print(f"\n{found.kind} (seed {arguments.seed}, case {number})\n  {found.detail[-1500:]}")
            save(arguments.save, case, found)
        if done % 200 == 0:
            took = time.monotonic() - began
            print(f"{done} cases, {len(kinds)} kinds of finding, {took:.0f} s", flush=True)
    print(f"{done} cases, {sum(n for k, n in told.items() if k.startswith('FINDING'))} findings")
    for line, times in sorted(told.items(), key=lambda item: (-item[1], item[0])):
        print(f"{times:>7}  {line}")
    return 1 if kinds else 0


def attempt(case: Case, check: Check, told: Counter) -> Finding | None:
    """The finding of a case, None where all is well. What breaks the fuzzer itself is a finding, too."""
    with scratch() as folder:
        try:
            check(case, folder, told)
        except Finding as found:
            return found
        except Exception as error:
            return Finding(f"the fuzzer: {type(error).__name__}", traceback.format_exc())
    return None


def shrink(case: Case, found: Finding, check: Check, smaller: Smaller) -> tuple[Case, Finding]:
    """Greedily take what is smaller and fails in the same way."""
    runs, end, progress = 0, time.monotonic() + SHRINK_S, True
    while progress:
        progress = False
        for candidate in smaller(case):
            if runs >= SHRINK_RUNS or time.monotonic() > end:
                return case, found
            runs += 1
            again = attempt(candidate, check, Counter())
            if again is not None and again.kind == found.kind:
                case, found, progress = candidate, again, True
                break
    return case, found


def save(folder: Path, case: Case, found: Finding) -> None:
    """The case in a file of its own; prints it, and how to see it again."""
    name = re.sub(r"[^a-z0-9]+", "_", found.kind.lower()).strip("_")[:50]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{Path(sys.argv[0]).stem}_{name}.json"
    path.write_text(json.dumps(case))
    print(f"  {json.dumps(case)[:3000]}")
    print(f"  again: {sys.executable} {sys.argv[0]} --case {path}", flush=True)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder that goes away, whatever a command left in it."""
    with tempfile.TemporaryDirectory(prefix="fuzz", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def judge(done: Done, verb: str, allowed_s: float, *, lines: bool = False) -> None:
    """What holds of every command: its exit code, its time and memory, and how it says what is wrong.

    `lines`: it was given several problems, for each of which it may say something.
    """
    error = "\n".join(line for line in done.err.strip().split("\n") if not line.startswith("warning: "))
    about = (done.command, done.code, error[-1200:])
    late = done.cpu_s > allowed_s or done.code in (-24, -9, -999)
    require(not late, f"{verb}: processor time", (done.cpu_s, allowed_s, done.command))
    require("Traceback" not in done.err, f"{verb}: traceback {error.splitlines()[-1:]}"[:120], about)
    unconfirmed = re.search(r"the model p\w+ a \w+", done.err)
    require(not unconfirmed, f"{verb}: {unconfirmed and unconfirmed[0]}", about)
    require(done.code in (0, 1, 2, 3), f"{verb}: exit code {done.code}", about)
    require(done.memory_bytes <= MEMORY_BYTES, f"{verb}: memory", (done.memory_bytes, done.command))
    if done.code == 2:
        require(error, f"{verb}: exit 2 without a word", about)
        require(lines or "\n" not in error, f"{verb}: exit 2 with more than a line", about)
        require(lines or not done.out, f"{verb}: exit 2 with output", done.out[:300])
    require(max(map(len, [*error.splitlines(), ""])) <= 1000, "a long line on stderr", error[:300])
    for text, stream in ((done.out, "stdout"), (done.err, "stderr")):
        bad = sorted({c for c in text if not c.isprintable() and c not in "\n\t"})
        require(not bad, f"{verb}: control characters on {stream}", (bad[:5], about))
    if "--json" in done.command and done.code in (0, 1) and verb != "count":
        try:
            for text in done.out.splitlines() if lines and verb != "sweep" else [done.out]:
                json.loads(text, parse_constant=lambda text: require(False, f"{verb}: {text} in JSON", about))
        except ValueError as wrong:
            raise Finding(f"{verb}: output is no JSON", (str(wrong), about)) from None
