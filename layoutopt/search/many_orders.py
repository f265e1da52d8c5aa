"""Orders of many dimensions, counted together: which of those of the same bytes to look at.

A tile of eight dimensions has 40,320 orders in its own bytes. Looked at one by one they take longer than
anybody waits, and the model has no better way among them. Phase by phase, all that are left are counted at
once, and most fall at the first. What is left is looked at as any other linearisation is: nothing is
refuted here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.model.linearisations import Linearisation
from layoutopt.model.phases import PhaseSet
from layoutopt.model.pitches import by_span, pitches_of
from layoutopt.problems.types import Tile
from layoutopt.search.scene import Scene

_TOGETHER: Final = 1024  # orders
_PHASES: Final = 4096  # phases times orders


def likely(scene: Scene) -> Iterator[Linearisation]:
    """Orders of the tile's own bytes in which no phase seems to cost more than it must; row-major first."""
    space = replace(scene.space, families=scene.space.families - {"pad"}, budget=scene.budget)
    orders = by_span(space, scene.tile.elements)
    dims = len(scene.tile.shape)
    while some := list(itertools.islice(orders, _TOGETHER)):
        pitches = np.array([pitches_of(candidate, dims) for candidate in some])
        for k in _left(scene, pitches).tolist():
            yield some[k]


def _left(scene: Scene, pitches: IntArray) -> IntArray:
    """Which of the orders, by their pitches in elements, shape (orders, dims), keep every phase low."""
    left = np.arange(len(pitches))
    for phase_set in scene.sets:
        phases, start = len(phase_set.elements), 0
        while start < phases and len(left):
            scene.budget.check()
            some = slice(start, start + max(1, _PHASES // len(left)))
            left = left[_low(scene, phase_set, some, pitches[left])]
            start = some.stop
    return left


def _low(scene: Scene, phase_set: PhaseSet, some: slice, pitches: IntArray) -> BoolArray:
    """Whether these phases cost no more than what counting leaves, order by order."""
    costs, ideal = counted_together(scene.tile, phase_set, phase_set.elements[some], pitches)
    low: BoolArray = np.all(costs <= np.maximum(np.maximum(1, ideal), phase_set.floor[some]), axis=1)
    return low


def counted_together(
    tile: Tile, phase_set: PhaseSet, elements: IntArray, pitches: IntArray
) -> tuple[IntArray, IntArray]:
    """Wavefronts of phases and how many an even spread would take, both of shape (layouts, phases).

    Args:
        tile: whose coordinates.
        phase_set: how they are served.
        elements: some of its phases, shape (phases, lanes).
        pitches: in elements, shape (layouts, dims).
    """
    rule = phase_set.rule
    chunk_words = max(1, phase_set.width_bytes // rule.bank_bytes)
    at = np.stack(np.unravel_index(np.maximum(elements, 0), tile.shape), axis=-1)
    # Shape (layouts, phases, lanes) from here on.
    words = np.moveaxis(at @ pitches.T, -1, 0) * tile.element_bytes // rule.bank_bytes
    words = np.sort(np.where(elements < 0, -1, words), axis=-1)
    held = words >= 0
    held[..., 1:] &= words[..., 1:] != words[..., :-1]
    rows = np.arange(held.shape[0] * held.shape[1]).reshape(*held.shape[:2], 1) * rule.banks
    banks = (rows + words % rule.banks // chunk_words)[held]
    costs = np.bincount(banks, minlength=rows.size * rule.banks).reshape(*held.shape[:2], -1).max(axis=-1)
    requests = chunk_words if rule.split_words else 1
    ideal: IntArray = -(-held.sum(axis=-1) * chunk_words // (rule.banks * requests))
    return costs, ideal
