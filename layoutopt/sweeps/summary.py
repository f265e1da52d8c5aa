"""What a store holds, in numbers: totals, the slowest, the worst, what no formula serves."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from layoutopt.errors import ProblemFileError
from layoutopt.sweeps.rows import Answered
from layoutopt.sweeps.store import Store

_LISTED: Final = 10
_NAMED: Final = 1000


@dataclass
class Summary:
    """Totals of a store.

    Attributes:
        total: problems.
        by_status: how many of each status; `missing` are not answered yet.
        conflict_free: without excess wavefronts.
        different: different questions among the problems.
        seconds: that the answers took, all together.
        slowest: name, status and seconds of those that took longest.
        worst: name and excess of those with the most.
        without_formula: names of the first that no formula serves without conflicts.
        without_formula_count: how many there are.
    """

    total: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    conflict_free: int = 0
    different: int = 0
    seconds: float = 0.0
    slowest: list[dict[str, Any]] = field(default_factory=list)
    worst: list[dict[str, Any]] = field(default_factory=list)
    without_formula: list[str] = field(default_factory=list)
    without_formula_count: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "schema": "layoutopt.sweep/1",
            **vars(self),
            "by_status": dict(sorted(self.by_status.items())),
        }


def summary_of(store: Store) -> Summary:
    """Count what a store holds."""
    found = Summary()
    seen: set[tuple[str | None, str | None]] = set()
    slow: list[tuple[float, int, Answered]] = []
    bad: list[tuple[float, int, Answered]] = []
    for number, one in enumerate(store.answered()):
        found.total += 1
        found.by_status[one.status] += 1
        found.conflict_free += one.excess == 0
        key = one.tile.hash, one.tile.device
        if key not in seen and one.seconds is not None:
            _keep(slow, (one.seconds, -number, _brief(one)))
            found.seconds += one.seconds
        seen.add(key)
        if one.excess:
            _keep(bad, (one.excess, -number, _brief(one)))
        if _no_formula(one):
            found.without_formula_count += 1
            if len(found.without_formula) < _NAMED:
                found.without_formula.append(one.tile.name)
    found.different = len(seen)
    found.seconds = round(found.seconds, 3)
    found.slowest = [
        {"name": one.tile.name, "status": one.status, "seconds": round(seconds, 3)}
        for seconds, _, one in sorted(slow, reverse=True)
    ]
    found.worst = [
        {"name": one.tile.name, "status": one.status, "excess": excess}
        for excess, _, one in sorted(bad, reverse=True)
    ]
    return found


def heat_map(
    store: Store, across: str, down: str
) -> tuple[list[Any], list[Any], dict[tuple[Any, Any], float]]:
    """The most excess for each pair of values of two parameters.

    Args:
        store: with the answers.
        across: one parameter.
        down: the other.

    Returns:
        values of both, rising, and the excess by value across and value down.

    Raises:
        ProblemFileError: no problem has both parameters and an answer.
    """
    cells: dict[tuple[Any, Any], float] = {}
    for one in store.answered():
        params: Mapping[str, Any] = one.tile.params
        if across in params and down in params and one.excess is not None:
            key = params[across], params[down]
            cells[key] = max(cells.get(key, 0.0), one.excess)
    if not cells:
        raise ProblemFileError("--heat-map", f"no answered problem has the parameters {across} and {down}")

    def values(k: int) -> list[Any]:
        return sorted({key[k] for key in cells}, key=lambda value: (isinstance(value, str), value))

    return values(0), values(1), cells


def _keep(heap: list[tuple[float, int, Answered]], item: tuple[float, int, Answered]) -> None:
    if len(heap) < _LISTED:
        heapq.heappush(heap, item)
    else:
        heapq.heappushpop(heap, item)


def _brief(one: Answered) -> Answered:
    """Without the answer, which is large."""
    return Answered(one.tile, one.status, one.excess, one.bytes, one.seconds, None, one.error)


def _no_formula(one: Answered) -> bool:
    """Whether it is answered, and by no formula without conflicts."""
    if one.answer is None:
        return one.status == "infeasible"
    layout = one.answer.get("layout")
    return bool(one.excess) or one.status == "infeasible" or bool(layout and layout.get("lookup"))
