"""What a sweep would do on clusters of up to 10,000 workers, by simulation with recorded times.

    python scripts/benchmarks/simulate_cluster.py [--problems 1000000] [--times FILE.json] [--measure]

Workers take batches as `layoutopt.sweeps.cluster` makes them, two for each worker under way. Each batch
passes through two queues that serve one at a time: Dask's scheduler, and the driver, which reads problems,
keeps answers and talks to Dask. The costs below were measured by `--measure`; times are drawn from those that
bench_sweep.py recorded. Efficiency is the work done by the time it took on all workers.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import tempfile
import time
from pathlib import Path

# Seconds of CPU, as `--measure` found them on a core of a server.
READ = 130e-6  # of the driver, for a problem: template, check, hash, row
KEEP = 30e-6  # for an answer, many committed together
COMMIT = 3e-3  # for a commit, the disk included
BATCH = 6e-3  # for a batch, both ways, client and scheduler together; half of it is counted for each
SHIP = 30e-6  # for a problem and its answer, in messages
LATENCY = 1e-3  # of the network, one way
BATCH_SECONDS, BATCH_SECONDS_A_WORKER, MAX_BATCH, AHEAD = 0.5, 0.02, 1000, 2


def simulated(times: list[float], problems: int, workers: int) -> tuple[float, float]:
    """Seconds that the sweep takes, and the efficiency."""
    mean = sum(times) / len(times)
    wanted = max(BATCH_SECONDS, BATCH_SECONDS_A_WORKER * workers)
    size = max(1, min(MAX_BATCH, int(wanted / mean), problems // (AHEAD * workers) or 1))
    batches = -(-problems // size)
    pick = random.Random(1)
    # The sum of a batch, out of a few thousand that are drawn once.
    sums = [sum(pick.choices(times, k=size)) for _ in range(4000)]
    driver = scheduler = work = end = 0.0
    free = [0.0] * workers  # when each worker is done with what it has
    heapq.heapify(free)
    returning: list[float] = []  # when batches come back to the driver
    under_way = done = given = 0
    while done < batches:
        can_give = given < batches and under_way < AHEAD * workers
        if can_give and (not returning or driver <= returning[0]):
            driver += size * (READ + SHIP / 2) + BATCH / 2
            scheduler = max(scheduler, driver) + BATCH / 2
            begin = max(heapq.heappop(free), scheduler + LATENCY)
            spent = sums[pick.randrange(len(sums))]
            work += spent
            heapq.heappush(free, begin + spent)
            heapq.heappush(returning, begin + spent + LATENCY)
            given, under_way = given + 1, under_way + 1
            continue
        back = heapq.heappop(returning)
        driver = max(driver, back) + size * (KEEP + SHIP / 2) + COMMIT
        done, under_way, end = done + 1, under_way - 1, driver
    return end, work / (workers * end)


def measure() -> None:
    """What a problem and a batch cost here."""
    from bench_sweep import TEMPLATE
    from distributed import LocalCluster

    import layoutopt
    from layoutopt.sweeps.store import Store
    from layoutopt.sweeps.task import Outcome

    template = TEMPLATE | {"params": {"M": TEMPLATE["params"]["M"], "N": [31, 32]}}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "s.sqlite"
        with layoutopt.sweep(template, store=store, workers=2) as done:
            one = next(iter(done.answered()))
        begun = time.process_time()
        with layoutopt.sweep(template, store=store) as done:
            pass
        print(f"READ = {(time.process_time() - begun) / done.problems:.2e}")
        with Store(store, write=True) as kept:
            begun, cpu, answer = time.perf_counter(), time.process_time(), json.dumps(one.answer)
            for k in range(100):
                outcomes = [Outcome(f"{k} {n}", "optimal", answer, "", 0, 1, 0.0) for n in range(25)]
                kept.add((outcome, "device", 60.0) for outcome in outcomes)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - begun
        print(f"KEEP = {cpu / 2500:.2e}, COMMIT = {(wall - cpu) / 100:.2e}")
        with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
            client = cluster.get_client()
            for size in (1, 100):
                client.gather(client.map(len, [[answer] * size] * 10, pure=False))
                begun = time.process_time()
                for _ in range(100):
                    client.submit(list, [answer] * size, pure=False).result()
                print(f"batch of {size}: {(time.process_time() - begun) / 100:.2e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--problems", type=int, default=1_000_000)
    parser.add_argument("--times", type=Path, help="JSON list of seconds; else 20 ms, and 0.5 s")
    parser.add_argument("--measure", action="store_true")
    arguments = parser.parse_args()
    if arguments.measure:
        measure()
        return
    sets = {"20 ms each": [0.02], "0.5 s on average": [0.05] * 80 + [1.0] * 18 + [14.0] * 2}
    if arguments.times is not None:
        sets = {f"as recorded in {arguments.times.name}": json.loads(arguments.times.read_text())}
    for name, times in sets.items():
        print(f"{arguments.problems:,} problems, {name} (mean {1000 * sum(times) / len(times):.0f} ms)")
        for workers in (2, 10, 100, 300, 1000, 3000, 10_000):
            seconds, efficiency = simulated(times, arguments.problems, workers)
            print(
                f"  {workers:6} workers: {seconds:10,.0f} s, efficiency {100 * efficiency:5.1f} %", flush=True
            )


if __name__ == "__main__":
    main()
