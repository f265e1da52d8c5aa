"""Fit the coefficients of the estimate of time to what a GPU took, and say how well it ranks layouts.

    python scripts/measure/fit_time.py           how the coefficients of the package do
    python scripts/measure/fit_time.py --fit     fit them anew (needs scipy), print them, and cross-validate:
                                                 each tenth of the tiles by what the others give

All read `tests/data/h200_times.json`, which `scripts/measure/record_times.py` wrote. A pair of layouts is
two of one tile that differ by more than 3 % in measured cycles, each time that they were measured.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from layoutopt.engine.case import case_under
from layoutopt.engine.estimate import Terms, terms, timing_of
from layoutopt.expressions.grammar import parse
from layoutopt.files.catalogue import of_one_tile
from layoutopt.files.file import load
from layoutopt.hardware.devices import Timing, device

RECORD = Path(__file__).parents[2] / "tests/data/h200_times.json"
# No terms of a block alone: they are read off the layouts of the record that ran together.
TOGETHER = {"line_together", "line_wavefronts", "access_together", "copied_bytes"}
COEFFICIENTS = tuple(n for n in Timing.__struct_fields__ if n not in {*TOGETHER, "error", "source"})
RANKED = ("published", "all", "pad")
DIFFERENT = 1.03
PARTS = 10
# Errors beyond this weigh linearly: what the compiler made of single programs is not to decide.
ORDINARY = 0.02


class Measured(NamedTuple):
    """A layout of the record: its problem, its row and what the estimate counts of it."""

    problem: str
    row: dict[str, Any]
    terms: Terms

    @property
    def once(self) -> tuple[float, float]:
        """Cycles of a pass of a block alone, both times."""
        return self.row["once"], self.row["again"][0]

    @property
    def together(self) -> tuple[float, float]:
        """Cycles of a multiprocessor for a pass, both times."""
        return self.row["once_together"], self.row["again"][1]

    def time(self, timing: Timing) -> float:
        """Estimated cycles of a multiprocessor for a pass."""
        return max(self.terms.busy(timing), self.terms.cycles(timing) / self.row["blocks"])


def measured() -> Iterator[Measured]:
    gpu, paths = device("sm_90"), of_one_tile()
    for entry in json.loads(RECORD.read_text())["problems"]:
        problem = load(paths[entry["problem"].removesuffix(".json")])
        variables = frozenset(f"x{d}" for d in range(len(problem.tile.shape)))
        # The passes that were timed run every access once, whatever its weight.
        accesses = tuple(msgspec.structs.replace(access, weight=1) for access in problem.accesses)
        problem = msgspec.structs.replace(problem, accesses=accesses, target=gpu.name)
        for row in entry["rows"]:
            node = parse(row["offset"], variables)
            yield Measured(entry["problem"], row, terms(case_under(problem, gpu, node), node))


class Ranked(NamedTuple):
    """Two layouts of a tile: their ratio as measured and as estimated."""

    measured: float
    estimated: float
    first: Measured
    second: Measured

    @property
    def wrong(self) -> bool:
        """Whether the estimate has them the other way round, or alike."""
        return (self.measured - 1) * (self.estimated - 1) <= 0


def ranking(
    layouts: list[Measured], taken: Callable[[Measured], tuple[float, float]], estimated: Sequence[float]
) -> Iterator[Ranked]:
    """Every pair of a tile's layouts that differs."""
    every = zip(layouts, estimated, strict=True)
    for _, group in itertools.groupby(every, key=lambda entry: entry[0].problem):
        for (a, mine), (b, other) in itertools.combinations(group, 2):
            ratios = [x / y for x, y in zip(taken(a), taken(b), strict=True)]
            if min(ratios) > DIFFERENT or max(ratios) < 1 / DIFFERENT:
                yield Ranked(sum(ratios) / 2, mine / other, a, b)


def errors(layouts: list[Measured], estimated: Sequence[float]) -> list[float]:
    """Logarithm of estimated over measured cycles, layout by layout."""
    return [math.log(2 * mine / sum(m.once)) for m, mine in zip(layouts, estimated, strict=True)]


def fitted(layouts: list[Measured], start: Timing) -> Timing:
    from scipy.optimize import least_squares

    def changed(values: Any) -> Timing:
        return msgspec.structs.replace(start, **dict(zip(COEFFICIENTS, map(float, values), strict=True)))

    def wrong(values: Any) -> list[float]:
        timing = changed(values)
        return errors(layouts, [m.terms.cycles(timing) for m in layouts])

    first = [getattr(start, name) for name in COEFFICIENTS]
    scale = np.maximum(first, 0.1)
    found = least_squares(wrong, first, loss="soft_l1", f_scale=ORDINARY, bounds=(0.0, np.inf), x_scale=scale)
    return changed([float(f"{value:.2g}") for value in found.x])


def left_out(layouts: list[Measured], start: Timing) -> list[float]:
    """Cycles of every layout, estimated by what the tiles of the other parts give."""
    tiles = sorted({m.problem for m in layouts})
    part = {tile: k % PARTS for k, tile in enumerate(np.random.RandomState(0).permutation(tiles))}
    timings = [fitted([m for m in layouts if part[m.problem] != k], start) for k in range(PARTS)]
    return [m.terms.cycles(timings[part[m.problem]]) for m in layouts]


def say(title: str, pairs: Iterable[Ranked]) -> None:
    every = list(pairs)
    ranked = [p for p in every if all(set(RANKED) & set(m.row["layouts"]) for m in (p.first, p.second))]
    for name, some in (("published, ours and best pad", ranked), ("all layouts", every)):
        right = sum(not pair.wrong for pair in some)
        print(f"{title}, {name}: {right} of {len(some)} pairs in the right order ({right / len(some):.1%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    args = parser.parse_args()
    layouts = list(measured())
    timing, _ = timing_of(device("sm_90"))
    if args.fit:
        estimated = left_out(layouts, timing)
        median = float(np.median(np.abs(errors(layouts, estimated))))
        print(f"cross-validated: median error {median:.1%}")
        say("cross-validated", ranking(layouts, lambda m: m.once, estimated))
        timing = fitted(layouts, timing)
        print({name: getattr(timing, name) for name in COEFFICIENTS})
    estimated = [m.terms.cycles(timing) for m in layouts]
    for pair in ranking(layouts, lambda m: m.once, estimated):
        if pair.wrong:
            print(
                f"{pair.measured:5.2f} estimated {pair.estimated:5.2f}  {pair.first.problem}  "
                f"{pair.first.row['offset']}  |  {pair.second.row['offset']}"
            )
    off = np.abs(errors(layouts, estimated))
    spread = f"median error {np.median(off):.1%}, nine in ten within {np.quantile(off, 0.9):.0%}"
    print(f"{len(layouts)} layouts, {spread}")
    say("alone", ranking(layouts, lambda m: m.once, estimated))
    say("together", ranking(layouts, lambda m: m.together, [m.time(timing) for m in layouts]))


if __name__ == "__main__":
    main()
