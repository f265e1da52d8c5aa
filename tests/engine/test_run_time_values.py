"""Lanes that choose at run time, against every combination of their choices."""

import itertools
import random

import numpy as np
import pytest
from msgspec.structs import replace
from oracle import toy
from oracle.banks import instruction
from written import access_from, problem_of, refused_with

from layoutopt import Status, check, solve
from layoutopt.accesses.lower import with_loops
from layoutopt.accesses.trace import trace
from layoutopt.engine.run_time_values import choices
from layoutopt.ground.budget import Budget, OutOfTime, spending
from layoutopt.hardware.devices import PhaseRule, device


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
