"""What the commands find for every problem of the catalogue, one line a problem.

    python scripts/benchmarks/catalogue.py TOOL [--time-limit S] [NAME ...]

compare: excess and bytes of some families and of the published layout, what is recommended, and the warm time
of the whole table. A row that the time limit cut short carries a question mark. Then how many published
layouts are kept, edited or replaced; `--write-docs` puts that sentence into docs/commands/compare.md.

instructions: of each published layout the wavefronts with the instructions of the file, and with those of its
loads and stores left to the solver: no more than were given, or the exit code is 1.

NAME keeps the problems whose name holds it. Left out by `compare`: lanes that choose at run time.
"""

import argparse
import collections
import statistics
import sys
import time
from pathlib import Path

from layoutopt import load, solve
from layoutopt.accesses.instructions import with_free_instructions
from layoutopt.accesses.lower import assigned, chosen_widths
from layoutopt.engine.case import case_of
from layoutopt.errors import ProblemFileError
from layoutopt.files.catalogue import of_one_tile
from layoutopt.hardware.devices import device
from layoutopt.study.compare import compare

FAMILIES = ("none", "order/split", "pad", "interval", "cute", "xor", "all", "published")
COMPARED = "{:<46} " + "{:>14} " * len(FAMILIES) + "{:<12} {:>8}"
PAGE = Path(__file__).parents[2] / "docs/commands/compare.md"
MARK = "<!-- advice: scripts/benchmarks/catalogue.py compare --write-docs -->"


def timed(function, *args, **options):
    """What a call returns, and its seconds."""
    start = time.perf_counter()
    result = function(*args, **options)
    return result, time.perf_counter() - start


def figures(row):
    if row is None:
        return "-"
    if row.wavefronts is None:
        return row.status
    return f"{row.excess}/{row.bytes}{'?' if row.status == 'feasible' else ''}"


def compare_all(problems, limit, write_docs):
    print(COMPARED.format("problem (excess/bytes)", *FAMILIES, "recommended", "ms"))
    times, advice = [], collections.Counter()
    for name, problem in problems.items():
        if any(access.any for access in problem.accesses):
            continue
        compare(problem, time_limit=limit)
        result, seconds = timed(compare, problem, time_limit=limit)
        times.append(seconds)
        rows, taken = {row.family: row for row in result.rows}, result.recommendation
        cells = (figures(rows.get(family)) for family in FAMILIES)
        told = taken.family if taken else "-"
        print(COMPARED.format(name, *cells, told, f"{1e3 * seconds:.0f}"), flush=True)
        if taken and problem.published is not None:
            kind = "kept" if taken.keep else "edited" if taken.family == "edit" else "replaced"
            advice[kind] += 1
            if not taken.keep:
                print(f"    {kind}: {taken.text}")
    print(f"{len(times)} problems, warm table: median {1e3 * statistics.median(times):.0f} ms")
    parts = ", ".join(f"{n} {kind}" for kind, n in advice.most_common())
    sentence = f"Of the {advice.total()} published layouts of the catalogue: {parts}."
    print(sentence)
    if write_docs:
        before, _, after = PAGE.read_text().split(MARK)
        PAGE.write_text(f"{before}{MARK}\n{sentence}\n{MARK}{after}")


def wavefronts(problem, result):
    """Of all accesses, weights applied; nothing without a layout."""
    if result.layout is None:
        return None
    case = case_of(assigned(problem, result), device(result.target), chosen_widths(problem, result))
    return case.weighted_wavefronts(case.count(case.table(result.layout))) / case.lanes.weight_unit


def instructions_all(problems, limit, _):
    rows = []
    for name, problem in problems.items():
        free = with_free_instructions(problem) if problem.published is not None else None
        given = free and wavefronts(problem, solve(problem, time_limit=limit))
        if not given:
            continue  # nothing can be free, or the file's own has no layout
        try:
            result, seconds = timed(solve, free, time_limit=limit)
        except ProblemFileError as error:
            print(f"{name}: {error}")
            continue
        if (found := wavefronts(free, result)) is not None:
            rows.append((name, given, found, result.proof.wavefronts.lower_bound))
            chosen = [f"{a.op} {a.bytes}" for a in result.accesses if a.index is not None]
            print(*rows[-1], result.status, f"{seconds:.2f}", ", ".join(chosen), flush=True)
    worse = [name for name, given, found, _ in rows if found > given]
    fewer = sum(found < given for _, given, found, _ in rows)
    met = sum(found <= bound for *_, found, bound in rows)
    total = [sum(row[k] for row in rows) for k in (1, 2)]
    print(f"{len(rows)} solved; wavefronts {total[0]:g} -> {total[1]:g}")
    print(f"fewer in {fewer}, more in {', '.join(worse) or 'none'}; the bound met in {met}")
    return bool(worse)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    tools = {"compare": (compare_all, 10.0), "instructions": (instructions_all, 5.0)}
    parser.add_argument("what", choices=tools)
    parser.add_argument("--time-limit", type=float, metavar="S", help="of each problem")
    parser.add_argument("--write-docs", action="store_true", help="of `compare`")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_intermixed_args()
    known = of_one_tile().items()
    kept = {n: load(p) for n, p in known if not args.names or any(part in n for part in args.names)}
    tool, limit = tools[args.what]
    return tool(kept, limit if args.time_limit is None else args.time_limit, args.write_docs)


if __name__ == "__main__":
    sys.exit(main())
