"""One question of a sweep: what decides its answer, the work for another process, and what comes of it.

Problems of a sweep often ask the same under other names. What decides an answer is hashed; the answer that is
kept gets the names of the problem that asks for it.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct

from layoutopt.errors import LayoutoptError, MachineError
from layoutopt.ground import json_data
from layoutopt.ground.budget import OutOfTime, deadline
from layoutopt.ground.version import __version__
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.answer import Method, Status
from layoutopt.problems.types import Block, Problem
from layoutopt.search.block import solve
from layoutopt.search.proposal import Ask
from layoutopt.study.solve import with_faster

ERROR: Final = "error"
LOST: Final = "lost"
# Answers that more time does not change.
DECIDED: Final = (Status.OPTIMAL, Status.INFEASIBLE, ERROR)
# Fields of a problem that no answer depends on.
_SAYINGS: Final = ("schema", "name", "notes", "known_optimum")

_Number = Annotated[float, msgspec.Meta(ge=0, lt=1e300)]


def digest(problem: Problem | Block, gpu: Device, *, conflict_free: bool, method: Method) -> str:
    """What decides the answer to a problem, device and version among it, as 64 hexadecimal digits."""
    data = {field: value for field, value in msgspec.to_builtins(problem).items() if field not in _SAYINGS}
    if isinstance(problem, Problem) and not problem.is_dictated:  # else answers name accesses outside reports
        data["accesses"] = [{**access, "name": "", "notes": ""} for access in data["accesses"]]
    rules = sorted((str(key), repr(rule)) for key, rule in gpu.rules.items())
    served = repr((gpu.name, gpu.lanes, gpu.banks, gpu.bank_bytes, rules, gpu.limits))
    return hashlib.sha256(json.dumps([data, served, conflict_free, method, __version__]).encode()).hexdigest()


def named(answer: dict[str, Any], name: str, accesses: Sequence[str]) -> dict[str, Any]:
    """An answer as JSON data, with the names of the problem that asks for it."""
    reports = answer.get("accesses")
    if reports:
        own = [{**report, "name": called} for report, called in zip(reports, accesses, strict=True)]
        answer = {**answer, "accesses": own}
    if "tiles" in answer:  # of which each is called by its problem and its own name
        parts = [(part, part["result"]) for part in answer["tiles"]]
        tails = [result["problem"].removeprefix(answer["problem"]) for _, result in parts]
        own = [
            {**part, "result": {**result, "problem": f"{name}{tail}"}}
            for (part, result), tail in zip(parts, tails, strict=True)
        ]
        answer = {**answer, "tiles": own}
    return {**answer, "problem": name}


class Task(Struct, frozen=True):
    """A problem to solve."""

    hash: str  # of what decides the answer
    data: bytes  # the problem as JSON
    time_limit: float  # seconds
    conflict_free: bool  # make any excess infeasible
    method: Method  # as for `solve`
    version: str = __version__  # of layoutopt, which the process must have


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What came of a task, as the store keeps it."""

    hash: str  # of the task
    # Of the answer; `error` where the problem contradicts itself, `lost` where processes died
    status: Annotated[str, msgspec.Meta(pattern=rf"\A({'|'.join((*Status, ERROR, LOST))})\Z")]
    seconds: _Number = 0.0  # that it took
    excess: _Number | None = None  # of the answer
    answer: str = ""  # JSON as `solve --json` prints it; empty where there is none
    error: str = ""  # why there is none


json_data.prepare(Problem)
json_data.prepare(Block)


def outcome_of(task: Task, devices: Sequence[Device]) -> Outcome:
    """Solve a task: the same answer whoever calls it, and never an exception for what a problem may be.

    Args:
        task: what to solve.
        devices: those beside the package's.

    Raises:
        MachineError: the task is made for another version of layoutopt.
    """
    if task.version != __version__:
        raise MachineError(f"a worker has layoutopt {__version__}, the sweep {task.version}")
    begun = time.monotonic()
    kind: type[Problem | Block] = Block if b'"tiles":' in task.data else Problem
    try:
        problem = msgspec.json.decode(task.data, type=kind)
        gpu = device(problem.target, devices)
        with deadline(task.time_limit):
            found = solve(problem, gpu, Ask(task.conflict_free, method=task.method))
        seconds = time.monotonic() - begun
        data = with_faster(problem, found, gpu, task.time_limit - seconds).to_json()
    except LayoutoptError as error:
        return Outcome(task.hash, ERROR, error=str(error))
    except MemoryError:
        return Outcome(task.hash, LOST, error="not enough memory for this problem")
    except OutOfTime:
        return Outcome(task.hash, Status.UNKNOWN, error="out of time while the accesses were evaluated")
    return Outcome(task.hash, data["status"], seconds, data["excess"], json.dumps(data))
