"""The nearest edit of a layout in use: the smallest change that serves the accesses as well as any edit does.

Edits are small changes of an offset formula, as a kernel's author would make them by hand:

    another constant      x0*129 + x1   ->   x0*132 + x1                change 129 to 132
    order with a pad      x0*32 + x1    ->   x1*33 + x0                 store x1 slowest: x1*33 + x0
    one mask more         x0*32 + x1    ->   x0*32 + (x1 ^ x0 % 8 * 4)  XOR x0 % 8 * 4 into x1

Every edit is counted by the conflict engine. Of each kind, the one with the fewest wavefronts, then bytes,
then the smallest change is looked at closely; of those, the smallest kind that costs no more than the best.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from layoutopt.engine.case import Case
from layoutopt.engine.estimate import estimate, why_no_estimate
from layoutopt.errors import ExpressionError, LayoutError
from layoutopt.expressions.grammar import Const, Node, Op, Var, names, substituted, to_text
from layoutopt.expressions.simplify import operations, simplify, sum_terms, weighted_sum
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current, unhurried
from layoutopt.layout.formula import coordinate_ranges, has_xor
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.problems.types import Constraints, Tile
from layoutopt.study.counted import Counter

# Kinds of edits, the smallest first, and the family that must be allowed for each.
_NEEDS: Final = {"constant": "pad", "mask": "xor", "order": "order"}
KINDS: Final = tuple(_NEEDS)

# Every order of more dimensions than these would be too many.
_MAX_ORDERED: Final = 4
# Constants of a formula beyond which none is changed: their pairs with values are too many.
_MAX_CONSTANTS: Final = 8
# Lane accesses that are counted, and operations on elements that are evaluated, in less time than what they
# decide is worth.
_QUICK_LANES: Final = 1 << 20
_QUICK_OPERATIONS: Final = 1 << 24

Path = tuple[int, ...]


class Edit(Struct, frozen=True):
    """One change.

    Attributes:
        kind: one of `KINDS`.
        node: the formula after it, element offset over x0, x1, ...
        text: what to do, in a few words; `{offset}` is not part of it.
        distance: how far it is from the formula before; of the same kind, the smaller is nearer.
    """

    kind: str
    node: Node
    text: str
    distance: float


def edits(node: Node, tile: Tile, vector: int, period: int) -> Iterator[Edit]:
    """All changes of `node` that are tried, the smallest kind first.

    Args:
        node: element offset over x0, x1, ...
        tile: what it lays out.
        vector: elements of the widest access, which stay together.
        period: elements after which the banks repeat.
    """
    yield from _other_constants(node, period)
    yield from _added_pads(node, tile, period)
    yield from _masks(node, tile, vector, period)
    yield from _orders(node, tile, period)


# Constants ---------------------------------------------------------------------------------------


def _other_constants(node: Node, period: int) -> Iterator[Edit]:
    """Another stride, and those of slower dimensions with it; another divisor, twice or half as large."""
    found = list(_constants(node))[:_MAX_CONSTANTS]
    strides = sorted({value for _, symbol, value in found if symbol == "*"})
    for value in strides:
        for other in range(max(1, value - period), value + period + 1):
            if other != value:
                yield from _restrided(node, found, value, other)
    for path, symbol, value in found:
        for shift in (-3, -2, -1, 1, 2, 3) if symbol != "*" else ():
            other = value << shift if shift > 0 else value >> -shift
            if other > 1 and (value % other == 0 or other % value == 0):
                changed = _with(node, {path: other})
                yield Edit("constant", changed, f"change {_shown(symbol, value, other)}", abs(shift) / 64)


def _shown(symbol: str, value: int, other: int) -> str:
    return f"{value} to {other}" if symbol == "*" else f"{symbol} {value} to {symbol} {other}"


def _restrided(node: Node, found: Sequence[tuple[Path, str, int]], value: int, other: int) -> Iterator[Edit]:
    """`value` as `other`: wherever it is a factor, alone and with the strides that are multiples of it."""
    text, distance = f"change {value} to {other}", abs(other - value) / value
    factors = [(path, factor) for path, symbol, factor in found if symbol == "*"]
    places = [path for path, factor in factors if factor == value]
    if len(places) > 1:
        for path in places:
            yield Edit("constant", _with(node, {path: other}), f"change one {value} to {other}", distance)
    everywhere = dict.fromkeys(places, other)
    yield Edit("constant", _with(node, everywhere), text, distance)
    slower = {path: factor for path, factor in factors if factor >= 2 * value > 2}
    if slower:
        after = {factor: factor // value * other + factor % value for factor in sorted(slower.values())}
        changed = everywhere | {path: after[factor] for path, factor in slower.items()}
        text += "".join(f" and {before} to {now}" for before, now in after.items())
        yield Edit("constant", _with(node, changed), text, distance)


def operands(node: Node, path: Path = ()) -> Iterator[tuple[Path, str, Node]]:
    """Every operand in a formula: its path of operand numbers, its operator, and itself."""
    if isinstance(node, Op):
        for k, arg in enumerate(node.args):
            yield (*path, k), node.symbol, arg
            yield from operands(arg, (*path, k))


def _constants(node: Node) -> Iterator[tuple[Path, str, int]]:
    """Every constant that a product, a division or a remainder has: where, of which operator, its value."""
    for path, symbol, arg in operands(node):
        right = symbol == "*" or (symbol in ("//", "%") and path[-1] == 1)
        if right and isinstance(arg, Const) and arg.value > 0:
            yield path, symbol, arg.value


def _with(node: Node, values: Mapping[Path, int]) -> Node:
    """`node` with other constants at these places."""
    for path, value in values.items():
        node = changed_at(node, path, Const(value))
    return node


def changed_at(node: Node, path: Path, other: Node) -> Node:
    """`node` with another operand at a path of operand numbers."""
    if not path:
        return other
    assert isinstance(node, Op)
    args = list(node.args)
    args[path[0]] = changed_at(args[path[0]], path[1:], other)
    return Op(node.symbol, tuple(args))


# Pads, masks and orders --------------------------------------------------------------------------


def _added_pads(node: Node, tile: Tile, period: int) -> Iterator[Edit]:
    """Of a tile of one dimension, which has no pitch: a pad after every so many elements."""
    if len([extent for extent in tile.shape if extent > 1]) != 1 or node != _row_major(tile):
        return
    (name,) = (f"x{d}" for d, extent in enumerate(tile.shape) if extent > 1)
    for shift in range(2, period.bit_length() + 1):
        term = Op("//", (Var(name), Const(1 << shift)))
        yield Edit("constant", Op("+", (node, term)), f"add {to_text(term)}", 1 / (1 << shift))


def _row_major(tile: Tile) -> Node:
    strides = [math.prod(tile.shape[d + 1 :]) for d in range(len(tile.shape))]
    return weighted_sum((s, Var(f"x{d}")) for d, s in enumerate(strides) if tile.shape[d] > 1)


def _masks(node: Node, tile: Tile, vector: int, period: int) -> Iterator[Edit]:
    """Bits of a coordinate XORed into the offset or into the fastest coordinate."""
    low, high = (vector - 1).bit_length(), (period - 1).bit_length()
    ranges = coordinate_ranges(tile.shape)
    last = Var(f"x{len(tile.shape) - 1}")
    alone = _stands_alone(node, last)
    for source, width in ((Var(name), top.bit_length()) for name, (_, top) in ranges.items()):
        for start, bits in itertools.product(range(width), range(1, min(width, high - low) + 1)):
            if start + bits > width:
                continue
            run = Op("%", (Op("//", (source, Const(1 << start))), Const(1 << bits)))
            for to in range(low, high - bits + 1):
                flip = simplify(Op("*", (run, Const(1 << to))), ranges)
                text, distance = to_text(flip), bits + start / 64
                if alone and source != last and 1 << (to + bits) <= tile.shape[-1]:
                    inner = substituted(node, {last.name: Op("^", (last, flip))})
                    yield Edit("mask", inner, f"XOR {text} into {last.name}", distance)
                yield Edit("mask", Op("^", (node, flip)), f"XOR {text} into the offset", distance + 0.5)


def _stands_alone(node: Node, variable: Var) -> bool:
    """Whether the formula is a sum with `variable` itself as a term, and nowhere else."""
    terms = sum_terms(node, 1)
    return (1, variable) in terms and sum(variable.name in names(term) for _, term in terms) == 1


def strides_of(node: Node, dimensions: int) -> tuple[int, ...] | None:
    """The stride of each coordinate where the formula is a sum of multiples of them, else None."""
    strides = dict.fromkeys((f"x{d}" for d in range(dimensions)), 0)
    for factor, term in sum_terms(node, 1):
        if not isinstance(term, Var):
            return None
        strides[term.name] += factor
    return tuple(strides.values())


def strides_obey(strides: Sequence[int], allowed: Constraints, tile: Tile) -> bool:
    """Whether they, in elements, have the order and, but for the innermost, the multiple asked for."""
    order, multiple = allowed.order, allowed.pitch_multiple_bytes or 1
    wide = [strides[d] for d in order or range(len(strides)) if tile.shape[d] > 1]
    falling = sorted(wide, reverse=True)
    return (order is None or wide == falling) and not any(
        stride * tile.element_bits % (8 * multiple) for stride in falling[:-1]
    )


def _orders(node: Node, tile: Tile, period: int) -> Iterator[Edit]:
    """Every other order of the dimensions, dense or with one pad of less than a period of the banks."""
    strides = strides_of(node, len(tile.shape))
    wide = [d for d, extent in enumerate(tile.shape) if extent > 1]
    if strides is None or not 2 <= len(wide) <= _MAX_ORDERED:
        return
    now = sorted(wide, key=lambda d: -strides[d])
    for order in itertools.permutations(now):
        if list(order) != now:
            yield _ordered(order, 0, 0, tile)
            for padded, pad in itertools.product(range(len(order) - 1), range(1, period)):
                yield _ordered(order, padded, pad, tile)


def _ordered(order: tuple[int, ...], padded: int, pad: int, tile: Tile) -> Edit:
    """Dimensions from slowest to fastest; the stride of the dimension at `padded` has a pad."""
    stride, terms = 1, []
    for k, d in reversed(list(enumerate(order))):
        stride += pad if k == padded else 0
        terms.append((stride, Var(f"x{d}")))
        stride *= tile.shape[d]
    node = weighted_sum(reversed(terms))
    slowest = ", ".join(f"x{d}" for d in order)
    what = f" with a pad of {pad}" if pad else ""
    return Edit("order", node, f"order the dimensions {slowest}{what}", 1 + pad / 1024)


# The nearest ------------------------------------------------------------------------------------


class Nearest(Struct, frozen=True):
    """An edit that serves the accesses.

    Attributes:
        edit: what to change.
        excess: weighted excess of the layout after it, in units of the trace.
        bytes: to the end of the last element.
    """

    edit: Edit
    excess: float
    bytes: int

    @property
    def rank(self) -> tuple[float, ...]:
        """Sorting key: the better has the smaller one."""
        return EXCESS_FIRST.key(self.excess, self.bytes)


def is_large(case: Case, node: Node | None = None) -> bool:
    """Whether to evaluate and count a layout, with such a formula, takes so long that the clock is asked."""
    lanes = sum(access.element.size for access in case.lanes.accesses)
    effort = 0 if node is None else case.problem.tile.elements * operations(node)
    return lanes > _QUICK_LANES or effort > _QUICK_OPERATIONS


def nearest_edit(node: Node, case: Case, *, by_time: bool = False) -> Nearest | None:
    """The nearest edit of `node` that is better than it; None where there is none.

    Better is less weighted excess, or as much in fewer bytes; anything is better than a formula that
    is no layout of the tile.

    Args:
        node: element offset of `case.problem` over x0, x1, ...
        case: the tile and its accesses, with one width for each.
        by_time: kinds of edits are compared by their estimated time, where there is one and time is left;
            else by excess.
    """
    large = is_large(case, node)
    if case.problem.is_dictated or (large and current().spent):
        return None
    before = _measured(case, Edit("constant", node, "", 0.0))
    best = [
        found
        for kind in (current().while_left(KINDS) if large else KINDS)
        if (found := _best_of(kind, node, case)) is not None and (before is None or found.rank < before.rank)
    ]
    # Each estimate may take as long as the counts of all.
    by_time = by_time and bool(best) and why_no_estimate(case) is None and not current().spent
    prices = [_time(case, found.edit.node) if by_time else found.excess for found in best]
    return next((found for found, price in zip(best, prices, strict=True) if price <= min(prices)), None)


def _time(case: Case, node: Node) -> float:
    return estimate(case, node, case.count(case.table(node))).time


def _best_of(kind: str, node: Node, case: Case) -> Nearest | None:
    """The edit of this kind with the least excess, then bytes, then distance, that is a layout."""
    allowed, tile = case.problem.layout, case.problem.tile
    if _NEEDS[kind] not in (allowed.families or _NEEDS.values()) or (kind == "order" and allowed.order):
        return None
    vector = max(access.width_elements for access in case.lanes.accesses) * tile.packed
    rules = [case.device.rule(access.operation) for access in case.lanes.accesses]
    period = max(rule.banks * rule.bank_bytes for rule in rules) * 8 // tile.element_bits
    most = math.inf if allowed.alignment_bytes is None else allowed.alignment_bytes
    aligned = {swizzled: case.alignment(swizzled) <= most for swizzled in (False, True)}
    tried = (
        edit
        for edit in edits(node, tile, vector, max(2, period))
        if edit.kind == kind and _obeys(edit, allowed, tile) and aligned[has_xor(edit.node)]
    )
    batches = Counter(case, certain=True).batches(_laid(tried, case))
    ranked = sorted(itertools.chain.from_iterable(batches), key=lambda c: (*c[:2], c[2].distance))
    for _, _, edit in ranked:
        found = _measured(case, edit)
        if found is not None and (allowed.max_bytes is None or found.bytes <= allowed.max_bytes):
            return found
        if current().spent:
            return None
    return None


def _laid(tried: Iterator[Edit], case: Case) -> Iterator[tuple[Edit, IntArray]]:
    """Every edit that gives offsets, which no edit before it gives."""
    seen: set[bytes] = set()
    for edit in tried:
        try:
            table = case.table(edit.node)
        except (ExpressionError, LayoutError):
            continue
        key = table.tobytes()
        if key not in seen and table.min() >= 0:
            seen.add(key)
            yield edit, table


def _measured(case: Case, edit: Edit) -> Nearest | None:
    """What an edit costs; None where it is no layout of the tile."""
    try:
        table = case.table(edit.node)
        case.check(table)
    except (ExpressionError, LayoutError):
        return None
    with unhurried():
        return Nearest(edit, case.weighted_excess(case.count(table)), case.size(table))


def _obeys(edit: Edit, allowed: Constraints, tile: Tile) -> bool:
    """Whether the strides have the order and, all but the innermost, the multiple that the file asks for."""
    if edit.kind == "mask" or (allowed.pitch_multiple_bytes is None and allowed.order is None):
        return True
    strides = strides_of(edit.node, len(tile.shape))
    return strides is not None and strides_obey(strides, allowed, tile)
