"""Solve every problem of the catalogue and print what is published beside what is found.

    python scripts/benchmarks/solve_catalogue.py [--time-limit S] [NAME ...]

Excess is in wavefronts over all warp instructions (weights decide what is best, and are not in it);
bytes run to the last element used. The published layout is counted by the conflict engine. `pad` and
`xor` are the best of these families alone (and of no change at all); `-` where the file does not allow
them. NAME keeps the problems whose name holds it.
"""

import argparse
import time

import msgspec

from layoutopt import check, load, solve
from layoutopt.problems.catalogue import of_one_tile

ROW = "{:<50} {:>5} {:>6}  {:>5} {:>6}  {:>5} {:>6}  {:>5} {:>6}  {:<9} {:>6}  {:<14} {:<12} {}"


def published(problem):
    """Excess and bytes of the layout in use."""
    if problem.published is None:
        return "-", "-"
    audit = check(problem)
    return audit.excess, audit.bytes


def restricted(problem, family, limit):
    """The best of one family, or nothing where the file does not allow it."""
    allowed = problem.layout.families
    if allowed is not None and family not in allowed:
        return "-", "-"
    layout = msgspec.structs.replace(problem.layout, families=("none", family))
    result = solve(msgspec.structs.replace(problem, layout=layout), time_limit=limit)
    return result.excess, result.bytes


def scope(lower, found):
    """Whom the proof speaks of: `all` layouts, the `families` searched, or no one yet."""
    if lower.lower_bound != found:
        return f">= {lower.lower_bound}"
    return "all" if lower.scope == "every layout" else "families"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    two = ("excess", "bytes")
    print(ROW.format("problem", "publ.", "", "pad", "", "xor", "", "best", "", "", "", "proof", "", ""))
    print(ROW.format("", *two * 4, "status", "time", "excess; bytes", "family", "formula"))
    beaten = kernels = 0
    for name, path in of_one_tile().items():
        if args.names and not any(part in name for part in args.names):
            continue
        problem = load(path)
        old = published(problem)
        start = time.perf_counter()
        result = solve(problem, time_limit=args.time_limit)
        seconds = time.perf_counter() - start
        proof = result.proof
        excess = scope(proof.objective, result.weighted_excess)
        proofs = f"{excess}; {scope(proof.bytes, result.bytes)}"
        others = [restricted(problem, family, args.time_limit) for family in ("pad", "xor")]
        columns = (*old, *others[0], *others[1], result.excess, result.bytes, result.status)
        columns = (*columns, f"{seconds:.2f}", proofs, result.family, result.offset)
        print(ROW.format(name, *(str(c) for c in columns)), flush=True)
        if problem.published is not None and not name.startswith("basics/"):
            kernels += 1
            beaten += result.excess < old[0] or result.bytes < old[1]
    print(f"{beaten} of {kernels} published layouts beaten in wavefronts or bytes")


if __name__ == "__main__":
    main()
