"""Markers that skip what the machine does not have, and the catalogue as parameters."""

import functools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from layoutopt import load, solve
from layoutopt.hardware.machine import find_tool

ROOT = Path(__file__).parent.parent
TILE_SETS = sorted((ROOT / "problems" / "tile_sets").glob("*.json"))
# Fuzzers, checkers and others are modules that tests use, too.
sys.path += [str(ROOT / "scripts" / folder) for folder in ("checkers", "docs", "fuzz", "measure")]
SOLVE_LIMIT = solve.__kwdefaults__["time_limit"]
PROBLEMS = sorted(set((ROOT / "problems").rglob("*/*.json")) - set(TILE_SETS))


# Where the processes of one test run keep the answers of the catalogue, so that each is solved once.
_ANSWERS = "LAYOUTOPT_TEST_ANSWERS"


def pytest_configure(config):
    """Tests call nvcc by its name, wherever it is; and programs hear signals that a background job would not."""
    solve.__kwdefaults__["time_limit"] = None  # no test waits for a quiet machine
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    nvcc = find_tool("nvcc")
    if nvcc is not None and shutil.which("nvcc") is None:
        os.environ["PATH"] += os.pathsep + str(Path(nvcc).parent)
    if not hasattr(config, "workerinput"):
        os.environ[_ANSWERS] = tempfile.mkdtemp(prefix="layoutopt-answers-")
        os.environ["LAYOUTOPT_CACHE"] = os.environ[_ANSWERS]


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(_ANSWERS))


@functools.cache
def answer_of(path):
    """What `solve` finds for a problem of the catalogue."""
    kept = Path(os.environ[_ANSWERS]) / problem_id(path).replace("/", "-")
    if not kept.exists():
        new = kept.with_name(f"{kept.name}.{os.getpid()}")
        new.write_bytes(pickle.dumps(solve(load(path))))
        new.replace(kept)
    return pickle.loads(kept.read_bytes())


def pytest_collection_modifyitems(items):
    # Fuzzers and pages, which take longest, come first, so that the processes of a run end together.
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)
    missing = [tool for tool in ("nvcc", "nvdisasm") if find_tool(tool) is None]
    smi = shutil.which("nvidia-smi")
    gpu = smi is not None and subprocess.run([smi, "-L"], capture_output=True, check=False).returncode == 0
    for item in items:
        if "nvcc" in item.keywords and missing:
            reason = f"{missing[0]} is not on this machine (pip install -e '.[cuda]' brings it)"
            item.add_marker(pytest.mark.skip(reason=reason))
        if "gpu" in item.keywords and not gpu:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


def problem_id(path):
    return path.relative_to(ROOT / "problems").with_suffix("").as_posix()
