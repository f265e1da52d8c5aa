"""Tasks on a cluster: batches for Dask, which has schedulers for SSH, SLURM and Kubernetes.

A task of 10 ms is hardly more than a message costs, so that tasks travel in batches of half a second or more,
as the tasks before them took. A batch whose workers died is cut, until the task that kills is alone.
"""

from __future__ import annotations

import itertools
import os
import queue
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from layoutopt.errors import LayoutoptError, MachineError
from layoutopt.hardware.devices import Device
from layoutopt.sweeps.task import LOST, Outcome, Task, outcome_of

_BATCH_SECONDS: Final = 0.5
# A batch costs driver and scheduler some milliseconds: of many threads, each gets longer ones.
_BATCH_SECONDS_A_THREAD: Final = 0.02
_MAX_BATCH: Final = 1000
# Batches under way for each thread of the cluster, so that none waits for the driver.
_AHEAD: Final = 2
_CONNECT_SECONDS: Final = 30.0
# So long the scheduler may be silent.
_SILENCE_SECONDS: Final = 20.0


def outcomes_of(batch: list[Task], devices: Sequence[Device] = ()) -> list[Outcome]:
    """What runs on a worker."""
    return [outcome_of(task, devices) for task in batch]


def outcomes(tasks: Iterator[Task], address: str, devices: Sequence[Device] = ()) -> Iterator[list[Outcome]]:
    """Outcomes of all tasks, as they come, batch by batch.

    Args:
        tasks: taken as workers get free.
        address: of Dask's scheduler, such as tcp://head:8786; or of its file, as `scheduler.json`.
        devices: those beside the package's.

    Raises:
        MachineError: Dask is not installed, the scheduler cannot be reached or is gone, or its workers have
            no layoutopt or another version.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise MachineError(f"--scheduler needs Dask ({error}): pip install 'layoutopt[cluster]'") from None
    by_file = address.endswith(".json")
    if by_file:
        _await_file(Path(address))
    try:
        client = Client(
            **{"scheduler_file" if by_file else "address": address},
            timeout=_CONNECT_SECONDS,
            set_as_default=False,
        )
    except (OSError, ValueError, TimeoutError) as error:
        raise MachineError(f"cannot reach a scheduler at {address}: {error}") from None
    try:
        yield from _Batches(client, address, tasks, tuple(devices)).outcomes()
    finally:
        client.close(timeout=1)


def _await_file(path: Path) -> None:
    """Wait for the file of a scheduler that starts; Dask itself would wait for ever."""
    end = time.monotonic() + _CONNECT_SECONDS
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise MachineError(f"there is no scheduler file {str(path)!r}")
        time.sleep(0.1)


class _Batches:
    """Batches under way."""

    def __init__(self, client: Any, address: str, tasks: Iterator[Task], devices: tuple[Device, ...]) -> None:
        self.client, self.address, self.tasks, self.devices = client, address, tasks, devices
        self.again: list[list[Task]] = []
        self.under_way: dict[Any, list[Task]] = {}
        self.done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.seconds = _BATCH_SECONDS  # of a task, as those before it took
        self.threads = 0

    def outcomes(self) -> Iterator[list[Outcome]]:
        """See the module."""
        heard = time.monotonic()
        self._look()
        while self._fill():
            try:
                future = self.done.get(timeout=1.0)
            except queue.Empty:
                if self.client.status == "running":
                    heard = time.monotonic()
                    self._look()
                elif time.monotonic() - heard > _SILENCE_SECONDS:
                    self._gone()
                continue
            batch = self.under_way.pop(future, None)
            if batch is not None:
                heard = time.monotonic()
                yield from self._of(future, batch)

    def _look(self) -> None:
        """How many threads the cluster has now."""
        try:
            self.threads = sum(self.client.nthreads().values())
        except (OSError, TimeoutError):
            return  # what is silent for too long is said elsewhere

    def _fill(self) -> bool:
        """Have enough batches under way; whether any is."""
        while len(self.under_way) < max(1, _AHEAD * self.threads):
            wanted = max(_BATCH_SECONDS, _BATCH_SECONDS_A_THREAD * self.threads)
            size = max(1, min(_MAX_BATCH, int(wanted / max(self.seconds, 1e-4))))
            batch = self.again.pop() if self.again else list(itertools.islice(self.tasks, size))
            if not batch:
                break
            future = self.client.submit(outcomes_of, batch, self.devices, pure=False, retries=1)
            self.under_way[future] = batch
            future.add_done_callback(self.done.put)
        return bool(self.under_way)

    def _of(self, future: Any, batch: list[Task]) -> Iterator[list[Outcome]]:
        """What came of a batch."""
        if future.status == "finished":
            found: list[Outcome] = future.result(timeout=_SILENCE_SECONDS)
            spent = sum(outcome.seconds for outcome in found) / len(found)
            self.seconds += 0.2 * (spent - self.seconds)
            yield found
            return
        if future.status != "error":
            self._gone()
        error = future.exception(timeout=_SILENCE_SECONDS)
        if isinstance(error, LayoutoptError):
            raise error
        if type(error).__name__ != "KilledWorker":
            raise MachineError(f"a worker of {self.address}: {type(error).__name__}: {error}")
        if len(batch) == 1:
            yield [Outcome(batch[0].hash, LOST, error="the workers that worked on it ended")]
        else:
            middle = len(batch) // 2
            self.again += [batch[:middle], batch[middle:]]

    def _gone(self) -> None:
        raise MachineError(f"the scheduler at {self.address} is gone; the same command goes on where it was")
