"""Swizzles by Walsh spectrum against trying every swizzle, and against the solver."""

import itertools
import random

import pytest

from layoutopt.cpmodel.solver import Budget, Outcome
from layoutopt.cpmodel.walsh import LinearPhase, Question, decide


def every_swizzle(targets, first_source, sources):
    masks = [m << first_source for m in range(1 << sources)]
    for choice in itertools.product(masks, repeat=len(targets)):
        yield dict(zip(targets, choice, strict=True))


def serves(masks, question):
    def flips(offset):
        return sum(1 << t for t, m in masks.items() if (offset & m).bit_count() & 1)

    for phase in question.phases:
        load = {}
        for word in phase.words:
            bank = ((word ^ flips(word)) & ((1 << phase.high) - 1)) >> phase.low
            load[bank] = load.get(bank, 0) + 1
        if max(load.values()) > phase.ceiling:
            return False
    for target, offsets in question.still:
        if any(flips(v << question.first_source) >> target & 1 for v in offsets):
            return False
    return question.last is None or flips(question.last[0] << question.first_source) in question.last[1]


def random_question(rng):
    high, sources = rng.choice([(2, 3), (3, 2), (3, 3)])
    phases = []
    for _ in range(rng.randint(1, 5)):
        low = rng.choice([0, 0, 1])
        space = [w << low for w in range(1 << (high + sources - low))]
        words = rng.sample(space, rng.randint(2, min(len(space), 1 << (high - low))))
        phases.append(LinearPhase(tuple(words), low, high, rng.choice([1, 1, 1, 2])))
    targets = range(rng.choice([0, 0, 1]), high)
    still = [(t, rng.sample(range(1 << sources), rng.randint(0, 2))) for t in targets if rng.random() < 0.3]
    last = None
    if rng.random() < 0.4:
        flips = [f for f in range(0, 1 << high, 1 << targets.start) if rng.random() < 0.6]
        last = rng.randrange(1 << sources), frozenset({0, *flips})
    return Question(phases, targets, high, still, last), sources


@pytest.mark.parametrize("block", range(10))
def test_agrees_with_every_swizzle(block):
    found = 0
    for seed in range(30):
        question, sources = random_question(random.Random(f"{block}/{seed}"))
        outcome, masks = decide(question, Budget())
        exists = any(
            serves(m, question) for m in every_swizzle(question.targets, question.first_source, sources)
        )
        assert outcome is (Outcome.FEASIBLE if exists else Outcome.INFEASIBLE), question
        if exists:
            found += 1
            assert serves(masks, question), (question, masks)
            assert all(not m & ((1 << question.first_source) - 1) for m in masks.values())
            assert set(masks) <= set(question.targets)
    assert 0 < found < 30  # both answers are tried


def subspace(rng, bits, dimension):
    span = {0}
    while len(span) < 1 << dimension:
        vector = rng.randrange(1, 1 << bits)
        span |= {vector ^ other for other in span}
    return tuple(sorted(span))


@pytest.mark.parametrize(("count", "outcome"), [(20, Outcome.FEASIBLE), (45, Outcome.INFEASIBLE)])
def test_random_subspaces(count, outcome):
    rng = random.Random(count)
    phases = [LinearPhase(subspace(rng, 14, 5), 0, 5, 1) for _ in range(count)]
    question = Question(phases, range(5), 5, (), None)
    found, masks = decide(question, Budget())
    assert found is outcome
    if masks:
        assert serves(masks, question)


def test_a_spent_budget_leaves_the_answer_open():
    rng = random.Random(0)
    phases = [LinearPhase(subspace(rng, 14, 5), 0, 5, 1) for _ in range(30)]
    assert decide(Question(phases, range(5), 5, (), None), Budget(0.0)) == (Outcome.UNKNOWN, {})
