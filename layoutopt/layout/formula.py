"""A layout as the expression an expert would write.

The swizzle is defined on the linear offset, `v ^ (v >> s & m)`, but where a source bit of v is a bit
of one coordinate, and the targets lie in the field of one digit, there is a shorter spelling:
`x0*64 + (x1 ^ x0 % 8 * 8)`. This module finds it.

The offsets of a table get a formula, too, where they follow one: those that `layoutopt.expressions.fit`
finds, lines turned against one another, by a formula or by a small table of turns, and sums of strides of
which a few elements beyond the tile lie in holes.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from msgspec.structs import replace

from layoutopt.errors import ExpressionError
from layoutopt.expressions.fit import fit
from layoutopt.expressions.grammar import (
    Const,
    Lookup,
    Node,
    Op,
    Var,
    joined,
    operators,
    substituted,
    tabulated,
    with_parts,
)
from layoutopt.expressions.simplify import Range, operations, simplify, weighted_sum
from layoutopt.expressions.spaces import Span
from layoutopt.ground.arrays import IntArray
from layoutopt.layout.layout import Digit, Layout, Target, tight_digits

# Longer formulas are no gain, and larger tables none over that of all offsets.
_MOST_OPERATIONS, _MOST_ENTRIES = 24, 64
_MOST_DIMS = 4  # of which every choice and order is tried
_KEPT = 32


def coordinate_ranges(shape: Sequence[int]) -> dict[str, Range]:
    """The range of x0, x1, ... in the tile."""
    return {f"x{d}": (0, extent - 1) for d, extent in enumerate(shape)}


def element_expression(layout: Layout) -> Node:
    """The element offset over x0, x1, ..., equal to `layout.element_offset` on the whole tile."""
    if layout.packed == 1:
        return offset_expression(layout)
    inner = layout.digits[-1] if layout.digits else Digit(0, 1, 1, 0)
    if (inner.dim, inner.divide, inner.stride) == (len(layout.shape) - 1, 1, 1):
        return offset_expression(_over_elements(layout))
    last = Var(f"x{len(layout.shape) - 1}")
    units = Op("*", (offset_expression(layout), Const(layout.packed)))
    return Op("+", (units, Op("%", (last, Const(layout.packed)))))


@lru_cache(_KEPT)
def offset_expression(layout: Layout) -> Node:
    """The offset in units of `layout.element_bytes` over x0, x1, ...

    Where elements are packed, a unit is the byte that holds them; else it is an element.
    """
    ranges = coordinate_ranges(layout.shape)
    if layout.packed > 1:
        units = replace(layout, shape=(*layout.shape[:-1], layout.shape[-1] // layout.packed), packed=1)
        last = f"x{len(layout.shape) - 1}"
        unit = Op("//", (Var(last), Const(layout.packed)))
        return simplify(substituted(offset_expression(units), {last: unit}), ranges)
    if layout.lookup:
        return simplify(_looked_up(layout), ranges)
    digits = [d for d in layout.digits if d.size > 1]
    terms = [(_value(d), d) for d in digits]
    linear = _spread(layout, digits, _linear(layout, digits))
    if not layout.swizzle:
        return simplify(linear, ranges)
    flips = [simplify(flip, ranges) for flip in _flips(layout, digits, linear)]
    home = None if layout.turn or layout.interval[0] else _home(digits, [t.bit for t in layout.swizzle])
    if home is None:
        return simplify(joined("^", [linear, *flips]), ranges)
    inner = joined("^", [_scaled(_value(home), home.stride), *flips])
    parts = [inner if d is home else _scaled(value, d.stride) for value, d in terms]
    return simplify(joined("+", parts), ranges)


def _looked_up(layout: Layout) -> Node:
    """A table of all offsets, or of those of a period: a formula where they follow one."""
    shape, count = layout.shape, len(layout.lookup)
    row_major = row_major_index(range(len(shape)), shape)
    in_period: Node = Lookup(layout.lookup, Op("%", (row_major, Const(count))))
    for first in range(len(shape)):
        whole_dims = math.prod(shape[first:]) == count  # a period is all of x_first, x_first+1, ...
        if whole_dims and (formula := spelled(layout.lookup, shape[first:])) is not None:
            if first == 0:
                return formula
            renamed = {f"x{d}": Var(f"x{first + d}") for d in range(len(shape) - first)}
            in_period = substituted(formula, renamed)
            break
    return Op("+", (Op("*", (Op("//", (row_major, Const(count))), Const(count))), in_period))


@lru_cache(_KEPT)
def flipped_spelling(offset: Node, shape: tuple[int, ...], factor: int) -> Node | None:
    """`factor` times an element offset, as a linear offset with some of its own bits flipped.

    Longer than an XOR of coordinates, but what a thread's coordinates give may shrink to a multiple of its
    index. The linear offset is `offset` without what is XORed.

    Args:
        offset: over x0, x1, ...
        shape: of the tile.
        factor: of the result.

    Returns:
        The spelling; None where nothing is flipped, where the flips are no function of higher bits of the
        linear offset, or where the factor is no power of two.
    """
    if factor & (factor - 1) or not has_xor(offset):
        return None
    ranges = coordinate_ranges(shape)
    for side in (0, 1):
        plain = _without_xor(offset, side)
        before, after = (tabulated(node, shape).ravel() for node in (plain, offset))
        flips = _sources(before, before ^ after)
        if flips:
            return _flipped(flips, simplify(_scaled(plain, factor), ranges), factor.bit_length() - 1)
    return None


def has_xor(node: Node) -> bool:
    """Whether a formula flips bits."""
    return "^" in operators(node)


def _without_xor(node: Node, side: int) -> Node:
    """`node` with one side in the place of every XOR."""
    match node:
        case Op("^", args):
            return _without_xor(args[side], side)
    return with_parts(node, lambda part: _without_xor(part, side))


def _sources(values: IntArray, flips: IntArray) -> dict[int, int] | None:
    """Target bits, as a mask, by the distance to the higher bit of `values` that flips them.

    Gaussian elimination over F2: what each bit of a value flips by itself.

    Args:
        values: int64, at least 0.
        flips: what is XORed to each.

    Returns:
        None where nothing is flipped, or the flips are not linear in higher bits.
    """
    if values.min() < 0 or flips.min() < 0:
        return None
    rows, rest, span = values.copy(), flips.copy(), Span()  # of values; tag: what they flip
    for bit in reversed(range(int(values.max()).bit_length())):
        with_bit = np.flatnonzero(rows >> bit & 1)
        if len(with_bit):
            row, flip = int(rows[with_bit[0]]), int(rest[with_bit[0]])
            rows[with_bit] ^= row
            rest[with_bit] ^= flip
            span.add(row, flip)
    if rest.any():
        return None
    targets = range(int(flips.max()).bit_length())
    distances = _by_distance((target, span.functional(target)) for target in targets)
    return distances if min(distances, default=0) > 0 else None


def stages(layout: Layout) -> list[Node]:
    """What the layout does to its linear offset v, one after the other, each over `v`; all in units.

    That is `sum(digit * stride)` first; then perhaps a rotation, a pad after every so many, a swizzle.
    """
    v = Var("v")
    found: list[Node] = []
    if layout.turn:
        place = Op("%", (v, Const(layout.pitch)))
        turned = Op("+", (place, Op("*", (Op("//", (v, Const(layout.pitch))), Const(layout.turn)))))
        turned = Op("%", (turned, Const(layout.digits[-1].size)))
        found.append(Op("+", (Op("-", (v, place)), turned)))
    if layout.interval[0]:
        every, extra = layout.interval
        found.append(Op("+", (v, _scaled(Op("//", (v, Const(every))), extra))))
    if layout.swizzle:
        found.append(_flipped(swizzle_sources(layout), v, 0))
    return found


def swizzle_sources(layout: Layout) -> dict[int, int]:
    """Target bits, as a mask, by the distance to the bit that flips them."""
    return _by_distance((target.bit, target.mask) for target in layout.swizzle)


def _by_distance(masks: Iterable[tuple[int, int]]) -> dict[int, int]:
    """The same of pairs of a target bit and the mask of the bits that flip it."""
    distances: dict[int, int] = {}
    for target, mask in masks:
        for source in range(mask.bit_length()):
            if mask >> source & 1:
                distances[source - target] = distances.get(source - target, 0) | 1 << target
    return distances


def _flipped(distances: Mapping[int, int], linear: Node, step: int) -> Node:
    """`linear`, the linear offset shifted left by `step`, with bits flipped by higher ones of its own.

    `distances`: target bits of the offset before the shift, by the distance to the bit that flips them.
    """
    flips = [
        Op("&", (Op("//", (linear, Const(1 << distance))), Const(mask << step)))
        for distance, mask in sorted(distances.items())
    ]
    return joined("^", [linear, *flips])


def _over_elements(layout: Layout) -> Layout:
    """The same layout with packed elements as its units; the innermost digit must count units."""
    step = layout.packed.bit_length() - 1
    *outer, inner = layout.digits
    last = len(layout.shape) - 1
    digits = [
        Digit(
            d.dim, d.divide * layout.packed if d.dim == last else d.divide, d.size, d.stride * layout.packed
        )
        for d in outer
    ]
    digits.append(Digit(inner.dim, 1, inner.size * layout.packed, 1))
    swizzle = tuple(Target(t.bit + step, t.mask << step) for t in layout.swizzle)
    interval = (layout.interval[0] * layout.packed, layout.interval[1] * layout.packed)
    return Layout(layout.shape, 1, tuple(digits), swizzle, layout.turn * layout.packed, interval=interval)


def _linear(layout: Layout, digits: list[Digit]) -> Node:
    """The offset before the swizzle."""
    parts = [_scaled(_value(d), d.stride) for d in digits]
    if layout.turn and digits and digits[-1] is layout.digits[-1]:
        size = digits[-1].size
        line = joined("+", [_scaled(_value(d), d.stride // layout.pitch) for d in digits[:-1]])
        place = joined("+", [_value(digits[-1]), _scaled(line, layout.turn)])
        parts[-1] = Op("%", (place, Const(size)))
    return joined("+", parts)


def _spread(layout: Layout, digits: list[Digit], linear: Node) -> Node:
    """`linear` with the layout's interval pad, as a sum over digits where the interval cuts one of them."""
    every, extra = layout.interval
    if not every:
        return linear
    dense = not layout.turn and tuple(digits) == tight_digits(digits)
    for k, digit in enumerate(digits if dense else ()):
        cut, rest = divmod(every, digit.stride)
        if rest or cut > digit.size or digit.size % cut:
            continue
        # linear // every = that of the slower digits, plus this one's value // cut.
        parts = [_scaled(_value(d), d.stride + d.stride // every * extra) for d in digits[:k]]
        parts.append(_scaled(_value(digit), digit.stride + extra * (cut == 1)))
        if 1 < cut < digit.size:
            parts.append(_scaled(Op("//", (_value(digit), Const(cut))), extra))
        return joined("+", [*parts, *(_scaled(_value(d), d.stride) for d in digits[k + 1 :])])
    return joined("+", [linear, _scaled(Op("//", (linear, Const(every))), extra)])


def _value(digit: Digit) -> Node:
    return Op("%", (Op("//", (Var(f"x{digit.dim}"), Const(digit.divide))), Const(digit.size)))


def _scaled(value: Node, factor: int) -> Node:
    return Op("*", (value, Const(factor)))


def _trailing_zeros(number: int) -> int:
    return (number & -number).bit_length() - 1


def _owner(digits: list[Digit], bit: int) -> Digit | None:
    """The digit whose value alone decides bit `bit` of the linear offset, if there is one; slowest first."""
    for k, digit in enumerate(digits):
        low = _trailing_zeros(digit.stride)
        below = sum((d.size - 1) * d.stride for d in digits[k + 1 :])
        slower_clear = all(_trailing_zeros(d.stride) > bit for d in digits[:k])
        if digit.stride == 1 << low and low <= bit and below < digit.stride and slower_clear:
            return digit
    return None


def _home(digits: list[Digit], bits: list[int]) -> Digit | None:
    """The digit in whose field all target bits lie, if there is one."""
    owners = [_owner(digits, bit) for bit in bits]
    return owners[0] if all(o is owners[0] for o in owners) else None


def _flips(layout: Layout, digits: list[Digit], linear: Node) -> list[Node]:
    """What is XORed into the offset: one expression per source digit and shift amount."""
    pairs = [(t.bit, s) for t in layout.swizzle for s in range(t.mask.bit_length()) if t.mask >> s & 1]
    # By number of the source digit (-1: the whole linear offset) and distance: its value, and the moves.
    groups: dict[tuple[int, int], tuple[Node, list[tuple[int, int]]]] = {}
    for target, source in pairs:
        owner = _owner(digits, source)
        if owner is None or (layout.turn and owner is digits[-1]):
            value, bit, number = linear, source, -1
        else:
            value, bit, number = _value(owner), source - _trailing_zeros(owner.stride), digits.index(owner)
        groups.setdefault((number, bit - target), (value, []))[1].append((target, bit))
    return [_moved(value, moves) for _, (value, moves) in sorted(groups.items(), key=lambda group: group[0])]


def _moved(value: Node, moves: list[tuple[int, int]]) -> Node:
    """Bits of `value` moved to their targets: pairs (target, bit), all the same distance."""
    moves = sorted(moves)
    (first_target, first_bit), count = moves[0], len(moves)
    if moves[-1][1] - first_bit == count - 1:
        field = Op("%", (Op("//", (value, Const(1 << first_bit))), Const(1 << count)))
        return _scaled(field, 1 << first_target)
    mask = sum(1 << (bit - first_bit) for _, bit in moves)
    return _scaled(Op("&", (Op("//", (value, Const(1 << first_bit))), Const(mask))), 1 << first_target)


# Formulas of tables ---------------------------------------------------------------------------


@lru_cache(_KEPT)
def spelled(lookup: tuple[int, ...], shape: tuple[int, ...]) -> Node | None:
    """An expression over x0, x1, ... with these values by row-major index; None where none is found."""
    table = np.array(lookup, np.int64).reshape(shape)
    ranges = coordinate_ranges(shape)
    for found in (_plain(table, range(len(shape))), _turned(table, ranges), _folded(table)):
        node = None if found is None else simplify(found, ranges)
        if node is None:
            continue
        with contextlib.suppress(ExpressionError):  # offsets that a file gives may be as large as it likes
            if (tabulated(node, shape) == table).all():
                return node
    return None


def _plain(table: IntArray, dims: Sequence[int]) -> Node | None:
    """A short formula over some coordinates, the dimensions of the table."""
    node = fit(table, {f"x{d}": extent for d, extent in zip(dims, table.shape, strict=True)})
    return None if node is None or "if" in operators(node) or operations(node) > _MOST_OPERATIONS else node


def _turned(table: IntArray, ranges: Mapping[str, Range]) -> Node | None:
    """`line*N + (place + turn of the line) % N`, N the length of a line; None where the table is not that.

    Every choice of inner dimensions, which count the places of a line, is tried.
    """
    dims = [d for d, extent in enumerate(table.shape) if extent > 1]
    if len(dims) > _MOST_DIMS:
        return None
    for count in range(1, len(dims)):
        for inner in itertools.permutations(dims, count):
            outer = [d for d in dims if d not in inner]
            length = int(np.prod([table.shape[d] for d in inner]))
            # Dimensions: the outer ones, then all inner as one.
            kept = [table.shape[d] for d in outer]
            lines = table.transpose(*outer, *inner, *(d for d in range(table.ndim) if d not in dims))
            lines = lines.reshape(*kept, length)
            line, turn = lines // length, (lines - np.arange(length)) % length
            if (line != line[..., :1]).any() or (turn != turn[..., :1]).any():
                continue
            line_node = _plain(line[..., 0], outer)
            if line_node is None:
                continue
            turn_node = _turn(turn[..., 0], line[..., 0], line_node, length, outer)
            if turn_node is None:
                continue
            place = row_major_index(inner, table.shape)
            turned = Op("%", (Op("+", (place, turn_node)), Const(length)))
            return Op("+", (Op("*", (simplify(line_node, ranges), Const(length))), turned))
    return None


def _turn(turn: IntArray, line: IntArray, number: Node, length: int, outer: Sequence[int]) -> Node | None:
    """How far each line is turned, but for whole turns: a multiple of its number, with jumps, or a table.

    Args:
        turn, line: by coordinates of the outer dimensions, the turn of a line, and its number.
        number: the number as a formula.
        length: of a line.
        outer: those dimensions.
    """
    count = int(line.max()) + 1
    if line.size != count:
        return None
    by_line = np.zeros(count, np.int64)
    by_line[line.ravel()] = turn.ravel()
    first, every = int(by_line[0]), np.arange(count)
    step = int(by_line[1] - first) % length if count > 1 else 0
    rest = (by_line - first - step * every) % length
    terms: list[tuple[int, Node]] = [(first, Const(1)), (step, number)]
    if not rest.any():
        return weighted_sum(terms)
    jump = int(np.flatnonzero(rest)[0])  # lines from one jump to the next
    for extra in (int(rest[jump]), int(rest[jump]) - length):
        if not ((rest - extra * (every // jump)) % length).any():
            return weighted_sum([*terms, (extra, Op("//", (number, Const(jump))))])
    short = _plain(turn, outer)
    if short is not None:
        return short
    return Lookup(tuple(by_line.tolist()), number, "") if count <= _MOST_ENTRIES else None


def _folded(table: IntArray) -> Node | None:
    """`v - ([...][v - elements] if v >= elements else 0)`, v a sum of strides: a few offsets put into holes.

    None where the table is not that.
    """
    if table.flat[0]:
        return None
    strides = []
    for d, extent in enumerate(table.shape):
        second = tuple(int(other == d) for other in range(table.ndim))
        strides.append(int(table[second]) if extent > 1 else 0)
    linear = np.tensordot(strides, np.indices(table.shape), 1)
    entries, beyond = int(linear.max()) + 1 - table.size, linear >= table.size
    if not 0 < entries <= _MOST_ENTRIES or (linear[~beyond] != table[~beyond]).any():
        return None
    moved_back = np.zeros(entries, np.int64)
    moved_back[linear[beyond] - table.size] = (linear - table)[beyond]
    v = weighted_sum([(s, Var(f"x{d}")) for d, s in enumerate(strides) if s])
    entry = Lookup(tuple(moved_back.tolist()), Op("-", (v, Const(table.size))), "")
    return Op("-", (v, Op("if", (entry, Op(">=", (v, Const(table.size))), Const(0)))))


def row_major_index(dims: Sequence[int], shape: tuple[int, ...]) -> Node:
    """The row-major index over some of x0, x1, ..., the slowest first."""
    node: Node = Var(f"x{dims[0]}")
    for d in dims[1:]:
        node = Op("+", (Op("*", (node, Const(shape[d]))), Var(f"x{d}")))
    return node
