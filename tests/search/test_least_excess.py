"""The least excess of a few linearisations, by the tree, against every mask; and the swizzles no scope names."""

import itertools
import random

import msgspec
import numpy as np
import pytest
from oracle import toy
from oracle.toy import apply
from written import problem_of, reads, writes

from layoutopt import Status, Tile, check, load
from layoutopt.engine.case import case_of
from layoutopt.files.catalogue import find
from layoutopt.ground.budget import Budget
from layoutopt.hardware.devices import Device, PhaseRule, device
from layoutopt.layout.layout import Digit
from layoutopt.model.linear_phases import Phases
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.swizzle_rules import Field, last_block, rules
from layoutopt.search.mask_tree import Question, least_excess, within_ceilings
from layoutopt.search.proposal import Ask
from layoutopt.search.solve import formulas, solve

BANK_BITS = 2


def pitched(rows, columns, pitch):
    digits = (Digit(0, 1, rows, pitch), Digit(1, 1, columns, 1))
    return Linearisation(digits, (rows - 1) * pitch + columns, 3, "pad", True)


def random_phases(chance, candidate, shape, subsets):
    """The same elements together under any linearisation; a vector of two words counts by its first."""
    table = candidate.table(shape)
    words = [sorted(int(table[e]) for e in subset) for subset, *_ in subsets]
    lanes = max(map(len, words))
    rows = np.array([[-1] * (lanes - len(w)) + w for w in words])
    chunk, weight, bits = (np.array([subset[k] for subset in subsets]) for k in (1, 2, 3))
    ideal = -(-np.array([len(set(w)) for w in words]) // (1 << (bits - chunk)))
    return Phases(rows, chunk, bits, weight, ideal, np.ones_like(ideal))


def random_question(seed, halves=False):
    """Linearisations of one tile, their phases, the field, and what accesses keep whole.

    With `halves`, some accesses are served by half of the banks.
    """
    chance = random.Random(seed)
    rows, columns = chance.choice([(5, 4), (4, 6), (7, 3), (3, 8), (8, 4)])
    tile = Tile((rows, columns), "f32")
    vectors = columns % 2 == 0 and chance.random() < 0.5
    heads = range(0, rows * columns, 2) if vectors else range(rows * columns)
    subsets = []
    for _ in range(chance.randint(1, 4)):
        chunk = 1 if vectors and chance.random() < 0.6 else 0
        among = heads if chunk else range(rows * columns)
        weight = chance.choice([1, 1, 2, 5])
        bits = BANK_BITS - (halves and not chunk and chance.random() < 0.5)
        subsets.append((chance.sample(among, chance.randint(2, 6)), chunk, weight, bits))
    starts = sorted({e for subset, chunk, *_ in subsets if chunk for e in subset})
    held = ((1, np.array(starts)),) if starts else ()
    field = Field(range(BANK_BITS), min(bits for *_, bits in subsets), 4, range(0), held)
    step = 2 if vectors else 1
    pitches = chance.sample(range(columns, columns + 4 * step, step), 2)
    batch = [pitched(rows, columns, pitch) for pitch in pitches]
    return tile, field, [(c, random_phases(chance, c, tile.shape, subsets)) for c in batch], starts


def every_mask(candidate, phases, tile, field, starts):
    """(excess, elements) under every mask that keeps the vectors whole."""
    for masks, used in every_swizzle(candidate, tile, field, starts):
        yield phases.excess(masks), used


def every_swizzle(candidate, tile, field, starts):
    """Every mask that keeps the vectors whole, and the elements that the layout takes under it."""
    table = candidate.table(tile.shape).tolist()
    top = max(table).bit_length()
    rows = [range(0, 1 << top, -field.sources(bit)) for bit in range(BANK_BITS)]
    for chosen in itertools.product(*rows):
        masks = dict(enumerate(chosen))
        offsets = [apply(masks, word) for word in table]
        if all(offsets[s] % 2 == 0 and offsets[s + 1] == offsets[s] + 1 for s in starts):
            yield masks, max(offsets) + 1


@pytest.mark.parametrize("block", range(4))
def test_the_tree_finds_the_least_of_all_masks(block):
    better = 0
    for seed in range(25 * block, 25 * block + 25):
        tile, field, batch, starts = random_question(seed)
        reachable = [min(every_mask(c, phases, tile, field, starts)) for c, phases in batch]
        plain = [(phases.excess({}), c.span) for c, phases in batch]
        best = min(reachable)
        better += best < min(plain)
        for below in (min(plain), (best[0], best[1] + 1), best):
            expected = best if best < below else None
            found = below
            for candidate, phases in batch:
                given, last = rules(candidate, field, tile), last_block(candidate, field, tile)
                question = Question(phases, field, given, last, candidate.span, None, found)
                answer = least_excess(question, 1 << 30, Budget())
                assert answer.complete
                if answer.best is not None:
                    found = answer.best.excess, answer.best.used
                    assert phases.excess(answer.best.masks) == answer.best.excess, seed
            assert (found if found < below else None) == expected, (seed, below)
    assert better > 5


@pytest.mark.parametrize("block", range(4))
def test_the_tree_finds_masks_within_ceilings_where_there_are_any(block):
    verdicts = set()
    for seed in range(25 * block, 25 * block + 25):
        tile, field, batch, starts = random_question(seed)
        chance = random.Random(seed)
        for candidate, phases in batch:
            ceilings = np.array([chance.choice([1, 1, 2]) for _ in range(len(phases))])
            ceilings = np.maximum(ceilings, phases.ideal)
            sizes = [
                used
                for masks, used in every_swizzle(candidate, tile, field, starts)
                if used <= candidate.span and (phases.costs(masks) <= ceilings).all()
            ]
            given, last = rules(candidate, field, tile), last_block(candidate, field, tile)
            question = Question(phases, field, given, last, candidate.span, candidate.span, (0, 0))
            answer = within_ceilings(question, ceilings, 1 << 30, Budget())
            assert answer.complete
            assert (answer.best is not None) == bool(sizes), seed
            if answer.best is not None:
                assert (phases.costs(answer.best.masks) <= ceilings).all()
                assert answer.best.used == min(sizes)
            verdicts.add(bool(sizes))
    assert verdicts == {True, False}


def test_accesses_that_see_different_numbers_of_banks():
    """Their masks may read bits that others select banks by; what the last block takes is not looked at."""
    for seed in range(40):
        tile, field, batch, starts = random_question(seed, halves=True)
        least = min(min(every_mask(c, phases, tile, field, starts))[0] for c, phases in batch)
        for below, expected in (((least + 1, 0), {least}), ((least, 0), set())):
            found = set()
            for candidate, phases in batch:
                given, last = rules(candidate, field, tile), last_block(candidate, field, tile)
                question = Question(phases, field, given, last, candidate.span, None, below)
                answer = least_excess(question, 1 << 30, Budget())
                found |= set() if answer.best is None else {answer.best.excess}
            assert found == expected, seed


def test_no_layout_takes_more_than_it_may():
    tile, field, batch, starts = random_question(3)
    for candidate, phases in batch:
        every = sorted(every_mask(candidate, phases, tile, field, starts), key=lambda found: found[1])
        for most in sorted({used for _, used in every}):
            expected = min(found for found in every if found[1] <= most)
            given, last = rules(candidate, field, tile), last_block(candidate, field, tile)
            question = Question(phases, field, given, last, candidate.span, most, (1000, 0))
            found = least_excess(question, 1 << 30, Budget()).best
            assert (found.excess, found.used) == expected


def test_a_tree_out_of_steps_says_so():
    tile, field, batch, _ = random_question(1)
    candidate, phases = batch[0]
    given, last = rules(candidate, field, tile), last_block(candidate, field, tile)
    question = Question(phases, field, given, last, candidate.span, None, (1000, 0))
    assert not least_excess(question, 1, Budget()).complete
    assert least_excess(question, 1 << 20, Budget()).complete


def test_phases_that_no_mask_changes_only_add_their_floor():
    """A lane alone costs one wavefront: nothing to decide but the bytes of the last block."""
    tile, field, batch, _ = random_question(1)
    candidate, _ = batch[0]
    each = np.ones(1, np.int64)
    alone = Phases(np.array([[-1, 3]]), 0 * each, BANK_BITS * each, 5 * each, each, each)
    given, last = rules(candidate, field, tile), last_block(candidate, field, tile)
    question = Question(alone, field, given, last, candidate.span, None, (1, 1000))
    shortest = candidate.span if last is None else min(last.reach.values())
    answer = least_excess(question, 1 << 20, Budget())
    assert answer.complete
    assert (answer.best.excess, answer.best.used) == (0, shortest)
    nobody = Phases(np.zeros((0, 0), np.int64), *[np.zeros(0, np.int64)] * 5)
    question = Question(nobody, field, given, last, candidate.span, None, (1, 1000))
    assert least_excess(question, 1 << 20, Budget()).best.used == shortest


@pytest.mark.parametrize(
    ("name", "excess", "size"),
    [
        ("libceed_interp2d_p5q6_f64", 7, 2304),
        ("rodinia_needleman_wunsch_32_i32", 1, 4484),
        ("diagonals_32x32_f32", 16, 4096),
    ],
)
def test_tiles_whose_conflicts_no_layout_of_whole_rows_avoids(name, excess, size):
    """Every order, pad and XOR is ruled out, in seconds."""
    problem = load(find(name))
    layout = msgspec.structs.replace(problem.layout, families=("none", "order", "pad", "xor"))
    case = case_of(msgspec.structs.replace(problem, layout=layout), device(problem.target))
    found = formulas(case, Ask())
    assert (found.weighted_excess, found.bytes) == (excess, size)
    assert found.complete
    assert found.decided_by == "tree"


@pytest.mark.parametrize("limit", [None, 108])
def test_no_size_is_ruled_out_where_accesses_see_different_numbers_of_banks(limit):
    """An XOR of bits inside the last block serves a pitch of 4 in 108 bytes; 112 were called the fewest."""
    whole = (tuple(range(4)),)
    rule = {("load", 4): PhaseRule(whole, 4, 4), ("store", 4): PhaseRule(whole, 2, 4)}
    served = {"load": [11, 1, 12, 14, 17, 14, 6, 1], "store": [18, 3, 13, 0, 16, 4, 7, 20]}
    accesses = [
        {"name": op, "op": op, "bytes": 4, "for": {"i": 2},
         "index": [f"{elements}[tid + 4*i] // 3", f"{elements}[tid + 4*i] % 3"]}
        for op, elements in served.items()
    ]  # fmt: skip
    layout = {"families": ["pad", "xor"]} | ({} if limit is None else {"max_bytes": limit})
    problem = problem_of("7x3 f32, 4 threads", *accesses, layout=layout)
    gpu = Device("uneven", "uneven", 4, 4, 4, rule)
    result = solve(problem, target=gpu, conflict_free=limit is not None)
    assert result.status in (Status.FEASIBLE, Status.UNKNOWN)
    assert result.proof.bytes.lower_bound <= 108


@pytest.mark.parametrize(
    ("constraint", "scope"),
    [
        ({"order": [0, 1]}, "families none, pad"),
        ({"pitch_multiple_bytes": 32}, "families none, order, pad, split"),
    ],
)
def test_a_scope_names_what_the_constraints_leave(constraint, scope):
    """A fixed order leaves no cuts and a pitch no pads within rows: `x0*10 + x1 // 4 * 5 + x1 % 4` keeps the order."""
    named = ["none", "order", "pad", "split", "interval", "matrix"]
    families = named if "pitch_multiple_bytes" in constraint else [f for f in named if f != "interval"]
    problem = problem_of(
        """4x8 f32, 8 threads
        squares: load 4 [tid % 4, tid // 4 * 4 + i]; i<4
        rows: load 4 [i, tid]; i<4
        pairs: load 4 [tid // 4 * 2, tid % 4 * 2]""",
        layout={"families": families, **constraint},
    )
    result = solve(problem, target=toy.toy_device(8, 8))
    assert (result.proof.excess.lower_bound > 0, result.proof.excess.scope) == (True, scope)


OUTSIDE = ", XOR sources outside groups of 32 words"


def grouped():
    """8-byte stores by halves; bytes by all lanes, in groups of 32 words over 16 banks."""
    given = toy.toy_device(16, 16)
    rules = {**given.rules, ("load", 1): PhaseRule((tuple(range(16)),), 16, 4, row_words=32)}
    return Device("grouped", "grouped", 16, 16, 4, rules)


def rows_and_bytes(**layout):
    """Every second row of 16 words starts at one bank, unless a swizzle reads a bit inside a group."""
    rows = writes("rows", 8, ["lane % 8", "0"])
    single = reads("single", 1, ["0", "lane % 8"])
    return problem_of("8x8 f64, 16 threads", rows, single, layout={"families": ["none", "xor"], **layout})


def test_a_scope_names_the_sources_that_are_left_out():
    problem, offset = rows_and_bytes(), "x0*8 + (x1 ^ x0)"
    assert check(problem, offset, target=grouped()).excess == 0
    found = solve(problem, target=grouped())
    assert found.excess > 0
    assert found.proof.excess.scope == "families none, xor" + OUTSIDE


def test_what_such_a_source_may_do_is_not_refuted():
    found = solve(rows_and_bytes(), target=grouped(), conflict_free=True)
    assert found.status is Status.UNKNOWN
    assert OUTSIDE in found.reason


def thirds(**layout):
    """Bytes of every third element of 10 bytes, by four lanes."""
    flat = "tid + 32*i"
    bytewise = reads("a", 1, [f"(({flat})//3 + i) % 5", f"({flat}) % 3"])
    return problem_of("5x3 10B, 4 threads", bytewise | {"for": {"i": 3}}, layout=layout)


def banks_of_four():
    given = toy.toy_device(8, 4)
    rules = {**given.rules, ("load", 1): PhaseRule((tuple(range(8)),), 4, 4)}
    return Device("four", "four", 8, 4, 4, rules)


def test_elements_of_odd_sizes_have_no_swizzle_in_the_scope():
    problem, offset = thirds(), "(x0*3 + x1) ^ (x0*3 + x1)//8"
    swizzled, found = check(problem, offset, target=banks_of_four()), solve(problem, target=banks_of_four())
    assert swizzled.excess == found.excess == 0
    assert swizzled.bytes < found.bytes == found.proof.bytes.lower_bound
    assert found.proof.bytes.scope.endswith(", no XOR over elements of 10 bytes")


@pytest.mark.parametrize(("families", "status"), [(["xor"], Status.UNKNOWN), (["pad"], Status.INFEASIBLE)])
def test_what_is_not_searched_is_not_infeasible(families, status):
    found = solve(thirds(families=families, max_bytes=160), target=banks_of_four(), conflict_free=True)
    assert found.status is status
