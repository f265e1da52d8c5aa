"""Short runs of the fuzzers; the long ones are by hand: `python scripts/fuzz/problems.py --count 20000`."""

import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.parametrize(("script", "count"), [("problems.py", 40), ("files.py", 120)])
def test_no_finding(script, count, tmp_path):
    command = [
        sys.executable,
        str(ROOT / "scripts" / "fuzz" / script),
        "--seed",
        "20261121",
        "--count",
        str(count),
        "--slack",
        "30",
    ]
    done = subprocess.run(
        [*command, "--no-shrink", "--save", str(tmp_path / "found")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} cases, 0 findings" in done.stdout
