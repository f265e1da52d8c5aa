"""Layouts as data of other tools: evaluated again, they are the layout."""

import itertools

import numpy as np
import pytest

from layoutopt.layout.layout import Digit, Layout, Target, row_major

ROWS = (Digit(0, 1, 32, 32), Digit(1, 1, 32, 1))
SWIZZLED = Layout((32, 32), 4, ROWS, tuple(Target(b, 32 << b) for b in range(3)))
PADDED = Layout((32, 32), 4, (Digit(0, 1, 32, 33), Digit(1, 1, 32, 1)))
SPREAD = Layout((32, 32), 4, ROWS, interval=(64, 4))
TURNED = Layout((32, 32), 4, ROWS, turn=1)
PAGES = Layout((12, 16), 2, (Digit(1, 4, 4, 48), Digit(0, 1, 12, 4), Digit(1, 1, 4, 1)))
TABLE = Layout((2, 2), 4, (), lookup=(3, 1, 0, 2))


def every(layout):
    return itertools.product(*map(range, layout.shape))


def bits(number):
    return (k for k in range(number.bit_length()) if number >> k & 1)


@pytest.mark.parametrize("layout", [SWIZZLED, row_major((8, 16), 2)])
def test_linear_bases(layout):
    columns, reason = layout.linear_bases()
    assert reason is None
    for x in every(layout):
        parts = [columns[d][k] for d, number in enumerate(x) for k in bits(number)]
        assert np.bitwise_xor.reduce([0, *parts]) == layout.element_offset(*x)


@pytest.mark.parametrize("layout", [PADDED, TURNED, SPREAD])
def test_not_linear(layout):
    assert layout.linear_bases() == (None, "the offset is not linear over F2")


def mode(shape, stride, number):
    """CuTe: a coordinate of a nested mode counts its first part fastest."""
    if isinstance(shape, int):
        return number * stride
    total = 0
    for extent, step in zip(shape, stride, strict=True):
        total, number = total + number % extent * step, number // extent
    return total


@pytest.mark.parametrize("layout", [SWIZZLED, PADDED, PAGES, row_major((3, 5, 7), 4)])
def test_cute(layout):
    data, _ = layout.cute()
    for x in every(layout):
        offset = sum(map(mode, data["shape"], data["stride"], x))
        if data["swizzle"]:
            count, base, shift = data["swizzle"]
            offset ^= (offset & ((1 << count) - 1) << (base + shift)) >> shift
        assert offset == layout.element_offset(*x)


def test_cute_has_no_such_form():
    for layout in (TURNED, SPREAD, TABLE):
        assert layout.cute() == (None, "tables, turned lines and interval pads are no shape and stride")
    twice = Layout((32, 32), 4, ROWS, (Target(0, 32 | 64),))
    assert twice.cute() == (None, "no Swizzle<B, M, S> flips these bits")


@pytest.mark.parametrize("layout", [SWIZZLED, SPREAD, Layout((32, 32), 4, PADDED.digits)])
def test_padded(layout):
    data, _ = layout.padded()
    for place in range(32 * 32):
        x = np.bitwise_xor.reduce([[0, 0], *(data["offset_bases"][k] for k in bits(place))])
        pads = sum(place // every * pad for every, pad in data["interval_padding_pairs"])
        assert place + pads == layout.element_offset(*x)


def test_no_padded_form():
    assert PAGES.padded().reason == "padded layouts have extents that are powers of two"
    assert TURNED.padded().reason == "the order of the elements is not linear over F2"
    wide = Layout((32, 32), 4, (Digit(0, 1, 32, 35), Digit(1, 1, 32, 1)))
    assert wide.padded().reason == "the pads are no powers of two after intervals that are"
