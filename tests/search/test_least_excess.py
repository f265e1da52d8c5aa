"""The least excess of a few linearisations, by the tree, against every mask; and the swizzles no scope names."""

import itertools
import random

import numpy as np
import pytest
from oracle import toy
from oracle.toy import apply
from written import constrained, problem_of

from layoutopt import Status, Tile, check, load
from layoutopt.engine.case import case_of
from layoutopt.hardware.devices import Device, PhaseRule, device
from layoutopt.layout.layout import Digit
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.phases import Phases
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


def asked(candidate, phases, tile, field, most, below):
    given, last = rules(candidate, field, tile), last_block(candidate, field, tile)
    return Question(phases, field, given, last, candidate.span, most, below)


def least(*given):
    answer = least_excess(asked(*given), 1 << 30)
    assert answer.complete
    return answer.best


@pytest.mark.parametrize("block", range(4))
def test_the_tree_finds_the_least_of_all_masks(block):
    """Of all linearisations within a bound, of one within its bytes, and within ceilings where there are any."""
    better, verdicts = 0, set()
    for seed in range(25 * block, 25 * block + 25):
        tile, field, batch, starts = random_question(seed)
        chance, reachable = random.Random(seed), []
        for candidate, phases in batch:
            every = [
                (phases.excess(masks), used, masks)
                for masks, used in every_swizzle(candidate, tile, field, starts)
            ]
            reachable.append(min(cost[:2] for cost in every))
            for most in {used for _, used, _ in every} if seed % 25 == 3 else ():
                found = least(candidate, phases, tile, field, most, (1000, 0))
                assert (found.excess, found.used) == min(cost[:2] for cost in every if cost[1] <= most)
            ceilings = np.maximum([chance.choice([1, 1, 2]) for _ in range(len(phases))], phases.ideal)
            sizes = [
                used
                for _, used, masks in every
                if used <= candidate.span and (phases.costs(masks) <= ceilings).all()
            ]
            question = asked(candidate, phases, tile, field, candidate.span, (0, 0))
            answer = within_ceilings(question, ceilings, 1 << 30)
            assert (answer.complete, answer.best is not None) == (True, bool(sizes)), seed
            if answer.best is not None:
                assert (phases.costs(answer.best.masks) <= ceilings).all()
                assert answer.best.used == min(sizes)
            verdicts.add(bool(sizes))
        plain, best = min((phases.excess({}), c.span) for c, phases in batch), min(reachable)
        better += best < plain
        for below in (plain, (best[0], best[1] + 1), best):
            found = below
            for candidate, phases in batch:
                one = least(candidate, phases, tile, field, None, found)
                if one is not None:
                    found = one.excess, one.used
                    assert phases.excess(one.masks) == one.excess, seed
            assert found == (best if best < below else below), (seed, below)
    assert (better > 5, verdicts) == (True, {True, False})


def test_accesses_that_see_different_numbers_of_banks():
    """Their masks may read bits that others select banks by; what the last block takes is not looked at."""
    for seed in range(40):
        tile, field, batch, starts = random_question(seed, halves=True)
        every = [
            phases.excess(masks) for c, phases in batch for masks, _ in every_swizzle(c, tile, field, starts)
        ]
        for below, expected in ((min(every) + 1, {min(every)}), (min(every), set())):
            found = [least(c, phases, tile, field, None, (below, 0)) for c, phases in batch]
            assert {one.excess for one in found if one is not None} == expected, seed


def test_a_tree_out_of_steps_says_so():
    tile, field, batch, _ = random_question(1)
    question = asked(*batch[0], tile, field, None, (1000, 0))
    assert not least_excess(question, 1).complete
    assert least_excess(question, 1 << 20).complete


def test_phases_that_no_mask_changes_only_add_their_floor():
    """A lane alone costs one wavefront: nothing to decide but the bytes of the last block."""
    tile, field, batch, _ = random_question(1)
    candidate, _ = batch[0]
    each, none = np.ones(1, np.int64), np.zeros(0, np.int64)
    alone = Phases(np.array([[-1, 3]]), 0 * each, BANK_BITS * each, 5 * each, each, each)
    nobody = Phases(np.zeros((0, 0), np.int64), *[none] * 5)
    last = last_block(candidate, field, tile)
    shortest = candidate.span if last is None else min(last.reach.values())
    for phases in (alone, nobody):
        found = least(candidate, phases, tile, field, None, (1, 1000))
        assert (found.excess, found.used) == (0, shortest)


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
    problem = constrained(load(name), families=("none", "order", "pad", "xor"))
    found = formulas(case_of(problem, device(problem.target)), Ask())
    assert (found.weighted_excess, found.bytes) == (excess, size)
    assert (found.complete, found.decided_by) == (True, "tree")


def test_a_scope_names_the_sources_that_are_left_out():
    """Every second row of 16 words starts at one bank, unless a swizzle reads a bit inside a group."""
    given, lanes = toy.toy_device(16, 16), (tuple(range(16)),)
    rules = {
        **given.rules,
        ("load", 1): PhaseRule(lanes, 16, 4, row_words=32),
    }  # bytes, in groups of 32 words
    gpu = Device("grouped", "grouped", 16, 16, 4, rules)
    problem = problem_of("""8x8 f64, 16 threads; families none xor
        rows: store 8 [lane % 8, 0]
        single: load 1 [0, lane % 8]""")
    assert check(problem, "x0*8 + (x1 ^ x0)", target=gpu).excess == 0
    found, outside = solve(problem, target=gpu), ", XOR sources outside groups of 32 words"
    assert (found.excess > 0, found.proof.excess.scope) == (True, "families none, xor" + outside)
    refused = solve(problem, target=gpu, conflict_free=True)
    assert (refused.status, outside in refused.reason) == (Status.UNKNOWN, True)


def test_elements_of_odd_sizes_have_no_swizzle_in_the_scope():
    """Bytes of every third element of 10 bytes; what is not searched is not infeasible."""
    given = toy.toy_device(8, 4)
    rules = {**given.rules, ("load", 1): PhaseRule((tuple(range(8)),), 4, 4)}
    gpu, flat = Device("four", "four", 8, 4, 4, rules), "(tid + 32*i)"
    problem = problem_of("5x3 10B, 4 threads", f"a: load 1 [({flat}//3 + i) % 5, {flat} % 3]; i<3")
    swizzled, found = check(problem, "(x0*3 + x1) ^ (x0*3 + x1)//8", target=gpu), solve(problem, target=gpu)
    assert swizzled.excess == found.excess == 0
    assert swizzled.bytes < found.bytes == found.proof.bytes.lower_bound
    assert found.proof.bytes.scope.endswith(", no XOR over elements of 10 bytes")
    for families, status in ((("xor",), Status.UNKNOWN), (("pad",), Status.INFEASIBLE)):
        limited = constrained(problem, families=families, max_bytes=160)
        assert solve(limited, target=gpu, conflict_free=True).status is status
