"""Families small enough to look at every layout: orders and splits, pads, and CuTe's swizzles.

Every layout is counted by the conflict engine, so the best of them is the best, without a model. The
instructions of several layouts are counted together, and equal instructions once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from layoutopt.accesses.trace import Trace
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.expressions.simplify import operations
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import Budget, OutOfTime
from layoutopt.hardware.devices import Device
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Layout, Target
from layoutopt.model.linearisations import unpadded
from layoutopt.model.pads import unswizzled
from layoutopt.model.phases import merged
from layoutopt.model.space import Space

# Lane accesses counted in one go: the arrays of a batch stay in the cache.
_BATCH_LANES = 1 << 18
# And elements of all their tables, of 8 bytes each.
_BATCH_ELEMENTS = 1 << 25


class Counter:
    """The weighted excess of many layouts under one trace."""

    def __init__(self, lanes: Trace, gpu: Device) -> None:
        self._gpu = gpu
        self._accesses = []
        for access in lanes.accesses:
            key = np.where(access.active, access.element, -1)
            unique, weight, _ = merged(key, access.weight)
            self._accesses.append((unique, unique >= 0, weight, access.operation))
        self.lanes = sum(unique.size for unique, *_ in self._accesses)

    def excess(self, tables: IntArray) -> IntArray:
        """Weighted excess, in the trace's unit, of tables of shape (layouts, elements)."""
        total = np.zeros(len(tables), np.int64)
        for element, active, weight, operation in self._accesses:
            address = tables[:, np.where(active, element, 0)].reshape(-1, element.shape[1])
            mask = np.broadcast_to(active, (len(tables), *active.shape)).reshape(address.shape)
            counts = count_wavefronts(address, mask, operation, self._gpu)
            over = (counts.wavefronts - counts.ideal).reshape(len(tables), -1)
            total += over @ weight
        return total


def best(
    layouts: Iterable[Layout], counter: Counter, floor: int, max_bytes: int | None, budget: Budget
) -> Layout | None:
    """The layout of least weighted excess, then bytes, then index operations; the first of equals.

    Args:
        layouts: the cheapest to compute first; where they differ in bytes, by rising bytes.
        counter: counts them.
        floor: weighted excess that no layout undercuts. Where it is reached, larger layouts are not
            looked at, nor are costlier formulas beyond the batch at hand.
        max_bytes: larger layouts are left out.
        budget: the time there is; the first layouts are looked at in any case.
    """
    found: tuple[tuple[int, int], Layout] | None = None
    cost = 0
    stream = iter(layouts)
    try:
        first = next(stream)
    except (StopIteration, OutOfTime):
        return None
    size = min(_BATCH_LANES // max(1, counter.lanes), _BATCH_ELEMENTS // math.prod(first.shape))
    batch = [first, *itertools.islice(budget.while_left(stream), max(0, size - 1))]
    while batch:
        tables = np.stack([layout.table().ravel() for layout in batch])
        ends = tables.max(axis=1)
        if found is not None and found[0][0] <= floor and int(ends.min()) >= found[0][1]:
            break
        ranks = list(zip(counter.excess(tables).tolist(), ends.tolist(), strict=True))
        fitting = [r for r in ranks if max_bytes is None or r[1] + first.element_bytes <= max_bytes]
        least = min(fitting, default=None)
        if least is not None and (found is None or least <= found[0]):
            # Formulas cost far more than counts: only of layouts that none beats in bytes and excess.
            for layout in (layout for layout, rank in zip(batch, ranks, strict=True) if rank == least):
                if found is not None and found[0] == least and budget.spent:
                    break
                own = operations(offset_expression(layout))
                if found is None or least < found[0] or own < cost:
                    found, cost = (least, layout), own
        batch = list(itertools.islice(budget.while_left(stream), max(1, size)))
    return found[1] if found is not None else None


def plainly(space: Space, element_bytes: int) -> Iterator[Layout]:
    """Every layout of the space's families that flips no bits, as `best` wants them."""
    for candidate in unswizzled(space):
        yield candidate.layout(space.shape, element_bytes)


def cute_swizzles(space: Space, element_bytes: int) -> Iterator[Layout]:
    """CuTe's `Swizzle<B, M, S>` over the dense tile, S positive, in row-major and every allowed order.

    B bits from bit M + S are XORed into the B bits from M, counted in elements; vectors stay whole
    (2**M is at least the widest), targets stay inside a bank period, and S >= B as CuTe requires.
    """
    whole = max(space.vector, space.multiple)
    low, high = (whole - 1).bit_length(), (space.period - 1).bit_length()
    for dense in unpadded(space, 0):
        top = (dense.span - 1).bit_length()
        yield dense.layout(space.shape, element_bytes)
        for m, b in itertools.product(range(low, high), range(1, high + 1)):
            for s in range(b, top - m) if m + b <= high else ():
                swizzle = tuple(Target(m + k, 1 << (m + k + s)) for k in range(b))
                yield dense.layout(space.shape, element_bytes, swizzle)


# What is counted for a row of `compare`; `plainly` where it has no entry here.
COUNTED = {"cute": cute_swizzles}
