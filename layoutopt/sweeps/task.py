"""One question of a sweep: what decides its answer, the work for another process, and what comes of it.

Two tiles of a sweep often ask the same thing under other names. What decides an answer is hashed, accesses in
the order of their texts; an answer is kept with accesses in that order, called by their numbers, and gets the
names and the order of the problem that asks for it:

    asked      a: load [i, lane], b: store [lane, i]     ->  kept   0: store, 1: load
    asked too  y: store [lane, i], x: load [i, lane]     ->  the same answer, y first
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from layoutopt import __version__
from layoutopt.errors import LayoutoptError, MachineError
from layoutopt.ground import json_data
from layoutopt.ground.budget import OutOfTime
from layoutopt.hardware.devices import Device, device
from layoutopt.problems.answer import Method, Status
from layoutopt.problems.types import Access, Block, Problem
from layoutopt.search.block import solve
from layoutopt.study.hints import timed

ERROR: Final = "error"
LOST: Final = "lost"
# Answers that more time does not change.
DECIDED: Final = (Status.OPTIMAL, Status.INFEASIBLE, ERROR)
# Fields of a problem that no answer depends on.
_SAYINGS: Final = ("schema", "name", "notes", "known_optimum")


class Spelling(msgspec.Struct, frozen=True, array_like=True):
    """The names of a problem's accesses, and where each stands among those that are kept."""

    names: tuple[str, ...]
    order: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]

    def kept(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer as JSON data, as it is kept: without the problem's names."""
        reports = answer.get("accesses")
        if not reports:
            return {**answer, "problem": ""}
        ranked = sorted(zip(self.order, reports, strict=True), key=lambda placed: placed[0])
        own = [{**report, "name": str(place)} for place, report in ranked]
        return {**answer, "problem": "", "accesses": own}

    def restored(self, answer: dict[str, Any], name: str) -> dict[str, Any]:
        """What was kept, as the answer to the problem called `name`: the inverse of `kept`."""
        reports = answer.get("accesses")
        if not reports:
            return {**answer, "problem": name}
        own = [{**reports[p], "name": called} for p, called in zip(self.order, self.names, strict=True)]
        return {**answer, "problem": name, "accesses": own}


def spelling_of(problem: Problem | Block) -> Spelling:
    """How the accesses of a problem are called, and their places in the order of their texts."""
    names = tuple(access.name for access in problem.accesses)
    places = range(len(names))
    if _names_matter(problem):
        return Spelling(names, tuple(places))
    texts = [_text(_access(access)) for access in problem.accesses]
    ranked = sorted(places, key=lambda k: (texts[k], k))
    return Spelling(names, tuple(sorted(places, key=ranked.__getitem__)))


def digest(problem: Problem | Block, *, conflict_free: bool, method: Method) -> str:
    """What decides the answer to a problem on a device, as 64 hexadecimal digits."""
    data = {field: value for field, value in msgspec.to_builtins(problem).items() if field not in _SAYINGS}
    if _names_matter(problem):
        data["accesses"] = [{**_access(a), "name": a.name} for a in problem.accesses]
    else:
        data["accesses"] = sorted((_access(access) for access in problem.accesses), key=_text)
    data["asked"] = [conflict_free, method]
    return hashlib.sha256(_text(data).encode()).hexdigest()


def device_digest(gpu: Device) -> str:
    """The data of a device that answers depend on, as 16 hexadecimal digits."""
    rules = sorted((str(key), repr(rule)) for key, rule in gpu.rules.items())
    text = repr((gpu.name, gpu.lanes, gpu.banks, gpu.bank_bytes, rules, gpu.limits))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _names_matter(problem: Problem | Block) -> bool:
    """Whether answers name accesses or tiles elsewhere than in the reports."""
    return isinstance(problem, Block) or problem.is_dictated


def _access(access: Access) -> dict[str, Any]:
    """What an access asks, without its names; of its loops, the last variable is the fastest."""
    data = msgspec.to_builtins(access)
    data |= {"name": None, "notes": None, "index": [str(text) for text in access.index]}
    data |= {"for": list(access.loops.items()), "any": list(access.any.items())}
    return {field: value for field, value in data.items() if value is not None}


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True)


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
        answer: JSON as it is kept; empty where there is none.
        error: why there is none.
        excess, bytes: of the answer.
        seconds: that it took.
    """

    hash: str
    status: str
    answer: str = ""
    error: str = ""
    excess: float | None = None
    bytes: int | None = None
    seconds: float = 0.0


json_data.prepare(Problem)
json_data.prepare(Block)


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
    kind: type[Problem | Block] = Block if b'"tiles":' in task.data else Problem
    try:
        problem = msgspec.json.decode(task.data, type=kind)
        data = _solved(problem, device(problem.target, devices), task)
    except LayoutoptError as error:
        return Outcome(task.hash, ERROR, error=str(error))
    except MemoryError:
        return Outcome(task.hash, LOST, error="not enough memory for this problem")
    except OutOfTime:
        return Outcome(task.hash, Status.UNKNOWN, error="out of time while the accesses were evaluated")
    answer = json.dumps(spelling_of(problem).kept(data))
    seconds = time.perf_counter() - begun
    return Outcome(task.hash, data["status"], answer, "", data["excess"], data["bytes"], seconds)


def _solved(problem: Problem | Block, gpu: Device, task: Task) -> dict[str, Any]:
    """The answer as `layoutopt solve` prints it."""
    begun = time.monotonic()
    how: dict[str, Any] = {"conflict_free": task.conflict_free, "method": task.method}
    found = solve(problem, target=gpu, time_limit=task.time_limit, **how)
    return timed(problem, found, gpu, task.time_limit, time.monotonic() - begun).to_json()
