"""Kernels of the collection and public ones against the counters that an H200 gave.

`scripts/measure/record_kernels.py` and `record_public.py` recorded them.
"""

import json
from functools import cache

import kernel_launches
import msgspec
import pytest
import record_public
from conftest import ROOT

from layoutopt.hardware.devices import device
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.program import Parameter
from layoutopt.kernels.question.summary import summary
from layoutopt.kernels.read import sass

KERNELS = ROOT / "tests/data/kernels"
LAUNCHES = {launch.name: launch for launch in kernel_launches.launches(KERNELS)}
RECORDS = {
    record["name"]: record["launches"]
    for record in json.loads((KERNELS / "counters.json").read_text())["kernels"]
    if "launches" in record
}
# Known only from what the text does not hold (constant tables), or from contents of buffers.
NOT_CERTAIN = {"constant_table", *(name for name, launch in LAUNCHES.items() if launch.data_dependent)}
COUNTERS = {ours: theirs.removesuffix(".sum") for ours, theirs in record_public.COUNTERS.items()}
COUNTERS |= {
    f"executed_{part}": f"smsp__inst_executed_op_shared_{part}" for part in record_public.on_gpu.PARTS
}


def parameters(launch):
    """Offsets and values of the arguments, laid out as C does."""
    found, end = [], 0
    for kind, value, *_ in launch.args:
        fields = value if kind == "struct" else [(kind, "pointer" if kind.endswith("*") else value)]
        for one, number, *_ in fields:
            size = 8 if one.endswith("*") else kernel_launches.TYPES[one].itemsize
            end = -(-end // size) * size
            found.append((Parameter(end, size), "pointer" if one.endswith("*") else number))
            end += size
    return found


def report(name, target="sm_90"):
    return summary(evaluation(name, target))


@cache
def evaluation(name, target="sm_90"):
    launch = LAUNCHES[name]
    programs = sass.from_text((KERNELS / f"{name}.{target}.sass").read_text())
    (program,) = [one for one in programs if one.name == launch.symbol]
    given = parameters(launch)
    program = msgspec.structs.replace(program, parameters=tuple(parameter for parameter, _ in given))
    arguments = {str(k): value for k, (_, value) in enumerate(given)}
    call = Launch(block=launch.block, grid=launch.grid, arguments=arguments, shared_bytes=launch.shared)
    return evaluate(program, call, device(target))


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_totals_are_the_profilers(name):
    found = report(name)
    assert found.certain or name in NOT_CERTAIN, found.unknown
    if found.certain:
        for ours, theirs in COUNTERS.items():
            seen = {launch[theirs] for launch in RECORDS[name]}
            if len(seen) == 1:  # what differs between the profiler's own repetitions cannot be demanded
                assert {found.totals[ours]} == seen, ours


def test_most_kernels_are_certain():
    assert len(set(RECORDS) - NOT_CERTAIN) >= 40


# Code for sm_100 and later loads less often in this one.
FEWER_LOADS = {("scan_tree", "sm_100"), ("scan_tree", "sm_120")}
OTHERS = {tuple(path.name.split(".")[:2]) for path in KERNELS.glob("*.sass")} - {
    (name, "sm_90") for name in LAUNCHES
}


@pytest.mark.parametrize(("name", "target"), sorted(OTHERS))
def test_other_architectures_cost_the_same(name, target):
    """The code differs, the addresses do not."""
    found, expected = report(name, target), report(name)
    assert found.certain
    for part in ("st",) if (name, target) in FEWER_LOADS else ("ld", "st"):
        assert found.totals[f"wavefronts_{part}"] == expected.totals[f"wavefronts_{part}"]


def test_counters_are_of_the_texts_kept():
    for row in json.loads((KERNELS / "counters.json").read_text())["kernels"]:
        assert row["code"] == (KERNELS / f"{row['name']}.sm_90.sass").read_text()[8:24], row["name"]


ROWS = json.loads(record_public.RECORD.read_text())["kernels"]
MEASURED = [row for row in ROWS if "counters" in row and "predicted" in row]


def test_what_is_certain_is_exact():
    for row in MEASURED:
        for found in (row["predicted"], row["with_data"]):
            if found.get("certain"):
                assert record_public.exact(row, found), row["name"]


def test_enough_was_tried():
    assert len(MEASURED) >= 340
    certain = [row for row in MEASURED if row["predicted"].get("certain")]
    conflicts = [
        r for r in certain if any(r["counters"][f"bank_conflicts_{part}"] for part in ("ld", "st", "atom"))
    ]
    assert len(certain) >= 310
    assert len(conflicts) >= 100


def test_what_depends_on_no_data_is_certain():
    """The record says which addresses, lanes or branches come from data."""
    for row in MEASURED:
        if not row.get("data_dependent"):
            assert row["predicted"].get("certain"), row["name"]


def test_the_page_shows_the_record():
    text = record_public.DOCS.read_text().split(record_public.MARK)[1]
    assert text.strip().splitlines() == record_public.summary_lines(ROWS)
    assert record_public.PAGE.read_text() == record_public.page(ROWS)
