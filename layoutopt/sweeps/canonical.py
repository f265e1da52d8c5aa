"""One question, however it is spelled: a hash without names, notes and the order of accesses.

Two tiles of a sweep often ask the same thing under other names. What decides an answer is hashed, accesses in
the order of their texts; an answer is kept with accesses in that order, called by their numbers, and gets the
names and the order of the problem that asks for it:

    asked      a: load [i, lane], b: store [lane, i]     ->  kept   0: store, 1: load
    asked too  y: store [lane, i], x: load [i, lane]     ->  the same answer, y first
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from layoutopt.hardware.devices import Device
from layoutopt.problems.answer import Method
from layoutopt.problems.types import Block, Problem

# Fields of an access that few have: left out where they say nothing.
_FREE: Final = ("lanes", "values", "global", "order")

# Fields of a problem that no answer depends on.
_SAYINGS: Final = ("schema", "name", "notes", "known_optimum", "published")


@dataclass(frozen=True, slots=True)
class Spelling:
    """The names of a problem's accesses, and where each stands among those that are kept."""

    names: tuple[str, ...]
    order: tuple[int, ...]


def spelling_of(problem: Problem | Block) -> Spelling:
    """How the accesses of a problem are called, and their places in the order of their texts."""
    names = tuple(access.name for access in problem.accesses)
    if _names_matter(problem):
        return Spelling(names, tuple(range(len(names))))
    texts = [_text(_access(access)) for access in problem.accesses]
    ranked = sorted(range(len(names)), key=lambda k: (texts[k], k))
    order = [0] * len(names)
    for place, k in enumerate(ranked):
        order[k] = place
    return Spelling(names, tuple(order))


def digest(problem: Problem | Block, *, conflict_free: bool, method: Method) -> str:
    """What decides the answer to a problem on a device, as 64 hexadecimal digits."""
    data = {field: value for field, value in msgspec.to_builtins(problem).items() if field not in _SAYINGS}
    if isinstance(problem, Problem) and problem.published is not None:
        data["in_use"] = [problem.published.offset, problem.published.bytes]
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


def kept(answer: dict[str, Any], spelling: Spelling) -> dict[str, Any]:
    """An answer as JSON data, as it is kept: without the problem's names."""
    reports = answer.get("accesses")
    if not reports:
        return {**answer, "problem": ""}
    ranked: list[Any] = [None] * len(reports)
    for place, report in zip(spelling.order, reports, strict=True):
        ranked[place] = {**report, "name": str(place)}
    return {**answer, "problem": "", "accesses": ranked}


def restored(answer: dict[str, Any], name: str, spelling: Spelling) -> dict[str, Any]:
    """What was kept, as the answer to the problem called `name`: the inverse of `kept`."""
    reports = answer.get("accesses")
    if not reports:
        return {**answer, "problem": name}
    own = [
        {**reports[place], "name": called}
        for place, called in zip(spelling.order, spelling.names, strict=True)
    ]
    return {**answer, "problem": name, "accesses": own}


def _names_matter(problem: Problem | Block) -> bool:
    """Whether answers name accesses or tiles elsewhere than in the reports."""
    return isinstance(problem, Block) or problem.is_dictated


def _access(access: Any) -> dict[str, Any]:
    data = {
        field: value
        for field, value in msgspec.to_builtins(access).items()
        if field not in ("name", "notes") and not (field in _FREE and value is None)
    }
    data["index"] = [str(text) for text in access.index]
    # The last variable is the fastest.
    return data | {"for": list(access.loops.items()), "any": list(access.any.items())}


def _text(data: Any) -> str:
    return json.dumps(data, sort_keys=True)
