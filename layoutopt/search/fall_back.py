"""Many layouts of pitches counted together: orders without avoidable conflicts; layouts when time is over.

A tile of eight dimensions has 40,320 orders in its own bytes. Counted one by one they take longer than
anybody waits, and the model has no better way among them. Phase by phase, all orders left are counted at
once, and most fall at the first phase (`likely`).

Out of time, first pads after every so many elements of row-major, by rising bytes. Then pads of whole
dimensions: a climb from row-major, then from orders drawn at random, goes to the best of the layouts that
exchange two dimensions, move one, or give one another pad. They are counted together, over some of the
phases; where none is better, the top is counted over all of them. Nothing is refuted.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

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
_CLIMBS: Final = 48
_STEPS: Final = 32  # of a climb, at most
_PHASES: Final = 32  # of each rule, by which the layouts beside one are compared
_PADS: Final = 12  # of each dimension, drawn at random
_SEED: Final = 1
_EFFORT_AN_ENTRY: Final = 6e-8  # seconds of work for each lane of a phase, in each layout that is counted

# A layout of pitches: dimensions of more than one element, slowest first; their pads in steps, from the
# inside out. Its rank: excess over some of the phases, span in elements, pitches.
_Place = tuple[tuple[int, ...], tuple[int, ...]]
_Rank = tuple[int, int, Pitches]


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
    words = words_of(phase_set, np.moveaxis(at @ pitches.T, -1, 0), tile.element_bytes)
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


class _Climb:
    """Climbs to layouts of pitches that no layout beside them is better than, by some of the phases."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.space = scene, scene.space
        self.fixed = fixed_order(scene.space)
        self.rng = np.random.default_rng(_SEED)
        self.few = [self._some(s) for s in scene.sets if len(s.elements)]
        self._ranks: dict[_Place, _Rank | None] = {}  # None: it is no layout

    def _some(self, phase_set: PhaseSet) -> PhaseSet:
        """A few phases drawn at random, weighted as all."""
        count = len(phase_set.elements)
        rows = np.sort(self.rng.permutation(count)[:_PHASES])
        return replace(some := phase_set.only(rows), weight=some.weight * (count // len(rows)))

    def tops(self) -> Iterator[Linearisation]:
        """Where the climbs end, each once: from row-major, then from places drawn at random."""
        dims = tuple(d for d in self.fixed or range(len(self.space.shape)) if self.space.shape[d] > 1)
        seen: set[Pitches] = set()
        for number in range(_CLIMBS):
            order = tuple(self.rng.permutation(dims).tolist()) if number and self.fixed is None else dims
            pads = self.rng.integers(0, _PADS, len(dims)) * (number > 0 and "pad" in self.space.families)
            top = self._top((order, tuple(pads.tolist())))
            if top is not None and top not in seen:
                seen.add(top)
                yield linearisation(top, self.space)

    def _top(self, place: _Place) -> Pitches | None:
        """Where the climb from a place ends; the place may be no layout, those beside it count then."""
        best: _Rank | None = None
        for _ in range(_STEPS):
            beside = dict.fromkeys([*([place] * (best is None)), *self._beside(*place)])
            self._rank([p for p in beside if p not in self._ranks])
            ranks = [(rank, p) for p in beside if (rank := self._ranks[p]) is not None]
            rank, at = min(ranks, key=lambda pair: pair[0][:2], default=(None, place))
            if rank is None or (best is not None and rank[:2] >= best[:2]):
                break
            best, place = rank, at
        return None if best is None else best[2]

    def _beside(self, order: tuple[int, ...], pads: tuple[int, ...]) -> Iterator[_Place]:
        """Places with two dimensions exchanged, one moved, or another pad."""
        for a, b in itertools.combinations(range(len(order)), 2) if self.fixed is None else ():
            exchanged = list(order)
            exchanged[a], exchanged[b] = order[b], order[a]
            yield tuple(exchanged), pads
            yield (*order[:a], *order[a + 1 : b + 1], order[a], *order[b + 1 :]), pads
        for k, pad in enumerate(pads if "pad" in self.space.families else ()):
            drawn = self.rng.integers(0, self.space.period, _PADS).tolist()
            for other in (0, pad - 1, pad + 1, *drawn):
                if other >= 0:
                    yield order, (*pads[:k], other, *pads[k + 1 :])

    def _rank(self, new: Sequence[_Place]) -> None:
        """Add the ranks of places to `_ranks`."""
        checkpoint()
        self._ranks.update(dict.fromkeys(new))
        if not new:
            return
        pitches, in_family = in_orders(self.space, *(np.array(part) for part in zip(*new, strict=True)))
        spans = spans_of(self.space, pitches)
        fitting = np.flatnonzero(in_family & [self.scene.fits(span) for span in spans.tolist()])
        excess = np.zeros(len(fitting), np.int64)
        for phase_set in self.few if len(fitting) else ():
            costs, ideal = counted_together(self.scene.tile, phase_set, pitches[fitting])
            current().charge(_EFFORT_AN_ENTRY * len(fitting) * phase_set.elements.size)
            excess += (costs - ideal) @ phase_set.weight
        for k, over in zip(fitting.tolist(), excess.tolist(), strict=True):
            self._ranks[new[k]] = over, int(spans[k]), tuple(pitches[k].tolist())
