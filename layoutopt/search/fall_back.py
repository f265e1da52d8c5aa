"""Many layouts of pitches counted together: orders without avoidable conflicts; layouts when time is over.

A tile of eight dimensions has 40,320 orders in its own bytes. Counted one by one they take longer than
anybody waits, and the model has no better way among them. Phase by phase, all orders left are counted at
once, and most fall at the first phase (`likely`).

Out of time, first pads after every so many elements of row-major, by rising bytes. Then pads of whole
dimensions: a climb goes to the best of the layouts in which one dimension lies anywhere in the order, with
any pad, until no dimension makes it better. The first begins at row-major, the others at places drawn at
random, or near the best so far. Layouts are counted together, over some of the phases, of those that any
pitches serve alike one; the top is counted over all of them. Nothing is refuted.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import OutOfTime, checkpoint, current, spending
from layoutopt.model.linearisations import Linearisation, unpadded
from layoutopt.model.pads import padded
from layoutopt.model.phases import PhaseSet, costs_of, ideal_of, words_of
from layoutopt.model.pitches import (
    Pitches,
    by_span,
    fixed_order,
    in_orders,
    linearisation,
    spans_of,
)
from layoutopt.problems.types import Tile
from layoutopt.search.refuters import Refuters
from layoutopt.search.scene import Scene

_TOGETHER: Final = 1024  # orders that are counted together
# Shares of the work left; where swizzles are sought, they need the rest.
_SHARE, _SHARE_BESIDE_SWIZZLES, _SHARE_OF_INTERVALS = 0.5, 0.35, 0.1
_MOST_INTERVALS: Final = 512  # layouts with pads at intervals
_INTERVALS_TOGETHER: Final = 32  # of these, counted together
_LEAST_SECONDS: Final = 0.1  # for the first climb, over some of the phases, which is better than row-major
_FRUITLESS: Final = 64  # climbs without a better layout, after which there is none
_ANEW: Final = 0.5  # share of the climbs that begin at a place drawn at random; others begin near the best
_SHAKEN: Final = 3  # dimensions that are put elsewhere for these
_UNPADDED: Final = 0.2  # share of the pads drawn that are none
_LOOKED_AT, _PHASES = 1024, 32  # phases of each rule; of those apart, by how many layouts are ranked
_PLACES: Final = 256  # layouts that are ranked together, about
_SEED: Final = 1
# Seconds of work for a layout that is ranked, and for each lane of a phase in a layout that is counted.
_EFFORT_A_PLACE, _EFFORT_AN_ENTRY = 3e-6, 2.5e-8


def likely(scene: Scene) -> Iterator[Linearisation]:
    """Orders of dimensions, without pads, in which no phase costs more than its bound; row-major first."""
    space = replace(scene.space, families=scene.space.families - {"pad"})
    orders = by_span(space, scene.tile.elements)
    while batch := list(itertools.islice(orders, _TOGETHER)):
        checkpoint()
        counted = Refuters(scene).counted(batch, scene.floor)
        yield from (solution.candidate for solution in counted if solution.excess == scene.floor)


def counted_together(tile: Tile, phase_set: PhaseSet, pitches: IntArray) -> tuple[IntArray, IntArray]:
    """Wavefronts of phases, and their ideal, both of shape (layouts, phases).

    `pitches`: in elements, shape (layouts, dims).
    """
    at = np.stack(np.unravel_index(np.maximum(phase_set.elements, 0), tile.shape), axis=-1)
    offsets = (pitches.astype(np.float64) @ at.reshape(-1, pitches.shape[1]).T).astype(np.int64)
    words = words_of(phase_set, offsets.reshape(-1, *phase_set.elements.shape), tile.element_bytes)
    return costs_of(phase_set, words), ideal_of(phase_set, words)


def fall_back(scene: Scene) -> None:
    """Add to the tally the layouts at which a few climbs end (`_Climb`), row-major, and pads at intervals.

    At least one layout is added however short the time, such as of millions of lanes: the top of a climb.
    """
    scene.tally.exhausted = False
    tops, first = _Climb(scene).tops(), None
    with suppress(OutOfTime), spending(current().at_least(_LEAST_SECONDS)):
        first = next(tops, None)
    if first is not None:
        _count(scene, first)
    if first is None or not current().spent:
        with suppress(OutOfTime):
            if (plain := next(unpadded(scene.space, 0), None)) is not None:
                _count(scene, plain)
                _count_intervals(scene)
    share = _SHARE if scene.field is None else _SHARE_BESIDE_SWIZZLES
    with suppress(OutOfTime), spending(current().portion(share)) as part:
        for top in part.while_left(tops):
            _count(scene, top)


def _count_intervals(scene: Scene) -> None:
    """Add layouts with a pad after every so many elements to the tally, up to the first at the floor."""
    families = scene.space.families & {"none", "interval"}
    part = current().portion(_SHARE_OF_INTERVALS)
    every = itertools.islice(padded(replace(scene.space, families=families)), _MOST_INTERVALS)
    fitting = itertools.takewhile(lambda candidate: scene.fits(candidate.span), every)
    while not part.spent and (batch := list(itertools.islice(fitting, _INTERVALS_TOGETHER))):
        for solution in part.while_left(Refuters(scene).counted(batch)):
            scene.tally.counted.append(solution)
            part.charge(_EFFORT_AN_ENTRY * sum(s.elements.size for s in scene.sets))
            if solution.excess == scene.floor:
                return


def _count(scene: Scene, candidate: Linearisation) -> None:
    if scene.fits(candidate.span):
        scene.tally.counted.append(scene.plain(candidate))


class _Place(NamedTuple):
    """A layout of pitches, and what ranks it."""

    excess: int  # over some of the phases
    span: int  # elements
    pitches: Pitches
    order: IntArray  # dimensions of more than one element, slowest first
    pads: IntArray  # of these, in steps beyond what alignment demands

    @property
    def rank(self) -> tuple[int, int]:
        return self.excess, self.span


class _Climb:
    """Climbs to layouts of pitches that no change of one dimension makes better, by some of the phases."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.space = scene, scene.space
        self.fixed = fixed_order(scene.space)
        self.pads = np.arange(scene.space.period if "pad" in scene.space.families else 1)
        self.rng = np.random.default_rng(_SEED)
        some = [self._some(s, _LOOKED_AT) for s in scene.sets if len(s.elements)]
        self.few = [self._some(_apart(s, scene.tile), _PHASES) for s in some]

    def _some(self, phase_set: PhaseSet, most: int) -> PhaseSet:
        """A few phases drawn at random, weighted as all."""
        count = len(phase_set.elements)
        rows = np.sort(self.rng.permutation(count)[:most])
        return replace(some := phase_set.only(rows), weight=some.weight * (count // len(rows)))

    def tops(self) -> Iterator[Linearisation]:
        """Where climbs end: from row-major, from places drawn at random, and from near the best so far.

        Of the last only those that are as good as the best.
        """
        shape = self.space.shape
        dims = np.array([d for d in self.fixed or range(len(shape)) if shape[d] > 1], np.int64)
        best, fruitless = self._top(dims, np.zeros_like(dims)), 0
        if best is not None:
            yield linearisation(best.pitches, self.space)
        while fruitless < _FRUITLESS and len(dims):
            fruitless += 1
            near = None if self.rng.random() < _ANEW else best
            top = self._top(*(self._drawn(dims) if near is None else self._shaken(near)))
            if top is not None and (near is None or top.rank <= near.rank):
                yield linearisation(top.pitches, self.space)
            if top is not None and (best is None or top.rank < best.rank):
                best, fruitless = top, 0

    def _drawn(self, dims: IntArray) -> tuple[IntArray, IntArray]:
        """An order and pads drawn at random."""
        return dims if self.fixed is not None else self.rng.permutation(dims), self._pads(len(dims))

    def _shaken(self, place: _Place) -> tuple[IntArray, IntArray]:
        """The order and pads of a place, with a few dimensions put elsewhere and pads drawn at random."""
        order, pads = place.order, place.pads
        for k in self.rng.integers(0, len(order), _SHAKEN).tolist():
            at = k if self.fixed is not None else int(self.rng.integers(len(order)))
            (order,), (pads,) = _put(order, pads, k, np.array([at]), self._pads(1))
        return order, pads

    def _pads(self, count: int) -> IntArray:
        """Pads drawn at random, some of them none."""
        drawn: IntArray = self.rng.choice(self.pads, count) * (self.rng.random(count) > _UNPADDED)
        return drawn

    def _top(self, order: IntArray, pads: IntArray) -> _Place | None:
        """Where the climb from a place ends; the place may be no layout, those beside it count then."""
        best, fruitless = self._best(order[None], pads[None]), 0
        places = max(1, len(order)) if self.fixed is None else 1
        together = max(1, _PLACES // (places * len(self.pads)))  # dimensions that are looked at at once
        dims = itertools.cycle(self.rng.permutation(order).tolist())
        while fruitless < len(order):
            beside = [self._beside(order, pads, d) for d in itertools.islice(dims, together)]
            found = self._best(*map(np.concatenate, zip(*beside, strict=True)))
            fruitless += together
            if found is not None and (best is None or found.rank < best.rank):
                best, order, pads, fruitless = found, found.order, found.pads, 0
        return best

    def _beside(self, order: IntArray, pads: IntArray, d: int) -> tuple[IntArray, IntArray]:
        """Places with one dimension anywhere in the order, and with any pad."""
        k = order.tolist().index(d)
        places = np.arange(len(order)) if self.fixed is None else np.array([k])
        return _put(order, pads, k, np.repeat(places, len(self.pads)), np.tile(self.pads, len(places)))

    def _best(self, orders: IntArray, pads: IntArray) -> _Place | None:
        """The best of some places; None where none of them is a layout that fits."""
        checkpoint()
        pitches, valid = in_orders(self.space, orders, pads[:, ::-1])
        spans = spans_of(self.space, pitches)
        if self.scene.limit_elements is not None:
            valid &= spans <= self.scene.limit_elements
        if not (left := np.flatnonzero(valid)).size:
            return None
        entries = sum(phase_set.elements.size for phase_set in self.few)
        current().charge(_EFFORT_A_PLACE * len(orders) + _EFFORT_AN_ENTRY * entries * len(left))
        excess = np.zeros(len(left), np.int64)
        for phase_set in self.few:
            costs, ideal = counted_together(self.scene.tile, phase_set, pitches[left])
            excess += (costs - ideal) @ phase_set.weight
        least = int(np.lexsort((spans[left], excess))[0])
        k = left[least]
        return _Place(int(excess[least]), int(spans[k]), tuple(pitches[k].tolist()), orders[k], pads[k])


def _put(order: IntArray, pads: IntArray, k: int, at: IntArray, other: IntArray) -> tuple[IntArray, IntArray]:
    """Orders and pads in which entry `k` lies at each place of `at`, with each pad of `other`."""
    places, rest = np.arange(len(order)), np.delete(np.arange(len(order)), k)
    before = np.minimum(places - (places > at[:, None]), len(order) - 2)  # which of the rest lies there
    source = np.where(places == at[:, None], k, rest[before] if len(rest) else k)
    return order[source], np.where(source == k, other[:, None], pads[source])


def _apart(s: PhaseSet, tile: Tile) -> PhaseSet:
    """One of the phases that cost the same under all pitches, weighted as all of these.

    Their elements lie in the same places against one another, moved by whole words.
    """
    rule, size = s.rule, tile.element_bytes
    word_bytes = rule.bank_bytes * (rule.banks if rule.row_words > 1 else 1)  # for Kepler, a row of them
    step = math.lcm(word_bytes, size) // size
    at = np.stack(np.unravel_index(np.maximum(s.elements, 0), tile.shape), axis=-1)
    moved = at - at[:, -1:] // step * step  # the last lane is there: rows are sorted
    moved[s.elements < 0] = -max(tile.shape)
    _, first, which = np.unique(moved.reshape(len(at), -1), axis=0, return_index=True, return_inverse=True)
    return replace(s.only(first), weight=np.bincount(which.ravel(), s.weight).astype(np.int64))
