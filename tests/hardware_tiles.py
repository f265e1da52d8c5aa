"""Tiles that the hardware reads and writes by itself."""

import json

from conftest import ROOT
from written import access_from, one_tile

from layoutopt import solve
from layoutopt.files.file import from_data

FILL = access_from("fill: tma.load")

ROWS = {"name": "rows", "op": "load", "copy": {"bytes": 16}}

# One row a thread, 16 bytes at a time: conflicts in every mode but where chunks change places.
OWN_ROW = access_from("own row: load 16 [tid % 64, 8*i]; i<8")

# What an H200 did with the code that is emitted (scripts/measure/validate_hopper.py).
MEASURED = json.loads((ROOT / "tests/data/h200_hopper.json").read_text())


def data(*accesses, shape=(128, 64), element="f16", **more):
    return {**one_tile("block", list(shape), element, 128, list(accesses), target="sm_90"), **more}


def solved(*accesses, **more):
    problem = from_data(data(*accesses, **more))
    return problem, solve(problem, time_limit=None)


def of(result, name):
    (found,) = [access.descriptor for access in result.accesses if access.name == name]
    return found
