"""Linearisations: what is listed is what plain loops list; pitches, as the model and as the list give them."""

import itertools
import math

import numpy as np
import pytest
from oracle import toy

import layoutopt.model.pads
from layoutopt.model.cp_sat import Model, Outcome
from layoutopt.model.linearisations import candidate_of, matrices, rotated, unpadded
from layoutopt.model.pads import padded
from layoutopt.model.pitches import PitchVariables, by_span
from layoutopt.model.space import Space

BANKS = 4
SPACES = {
    "none": ((4, 6), 1, {"none"}),
    "order": ((2, 3, 4), 1, {"none", "order"}),
    "pad": ((3, 4), 1, {"none", "pad"}),
    "pad, wide": ((3, 4), 2, {"none", "pad"}),
    "pad, an odd row": ((4, 3), 1, {"none", "order", "pad"}),
    "split": ((4, 6), 1, {"none", "order", "split"}),
    "split, wide": ((4, 8), 2, {"none", "order", "split"}),
    "split and pad": ((2, 6), 1, {"none", "order", "pad", "split"}),
    "interval": ((4, 8), 1, {"none", "order", "interval"}),
    "rotate": ((3, 4), 1, {"none", "order", "rotate"}),
    "rotate and pad": ((3, 4), 1, {"none", "pad", "rotate"}),
    "xor": ((4, 4), 1, {"none", "order", "pad", "split", "xor"}),
}


def space(shape, vector, families, **changes):
    """Every wide access starts at multiples of its width."""
    starts = np.array([x for x in np.ndindex(shape) if x[-1] % vector == 0]).T
    wide = ((vector, starts),) if vector > 1 else ()
    fields = {"period": BANKS, "stride_multiple": 1, "order": None, **changes}
    return Space(shape, vector, wide, families=frozenset(families), **fields)


def listed(given):
    """Every candidate, of all streams."""
    cuts = [unpadded(given, count) for count in range(3)]
    return list(itertools.chain(*cuts, rotated(given), padded(given)))


@pytest.mark.parametrize("name", SPACES)
def test_all_that_plain_loops_list_and_no_more_and_each_says_what_it_is(name):
    shape, vector, families = SPACES[name]
    found = listed(space(shape, vector, families))
    starts = range(0, shape[0] * shape[1], vector) if vector > 1 else ()
    wanted = {tuple(table) for table, _, _ in toy.linearisations(shape, vector, BANKS, families, starts)}
    assert {tuple(c.table(shape).tolist()) for c in found} == wanted
    for c in found:
        table = c.table(shape)
        assert len(np.unique(table)) == len(table)
        assert (table.min(), table.max()) == (0, c.span - 1)
        assert set(c.family.split("+")) <= families
        assert c.may_swizzle <= ("xor" in families)
        lines = table.reshape(-1, vector)
        assert (lines[:, 0] % vector == 0).all()
        assert (np.diff(lines, axis=1) == 1).all()


def test_pads_come_by_rising_span():
    spans = [c.span for c in padded(space((4, 6), 1, {"none", "order", "pad", "split", "interval"}))]
    assert spans == sorted(spans)
    assert spans[0] > 24


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_fixed_order_is_kept(order):
    given = space((2, 3, 4), 1, {"none", "order", "pad", "split", "rotate", "interval"}, order=order)
    for c in listed(given):
        assert tuple(digit.dim for digit in c.digits) == order


def test_every_stride_but_the_innermost_is_a_multiple():
    found = listed(space((3, 5), 1, {"none", "pad"}, stride_multiple=4))
    assert [c.digits[0].stride for c in found] == [8, 12]
    assert {c.digits[1].stride for c in found} == {1}


def test_matrices_put_any_bits_where_the_bank_is_selected():
    """Of a 4x4 tile on 4 banks: 2 of 4 coordinate bits, the others above in their order."""
    given = space((4, 4), 1, {"matrix"})
    tables = [c.table((4, 4)).tolist() for c in matrices(given, word_bits=0, bank_bits=2)]
    assert len({tuple(t) for t in tables}) == 6
    for table in tables:
        assert sorted(table) == list(range(16))
        assert all(table[a ^ b] == table[a] ^ table[b] for a in range(16) for b in range(16))
    # The bits inside a word may be of any dimension where no vector needs them along the last.
    column = matrices(space((32, 1), 1, {"matrix"}), word_bits=2, bank_bits=5)
    assert list(range(32)) in [c.table((32, 1)).tolist() for c in column]


EVERYWHERE = ((8, np.array(list(np.ndindex(2, 8, 4, 4, 2, 2))).T),)


@pytest.mark.parametrize(
    ("shape", "starts", "period", "families", "many"),
    [
        ((4, 3, 2, 4, 3, 2), (), 32, "none order pad interval rotate", 50),
        # Where 8-byte accesses keep 9-byte elements eight apart, no pair of pads is small: few are looked into.
        ((2, 8, 4, 4, 2, 2), EVERYWHERE, 128, "none order pad", 10),
    ],
)
def test_streams_open_when_their_first_candidate_is_next(monkeypatch, shape, starts, period, families, many):
    made = []

    def counted(*given, **named):
        made.append(given)
        return candidate_of(*given, **named)

    monkeypatch.setattr(layoutopt.model.pads, "candidate_of", counted)
    given = Space(shape, 1, starts, period, 1, None, frozenset(families.split()))
    spans = [c.span for c in itertools.islice(padded(given), many)]
    assert (len(spans), spans) == (many, sorted(spans))
    assert len(made) < 2000


def test_a_table_is_not_to_be_written():
    table = next(padded(space((4, 4), 1, {"pad"}))).table((4, 4))
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 1


