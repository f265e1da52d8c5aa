"""What a store holds, in numbers and as text: totals, the slowest, the worst, what no formula serves."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from layoutopt.sweeps.store import Answered, Store

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
        worst: name, status and excess of those with the most.
        without_formula: names of the first that no formula serves without conflicts.
        without_formula_count: how many there are.
    """

    schema: Literal["layoutopt.sweep/1"] = "layoutopt.sweep/1"
    total: int = 0
    by_status: dict[str, int] = field(default_factory=dict)
    conflict_free: int = 0
    different: int = 0
    seconds: float = 0.0
    slowest: list[dict[str, Any]] = field(default_factory=list)
    worst: list[dict[str, Any]] = field(default_factory=list)
    without_formula: list[str] = field(default_factory=list)
    without_formula_count: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {**vars(self), "by_status": dict(sorted(self.by_status.items()))}


def summary_of(store: Store) -> Summary:
    """Count what a store holds."""
    found = Summary()
    seen: set[tuple[str | None, str | None]] = set()
    slow: list[tuple[float, int, str, str]] = []
    bad: list[tuple[float, int, str, str]] = []
    for number, one in enumerate(store.answered()):
        named = -number, one.tile.name, one.status
        found.total += 1
        found.by_status[one.status] = found.by_status.get(one.status, 0) + 1
        found.conflict_free += one.excess == 0
        key = one.tile.hash, one.tile.device
        if key not in seen and one.seconds is not None:
            found.seconds += one.seconds
            slow = heapq.nlargest(_LISTED, [*slow, (one.seconds, *named)])
        seen.add(key)
        if one.excess:
            bad = heapq.nlargest(_LISTED, [*bad, (one.excess, *named)])
        if _no_formula(one):
            found.without_formula_count += 1
            if len(found.without_formula) < _NAMED:
                found.without_formula.append(one.tile.name)
    found.different = len(seen)
    found.seconds = round(found.seconds, 3)
    found.slowest = [{"name": name, "status": s, "seconds": round(spent, 3)} for spent, _, name, s in slow]
    found.worst = [{"name": name, "status": s, "excess": excess} for excess, _, name, s in bad]
    return found


def _no_formula(one: Answered) -> bool:
    """Whether it is answered, and by no formula without conflicts."""
    if one.answer is None:
        return one.status == "infeasible"
    layout = one.answer.get("layout")
    return bool(one.excess) or one.status == "infeasible" or bool(layout and layout.get("lookup"))


def text_of(found: Summary) -> str:
    """The summary for a terminal, ending in a newline."""
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(found.by_status.items()))
    lines = [
        f"{found.total:,} problems ({found.different:,} different): {statuses or 'none'}",
        f"{found.conflict_free:,} without conflicts, {found.without_formula_count:,} that no formula serves"
        " without conflicts",
        f"{found.seconds:,.1f} s of solving",
    ]
    if found.slowest:
        lines += ["", "slowest"]
        lines += [f"  {row['seconds']:9.3f} s  {row['status']:10}  {row['name']}" for row in found.slowest]
    if found.worst:
        lines += ["", "worst"]
        lines += [f"  {row['excess']:9g} excess  {row['status']:10}  {row['name']}" for row in found.worst]
    if found.without_formula:
        lines += ["", "without a formula that has no conflicts"]
        lines += [f"  {name}" for name in found.without_formula[:_LISTED]]
        if found.without_formula_count > _LISTED:
            lines.append(f"  and {found.without_formula_count - _LISTED:,} more")
    return "\n".join(lines) + "\n"
