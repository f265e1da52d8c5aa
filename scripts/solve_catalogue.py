"""Solve every problem of the catalogue and print what is published beside what is found.

    python scripts/solve_catalogue.py [--time-limit S]

Excess is in wavefronts over all warp instructions, bytes run to the last element used. The
published layout is counted by the conflict engine.
"""

import argparse
from pathlib import Path

from layoutopt import check, load, solve

PROBLEMS = Path(__file__).parent.parent / "problems"


def published(problem):
    """Excess and bytes of the layout in use."""
    if problem.published is None:
        return "-", "-"
    audit = check(problem)
    return audit.excess, audit.bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=60.0)
    limit = parser.parse_args().time_limit
    head = ("problem", "published", "", "ours", "", "status", "family", "formula")
    row = "{:<48} {:>6} {:>7}  {:>6} {:>7}  {:<9} {:<10} {}"
    print(row.format(*head))
    print(row.format("", "excess", "bytes", "excess", "bytes", "", "", ""))
    beaten = kernels = 0
    for path in sorted(PROBLEMS.rglob("*/*.json")):
        problem = load(path)
        result = solve(problem, time_limit=limit)
        old = published(problem)
        name = path.relative_to(PROBLEMS).with_suffix("").as_posix()
        print(
            row.format(name, *old, result.excess, result.bytes, result.status, result.family, result.offset)
        )
        if problem.published is not None and not name.startswith("basics/"):
            kernels += 1
            beaten += result.excess < old[0] or result.bytes < old[1]
    print(f"{beaten} of {kernels} published layouts beaten in wavefronts or bytes")


if __name__ == "__main__":
    main()
