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
from collections.abc import Iterator, Mapping
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
from layoutopt.search.counted import Counted, Counter

# Constants of a formula beyond which none is changed: every one has tens of other values, each counted.
_MAX_CONSTANTS: Final = 8
# Lane accesses counted, and operations on elements evaluated, so quickly that the clock need not be asked.
_QUICK_LANES: Final = 1 << 20
_QUICK_OPERATIONS: Final = 1 << 24

Path = tuple[int, ...]


class Edit(Struct, frozen=True):
    """One change."""

    node: Node  # the formula after it, element offset over x0, x1,
    text: str  # what to do, in a few words
    distance: float  # the relative change of a stride, or what is as near; the smaller is nearer


def edits(node: Node, period: int) -> Iterator[Edit]:
    """Another stride, alone or with the larger ones in proportion; a divisor or modulus an eighth to 8 times.

    Strides change by a `period` at most: any other has the banks of one of these. Only the first
    `_MAX_CONSTANTS` constants change. An edit may be no layout of the tile: the caller checks.

    Args:
        node: element offset over x0, x1, ...
        period: elements after which the banks repeat.
    """
    constants = [  # that are positive, and a factor, or the right operand (number 1) of a division
        (path, symbol, arg.value)
        for path, symbol, arg in operands(node)
        if isinstance(arg, Const) and arg.value > 0
        if symbol == "*" or (symbol in ("//", "%") and path[-1] == 1)
    ][:_MAX_CONSTANTS]
    factors = {path: value for path, symbol, value in constants if symbol == "*"}
    for stride in sorted(set(factors.values())):
        for other in range(max(1, stride - period), stride + period + 1):
            if other != stride:
                yield from _restrided(node, factors, stride, other)
    for path, symbol, value in constants:
        if symbol == "*":
            continue
        for doublings in (-3, -2, -1, 1, 2, 3):
            other = value << doublings if doublings > 0 else value >> -doublings
            is_whole = doublings > 0 or other << -doublings == value
            if other > 1 and is_whole:
                text = f"change {symbol} {value} to {symbol} {other}"
                # A factor of two is as near as another stride that differs by a 64th: among the nearest.
                yield Edit(_with_constants(node, {path: other}), text, distance=abs(doublings) / 64)