def test_a_dimension_of_one_element_may_run_fastest_and_be_padded():
    """Order (1, 0) of a 1x5 tile: a pad of each line of one element is a stride of the others."""
    found = {c.span for c in padded(space((1, 5), 1, {"none", "order", "pad"}))}
    assert found == {1 + 4 * (1 + pad) for pad in range(1, BANKS)}
    assert not list(padded(space((1, 5), 1, {"none", "pad"})))


def sound(table, shape, vector, starts):
    """Whether every access is whole and aligned under element offsets by row-major index."""
    at = np.reshape(table, shape)
    for multiple, coordinates in starts:
        for start in coordinates.T.tolist():
            covered = [at[(*start[:-1], start[-1] + k)] for k in range(multiple if vector > 1 else 1)]
            if covered[0] % multiple or covered != list(range(covered[0], covered[0] + len(covered))):
                return False
    return True


def random_space(generator, families):
    shape = tuple(generator.choice([2, 3, 4, 5], generator.integers(2, 4)).tolist())
    vector = int(generator.choice([1, 2, 4])) if shape[-1] >= 4 else 1
    starts = []
    for _ in range(2):
        multiple = vector if vector > 1 else int(generator.choice([2, 4]))
        at = generator.integers(0, shape, (generator.integers(1, 5), len(shape))).T
        if vector > 1:
            at[-1] = at[-1] // vector * vector
            at[-1][at[-1] + vector > shape[-1]] = 0
        starts.append((multiple, at))
    return Space(shape, vector, tuple(starts), BANKS, 1, None, frozenset(families))


FAMILIES = ["none", "pad", "order pad", "order split", "order split pad", "interval", "rotate"]
FAMILIES += ["order interval pad", "rotate pad", "order rotate"]


@pytest.mark.parametrize("families", FAMILIES)
def test_what_keeps_accesses_aligned_is_listed(families):
    generator = np.random.default_rng(FAMILIES.index(families))
    several = 0
    for _ in range(12):
        given = random_space(generator, {"none", *families.split()})
        found = {tuple(c.table(given.shape).tolist()): c for c in listed(given)}
        assert all(sound(table, given.shape, given.vector, given.starts) for table in found)
        assert all(max(table) + 1 == c.span for table, c in found.items())
        every = toy.tables(given.shape, given.vector, BANKS, given.families, (), 1, None)
        wanted = {tuple(t) for t, *_ in every if sound(t, given.shape, given.vector, given.starts)}
        assert wanted <= set(found)
        several += len(wanted) > 0
    assert several


def test_few_rows_say_which_strides_keep_every_access_aligned():
    generator, seen = np.random.default_rng(1), set()
    for _ in range(100):
        given = random_space(generator, {"none", "pad"})
        whole, modulus = given.whole, given.multiple
        every = list(itertools.product(range(modulus), repeat=len(given.shape)))
        aligned = [s for s in every if not any((np.array(s) @ at % n).any() for n, at in given.starts)]
        assert [strides for strides in every if whole.hold(strides)] == aligned
        assert whole.one_by_one == (len(aligned) == math.prod(modulus // unit for unit in whole.units))
        assert whole.steps == tuple(math.gcd(modulus, *column) for column in zip(*aligned, strict=True))
        seen.add(whole.one_by_one)
    assert seen == {False, True}


# Pitches ------------------------------------------------------------------------------------------


def pitched(shape, **changes):
    given = {"vector": 1, "starts": (), "period": 4, "stride_multiple": 1, "order": None}
    return Space(shape, **{**given, "families": frozenset({"order", "pad", "xor"}), **changes})


def solved(given, most):
    """All pitches of a space by rising span, one solution of the model after the other."""
    model = Model()
    pitches = PitchVariables(model, given, most)
    model.minimise(pitches.span_terms)
    while (answer := model.solve()).outcome is Outcome.OPTIMAL:
        candidate = pitches.linearisation(answer.values)
        pitches.forbid(candidate)
        yield candidate


PITCHED = [
    pitched((3, 4)),
    pitched((2, 2, 3)),
    pitched((5,)),
    pitched((1, 4, 2)),
    pitched((3, 4), order=(1, 0)),
    pitched((2, 3), families=frozenset({"pad"})),
    pitched((2, 3, 2), families=frozenset({"order"})),
    pitched((3, 4), stride_multiple=5, families=frozenset({"order", "pad"})),
    pitched((3, 4), stride_multiple=6, families=frozenset({"order"})),
    pitched((4, 4), vector=2, starts=((2, np.array([[0, 1], [0, 2]])),)),
    pitched((1, 1), order=(0, 1)),
    # Strides that are even in sum only: pitches of 3 and 1, not of 3 and 2.
    pitched((3, 3), starts=((2, np.array([[0, 1], [0, 1]])),)),
    pitched((2, 3, 2), starts=((4, np.array([[1], [2], [1]])),)),
    pitched((1, 3, 2), starts=((4, np.array([[0], [1], [1]])),)),
    pitched((3, 4), vector=2, starts=((2, np.array([[1], [0]])),)),
    pitched((5, 5), vector=2, starts=((2, np.array([[1, 3], [2, 0]])),)),
]


@pytest.mark.parametrize("given", PITCHED)
def test_pitches_come_by_rising_span_and_none_is_left_out(given):
    """As solutions of the model, and listed: the same."""
    most = math.prod(given.shape) + 6
    found, by_model = list(by_span(given, most)), list(solved(given, most))
    spans = [c.span for c in found]
    assert spans == sorted(spans) == [c.span for c in by_model]
    assert len(set(found)) == len(found)
    assert set(by_model) == set(found)
