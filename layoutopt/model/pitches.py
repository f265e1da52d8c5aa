"""Pitches and dimension order: as CP-SAT variables, and one after the other.

pitch_d      elements from one x_d to the next: as few as alignment allows for exactly one dimension, else a
             multiple of what keeps every access aligned
inside_ab    pitch_b >= extent_a * pitch_a, or the converse: all pairs together are the order
at_{d,v}     pitch_d = v, for values that were written out
plain        the pitches count; otherwise a linearisation that they do not describe does

`by_span` says what the next smallest ones are, where many are written out at once.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from layoutopt.layout.layout import Digit
from layoutopt.model.cp_sat import Model
from layoutopt.model.linearisations import Linearisation, Piece, Space, offset_operations

FAR: Final = 1 << 40  # beyond every sum here
MOST_ELEMENTS: Final = 1 << 32  # that a model may be asked about, lest its sums overflow

# Families in which every layout cuts a coordinate, and those whose layouts pitches and masks describe.
CUTTING: Final = frozenset({"split", "matrix"})
WITHIN: Final = frozenset({"none", "order", "pad", "xor", "table"})

Pitches = tuple[int, ...]  # elements, by dimension; 0 where the extent is 1


class PitchVariables:
    """The pitches and the order in one model."""

    def __init__(self, model: Model, space: Space, most: int) -> None:
        """`most` bounds the span, in elements."""
        self.space = space
        self.most = most
        self.model = model
        self.dims = [d for d, extent in enumerate(space.shape) if extent > 1]
        self._at: dict[tuple[int, int], int] = {}
        self._chosen: dict[str, int] = {}
        self.plain = self.model.boolean("plain")
        if not space.families - CUTTING:
            self.model.clause([-self.plain - 1])
        self.pitch = {
            d: model.integer(1, max(1, (most - 1) // (space.shape[d] - 1)), f"pitch_{d}") for d in self.dims
        }
        self.turned: list[int] = []  # true where a later dimension lies around an earlier one
        self._innermost()
        self._nested()
        self._near()
        self.span_terms = [(self.pitch[d], space.shape[d] - 1) for d in self.dims]
        dense = [math.prod(space.shape) - 1] * 2 if "pad" not in space.families else [0, most - 1]
        self.model.linear(self.span_terms, dense, [self.plain])

    def _innermost(self) -> None:
        """One dimension runs fastest, the last where vectors lie along it; all keep accesses aligned."""
        space, model = self.space, self.model
        first = self.first = {d: model.boolean(f"first_{d}") for d in self.dims}
        if self.dims:
            model.exactly_one(list(first.values()))
        if space.vector > 1:
            self._runs_fastest(len(space.shape) - 1)
        if (order := fixed_order(space)) is not None:
            for d in [d for d in order if d in first][-1:]:
                self._runs_fastest(d)
        for d in self.dims:
            piece = d, 1, space.shape[d]
            least = space.alignment_unit(piece)
            if least > 1 and space.vector > 1:  # it would tear vectors
                model.clause([-first[d] - 1, -self.plain - 1])
            unit = space.unit(piece)
            terms = [(self.pitch[d], 1)]
            if single_inside(space) is not None:
                terms.append((model.integer(0, _most_steps(space, piece), f"inner_steps_{d}"), -unit))
            model.linear(terms, [least, least], [first[d], self.plain])
            if unit > 1:
                if unit > self.most:
                    model.clause([first[d], -self.plain - 1])
                    continue
                count = model.integer(0, self.most // unit, f"steps_{d}")
                model.linear([(self.pitch[d], 1), (count, -unit)], [0, 0], [-first[d] - 1, self.plain])

    def _runs_fastest(self, d: int) -> None:
        self.model.clause([self.first[d], -self.plain - 1])

    def _nested(self) -> None:
        """Of two dimensions one lies inside the other."""
        order = fixed_order(self.space)
        shape = self.space.shape
        for a, b in itertools.combinations(self.dims, 2):
            inside = self.model.boolean(f"inside_{a}_{b}")
            self.turned.append(inside)
            far, within = [0, FAR], self.plain
            self.model.linear([(self.pitch[b], 1), (self.pitch[a], -shape[a])], far, [inside, within])
            self.model.linear(
                [(self.pitch[a], 1), (self.pitch[b], -shape[b])], far, [-inside - 1, self.plain]
            )
            if order is not None:
                self.model.clause([inside if order.index(a) > order.index(b) else -inside - 1])

    def _near(self) -> None:
        """A pad is less than one bank period: every dimension follows another one so closely."""
        space, model = self.space, self.model
        if space.far:
            return
        for b in self.dims:
            unit = space.unit((b, 1, space.shape[b]))
            most = unit - 1 + max(unit, (space.period - 1) // unit * unit)
            follows = [self.first[b]]
            for a in self.dims:
                if a != b:
                    follows.append(near := model.boolean(f"near_{a}_{b}"))
                    gap = [(self.pitch[b], 1), (self.pitch[a], -space.shape[a])]
                    model.linear(gap, [0, min(most, FAR)], [near, self.plain])
            model.clause(follows)

    def at(self, d: int, value: int) -> int:
        """A literal: pitch_d = value."""
        if (d, value) not in self._at:
            literal = self._at[d, value] = self.model.boolean(f"at_{d}_{value}")
            self.model.linear([(self.pitch[d], 1)], [value, value], [literal])
            self.model.linear([(self.pitch[d], 1)], [0, value - 1, value + 1, FAR], [-literal - 1])
        return self._at[d, value]

    def chosen(self, pitches: Pitches, dims: Sequence[int]) -> int:
        """A literal: these dimensions have these pitches."""
        name = "y_" + "_".join(str(pitches[d]) if d in dims else "*" for d in range(len(pitches)))
        if name not in self._chosen:
            literals = [self.plain, *(self.at(d, pitches[d]) for d in dims)]
            self._chosen[name] = self.model.conjunction(literals, name)
        return self._chosen[name]

    def forbid(self, candidate: Linearisation) -> None:
        """Not these pitches."""
        pitches = pitches_of(candidate, len(self.space.shape))
        self.model.clause([-self.plain - 1, *(-self.at(d, pitches[d]) - 1 for d in self.dims)])

    def linearisation(self, values: Sequence[int]) -> Linearisation:
        """The pitches in a solution."""
        pitches = (values[self.pitch[d]] if d in self.pitch else 0 for d in range(len(self.space.shape)))
        return linearisation(tuple(pitches), self.space)


def fixed_order(space: Space) -> tuple[int, ...] | None:
    """Dimensions from slowest to fastest, where they are fixed."""
    if space.order is not None:
        return space.order
    return None if "order" in space.families else tuple(range(len(space.shape)))


def single_inside(space: Space) -> int | None:
    """A dimension of one element that may run fastest, so that even the innermost pitch may be padded."""
    if "pad" not in space.families or space.vector > 1:
        return None
    order = fixed_order(space)
    may_run_fastest = range(len(space.shape)) if order is None else order[-1:]
    return next((d for d in reversed(may_run_fastest) if space.shape[d] == 1), None)


def _most_steps(space: Space, piece: Piece) -> int:
    """Steps that a pad may take: it is less than a period of the banks, or one step."""
    unit = space.unit(piece)
    if space.far:
        return MOST_ELEMENTS // unit
    return len(range(unit, max(space.period, unit + 1), unit))


def by_span(space: Space, most: int, *, padded: bool = False) -> Iterator[Linearisation]:
    """Every layout of pitches that takes at most so many elements, by rising span; as lazily as can be.

    With `padded`, only those with more padding than alignment demands.

    A pad more never makes a layout shorter. So the next smallest is among those known that have one step of
    one pad more than the smallest, or is an order of which nothing was looked at.
    """
    if not space.families - CUTTING:
        return
    dims = [d for d, extent in enumerate(space.shape) if extent > 1]
    fixed = fixed_order(space)
    orders = itertools.permutations(dims) if fixed is None else [tuple(d for d in fixed if d in dims)]
    least = math.prod(space.shape)
    unopened = iter(enumerate(orders))
    most = most if "pad" in space.families else min(most, least)
    # Span, number of the order, pads in steps from the inside out, the lowest that may still grow, order.
    heap: list[tuple[int, int, tuple[int, ...], int, tuple[int, ...]]] = []
    while True:
        while not heap or heap[0][0] > least:
            number, order = next(unopened, (-1, ()))
            if number < 0:
                break
            if number:
                space.budget.check()
            pads = (0,) * len(order)
            if (pitches := _strides(space, order, pads)) is not None:
                heapq.heappush(heap, (_span(space, pitches), number, pads, 0, order))
        if not heap or heap[0][0] > most:
            return
        _, number, pads, lowest, order = heapq.heappop(heap)
        pitches = _strides(space, order, pads)
        assert pitches is not None
        if any(pads) or not padded:
            yield linearisation(pitches, space)
        innermost = 0 if single_inside(space) is not None else 1
        for k in range(max(lowest, innermost), len(pads)) if "pad" in space.families else ():
            d = order[-k - 1]
            if pads[k] < _most_steps(space, (d, 1, space.shape[d])):
                more = (*pads[:k], pads[k] + 1, *pads[k + 1 :])
                grown = _strides(space, order, more)
                assert grown is not None
                heapq.heappush(heap, (_span(space, grown), number, more, k, order))


def _strides(space: Space, order: tuple[int, ...], pads: tuple[int, ...]) -> Pitches | None:
    """The pitches of an order, slowest first, with pads in steps, from the inside out; None if it tears."""
    pitches = [0] * len(space.shape)
    needed = 1
    for place, d in enumerate(reversed(order)):
        piece = d, 1, space.shape[d]
        unit = space.unit(piece)
        if place:
            pitches[d] = -(-needed // unit) * unit + pads[place] * unit
        else:
            pitches[d] = space.alignment_unit(piece) + pads[place] * unit
            if space.vector > 1 and (pitches[d] > 1 or d != len(space.shape) - 1):
                return None
        needed = pitches[d] * space.shape[d]
    return tuple(pitches)


def _span(space: Space, pitches: Pitches) -> int:
    """Elements from the first to the last."""
    return 1 + sum((extent - 1) * pitch for extent, pitch in zip(space.shape, pitches, strict=True))


def linearisation(pitches: Pitches, space: Space) -> Linearisation:
    """Pitches as digits, slowest first."""
    shape = space.shape
    # A dimension of one element has no pitch of its own: any stride will do, the span is what reads well.
    span = _span(space, pitches)
    inner = [d for d in range(len(shape)) if pitches[d] == 1] or [len(shape) - 1]
    strides = _declared(shape, pitches)
    bound = {d for d, extent in enumerate(shape) if extent > 1}  # who must stand where it does
    single = single_inside(space)
    innermost = min(((pitch, d) for d, pitch in enumerate(pitches) if pitch), default=None)
    if single is not None and innermost is not None:
        pitch, d = innermost
        if pitch > space.alignment_unit((d, 1, shape[d])):
            strides[single] = 1  # the pad is one of its lines
            bound.add(single)
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], d in inner, d))
    digits = tuple(Digit(d, 1, shape[d], strides[d]) for d in order)
    natural = [d for d in order if d in bound]
    names = [] if natural == sorted(natural) else ["order"]
    names += ["pad"] if span > math.prod(shape) else []
    return Linearisation(
        digits,
        span,
        offset_operations(digits, shape),
        "+".join(names) or "none",
        "xor" in space.families,
    )


def described(candidate: Linearisation, space: Space) -> bool:
    """Whether pitches describe it: whole dimensions, each of its strides aligned by itself."""
    if candidate.turn or candidate.interval[0] or not space.families - CUTTING:
        return False
    if candidate.may_swizzle and "xor" not in space.families:  # of a matrix
        return False
    if candidate.span > math.prod(space.shape) and "pad" not in space.families:
        return False
    digits = [d for d in candidate.digits if d.size > 1]
    if any(d.size != space.shape[d.dim] for d in digits):
        return False
    order = fixed_order(space)
    if order is not None and [d.dim for d in digits] != [d for d in order if space.shape[d] > 1]:
        return False
    units = [space.unit((d.dim, 1, d.size)) for d in digits]
    if digits:
        inner = digits[-1]
        units[-1] = space.alignment_unit((inner.dim, 1, inner.size))
        if inner.stride != units[-1] and single_inside(space) is None:
            return False
        units[-1] = math.gcd(units[-1], space.unit((inner.dim, 1, inner.size)))
    return not any(d.stride % unit for d, unit in zip(digits, units, strict=True))


def most_elements(space: Space) -> int:
    """Elements that no layout of pitches exceeds, where their pads are less than a period."""
    elements, gaps = math.prod(space.shape), max(0, len(space.shape) - 1)
    pieces = [(d, 1, extent) for d, extent in enumerate(space.shape)]
    unit = max(space.period, *(max(space.unit(p), space.alignment_unit(p)) for p in pieces))
    return elements + elements * 2 * unit * (gaps + 1)


def row_major_operations(shape: tuple[int, ...]) -> int:
    """Operations of an offset of pitches, the same for all: a multiplication and an addition for each."""
    return 2 * max(0, sum(1 for extent in shape if extent > 1) - 1)


def pitches_of(candidate: Linearisation, dims: int) -> Pitches:
    """The pitches of a linearisation of whole dimensions."""
    strides = {d.dim: d.stride for d in candidate.digits if d.size > 1}
    return tuple(strides.get(d, 0) for d in range(dims))


def _declared(shape: tuple[int, ...], pitches: Pitches) -> list[int]:
    """Strides of all dimensions: those of one element lie where row-major order puts them."""
    strides = list(pitches)
    for d in reversed(range(len(shape))):
        if shape[d] == 1:
            inner = [strides[k] * shape[k] for k in range(d + 1, len(shape))]
            strides[d] = max(inner, default=1)
    return strides
