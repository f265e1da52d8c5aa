"""Counts of conflicts against the profiler and plain loops; lanes that choose at run time against all their choices."""

import gzip
import itertools
import json
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from oracle import toy
from oracle.banks import instruction
from written import access_from, problem_of, refused_with

from layoutopt import Status, check, solve
from layoutopt.accesses.lower import with_loops
from layoutopt.accesses.trace import trace
from layoutopt.engine.conflicts import CHUNK_INSTRUCTIONS, count_wavefronts
from layoutopt.engine.run_time_values import choices
from layoutopt.ground.budget import Budget, OutOfTime, spending
from layoutopt.hardware.devices import (
    BANK_CONFLICTS,
    WAVEFRONTS,
    Device,
    PhaseRule,
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
    none = np.zeros((0, 32), np.int64)
    counts = count_wavefronts(none, none.astype(bool), LOAD_16, SM_90.rule(LOAD_16))
    assert len(counts.wavefronts) == len(counts.bank_conflicts) == 0


def test_wrong_number_of_lanes():
    with pytest.raises(ValueError, match=r"expected shape \(instructions, 32\), got \(1, 31\)"):
        count_wavefronts(np.zeros((1, 31), np.int64), np.ones((1, 31), bool), LOAD_4, SM_90.rule(LOAD_4))


def toy_device(lanes, banks):
    """Loads of 1, 4 and 8 bytes, of rows of words and with the merge rule; atomics; split 16-byte stores."""
    base = toy.toy_device(lanes, banks)
    whole, halves = base.rules["load", 4], base.rules["load", 8]
    quarters = PhaseRule(tuple((k, k + 1) for k in range(0, lanes, 2)), banks, 4, merges_pairs=True)
    split = PhaseRule(whole.phases, banks, 4, split_words=True, extra_wavefronts=1)
    pairs = quarters if lanes > 4 else replace(halves, merges_pairs=True)
    rows = replace(whole, row_words=2 * banks)
    rules = {("load", 1): rows, ("load", 8): pairs, ("store", 16): split}
    return replace(base, rules={**base.rules, **rules})


def access_problem(index, op, width, values, *, columns, element="u32", any_is="worst", threads=4, **more):
    access = access_from(f"a: {op} {width} [{index}]; any v<{values}; any_is {any_is}", **more)
    return problem_of(f"{columns}, {threads} threads", access, element=element)


def counted(problem, gpu, table):
    looped = trace(with_loops(problem), gpu)
    choice = choices(problem, looped, gpu)["a"]
    return choice, choice.count(table)


def every_outcome(choice, table, gpu, row=0):
    """Wavefronts of one instruction for every combination of its lanes' values."""
    elements = choice.distinct[choice.number[row]]
    found = []
    for values in itertools.product(range(elements.shape[1]), repeat=gpu.lanes):
        chosen = [int(elements[lane, v]) for lane, v in enumerate(values)]
        active = [e >= 0 for e in chosen]
        address = [int(table[e]) if e >= 0 else 0 for e in chosen]
        found.append(instruction(address, active, choice.lanes.operation, gpu)[0])
    return np.array(found)


KINDS = [("load", 4, 1), ("load", 8, 2), ("atomic", 4, 1), ("load", 1, 1), ("store", 16, 4)]


def placement(rng, units, per, size):
    """Byte offsets under any placement of the units."""
    order = rng.sample(range(2 * units), units)
    return np.array([(order[e // per] * per + e % per) * size for e in range(units * per)], np.int64)


def random_choice(seed, any_is):
    rng = random.Random(seed)
    # The engine merges phases of eight lanes or more.
    op, width, per = rng.choice([k for k in KINDS if k[1] != 8 or any_is == "worst"])
    element, size = ("u8", 1) if width == 1 else ("u32", 4)
    values, units = rng.randint(2, 3), rng.randint(3, 8)
    a, b, c = (rng.randint(0, units) for _ in range(3))
    index = f"({a}*v + {b}*lane + {c}*(v*lane // 2)) % {units} * {per}"
    asked = {"where": rng.choice(["1", "lane < 3", "v + lane != 1"]), "any_is": any_is, "element": element}
    gpu = toy_device(4, rng.choice([4, 8]) if width == 16 else rng.choice([2, 4]))
    problem = access_problem(index, op, width, values, columns=units * per, **asked)
    return problem, gpu, [placement(rng, units, per, size) for _ in range(31)]


@pytest.mark.parametrize("block", range(8))
def test_the_worst_case_is_the_worst_of_all_outcomes_and_no_placement_undercuts_the_ideal(block):
    for seed in range(40 * block, 40 * block + 40):
        problem, gpu, tables = random_choice(seed, "worst")
        choice, counts = counted(problem, gpu, tables[0])
        worst = every_outcome(choice, tables[0], gpu).max()
        if (
            choice.lanes.operation.width_bytes == 8
        ):  # the merge rule may hold for every worst choice of few values
            assert counts.wavefronts[0] >= worst, (seed, problem.accesses)
        else:
            assert counts.wavefronts.tolist() == [worst], (seed, problem.accesses)
        for table in tables if seed % 4 == 0 else tables[:1]:
            assert counts.ideal[0] <= every_outcome(choice, table, gpu).max(), (seed, problem.accesses)


@pytest.mark.parametrize("block", range(4))
def test_the_expectation_is_the_mean_of_all_outcomes(block):
    for seed in range(30 * block, 30 * block + 30):
        problem, gpu, (table, *_) = random_choice(seed, "uniform")
        choice, counts = counted(problem, gpu, table)
        outcomes = every_outcome(choice, table, gpu)
        # A mean of 16,384 samples, unless all lanes choose alike.
        slack = 5 * outcomes.std() / 128 + 1e-9
        assert abs(counts.wavefronts[0] - outcomes.mean()) <= slack, (seed, problem.accesses)
        assert counts.ideal[0] <= counts.wavefronts[0] + 1e-9


@pytest.mark.parametrize(
    ("op", "index", "spread"),
    [
        *itertools.product(["load", "atomic"], ["v"], [[*range(6)], [0, 2, 4, 1, 6, 3], [*range(0, 12, 2)]]),
        ("load", "min(v, 3)", [*range(0, 12, 2)]),  # words of several chances in one bank
    ],
)
def test_the_expectation_is_exact_where_lanes_choose_alike(op, index, spread):
    gpu, table = toy_device(4, 2), 4 * np.array(spread)
    choice, counts = counted(access_problem(index, op, 4, 6, columns=6, any_is="uniform"), gpu, table)
    assert counts.wavefronts[0] == pytest.approx(every_outcome(choice, table, gpu).mean(), rel=1e-12)
    if index == "v":
        even = every_outcome(choice, 4 * np.arange(6), gpu).mean()
        assert counts.ideal[0] == pytest.approx(even, rel=1e-12)


def test_the_samples_of_many_instructions_are_shared_out():
    """Half as many of each, with a seed of its own, and the mean is as good."""
    gpu, table, asked = toy_device(4, 2), 4 * np.arange(256), {"any_is": "uniform", "for": {"i": 256}}
    problem = access_problem("(v + i // 2 * tid) % 256", "load", 4, 4, columns=256, **asked)
    choice, counts = counted(problem, gpu, table)
    assert len(choice.distinct) == 128
    means = np.array([every_outcome(choice, table, gpu, row).mean() for row in range(0, 256, 16)])
    assert np.abs(counts.wavefronts[::16] - means).max() < 0.06
    assert abs((counts.wavefronts[::16] - means).mean()) < 0.015


def test_a_time_limit_ends_the_counting_of_choices():
    problem = access_problem("(v + i) % 64", "load", 4, 4, columns=64, **{"for": {"i": 64}})
    gpu = device("sm_90")
    looped = trace(with_loops(problem), gpu)
    with pytest.raises(OutOfTime), spending(Budget(0)):
        choices(problem, looped, gpu)
    choice = choices(problem, looped, gpu)["a"]
    with pytest.raises(OutOfTime), spending(Budget(0)):
        choice.count(4 * np.arange(64))


def test_too_many_different_instructions_are_refused():
    problem = access_problem("(v + i) % 20000", "load", 4, 2, columns=20000, **{"for": {"i": 20000}})
    gpu = toy_device(4, 2)
    with refused_with("accesses[0].any: 20,000 instructions choose"):
        choices(problem, trace(with_loops(problem), gpu), gpu)


def histogram(any_is="worst"):
    return problem_of(f"""2x256 u32, 64 threads
        count: reduce 4 [warp, bin]; any bin<256; any_is {any_is}
        merge: load 4 [i, tid + 64*j]; i<2, j<4""")


def test_a_histogram_of_256_bins_is_at_least_eight_ways_and_reaches_it():
    result = solve(histogram())
    assert (result.status, result.excess, result.bytes) == (Status.OPTIMAL, 0, 2048)
    count, merge = result.accesses
    assert (count.wavefronts, count.ideal, count.bank_conflicts, count.any_is) == (16, 16, 14, "worst")
    assert (merge.wavefronts, merge.any_is) == (16, None)
    assert (result.proof.excess.lower_bound, result.proof.excess.scope) == (0, "every layout")
    # Every second word, in half of the banks: 16 bins in each.
    assert check(histogram(), "x0*512 + x1*2").accesses[0].wavefronts == 32


def test_an_expected_histogram_is_that_of_words_spread_evenly():
    result = solve(histogram("uniform"))
    assert (result.status, result.excess, result.accesses[0].any_is) == (Status.OPTIMAL, 0, "uniform")
    rng = np.random.default_rng(1)
    drawn = rng.integers(256, size=(20000, 32))
    loads = [max(np.bincount(np.unique(row) % 32)) for row in drawn]
    assert result.accesses[0].wavefronts == pytest.approx(2 * np.mean(loads), rel=0.01)


def test_one_value_is_no_choice():
    for more in ("", "; any v<1"):
        problem = problem_of("32x32 f32, 32 threads", f"a: load 4 [lane, 3]{more}")
        assert check(problem, "x0*32 + x1").accesses[0].wavefronts == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"any": {"tid": 4}}, "accesses[0].any: 'tid' is reserved"),
        ({"for": {"bin": 2}}, "accesses[0].any: 'bin' is a variable of `for`, too"),
        ({"weight": "bin"}, "accesses[0].weight: a weight cannot depend on values of `any`"),
        ({"any": {"bin": 300}}, "accesses[0].index[0]: x0 must lie in 0..255, not 256"),
        ({"any_is": "mean"}, "accesses[0].any_is: "),
        ({}, "layout.minimise: instructions cannot come first"),
    ],
)
def test_wrong_choices_are_refused(changes, message):
    access = {**access_from("a: load 4 [bin]; any bin<256"), **changes}
    with refused_with(message):
        solve(problem_of("256 u32, 32 threads; minimise instructions", access))


def test_a_choice_that_may_meet_a_known_phase_does_not_count_again():
    """The worst over values counts once, whatever of the values makes the phases of another access."""
    problem = problem_of("""16 u64, 4 threads
        a: load 4 [(tid + 4*v) % 16]; any v<4
        b: load 4 [(tid + 4*j) % 16]; j<4""")
    found = solve(problem, target=toy.toy_device(4, 4))
    assert (found.accesses[1].excess, found.proof.excess.lower_bound) == (4, 4)