def _restrided(node: Node, factors: Mapping[Path, int], stride: int, other: int) -> Iterator[Edit]:
    """`stride` changed to `other`: at each place alone, at all of them, and at all with the larger strides.

    Larger strides keep their ratio: with 32 to 33, 1024 becomes 1056. `factors` has each stride in `node`, by
    its path.
    """
    text, distance = f"change {stride} to {other}", abs(other - stride) / stride
    places = [path for path, factor in factors.items() if factor == stride]
    if len(places) > 1:
        for path in places:
            alone = _with_constants(node, {path: other})
            yield Edit(alone, f"change one {stride} to {other}", distance=distance)
    everywhere = dict.fromkeys(places, other)
    yield Edit(_with_constants(node, everywhere), text, distance=distance)
    # Strides of slower dimensions, at least twice as large; to a stride of 1 all are, whatever they mean.
    larger = {path: factor for path, factor in factors.items() if factor >= 2 * stride > 2}
    if larger:
        after = {factor: factor // stride * other + factor % stride for factor in sorted(larger.values())}
        changed = everywhere | {path: after[factor] for path, factor in larger.items()}
        text += "".join(f" and {old} to {new}" for old, new in after.items())
        yield Edit(_with_constants(node, changed), text, distance=distance)


def operands(node: Node, path: Path = ()) -> Iterator[tuple[Path, str, Node]]:
    """Every operand in a formula: its path of operand numbers, its operator, and itself."""
    if isinstance(node, Op):
        for k, arg in enumerate(node.args):
            yield (*path, k), node.symbol, arg
            yield from operands(arg, (*path, k))


def _with_constants(node: Node, values: Mapping[Path, int]) -> Node:
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


def declared_bytes(node: Node, tile: Tile) -> int:
    """Bytes of the array that a formula declares, every pitch in full; 0 where it is no sum of pitches."""
    strides = strides_of(node, len(tile.shape)) or ()
    most = max((stride * extent for stride, extent in zip(strides, tile.shape, strict=False)), default=0)
    return most * tile.element_bits // 8


# The nearest ------------------------------------------------------------------------------------


def is_large(case: Case, node: Node | None = None) -> bool:
    """Whether to evaluate and count a layout, with such a formula, takes so long that the clock is asked."""
    lanes = sum(access.element.size for access in case.lanes.accesses)
    effort = 0 if node is None else case.problem.tile.elements * operations(node)
    return lanes > _QUICK_LANES or effort > _QUICK_OPERATIONS


def nearest_edit(node: Node, case: Case) -> Edit | None:
    """The nearest edit of `node` that is better than it; None where there is none.

    Better is less weighted excess, or as much in fewer bytes; anything is better than a formula that is no
    layout of the tile. There is none where the constraints allow no pad. Where lanes choose at run time, only
    the edit that serves the other accesses best is asked about.

    Args:
        node: element offset of `case.problem` over x0, x1, ...
        case: the tile and its accesses, with one width for each.
    """
    limits, tile = case.problem.layout, case.problem.tile
    may_pad = limits.families is None or "pad" in limits.families
    if case.problem.is_dictated or not may_pad:
        return None
    most_alignment = math.inf if limits.alignment_bytes is None else limits.alignment_bytes
    if case.alignment(has_xor(node)) > most_alignment or (is_large(case, node) and current().spent):
        return None
    before = _sort_key(case, node)  # None where it is no layout of the tile
    period_bytes = max(access.rule.banks * access.rule.bank_bytes for access in case.lanes.accesses)
    every = edits(node, period=max(2, period_bytes * 8 // tile.element_bits))
    candidates = (edit for edit in every if _obeys_constraints(edit, limits, tile))
    batches = Counter(case, case.certain).batches(_distinct_tables(candidates, case))

    def rank(counted: Counted[Edit]) -> tuple[float, ...]:
        excess, last_offset, edit = counted
        return excess, last_offset, edit.distance

    for _, _, edit in sorted(itertools.chain.from_iterable(batches), key=rank):
        if (after := _sort_key(case, edit.node)) is not None:  # the first that is a layout
            return edit if before is None or after < before else None
        if current().spent:
            return None
    return None


def _distinct_tables(tried: Iterator[Edit], case: Case) -> Iterator[tuple[Edit, IntArray]]:
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


def _sort_key(case: Case, node: Node) -> tuple[float, ...] | None:
    """Excess and bytes of a formula, the better is smaller; None where it is no layout that is allowed."""
    most_bytes = case.problem.layout.max_bytes
    try:
        table = case.table(node)
        case.check(table)
    except (ExpressionError, LayoutError):
        return None
    if most_bytes is not None and case.size(table) > most_bytes:
        return None
    with unhurried():
        return EXCESS_FIRST.key(case.weighted_excess(case.count(table)), case.size(table))


def _obeys_constraints(edit: Edit, allowed: Constraints, tile: Tile) -> bool:
    """Whether the strides fall in the file's order, and all but the smallest are multiples of its pitch."""
    order, multiple = allowed.order, allowed.pitch_multiple_bytes
    if multiple is None and order is None:
        return True
    strides = strides_of(edit.node, len(tile.shape))
    if strides is None:
        return False
    in_order = [strides[d] for d in order or range(len(strides)) if tile.shape[d] > 1]
    falling = sorted(in_order, reverse=True)
    multiple_bits = 8 * (multiple or 1)
    are_multiples = all(stride * tile.element_bits % multiple_bits == 0 for stride in falling[:-1])
    return are_multiples and (order is None or in_order == falling)
