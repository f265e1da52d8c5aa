"""What `compare` recommends for the published layouts of the catalogue: how many are kept, edited, replaced.

    python scripts/benchmarks/count_advice.py [--time-limit SECONDS] [--write-docs]

Every problem of one tile with a published layout is compared, one after the other. A published layout is
kept where the recommendation says so; edited where its nearest edit is recommended; replaced otherwise, for
time, or because it cannot hold the tile. Left out are tiles whose lanes choose at run time, which `compare`
does not take. Every edit and replacement is printed with its reason.
`--write-docs` puts the sentence into docs/compare_and_show.md.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from layoutopt.files.catalogue import of_one_tile
from layoutopt.files.file import load
from layoutopt.study.compare import compare

PAGE = Path(__file__).parents[2] / "docs/compare_and_show.md"
MARK = "<!-- advice: scripts/benchmarks/count_advice.py --write-docs -->"


def advice(path: Path, time_limit: float) -> tuple[str, str] | None:
    """What is recommended for a problem's published layout, and why; None where nothing is to be compared."""
    problem = load(path)
    if problem.published is None or any(access.any for access in problem.accesses):
        return None
    taken = compare(problem, time_limit=time_limit).recommendation
    if taken is None:
        return "without a recommendation", ""
    if taken.keep:
        return "kept", taken.text
    return "edited" if taken.family == "edit" else "replaced", taken.text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--time-limit", type=float, default=10.0, help="Of each comparison.")
    parser.add_argument("--write-docs", action="store_true")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    unsure = 0
    for name, path in of_one_tile().items():
        found = advice(path, args.time_limit)
        if found is None:
            continue
        kind, text = found
        counts[kind] += 1
        unsure += "no estimate of time" in text
        if kind != "kept":
            print(f"{kind}  {name}: {text}", flush=True)
    parts = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
    sentence = f"Of the {counts.total()} published layouts of the catalogue: {parts}."
    print(f"{sentence} Without some estimate: {unsure}.")
    if args.write_docs:
        before, _, after = PAGE.read_text().split(MARK)
        PAGE.write_text(f"{before}{MARK}\n{sentence}\n{MARK}{after}")


if __name__ == "__main__":
    main()
