"""Compare the families on every problem of the catalogue, and say how long a whole table takes.

    python scripts/benchmarks/compare_catalogue.py [--time-limit S] [--runs N]

For each problem: excess wavefronts and bytes of some rows, what is recommended, and the warm time of the
table. A row that the time limit cut short carries a question mark.
"""

import argparse
import statistics
import time

from layoutopt import load
from layoutopt.problems.catalogue import of_one_tile
from layoutopt.study.compare import compare

SHOWN = ("none", "order/split", "pad", "interval", "cute", "xor", "all", "published")


def figures(row):
    if row is None:
        return "-"
    if row.wavefronts is None:
        return row.status
    return f"{row.excess}/{row.bytes}{'?' if row.status == 'feasible' else ''}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    line = "{:<46} " + "{:>14} " * len(SHOWN) + "{:<12} {:>8}"
    print(line.format("problem (excess/bytes)", *SHOWN, "recommended", "ms"))
    times = []
    for name, path in of_one_tile().items():
        problem = load(path)
        if any(access.any for access in problem.accesses):
            continue  # `compare` takes no values known only at run time
        compare(problem, time_limit=options.time_limit)
        samples = []
        for _ in range(options.runs):
            start = time.perf_counter()
            result = compare(problem, time_limit=options.time_limit)
            samples.append(time.perf_counter() - start)
        times.append(statistics.median(samples))
        rows = {row.family: row for row in result.rows}
        taken = result.recommendation.family if result.recommendation else "-"
        print(
            line.format(name, *(figures(rows.get(f)) for f in SHOWN), taken, f"{1e3 * times[-1]:.0f}"),
            flush=True,
        )
    print(f"{len(times)} problems, warm table: median {1e3 * statistics.median(times):.0f} ms")


if __name__ == "__main__":
    main()
