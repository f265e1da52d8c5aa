"""Random tiny problems, as a file has them and as `toy` evaluates them."""

import math
import random

from written import one_tile

from layoutopt.problems import types
from oracle import toy

SHAPES = [
    (2, 4), (4, 4), (3, 4), (2, 6), (4, 2), (3, 3), (2, 2, 2), (16,), (12,), (2, 8), (3, 5), (8, 2), (2, 2, 3),
]  # fmt: skip
# Tables are tried against every placement.
FAMILIES = [family for family in types.FAMILIES if family != "table"]
# Larger tiles, with families few enough to try every layout of them.
LARGER = [(4, 8), (8, 4), (32,), (8, 8), (4, 16), (2, 4, 8), (24,), (5, 8), (6, 6)]
FEW = [
    ["none", "xor"], ["order", "xor"], ["pad"], ["none", "rotate"], ["pad", "rotate"], ["split"], ["order", "pad"],
]  # fmt: skip


def random_case(seed, larger=False, shapes=None):
    """A problem as data, its accesses as `toy` has them, lanes, banks and families."""
    rng = random.Random(seed)
    shape = rng.choice(shapes or (LARGER if larger else SHAPES))
    lanes, banks = (8, 8) if larger else rng.choice([(4, 2), (4, 4), (8, 4)])
    families = rng.sample(FAMILIES, rng.randint(1, 6)) if rng.random() < 0.6 else FAMILIES
    families = sorted(families, key=FAMILIES.index)
    if larger:
        families = rng.choice(FEW)
    if not {"none", "order", "pad", "rotate", "xor"} & set(families):
        families = ["none", *families]
    elements = math.prod(shape)
    described, plain = [], []
    for k in range(rng.randint(1, 3)):
        width = 8 if shape[-1] % 2 == 0 and rng.random() < 0.25 else 4
        kind = "atomic" if width == 4 and rng.random() < 0.1 else rng.choice(["load", "store"])
        step, shift, trips = rng.randint(1, elements), rng.randint(0, elements), rng.randint(1, 2)
        unit = width // 4
        flat = f"({step}*tid + {shift} + {rng.randint(0, 3)}*i) % {elements // unit} * {unit}"
        bound = rng.choice([lanes, lanes, rng.randint(1, lanes)])
        index, divisor = [], 1
        for extent in reversed(shape):
            index.insert(0, f"({flat}) // {divisor} % {extent}")
            divisor *= extent
        weight = rng.choice([1, 1, 2, 3])
        described.append(
            {"name": f"a{k}", "op": kind, "bytes": width, "index": index, "for": {"i": trips},
             "where": f"tid < {bound}", "weight": weight}
        )  # fmt: skip
        places = [[eval(flat, {"tid": t, "i": i}) for t in range(bound)] for i in range(trips)]
        rows = [row + [None] * (lanes - bound) for row in places]
        plain.append(((kind, width, rows), weight))
    problem = one_tile(f"random {seed}", shape, "f32", lanes, described, layout={"families": families})
    return problem, plain, lanes, banks, families


def tiny(seed, most=1 << 16):
    """A random case whose placements can be enumerated, and its elements; None for the others."""
    data, plain, lanes, banks, _ = random_case(seed)
    elements = math.prod(data["tile"]["shape"])
    return (data, plain, lanes, banks, elements) if banks**elements <= most else None


# Pads, orders and masks, in every combination.
PITCHED = [
    ["none"], ["pad"], ["none", "order"], ["none", "xor"], ["order", "pad"], ["pad", "xor"], ["order", "xor"],
    ["order", "pad", "xor"],
]  # fmt: skip


def constrained(seed, shapes=None):
    """A random problem, its constraints, and the best (weighted excess, bytes) of all its layouts."""
    rng = random.Random(seed)
    data, plain, lanes, banks, _ = random_case(seed, shapes=shapes)
    families = rng.choice(PITCHED)
    shape = tuple(data["tile"]["shape"])
    multiple = rng.choice([1, 1, 2, 3, 4])
    layout = {"families": families}
    if multiple > 1:
        layout["pitch_multiple_bytes"] = 4 * multiple
    given = shape, plain, lanes, banks, families, multiple
    best = toy.best(*given)
    if rng.random() < 0.3 and best is not None:
        layout["minimise"] = "bytes"
        best = toy.best_by_bytes(*given)
    elif rng.random() < 0.5 and best is not None:
        most = 4 * (best[1] - rng.choice([0, 1, 2])) - seed % 2
        layout["max_bytes"] = max(1, most)
        best = toy.best(*given, most // 4)
    data["layout"] = layout
    return data, toy.toy_device(lanes, banks), best
