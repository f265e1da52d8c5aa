"""The kernels of tests/data/kernels: their launches, texts and the profiler's counters belong together."""

import json
import re
import sys

import numpy as np
import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "measure"))
import kernel_launches

LAUNCHES = kernel_launches.launches()
COUNTERS = kernel_launches.KERNELS / "counters.json"


def test_there_are_enough():
    assert len(LAUNCHES) >= 40


@pytest.mark.parametrize("kernel", LAUNCHES, ids=lambda kernel: kernel.name)
def test_a_launch_fits_its_source(kernel):
    text = kernel.source.read_text()
    assert re.search(rf"__global__ void {re.escape(kernel.entry.split('<')[0])}\(", text)
    assert np.prod(kernel.block) <= 1024
    assert ("extern __shared__" in text) == (kernel.shared > 0)
    sass = (kernel.source.parent / f"{kernel.name}.sm_90.sass").read_text()
    assert re.match(r"// code [0-9a-f]{16}\n", sass)
    assert f"Function : {kernel.symbol}\n" in sass


def test_structures_are_packed_as_c_does():
    packed = kernel_launches.pack(
        [["struct", [["u8", 3], ["i64", 36], ["u16", 24], ["f32*", 2]]], ["i32", 5]]
    )
    assert [len(argument.data) for argument in packed] == [32, 4]
    assert packed[0].data[8] == 36
    assert packed[0].buffers[0][0] == 24


@pytest.mark.skipif(not COUNTERS.exists(), reason="not recorded")
def test_counters_are_of_the_texts_kept():
    digests = {
        kernel.name: (kernel.source.parent / f"{kernel.name}.sm_90.sass").read_text()[8:24]
        for kernel in LAUNCHES
    }
    for row in json.loads(COUNTERS.read_text())["kernels"]:
        assert row["code"] == digests[row["name"]], row["name"]
