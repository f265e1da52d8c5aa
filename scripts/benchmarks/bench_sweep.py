"""How fast a sweep is: problems a second with one process, two, and a local Dask cluster of two workers.

    python scripts/benchmarks/bench_sweep.py [--problems 10000] [--ways 1,2,dask]

On a machine that does other things too, seconds of the clock say little: CPU seconds are printed beside
them, of the driver and of the workers, and what two quiet cores would do with them.
"""

import argparse
import math
import random
import resource
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from written import data_of

import layoutopt
from layoutopt.hardware.devices import device
from layoutopt.study.solve import with_faster

LIMIT = 60.0  # seconds for each problem
WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
TEMPLATE = data_of(
    """MxN f32, 32 threads
    rows: store 4 [i, tid % N]; i<M; where tid < N
    columns: load 4 [tid % M, i]; i<N; where tid < M""",
    name="tile {M}x{N}",
    params={"M": [*range(2, 102)], "N": [*range(2, 102)]},
)


def cpu_ms() -> list[float]:
    """Of this process, and of those that it started and that ended."""
    return [1000 * (used.ru_utime + used.ru_stime) for used in map(resource.getrusage, WHO)]


def peak_mib(who: int) -> float:
    return resource.getrusage(who).ru_maxrss / 1024


def alone_ms(problems: list) -> float:
    """CPU milliseconds of a problem without a store: what `layoutopt solve` prints, and a sweep keeps."""
    before = cpu_ms()[0]
    for problem in problems:
        result = layoutopt.solve(problem, time_limit=LIMIT)
        with_faster(problem, result, device(problem.target), LIMIT).to_json()
    return (cpu_ms()[0] - before) / len(problems)


def measure(template: dict, count: int, way: str, store: Path, alone: float) -> None:
    """Sweep the template in one way, and print what it took."""
    before, memory = cpu_ms(), []
    with ExitStack() as stack:
        how: dict = {"workers": 2} if way == "dask" else {"workers": int(way)}
        if way == "dask":
            from distributed import LocalCluster

            workers = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
            cluster = stack.enter_context(LocalCluster(**workers, dashboard_address=None))
            how = {"scheduler": cluster.scheduler_address}
        done = stack.enter_context(
            layoutopt.sweep(
                template, store=store, time_limit=LIMIT,
                progress=lambda _: memory.append(peak_mib(WHO[0])), **how,
            )
        )  # fmt: skip
    driver, workers_ms = ((now - then) / count for now, then in zip(cpu_ms(), before, strict=True))
    quiet = 2000 / (driver + workers_ms)
    name = "dask, 2 workers" if way == "dask" else f"{way} processes"
    print(f"{name}: {done.solved.total() / done.seconds:.1f} a second by the clock", flush=True)
    print(f"  CPU each: driver {driver:.2f} ms, workers {workers_ms:.2f} ms")
    print(f"  two quiet cores: {quiet:.1f} a second, {quiet * alone / 1000:.2f} times one process")
    early, late, worker = memory[len(memory) // 10], memory[-1], peak_mib(WHO[1])
    print(f"  MiB: driver {early:.0f} after a tenth, {late:.0f} at the end; worker {worker:.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--ways", default="1,2,dask")
    arguments = parser.parse_args()
    side = math.isqrt(arguments.problems)
    # Even and odd ones: tiles of two even sides take several times as long as others.
    some = random.Random(1)
    params = {name: sorted(some.sample(values, side)) for name, values in TEMPLATE["params"].items()}
    template, count = TEMPLATE | {"params": params}, side * side
    sample = some.sample(layoutopt.load_all(template), min(count, 1000))
    layoutopt.solve(sample[0])
    alone = alone_ms(sample)
    print(f"{count} problems; {len(sample)} of them in one process, without a store:", flush=True)
    print(f"  {alone:.1f} ms CPU each", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for way in arguments.ways.split(","):
            measure(template, count, way, Path(folder) / f"{way}.sqlite", alone)


if __name__ == "__main__":
    main()
