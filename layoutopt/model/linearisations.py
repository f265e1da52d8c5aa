"""Linearisations: every way to lay the tile out before the swizzle, as plain data.

A candidate is a list of digits with strides. A piece (dim, divide, size) is the value of
`x_dim // divide % size`, a structure the pieces of all coordinates in some order, a digit a piece with its
stride. Here are the candidates without pads; `layoutopt.model.pads` has the others,
`layoutopt.layout.families` says what each family is.

The innermost digit keeps the widest vector contiguous. Strides keep every access aligned, each by itself or
in sum (`layoutopt.model.space`), that of the innermost included: 12-byte elements that 8-byte loads read lie
two apart, which is a pad. The stride of a digit of one value binds nothing.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from layoutopt.expressions.grammar import to_text
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import checkpoint
from layoutopt.layout.formula import offset_expression
from layoutopt.layout.layout import Digit, Layout, Target
from layoutopt.model.space import Piece, Space, Structure

MAX_DIGITS = 6
MAX_CUTS = 2
_CUT_UP_AT_ONCE = 64
_FEW_STARTS = 16  # starts of accesses that are checked before all of them


class Linearisation(Struct, frozen=True):
    """One candidate."""

    digits: tuple[Digit, ...]  # slowest first
    span: int  # elements that the layout may take; without swizzle, first to last
    operations: int  # integer operations to compute the offset, the first part of the index cost
    family: str  # the families it uses, such as "order+pad"
    may_swizzle: bool  # whether a swizzle over it is in the family searched
    turn: int = 0  # elements by which each line is rotated against the one before
    interval: tuple[int, int] = (0, 0)  # (every, extra): a pad after every so many elements; (0, 0) for none

    def table(self, shape: tuple[int, ...]) -> IntArray:
        """Element offset of every element, by row-major index; int64, shape (elements,)."""
        return _table(self.digits, self.turn, self.interval, shape)

    def text(self, shape: tuple[int, ...]) -> str:
        """The element offset over x0, x1, ... as people write it."""
        return to_text(offset_expression(self.layout(shape, 1)))

    def layout(self, shape: tuple[int, ...], element_bytes: int, swizzle: tuple[Target, ...] = ()) -> Layout:
        """The candidate as a layout of a tile of this shape."""
        return Layout(shape, element_bytes, self.digits, swizzle, self.turn, interval=self.interval)


@lru_cache(maxsize=4)
def _table(
    digits: tuple[Digit, ...], turn: int, interval: tuple[int, int], shape: tuple[int, ...]
) -> IntArray:
    flat = np.broadcast_to(_offsets(digits, turn, interval, np.ix_(*map(np.arange, shape))), shape).ravel()
    flat.flags.writeable = False  # shared by all who ask
    return flat


def _offsets(
    digits: tuple[Digit, ...], turn: int, interval: tuple[int, int], at: Sequence[IntArray] | IntArray
) -> IntArray:
    """Element offsets at coordinates, one array a dimension; the arrays broadcast against each other."""
    # First summed by dimension: the arrays may lie along axes of their own, and their sum is larger.
    parts: dict[int, IntArray] = {}
    for digit in digits:
        part = at[digit.dim] // digit.divide % digit.size * digit.stride
        parts[digit.dim] = parts[digit.dim] + part if digit.dim in parts else part
    total: IntArray = sum(parts.values(), np.zeros((), np.int64))
    if turn:  # lines are the values of the last digit, and lie at the stride of the one before
        line, place = np.divmod(total, digits[-2].stride)
        total = total - place + (place + turn * line) % digits[-1].size
    if interval[0]:
        total = total + total // interval[0] * interval[1]
    return total


_NO_MOVES = np.array([[0], [1], [1], [0], [0]])  # no rotation and no interval, as `Together` has it


class Together:
    """Several linearisations, whose offsets are computed at once."""

    def __init__(self, pieces: Sequence[Piece], digits: IntArray, moves: IntArray) -> None:
        """Their digits, rotations and intervals.

        Args:
            pieces: the pieces of coordinates of all digits.
            digits: the number of each digit's piece, and its stride, shape (2, digits, linearisations).
            moves: turn, pitch and size of a line, every and extra of an interval, shape (5, linearisations).
        """
        self._pieces, self._digits, self._moves = pieces, digits, moves[..., None]

    @staticmethod
    def of(candidates: Sequence[Linearisation]) -> "Together":
        """Linearisations of any kind."""
        number: dict[Piece, int] = {}
        # Those of fewer digits are filled up with stride 0, by which any piece adds nothing.
        most = max(len(c.digits) for c in candidates)
        digits = [
            [(number.setdefault((d.dim, d.divide, d.size), len(number)), d.stride) for d in c.digits]
            + [(0, 0)] * (most - len(c.digits))
            for c in candidates
        ]
        moves = [
            (c.turn, c.digits[-2].stride if c.turn else 1, c.digits[-1].size, *c.interval) for c in candidates
        ]
        return Together(tuple(number), np.array(digits).transpose(2, 1, 0), np.array(moves).T)

    def __len__(self) -> int:
        return int(self._digits.shape[2])

    def pieces(self, which: int) -> Structure:
        """The pieces of linearisation `which`, slowest first."""
        return tuple(self._pieces[n] for n in self._digits[0, :, which].tolist())

    def offsets(self, at: IntArray, which: IntArray) -> IntArray:
        """Element offsets at coordinates of shape (dimensions, places), as an array (len(which), places)."""
        total = self._summed(
            np.array([at[dim] // divide % size for dim, divide, size in self._pieces]), which
        )
        turn, pitch, size, every, extra = self._moves[:, which]
        if turn.any():
            line, place = np.divmod(total, pitch)
            total = np.where(turn > 0, total - place + (place + turn * line) % size, total)
        return total + total // np.maximum(every, 1) * extra if every.any() else total

    def highest(self, which: IntArray) -> int:
        """The highest offset of any element under some of them."""
        last = self._summed(np.array([[size - 1] for _, _, size in self._pieces]), which)
        *_, every, extra = self._moves[:, which]
        return int((last + last // np.maximum(every, 1) * extra).max())

    def _summed(self, places: IntArray, which: IntArray) -> IntArray:
        """Strides times the values of the digits, by piece; no matrix product, which would take threads."""
        number, stride = self._digits[:, :, which]
        total: IntArray = places[number[0]] * stride[0, :, None]
        for n, step in zip(number[1:], stride[1:], strict=True):
            total += places[n] * step[:, None]
        return total


def _few(starts: IntArray) -> IntArray:
    """A few of the starts, spread over all, or all: most candidates that do not serve fall to them."""
    count = starts.shape[1]
    if count <= _FEW_STARTS:
        return starts
    return starts[:, np.arange(_FEW_STARTS) * int(0.618 * count) % count]


def keeps_whole(space: Space, candidate: Linearisation) -> bool:
    """Whether every access is whole and aligned."""
    for multiple, starts in space.starts:
        for at in (_few(starts), starts):
            first = _offsets(candidate.digits, candidate.turn, candidate.interval, at)
            if (first % multiple).any():
                return False
            if space.vector > 1:  # else elements that need alignment beyond their own are covered one by one
                # The innermost digit holds whole vectors: only a rotation or a pad inside it tears one, and
                # moves its last element.
                last = [*at[:-1], at[-1] + multiple - 1]
                end = _offsets(candidate.digits, candidate.turn, candidate.interval, last)
                if (end != first + multiple - 1).any():
                    return False
    return True


def unpadded(space: Space, cuts: int, below: int | None = None) -> Iterator[Linearisation]:
    """Candidates with `cuts` cuts and no more padding than alignment demands.

    With `below`, those that cost fewer operations, and perhaps others. Where strides that are aligned each by
    itself take more than the tile's elements, the shorter candidate with strides aligned in sum comes first.
    """
    for structure in structures(space, cuts, below):
        candidate = candidate_of(space, structure)
        if space.starts and (candidate is None or candidate.span > math.prod(space.shape)):
            # Without cuts, the steps of `layoutopt.model.pitches`.
            units = least_units(space, structure) if cuts else _least_steps(space, structure)
            shorter = candidate_of(space, structure, units=units)
            if shorter is not None and shorter != candidate and keeps_whole(space, shorter):
                yield shorter
        if candidate is not None:
            yield candidate


def rotated(space: Space) -> Iterator[Linearisation]:
    """Candidates whose lines are rotated, with no more padding than alignment demands."""
    for structure in lines(space) if "rotate" in space.families else ():
        dense = candidate_of(space, structure, units=least_units(space, structure))
        for plain in dict.fromkeys((dense, candidate_of(space, structure))):
            if plain is not None:
                yield from rotations(space, plain)


def lines(space: Space) -> Iterator[Structure]:
    """Every order of the dimensions without cuts, those of one element first; lines are of the last one."""
    for structure in structures(space, 0):
        yield tuple(sorted(structure, key=lambda piece: piece[2] > 1))


def rotations(space: Space, plain: Linearisation) -> Iterator[Linearisation]:
    """`plain` with its lines rotated, each by `turn` elements more than the one before, for every turn.

    A line is all values of the innermost digit. Only turns that keep accesses whole and aligned, which
    `plain` itself need not; no turns where the lines do not lie at multiples of one pitch.
    """
    line = plain.digits[-1]
    if line.stride != 1 or line.size == plain.span or len(plain.digits) < 2:  # one line, or none
        return
    pitch = plain.digits[-2].stride
    if any(d.stride % pitch for d in plain.digits[:-2]):
        return
    # Whether turns by multiples of `space.multiple` keep accesses aligned because `plain` does.
    plain_aligned = line.size % space.multiple == pitch % space.multiple == 0 and keeps_whole(space, plain)
    # (line + turn*number) % size: an addition, a remainder, perhaps a product. Unlike an XOR, it is computed
    # anew in every iteration of a loop, which counts 2.
    power_of_two = not line.size & (line.size - 1)
    operations = plain.operations + 1 + (1 if power_of_two else 3) + 2
    turns = np.arange(1, line.size)
    for multiple, starts in space.starts:  # a first sieve, by a few starts of accesses
        unturned = _offsets(plain.digits, turn=0, interval=(0, 0), at=_few(starts))
        number, place = np.divmod(unturned, pitch)  # of the line, and in it
        turned = number * pitch + (place + turns[:, None] * number) % line.size
        turns = turns[~(turned % multiple).any(axis=1)]
    for turn in turns.tolist():
        checkpoint()
        candidate = replace(
            plain,
            operations=operations + (turn > 1),
            family="rotate" if plain.family == "none" else f"{plain.family}+rotate",
            # No swizzle over a rotation and a pad: nobody reads an index of so many families.
            may_swizzle=plain.may_swizzle and pitch == line.size,
            turn=turn,
        )
        if (plain_aligned and turn % space.multiple == 0) or keeps_whole(space, candidate):
            yield candidate


def least_operations(space: Space) -> int:
    """A lower bound of the operations of every candidate, with whatever cuts and pads."""
    return least_operations_of(tuple((d, 1, extent) for d, extent in enumerate(space.shape)), space.shape)


def least_operations_of(structure: Structure, shape: tuple[int, ...]) -> int:
    """A lower bound of the operations of every candidate of this structure."""
    taken = [_taking(divide, size, shape[dim]) for dim, divide, size in structure if size > 1]
    return sum(taken) + 2 * max(0, len(taken) - 1) - (not taken)


def by_cost(candidate: Linearisation) -> tuple[int, int]:
    """Sorting key: smaller first, then cheaper."""
    return candidate.span, candidate.operations


def structures(space: Space, cuts: int, below: int | None = None) -> Iterator[Structure]:
    """Structures with `cuts` cuts: pieces in every order that the families allow and that tears no vector.

    Pieces of one value, whose stride does not matter, stay where they are. With `below`, without cuts under
    which every order costs that many operations or more.
    """
    for pieces in _cut_up(space, cuts, below):
        places = [place for place, (_, _, size) in enumerate(pieces) if size > 1]
        for order in _orders(space, len(places), cuts):
            ordered = list(pieces)
            for place, n in zip(places, order, strict=True):
                ordered[place] = pieces[places[n]]
            if keeps_vectors(space, ordered):
                yield tuple(ordered)
                checkpoint()


def of_own_bytes(space: Space, cuts: int, below: int) -> Iterator[Together]:
    """The linearisations of `structures` without pads, many at once, whether or not accesses are aligned.

    Each stride is the product of the sizes further in: the layout takes the tile's own bytes.
    """
    cut_up = _cut_up(space, cuts, below)
    while batch := list(itertools.islice(cut_up, _CUT_UP_AT_ONCE)):
        number: dict[Piece, int] = {}
        sets = [[number.setdefault(p, len(number)) for p in pieces if p[2] > 1] for pieces in batch]
        digits = np.array(sets)[:, list(_orders(space, len(sets[0]), cuts))].reshape(-1, len(sets[0]))
        may_be_innermost = np.array([keeps_vectors(space, (piece,)) for piece in number])
        digits = digits[may_be_innermost[digits[:, -1]]]
        sizes = np.array([size for _, _, size in number])[digits]
        strides = np.cumprod(sizes[:, ::-1], axis=1)[:, ::-1] // sizes
        moves = np.broadcast_to(_NO_MOVES, (len(_NO_MOVES), len(digits)))
        yield Together(tuple(number), np.array([digits.T, strides.T]), moves)


def _orders(space: Space, count: int, cuts: int) -> Iterator[tuple[int, ...]]:
    """The orders of `count` pieces that the families allow."""
    fixed = not cuts and (space.order or "order" not in space.families)
    return iter([tuple(range(count))]) if fixed else itertools.permutations(range(count))


def _cut_up(space: Space, cuts: int, below: int | None) -> Iterator[list[Piece]]:
    """The pieces of all coordinates, for every choice of `cuts` cuts; `below` as in `structures`."""
    shape = space.shape
    if cuts == 0:
        yield [(d, 1, shape[d]) for d in space.order or range(len(shape))]
        return
    if "split" not in space.families or space.order:
        return
    if sum(1 for extent in shape if extent > 1) + cuts > MAX_DIGITS:
        return
    for cut_set in itertools.combinations(cut_points(shape), cuts):
        of_dims = [
            _cut(d, extent, tuple([c for dim, c in cut_set if dim == d])) for d, extent in enumerate(shape)
        ]
        if all(of_dims):
            checkpoint()
            pieces = [piece for of_dim in of_dims for piece in of_dim]
            if below is None or least_operations_of(tuple(pieces), shape) < below:
                yield pieces


@lru_cache(maxsize=1 << 12)
def _cut(dim: int, extent: int, cuts: tuple[int, ...]) -> list[Piece]:
    """The pieces of a dimension between cuts, slowest first; none where one is no multiple of another."""
    steps = list(itertools.pairwise([1, *cuts, extent]))
    if any(high % low for low, high in steps):
        return []
    return [(dim, low, high // low) for low, high in reversed(steps)]


def cut_points(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """The dimensions and divisors at which coordinates may be cut."""
    return [(d, c) for d, extent in enumerate(shape) for c in range(2, extent) if extent % c == 0]


def candidate_of(
    space: Space, structure: Structure, pads: tuple[int, ...] = (), units: Sequence[int] | None = None
) -> Linearisation | None:
    """The candidate of `structure` with the least strides.

    None if it needs a pad that no family allows, or one between the elements of a vector; or if two digits
    of one coordinate lie as if it were not cut there, which is the candidate of another structure.

    Args:
        pads: elements by which each stride is longer, slowest first.
        units: of which the strides are multiples, slowest first; else those that keep every access aligned.
    """
    digits: list[Digit] = []  # fastest first
    covered, padded = 1, any(pads)  # elements that the digits so far take: the least stride of the next
    strides = strides_of(structure, units or stride_units(space, structure), pads)
    for (dim, divide, size), stride in zip(reversed(structure), strides, strict=True):
        inside_vector = covered == 1 and size > 1 and space.vector > 1  # this digit holds whole vectors
        if stride > covered:
            if "pad" not in space.families or inside_vector:
                return None
            padded = True
        elif digits and dim == digits[-1].dim and divide == digits[-1].divide * digits[-1].size:
            return None
        digits.append(Digit(dim, divide, size, stride))
        covered = stride * size
    cut = len(structure) > len(space.shape)
    dims = [d for d, _, size in structure if size > 1]
    names = ["split"] if cut else ["order"] if dims != sorted(dims) else []
    names += ["pad"] if padded else []
    return Linearisation(
        digits=tuple(reversed(digits)),
        span=sum([(d.size - 1) * d.stride for d in digits]) + 1,
        operations=linear_proxy(digits, space.shape),
        family="+".join(names) or "none",
        # The family `xor` lies over a cut without pads, or pads without a cut: no index of all three.
        may_swizzle="xor" in space.families and not (cut and padded),
    )


def stride_units(space: Space, structure: Structure) -> list[int]:
    """For each digit, slowest first: its stride is aligned by itself exactly at multiples of this."""
    units = [space.unit(piece) for piece in structure]
    inner = _innermost(structure)
    units[inner] = space.alignment_unit(structure[inner])
    return units


def least_units(space: Space, structure: Structure) -> list[int]:
    """For each digit, slowest first: the multiple that the problem asks of strides, alignment apart."""
    inner = _innermost(structure)
    return [
        1 if k == inner or size == 1 else space.stride_multiple for k, (_, _, size) in enumerate(structure)
    ]


def _least_steps(space: Space, structure: Structure) -> list[int]:
    """For each digit, slowest first: no stride but multiples of this can keep accesses aligned in sum."""
    steps = space.congruences(structure).steps
    return [math.lcm(unit, step) for unit, step in zip(least_units(space, structure), steps, strict=True)]


def _innermost(structure: Structure) -> int:
    inner = len(structure) - 1
    while inner and structure[inner][2] == 1:
        inner -= 1
    return inner


def strides_of(structure: Structure, units: Sequence[int], pads: Sequence[int]) -> list[int]:
    """The least strides, multiples of `units` plus `pads`; fastest first, the arguments slowest first."""
    needed, strides = 1, []
    for k in range(len(structure) - 1, -1, -1):
        stride = -(-needed // units[k]) * units[k] + (pads[k] if k < len(pads) else 0)
        strides.append(stride)
        needed = stride * structure[k][2]
    return strides


def keeps_vectors(space: Space, structure: Sequence[Piece]) -> bool:
    """Whether the innermost digit that has more than one value holds whole vectors."""
    if space.vector == 1:
        return True
    last = len(space.shape) - 1
    dim, divide, size = next((piece for piece in reversed(structure) if piece[2] > 1), structure[-1])
    return dim == last and divide == 1 and (size % space.vector == 0 or size == space.shape[last])


def linear_proxy(digits: Sequence[Digit], shape: tuple[int, ...]) -> int:
    """The proxy of the index cost inside the model: divisions, remainders, multiplications and additions.

    The remainder of a digit counts as its division, whatever its size.
    """
    count = -1
    for d in digits:
        if d.size > 1:
            count += 1 + _taking(d.divide, d.size, shape[d.dim]) + (d.stride > 1)
    return count


def _taking(divide: int, size: int, extent: int) -> int:
    """Operations that take a piece from its coordinate: a division, a remainder, both or none."""
    return (1 if not divide & (divide - 1) else 3) * ((divide > 1) + (divide * size < extent))


def matrices(space: Space, word_bits: int, bank_bits: int) -> Iterator[Linearisation]:
    """Every choice of coordinate bits that select the bank, for tiles whose extents are powers of two.

    The lowest bits of the element offset are row-major, as far as a word or a vector goes; then come the
    chosen ones, up to the last that selects the bank; then the others.

    Args:
        word_bits: bits of the element offset below those that select the bank.
        bank_bits: bits that do.
    """
    last = len(space.shape) - 1
    # (dimension, bit of its coordinate), in row-major order from the lowest.
    bits = [(d, b) for d in range(last, -1, -1) for b in range(space.shape[d].bit_length() - 1)]
    vector_bits = space.vector.bit_length() - 1
    if any(d != last for d, _ in bits[:vector_bits]):
        return  # a vector lies along the last dimension
    low = max(word_bits, vector_bits)
    fixed, loose = bits[:low], bits[low:]
    count = max(0, min(word_bits + bank_bits - low, len(loose)))
    for chosen in itertools.combinations(loose, count):
        ordered = [*fixed, *chosen, *(bit for bit in loose if bit not in chosen)]
        digits: list[Digit] = []  # fastest first
        for place, (d, b) in enumerate(ordered):
            before = digits[-1] if digits else None
            if before and before.dim == d and before.divide * before.size == 1 << b:  # its next bit
                digits[-1] = replace(before, size=before.size * 2)
            else:
                digits.append(Digit(d, divide=1 << b, size=2, stride=1 << place))
        span = 1 << len(bits)
        digits += [Digit(d, 1, 1, span) for d, extent in enumerate(space.shape) if extent == 1]
        operations = linear_proxy(digits, space.shape)
        yield Linearisation(tuple(reversed(digits)), span, operations, "matrix", may_swizzle=True)


def least_matrix_operations(space: Space) -> int:
    """A lower bound of the operations of candidates of `matrices` with three or more cuts."""
    pieces = sum(1 for extent in space.shape if extent > 1) + MAX_CUTS + 1
    # An addition and a stride between pieces; a division and a remainder where one is cut.
    return 2 * (pieces - 1) + 2 * (MAX_CUTS + 1)
