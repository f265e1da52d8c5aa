"""Swizzles by Walsh spectrum against trying every swizzle, and against the solver."""

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest

from layoutopt.ground.budget import Budget
from layoutopt.model.cp_sat import Outcome
from layoutopt.search.walsh import Question, decide


@dataclass
class Phase:
    words: tuple
    low: int
    high: int
    ceiling: int


def question_of(phases, targets, first_source, still=(), last=None):
    lanes = max(len(p.words) for p in phases)
    words = np.array([p.words + (-1,) * (lanes - len(p.words)) for p in phases])
    low, high, ceiling = (np.array([getattr(p, k) for p in phases]) for k in ("low", "high", "ceiling"))
    return Question(words, low, high, ceiling, targets, first_source, still, last)


def every_swizzle(targets, first_source, sources):
    masks = [m << first_source for m in range(1 << sources)]
    for choice in itertools.product(masks, repeat=len(targets)):
        yield dict(zip(targets, choice, strict=True))


def serves(masks, question, phases):
    def flips(offset):
        return sum(1 << t for t, m in masks.items() if (offset & m).bit_count() & 1)

    for phase in phases:
        load = {}
        for word in phase.words:
            bank = ((word ^ flips(word)) & ((1 << phase.high) - 1)) >> phase.low
            load[bank] = load.get(bank, 0) + 1
        if max(load.values()) > phase.ceiling:
            return False
    for target, offsets in question.still:
        if any(flips(v) >> target & 1 for v in offsets):
            return False
    return question.last is None or flips(question.last[0]) in question.last[1]


def random_question(rng):
    high, sources = rng.choice([(2, 3), (3, 2), (3, 3)])
    phases = []
    for _ in range(rng.randint(1, 5)):
        low = rng.choice([0, 0, 1])
        space = [w << low for w in range(1 << (high + sources - low))]
        words = rng.sample(space, rng.randint(2, min(len(space), 1 << (high - low))))
        phases.append(Phase(tuple(words), low, high, rng.choice([1, 1, 1, 2])))
    targets = range(rng.choice([0, 0, 1]), high)
    still = [
        (t, [v << high for v in rng.sample(range(1 << sources), rng.randint(0, 2))])
        for t in targets
        if rng.random() < 0.3
    ]
    last = None
    if rng.random() < 0.4:
        flips = [f for f in range(0, 1 << high, 1 << targets.start) if rng.random() < 0.6]
        last = rng.randrange(1 << sources) << high, frozenset({0, *flips})
    return question_of(phases, targets, high, still, last), phases, sources


@pytest.mark.parametrize("block", range(10))
def test_agrees_with_every_swizzle(block):
    found = 0
    for seed in range(30):
        question, phases, sources = random_question(random.Random(f"{block}/{seed}"))
        outcome, masks = decide(question, Budget())
        exists = any(
            serves(m, question, phases)
            for m in every_swizzle(question.targets, question.first_source, sources)
        )
        assert outcome is (Outcome.FEASIBLE if exists else Outcome.INFEASIBLE), question
        if exists:
            found += 1
            assert serves(masks, question, phases), (question, masks)
            assert all(not m & ((1 << question.first_source) - 1) for m in masks.values())
            assert set(masks) <= set(question.targets)
    assert 0 < found < 30  # both answers are tried


def test_phases_of_one_bank_have_no_swizzle():
    question = question_of([Phase((0, 1, 2), 0, 0, 2)], range(2), 2)
    assert decide(question, Budget()) == (Outcome.INFEASIBLE, {})


def subspace(rng, bits, dimension):
    span = {0}
    while len(span) < 1 << dimension:
        vector = rng.randrange(1, 1 << bits)
        span |= {vector ^ other for other in span}
    return tuple(sorted(span))


@pytest.mark.parametrize(("count", "outcome"), [(20, Outcome.FEASIBLE), (45, Outcome.INFEASIBLE)])
def test_random_subspaces(count, outcome):
    rng = random.Random(count)
    phases = [Phase(subspace(rng, 14, 5), 0, 5, 1) for _ in range(count)]
    question = question_of(phases, range(5), 5)
    found, masks = decide(question, Budget())
    assert found is outcome
    if masks:
        assert serves(masks, question, phases)


def test_a_spent_budget_leaves_the_answer_open():
    rng = random.Random(0)
    phases = [Phase(subspace(rng, 14, 5), 0, 5, 1) for _ in range(30)]
    assert decide(question_of(phases, range(5), 5), Budget(0.0)) == (Outcome.UNKNOWN, {})
