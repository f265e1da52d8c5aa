"""Cliques, counting and parity: never claimed where a placement exists; CNF, given to a SAT solver that knows no CP-SAT."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest
from generate import Maker
from msgspec.structs import replace
from oracle import toy
from oracle.banks import weighted_excess
from oracle.members import family_members
from oracle.problem_file import Misaligned, Tile, accesses, check_vectors, count, hardware
from oracle.random_tiles import tiny
from oracle.toy import every_placement
from pysat.solvers import Solver
from written import by_lane, lines_of, planes, problem_of

from layoutopt.accesses.trace import trace
from layoutopt.errors import ProblemFileError
from layoutopt.files.file import from_data
from layoutopt.ground.budget import Budget, spending
from layoutopt.hardware.devices import devices
from layoutopt.model.cp_sat import Model, Outcome
from layoutopt.model.phases import phase_sets
from layoutopt.model.placement import free_assignment, question
from layoutopt.proof.board import subject_of
from layoutopt.proof.cliques import find_clique, find_packing
from layoutopt.proof.cnf import dimacs
from layoutopt.proof.parity import combination, find_parity
from layoutopt.proof.reasons import CLIQUE, COUNTING, PACKING, PARITY, SearchLimits, every_layout


def plane():
    """Three lines of a plane of four points: every two meet, on two banks."""
    return from_data(planes()), toy.toy_device(2, 2)


def squares(n):
    return from_data(lines_of(n)), toy.toy_device(max(n, 2), max(2, 1 << (n - 1).bit_length()))


def subject(problem, gpu):
    return subject_of(problem.tile, gpu, trace(problem, gpu))


def on_board(problem, gpu):
    return subject(problem, gpu).board


@pytest.mark.parametrize("block", range(2))
def test_every_bound_and_every_table_against_every_placement(block):
    """All banks of all words of tiny tiles, by plain loops."""
    seen = reasons = 0
    for seed in range(1000 + block * 240, 1240 + block * 240):
        case = tiny(seed, 1 << 15)
        if case is None:
            continue
        data, plain, lanes, banks, elements = case
        if all(e is None for (_, _, rows), _ in plain for row in rows for e in row):
            continue
        least, size = every_placement(elements, plain, lanes, banks)
        problem, gpu = from_data(data), toy.toy_device(lanes, banks)
        traced = trace(problem, gpu)
        board = subject_of(problem.tile, gpu, traced).board
        given = [find(board) for find in (find_clique, find_parity, find_packing)]
        for reason in given:
            assert board.counted_excess + (reason.excess if reason else 0) <= least, (seed, data)
        found = free_assignment(phase_sets(traced, problem.tile), traced, problem.tile)
        assert (found.bound, found.excess) == (least, least), (seed, data)
        assert found.bytes_bound <= 4 * size <= found.bytes, (seed, data)
        assert weighted_excess(found.table, traced, gpu) == least, (seed, data)
        assert len(np.unique(found.table)) == elements
        seen += 1
        reasons += any(given) or board.counted_excess > 0
    assert seen > 10
    assert reasons


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
    assert (find_clique(found), find_parity(found), found.counted_excess) == (None, None, 0)


def fewer_words(found):
    return {"words": found.words[1:]}


def another_weight(found):
    (modulus, weight), *rest = found.combinations
    return {"combinations": ((modulus, {**weight, min(weight): weight[min(weight)] + 1}), *rest)}


def one_wavefront_more(found):
    return {"excess": found.excess + 1}


def share_with(**changes):
    """The first share of a packing with other fields, which may be those of the second."""

    def change(found):
        first, second = found.shares
        fields = {name: value(first, second) for name, value in changes.items()}
        return {"shares": (replace(first, **fields), second)}

    return change


def windows():
    """Twice two windows that overlap but for a word each, and a phase that touches both these words."""
    lines = (f"{text}: load 4 [5*c + {text}]; c<2" for text in ("tid", "tid + 1", "4*(tid % 2)"))
    return problem_of("10 f32, 4 threads", *lines), toy.toy_device(4, 4)


@pytest.mark.parametrize(
    ("reason", "given", "changes"),
    [
        (CLIQUE, plane(), [fewer_words]),
        (PARITY, squares(8), [another_weight]),
        (PACKING, windows(), [
            lambda found: {"shares": found.shares[:1] * 2},
            share_with(weight=lambda *_: 2),
            share_with(phases=lambda _, second: second.phases),
            share_with(words=lambda first, _: first.words[1:]),
            share_with(phases=lambda first, _: first.phases[:2]),
            share_with(phases=lambda first, _: first.phases[:1] * 3),
        ]),
    ],
    ids=["clique", "parity", "packing"],
)  # fmt: skip
def test_reasons_check_themselves(reason, given, changes):
    """What a reason finds passes its check; with one word, weight, share or wavefront changed it does not."""
    asked = subject(*given)
    found = reason.find(asked, SearchLimits())
    assert reason.check(asked, found)
    for change in (*changes, one_wavefront_more):
        assert not reason.check(asked, replace(found, **change(found)))
    assert not COUNTING.check(asked, 1)


def test_parity_asks_the_clock():
    """Three pairs of three words: no bank has one word of each. Out of time nothing is claimed."""
    triangle = {0: [0, 1], 1: [0, 2], 2: [1, 2]}
    assert combination(triangle) is not None
    with spending(Budget(0)):
        assert combination(triangle) is None


@pytest.mark.filterwarnings("ignore::layoutopt.errors.DisputedRuleWarning")
@pytest.mark.parametrize("gpu", devices(), ids=lambda gpu: gpu.name)
def test_no_layout_goes_below(gpu):
    """What phases need at least, of random problems, and random layouts counted by plain loops."""
    rng, counted = random.Random(gpu.name), 0
    while counted < 60:
        data = Maker(rng, gpu.name, hardware(gpu.name)).problem()
        plain = (a for a in data["accesses"] if isinstance(a.get("bytes", 0), int))
        data["accesses"] = [a for a in plain if "any" not in a]
        for access in data["accesses"]:
            access.pop("weight", None)
        try:
            asked = from_data({**data, "layout": {}})
            sets = phase_sets(trace(asked, gpu), asked.tile)
        except ProblemFileError:  # no access, or no lane, that takes part
            continue
        bound = sum(int(s.floor.sum()) for s in sets)
        tile = Tile(asked.tile.shape, data["tile"]["element"])
        plain = accesses(data, tile, None, {})
        for member in family_members(tile, rng, {"order", "pad", "interval", "xor"}, (4, 4 * gpu.banks), 12):
            try:
                for access in plain:
                    check_vectors(access, tile, member.flat)
            except Misaligned:
                continue
            assert sum(count(a, member.flat).wavefronts for a in plain) >= bound, (data, member.what)
            counted += 1


# Generator rows of the octacode, a code over the integers modulo 4 that is its own dual
# (Hammons, Kumar, Calderbank, Sloane and Solé 1994), and the Gray map to them.
OCTACODE = [list(map(int, row)) for row in ("10003121", "01001231", "00103332", "00012311")]
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


def satisfiable(cnf):
    """The verdict of CaDiCaL, and its model as a dictionary."""
    lines = [line for line in cnf.splitlines() if line[0] != "c"]
    variables, clauses = map(int, lines[0].split()[2:])
    assert clauses == len(lines) - 1
    given = [list(map(int, line.split()[:-1])) for line in lines[1:]]
    assert all(1 <= abs(literal) <= variables for clause in given for literal in clause)
    with Solver("cadical153", bootstrap_with=given) as solver:
        return solver.solve()


def placeable(rows):
    """Exhaustive search over four banks for each of six words, left at the first conflict."""
    meet = {frozenset(pair) for row in rows for pair in itertools.combinations(row, 2)}

    def extend(bank):
        free = (b for b in range(4) if all(bank[m] != b for m in range(len(bank)) if {m, len(bank)} in meet))
        return len(bank) == 6 or any(extend([*bank, b]) for b in free)

    return extend([])


def test_free_assignments_agree_with_enumeration_and_a_sat_solver():
    """Phases of two to four of six words, on four banks."""
    verdicts, gpu = [], toy.toy_device(4, 4)
    for seed in range(200):
        rng = random.Random(seed)
        rows = [rng.sample(range(6), rng.randint(2, 4)) for _ in range(rng.randint(3, 9))]
        lines = (f"a{k}: load 4 [{by_lane(row)}]; where tid < {len(row)}" for k, row in enumerate(rows))
        problem = problem_of("6 f32, 4 threads", *lines)
        lanes = trace(problem, gpu)
        verdicts.append(placeable(rows))
        conflict_free = every_layout(problem.tile, gpu, lanes, SearchLimits(), enough=1)
        assert (conflict_free.bound == 0) == verdicts[-1], seed
        if seed < 60:
            general = every_layout(problem.tile, gpu, lanes, SearchLimits(), enough=None)
            cnf = question(phase_sets(lanes, problem.tile), lanes, problem.tile, None)
            assert general.free.excess == general.bound, seed
            assert satisfiable(dimacs(cnf)) == (general.bound == 0) == verdicts[-1], seed
        if seed < 20:
            plain = [(("load", 4, [[*row, *[None] * (4 - len(row))]]), 1) for row in rows]
            assert every_placement(6, plain, 4, 4)[0] == general.bound, seed
    assert 40 < sum(verdicts) < 160


@pytest.mark.parametrize("count", range(1, 12))
def test_at_most_one_of_any_size(count):
    for forced in range(min(3, count + 1)):
        model = Model()
        literals = [model.boolean() for _ in range(count)]
        model.at_most_one(literals)
        for k in np.random.default_rng(count).permutation(count)[:forced]:
            model.clause([literals[k]])
        assert satisfiable(dimacs(model.to_text())) == (forced < 2)
        assert (model.solve().outcome is not Outcome.INFEASIBLE) == (forced < 2)


def test_sums_are_refused():
    model = Model()
    literals = [model.boolean() for _ in range(4)]
    model.at_most([(literal, 1) for literal in literals], 2)
    assert dimacs(model.to_text()) is None
    wide = Model()
    wide.integer(0, 5)
    assert dimacs(wide.to_text()) is None
    conditional, weighed = Model(), Model()
    conditional.linear([(conditional.boolean(), 1)], [0, 0], only_if=[conditional.boolean()])
    weighed.minimise([(weighed.boolean(), 1)])
    assert dimacs(conditional.to_text()) is dimacs(weighed.to_text()) is None
