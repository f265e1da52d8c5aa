"""This checkout beside an older one: processor seconds and status of every problem of the catalogue.

    python scripts/benchmarks/beside.py OLDER_CHECKOUT [--time-limit S] [--runs N] [NAME ...]

Each checkout has a process of its own, and they take turns, problem by problem, so that a busy machine slows
both. Processor seconds are the least of the runs. NAME keeps the problems whose name holds it. Exit code 1: a
problem that was proved before is not proved now, or takes more than 1.2 times as long (and 0.05 s more).
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST, SLACK_SECONDS = 1.2, 0.05
WORKER = """
import json, sys, time
from layoutopt import solve
from layoutopt.files.file import load
from layoutopt.problems.types import Block
from layoutopt.search.block import solve
for line in sys.stdin:
    path, limit = json.loads(line)
    problem = load(path)
    begun = time.process_time()
    result = solve(problem, time_limit=limit)
    spent = time.process_time() - begun
    print(json.dumps([spent, str(result.status), result.excess, result.bytes]), flush=True)
"""


class Checkout:
    """A process that solves with the package of one checkout."""

    def __init__(self, root):
        self.problems = root / "problems"
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )

    def solve(self, name, limit):
        """Processor seconds, status, excess and bytes."""
        print(json.dumps([str(self.problems / f"{name}.json"), limit]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("older", type=Path, metavar="OLDER_CHECKOUT")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="S", help="of each problem")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_intermixed_args()
    sides = [Checkout(args.older.resolve()), Checkout(ROOT)]
    total, worse = [0.0, 0.0], 0
    print(f"{'problem':<50} {'older':>8} {'now':>8} {'ratio':>6}  answer")
    for path in sorted((ROOT / "problems").rglob("*.json")):
        name = f"{path.parent.name}/{path.stem}"
        asked = not args.names or any(part in name for part in args.names)
        if not asked or not (sides[0].problems / f"{name}.json").exists():
            continue
        runs = [[side.solve(name, args.time_limit) for side in sides] for _ in range(args.runs)]
        before, now = (min(run[k] for run in runs) for k in (0, 1))
        lost = before[1] == "optimal" and (now[1] != "optimal" or now[0] > MOST * before[0] + SLACK_SECONDS)
        worse += lost
        total = [total[0] + before[0], total[1] + now[0]]
        answers = " ".join(map(str, now[1:])) if before[1:] == now[1:] else f"{before[1:]} -> {now[1:]}"
        ratio = now[0] / before[0]
        print(f"{name:<50} {before[0]:8.3f} {now[0]:8.3f} {ratio:6.2f}  {answers}{'  !' * lost}", flush=True)
    print(f"{'all':<50} {total[0]:8.1f} {total[1]:8.1f} {total[1] / total[0]:6.2f}  {worse} worse")
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
