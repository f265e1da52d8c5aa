"""Every script starts and names files that are there; the fuzzers run briefly."""

import re

import pytest
from command import layoutopt
from conftest import ROOT

FILES = sorted((ROOT / "scripts").rglob("*.py"))
# What others import starts with them.
IMPORTED = {name for path in FILES for name in re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.M)}
SCRIPTS = [path for path in FILES if not IMPORTED & {path.stem, path.parent.name}]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_start(path, tmp_path):
    done = layoutopt("--help", script=path, cwd=tmp_path, warn="default")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    for named in re.findall(r"scripts/[\w./]+\.(?:py|cu)", path.read_text()):
        assert (ROOT / named).exists(), named


def test_scripts_lie_in_rooms():
    assert not list((ROOT / "scripts").glob("*.*"))


@pytest.mark.parametrize(
    ("script", "count"), [("problems.py", 30), ("files.py", 60), ("forge_certificates.py", 8)]
)
def test_no_finding(script, count, tmp_path):
    asked = "--seed", 20261121, "--count", count, "--slack", 30, "--no-shrink", "--save", tmp_path / "found"
    done = layoutopt(*asked, script=ROOT / "scripts" / "fuzz" / script, warn="default")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} cases, 0 findings" in done.stdout
