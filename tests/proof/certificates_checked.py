"""Certificates as the script that checks them takes them."""

import copy
import json
import re
import sys

from command import python
from conftest import ROOT
from oracle import toy
from written import reads, writes

from layoutopt.files.file import from_data
from layoutopt.search.certify import certificate
from layoutopt.search.solve import solve

sys.path.insert(0, str(ROOT / "scripts" / "checkers"))
from certificate.subject import digest

SCRIPT = ROOT / "scripts" / "checkers" / "check_certificate.py"


def as_forged(problem, given):
    """The certificate with the digest of the problem as it is, which a forger can compute as anybody can."""
    given = copy.deepcopy(given)
    try:
        own = digest(problem)
    except (AttributeError, TypeError, KeyError, ValueError):
        return given
    parts = given.get("tiles") if isinstance(given, dict) else None
    certificates = [part.get("certificate") for part in parts or [] if isinstance(part, dict)]
    for one in (given, *certificates):
        if isinstance(one, dict) and "digest" in one:
            one["digest"] = own
    return given


def checked(problem, given, tmp_path):
    """Exit code and output of the script, which is told of the toy device that a problem names."""
    contents = [problem, as_forged(problem, given)]
    if match := re.fullmatch(r"toy_(\d+)_(\d+)", problem.get("target", "")):
        contents.append(toy.device_file(*map(int, match.groups())))
    paths = [tmp_path / name for name in ("p.json", "c.json", "d.json")][: len(contents)]
    for path, data in zip(paths, contents, strict=True):
        path.write_text(json.dumps(data))
    done = python("-I", SCRIPT, *paths)
    return done.returncode, done.stdout + done.stderr


def certified(data, gpu, tmp_path, **options):
    """Code and output of the script, and the certificate."""
    data["target"] = gpu.name
    problem = from_data(data)
    given = json.loads(json.dumps(certificate(problem, gpu, solve(problem, target=gpu, **options))))
    return *checked(data, given, tmp_path), given


def plain_transpose(**layout):
    accesses = [writes("rows", 4, ["i", "tid"], i=8), reads("columns", 4, ["tid", "i"], i=8)]
    tile = {"shape": [8, 8], "element": "f32"}
    return {"name": "t", "tile": tile, "threads": 8, "accesses": accesses, "layout": layout}
