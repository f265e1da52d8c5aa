"""Linearisations: every way to lay the tile out before the swizzle, as plain data.

A candidate is a list of digits with strides. What each family adds stands in its record
(`layoutopt.layout.families`). Here are those without pads; `layoutopt.model.pads` has the others.

The innermost digit keeps the widest vector contiguous. Strides keep every access aligned, digit by digit,
that of the innermost included: 12-byte elements that 8-byte loads read lie two apart, which is a pad.
Where nothing is cut or padded, strides that are aligned in sum only are candidates, too. The stride of a
digit of one value binds nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from layoutopt.ground.budget import Budget
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.problems.trace import Trace
from layoutopt.problems.types import Problem

IntArray = npt.NDArray[np.int64]

Piece = tuple[int, int, int]  # (dim, divide, size)
Structure = tuple[Piece, ...]  # slowest first

MAX_DIGITS = 6
MAX_CUTS = 2


@dataclass(frozen=True, slots=True)
class Linearisation:
    """One candidate.

    Attributes:
        digits: slowest first.
        span: elements that the layout may take; without swizzle, first to last.
        operations: integer operations to compute the offset, the first part of the index cost.
        family: the families it uses, such as "order+pad".
        may_swizzle: whether a swizzle over it is in the family searched.
        turn: elements by which each line is rotated against the one before.
        interval: (every, extra): a pad after every so many elements; (0, 0) for none.
    """

    digits: tuple[Digit, ...]
    span: int
    operations: int
    family: str
    may_swizzle: bool
    turn: int = 0
    interval: tuple[int, int] = (0, 0)

    def table(self, shape: tuple[int, ...]) -> IntArray:
        """Element offset of every element, by row-major index; int64, shape (elements,)."""
        return _table(self.digits, self.turn, self.interval, shape)

    def text(self, shape: tuple[int, ...]) -> str:
        """The element offset over x0, x1, ... as people write it, slowest first."""
        terms = []
        for d in self.digits:
            if d.size > 1:
                cut = f" // {d.divide}" * (d.divide > 1)
                cut += f" % {d.size}" * (d.divide * d.size < shape[d.dim])
                terms.append(f"x{d.dim}{cut}" + f"*{d.stride}" * (d.stride > 1))
        every, extra = self.interval
        ends = [f"lines turned by {self.turn}"] * (self.turn > 0)
        ends += [f"{extra} more after every {every}"] * (every > 0)
        return ", ".join([" + ".join(terms) or "0", *ends])

    def layout(self, shape: tuple[int, ...], element_bytes: int, swizzle: tuple[Target, ...] = ()) -> Layout:
        """The candidate as a layout of a tile of this shape."""
        return Layout(shape, element_bytes, self.digits, swizzle, self.turn, interval=self.interval)


@lru_cache(maxsize=4)
def _table(
    digits: tuple[Digit, ...], turn: int, interval: tuple[int, int], shape: tuple[int, ...]
) -> IntArray:
    total = np.zeros(shape, np.int64)
    for d, extent in enumerate(shape):
        line = np.zeros(extent, np.int64)
        for digit in digits:
            if digit.dim == d:
                line += np.arange(extent) // digit.divide % digit.size * digit.stride
        total += line.reshape([-1 if k == d else 1 for k in range(len(shape))])
    flat = total.ravel()
    if turn:
        line, place = np.divmod(flat, digits[-2].stride)
        flat = flat - place + (place + turn * line) % digits[-1].size
    if interval[0]:
        flat = flat + flat // interval[0] * interval[1]
    flat.flags.writeable = False  # shared by all who ask
    return flat


@dataclass(frozen=True)
class Space:
    """What bounds the candidates.

    Attributes:
        shape: the tile, in elements.
        vector: elements of the widest access, which the innermost digit keeps contiguous.
        starts: for each access that not every element can start, the number of elements whose multiples its
            starts must be, and their coordinates, shape (dimensions, starts).
        period: elements after which the banks repeat.
        stride_multiple: every stride but the innermost is a multiple of this many elements.
        order: dimensions from slowest to fastest, where fixed.
        families: names out of `layoutopt.problems.types.FAMILIES`.
        budget: the time there is to list candidates: whatever lists them raises `OutOfTime` after it.
        far: whether pads of whole dimensions may be a period or more, as far as bytes allow.
    """

    shape: tuple[int, ...]
    vector: int
    starts: tuple[tuple[int, IntArray], ...]
    period: int
    stride_multiple: int
    order: tuple[int, ...] | None
    families: frozenset[str]
    budget: Budget = field(default_factory=Budget, compare=False)
    far: bool = False
    _units: dict[Piece, int] = field(default_factory=dict)

    def alignment_unit(self, piece: Piece) -> int:
        """What a stride of this digit must be a multiple of, so that every access stays aligned."""
        if piece not in self._units:
            dim, divide, size = piece
            unit = 1
            for multiple, coordinates in self.starts:
                common = int(np.gcd.reduce(coordinates[dim] // divide % size))
                unit = math.lcm(unit, multiple // math.gcd(multiple, common))
            self._units[piece] = unit
        return self._units[piece]

    def unit(self, piece: Piece) -> int:
        """What a stride of this digit, not the innermost, must be a multiple of."""
        return 1 if piece[2] == 1 else math.lcm(self.stride_multiple, self.alignment_unit(piece))

    @cached_property
    def multiple(self) -> int:
        """Elements by which any access may be moved and stay aligned."""
        return math.lcm(1, *(multiple for multiple, _ in self.starts))

    @cached_property
    def _residues(self) -> tuple[tuple[int, IntArray], ...]:
        """The starts' coordinates modulo what they must be multiples of, each once."""
        found = []
        for multiple, coordinates in self.starts:
            base = (multiple,) * len(coordinates)
            distinct = np.unique(np.ravel_multi_index(tuple(coordinates % multiple), base))
            found.append((multiple, np.array(np.unravel_index(distinct, base))))
        return tuple(found)

    def aligned_in_sum(self, strides: Sequence[int]) -> bool:
        """Whether every access is aligned, given one stride for each dimension."""
        return not any((strides @ rest % multiple).any() for multiple, rest in self._residues)

    @cached_property
    def leaves_out(self) -> bool:
        """Whether some layouts of the families keep every access aligned and are not among the candidates."""
        if self.vector == 1 and self.starts and {"interval", "rotate"} & self.families:
            return True  # where a line or an interval starts, its stride need not be aligned
        return bool({"pad", "split"} & self.families) and self._sums_beyond

    @property
    def _sums_beyond(self) -> bool:
        """Whether strides can be aligned in sum that are not each by itself.

        Modulo m = 2**k (widths are powers of two), the strides aligned by themselves are m to the power of
        their number, divided by each one's unit. Those aligned in sum solve a linear system: eliminated
        with the pivot of fewest factors two, a pivot p leaves gcd(p, m) values.
        """
        m, pivots = self.multiple, []
        rows = np.concatenate(
            [rest.T * (m // multiple) for multiple, rest in self._residues] or [np.zeros((0, 1), np.int64)]
        )
        units = [math.gcd(m, self.alignment_unit((d, 1, n))) for d, n in enumerate(self.shape)]
        while rows.size and (rows % m).any():
            rows = np.unique(rows % m, axis=0)
            powers = np.gcd(rows, m)
            k, d = np.unravel_index(int(powers.argmin()), rows.shape)
            pivot, pivot_row = int(powers[k, d]), rows[k]
            odd = pow(int(pivot_row[d]) // pivot, -1, m)
            factors = rows[:, d] // pivot * odd
            rows = np.delete(rows - factors[:, None] * pivot_row, d, axis=1)
            pivots.append(pivot)
        together = math.prod(pivots) * m ** (len(self.shape) - len(pivots))
        return bool(together > math.prod(m // unit for unit in units))


def space_of(
    problem: Problem, trace: Trace, period_bytes: int, families: Iterable[str], budget: Budget | None = None
) -> Space:
    """What bounds the candidates of a problem.

    Args:
        problem: the tile and its constraints.
        trace: its accesses, of which those with no active lane bind nothing.
        period_bytes: after so many the banks repeat.
        families: those that may be used.
        budget: the time there is to list candidates; None for any.
    """
    size = problem.tile.element_bytes
    starts = []
    for access in trace.accesses:
        width = access.operation.width_bytes
        multiple = width // math.gcd(width, size)
        if multiple > 1 and access.active.any():  # else every element may start one
            starts.append((multiple, np.array(np.unravel_index(access.starts, problem.tile.shape))))
    pitch = problem.layout.pitch_multiple_bytes or 1
    return Space(
        shape=problem.tile.shape,
        vector=max(a.width_elements for a in trace.accesses),
        starts=tuple(starts),
        period=period_bytes // math.gcd(period_bytes, size),
        stride_multiple=pitch // math.gcd(pitch, size),
        order=problem.layout.order,
        families=frozenset(families),
        budget=budget or Budget(),
    )


def unpadded(space: Space, cuts: int, below: int | None = None) -> Iterator[Linearisation]:
    """Candidates with `cuts` cuts and no more padding than alignment demands.

    With `below`, those that cost fewer operations, and perhaps others.
    """
    for structure in structures(space, cuts, below):
        candidate = candidate_of(space, structure, (0,) * (len(structure) - 1))
        if cuts == 0 and (candidate is None or candidate.span > math.prod(space.shape)):
            dense = _dense(space, structure)
            if dense is not None:
                yield dense
        if candidate is not None:
            yield candidate


def rotated(space: Space) -> Iterator[Linearisation]:
    """Candidates whose lines are rotated, with no more padding than alignment demands."""
    if "rotate" in space.families:
        for plain in unpadded(space, 0):
            yield from turned(space, plain)


def line_step(space: Space) -> int:
    """Elements by a multiple of which lines are turned; theirs is one, too."""
    return math.lcm(space.vector, space.multiple)


def turned(space: Space, plain: Linearisation) -> Iterator[Linearisation]:
    """Every rotation of the lines of `plain`, where they lie at multiples of one pitch."""
    inner, step = plain.digits[-1], line_step(space)
    if inner.stride != 1 or inner.size % step or inner.size == plain.span:
        return
    if any(d.stride % plain.digits[-2].stride for d in plain.digits[:-2]):
        return
    # An addition, a remainder, perhaps a multiplication; and unlike an XOR it is never hoisted.
    remainder = 3 if not inner.size & (inner.size - 1) else 5
    for turn in range(step, inner.size, step):
        yield replace(
            plain,
            operations=plain.operations + (turn > 1) + 1 + remainder,
            family="rotate" if plain.family == "none" else f"{plain.family}+rotate",
            # Over a pad it would be one family more than anybody reads.
            may_swizzle=plain.may_swizzle and plain.digits[-2].stride == inner.size,
            turn=turn,
        )


def least_operations(space: Space) -> int:
    """No candidate takes fewer operations, with whatever cuts and pads."""
    return least_operations_of(tuple((d, 1, extent) for d, extent in enumerate(space.shape)), space.shape)


def least_operations_of(structure: Structure, shape: tuple[int, ...]) -> int:
    """No candidate of this structure takes fewer operations."""
    return _least_in_any_order(tuple(sorted(structure)), shape)


@lru_cache(maxsize=64)
def _least_in_any_order(pieces: Structure, shape: tuple[int, ...]) -> int:
    digits = [Digit(dim, divide, size, 2) for dim, divide, size in pieces]
    return offset_operations(digits, shape) - any(digit.size > 1 for digit in digits)


def by_cost(candidate: Linearisation) -> tuple[int, int]:
    """Sorting key: smaller first, then cheaper."""
    return candidate.span, candidate.operations


def structures(space: Space, cuts: int, below: int | None = None) -> Iterator[Structure]:
    """Every order of the pieces that the families allow, of coordinates cut so many times.

    With `below`, without cuts that make every order cost that many operations or more.
    """
    shape, families = space.shape, space.families
    if cuts == 0:
        base = tuple((d, 1, shape[d]) for d in space.order or range(len(shape)))
        if families - {"split", "matrix"}:
            yield from _orders(space, base) if "order" in families and not space.order else iter([base])
        return
    if "split" not in families or space.order:
        return
    if sum(1 for extent in shape if extent > 1) + cuts > MAX_DIGITS:
        return
    for cut_set in itertools.combinations(cut_points(shape), cuts):
        pieces: list[Piece] = []
        for d, extent in enumerate(shape):
            at = sorted({1, extent, *(c for dim, c in cut_set if dim == d)})
            if any(high % low for low, high in itertools.pairwise(at)):
                break
            pieces += [(d, low, high // low) for low, high in itertools.pairwise(at)][::-1] or [(d, 1, 1)]
        else:
            if below is None or least_operations_of(tuple(pieces), shape) < below:
                yield from _orders(space, pieces)


def _orders(space: Space, pieces: Sequence[Piece]) -> Iterator[Structure]:
    """Every order of the pieces; those of one value, whose stride nobody takes, stay where they are."""
    places = [place for place, (_, _, size) in enumerate(pieces) if size > 1]
    for order in itertools.permutations(places):
        arranged = list(pieces)
        for place, piece in zip(places, order, strict=True):
            arranged[place] = pieces[piece]
        yield tuple(arranged)
        space.budget.check()


def cut_points(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """The dimensions and divisors at which coordinates may be cut."""
    return [(d, c) for d, extent in enumerate(shape) for c in range(2, extent) if extent % c == 0]


def candidate_of(space: Space, structure: Structure, pads: tuple[int, ...]) -> Linearisation | None:
    """Strides from the inside out; None if it tears a vector, needs a pad, or has a cut for nothing."""
    if not keeps_vectors(space, structure):
        return None
    digits: list[Digit] = []
    needed, padded = 1, any(pads)
    strides = strides_of(structure, stride_units(space, structure), pads)
    for (dim, divide, size), stride in zip(reversed(structure), strides, strict=True):
        if stride > needed:
            if "pad" not in space.families or (needed == 1 and size > 1 and space.vector > 1):
                return None
            padded = True
        elif digits and dim == digits[-1].dim and divide == digits[-1].divide * digits[-1].size:
            return None  # two digits of one coordinate in a row, as if never cut
        digits.append(Digit(dim, divide, size, stride))
        needed = stride * size
    digits.reverse()
    cut = len(structure) > len(space.shape)
    natural = [d for d, _, _ in structure] == sorted(d for d, _, _ in structure)
    names = ["split"] if cut else ([] if natural else ["order"])
    names += ["pad"] if padded else []
    allowed = "xor" in space.families and not (cut and padded)
    span = sum((d.size - 1) * d.stride for d in digits) + 1
    return Linearisation(
        tuple(digits), span, offset_operations(digits, space.shape), "+".join(names) or "none", allowed
    )


def stride_units(space: Space, structure: Structure) -> list[int]:
    """What the stride of each digit must be a multiple of; slowest first."""
    units = [space.unit(piece) for piece in structure]
    inner = max((k for k, (_, _, size) in enumerate(structure) if size > 1), default=0)
    units[inner] = space.alignment_unit(structure[inner])
    return units


def strides_of(structure: Structure, units: Sequence[int], pads: Sequence[int]) -> list[int]:
    """The least strides with these pads on top of each but the last digit's; fastest first."""
    needed, strides = 1, []
    for k in range(len(structure) - 1, -1, -1):
        stride = -(-needed // units[k]) * units[k] + (pads[k] if k < len(pads) else 0)
        strides.append(stride)
        needed = stride * structure[k][2]
    return strides


def keeps_vectors(space: Space, structure: Structure) -> bool:
    """Whether the innermost digit that has more than one value holds whole vectors."""
    if space.vector == 1:
        return True
    last = len(space.shape) - 1
    dim, divide, size = next((piece for piece in reversed(structure) if piece[2] > 1), structure[-1])
    return dim == last and divide == 1 and (size % space.vector == 0 or size == space.shape[last])


def _dense(space: Space, structure: Structure) -> Linearisation | None:
    """The dimensions in this order without a pad, where every access is aligned in sum; else None."""
    if not keeps_vectors(space, structure):
        return None
    digits: list[Digit] = []
    stride = 1
    strides = [0] * len(space.shape)
    for dim, divide, size in reversed(structure):
        if stride > 1 and size > 1 and stride % space.stride_multiple:
            return None
        digits.append(Digit(dim, divide, size, stride))
        strides[dim] = stride
        stride *= size
    if not space.aligned_in_sum(strides):
        return None
    digits.reverse()
    natural = [d.dim for d in digits] == sorted(d.dim for d in digits)
    operations = offset_operations(digits, space.shape)
    return Linearisation(
        tuple(digits), stride, operations, "none" if natural else "order", "xor" in space.families
    )


def offset_operations(digits: Sequence[Digit], shape: tuple[int, ...]) -> int:
    """Integer operations of the offset: a division, a remainder, a multiplication, an addition."""
    count = len([d for d in digits if d.size > 1]) - 1
    for d in digits:
        if d.size == 1:
            continue
        extent = shape[d.dim]
        costly = 1 if not d.divide & (d.divide - 1) else 3
        count += costly * (d.divide > 1) + costly * (d.divide * d.size < extent) + (d.stride > 1)
    return count
