"""Both methods over the catalogue: excess, bytes, seconds, rounds, and who decided.

    python scripts/benchmarks/methods.py [--time-limit S] [--families LIST] [--json FILE] [NAME...]

A line for each problem whose name holds a NAME (all without), warm; then a summary. Exits with 1 where both
prove an answer and differ in excess or bytes.
"""

import argparse
import collections
import json
import statistics
import sys
import time

import msgspec

from layoutopt import load, solve
from layoutopt.files.catalogue import of_one_tile
from layoutopt.problems.answer import METHODS, Status

PROVED = (Status.OPTIMAL, Status.INFEASIBLE)


def measured(problem, method, limit):
    """One answer as a row, and the seconds it took."""
    start, cpu = time.perf_counter(), time.process_time()
    result = solve(problem, time_limit=limit, method=method)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    row = {"excess": result.excess, "bytes": result.bytes, "status": result.status.value}
    grown = msgspec.to_builtins(result.model) or {}
    return {
        **row,
        "decided_by": result.decided_by,
        "seconds": round(seconds, 4),
        "cpu": round(cpu, 4),
        **grown,
    }


def within(problem, families):
    """The problem with no other families than these; None where it allows none of them."""
    allowed = problem.layout.families
    left = tuple(f for f in families if allowed is None or f in allowed)
    layout = msgspec.structs.replace(problem.layout, families=left)
    return msgspec.structs.replace(problem, layout=layout) if left else None


def summary(rows, column):
    """Times over all problems, and over those that were proved."""
    answers = [row[column] for row in rows.values()]
    proved = [a for a in answers if a["status"] in PROVED]
    who = collections.Counter(a["decided_by"] or "nobody" for a in answers)
    for kind, some in (("all", answers), ("proved", proved)) if proved else (("all", answers),):
        for unit in ("seconds", "cpu"):
            times = sorted(a[unit] for a in some)
            p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
            print(
                f"{column}, {kind}, {unit}: median {statistics.median(times):.3f}, 95 % {p95:.3f}, "
                f"worst {times[-1]:.2f}, sum {sum(times):.1f}"
            )
    print(f"  {len(proved)} of {len(rows)} proved; " + ", ".join(f"{n} {k}" for k, n in who.most_common()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--families", help="comma-separated; all without")
    parser.add_argument("--json", dest="file", help="write all rows to this file")
    options = parser.parse_args()
    rows, wrong = {}, 0
    for name, path in of_one_tile().items():
        if options.names and not any(part in name for part in options.names):
            continue
        problem = load(path)
        if options.families and problem.layout.must_be is None:
            problem = within(problem, options.families.split(","))
        if problem is None or problem.layout.minimise == "instructions":
            continue
        measured(problem, "auto", min(1, options.time_limit))  # to be warm
        row = rows[name] = {method: measured(problem, method, options.time_limit) for method in METHODS}
        answers = {(r["excess"], r["bytes"]) for r in row.values()}
        proved = {(r["excess"], r["bytes"]) for r in row.values() if r["status"] in PROVED}
        note = "" if len(answers) == 1 else "  DIFFERENT" if len(proved) > 1 else "  different, not proved"
        wrong += len(proved) > 1
        shown = (f"{v}" for r in row.values() for k, v in r.items() if k not in ("written", "proposed"))
        print(f"{name:45}", *shown, note, flush=True)
    for column in METHODS:
        summary(rows, column)
    if options.file:
        with open(options.file, "w") as file:
            json.dump(rows, file, indent=1)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
