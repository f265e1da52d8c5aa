"""Random cooperative fills and drains whose lanes are free, against every permutation of bits.

    python scripts/fuzz/free_lanes.py --count 100 --seed 1

A tile of powers of two is filled (or drained) by free lanes and read by fixed ones. Where `solve` leaves
conflicts, every assignment that permutes bits of thread and iteration numbers, and keeps the segments of
global memory, is solved with its lanes fixed: none may be free of conflicts. What the answer's index covers
is checked in plain loops.
"""

import itertools
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from campaign import Case, run_campaign
from oracle.answers import require

from layoutopt import problem, solve
from layoutopt.problems.answer import Result
from layoutopt.problems.types import Problem

PERMUTATIONS_S = 60.0  # to look at those of one problem
SIZES = {1: "u8", 2: "f16", 4: "f32", 8: "f64", 16: "b128"}


def random_problem(seed: int) -> dict[str, Any]:
    """A problem as data: one access with free lanes, one or two with fixed lanes."""
    rng = random.Random(seed)
    size = rng.choice(list(SIZES))
    rows, columns = 1 << rng.randint(2, 6), 1 << rng.randint(3, 7)
    threads = rng.choice([32, 64, 128, 256])
    width = max(size, rng.choice([4, 8, 16]))
    piece = width // size
    columns = max(columns, piece)
    while rows * columns < threads * piece:
        rows *= 2
    order = rng.choice(["row", "column"])
    line = (columns if order == "row" else rows) * size
    contiguous = min(rng.choice([16, 32, 64, 128]), line)
    side = {"contiguous": contiguous, "order": order}
    free = {
        "name": "free", "op": rng.choice(["store", "load"]), "bytes": width, "lanes": "free",
        "global": side if contiguous >= (width if order == "row" else size) else {"order": order},
    }  # fmt: skip
    return {
        "name": f"fill {seed}", "tile": {"shape": [rows, columns], "element": SIZES[size]},
        "threads": threads, "accesses": [free, *_readers(rng, rows, columns, size)],
    }  # fmt: skip


