"""Cliques, counting and parity: never claimed where a placement exists; maps to banks that no linear map replaces."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT
from msgspec.structs import replace
from oracle import toy
from oracle.random_tiles import tiny
from oracle.toy import every_placement
from written import lines_of, problem_of

from layoutopt import load
from layoutopt.accesses.trace import trace
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget, spending
from layoutopt.hardware.devices import device, devices
from layoutopt.model.phases import phase_sets
from layoutopt.proof.board import subject_of
from layoutopt.proof.cliques import find_clique, find_packing
from layoutopt.proof.parity import combination, find_parity
from layoutopt.proof.reasons import CLIQUE, COUNTING, PACKING, PARITY, Extent, every_layout
from layoutopt.search.block import solve

BASICS = ROOT / "problems" / "basics"


def words_problem(elements, threads, indices, trips):
    """Loads of single words of a line."""
    lines = (f"a{k}: load 4 [{text}]; c<{trips}" for k, text in enumerate(indices))
    return problem_of(f"{elements} f32, {threads} threads", *lines)


def plane():
    """Three lines of a plane of four points: every two meet, on two banks."""
    return words_problem(4, 2, ["(tid * 1) ^ c", "(tid * 2) ^ c", "(tid * 3) ^ c"], 4), toy.toy_device(2, 2)


def squares(n):
    return from_data(lines_of(n)), toy.toy_device(max(n, 2), max(2, 1 << (n - 1).bit_length()))


def subject(problem, gpu):
    return subject_of(problem.tile, gpu, trace(problem, gpu))


def on_board(problem, gpu):
    return subject(problem, gpu).board


@pytest.mark.parametrize("block", range(5))
def test_never_more_than_the_best_placement(block):
    """Every bound against enumeration of all banks of all words."""
    seen = reasons = 0
    for seed in range(5000 + block * 100, 5100 + block * 100):
        case = tiny(seed, 1 << 13)
        if case is None:
            continue
        data, plain, lanes, banks, elements = case
        if all(e is None for (_, _, rows), _ in plain for row in rows for e in row):
            continue
        least, _ = every_placement(elements, plain, lanes, banks)
        found = on_board(from_data(data), toy.toy_device(lanes, banks))
        clique, *others = find_clique(found), find_parity(found), find_packing(found)
        for more in (clique, *others):
            assert found.counting + (more.excess if more else 0) <= least, (seed, data)
        seen += 1
        reasons += clique is not None or others[0] is not None or found.counting > 0
    assert seen > 15
    assert reasons


def test_three_lines_of_a_plane():
    found = on_board(*plane())
    clique = find_clique(found)
    # Each pair of words meets in two of the four translates.
    assert (len(clique.words), clique.excess) == (3, 2)
    assert all({*pair} <= set(found.phases[i].words) for pair, i in clique.meetings.items())


@pytest.mark.parametrize("n", [4, 8, 12, 32])
def test_wrapped_diagonals_of_squares_that_four_divides_leave_two(n):
    """The layout of docs/proofs.md: every word in one bank, and two diagonals meet some banks twice."""
    half, bank = n // 2, {}
    for a, e, x in itertools.product(range(0, n, 2), (0, 1), range(n)):
        bank[(x + a) % n, (2 * x + a + (x >= half) + e * half) % n] = a + e
    assert len(bank) == n * n
    held = Counter()
    for k, r in itertools.product(range(n), repeat=2):
        for line, word in {"row": (k, r), "column": (r, k), "diagonal": (r, (r + k) % n)}.items():
            held[line, k, bank[word]] += 1
    twice = {(line, k): count for (line, k, _), count in held.items() if count > 1}
    assert twice == {("diagonal", 0): 2, ("diagonal", half): 2}


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_wrapped_diagonals_of_even_squares(n):
    """No clique of more than n words exists for n > 2; the parity gives the theorem and two wavefronts."""
    found = on_board(*squares(n))
    parity = find_parity(found)
    assert parity.excess == 2
    for modulus, weight in parity.combinations:
        total = Counter()
        for i, y in weight.items():
            total.update(dict.fromkeys(found.phases[i].words, y))
        assert n % modulus == 0
        assert not any(value % modulus for value in total.values())
        assert sum(weight.values()) % modulus
    assert not set.intersection(*(set(weight) for _, weight in parity.combinations))
    assert n == 2 or find_clique(found) is None


@pytest.mark.parametrize("n", [1, 3, 5, 7])
def test_odd_squares_have_a_layout(n):
    """Knight's moves: bank = row + 2 column serves rows, columns and diagonals where n is prime to 6.

    For n = 3 the diagonals of one kind are served by row + 2 column, too: 1 - 2 = -1 is a unit.
    """
    found = on_board(*squares(n))
    assert (find_clique(found), find_parity(found), found.counting) == (None, None, 0)


@pytest.mark.parametrize("name", ["leimao_vectorised_swizzled_f32", "gemm4bit_b_128x64_bf16"])
def test_counting_of_narrow_accesses_to_wide_vectors(name):
    problem = load(name)
    gpu, proof = device(problem.target), solve(problem, time_limit=None).proof
    assert on_board(problem, gpu).counting == 384 * trace(problem, gpu).weight_unit
    got = proof.excess.lower_bound, proof.excess.scope, proof.evidence
    assert got == (384, "every layout", COUNTING.evidence)


def test_every_phase_meets_its_own_words_once():
    found = on_board(load("gemm_a_128x32_f16"), device("sm_90"))
    assert set(found.vector_words.values()) == {4}
    assert set(found.place.values()) == {0, 1, 2, 3}
    assert sum(p.weight for p in found.phases) == 4 * 4 * 4 + 8 * 4 * 4  # 16-byte fills, matrices
    assert (find_clique(found), find_parity(found)) == (None, None)
    assert (
        on_board(problem_of("8 12B, 8 threads", "a: load 4 [tid]"), device("sm_90")) is None
    )  # of no odd size


def test_reasons_check_themselves():
    """What a reason finds passes its check; the same with one word, weight or wavefront changed does not."""
    for reason, given in ((CLIQUE, subject(*plane())), (PARITY, subject(*squares(8)))):
        found = reason.find(given, Extent())
        if reason is CLIQUE:
            changed = {"words": found.words[1:]}
        else:
            (modulus, weight), *rest = found.combinations
            weight = {**weight, min(weight): weight[min(weight)] + 1}
            changed = {"combinations": ((modulus, weight), *rest)}
        assert reason.check(given, found)
        assert not reason.check(given, replace(found, **changed))
        assert not reason.check(given, replace(found, excess=found.excess + 1))
        assert not COUNTING.check(given, 1)


def overlapping_windows(copies):
    """In each copy two windows that overlap but for a word each, and a phase that touches both these words."""
    indices = [f"5*c + {text}" for text in ("tid", "tid + 1", "4*(tid % 2)")]
    return words_problem(5 * copies, 4, indices, copies), toy.toy_device(4, 4)


def test_cliques_that_share_no_phase_add_up():
    problem, gpu = overlapping_windows(3)
    found = on_board(problem, gpu)
    assert (find_clique(found).excess, find_packing(found).excess) == (1, 3)
    general = every_layout(problem.tile, gpu, trace(problem, gpu), Extent(), enough=3)
    assert (general.bound, general.evidence) == (3, PACKING.evidence)


def test_no_phase_gives_away_more_than_it_weighs():
    given = subject(*overlapping_windows(2))
    found = PACKING.find(given, Extent())
    assert PACKING.check(given, found)
    first, second = found.shares
    for forged in (
        first,
        replace(first, weight=2),
        replace(first, phases=second.phases),
        replace(first, words=first.words[1:]),
        replace(first, phases=first.phases[:2]),
        replace(first, phases=(first.phases[0],) * 3),
    ):
        shares = (first, first) if forged is first else (forged, second)
        assert not PACKING.check(given, replace(found, shares=shares))
    assert not PACKING.check(given, replace(found, excess=3))


def test_parity_asks_the_clock():
    """Three pairs of three words: no bank has one word of each. Out of time nothing is claimed."""
    triangle = {0: [0, 1], 1: [0, 2], 2: [1, 2]}
    assert combination(triangle) is not None
    with spending(Budget(0)):
        assert combination(triangle) is None


SIZES = {"i8": 1, "f16": 2, "f32": 4, "f64": 8, "c128": 16, "12B": 12}


def random_problem(rng, target):
    rows, columns = rng.choice([[16, 16], [13, 8], [8, 32], [5, 24]])
    element, size = rng.choice([*SIZES.items()])
    lines = []
    for k in range(3):
        wide = rng.choice([1, 1, 2, 4])
        if columns % wide or size * wide > 16 or size == 12:
            wide = 1
        flat, inner = f"({rng.randint(1, 40)}*tid + {rng.randint(0, 9)})", columns // wide
        index = f"{flat} // {inner} % {rows}, {flat} % {inner} * {wide}"
        lines.append(f"a{k}: {rng.choice(['load', 'store'])} {4 if size == 12 else size * wide} [{index}]")
    return problem_of(f"{rows}x{columns} {element}, 64 threads; target {target}", *lines)


def random_tables(rng, shape, size):
    """Whole rows at aligned places, in any order and with any gaps; sometimes turned by XORs."""
    rows, columns = shape
    for _ in range(6):
        pitch = columns + rng.choice([0, 0, 1, 2, 4, 8]) * max(1, 16 // size)
        start = np.array(rng.sample(range(rows), rows)) * pitch
        yield (start[:, None] + np.arange(columns)) * size
        if not columns & (columns - 1) and size & (size - 1) == 0:
            step = max(1, 16 // size)
            turn = rng.choice([1, 2, 3, 5]) * np.arange(rows) * step % columns
            yield (np.arange(rows)[:, None] * columns + (np.arange(columns) ^ turn[:, None])) * size


@pytest.mark.filterwarnings("ignore::layoutopt.errors.DisputedRuleWarning")
@pytest.mark.parametrize("gpu", devices(), ids=lambda gpu: gpu.name)
def test_no_layout_goes_below(gpu):
    rng, tried = random.Random(gpu.name), 0
    while tried < 12:
        problem = random_problem(rng, gpu.name)
        try:
            lanes = trace(problem, gpu)
        except ProblemFileError:  # a width that the device does not have
            continue
        tried += 1
        bound = sum(int((s.weight * s.floor).sum()) for s in phase_sets(lanes, problem.tile))
        for table in random_tables(rng, problem.tile.shape, problem.tile.element_bytes):
            wavefronts, flat = 0, table.ravel()
            for a in lanes.accesses:
                if a.width_elements > 1 and (flat[a.element[a.active]] % a.operation.width_bytes).any():
                    break
                wavefronts += count_wavefronts(
                    flat[a.element], a.active, a.operation, a.rule
                ).wavefronts.sum()
            else:
                assert wavefronts >= bound, (problem, table)


def test_two_words_of_one_kepler_row():
    """32 words at the start of consecutive 16-byte elements: pairs 32 words apart go in one wavefront."""
    problem, gpu = problem_of("32 c128, 32 threads", "heads: load 4 [tid]"), device("sm_30")
    lanes = trace(problem, gpu)
    (heads,), (access,) = phase_sets(lanes, problem.tile), lanes.accesses
    counts = count_wavefronts(16 * access.element, access.active, access.operation, access.rule)
    assert heads.floor.tolist() == counts.wavefronts.tolist() == [2]


# Generator rows of the octacode, a code over the integers modulo 4 that is its own dual
# (Hammons, Kumar, Calderbank, Sloane and Solé 1994), and the Gray map to them.
OCTACODE = (
    (1, 0, 0, 0, 3, 1, 2, 1),
    (0, 1, 0, 0, 1, 2, 3, 1),
    (0, 0, 1, 0, 3, 3, 3, 2),
    (0, 0, 0, 1, 2, 3, 1, 1),
)
GRAY = {(0, 0): 0, (0, 1): 1, (1, 1): 2, (1, 0): 3}


def octacode_bank(word):
    """The syndrome of a 12-bit word, with its parity as 16th bit: words of one bank differ in 5 bits or more."""
    bits = [word >> k & 1 for k in range(12)] + [0, 0, 0]
    bits.append(sum(bits) % 2)
    digits = [GRAY[pair] for pair in zip(bits[::2], bits[1::2], strict=True)]
    return tuple(sum(a * b for a, b in zip(row, digits, strict=True)) % 4 for row in OCTACODE)


def test_a_map_to_128_banks_that_no_linear_map_can_replace():
    """That no linear code of length 12 has dimension 5 and distance 5 is in the tables (codetables.de)."""
    meet = [d for d in range(1, 1 << 12) if d.bit_count() <= 4]
    banks = [octacode_bank(word) for word in range(1 << 12)]
    assert (len(meet), len({*banks})) == (12 + 66 + 220 + 495, 128)
    assert not any(banks[word] == banks[word ^ d] for word in range(1 << 12) for d in meet)
