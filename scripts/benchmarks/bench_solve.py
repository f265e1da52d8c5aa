"""How long solving takes: warm calls over the catalogue, and the whole command beside its imports.

    python scripts/benchmarks/bench_solve.py [--runs N]

The command is compared, pair by pair in the same run, with a Python that imports the libraries it
stands on. Only the ratios travel between machines.
"""

import argparse
import statistics
import subprocess
import sys
import time

from layoutopt import load, solve
from layoutopt.files.catalogue import of_one_tile

IMPORTS = [sys.executable, "-c", "import ortools.sat.python.cp_model, numpy, click"]
LAYOUTOPT = [sys.executable, "-c", "from layoutopt.cli import run; run()"]


def seconds(command):
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    times = {}
    for name, path in of_one_tile().items():
        problem = load(path)
        if problem.known_optimum is None:  # would run until stopped
            continue
        solve(problem)
        samples = []
        for _ in range(runs):
            start = time.perf_counter()
            solve(problem)
            samples.append(time.perf_counter() - start)
        times[name] = statistics.median(samples)
    ordered = sorted(times.items(), key=lambda item: item[1])
    print(f"warm solve over {len(times)} problems, median of {runs} each:")
    print(f"  median {1e3 * statistics.median(times.values()):.1f} ms")
    for name, value in ordered[-5:]:
        print(f"  {1e3 * value:7.1f} ms  {name}")

    tile = "transpose_32x32_f32"
    for label, command in (
        ("solve", [*LAYOUTOPT, "solve", tile]),
        ("solve --json", [*LAYOUTOPT, "solve", tile, "--json"]),
        ("--help", [*LAYOUTOPT, "--help"]),
    ):
        pairs = [(seconds(command), seconds(IMPORTS)) for _ in range(runs)]
        ratio = statistics.median(a / b for a, b in pairs)
        own, other = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(f"layoutopt {label}: {own:.3f} s, imports alone {other:.3f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
