"""Out of time: layouts with pads that cost next to nothing to find.

First pads after every so many elements of row-major, by rising bytes. Then pads of whole dimensions: a climb
from row-major, then from orders drawn at random, goes to the best of the layouts that exchange two
dimensions, move one, or give one another pad. They are counted together, over some of the phases; where none
is better, the top is counted over all of them. Nothing is refuted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.model.linear_phases import phases_of
from layoutopt.model.linearisations import Linearisation, unpadded
from layoutopt.model.pads import padded
from layoutopt.model.phases import PhaseSet
from layoutopt.model.pitches import Pitches, fixed_order, in_order, linearisation, span_of
from layoutopt.search.found import Found
from layoutopt.search.many_orders import counted_together
from layoutopt.search.scene import Scene

# Shares of the time left; where swizzles are sought, they need the rest.
_SHARE, _SHARE_BESIDE_SWIZZLES, _SHARE_OF_INTERVALS = 0.5, 0.35, 0.1
_MOST_INTERVALS: Final = 512
_LEAST_SECONDS: Final = 0.1  # for the first climb, over some of the phases, which is better than row-major
_CLIMBS: Final = 48
_STEPS: Final = 32
_PHASES: Final = 32  # of each rule, of which the layouts beside one are counted
_PADS: Final = 12  # of each dimension, drawn at random
_SEED: Final = 1


def fall_back(scene: Scene) -> None:
    """Add the best layouts of a few climbs to the tally, and one at least.

    Where counting one takes longer than there is, as of millions of lanes, it is the top of the first climb.
    """
    scene.tally.exhausted = False
    climb = _Climb(scene, scene.budget.at_least(_LEAST_SECONDS))
    tops, first = climb.tops(), None
    with suppress(OutOfTime):
        first = next(tops, None)
    if first is not None:
        _count(scene, first)
    if first is None or not scene.budget.spent:
        with suppress(OutOfTime):
            if (plain := next(unpadded(scene.space, 0), None)) is not None:
                before = scene.budget.elapsed
                _count(scene, plain)
                _count_intervals(scene, scene.budget.elapsed - before)
    climb.budget = scene.budget.part(_SHARE if scene.field is None else _SHARE_BESIDE_SWIZZLES)
    with suppress(OutOfTime):
        for top in climb.budget.while_left(tops):
            _count(scene, top)


def _count_intervals(scene: Scene, seconds: float) -> None:
    """Add them, each of which takes so many seconds, up to one that no layout is better than."""
    families = scene.space.families & {"none", "interval"}
    part = scene.budget.part(_SHARE_OF_INTERVALS)
    every = padded(replace(scene.space, families=families, budget=part))
    for candidate in part.while_left(itertools.islice(every, _MOST_INTERVALS)):
        if not (scene.fits(candidate.span) and part.affords(seconds)):
            return
        _count(scene, candidate)
        if scene.tally.unswizzled[-1].excess == scene.floor:
            return


def _count(scene: Scene, candidate: Linearisation) -> None:
    if scene.fits(candidate.span):
        excess = phases_of(candidate, scene.sets, scene.tile).excess({})
        scene.tally.unswizzled.append(Found(candidate, {}, excess, candidate.operations))


@dataclass(frozen=True, slots=True)
class _Place:
    """Dimensions of more than one element, slowest first; their pads in steps, from the inside out."""

    order: tuple[int, ...]
    pads: tuple[int, ...]


class _Climb:
    def __init__(self, scene: Scene, budget: Budget) -> None:
        self.scene, self.space, self.budget = scene, scene.space, budget
        self.rng = np.random.default_rng(_SEED)
        self.few = [self._some(s) for s in scene.sets if len(s.elements)]

    def _some(self, phase_set: PhaseSet) -> PhaseSet:
        count = len(phase_set.elements)
        rows = np.sort(self.rng.permutation(count)[:_PHASES])
        weight = phase_set.weight[rows] * (count // len(rows))
        return replace(phase_set, elements=phase_set.elements[rows], weight=weight)

    def tops(self) -> Iterator[Linearisation]:
        """The tops of the climbs, each once."""
        fixed = fixed_order(self.space)
        dims = tuple(d for d in fixed or range(len(self.space.shape)) if self.space.shape[d] > 1)
        seen: set[Pitches] = set()
        for number in range(_CLIMBS):
            order = tuple(self.rng.permutation(dims).tolist()) if number and fixed is None else dims
            pads = self.rng.integers(0, _PADS, len(dims)) * (number > 0 and "pad" in self.space.families)
            top = self._top(_Place(order, tuple(pads.tolist())))
            if top is not None and top not in seen:
                seen.add(top)
                yield linearisation(top, self.space)

    def _top(self, place: _Place) -> Pitches | None:
        """Where the climb from a place ends; the place may be no layout, those beside it count then."""
        best: tuple[int, int] | None = None
        top: Pitches | None = None
        for _ in range(_STEPS):
            self.budget.check()
            beside = list(dict.fromkeys([place] * (top is None) + list(self._beside(place))))
            known = [(p, pitches) for p in beside if (pitches := self._pitches(p)) is not None]
            if not known:
                return top
            costs = self._costs(np.array([pitches for _, pitches in known]))
            spans = [span_of(self.space, pitches) for _, pitches in known]
            ranks = list(zip(costs.tolist(), spans, strict=True))
            k = min(range(len(known)), key=ranks.__getitem__)
            if best is not None and ranks[k] >= best:
                return top
            best, (place, top) = ranks[k], known[k]
        return top

    def _pitches(self, place: _Place) -> Pitches | None:
        pitches = in_order(self.space, place.order, place.pads)
        if pitches is None or not self.scene.fits(span_of(self.space, pitches)):
            return None
        return pitches

    def _beside(self, place: _Place) -> Iterator[_Place]:
        order, pads = place.order, place.pads
        if fixed_order(self.space) is None:
            for a, b in itertools.combinations(range(len(order)), 2):
                exchanged = list(order)
                exchanged[a], exchanged[b] = order[b], order[a]
                yield _Place(tuple(exchanged), pads)
                yield _Place((*order[:a], *order[a + 1 : b + 1], order[a], *order[b + 1 :]), pads)
        if "pad" in self.space.families:
            for k, pad in enumerate(pads):
                drawn = self.rng.integers(0, self.space.period, _PADS).tolist()
                for other in (0, pad - 1, pad + 1, *drawn):
                    if other >= 0:
                        yield _Place(order, (*pads[:k], other, *pads[k + 1 :]))

    def _costs(self, pitches: IntArray) -> IntArray:
        """Weighted excess of each over the few phases."""
        total = np.zeros(len(pitches), np.int64)
        for s in self.few:
            costs, ideal = counted_together(self.scene.tile, s, s.elements, pitches)
            total += (costs - np.maximum(1, ideal)) @ s.weight
        return total
