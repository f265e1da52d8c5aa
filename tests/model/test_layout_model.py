"""The model of pitches, order and masks, rule by rule; tests of the search hold its answers against every layout."""

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from layoutopt.layout.layout import Digit
from layoutopt.model.cp_sat import Model, Outcome
from layoutopt.model.pitches import PitchVariables, by_span, linearisation, pitches_of
from layoutopt.model.space import Space

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts/docs"))


def space(shape, **changes):
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


SPACES = [
    space((3, 4)),
    space((2, 2, 3)),
    space((5,)),
    space((1, 4, 2)),
    space((3, 4), order=(1, 0)),
    space((2, 3), families=frozenset({"pad"})),
    space((2, 3, 2), families=frozenset({"order"})),
    space((3, 4), stride_multiple=5, families=frozenset({"order", "pad"})),
    space((3, 4), stride_multiple=6, families=frozenset({"order"})),
    space((4, 4), vector=2, starts=((2, np.array([[0, 1], [0, 2]])),)),
    space((1, 1), order=(0, 1)),
    # Strides that are even in sum only: pitches of 3 and 1, not of 3 and 2.
    space((3, 3), starts=((2, np.array([[0, 1], [0, 1]])),)),
    space((2, 3, 2), starts=((4, np.array([[1], [2], [1]])),)),
    space((1, 3, 2), starts=((4, np.array([[0], [1], [1]])),)),
    space((3, 4), vector=2, starts=((2, np.array([[1], [0]])),)),
    space((5, 5), vector=2, starts=((2, np.array([[1, 3], [2, 0]])),)),
]


@pytest.mark.parametrize("given", SPACES)
def test_pitches_come_by_rising_span_and_none_is_left_out(given):
    """As solutions of the model, and listed: the same."""
    most = math.prod(given.shape) + 6
    found, by_model = list(by_span(given, most)), list(solved(given, most))
    spans = [c.span for c in found]
    assert spans == sorted(spans) == [c.span for c in by_model]
    assert len(set(found)) == len(found)
    assert set(by_model) == set(found)
    if given.stride_multiple == 1 and given.order is None and "pad" in given.families and not given.starts:
        wanted = set(nested(given.shape, most, 4))
        natural = {p for p in wanted if "order" in given.families or list(p) == sorted(p, reverse=True)}
        assert {pitches_of(c, len(given.shape)) for c in found} == natural


def nested(shape, most, period):
    """Pitches under which every dimension lies inside or around every other, by less than a period more than the
    one inside takes, the first of them at pitch 1."""
    dims = [d for d, extent in enumerate(shape) if extent > 1]
    for pitches in np.ndindex(*(most + 1 if extent > 1 else 1 for extent in shape)):
        span = 1 + sum((shape[d] - 1) * pitches[d] for d in dims)
        order = sorted((pitches[d], d) for d in dims)
        pads = [pitch - inner * shape[d] for (inner, d), (pitch, _) in itertools.pairwise(order)]
        if span <= most and all(0 <= pad < period for pad in pads) and [p for p, _ in order[:1]] in ([1], []):
            yield pitches


def test_pitches_as_digits():
    assert linearisation((1, 3), space((3, 4))).digits == (Digit(1, 1, 4, 3), Digit(0, 1, 3, 1))
    assert linearisation((5, 1), space((3, 4))).family == "pad"
    assert linearisation((4, 0, 1), space((2, 1, 4))).table((2, 1, 4)).tolist() == list(range(8))
    assert linearisation((8, 4, 0, 1, 0), space((4, 2, 1, 4, 1))).family == "none"
    vectors = space((4, 4), vector=2, starts=((2, np.array([[0, 1], [0, 2]])),))
    assert [pitches_of(c, 2) for c in by_span(vectors, 30)] == [(4, 1), (6, 1)]
