"""The source distribution: its tests run from the unpacked folder."""

import re

from conftest import ROOT


def test_it_holds_every_folder_and_file_that_tests_read():
    manifest = (ROOT / "MANIFEST.in").read_text()
    taken = set(re.findall(r"^graft (\S+)", manifest, re.M))
    taken |= {name for line in re.findall(r"^include (.+)", manifest, re.M) for name in line.split()}
    # What setuptools takes unasked: the package with its data, and what describes the project.
    taken |= {"layoutopt", "README.md", "LICENSE", "pyproject.toml", "setup.py", "MANIFEST.in"}
    sources = "".join(path.read_text() for path in (ROOT / "tests").glob("*.py"))
    read = {name.split("/")[0] for name in re.findall(r'ROOT / "([\w./-]+)"', sources)}
    assert read - taken <= {".git"}
    assert {"tests", "scripts", "docs", "problems"} <= taken
