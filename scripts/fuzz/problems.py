"""Random problems through the commands, against a plain evaluation that shares nothing with the package.

    python scripts/fuzz/problems.py --seed 7 --count 1000

Every answer of `solve` is evaluated lane by lane: places, alignment, bytes, wavefronts, sums, formula,
constraints. Bounds that are claimed for every layout are attacked by placements of the elements at random,
those of tiny problems by all placements. Samples go through `check`, `compare`, `explain`, `show`, `emit`
(compiled), certificates, a second run and a second worker, and are asked again as arrays, template, one of
several and sweep. Exit code 1: there are findings, saved and shrunk.
"""

from __future__ import annotations

import copy
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from campaign import Case, parser, run_cases
from commands import COMMANDS, certified
from generate import FAMILIES, Maker, random_target, random_tile_set, toy_devices
from oracle.problem_file import device_of, hardware
from process import import_everything
from session import Session
from spellings import SPELLINGS
from tile_sets import tile_set

CERTIFIED = 0.3  # of the answers for several tiles


def make(rng: random.Random) -> Case:
    """A case: a problem, its time limit, what else is asked."""
    case: Case = {
        "limit": rng.choice([0.05, 0.1, 0.1, 0.1, 0.2, 0.4]),
        "seed": rng.randrange(10**9),
        "options": [],
        "also": [],
    }
    kind = rng.random()
    if kind < 0.04:
        return case | {"problem": random_tile_set(rng)}
    if kind < 0.4:
        case["devices"] = toy_devices(rng)
        target = rng.choice(case["devices"]["devices"])["name"]
        case["problem"] = Maker(rng, target, device_of(case["devices"], target), toy=True).problem()
    else:
        target = random_target(rng)
        case["problem"] = Maker(rng, target, hardware(target)).problem()
    case["also"] = sorted(e for e in COMMANDS if rng.random() < 0.06)
    case["also"] += sorted(e for e in SPELLINGS if rng.random() < (0.005 if e == "sweep" else 0.03))
    if rng.random() < 0.15:
        case["options"] = options(rng, case["problem"])
    return case


def options(rng: random.Random, problem: dict) -> list[str]:
    """Constraints on the command line; families are some of those that the file allows."""
    allowed = problem.get("layout", {}).get("families", FAMILIES)
    families = ",".join(f for f in allowed if rng.random() < 0.4) or allowed[0]
    return rng.choice(
        [
            ["--conflict-free"],
            ["--conflict-free"],
            ["--families", families],
            ["--families", families, "--conflict-free"],
            ["--max-bytes", str(rng.choice([64, 300, 1024, 4096]))],
            ["--minimise", rng.choice(["bytes", "instructions", "excess"])],
            ["--alignment", str(rng.choice([4, 16, 128]))],
            ["--pitch-multiple", str(rng.choice([4, 16, 32]))],
        ]
    )


def check(case: Case, folder: Path, told: Counter) -> None:
    """Solve it, verify the answer, and ask the other commands."""
    session = Session(case, folder, told)
    answer = session.solve()
    if answer is None:
        return
    if "tiles" in case["problem"]:
        tile_set(session, answer)
        if session.rng.random() < CERTIFIED:
            certified(session)
        return
    verified = session.verified(answer)
    for extra in case["also"] if verified else ():
        (COMMANDS | SPELLINGS)[extra](session, answer, *verified)


def smaller(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""
    for key in ("also",):
        for k in range(len(case[key])):
            yield {**case, key: case[key][:k] + case[key][k + 1 :]}
    if case["options"]:
        yield {**case, "options": []}
    problem = case["problem"]
    for k in range(len(problem["accesses"])):
        if len(problem["accesses"]) > 1:
            yield changed(case, lambda p, k=k: p["accesses"].pop(k))
    for key in ("layout", "overlay"):
        if key in problem:
            yield changed(case, lambda p, key=key: p.pop(key))
    for key in problem.get("layout", {}):
        yield changed(case, lambda p, key=key: p["layout"].pop(key))
    for k, access in enumerate(problem["accesses"]):
        for key in ("where", "weight"):
            if key in access:
                yield changed(case, lambda p, k=k, key=key: p["accesses"][k].pop(key))
        for name in access.get("for", {}):
            yield changed(case, lambda p, k=k, name=name: drop_loop(p["accesses"][k], name))
        for d, text in enumerate(access["index"]):
            if text not in ("0", 0):
                yield changed(case, lambda p, k=k, d=d: p["accesses"][k]["index"].__setitem__(d, "0"))
    for threads in (1, 2, 4, 8, 16, 32, problem["threads"] // 2):
        if 0 < threads < problem["threads"]:
            yield changed(case, lambda p, threads=threads: p.__setitem__("threads", threads))


def changed(case: Case, change: Callable[[dict], object]) -> Case:
    copied = copy.deepcopy(case)
    change(copied["problem"])
    return copied


def drop_loop(access: dict, name: str) -> None:
    del access["for"][name]
    if not access["for"]:
        del access["for"]
    access["index"] = [re.sub(rf"\b{name}\b", "0", str(t)) for t in access["index"]]
    if "weight" in access:
        access["weight"] = re.sub(rf"\b{name}\b", "0", str(access["weight"]))
        access["weight"] = float(eval(access["weight"], {"__builtins__": {}}))


def main() -> None:
    arguments = parser(__doc__, 1000).parse_args()
    import_everything()
    sys.exit(run_cases(arguments, make, check, smaller))


if __name__ == "__main__":
    main()
