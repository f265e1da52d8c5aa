"""Check a certificate with plain loops.

    python scripts/checkers/check_certificate.py PROBLEM.json CERTIFICATE.json

Uses the standard library and nothing of layoutopt. It takes from the certificate which lanes the
hardware serves together and, where the file leaves a choice, how wide (`served`), and derives everything
else from the problem file. Name, target and constraints must be those of the file: a certificate of a problem
that options changed is one of another problem. What only a solver answered is not checked here: give the
certificate's `questions` to another solver.

Of what the hardware moves by itself (TMA, tensor cores, bulk copies) every element is where the tensor map,
the matrix descriptor or the copy has it, and no other layout of boxes or pages that follow one another has
less excess, or as little with fewer instructions (certificate/by_hardware.py).

Of several tiles: the certificate of each, at each place where it lies, that tiles which live together
share no byte, and the bytes and excess of all.

Exit code 0: all of it holds. 1: something in the certificate is wrong. 2: a file cannot be read, or is no
problem or no certificate. 3: some of it rests on a solver or on the families searched.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from certificate.block import check_block
from certificate.problem import Broken, check_problem, not_handled, require, require_form, without_lanes
from certificate.tile import check


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    try:
        problem, given = (json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:])
    except (OSError, ValueError, RecursionError) as error:
        print(f"two JSON files are needed, PROBLEM and CERTIFICATE: {error}", file=sys.stderr)
        return 2
    try:
        if isinstance(given, dict) and given.get("schema") == "layoutopt.block_certificate/1":
            return 0 if check_block(problem, given) else 3
        check_problem(problem)
        known = isinstance(given, dict) and given.get("schema") == "layoutopt.certificate/1"
        require_form(known, "the second file is no certificate")
        plain = without_lanes(problem)
        if why := not_handled(plain, given):
            hint = "; `layoutopt problems --expanded` writes them out" if "without an index" in why else ""
            print(f"NOT CHECKED: {why}{hint}")
        return 0 if not why and check(plain, given) else 3
    except Broken as error:
        print(str(error).encode("ascii", "backslashreplace").decode(), file=sys.stderr)
        return 2
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        return require(False, f"the certificate is not of this problem, or malformed: {error!r}")


if __name__ == "__main__":
    sys.exit(main())
