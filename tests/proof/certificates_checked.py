"""Certificates as the script that checks them takes them."""

import contextlib
import copy
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

from conftest import ROOT
from oracle import toy
from written import lines_of

from layoutopt.files.file import from_data
from layoutopt.hardware.devices import device
from layoutopt.search.block import solve
from layoutopt.search.certify import certificate

sys.path.insert(0, str(ROOT / "scripts" / "checkers"))
import check_certificate
from certificate.subject import digest

SCRIPT = ROOT / "scripts" / "checkers" / "check_certificate.py"


def toy_of(problem):
    """Lanes and banks of the toy device that a problem names, or nothing."""
    found = re.fullmatch(r"toy_(\d+)_(\d+)", problem.get("target", "")) if isinstance(problem, dict) else None
    return found and tuple(map(int, found.groups()))


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


def checked(problem, given, forged=True):
    """Exit code and output of the script, which is told of the toy device that a problem names.

    Either may be the text of a file. `forged`: the digest is made that of the problem.
    """
    contents = [problem, as_forged(problem, given) if forged else given]
    if lanes_and_banks := toy_of(problem):
        contents.append(toy.device_file(*lanes_and_banks))
    said = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        paths = [Path(folder, f"{k}.json") for k in range(len(contents))]
        for path, data in zip(paths, contents, strict=True):
            path.write_text(data if isinstance(data, str) else json.dumps(data))
        with mock.patch.object(sys, "argv", [SCRIPT.name, *map(str, paths)]):
            try:
                code = check_certificate.main()
            except SystemExit as wrong:
                code = 1 if isinstance(wrong.code, str) else wrong.code
                said.write(f"{wrong.code}\n")
    return code, said.getvalue()


def holds(problem, given, said="", code=0, **options):
    """The script says so and ends with the code; all that it prints."""
    found, text = checked(problem, given, **options)
    assert (found, said in text, "Traceback" in text) == (code, True, False), text
    return text


def certified(data, **options):
    """The certificate of what is found for a problem on the GPU that it names, as JSON."""
    lanes_and_banks = toy_of(data)
    gpu = toy.toy_device(*lanes_and_banks) if lanes_and_banks else device(data.get("target", "sm_90"))
    found = solve(from_data(data), target=gpu, **options)
    return json.loads(json.dumps(certificate(from_data(data), gpu, found)))


def plain_transpose(target="toy_8_8", **layout):
    return {**lines_of(8, lines=("rows", "columns"), **layout), "target": target}


def lines_of_squares(n=8):
    """Rows, columns and wrapped diagonals, which no layout serves."""
    return {**lines_of(n), "target": f"toy_{n}_{n}"}
