"""Counts of conflicts against the profiler and plain loops."""

import gzip
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from oracle.banks import instruction
from written import refused_with

from layoutopt.engine.conflicts import CHUNK_INSTRUCTIONS, count_wavefronts
from layoutopt.hardware.devices import (
    BANK_CONFLICTS,
    WAVEFRONTS,
    Device,
    counters,
    device,
    devices,
)
from layoutopt.hardware.operations import Operation, parse_operation

pytestmark = pytest.mark.filterwarnings("ignore::layoutopt.errors.DisputedRuleWarning")

DATA = Path(__file__).parents[1] / "data"
LANES = np.arange(32)
SM_90 = device("sm_90")
LOAD_4, LOAD_16 = Operation("load", 4), Operation("load", 16)


def count(address, operation, gpu=SM_90, active=None):
    """(wavefronts, bank conflicts) of one instruction; addresses in units of the access width."""
    row = np.asarray(address, np.int64).reshape(1, -1) * operation.width_bytes
    mask = np.ones(row.shape, bool) if active is None else np.asarray(active, bool).reshape(1, -1)
    counts = count_wavefronts(row, mask, operation, gpu.rule(operation))
    return int(counts.wavefronts[0]), int(counts.bank_conflicts[0])


@pytest.mark.parametrize(("name", "many"), [("h200_wavefronts", 2082), ("h200_more", 1632)])
def test_equals_the_profiler(name, many):
    groups = defaultdict(list)
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as file:
        for record in map(json.loads, file):
            groups[record.get("ptx", record["op"])].append(record)
    assert sum(map(len, groups.values())) == many
    for op, records in groups.items():
        operation = parse_operation(records[0]["op"], records[0].get("bytes"))
        counts = count_wavefronts(*rows_of(records), operation, SM_90.rule(operation))
        assert counts.wavefronts.tolist() == [r["wavefronts"] for r in records], op
        # Some records of cp.async have no conflict counter.
        engine = counts.bank_conflicts.tolist()
        assert engine == [r.get("bank_conflicts", own) for r, own in zip(records, engine, strict=True)], op


def test_words_four_gigabytes_apart_are_two():
    assert count((LANES % 2) << 30, LOAD_4) == (2, 1)


def test_compare_and_swap_has_no_rule():
    with refused_with("a compare-and-swap takes twice"):
        parse_operation("atom.shared.cas.b32", None)


def counter_splits():
    """Each record, and its (wavefront, conflict) counters: totals and parts that are not zero."""
    data = json.loads((DATA / "h200_counter_split.json").read_text())
    for record in data["records"]:
        sums = {"data_pipe_lsu_wavefronts": {}, "data_bank_conflicts_pipe_lsu": {}}
        for name, value in zip(data["moved"], record["counters"], strict=True):
            what, shared, part = name.removeprefix("l1tex__").removesuffix(".sum").partition("_mem_shared")
            if what in sums and shared and value and not part.startswith("_cmd"):
                sums[what][part.strip("_")] = value
        yield record, *sums.values()


def rows_of(records):
    """Byte addresses and activity."""
    active = [[int(r["active"], 16) >> lane & 1 for lane in range(32)] for r in records]
    return np.array([r["byte_address"] for r in records]), np.array(active, bool)


def test_counters_and_their_parts_of_each_op():
    for record, wavefronts, conflicts in counter_splits():
        op, _, constant = record["op"].partition(" of ")
        operation = Operation("atomic", 4) if constant or ".cas." in op else parse_operation(op, None)
        own = wavefronts[""] - wavefronts.pop("op_misc", 0)
        predicted = counters(SM_90, operation, own, conflicts.get("", 0))
        if record["family"] == "nobody" or operation.kind == "cp.async.cg":
            assert (own, any(predicted.values())) == (0, False)
            continue
        for base, measured in ((WAVEFRONTS, wavefronts), (BANK_CONFLICTS, conflicts)):
            parts = {name: n for name, n in predicted.items() if name.startswith(f"{base}_") and n}
            assert parts == {f"{base}_{part}": n for part, n in measured.items() if part}, record
        if ".cas." not in op:
            counts = count_wavefronts(*rows_of([record]), operation, SM_90.rule(operation))
            assert (counts.wavefronts[0], counts.bank_conflicts[0]) == (own, conflicts.get("", 0)), record


