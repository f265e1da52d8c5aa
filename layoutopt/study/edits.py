"""The nearest edit of a layout in use: the smallest change that serves the accesses as well as any edit does.

An edit is another constant in the offset formula, as a kernel's author would change it by hand:

    x0*129 + x1        ->   x0*132 + x1          change 129 to 132
    x0 + x0 // 16      ->   x0 + x0 // 32        change // 16 to // 32

Every edit is counted by the conflict engine, and the one with the fewest wavefronts, then bytes, then the
smallest change is the nearest. A first interval pad, an XOR, or another order of the dimensions is a layout
of its own: `compare` has the best of each.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from layoutopt.engine.case import Case
from layoutopt.errors import ExpressionError, LayoutError
from layoutopt.expressions.grammar import Const, Node, Op, Var
from layoutopt.expressions.simplify import operations, sum_terms
from layoutopt.ground.arrays import IntArray
from layoutopt.ground.budget import current, unhurried
from layoutopt.layout.formula import has_xor
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.problems.types import Constraints, Tile
from layoutopt.study.counted import Counter

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
        node: the formula after it, element offset over x0, x1, ...
        text: what to do, in a few words.
        distance: how far it is from the formula before; the smaller is nearer.
    """

    node: Node
    text: str
    distance: float


def edits(node: Node, period: int) -> Iterator[Edit]:
    """Another stride, and those of slower dimensions with it; another divisor, twice or half as large.

    Args:
        node: element offset over x0, x1, ...
        period: elements after which the banks repeat.
    """
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
                text = f"{value} to {other}" if symbol == "*" else f"{symbol} {value} to {symbol} {other}"
                yield Edit(changed, f"change {text}", abs(shift) / 64)


def _restrided(node: Node, found: Sequence[tuple[Path, str, int]], value: int, other: int) -> Iterator[Edit]:
    """`value` as `other`: wherever it is a factor, alone and with the strides that are multiples of it."""
    text, distance = f"change {value} to {other}", abs(other - value) / value
    factors = [(path, factor) for path, symbol, factor in found if symbol == "*"]
    places = [path for path, factor in factors if factor == value]
    if len(places) > 1:
        for path in places:
            yield Edit(_with(node, {path: other}), f"change one {value} to {other}", distance)
    everywhere = dict.fromkeys(places, other)
    yield Edit(_with(node, everywhere), text, distance)
    slower = {path: factor for path, factor in factors if factor >= 2 * value > 2}
    if slower:
        after = {factor: factor // value * other + factor % value for factor in sorted(slower.values())}
        changed = everywhere | {path: after[factor] for path, factor in slower.items()}
        text += "".join(f" and {before} to {now}" for before, now in after.items())
        yield Edit(_with(node, changed), text, distance)


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


def strides_of(node: Node, dimensions: int) -> tuple[int, ...] | None:
    """The stride of each coordinate where the formula is a sum of multiples of them, else None."""
    strides = dict.fromkeys((f"x{d}" for d in range(dimensions)), 0)
    for factor, term in sum_terms(node, 1):
        if not isinstance(term, Var):
            return None
        strides[term.name] += factor
    return tuple(strides.values())


# The nearest ------------------------------------------------------------------------------------


def is_large(case: Case, node: Node | None = None) -> bool:
    """Whether to evaluate and count a layout, with such a formula, takes so long that the clock is asked."""
    lanes = sum(access.element.size for access in case.lanes.accesses)
    effort = 0 if node is None else case.problem.tile.elements * operations(node)
    return lanes > _QUICK_LANES or effort > _QUICK_OPERATIONS


def nearest_edit(node: Node, case: Case) -> Edit | None:
    """The nearest edit of `node` that is better than it; None where there is none.

    Better is less weighted excess, or as much in fewer bytes; anything is better than a formula that
    is no layout of the tile.

    Args:
        node: element offset of `case.problem` over x0, x1, ...
        case: the tile and its accesses, with one width for each.
    """
    allowed, tile = case.problem.layout, case.problem.tile
    if case.problem.is_dictated or "pad" not in (allowed.families or ("pad",)):
        return None
    most = math.inf if allowed.alignment_bytes is None else allowed.alignment_bytes
    if case.alignment(has_xor(node)) > most or (is_large(case, node) and current().spent):
        return None
    before = _cost(case, node)
    rules = [access.rule for access in case.lanes.accesses]
    period = max(rule.banks * rule.bank_bytes for rule in rules) * 8 // tile.element_bits
    tried = (edit for edit in edits(node, max(2, period)) if _obeys(edit, allowed, tile))
    batches = Counter(case, certain=True).batches(_laid(tried, case))
    ranked = sorted(itertools.chain.from_iterable(batches), key=lambda c: (*c[:2], c[2].distance))
    for _, _, edit in ranked:
        if (after := _cost(case, edit.node)) is not None:
            return edit if before is None or after < before else None
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


def _cost(case: Case, node: Node) -> tuple[float, ...] | None:
    """The key of a formula: the better has the smaller one; None where it is no layout that is allowed."""
    most = case.problem.layout.max_bytes
    try:
        table = case.table(node)
        case.check(table)
    except (ExpressionError, LayoutError):
        return None
    if most is not None and case.size(table) > most:
        return None
    with unhurried():
        return EXCESS_FIRST.key(case.weighted_excess(case.count(table)), case.size(table))


def _obeys(edit: Edit, allowed: Constraints, tile: Tile) -> bool:
    """Whether the strides have the order and, all but the innermost, the multiple that the file asks for."""
    order, multiple = allowed.order, allowed.pitch_multiple_bytes
    if multiple is None and order is None:
        return True
    strides = strides_of(edit.node, len(tile.shape))
    if strides is None:
        return False
    wide = [strides[d] for d in order or range(len(strides)) if tile.shape[d] > 1]
    falling = sorted(wide, reverse=True)
    return (order is None or wide == falling) and not any(
        stride * tile.element_bits % (8 * (multiple or 1)) for stride in falling[:-1]
    )
