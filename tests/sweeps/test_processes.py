"""Processes that call functions: what comes back, what dies, and what is left when the owner closes them."""

import math
import os
import signal
import time

import pytest

from layoutopt.ground.processes import KilledWorker, Processes
from layoutopt.hardware.machine import ended


@pytest.fixture
def processes():
    one = Processes(1)
    yield one
    one.close()


def test_a_result_an_error_and_a_death(processes):
    asked = [processes.submit(math.sqrt, number) for number in (4.0, -1.0)]
    assert asked[0].result() == 2.0
    with pytest.raises(ValueError, match="math domain"):
        asked[1].result()
    with pytest.raises(KilledWorker):
        processes.submit(signal.raise_signal, signal.SIGKILL).result()
    assert processes.submit(abs, -1).result() == 1


def test_what_takes_too_long_is_ended(processes):
    with pytest.raises(KilledWorker):
        processes.submit(time.sleep, 60, seconds=0.05).result()


def test_closing_ends_what_a_call_began(processes, tmp_path):
    mark = tmp_path / "pid"
    processes.submit(ended, ["sh", "-c", f"echo $$ > {mark}.new; mv {mark}.new {mark}; exec sleep 60"])
    while not mark.exists():
        time.sleep(0.01)
    began = time.monotonic()
    processes.close()
    assert time.monotonic() - began < 5
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