def _readers(rng: random.Random, rows: int, columns: int, size: int) -> list[dict[str, Any]]:
    """Accesses by one warp: columns, rows, or squares of the tile."""
    found: list[dict[str, Any]] = []
    for name in ("first", "second")[: rng.choice([1, 1, 2])]:
        tall = min(rows, rng.choice([4, 8, 16, 32]))
        wide = max(1, min(32 // tall, columns))
        index = [f"lane % {tall} + {tall}*r", f"lane // {tall} % {wide} + {wide}*c"]
        loops = {"r": rows // tall, "c": columns // wide}
        found.append({"name": name, "op": "load", "bytes": size, "index": index, "for": loops})
        found[-1]["where"] = f"tid < {tall * wide}"
    return found


def uncovered(data: dict[str, Any], asked: Problem, result: Result) -> str | None:
    """What is wrong with the index of the first access, by plain loops; None where nothing is."""
    report = result.accesses[0]
    assert report.index is not None
    code = [compile(text, "index", "eval") for text in report.index]
    where = compile(report.where, "where", "eval") if report.where else None
    size = asked.tile.element_bytes
    piece, side = max(1, data["accesses"][0]["bytes"] // size), data["accesses"][0]["global"]
    fast = 1 if side["order"] == "row" else 0
    seen: set[tuple[int, int]] = set()
    unit = piece if fast == 1 else 1
    team = min(max(1, side.get("contiguous", 0) // (unit * size)), asked.threads)
    loops = report.loops or {}
    for values in itertools.product(*map(range, loops.values())):
        places: dict[int, tuple[int, ...]] = {}
        for tid in range(asked.threads):
            names = {"tid": tid, **dict(zip(loops, values, strict=True))}
            if where is None or eval(where, {}, names):
                places[tid] = tuple(eval(c, {}, names) for c in code)
        for place in places.values():
            for k in range(piece):
                one = (place[0], place[1] + k)
                if one in seen:
                    return f"{one} is met twice"
                seen.add(one)
        for begin in range(0, asked.threads, max(team, 32)):
            warp = [places[t] for t in range(begin, begin + max(team, 32)) if t in places]
            warp.sort(key=lambda p: (p[1 - fast], p[fast]))
            for first in range(0, len(warp), team):
                group = warp[first : first + team]
                along = [p[fast] for p in group]
                if len({p[1 - fast] for p in group}) > 1 or along[0] % (team * unit):
                    return f"threads {begin}.. do not lie in whole segments"
                if along != list(range(along[0], along[0] + team * unit, unit)):
                    return f"threads {begin}.. do not cover a segment"
    return None if len(seen) == asked.tile.elements else "something is left out"


def best_permutation(data: dict[str, Any], seconds: float) -> int | None:
    """The least excess over all permutations of bits that keep segments, each solved with fixed lanes."""
    rows, columns = data["tile"]["shape"]
    free, size = data["accesses"][0], {v: k for k, v in SIZES.items()}[data["tile"]["element"]]
    piece, side = max(1, free["bytes"] // size), free["global"]
    bits = {0: rows.bit_length() - 1, 1: (columns // piece).bit_length() - 1}
    fast = 1 if side["order"] == "row" else 0
    unit = piece * size if fast == 1 else size
    kept = max(1, side.get("contiguous", 0) // unit).bit_length() - 1
    segment = [(fast, b) for b in range(kept)]
    others = [(d, b) for d in (0, 1) for b in range(bits[d]) if (d, b) not in segment]
    lanes = min(5, data["threads"].bit_length() - 1)
    phase = min(lanes, 7 - (max(4, free["bytes"]).bit_length() - 1))  # of 128 bytes
    best: int | None = None
    end = time.monotonic() + seconds
    for first in itertools.combinations(segment, min(phase, kept)):
        for chosen in itertools.combinations(others, max(0, phase - kept)):
            start = [*first, *(s for s in segment if s not in first), *chosen]
            rest = [o for o in others if o not in chosen]
            fixed = _fixed(data, [*start, *rest], piece)
            result = solve(problem(fixed), time_limit=5)
            if result.excess is not None and (best is None or result.excess < best):
                best = int(result.excess)
            if best == 0 or time.monotonic() > end:
                return best
    return best


def _fixed(data: dict[str, Any], order: list[tuple[int, int]], piece: int) -> dict[str, Any]:
    """The problem with bit k of the piece number being bit `order[k]` of the coordinates."""
    threads, terms = data["threads"], {0: ["0"], 1: ["0"]}
    for k, (dim, bit) in enumerate(order):
        terms[dim].append(f"(tid + {threads}*i) // {1 << k} % 2 * {(1 << bit) * (piece if dim else 1)}")
    free = {key: value for key, value in data["accesses"][0].items() if key not in ("lanes", "global")}
    free["index"] = [" + ".join(terms[dim]) for dim in (0, 1)]
    free["for"] = {"i": max(1, (1 << len(order)) // threads)}
    return {**data, "accesses": [free, *data["accesses"][1:]]}


def make(rng: random.Random) -> Case:
    return {"problem": random_problem(rng.randrange(10**6))}


def check(case: Case, folder: Path, told: Counter) -> None:
    """An answer covers the tile, and no permutation of bits has less excess."""
    data = case["problem"]
    asked = problem(data)
    result = solve(asked, time_limit=10)
    told[f"{result.status}, {'with' if result.excess else 'without'} conflicts"] += 1
    require(result.layout is not None, "no layout", result.reason)
    fault = uncovered(data, asked, result)
    require(fault is None, "an index does not cover the tile", fault)
    known = best_permutation(data, PERMUTATIONS_S) if result.excess else None
    require(known is None or known >= result.excess, "a permutation is better", (known, result.excess))


if __name__ == "__main__":
    sys.exit(run_campaign(__doc__, make, check))
