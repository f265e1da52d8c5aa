"""The layouts of the families that keep accesses whole and aligned are listed, however they do."""

import itertools
import math

import numpy as np
import pytest
from written import problem_of, writes

from layoutopt.model.linearisations import rotated, unpadded
from layoutopt.model.pads import padded
from layoutopt.model.pitches import most_pad
from layoutopt.model.space import Space
from layoutopt.search.solve import solve

BANKS = 4


def sound(table, shape, vector, starts):
    """Whether every access is whole and aligned under element offsets by row-major index."""
    at = np.reshape(table, shape)
    for multiple, coordinates in starts:
        for start in coordinates.T.tolist():
            covered = [at[(*start[:-1], start[-1] + k)] for k in range(multiple if vector > 1 else 1)]
            if covered[0] % multiple or covered != list(range(covered[0], covered[0] + len(covered))):
                return False
    return True


def digits_of(shape, cuts):
    """Every way to cut coordinates so often."""
    at = [(d, c) for d, extent in enumerate(shape) for c in range(2, extent) if extent % c == 0]
    for chosen in itertools.combinations(at, cuts):
        digits = []
        for d, extent in enumerate(shape):
            marks = [1, *sorted(c for dim, c in chosen if dim == d), extent]
            digits += [(d, low, high // low) for low, high in itertools.pairwise(marks) if high % low == 0]
        if math.prod(size for _, _, size in digits) == math.prod(shape):
            yield digits


def laid(shape, digits, pads):
    """Element offsets of digits, slowest first, with a pad on top of each."""
    strides, needed = {}, 1
    for digit, pad in zip(reversed(digits), reversed(pads), strict=True):
        strides[digit] = needed + pad
        needed = strides[digit] * digit[2]
    for x in np.ndindex(*shape):
        yield sum(x[dim] // divide % size * strides[dim, divide, size] for dim, divide, size in digits)


def members(space):
    """Element offsets of what the families hold, by plain loops, aligned or not."""
    shape = space.shape
    for cuts in range(3 if "split" in space.families else 1):
        for digits in digits_of(shape, cuts):
            for order in itertools.permutations(digits) if "order" in space.families else [digits]:
                gaps = [range(most_pad(space, digit) + 1) for digit in order[:-1]]
                for pads in itertools.product(*gaps) if "pad" in space.families else [(0,) * len(gaps)]:
                    if cuts == 0 or sum(pad > 0 for pad in pads) <= (cuts == 1):
                        yield list(laid(shape, order, (*pads, 0)))
                if cuts == 0:
                    dense = list(laid(shape, order, (0,) * len(order)))
                    yield from of_lines(space, order, dense)


def of_lines(space, order, dense):
    """Interval pads after a dense order, and its lines turned, at a padded pitch too."""
    line = order[-1][2]
    if "interval" in space.families:
        for every, extra in itertools.product((2, 4, 8, line), range(1, BANKS)):
            if 1 < every < len(dense):
                yield [v + v // every * extra for v in dense]
    if "rotate" in space.families and line < len(dense):
        for turn, pad in itertools.product(range(1, line), range(BANKS if "pad" in space.families else 1)):
            yield [v // line * (line + pad) + (v % line + turn * (v // line)) % line for v in dense]


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


FAMILIES = ["none", "pad", "order pad", "order split", "split pad", "interval", "rotate"]
FAMILIES += ["order interval pad", "rotate pad", "order rotate"]


@pytest.mark.parametrize("families", FAMILIES)
def test_what_keeps_accesses_aligned_is_listed(families):
    generator = np.random.default_rng(FAMILIES.index(families))
    several = 0
    for _ in range(12):
        given = random_space(generator, {"none", *families.split()})
        every = [
            *unpadded(given, 0),
            *unpadded(given, 1),
            *unpadded(given, 2),
            *rotated(given),
            *padded(given),
        ]
        found = {tuple(c.table(given.shape).tolist()): c for c in every}
        assert all(sound(table, given.shape, given.vector, given.starts) for table in found)
        assert all(max(table) + 1 == c.span for table, c in found.items())
        wanted = {tuple(t) for t in members(given) if sound(t, given.shape, given.vector, given.starts)}
        assert wanted <= set(found)
        several += len(wanted) > 0
    assert several


def test_few_rows_say_which_strides_keep_every_access_aligned():
    generator = np.random.default_rng(1)
    seen = set()
    for _ in range(100):
        given = random_space(generator, {"none", "pad"})
        whole, modulus = given.whole, given.multiple
        every = list(itertools.product(range(modulus), repeat=len(given.shape)))
        aligned = [
            strides
            for strides in every
            if not any((np.array(strides) @ at % multiple).any() for multiple, at in given.starts)
        ]
        assert [strides for strides in every if whole.hold(strides)] == aligned
        assert whole.one_by_one == (len(aligned) == math.prod(modulus // unit for unit in whole.units))
        assert whole.steps == tuple(math.gcd(modulus, *column) for column in zip(*aligned, strict=True))
        seen.add(whole.one_by_one)
    assert seen == {False, True}


def test_lines_are_of_the_last_dimension_that_has_more_than_one_value():
    store = writes("a", 8, ["i", "0", "0"], i=2)
    problem = problem_of("7x3x1 14B@2, 1 threads; families none pad rotate", store)
    found = solve(problem)
    assert (found.offset, found.family, found.bytes) == ("x0*3 + (x1 + x0) % 3", "rotate", 294)
