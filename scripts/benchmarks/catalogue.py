"""What the commands find for every problem of the catalogue, one line a problem.

    python scripts/benchmarks/catalogue.py TOOL [--time-limit S] [NAME ...]

solve: what is published beside what is found. Excess is in wavefronts over all warp instructions (weights
decide what is best, and are not in it); bytes run to the last element used. The published layout is counted
by the conflict engine. `pad` and `xor` are the best of these families alone (and of no change at all); `-`
where the file does not allow them.

compare: excess and bytes of some families, what is recommended, and the warm time of the whole table. A row
that the time limit cut short carries a question mark. Then how many published layouts are kept, edited or
replaced; `--write-docs` puts that sentence into docs/commands/compare.md.

methods: `auto` and `model`: excess, bytes, status, who decided, warm seconds and rounds. Exits with 1 where
both prove an answer and differ in excess or bytes.

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

import msgspec

from layoutopt import check, load, solve
from layoutopt.accesses.instructions import with_free_instructions
from layoutopt.accesses.lower import assigned, chosen_widths
from layoutopt.engine.case import case_of
from layoutopt.errors import ProblemFileError
from layoutopt.files.catalogue import of_one_tile
from layoutopt.hardware.devices import device
from layoutopt.problems.answer import METHODS, Status
from layoutopt.study.compare import compare

SOLVED = "{:<50} {:>5} {:>6}  {:>5} {:>6}  {:>5} {:>6}  {:>5} {:>6}  {:<9} {:>6}  {:<14} {:<12} {}"
FAMILIES = ("none", "order/split", "pad", "interval", "cute", "xor", "all", "published")
COMPARED = "{:<46} " + "{:>14} " * len(FAMILIES) + "{:<12} {:>8}"
BY_METHOD = "{:<50} " + "{:>7} {:>8} {:<10} {:<14} {:>8} {:>6}  " * len(METHODS) + "{}"
PROVED = (Status.OPTIMAL, Status.INFEASIBLE)
PAGE = Path(__file__).parents[2] / "docs/commands/compare.md"
MARK = "<!-- advice: scripts/benchmarks/catalogue.py compare --write-docs -->"


def timed(function, *args, **options):
    """What a call returns, and its seconds."""
    start = time.perf_counter()
    result = function(*args, **options)
    return result, time.perf_counter() - start


def published(problem):
    """Excess and bytes of the layout in use."""
    if problem.published is None:
        return "-", "-"
    audit = check(problem)
    return audit.excess, audit.bytes


def restricted(problem, family, limit):
    """The best of one family, or nothing where the file does not allow it."""
    allowed = problem.layout.families
    if allowed is not None and family not in allowed:
        return "-", "-"
    layout = msgspec.structs.replace(problem.layout, families=("none", family))
    result = solve(msgspec.structs.replace(problem, layout=layout), time_limit=limit)
    return result.excess, result.bytes


def scope(lower, found):
    """Whom the proof speaks of: `all` layouts, the `families` searched, or no one yet."""
    if lower.lower_bound != found:
        return f">= {lower.lower_bound}"
    return "all" if lower.scope == "every layout" else "families"


def solve_all(problems, limit, _):
    two = ("excess", "bytes")
    print(SOLVED.format("problem", "publ.", "", "pad", "", "xor", "", "best", "", "", "", "proof", "", ""))
    print(SOLVED.format("", *two * 4, "status", "time", "excess; bytes", "family", "formula"))
    beaten = kernels = 0
    for name, problem in problems.items():
        old = published(problem)
        result, seconds = timed(solve, problem, time_limit=limit)
        proof = result.proof
        excess = scope(proof.objective, result.weighted_excess)
        proofs = f"{excess}; {scope(proof.bytes, result.bytes)}"
        others = [restricted(problem, family, limit) for family in ("pad", "xor")]
        columns = (*old, *others[0], *others[1], result.excess, result.bytes, result.status)
        columns = (*columns, f"{seconds:.2f}", proofs, result.family, result.offset)
        print(SOLVED.format(name, *(str(c) for c in columns)), flush=True)
        if problem.published is not None and not name.startswith("basics/"):
            kernels += 1
            beaten += result.excess < old[0] or result.bytes < old[1]
    print(f"{beaten} of {kernels} published layouts beaten in wavefronts or bytes")


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


def methods_all(problems, limit, _):
    columns = ("excess", "bytes", "status", "decided by", "seconds", "rounds")
    print(BY_METHOD.format("problem", *columns * len(METHODS), ""))
    wrong, times = 0, {method: [] for method in METHODS}
    for name, problem in problems.items():
        if problem.layout.minimise == "instructions":
            continue
        solve(problem, time_limit=min(1, limit))  # to be warm
        cells, answers, proved = [], set(), set()
        for method in METHODS:
            result, seconds = timed(solve, problem, time_limit=limit, method=method)
            times[method].append(seconds)
            answers.add((result.excess, result.bytes))
            if result.status in PROVED:
                proved.add((result.excess, result.bytes))
            rounds = result.model.rounds if result.model else 0
            who = result.decided_by or "nobody"
            cells += [result.excess, result.bytes, result.status, who, f"{seconds:.3f}", rounds]
        note = "" if len(answers) == 1 else "DIFFERENT" if len(proved) > 1 else "different, not proved"
        wrong += len(proved) > 1
        print(BY_METHOD.format(name, *map(str, cells), note), flush=True)
    for method, some in times.items():
        some.sort()
        p95 = some[min(len(some) - 1, int(0.95 * len(some)))]
        print(f"{method}: median {statistics.median(some):.3f} s, 95 % {p95:.3f} s, worst {some[-1]:.2f} s")
    return wrong > 0


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
    tools = {
        "solve": (solve_all, 60.0), "compare": (compare_all, 10.0), "methods": (methods_all, 10.0),
        "instructions": (instructions_all, 5.0),
    }  # fmt: skip
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
