"""Rules of the swizzle model, one by one: every swizzle is fixed in turn, and the model asked whether it may be."""

import itertools

import numpy as np
import pytest
from oracle import toy

from layoutopt.ground.budget import Budget
from layoutopt.layout.layout import Digit
from layoutopt.model.cp_sat import Outcome
from layoutopt.model.linear_phases import Phases
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.masks import within_ceilings
from layoutopt.model.swizzle_rules import Field, Rules, rules, textbook
from layoutopt.problems.types import Tile

FREE = Rules(range(2), (), None)
# Four banks, eight words of source: bits 0 and 1 are flipped by bits 2 to 4.
FIELD = Field(range(2), 2, 4, range(0), ())
MASKS = [{0: low << 2, 1: high << 2} for low in range(8) for high in range(8)]


def phases(*words, weight=None, chunk_bits=0):
    """Phases of words on four banks."""
    lanes = max(map(len, words))
    rows = np.array([[*sorted(w), *[-1] * (lanes - len(w))] for w in words])
    each = np.ones(len(words), np.int64)
    weight = each if weight is None else np.array(weight)
    return Phases(rows, chunk_bits * each, 2 * each, weight, each, each)


def plain_costs(given, masks):
    """Wavefronts of each phase: the fullest bank."""
    banks = [[toy.apply(masks, w) % 4 for w in given.held(k)] for k in range(len(given))]
    return [max(map(row.count, row)) for row in banks]


def allowed(given, ceilings, masks, rules=FREE, field=FIELD):
    """Whether the model has these masks, with every mask bit that it has fixed."""
    model = within_ceilings(given, field, rules, np.array(ceilings)).model
    for bit, name in model.names.items():
        if name.startswith("mask_"):
            target, source = map(int, name.split("_")[1:])
            model.clause([bit if masks.get(target, 0) >> source & 1 else -bit - 1])
    return model.solve(Budget()).outcome is not Outcome.INFEASIBLE


COLUMNS = phases((0, 4, 8, 12), (0, 5, 10, 15), (1, 2, 16, 19), (3, 7))
# No swizzle puts all words of several rows of banks into one bank: the ceiling holds for all.
ALL, LAX = phases(range(32)), [31]


@pytest.mark.parametrize("ceilings", [(1, 1, 1, 1), (2, 1, 4, 2), (1, 2, 2, 1), (3, 3, 3, 3)])
def test_no_phase_costs_more_than_its_ceiling(ceilings):
    verdicts = set()
    for masks in MASKS:
        holds = all(cost <= most for cost, most in zip(plain_costs(COLUMNS, masks), ceilings, strict=True))
        assert allowed(COLUMNS, ceilings, masks) == holds, masks
        verdicts.add(holds)
    assert verdicts == {True, False}


def test_the_excess_is_what_counting_finds():
    given = phases((0, 4, 8, 12), (0, 5, 10, 15), (1, 2, 16, 19), weight=(3, 1, 5))
    for masks in MASKS[::3]:
        costs = plain_costs(given, masks)
        assert given.costs(masks).tolist() == costs
        excess = sum(w * (cost - 1) for w, cost in zip((3, 1, 5), costs, strict=True))
        assert given.excess(masks) == excess


def test_vectors_stay_whole():
    """Bit 0 lies inside vectors of two words: it may not be flipped where such a vector starts."""
    given = Rules(range(2), ((0, (0b00100, 0b11000)),), None)
    for masks in MASKS:
        whole = all((masks[0] & start).bit_count() % 2 == 0 for start in (0b00100, 0b11000))
        assert allowed(ALL, LAX, masks, given) == whole, masks


def test_the_last_block_is_flipped_only_as_it_may_be():
    given = Rules(range(2), (), (0b10100, frozenset((0, 2))))
    for masks in MASKS:
        flips = sum(((masks[bit] & 0b10100).bit_count() % 2) << bit for bit in (0, 1))
        assert allowed(ALL, LAX, masks, given) == (flips in (0, 2)), masks


def row_major(rows, columns):
    digits = (Digit(0, 1, rows, columns), Digit(1, 1, columns, 1))
    return Linearisation(digits, rows * columns, 3, "none", True)


@pytest.mark.parametrize(("rows", "vector_rows"), [(6, ()), (8, (0, 1)), (7, (0, 2)), (5, (0, 1, 2, 3, 4))])
def test_rules_are_those_of_the_tile(rows, vector_rows):
    """Rows of four words, some read as vectors of two: whole vectors, and no more bytes than without."""
    candidate, tile = row_major(rows, 4), Tile((rows, 4), "f32")
    starts = np.array([4 * row + 2 * half for row in vector_rows for half in (0, 1)], np.int64)
    field = Field(range(2), 2, 4, range(0), ((1, starts),) if vector_rows else ())
    given = rules(candidate, field, tile)
    found = list(textbook(field, given, 4 * rows - 1))
    top = (4 * rows - 1).bit_length()
    sources = range(1 << top - 2)
    for low, high in itertools.product(sources, sources):
        masks = {0: low << 2, 1: high << 2}
        table = [toy.apply(masks, word) for word in range(4 * rows)]
        whole = all(table[s] % 2 == 0 and table[s + 1] == table[s] + 1 for s in starts.tolist())
        every = phases(range(4 * rows))
        kept = {bit: mask for bit, mask in masks.items() if bit in given.targets}
        if kept == {bit: mask for bit, mask in masks.items() if mask or bit in given.targets}:
            fits = whole and max(table) < 4 * rows
            assert allowed(every, [4 * rows - 1], masks, given, field) == fits, masks
        else:
            assert not whole
        if masks in found:
            assert whole
            assert max(table) < 4 * rows
    assert found
