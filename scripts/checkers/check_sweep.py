"""Kill a sweep's processes at random moments, go on, and compare the store with that of an undisturbed run.

    python scripts/checkers/check_sweep.py [--moments 20] [--kinds driver,worker,disk,scheduler] [--seed 1]

driver: kill -9 of `layoutopt sweep`. worker: of one of its processes. disk: no file may grow beyond what it
has at a random moment, as on a full disk. scheduler: kill -9 of Dask's. After each, the same command must end
with the same answers, none of those that were there may be gone, and none may be there twice.
"""

import argparse
import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from written import data_of

START = "import sys; sys.argv[0] = 'layoutopt'; from layoutopt.cli import run; run()"
TEMPLATE = data_of(
    """MxN e, 32 threads
    rows: kind 4 [(2*tid + 64*i) // N, (2*tid + 64*i) % N]; i<M * N // 64
    columns: load 4 [(tid + 32*i) % M, (tid + 32*i) // M * 2]; i<M * N // 64""",
    name="tile {M}x{N} {e}",
    params={"M": [8, 16, 32, 64], "N": [8, 16, 32, 64], "e": ["f32", "f16"], "kind": ["load", "store"]},
)


class Scheduler:
    """A Dask scheduler with two workers, each a process."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / f"scheduler-{time.monotonic_ns()}.json"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        shared = ["--scheduler-file", self.file, "--no-dashboard"]
        worker = ["worker", *shared, "--nthreads", "1", "--death-timeout", "120", "--local-directory", folder]
        self.processes = []
        for kind, *options in (["scheduler", *shared, "--port", "0"], worker, worker):
            command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *options]
            self.processes.append(subprocess.Popen(command, **quiet))
            while not self.file.exists() or not self.file.read_text().strip():
                time.sleep(0.05)

    def kill(self) -> None:
        """End all of it."""
        for process in self.processes:
            process.kill()
            process.wait()


def answers(store: Path) -> dict[str, str]:
    """Answers by question; times left out, since no two runs take the same."""
    if not store.exists():
        return {}
    database = sqlite3.connect(store)
    try:
        rows = database.execute("SELECT hash, answer FROM answers").fetchall()
    except sqlite3.OperationalError:  # killed before there were tables
        return {}
    finally:
        database.close()
    assert len({hash_ for hash_, _ in rows}) == len(rows), "an answer is there twice"
    return dict(rows)


def started(template: Path, store: Path, *more: str, bytes_limit: int | None = None) -> subprocess.Popen:
    def limit() -> None:
        if bytes_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_limit, bytes_limit))

    command = [sys.executable, "-c", START, "sweep", template, "-o", store, "--time-limit", "10", *more]
    piped = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, preexec_fn=limit, **piped)


def children(process: subprocess.Popen) -> list[int]:
    try:
        lists = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(pid) for text in lists for pid in text.split()]


def disturbed(kind: str, template: Path, store: Path, moment: float, size: int, folder: Path) -> None:
    """A run that something happens to."""
    if kind == "scheduler":
        scheduler = Scheduler(folder)
        run = started(template, store, "--scheduler", str(scheduler.file))
        while not answers(store) and run.poll() is None:  # workers take seconds to come
            time.sleep(0.05)
        time.sleep(moment / 10)
        scheduler.processes[0].kill()
        run.communicate(timeout=120)
        scheduler.kill()
        return
    if kind == "disk":
        run = started(template, store, "--workers", "2", bytes_limit=size)
        _, error = run.communicate(timeout=300)
        assert run.returncode in (0, 2), (run.returncode, error)
        assert "Traceback" not in error, error
        return
    run = started(template, store, "--workers", "2")
    time.sleep(moment)
    if kind == "driver":
        workers = children(run)
        run.kill()
        run.communicate()
        end = time.monotonic() + 15
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < end, "a worker outlives its driver"
            time.sleep(0.1)
        return
    if workers := children(run):
        os.kill(random.choice(workers), signal.SIGKILL)
    _, error = run.communicate(timeout=300)
    assert run.returncode == 0, (run.returncode, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--kinds", default="driver,worker,disk,scheduler")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        template = folder / "t.json"
        template.write_text(json.dumps(TEMPLATE))
        begun = time.monotonic()
        started(template, folder / "whole.sqlite", "--workers", "2").communicate()
        seconds, expected = time.monotonic() - begun, answers(folder / "whole.sqlite")
        whole = (folder / "whole.sqlite").stat().st_size
        print(f"undisturbed: {len(expected)} answers in {seconds:.1f} s", flush=True)
        for kind in arguments.kinds.split(","):
            kept = 0
            for number in range(arguments.moments):
                store = folder / f"{kind}-{number}.sqlite"
                moment, size = random.uniform(0, seconds), random.randrange(4096, whole)
                disturbed(kind, template, store, moment, size, folder)
                before = answers(store)
                kept += len(before)
                _, error = (again := started(template, store, "--workers", "2")).communicate()
                assert again.returncode == 0, error
                after = answers(store)
                assert before.items() <= after.items(), f"{kind} {number}: an answer is gone"
                assert after == expected, f"{kind} {number}: other answers"
            told = f"{arguments.moments} moments, {kept} answers kept, every store the same"
            print(f"{kind}: {told}", flush=True)


if __name__ == "__main__":
    main()
