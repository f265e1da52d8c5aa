"""The published tiles with the instructions of their loads and stores left to the solver.

    python scripts/checkers/free_instructions.py [--limit 5] [--json FILE]

Of each tile of the catalogue that says what its kernel ships: the wavefronts of the best layout with the
instructions as the file gives them, and with them free. A list of instructions may not cost more than the one
that was given, and an answer called optimal may not be above its bound. Exit code 1: one does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from layoutopt import Result, load_all, solve
from layoutopt.accesses.lower import assigned, chosen_widths
from layoutopt.engine.case import case_of
from layoutopt.errors import ProblemFileError
from layoutopt.hardware.devices import device
from layoutopt.problems.types import Problem
from layoutopt.search.instructions import with_free_instructions

CATALOGUE = Path(__file__).parents[2] / "problems"


def wavefronts(problem: Problem, result: Result) -> float:
    """Of all accesses, weights applied."""
    case = case_of(assigned(problem, result), device(result.target), chosen_widths(problem, result))
    assert result.layout is not None
    return case.weighted_wavefronts(case.count(case.table(result.layout))) / case.lanes.weight_unit


def compared(problem: Problem, limit: float) -> dict[str, Any] | None:
    """What the two take; None where nothing can be free, or the file's own has no layout."""
    free = with_free_instructions(problem)
    if free is None:
        return None
    given = solve(problem, time_limit=limit)
    if given.layout is None:
        return None
    start = time.perf_counter()
    try:
        found = solve(free, time_limit=limit)
    except ProblemFileError as error:
        return {"name": problem.name, "refused": str(error)}
    row = {
        "name": problem.name,
        "given": wavefronts(problem, given),
        "given_bytes": given.bytes,
        "seconds": round(time.perf_counter() - start, 2),
        "status": str(found.status),
    }
    if found.layout is not None and found.proof.wavefronts is not None:
        row |= {
            "free": wavefronts(free, found),
            "free_bytes": found.bytes,
            "bound": found.proof.wavefronts.lower_bound,
            "instructions": {a.name: [a.op, a.bytes] for a in found.accesses if a.index is not None},
        }
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=float, default=5.0, help="seconds of each search")
    parser.add_argument("--json", type=Path, help="write what each takes to this file")
    args = parser.parse_args()
    rows = []
    for problem in load_all(CATALOGUE):
        if isinstance(problem, Problem) and problem.published is not None:
            row = compared(problem, args.limit)
            if row is not None:
                rows.append(row)
                print(row, flush=True)
    solved = [row for row in rows if "free" in row]
    worse = [row["name"] for row in solved if row["free"] > row["given"]]
    fewer = [row for row in solved if row["free"] < row["given"]]
    met = sum(row["free"] <= row["bound"] for row in solved)
    total = [sum(row[kind] for row in solved) for kind in ("given", "free")]
    print(f"{len(rows)} tiles, {len(solved)} solved; wavefronts {total[0]:g} -> {total[1]:g}")
    print(f"fewer in {len(fewer)}, more in {', '.join(worse) or 'none'}; the bound met in {met}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
