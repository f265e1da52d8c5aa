"""Who solves the tasks of a sweep: processes of this machine, or workers of a Dask cluster.

Both are executors that take batches of tasks. A message to a cluster costs about as much as a task of 10 ms,
so that tasks travel there in batches of half a second or more; on this machine they travel one by one. Of a
batch whose workers died the tasks are tried alone, and the one that kills is lost.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from itertools import islice
from pathlib import Path
from typing import Any, Final

from layoutopt.errors import LayoutoptError, MachineError
from layoutopt.ground.processes import MAX_ATTEMPTS, KilledWorker, Processes, cores
from layoutopt.hardware.devices import Device
from layoutopt.sweeps.task import LOST, Outcome, Task, outcome_of

Batch = list[Task]

# Beyond its limit a task may evaluate accesses, load libraries, and share the machine with others.
_GRACE_SECONDS: Final = 60.0
_GRACE_FACTOR: Final = 3.0
_BATCH_SECONDS: Final = 0.5
# A batch costs driver and scheduler some milliseconds: of many threads, each gets longer ones.
_BATCH_SECONDS_A_THREAD: Final = 0.02
_MAX_BATCH: Final = 1000
# Batches under way for each worker, so that none waits for the driver.
_AHEAD: Final = 2
_CONNECT_SECONDS: Final = 30.0
_SILENCE_SECONDS: Final = 20.0  # of a scheduler
_GONE: Final = "the scheduler is gone; the same command goes on where it was"


def outcomes(
    tasks: Iterator[Task],
    devices: Sequence[Device] = (),
    *,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Iterator[list[Outcome]]:
    """Outcomes of all tasks, as they come, batch by batch.

    Args:
        tasks: taken as workers get free.
        devices: those beside the package's.
        workers: processes on this machine; None for one a core.
        scheduler: address of Dask's scheduler, such as tcp://head:8786, or its file; replaces `workers`.

    Raises:
        MachineError: the workers have another version of layoutopt; Dask is not installed; its scheduler
            cannot be reached, or is gone.
    """
    again: list[Batch] = []
    own = tuple(devices)
    pool = _Cluster(scheduler, own) if scheduler is not None else _Processes(workers or cores(), own)
    under_way: dict[Future[list[Outcome]], Batch] = {}
    seconds = _BATCH_SECONDS  # of a task, as those before it took
    with contextlib.closing(pool):
        while True:
            while len(under_way) < pool.room:
                batch = again.pop() if again else list(islice(tasks, pool.size(seconds)))
                if not batch:
                    break
                under_way[pool.submit(batch)] = batch
            if not under_way:
                return
            ready, _ = wait(under_way, timeout=1.0, return_when=FIRST_COMPLETED)
            pool.watch(bool(ready))
            for future in ready:
                batch = under_way.pop(future)
                try:
                    found = future.result()
                except CancelledError:
                    raise MachineError(_GONE) from None
                except LayoutoptError:
                    raise
                except Exception as error:
                    if type(error).__name__ != KilledWorker.__name__:
                        raise MachineError(f"a worker of the sweep: {error!r}") from None
                    again += [[task] for task in batch] if len(batch) > 1 else []
                    lost = f"the processes that worked on it ended {MAX_ATTEMPTS} times"
                    found = [Outcome(batch[0].hash, LOST, error=lost)] if len(batch) == 1 else []
                if found:
                    seconds += 0.2 * (sum(outcome.seconds for outcome in found) / len(found) - seconds)
                    yield found


def solved(batch: Batch, devices: Sequence[Device] = ()) -> list[Outcome]:
    """What a worker does."""
    return [outcome_of(task, devices) for task in batch]


class _Processes:
    """Processes of this machine."""

    def __init__(self, count: int, devices: tuple[Device, ...]) -> None:
        self.room, self.devices = _AHEAD * count, devices
        self.processes = Processes(count)

    def submit(self, batch: Batch) -> Future[list[Outcome]]:
        """Let a process that is free solve the batch."""
        allowed = sum(_GRACE_FACTOR * task.time_limit + _GRACE_SECONDS for task in batch)
        return self.processes.submit(solved, batch, self.devices, seconds=allowed)

    def size(self, _: float) -> int:
        """One by one: an answer is kept before the next one is asked for."""
        return 1

    def watch(self, heard: bool) -> None:
        """Nothing: the thread of a process watches it."""

    def close(self) -> None:
        """End the processes at once."""
        self.processes.close()


class _Cluster:
    """The workers of a Dask scheduler."""

    def __init__(self, address: str, devices: tuple[Device, ...]) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            wrong = f"--scheduler needs Dask ({error}): pip install 'layoutopt[cluster]'"
            raise MachineError(wrong) from None
        by_file = address.endswith(".json")
        end = time.monotonic() + _CONNECT_SECONDS
        while by_file and not Path(address).exists():  # Dask itself would wait for ever
            if time.monotonic() > end:
                raise MachineError(f"there is no scheduler file {address!r}")
            time.sleep(0.1)
        place = {"scheduler_file" if by_file else "address": address}
        try:
            self.client: Any = Client(**place, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise MachineError(f"cannot reach a scheduler at {address}: {error}") from None
        self.executor: Any = self.client.get_executor(pure=False, retries=1)
        self.devices, self.threads = devices, 0
        self.heard = time.monotonic()
        self.watch(heard=False)

    @property
    def room(self) -> int:
        """How many batches may be under way."""
        return max(1, _AHEAD * self.threads)

    def size(self, seconds: float) -> int:
        """Tasks of the next batch, where one takes so long."""
        wanted = max(_BATCH_SECONDS, _BATCH_SECONDS_A_THREAD * self.threads)
        return max(1, min(_MAX_BATCH, int(wanted / max(seconds, 1e-4))))

    def submit(self, batch: Batch) -> Future[list[Outcome]]:
        """Let a worker solve the batch."""
        found: Future[list[Outcome]] = self.executor.submit(solved, batch, self.devices)
        return found

    def watch(self, heard: bool) -> None:
        """See, where nothing came, whether the scheduler is there and how many threads it has now."""
        if heard or self.client.status == "running":
            self.heard = time.monotonic()
        elif time.monotonic() - self.heard > _SILENCE_SECONDS:
            raise MachineError(_GONE)
        if not heard:
            with contextlib.suppress(OSError, TimeoutError):
                self.threads = sum(self.client.nthreads().values())

    def close(self) -> None:
        """Leave the cluster."""
        self.client.close(timeout=1)
