"""A problem as work for another process, and what comes of it: values that travel, and one pure function."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from layoutopt import __version__
from layoutopt.errors import LayoutoptError, MachineError
from layoutopt.ground import json_data
from layoutopt.ground.budget import OutOfTime
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.answer import Method, Status
from layoutopt.problems.types import Block, Problem
from layoutopt.search.block import solve
from layoutopt.study.faster import timed
from layoutopt.sweeps.canonical import kept, spelling_of

ERROR: Final = "error"
LOST: Final = "lost"
# Answers that more time does not change.
DECIDED: Final = (Status.OPTIMAL, Status.INFEASIBLE, ERROR)


@dataclass(frozen=True, slots=True)
class Task:
    """A problem to solve.

    Attributes:
        hash: of what decides the answer.
        data: the problem as JSON.
        time_limit: seconds.
        conflict_free: make any excess infeasible.
        method: as for `solve`.
        version: of layoutopt, which the process must have.
    """

    hash: str
    data: bytes
    time_limit: float
    conflict_free: bool
    method: Method
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a task.

    Attributes:
        hash: of the task.
        status: of the answer; `error` where the problem contradicts itself, `lost` where processes died.
        answer: JSON as it is kept (`layoutopt.sweeps.canonical`); empty where there is none.
        error: why there is none.
        excess: of the answer.
        bytes: of the answer.
        seconds: that it took.
    """

    hash: str
    status: str
    answer: str = ""
    error: str = ""
    excess: float | None = None
    bytes: int | None = None
    seconds: float = 0.0


def problem_of(data: bytes) -> Problem | Block:
    """A checked problem out of its JSON."""
    return _SEVERAL.decode(data) if b'"tiles":' in data else _ONE.decode(data)


json_data.prepare(Problem)
json_data.prepare(Block)
_ONE: Final = msgspec.json.Decoder(Problem)
_SEVERAL: Final = msgspec.json.Decoder(Block)


def _solved(problem: Problem | Block, gpu: Device, task: Task) -> dict[str, Any]:
    """The answer as `layoutopt solve` prints it."""
    begun = time.monotonic()
    found = solve(
        problem,
        target=gpu,
        time_limit=task.time_limit,
        conflict_free=task.conflict_free,
        method=task.method,
    )
    return timed(problem, found, gpu, task.time_limit, time.monotonic() - begun).to_json()


def outcome_of(task: Task, devices: Sequence[Device] = ()) -> Outcome:
    """Solve a task: the same answer whoever calls it, and never an exception for what a problem may be.

    Args:
        task: what to solve.
        devices: those beside the package's.

    Raises:
        MachineError: the task is made for another version of layoutopt.
    """
    if task.version != __version__:
        raise MachineError(f"a worker has layoutopt {__version__}, the sweep {task.version}")
    begun = time.perf_counter()
    try:
        problem = problem_of(task.data)
        gpu = device(problem.target, devices)
        data = _solved(problem, gpu, task)
    except LayoutoptError as error:
        return Outcome(task.hash, ERROR, error=str(error))
    except MemoryError:
        return Outcome(task.hash, LOST, error="not enough memory for this problem")
    except OutOfTime:
        return Outcome(task.hash, Status.UNKNOWN, error="out of time while the accesses were evaluated")
    return Outcome(
        task.hash,
        data["status"],
        json.dumps(kept(data, spelling_of(problem))),
        "",
        data["excess"],
        data["bytes"],
        time.perf_counter() - begun,
    )
