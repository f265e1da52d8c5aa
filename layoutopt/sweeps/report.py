"""What a store holds, in numbers and as text: totals, the slowest, the worst, what no formula serves."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from layoutopt.sweeps.store import Answered, Store

_LISTED: Final = 10
_NAMED: Final = 1000


@dataclass
class Summary:
    """Totals of a store."""

    schema: Literal["layoutopt.sweep/1"] = "layoutopt.sweep/1"
    total: int = 0  # problems
    # How many of each status; `missing` are not answered yet
    by_status: dict[str, int] = field(default_factory=dict)
    conflict_free: int = 0  # without excess wavefronts
    different: int = 0  # different questions among the problems
    seconds: float = 0.0  # that the answers took, all together
    # Name, status and seconds of those that took longest
    slowest: list[dict[str, Any]] = field(default_factory=list)
    # Name, status and excess of those with the most
    worst: list[dict[str, Any]] = field(default_factory=list)
    # Names of the first that no formula serves without conflicts
    without_formula: list[str] = field(default_factory=list)
    without_formula_count: int = 0  # how many there are
    # Why problems have no answer: each of the first reasons, how many problems have it, and the name of one
    errors: list[dict[str, Any]] = field(default_factory=list)


def summary_of(store: Store) -> Summary:
    """Count what a store holds."""
    found, statuses = Summary(), Counter[str]()
    seen: set[str | None] = set()
    errors: dict[str, dict[str, Any]] = {}
    for one in store.answered():
        found.total += 1
        statuses[one.status] += 1
        found.conflict_free += one.excess == 0
        said = {"name": one.tile.name, "status": one.status}
        if one.tile.hash not in seen and one.seconds is not None:
            found.seconds += one.seconds
            _keep_most(found.slowest, {**said, "seconds": one.seconds}, "seconds")
        seen.add(one.tile.hash)
        if one.excess:
            _keep_most(found.worst, {**said, "excess": one.excess}, "excess")
        if one.error and (one.error in errors or len(errors) < _LISTED):
            new = {"error": one.error, "count": 0, "name": one.tile.name}
            errors.setdefault(one.error, new)["count"] += 1
        if _no_formula(one):
            found.without_formula_count += 1
            found.without_formula += [one.tile.name][: _NAMED - len(found.without_formula)]
    found.errors = list(errors.values())
    found.by_status = dict(sorted(statuses.items()))
    found.different, found.seconds = len(seen), round(found.seconds, 3)
    found.slowest = [{**row, "seconds": round(row["seconds"], 3)} for row in found.slowest]
    return found


def _keep_most(rows: list[dict[str, Any]], row: dict[str, Any], column: str) -> None:
    """Add a row, and keep the first of those with the most."""
    rows.append(row)
    rows.sort(key=lambda row: -row[column])
    del rows[_LISTED:]


def _no_formula(one: Answered) -> bool:
    """Whether it is answered, and by no formula without conflicts."""
    layout = (one.answer or {}).get("layout")
    return bool(one.excess) or one.status == "infeasible" or bool(layout and layout.get("lookup"))


def text_of(found: Summary) -> str:
    """The summary for a terminal, ending in a newline."""
    statuses = ", ".join(f"{count:,} {status}" for status, count in found.by_status.items())
    more = found.without_formula_count - _LISTED
    lists = {
        "slowest": [f"{row['seconds']:9.3f} s  {row['status']:10}  {row['name']}" for row in found.slowest],
        "worst": [f"{row['excess']:9g} excess  {row['status']:10}  {row['name']}" for row in found.worst],
        "without an answer": [f"{row['count']:9,}  {row['error']} ({row['name']})" for row in found.errors],
        "without a formula that has no conflicts": found.without_formula[:_LISTED]
        + ([f"and {more:,} more"] if more > 0 else []),
    }
    lines = [
        f"{found.total:,} problems ({found.different:,} different): {statuses or 'none'}",
        f"{found.conflict_free:,} without conflicts, {found.without_formula_count:,} that no formula serves"
        " without conflicts",
        f"{found.seconds:,.1f} s of solving",
    ]
    for title, rows in lists.items():
        lines += ["", title, *(f"  {row}" for row in rows)] if rows else []
    return "\n".join(lines) + "\n"
