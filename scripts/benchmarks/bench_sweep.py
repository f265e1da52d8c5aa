"""How fast a sweep is: problems a second with one process, two, and a local Dask cluster of two workers.

    python scripts/benchmarks/bench_sweep.py [--problems 10000] [--ways 1,2,dask]

On a machine that does other things too, seconds of the clock say little: CPU seconds are printed beside
them, of the driver and of the workers, and what two quiet cores would do with them.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import tempfile
import time
from pathlib import Path

import layoutopt
from layoutopt.hardware.devices import device
from layoutopt.study.hints import with_faster

LIMIT = 60.0  # seconds for each problem
TEMPLATE = {
    "name": "tile {M}x{N}",
    "params": {"M": list(range(2, 102)), "N": list(range(2, 102))},
    "tile": {"shape": ["M", "N"], "element": "f32"},
    "threads": 32,
    "accesses": [
        {"name": "rows", "op": "store", "bytes": 4, "index": ["i", "tid % N"],
         "for": {"i": "M"}, "where": "tid < N"},
        {"name": "columns", "op": "load", "bytes": 4, "index": ["tid % M", "i"],
         "for": {"i": "N"}, "where": "tid < M"},
    ],
}  # fmt: skip


def cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def peak(who: int) -> float:
    """MiB."""
    return resource.getrusage(who).ru_maxrss / 1024


def one_process(problems: list) -> tuple[float, float]:
    begun, used = time.perf_counter(), cpu(resource.RUSAGE_SELF)
    for problem in problems:
        # What `layoutopt solve` prints, and a sweep keeps.
        result = layoutopt.solve(problem, time_limit=LIMIT)
        with_faster(problem, result, device(problem.target), LIMIT).to_json()
    return time.perf_counter() - begun, cpu(resource.RUSAGE_SELF) - used


def swept(template: dict, way: str, store: Path) -> dict:
    before = cpu(resource.RUSAGE_SELF), cpu(resource.RUSAGE_CHILDREN)
    memory: list[float] = []

    def look(now: object) -> None:
        memory.append(peak(resource.RUSAGE_SELF))

    if way == "dask":
        from distributed import LocalCluster

        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
            ) as cluster,
            layoutopt.sweep(
                template, store=store, scheduler=cluster.scheduler_address, time_limit=LIMIT, progress=look
            ) as done,
        ):
            found = done
    else:
        with layoutopt.sweep(
            template, store=store, workers=int(way), time_limit=LIMIT, progress=look
        ) as done:
            found = done
    return {
        "seconds": found.seconds,
        "solved": found.solved.total(),
        "driver_cpu": cpu(resource.RUSAGE_SELF) - before[0],
        "workers_cpu": cpu(resource.RUSAGE_CHILDREN) - before[1],
        "memory": (memory[len(memory) // 10], memory[-1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--ways", default="1,2,dask")
    arguments = parser.parse_args()
    side = math.isqrt(arguments.problems)
    # Even and odd ones: tiles of two even sides take several times as long as others.
    some = random.Random(1)
    params = {name: sorted(some.sample(values, side)) for name, values in TEMPLATE["params"].items()}
    template = TEMPLATE | {"params": params}
    count = len(params["M"]) * len(params["N"])
    sample = some.sample(layoutopt.load_all(template), min(count, 1000))
    layoutopt.solve(sample[0])
    wall, used = one_process(sample)
    alone = used / len(sample)
    print(f"{count} problems; one process, {len(sample)} of them without a store:", flush=True)
    print(f"  {len(sample) / wall:.1f} a second, {1000 * alone:.1f} ms CPU each", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for way in arguments.ways.split(","):
            found = swept(template, way, Path(folder) / f"{way}.sqlite")
            driver, workers = (1000 * found[who] / count for who in ("driver_cpu", "workers_cpu"))
            quiet = 2000 / (driver + workers)
            name = "dask, 2 workers" if way == "dask" else f"{way} processes"
            print(f"{name}: {found['solved'] / found['seconds']:.1f} a second by the clock", flush=True)
            print(f"  CPU each: driver {driver:.2f} ms, workers {workers:.2f} ms")
            print(f"  two quiet cores: {quiet:.1f} a second, {quiet * alone:.2f} times one process")
            early, late = found["memory"]
            largest = peak(resource.RUSAGE_CHILDREN)
            print(
                f"  MiB: driver {early:.0f} after a tenth, {late:.0f} at the end; worker {largest:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
