"""Pitches and dimension order: as CP-SAT variables, and one after the other.

pitch_d      elements from one x_d to the next: as few as alignment allows for exactly one dimension; together
             they keep every access aligned (`layoutopt.model.space`)
inside_ab    pitch_b >= extent_a * pitch_a, or the converse: all pairs together are the order
at_{d,v}     pitch_d = v, for values that were written out

`by_span` says what the next smallest ones are, where many are written out at once.
"""

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from layoutopt.ground.arrays import BoolArray, IntArray
from layoutopt.ground.budget import checkpoint
from layoutopt.layout.layout import Digit
from layoutopt.model.cp_sat import FAR, Model
from layoutopt.model.linearisations import Linearisation, linear_proxy
from layoutopt.model.space import Piece, Space

MOST_ELEMENTS: Final = 1 << 32  # that a model may be asked about, lest its sums overflow

# Families whose layouts pitches and masks describe.
WITHIN: Final = frozenset({"none", "order", "pad", "xor", "table"})

Pitches = tuple[int, ...]  # elements, by dimension; 0 where the extent is 1


class PitchVariables:
    """The pitches and the order in one model."""

    def __init__(self, model: Model, space: Space, most: int) -> None:
        """Add the variables and all constraints of the module's text; `most` bounds the span, in elements."""
        self.space = space
        self.most = most
        self.model = model
        self.dims = [d for d, extent in enumerate(space.shape) if extent > 1]
        self._at: dict[tuple[int, int], int] = {}
        self._chosen: dict[str, int] = {}
        self.pitch = {
            d: model.integer(1, max(1, (most - 1) // (space.shape[d] - 1)), f"pitch_{d}") for d in self.dims
        }
        self.turned: list[int] = []  # true where a later dimension lies around an earlier one
        self._innermost()
        self._aligned()
        self._nested()
        self._near()
        self.span_terms = [(self.pitch[d], space.shape[d] - 1) for d in self.dims]
        dense = math.prod(space.shape)
        last_offset = [0, most - 1] if "pad" in space.families else [dense - 1, dense - 1]
        self.model.linear(self.span_terms, last_offset)

    def _innermost(self) -> None:
        """Make one dimension run fastest: the last where accesses are vectors; others stay aligned."""
        space, model = self.space, self.model
        fastest = self.fastest = {d: model.boolean(f"first_{d}") for d in self.dims}
        if self.dims:
            model.exactly_one(list(fastest.values()))
        if space.vector > 1:
            model.clause([fastest[len(space.shape) - 1]])
        in_order = [d for d in fixed_order(space) or () if d in fastest]
        if in_order:
            model.clause([fastest[in_order[-1]]])
        for d in self.dims:
            self._pitch_if_fastest(d)
            self._pitch_if_not_fastest(d)

    def _pitch_if_fastest(self, d: int) -> None:
        step, most = _inner_pitch(self.space, d)
        if step > 1 and self.space.vector > 1:  # it would tear vectors
            self.model.clause([-self.fastest[d] - 1])
        terms = [(self.pitch[d], 1)]
        if most > step:
            more_steps = self.model.integer(0, (most - step) // step, f"inner_steps_{d}")
            terms.append((more_steps, -step))
        self.model.linear(terms, [step, step], [self.fastest[d]])

    def _pitch_if_not_fastest(self, d: int) -> None:
        step = outer_step(self.space, d)
        if step > self.most:  # no multiple fits: it must be the fastest
            self.model.clause([self.fastest[d]])
        elif step > 1:
            steps = self.model.integer(0, self.most // step, f"steps_{d}")
            self.model.linear([(self.pitch[d], 1), (steps, -step)], [0, 0], [-self.fastest[d] - 1])

    def _aligned(self) -> None:
        """Every access is aligned by the sum of the strides."""
        known = self.space.whole
        for k, row in enumerate([] if known.one_by_one else known.rows.tolist()):
            terms = [(self.pitch[d], row[d]) for d in self.dims if row[d]]
            if terms:
                most = sum(row) * self.most // known.modulus + 1
                multiple = self.model.integer(0, most, f"aligned_{k}")
                self.model.linear([*terms, (multiple, -known.modulus)], [0, 0])

    def _nested(self) -> None:
        """Of two dimensions one lies inside the other."""
        order = fixed_order(self.space)
        shape = self.space.shape
        for a, b in itertools.combinations(self.dims, 2):
            inside = self.model.boolean(f"inside_{a}_{b}")
            self.turned.append(inside)
            self.model.linear([(self.pitch[b], 1), (self.pitch[a], -shape[a])], [0, FAR], [inside])
            self.model.linear([(self.pitch[a], 1), (self.pitch[b], -shape[b])], [0, FAR], [-inside - 1])
            if order is not None:
                self.model.clause([inside if order.index(a) > order.index(b) else -inside - 1])

    def _near(self) -> None:
        """No pad is longer than `most_pad`, unless pads may be of any length (`Space.far`).

        Every dimension but the first follows another one so closely.
        """
        space, model = self.space, self.model
        if space.far:
            return
        for b in self.dims:
            most = most_pad(space, (b, 1, space.shape[b]))
            follows = [self.fastest[b]]
            for a in self.dims:
                if a != b:
                    follows.append(near := model.boolean(f"near_{a}_{b}"))
                    gap = [(self.pitch[b], 1), (self.pitch[a], -space.shape[a])]
                    model.linear(gap, [0, min(most, FAR)], [near])  # no gap is longer than FAR
            model.clause(follows)

    def at(self, d: int, value: int) -> int:
        """A literal: pitch_d = value."""
        if (d, value) not in self._at:
            literal = self._at[d, value] = self.model.boolean(f"at_{d}_{value}")
            self.model.linear([(self.pitch[d], 1)], [value, value], [literal])
            self.model.linear([(self.pitch[d], 1)], [0, value - 1, value + 1, FAR], [-literal - 1])
        return self._at[d, value]

    def chosen(self, pitches: Pitches) -> int:
        """A literal: the dimensions have these pitches."""
        name = "y_" + "_".join(map(str, pitches))
        if name not in self._chosen:
            literals = [self.at(d, pitches[d]) for d in self.dims]
            self._chosen[name] = self.model.conjunction(literals, name)
        return self._chosen[name]

    def forbid(self, candidate: Linearisation) -> None:
        """Not these pitches."""
        pitches = pitches_of(candidate, len(self.space.shape))
        self.model.clause([-self.at(d, pitches[d]) - 1 for d in self.dims])

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


def most_pad(space: Space, piece: Piece) -> int:
    """Elements of the longest pad: less than a period of the banks, or a unit more than alignment needs."""
    unit = space.unit(piece)
    return unit - 1 + max(unit, (space.period - 1) // unit * unit)


def outer_step(space: Space, d: int) -> int:
    """What the pitch of a dimension is a multiple of where it is not the innermost."""
    return math.lcm(space.stride_multiple, space.whole.steps[d])


def _inner_pitch(space: Space, d: int) -> tuple[int, int]:
    """Of a dimension that runs fastest: the step of which its pitch is a multiple, and the largest pitch."""
    step, most = space.whole.steps[d], space.alignment_unit((d, 1, space.shape[d]))
    if single_inside(space) is not None:
        pad = MOST_ELEMENTS if space.far else max(space.period - 1, most)
        most += pad // step * step
    return step, most


def by_span(space: Space, most: int, *, padded: bool = False) -> Iterator[Linearisation]:
    """Every layout of pitches that takes at most `most` elements, by rising span; as lazily as can be.

    With `padded`, only those with more padding than alignment demands.

    More padding never makes a layout shorter. So the next smallest has one step of one pad more than a layout
    that was given before, or is an order without pads: a heap holds both.
    """
    dims = [d for d, extent in enumerate(space.shape) if extent > 1]
    fixed = fixed_order(space)
    orders = itertools.permutations(dims) if fixed is None else [tuple(d for d in fixed if d in dims)]
    unopened = iter(enumerate(orders))
    dense, may_pad = math.prod(space.shape), "pad" in space.families
    most = most if may_pad else min(most, dense)
    heap: list[_Padded] = []
    while True:
        # An order takes `dense` at least: it is opened only when the heap holds nothing as small.
        while not heap or heap[0].span > dense:
            number, order = next(unopened, (-1, ()))
            if number < 0:
                break
            if number:  # the first layout is there even when the time is over
                checkpoint()
            pads = (0,) * len(order)
            if (pitches := _pitches(space, order, pads)) is not None:
                heapq.heappush(heap, _Padded(span_of(space, pitches), number, pads, 0, order, pitches))
        if not heap or heap[0].span > most:
            return
        least = heapq.heappop(heap)
        if (any(least.pads) or not padded) and space.whole.hold(least.pitches):  # accesses are aligned
            yield linearisation(least.pitches, space)
        for k in range(least.lowest, len(least.pads)) if may_pad else ():  # so each layout is met once
            pads = (*least.pads[:k], least.pads[k] + 1, *least.pads[k + 1 :])
            if (pitches := _pitches(space, least.order, pads)) is not None:
                span = span_of(space, pitches)
                heapq.heappush(heap, _Padded(span, least.number, pads, k, least.order, pitches))


class _Padded(NamedTuple):
    """A layout of pitches; they sort by rising span, then by number of their order.

    Only the pads from `lowest` on may still grow, so that each layout is met once.
    """

    span: int
    number: int  # of the order
    pads: tuple[int, ...]  # in steps, from the inside out
    lowest: int
    order: tuple[int, ...]  # dimensions of more than one element, slowest first
    pitches: Pitches


def in_orders(space: Space, orders: IntArray, pads: IntArray) -> tuple[IntArray, BoolArray]:
    """The pitches of many layouts, shape (layouts, dimensions), and which of them are valid.

    The others tear vectors, misalign accesses or have too long a pad: `_pitches` and `Congruences.hold`, of
    many at once.

    Args:
        orders: dimensions of more than one element, slowest first, shape (layouts, such dimensions).
        pads: of the same shape, fastest dimension first: steps beyond the least pitch that alignment allows.
    """
    shape, dims = np.array(space.shape), range(len(space.shape))
    # By dimension: step and most of its pitch where it runs fastest; elsewhere its step and longest pad.
    inner_step, inner_most = np.array([_inner_pitch(space, d) for d in dims]).reshape(-1, 2).T
    outer_steps = np.array([outer_step(space, d) for d in dims])
    longest_pad = np.array([most_pad(space, (d, 1, extent)) for d, extent in enumerate(space.shape)])
    layouts = np.arange(len(orders))
    pitches, inside = np.zeros((len(orders), len(shape)), np.int64), np.ones(len(orders), np.int64)
    valid = np.ones(len(orders), np.bool_)
    for place, (d, pad) in enumerate(zip(orders.T[::-1], pads.T, strict=True)):  # fastest first
        if place == 0:
            pitch = (pad + 1) * inner_step[d]
            valid &= (pad == 0) | (pitch <= inner_most[d])
            valid &= (space.vector == 1) | ((pitch == 1) & (d == len(shape) - 1))
        else:
            pitch = (-(-inside // outer_steps[d]) + pad) * outer_steps[d]
            valid &= (pad == 0) | (pitch - inside <= longest_pad[d]) | space.far  # or as far as bytes allow
        pitches[layouts, d] = pitch
        inside = pitch * shape[d]  # elements that the dimensions so far take
    if "pad" not in space.families:
        valid &= spans_of(space, pitches) <= math.prod(space.shape)
    aligned = space.whole
    valid &= ~(pitches % aligned.modulus @ aligned.rows.T % aligned.modulus).any(axis=1)
    return pitches, valid


def spans_of(space: Space, pitches: IntArray) -> IntArray:
    """Elements from the first to the last, of pitches of shape (layouts, dimensions)."""
    spans: IntArray = 1 + pitches @ (np.array(space.shape) - 1)
    return spans


def _pitches(space: Space, order: tuple[int, ...], pads: tuple[int, ...]) -> Pitches | None:
    """Elements from one value of each dimension to the next; None if it tears vectors or pads too far.

    `order`: slowest dimension first. `pads`: fastest first, in units of what alignment demands: of the
    fastest dimension its elements lie 2, 3, ... apart, others have so many units behind each.
    """
    pitches = [0] * len(space.shape)
    inside = 1  # elements that the dimensions so far take
    for place, (d, pad) in enumerate(zip(reversed(order), pads, strict=True)):
        if place:
            unit = outer_step(space, d)
            pitch = -(-inside // unit) * unit + pad * unit
            if pad and not space.far and pitch - inside > most_pad(space, (d, 1, space.shape[d])):
                return None
        else:
            step, most = _inner_pitch(space, d)
            pitch = (pad + 1) * step
            tears = space.vector > 1 and (pitch > 1 or d != len(space.shape) - 1)
            if tears or (pad and pitch > most):
                return None
        pitches[d] = pitch
        inside = pitch * space.shape[d]
    return tuple(pitches)


def span_of(space: Space, pitches: Pitches) -> int:
    """Elements from the first to the last."""
    return 1 + sum((extent - 1) * pitch for extent, pitch in zip(space.shape, pitches, strict=True))


def linearisation(pitches: Pitches, space: Space) -> Linearisation:
    """Pitches as digits, slowest first."""
    shape, span = space.shape, span_of(space, pitches)
    # Dimensions of one element lie where row-major order has them, and their order does not matter ...
    strides = _declared(shape, pitches)
    ordered = {d for d, extent in enumerate(shape) if extent > 1}
    # ... unless the pitch of the fastest dimension is padded: that is a pad behind lines of one element.
    single = single_inside(space)
    if single is not None and ordered:
        pitch, fastest = min((pitches[d], d) for d in ordered)
        if pitch > space.alignment_unit((fastest, 1, shape[fastest])):
            strides[single] = 1
            ordered.add(single)
    # Slowest first; of equal strides, what is contiguous comes last.
    contiguous = [d for d in range(len(shape)) if pitches[d] == 1] or [len(shape) - 1]
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], d in contiguous, d))
    digits = tuple(Digit(d, divide=1, size=shape[d], stride=strides[d]) for d in order)
    in_order = [d for d in order if d in ordered]
    names = [] if in_order == sorted(in_order) else ["order"]
    names += ["pad"] if span > math.prod(shape) else []
    operations, family = linear_proxy(digits, shape), "+".join(names) or "none"
    return Linearisation(digits, span, operations, family, may_swizzle="xor" in space.families)


def described(candidate: Linearisation, space: Space) -> bool:
    """Whether pitches of the model describe a candidate, which is aligned and has no longer pads than it."""
    if candidate.turn or candidate.interval[0] or len(candidate.digits) > len(space.shape):
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
    if not digits:
        return True
    inner = digits[-1]
    step, most = _inner_pitch(space, inner.dim)
    if inner.stride > most or inner.stride % step:
        return False
    return not any(d.stride % outer_step(space, d.dim) for d in digits[:-1])


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