def test_worst_cases_of_cdna3():
    """The published peaks of the bank-conflict counter."""
    lanes = np.arange(64) * 64
    for width, peak in ((4, 62), (8, 60), (16, 56)):
        assert count(lanes, Operation("load", width), device("gfx942"))[1] == peak


def operations(gpu: Device):
    for kind, width in gpu.rules:
        for matrices in (1, 2, 4) if kind.endswith("matrix") else (0,):
            yield Operation(kind, width, matrices)


def random_rows(rng: np.random.Generator, operation: Operation, lanes: int, rows: int):
    """Addresses and masks with equal lanes, pairs that merge, strides, and memory of any size.

    Of wide accesses some are not aligned: the rules still apply, word by word, where a layout tears alignment.
    """
    place = np.arange(lanes)
    unit = rng.integers(0, rng.choice([2, 6, 20, 64, 500, 5000, 1 << 40], (rows, 1)), (rows, lanes))
    stride = rng.integers(0, 70, (rows, 1)) * place + rng.integers(0, 9, (rows, 1)) * (place // 8)
    unit = np.where(rng.random((rows, 1)) < 0.4, stride, unit)
    bit = rng.choice([0, 0, 1, 2], rows)
    unit = np.take_along_axis(unit, place & ~bit[:, None], axis=1)
    broken = rng.random(rows) < 0.1
    unit[broken, rng.integers(lanes)] += 1
    active = rng.random((rows, lanes)) < rng.choice([0, 0.05, 0.5, 0.95, 1, 1, 1], (rows, 1))
    address = unit * operation.width_bytes
    if not operation.matrices:
        torn = (rng.random((rows, 1)) < 0.1) & (operation.width_bytes > 4)
        address = np.where(torn, 4 * unit, address)
        address = np.where(active, address, rng.choice([-1, 0, 3, 1 << 50], (rows, lanes)))
    return address, active


@pytest.mark.parametrize("gpu", devices(), ids=lambda gpu: gpu.name)
def test_agrees_with_plain_loops(gpu):
    rng = np.random.default_rng(20240601)
    wanted = 110_000 // len(devices())
    every = list(operations(gpu))
    phases = 0
    for operation in every:
        per_row = len(gpu.rule(operation).phases)
        rows = -(-wanted // len(every) // per_row)
        phases += rows * per_row
        address, active = random_rows(rng, operation, gpu.lanes, rows)
        counts = count_wavefronts(address, active, operation, gpu.rule(operation))
        found = zip(counts.wavefronts.tolist(), counts.ideal.tolist(), counts.phases.tolist(), strict=True)
        for row, (where, mask, got) in enumerate(zip(address.tolist(), active.tolist(), found, strict=True)):
            assert got == instruction(where, mask, operation, gpu), (operation, row)
    assert phases >= wanted


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_do_not_depend_on_their_neighbours(order):
    rng = np.random.default_rng(6)
    rows = CHUNK_INSTRUCTIONS + 17
    address = np.asarray(rng.integers(0, 4096, (rows, 32)) * 4, order=order)
    active = np.asarray(rng.random((rows, 32)) < 0.9, order=order)
    counts = count_wavefronts(address, active, LOAD_4, SM_90.rule(LOAD_4))
    for row in (0, 1, CHUNK_INSTRUCTIONS - 1, CHUNK_INSTRUCTIONS, rows - 1):
        alone = count_wavefronts(address[row : row + 1], active[row : row + 1], LOAD_4, SM_90.rule(LOAD_4))
        assert alone.wavefronts[0] == counts.wavefronts[row]


def test_nothing_to_count():
    counts = count_wavefronts(
        np.zeros((0, 32), np.int64), np.zeros((0, 32), bool), LOAD_16, SM_90.rule(LOAD_16)
    )
    assert len(counts.wavefronts) == len(counts.bank_conflicts) == 0


def test_wrong_number_of_lanes():
    with pytest.raises(ValueError, match=r"expected shape \(instructions, 32\), got \(1, 31\)"):
        count_wavefronts(np.zeros((1, 31), np.int64), np.ones((1, 31), bool), LOAD_4, SM_90.rule(LOAD_4))
