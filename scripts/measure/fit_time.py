"""Fit the coefficients of the estimate of time to what a GPU took, and say how well it ranks layouts.

    python scripts/measure/fit_time.py           how the coefficients of the package do
    python scripts/measure/fit_time.py --fit     fit them anew (needs scipy) and print them

Both read `tests/data/h200_times.json`, which `scripts/measure/record_times.py` wrote. A pair of layouts is
two of one tile's published, ours and best pad that differ by more than 3 % in measured cycles.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from layoutopt.engine.case import case_under
from layoutopt.engine.estimate import Terms, terms, timing_of
from layoutopt.expressions.grammar import parse
from layoutopt.hardware.devices import Timing, device
from layoutopt.problems.catalogue import of_one_tile
from layoutopt.problems.file import load

RECORD = Path(__file__).parents[2] / "tests/data/h200_times.json"
COEFFICIENTS = tuple(name for name in Timing.__struct_fields__ if name not in ("error", "source"))
RANKED = ("published", "all", "pad")
DIFFERENT = 1.03


class Measured(NamedTuple):
    """A layout of the record: its problem, its row and what the estimate counts of it."""

    problem: str
    row: dict[str, Any]
    terms: Terms


def measured() -> Iterator[Measured]:
    gpu, paths = device("sm_90"), of_one_tile()
    for entry in json.loads(RECORD.read_text())["problems"]:
        problem = msgspec.structs.replace(
            load(paths[entry["problem"].removesuffix(".json")]), target=gpu.name
        )
        variables = frozenset(f"x{d}" for d in range(len(problem.tile.shape)))
        # The passes that were timed run every access once, whatever its weight.
        accesses = tuple(msgspec.structs.replace(access, weight=1) for access in problem.accesses)
        problem = msgspec.structs.replace(problem, accesses=accesses)
        for row in entry["rows"]:
            node = parse(row["offset"], variables)
            case = case_under(problem, gpu, node)
            table = case.table(node)
            yield Measured(
                entry["problem"], row, terms(case, table, case.count(table), case.index_code(node))
            )


def ranking(layouts: list[Measured], timing: Timing) -> Iterator[tuple[float, float, Measured, Measured]]:
    """Measured and estimated ratio of every pair that differs."""
    for _, group in itertools.groupby(layouts, key=lambda m: m.problem):
        ranked = [m for m in group if set(RANKED) & set(m.row["layouts"])]
        for a, b in itertools.combinations(ranked, 2):
            ratio = a.row["once"] / b.row["once"]
            if max(ratio, 1 / ratio) > DIFFERENT:
                yield ratio, a.terms.cycles(timing) / b.terms.cycles(timing), a, b


def errors(layouts: list[Measured], timing: Timing) -> list[float]:
    """Logarithm of estimated over measured cycles, layout by layout."""
    return [math.log(m.terms.cycles(timing) / m.row["once"]) for m in layouts]


def fitted(layouts: list[Measured], start: Timing) -> Timing:
    from scipy.optimize import least_squares

    def changed(values: Any) -> Timing:
        return msgspec.structs.replace(start, **dict(zip(COEFFICIENTS, map(float, values), strict=True)))

    first = [getattr(start, name) for name in COEFFICIENTS]
    found = least_squares(
        lambda v: errors(layouts, changed(v)),
        first,
        loss="soft_l1",
        bounds=(0.0, np.inf),
        x_scale=np.maximum(first, 0.1),
    )
    return changed([float(f"{value:.2g}") for value in found.x])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true")
    args = parser.parse_args()
    layouts = list(measured())
    timing, _ = timing_of(device("sm_90"))
    if args.fit:
        timing = fitted(layouts, timing)
        print({name: getattr(timing, name) for name in COEFFICIENTS})
    pairs = list(ranking(layouts, timing))
    wrong = [pair for pair in pairs if (pair[0] - 1) * (pair[1] - 1) <= 0]
    for ratio, estimated, a, b in wrong:
        print(
            f"{ratio:5.2f} estimated {estimated:5.2f}  {a.problem}  {a.row['offset']}  |  {b.row['offset']}"
        )
    median = float(np.median(np.abs(errors(layouts, timing))))
    print(f"{len(layouts)} layouts, median error {100 * median:.1f} %")
    right = len(pairs) - len(wrong)
    print(f"{right} of {len(pairs)} pairs in the right order ({right / len(pairs):.1%})")


if __name__ == "__main__":
    main()
