#!/usr/bin/env python3
"""Random hard instances: K random 5-dimensional subspaces of F2^14, each read by one warp.

Each access loads 32 words of a 16,384-word tile whose offsets form a random subspace. There are 2**45
unit triangular swizzles, and each serves a random subspace without conflicts with probability 0.298, so
that solutions run out near K = 25.7; beyond it the answer is a refutation.

    python scripts/benchmarks/hard_instances.py [--k 12 20 22 30] [--seeds 5] [--write FOLDER]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from layoutopt import Status
from layoutopt.files.file import from_data
from layoutopt.search.solve import solve

BITS, DIMENSION = 14, 5


def instance(k: int, seed: int) -> dict[str, Any]:
    """The problem file of `k` random subspaces."""
    rng = random.Random(f"{k}/{seed}")
    accesses = []
    while len(accesses) < k:
        basis = [rng.randrange(1, 1 << BITS) for _ in range(DIMENSION)]
        span = {0}
        for vector in basis:
            span |= {vector ^ other for other in span}
        if len(span) == 1 << DIMENSION:
            index = " ^ ".join(f"(lane >> {bit} & 1)*{vector}" for bit, vector in enumerate(basis))
            accesses.append({"name": f"subspace {len(accesses)}", "op": "load", "bytes": 4, "index": [index]})
    return {
        "schema": "layoutopt.problem/1",
        "name": f"subspaces_{k}_seed_{seed}",
        "tile": {"shape": [1 << BITS], "element": "f32"},
        "threads": 32,
        "accesses": accesses,
        "layout": {"families": ["none", "xor"]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--k", type=int, nargs="+", default=[12, 20, 22, 25, 26, 30, 40])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--time-limit", type=float, default=60)
    parser.add_argument("--write", type=Path, help="write the problem files to this folder and stop")
    arguments = parser.parse_args()
    if arguments.write is not None:
        arguments.write.mkdir(parents=True, exist_ok=True)
    print(f"{'K':>3}  {'free':>5}  {'refuted':>7}  {'open':>4}  {'median s':>8}  {'worst s':>8}")
    for k in arguments.k:
        seconds, outcomes = [], []
        for seed in range(arguments.seeds):
            data = instance(k, seed)
            if arguments.write is not None:
                (arguments.write / f"{data['name']}.json").write_text(json.dumps(data, indent=1))
                continue
            problem = from_data(data)
            start = time.perf_counter()
            result = solve(problem, time_limit=arguments.time_limit, conflict_free=True)
            seconds.append(time.perf_counter() - start)
            outcomes.append(result.status)
        if seconds:
            free, refuted = outcomes.count(Status.OPTIMAL), outcomes.count(Status.INFEASIBLE)
            print(
                f"{k:3}  {free:5}  {refuted:7}  {len(outcomes) - free - refuted:4}  "
                f"{statistics.median(seconds):8.2f}  {max(seconds):8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
