"""Both methods over the catalogue: excess, bytes, seconds, rounds, and who decided.

    python scripts/benchmarks/methods.py [--time-limit S] [--families LIST] [--json FILE] [NAME...]

A line for each problem whose name holds a NAME (all without), warm; then a summary. Exits with 1 where both
methods prove an answer and these differ in excess or bytes.
"""

import argparse
import collections
import json
import statistics
import sys
import time

import msgspec

from layoutopt import load, solve
from layoutopt.problems.answer import METHODS, Status
from layoutopt.problems.catalogue import of_one_tile


def measured(problem, method, limit):
    """One answer as a row, and the seconds it took."""
    start = time.perf_counter()
    result = solve(problem, time_limit=limit, method=method)
    seconds = time.perf_counter() - start
    row = {"excess": result.excess, "bytes": result.bytes, "status": result.status.value}
    grown = msgspec.to_builtins(result.model) or {}
    return {**row, "decided_by": result.decided_by, "seconds": round(seconds, 4), **grown}


def within(problem, families):
    """The problem with no other families than these; None where it allows none of them."""
    allowed = problem.layout.families
    left = tuple(f for f in families if allowed is None or f in allowed)
    layout = msgspec.structs.replace(problem.layout, families=left)
    return msgspec.structs.replace(problem, layout=layout) if left else None


def summary(rows, method):
    times = sorted(row[method]["seconds"] for row in rows.values())
    p95 = times[min(len(times) - 1, int(0.95 * len(times)))]
    proved = sum(row[method]["status"] != Status.FEASIBLE for row in rows.values())
    who = collections.Counter(row[method]["decided_by"] or "nobody" for row in rows.values())
    print(f"{method}: median {statistics.median(times):.3f} s, 95 % {p95:.3f} s, worst {times[-1]:.2f} s")
    print(f"  {proved} of {len(rows)} proved; " + ", ".join(f"{n} {k}" for k, n in who.most_common()))


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
        row = rows[name] = {method: measured(problem, method, options.time_limit) for method in METHODS}
        answers = {(r["excess"], r["bytes"]) for r in row.values()}
        both = all(r["status"] != Status.FEASIBLE for r in row.values())
        note = "" if len(answers) == 1 else "  DIFFERENT" if both else "  different, not proved"
        wrong += len(answers) > 1 and both
        print(f"{name:45}", *(f"{v}" for r in row.values() for v in r.values()), note, flush=True)
    for method in METHODS:
        summary(rows, method)
    if options.file:
        with open(options.file, "w") as file:
            json.dump(rows, file, indent=1)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
