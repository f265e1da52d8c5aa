"""Tiles that the hardware reads and writes by itself."""

import json

from conftest import ROOT

from layoutopt.files.file import from_data
from layoutopt.search.solve import solve

FILL = {"name": "fill", "op": "tma.load"}

ROWS = {"name": "rows", "op": "load", "copy": {"bytes": 16}}

# One row a thread, 16 bytes at a time: conflicts in every mode but where chunks change places.
OWN_ROW = {"name": "own row", "op": "load", "bytes": 16, "index": ["tid % 64", "8*i"], "for": {"i": 8}}

# What an H200 did with the code that is emitted (scripts/measure/validate_hopper.py).
MEASURED = json.loads((ROOT / "tests/data/h200_hopper.json").read_text())


def data(*accesses, shape=(128, 64), element="f16", **more):
    return {
        "name": "block",
        "target": "sm_90",
        "threads": 128,
        "tile": {"shape": list(shape), "element": element},
        "accesses": list(accesses),
        **more,
    }


def solved(*accesses, **more):
    problem = from_data(data(*accesses, **more))
    return problem, solve(problem)


def of(result, name):
    (found,) = [access.descriptor for access in result.accesses if access.name == name]
    return found
