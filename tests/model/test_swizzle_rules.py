"""Rules of the swizzle model, one by one: every swizzle is fixed in turn, and the model asked whether it may be."""

import itertools

import numpy as np
import pytest
from oracle import toy

from layoutopt.layout.layout import Digit
from layoutopt.model.cp_sat import Outcome
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.masks import within_ceilings
from layoutopt.model.phases import Phases
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
    return model.solve().outcome is not Outcome.INFEASIBLE


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
        assert given.excess(masks) == sum(w * (cost - 1) for w, cost in zip((3, 1, 5), costs, strict=True))


def parity(masks, bit, word):
    return (masks[bit] & word).bit_count() % 2


@pytest.mark.parametrize(
    ("given", "may"),
    [
        # Bit 0 lies inside vectors of two words: it may not be flipped where such a vector starts.
        (Rules(range(2), ((0, (0b00100, 0b11000)),), None), lambda m: not parity(m, 0, 4) + parity(m, 0, 24)),
        # The last block is flipped only as it may be.
        (Rules(range(2), (), (0b10100, frozenset((0, 2)))), lambda m: not parity(m, 0, 20)),
    ],
    ids=["vectors", "last block"],
)
def test_masks_that_a_rule_leaves(given, may):
    for masks in MASKS:
        assert allowed(ALL, LAX, masks, given) == may(masks), masks


@pytest.mark.parametrize(("rows", "vector_rows"), [(6, ()), (8, (0, 1)), (7, (0, 2)), (5, (0, 1, 2, 3, 4))])
def test_rules_are_those_of_the_tile(rows, vector_rows):
    """Rows of four words, some read as vectors of two: whole vectors, and no more bytes than without."""
    size, tile = 4 * rows, Tile((rows, 4), "f32")
    candidate = Linearisation((Digit(0, 1, rows, 4), Digit(1, 1, 4, 1)), size, 3, "none", True)
    starts = np.array([4 * row + 2 * half for row in vector_rows for half in (0, 1)], np.int64)
    field = Field(range(2), 2, 4, range(0), ((1, starts),) if vector_rows else ())
    given = rules(candidate, field, tile)
    found = list(textbook(field, given, size - 1))
    sources = range(1 << (size - 1).bit_length() - 2)
    for low, high in itertools.product(sources, sources):
        masks = {0: low << 2, 1: high << 2}
        table = [toy.apply(masks, word) for word in range(size)]
        whole = all(table[s] % 2 == 0 and table[s + 1] == table[s] + 1 for s in starts.tolist())
        fits = whole and max(table) < size
        if all(bit in given.targets for bit, mask in masks.items() if mask):
            assert allowed(phases(range(size)), [size - 1], masks, given, field) == fits, masks
        else:
            assert not whole
        assert fits or masks not in found
    assert found
