"""What both fuzzers share: the loop over seeded cases, saving and shrinking what fails."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # where the oracle is

from oracle.answers import Finding

Case = dict
SHRINK_RUNS = 150
SHRINK_S = 60


def parser(text: str, count: int) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--seed", type=int, default=1, help="case k of a seed is always the same")
    found.add_argument("--count", type=int, default=count)
    found.add_argument("--start", type=int, default=0, help="the first case")
    found.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after so long, with the count"
    )
    found.add_argument("--save", type=Path, default=Path("fuzz_findings"), help="folder for what fails")
    found.add_argument("--case", type=Path, help="run this saved case and nothing else")
    found.add_argument("--slack", type=float, default=1, help="times the processor time that is allowed")
    found.add_argument("--no-shrink", action="store_true")
    return found


def run_cases(
    arguments: argparse.Namespace,
    make: Callable[[random.Random], Case],
    check: Callable[[Case, Path, Counter], None],
    smaller: Callable[[Case], Iterator[Case]],
) -> int:
    """Run the cases; each kind of finding is shrunk and saved once. The exit code: 1 where there is one."""
    told: Counter[str] = Counter()
    kinds: dict[str, Path] = {}
    began, done = time.monotonic(), 0
    cases = [arguments.case] if arguments.case else range(arguments.start, arguments.start + arguments.count)
    for number in cases:
        if time.monotonic() - began > arguments.seconds:
            break
        case = (
            json.loads(arguments.case.read_text())
            if arguments.case
            else make(random.Random(f"{arguments.seed}/{number}"))
        )
        found = attempt(case | {"slack": arguments.slack}, check, told)
        done += 1
        if found is not None:
            kind = re.sub(r"\d+", "0", found.kind)
            told[f"FINDING {kind}"] += 1
            if kind not in kinds:
                if not arguments.no_shrink and not arguments.case:
                    case, found = shrink(case, found, check, smaller)
                kinds[kind] = save(arguments, number, case, found)
        if not arguments.case and done % 200 == 0:
            print(
                f"{done} cases, {len(kinds)} kinds of finding, {time.monotonic() - began:.0f} s", flush=True
            )
    print(f"{done} cases, {sum(n for k, n in told.items() if k.startswith('FINDING'))} findings")
    for text, times in sorted(told.items(), key=lambda item: (-item[1], item[0])):
        print(f"{times:>7}  {text}")
    return 1 if kinds else 0


def attempt(case: Case, check: Callable[[Case, Path, Counter], None], told: Counter) -> Finding | None:
    """The finding of a case, None where all is well. What breaks the fuzzer itself is a finding, too."""
    with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
        try:
            check(case, Path(folder), told)
        except Finding as found:
            return found
        except KeyboardInterrupt:
            raise
        except Exception as error:
            import traceback

            return Finding(f"the fuzzer: {type(error).__name__}", traceback.format_exc())
    return None


def shrink(
    case: Case, found: Finding, check: Callable[[Case, Path, Counter], None],
    smaller: Callable[[Case], Iterator[Case]],
) -> tuple[Case, Finding]:  # fmt: skip
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


def save(arguments: argparse.Namespace, number: object, case: Case, found: Finding) -> Path:
    """The case in a file of its own; prints what fails and how to see it again."""
    name = re.sub(r"[^a-z0-9]+", "_", found.kind.lower()).strip("_")[:50]
    arguments.save.mkdir(parents=True, exist_ok=True)
    path = arguments.save / f"{Path(sys.argv[0]).stem}_{name}.json"
    path.write_text(json.dumps(case))
    print(f"\n{found.kind} (seed {arguments.seed}, case {number})\n  {found.detail[-1500:]}")
    print(f"  {json.dumps(case)[:3000]}")
    print(f"  again: {sys.executable} {sys.argv[0]} --case {path}", flush=True)
    return path


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
