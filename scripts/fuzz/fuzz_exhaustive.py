#!/usr/bin/env python3
"""Random small problems, of 8 to 64 words on 2 to 8 banks, against every layout of their families.

The suite runs the first few hundred; this goes on from there.

    python scripts/fuzz/fuzz_exhaustive.py [--problems 1000] [--first 10000] [--constrained]

With `--constrained`: pads, orders and masks only, by both methods, with one worker and with two, under
`max_bytes`, `pitch_multiple_bytes` and with bytes first.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "search"))

from test_brute_force import compare, compare_constrained


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--first", type=int, default=10000, help="first seed")
    parser.add_argument("--constrained", action="store_true", help="constraints on pitches, both methods")
    arguments = parser.parse_args()
    start = time.perf_counter()
    for k in range(arguments.problems):
        if arguments.constrained:
            compare_constrained(arguments.first + k)
        else:
            compare(arguments.first + k, larger=k % 4 == 3)
        if k % 100 == 99:
            print(f"{k + 1} agree, {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
