"""What bounds the linearisations of a problem: the families, the banks, and what keeps accesses aligned.

Whether the strides of a layout keep every access aligned is linear in them. With a row for each place where
an access starts, its coordinates (those of the digits, where coordinates are cut),

    rows @ strides = 0  modulo m,       m: a power of two, since the widths of accesses are

and few rows say what all of them do (`Congruences`). Where no stride helps another, that is a unit for each.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from layoutopt.accesses.trace import Trace
from layoutopt.ground.arrays import IntArray
from layoutopt.problems.types import Problem

Piece = tuple[int, int, int]  # (dim, divide, size)
Structure = tuple[Piece, ...]  # slowest first

# Starts of accesses that are looked at first: most often they say what all do.
_FEW_STARTS = 256
_SEED = 1


class Congruences(Struct, frozen=True, eq=False):
    """The strides of some pieces that keep every access aligned."""

    modulus: int  # a power of two
    # Strides keep accesses aligned if their scalar product with each row is 0 modulo it; at most a row for
    # each piece.
    rows: IntArray
    units: tuple[int, ...]  # for each piece, its stride is aligned by itself exactly at multiples of this
    # For each piece, strides of the others make up for its stride only at multiples of this.
    steps: tuple[int, ...]

    @property
    def one_by_one(self) -> bool:
        """Whether strides are aligned in sum only where each is by itself."""
        return self.units == self.steps

    def hold(self, strides: Sequence[int]) -> bool:
        """Whether these strides do, one for each piece."""
        if self.one_by_one:
            return not any(stride % unit for stride, unit in zip(strides, self.units, strict=True))
        return not (self.rows @ (np.array(strides, np.int64) % self.modulus) % self.modulus).any()


def congruences_of(modulus: int, rows: IntArray) -> Congruences:
    """The strides whose product with each row, int64 of shape (rows, pieces), is 0 modulo a power of two."""
    columns = range(rows.shape[1])
    units = (modulus // math.gcd(modulus, int(np.gcd.reduce(rows[:, k], initial=0))) for k in columns)
    steps = (_step(modulus, rows, k) for k in columns)
    return Congruences(modulus, _reduced(modulus, rows), tuple(units), tuple(steps))


def _reduced(modulus: int, rows: IntArray) -> IntArray:
    """Rows with the same solutions, at most one a column, by elimination."""
    found, rest = [], rows % modulus
    for k in range(rows.shape[1]):
        pivot, rest = _eliminated(modulus, rest, k)
        found += [pivot] if pivot is not None else []
    return np.array(found, np.int64).reshape(len(found), rows.shape[1])


def _step(modulus: int, rows: IntArray, kept: int) -> int:
    """The unit of column `kept` in all combinations of the rows that are 0 in every other column."""
    rest = rows % modulus
    for k in range(rows.shape[1]):
        if k != kept:
            _, rest = _eliminated(modulus, rest, k)
    return modulus // math.gcd(modulus, int(np.gcd.reduce(rest[:, kept], initial=0)))


def _eliminated(modulus: int, rows: IntArray, k: int) -> tuple[IntArray | None, IntArray]:
    """The row with the fewest factors two in column k, if any; and all combinations that are 0 there."""
    powers = np.gcd(rows[:, k], modulus)
    if not len(rows) or int(powers.min()) == modulus:
        return None, rows
    chosen = int(powers.argmin())
    pivot, power = rows[chosen], int(powers[chosen])
    # Each row is 0 in column k less so many times the pivot, whose odd part there has an inverse.
    factors = rows[:, k] // power * pow(int(pivot[k]) // power, -1, modulus)
    factors[chosen] = 0
    rest = (rows - factors[:, None] * pivot) % modulus
    rest[chosen] = pivot * (modulus // power) % modulus  # the multiple of the pivot that is 0 there
    return pivot, np.unique(rest, axis=0)


class Space(Struct, frozen=True, dict=True):
    """What bounds the candidates. Whatever lists them raises `OutOfTime` once the time is over."""

    shape: tuple[int, ...]  # the tile, in elements
    vector: int  # elements of the widest access, which the innermost digit keeps contiguous
    # For each access that not every element can start, (multiple, coordinates): its starts must lie at
    # multiples of so many elements; their coordinates have shape (dimensions, starts).
    starts: tuple[tuple[int, IntArray], ...]
    period: int  # elements after which the banks repeat
    stride_multiple: int  # every stride but the innermost is a multiple of this many elements
    order: tuple[int, ...] | None  # dimensions from slowest to fastest, where fixed
    families: frozenset[str]  # names out of `layoutopt.problems.types.FAMILIES`
    far: bool = False  # whether pads of whole dimensions may be a period or more, as far as bytes allow
    _units: dict[Piece, int] = {}
    _congruences: dict[Structure, Congruences] = {}

    def alignment_unit(self, piece: Piece) -> int:
        """A stride of this digit keeps every access aligned, by itself, exactly at multiples of this."""
        if piece not in self._units:
            dim, divide, size = piece
            unit = 1
            for multiple, coordinates in self.starts:
                common = int(np.gcd.reduce(coordinates[dim] // divide % size))
                unit = math.lcm(unit, multiple // math.gcd(multiple, common))
            self._units[piece] = unit
        return self._units[piece]

    def unit(self, piece: Piece) -> int:
        """The same for a digit that is not the innermost: also the multiple that the problem asks for."""
        unit = self._units.get(piece) or self.alignment_unit(piece)
        return 1 if piece[2] == 1 else math.lcm(self.stride_multiple, unit)

    @cached_property
    def multiple(self) -> int:
        """Elements by which any access may be moved and stay aligned."""
        return math.lcm(1, *(multiple for multiple, _ in self.starts))

    @cached_property
    def whole(self) -> Congruences:
        """The strides of whole dimensions that keep every access aligned."""
        return self.congruences(tuple((d, 1, extent) for d, extent in enumerate(self.shape)))

    def congruences(self, structure: Structure) -> Congruences:
        """The strides of these pieces, in their order, that keep every access aligned."""
        pieces = tuple(sorted(structure))
        if pieces not in self._congruences:
            self._congruences[pieces] = self._congruences_of(pieces)
        known = self._congruences[pieces]
        at = [pieces.index(piece) for piece in structure]
        units, steps = (tuple(of[k] for k in at) for of in (known.units, known.steps))
        return Congruences(known.modulus, known.rows[:, at], units, steps)

    def _congruences_of(self, pieces: Structure) -> Congruences:
        few = congruences_of(self.multiple, self._rows(pieces, _FEW_STARTS))
        # All starts together say no less, and nothing that a unit for each piece does not.
        if few.steps == tuple(self.alignment_unit(piece) for piece in pieces):
            return few
        if all(coordinates.shape[1] <= _FEW_STARTS for _, coordinates in self.starts):
            return few
        return congruences_of(self.multiple, self._rows(pieces, None))

    def _rows(self, pieces: Structure, most: int | None) -> IntArray:
        """A row for each start, or for `most` at random: its value in each piece, scaled to one modulus."""
        found = [np.zeros((0, len(pieces)), np.int64)]
        for multiple, coordinates in self.starts:
            if most is not None and coordinates.shape[1] > most:
                # Neighbours differ in few digits.
                some = np.random.default_rng(_SEED).integers(0, coordinates.shape[1], most)
                coordinates = coordinates[:, some]
            digits = tuple(coordinates[dim] // divide % size % multiple for dim, divide, size in pieces)
            moduli = (multiple,) * len(pieces)
            distinct = np.unique(np.ravel_multi_index(digits, moduli))
            found.append(np.stack(np.unravel_index(distinct, moduli), axis=1) * (self.multiple // multiple))
        return np.concatenate(found)


def stride_multiple(problem: Problem) -> int:
    """Elements of which every stride but the innermost is a multiple."""
    pitch = problem.layout.pitch_multiple_bytes or 1
    return pitch // math.gcd(pitch, problem.tile.element_bytes)


def space_of(problem: Problem, trace: Trace, period_bytes: int, families: Iterable[str]) -> Space:
    """The space of linearisations that keep a problem's constraints.

    Args:
        problem: the tile and its constraints.
        trace: the accesses, whose vectors stay whole and aligned.
        period_bytes: bytes after which the banks repeat.
        families: those that may be used.
    """
    size = problem.tile.element_bytes
    starts = []
    for access in trace.taking_part:
        width = access.operation.width_bytes
        multiple = width // math.gcd(width, size)  # elements of which multiples lie at multiples of its bytes
        if multiple > 1:  # else every element may start one
            starts.append((multiple, np.array(np.unravel_index(access.starts, problem.tile.shape))))
    return Space(
        shape=problem.tile.shape,
        vector=max((a.width_elements for a in trace.taking_part), default=1),
        starts=tuple(starts),
        period=period_bytes // math.gcd(period_bytes, size),
        stride_multiple=stride_multiple(problem),
        order=problem.layout.order,
        families=frozenset(families),
    )
