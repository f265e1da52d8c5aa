"""Every script starts, and names files that are there."""

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

FILES = sorted((ROOT / "scripts").rglob("*.py"))
# What others import starts with them.
IMPORTED = {name for path in FILES for name in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.M)}
SCRIPTS = [path for path in FILES if path.stem not in IMPORTED]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_start(path, tmp_path):
    done = subprocess.run(
        [sys.executable, path, "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    for named in re.findall(r"scripts/[\w./]+\.(?:py|cu)", path.read_text()):
        assert (ROOT / named).exists(), named


def test_scripts_lie_in_rooms():
    assert not list((ROOT / "scripts").glob("*.*"))
