"""The model of pitches, order and masks, rule by rule; tests of the search hold its answers against every layout."""

import math

import numpy as np
import pytest

from layoutopt.model.cp_sat import Model, Outcome
from layoutopt.model.pitches import PitchVariables, by_span
from layoutopt.model.space import Space


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
