"""Many layouts counted by the conflict engine: the best of them is the best, without a model.

That serves families small enough to look at every layout (orders and splits, pads, CuTe's swizzles), and
edits of a layout in use. The instructions of several layouts are counted together, and equal ones once.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

import numpy as np

from layoutopt.accesses.trace import Trace
from layoutopt.engine.case import Case
from layoutopt.engine.conflicts import count_wavefronts
from layoutopt.expressions.simplify import operations
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import OutOfTime, current, unhurried
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Layout, Target
from layoutopt.model.linearisations import unpadded
from layoutopt.model.pads import unswizzled
from layoutopt.model.phases import merged
from layoutopt.model.space import Space

# Lane accesses counted in one go, whose arrays stay in the cache; and elements of all their tables.
_BATCH_LANES: Final = 1 << 18
_BATCH_ELEMENTS: Final = 1 << 22
_MOST_COMPARED: Final = 12  # layouts of the same excess, bytes and operations, by their index code

T = TypeVar("T")
# A candidate and its byte offsets by row-major index.
Laid = tuple[T, IntArray]
# The weighted excess of a candidate in the trace's unit, its last byte offset, and the candidate.
Counted = tuple[float, int, T]


class Counter:
    """The weighted excess of many layouts of a case; with `lanes`, of these instructions alone."""

    def __init__(self, case: Case, lanes: Trace | None = None) -> None:
        self._case = case
        # Counted layout by layout, over all values that lanes may choose at run time.
        self._whole_case = case if case.chooses and lanes is None else None
        # Of each access its distinct instructions: elements, active lanes, weights, operation, rule.
        self._accesses = []
        for access in (lanes or case.certain).accesses:
            if not access.weight.any():
                continue
            unique, weight, _ = merged(np.where(access.active, access.element, -1), access.weight)
            self._accesses.append((unique, unique >= 0, weight, access.operation, access.rule))
        size = sum(unique.size for unique, *_ in self._accesses)
        most = min(_BATCH_LANES // max(1, size), _BATCH_ELEMENTS // case.lowered.tile.elements)
        self._batch = 1 if self._whole_case is not None else max(1, most)

    def excess(self, tables: IntArray) -> list[float]:
        """Weighted excess, in the trace's unit, of tables of shape (layouts, elements)."""
        if (case := self._whole_case) is not None:
            with unhurried():
                return [case.weighted_excess(case.count(table)) for table in tables]
        total = np.zeros(len(tables), np.int64)
        for element, active, weight, operation, rule in self._accesses:
            address = tables[:, np.where(active, element, 0)].reshape(-1, element.shape[1])
            mask = np.broadcast_to(active, (len(tables), *active.shape)).reshape(address.shape)
            counts = count_wavefronts(address, mask, operation, rule)
            total += counts.excess.reshape(len(tables), -1) @ weight
        return [float(over) for over in total]

    def index_cost(self, layout: Layout) -> int:
        """Instructions of the index code of all accesses."""
        return self._case.index_cost(self._case.as_elements(layout))

    def batches(self, laid: Iterable[Laid[T]]) -> Iterator[list[Counted[T]]]:
        """All candidates, counted batch by batch while time is left; the first batch in any case."""
        stream = _until_out_of_time(laid)
        while batch := list(itertools.islice(stream, self._batch)):
            excess = self.excess(np.stack([table for _, table in batch]))
            counted = zip(excess, batch, strict=True)
            yield [(over, int(table.max()), candidate) for over, (candidate, table) in counted]
            if current().spent:
                return


def _until_out_of_time(candidates: Iterable[T]) -> Iterator[T]:
    """The candidates until the time for listing them is over."""
    with suppress(OutOfTime):
        yield from candidates


def best(layouts: Iterable[Layout], counter: Counter, floor: int, max_bytes: int | None) -> Layout | None:
    """The layout of least weighted excess, bytes, operations of the offset, index cost; None without any.

    The first batch is counted whatever the time.

    Args:
        layouts: the cheapest to compute first; where they differ in bytes, by rising bytes.
        counter: counts them.
        floor: lower bound of the weighted excess. Once a layout has it, the search ends at the first batch
            without smaller ones.
        max_bytes: larger layouts are left out.
    """
    least: tuple[float, int] = math.inf, 0  # weighted excess and last offset of the best
    ties: list[Layout] = []
    for batch in counter.batches((layout, layout.table().ravel()) for layout in layouts):
        if least[0] <= floor and min(last for _, last, _ in batch) >= least[1]:
            break  # nothing after it is smaller
        for excess, last, layout in batch:
            if max_bytes is not None and last + layout.element_bytes > max_bytes:
                continue
            if not ties or (excess, last) < least:
                least, ties = (excess, last), []
            if (excess, last) == least:
                ties.append(layout)
    # Index code takes far longer to count than the operations of an offset, so only some are compared by it.
    counted = [(operations(offset_expression(layout)), layout) for layout in _in_time(ties)]
    fewest = min((count for count, _ in counted), default=0)
    plainest = [layout for count, layout in counted if count == fewest][:_MOST_COMPARED]
    return min(_in_time(plainest), key=counter.index_cost, default=None)


def _in_time(layouts: list[Layout]) -> Iterator[Layout]:
    """The layouts while time is left; the first in any case."""
    return itertools.chain(layouts[:1], current().while_left(layouts[1:]))


def plain_layouts(space: Space, element_bytes: int) -> Iterator[Layout]:
    """Every layout of the space's families without an XOR, in the order that `best` expects."""
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
