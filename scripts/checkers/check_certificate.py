"""Check a certificate with plain loops.

    python scripts/checkers/check_certificate.py PROBLEM.json CERTIFICATE.json [DEVICES.json]

Uses the standard library and no code of layoutopt. Which lanes the hardware serves together must be as the
data of the known GPUs has it (layoutopt/hardware/devices.json, and the device file, if one is given); of any
other GPU it is the certificate's word (`served`), and not checked, nor are other widths than those chosen
where the file leaves a choice. Everything else is derived from the problem file. Name, target and constraints
must be those of the file, and the digest (SHA-256) that of what it asks: a certificate of a problem that
options changed is one of another problem. The layouts that a bound covers must be those that the file leaves
to a search (certificate/subject.py); that the search went through all of them is not checked. What
only a solver answered is not checked here: give the certificate's `questions` to another solver.

Of what the hardware moves by itself (TMA, tensor cores, bulk copies) every element is where the tensor map,
the matrix descriptor or the copy has it (certificate/by_hardware.py).

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
from certificate.hardware import read_devices
from certificate.problem import (
    Broken,
    check_problem,
    plain,
    require,
    require_form,
    say,
    unique,
    without_lanes,
)
from certificate.subject import check_digest
from certificate.tile import check, not_checked


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=unique)


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    try:
        problem, given = (read(path) for path in sys.argv[1:3])
        devices = read_devices(*sys.argv[3:])
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError, Broken) as error:
        print(f"two JSON files are needed, PROBLEM and CERTIFICATE: {plain(error)}", file=sys.stderr)
        return 2
    try:
        if isinstance(given, dict) and given.get("schema") == "layoutopt.block_certificate/1":
            return 0 if check_block(problem, given, devices) else 3
        check_problem(problem)
        known = isinstance(given, dict) and given.get("schema") == "layoutopt.certificate/1"
        require_form(known, "the second file is no certificate")
        asked = without_lanes(problem)
        if why := not_checked(asked, given, devices):
            hint = "; `layoutopt problems --expanded` writes them out" if "without an index" in why else ""
            say(f"NOT CHECKED: {why}{hint}")
            return 3
        return 0 if all([check(asked, given, devices), check_digest(problem, given)]) else 3
    except Broken as error:
        print(plain(error), file=sys.stderr)
        return 2
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        return require(False, f"the certificate is not of this problem, or malformed: {error!r}")


if __name__ == "__main__":
    sys.exit(main())
