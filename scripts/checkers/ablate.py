"""What each mechanism of the search earns: answers and processor time without it.

    python scripts/checkers/ablate.py [MECHANISM ...] [--of KIND ...] [--count N] [--time-limit S]

Each mechanism is switched off alone, in a process that shares nothing with the one that has all of them; `+`
joins several that go together (`annealing+sample`). The questions are those of `record_answers.py`. Printed
is a row a mechanism: answers that get worse or better without it, those the time limit ended counted apart,
and the processor time without it over the time with all.
"""

from __future__ import annotations

import argparse
import sys

from record_answers import KINDS, ROOT, Checkout, Report, questions

# What is executed after the package is imported, so that a mechanism does nothing.
MECHANISMS = {
    "annealing": "import math, layoutopt.model.placement as m; m._seconds_to_compile = lambda: math.inf",
    "fall_back": "import layoutopt.search.reach_floor as m; m.fall_back = lambda scene: None",
    "folded": "import layoutopt.model.placement as m; m._folded = lambda *a: None",
    "instead": "import layoutopt.search.tables as m; m.instead = lambda *a, **k: None",
    "likely": "import layoutopt.search.reach_floor as m; m.likely = lambda *a, **k: iter(())",
    "mask_tree": (
        "import layoutopt.search.search as m; from layoutopt.search.mask_tree import Searched; "
        "m.least_excess = lambda *a: Searched(None, complete=False)"
    ),
    "sample": "import layoutopt.search.solve as m; m.is_large = lambda case: False",
    "usual": "from layoutopt.search.reach_floor import ReachFloor as R; R._usual = lambda *a: iter(())",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mechanisms", nargs="*", metavar="MECHANISM", help=", ".join(MECHANISMS))
    parser.add_argument("--of", nargs="+", choices=KINDS, default=["random", "dimensions"])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=30)
    parser.add_argument("--time-limit", type=float, default=5.0, metavar="S")
    args = parser.parse_args()
    asked = list(questions(args.of, args.count, args.seed, args.time_limit))
    columns = {"worse": 6, "better": 7, "cut": 5, "other": 6}
    titles = " ".join(f"{title:>{width}}" for title, width in columns.items())
    print(f"{len(asked)} questions\n{'without':<24} {titles} {'time':>6}")
    for name in args.mechanisms or MECHANISMS:
        if unknown := [part for part in name.split("+") if part not in MECHANISMS]:
            sys.exit(f"no mechanism {unknown[0]}; there are {', '.join(MECHANISMS)}")
        statements = "\n".join(MECHANISMS[part] for part in name.split("+"))
        sides, report = (Checkout(ROOT), Checkout(ROOT, statements)), Report(shown=False)
        for question in asked:
            report.add(*(side.answers(question) for side in sides))
        told = dict.fromkeys(columns, 0)
        for what, number in report.counts.items():
            how = what.partition(": ")[2]
            if how.endswith("cut by time"):
                told["cut"] += number
            elif how in told:
                told[how] += number
            elif how == "differs" or "exit" in how:
                told["other"] += number
        ratio = report.cpu_s[1] / report.cpu_s[0]
        figures = [f"{told[title]:>{width}}" for title, width in columns.items()]
        print(f"{name:<24} {' '.join(figures)} {ratio:>6.2f}", flush=True)


if __name__ == "__main__":
    main()
