"""Random problems through the commands, against a plain evaluation that shares nothing with the package.

    python scripts/fuzz/problems.py --seed 7 --count 1000

Every answer of `solve` is evaluated lane by lane: places, alignment, bytes, wavefronts, sums, formula,
constraints. Bounds that are claimed for every layout are attacked by placements of the elements at random,
those of tiny problems by all placements. Samples go through `check`, `compare`, `explain`, `show`, `emit`
(compiled), certificates, a second run and a second worker, and are asked again as arrays, template, one of
several and sweep. Exit code 1: there are findings, saved and shrunk.
"""

import random
import sys
from collections import Counter
from pathlib import Path

from campaign import Case, run_campaign
from commands import COMMANDS, certificate, tile_set
from generate import FAMILIES, random_problem, random_tile_set
from session import Session

CERTIFIED = 0.3  # of the answers for several tiles
NAMES = {command.__name__: command for command in COMMANDS}


def make(rng: random.Random) -> Case:
    """A case: a problem, its time limit, what else is asked."""
    limit = rng.choice([0.05, 0.1, 0.1, 0.1, 0.2, 0.4])
    case: Case = {"limit": limit, "seed": rng.randrange(10**9), "options": [], "also": []}
    if rng.random() < 0.04:
        return case | {"problem": random_tile_set(rng)}
    problem, devices = random_problem(rng, toy=0.375)
    case |= {"problem": problem} | ({"devices": devices} if devices else {})
    case["also"] = sorted(name for name, command in NAMES.items() if rng.random() < COMMANDS[command])
    if rng.random() < 0.15:
        case["options"] = constraints(rng, problem)
    return case


def constraints(rng: random.Random, problem: dict) -> list[str]:
    """Constraints on the command line; families are some of those that the file allows."""
    allowed = problem.get("layout", {}).get("families", FAMILIES)
    families = ",".join(f for f in allowed if rng.random() < 0.4) or allowed[0]
    return rng.choice([
        *(["--conflict-free"], ["--conflict-free"], ["--families", families]),
        ["--families", families, "--conflict-free"],
        ["--max-bytes", str(rng.choice([64, 300, 1024, 4096]))],
        ["--minimise", rng.choice(["bytes", "instructions", "excess"])],
        ["--alignment", str(rng.choice([4, 16, 128]))],
        ["--pitch-multiple", str(rng.choice([4, 16, 32]))],
    ])  # fmt: skip


def check(case: Case, folder: Path, told: Counter) -> None:
    """Solve it, verify the answer, and ask the other commands."""
    session = Session(case, folder, told)
    if not session.solve():
        return
    if "tiles" in case["problem"]:
        tile_set(session)
        if session.rng.random() < CERTIFIED:
            certificate(session)
    elif session.verified():
        for name in case.get("also", ()):
            NAMES[name](session)


if __name__ == "__main__":
    sys.exit(run_campaign(__doc__, make, check))
