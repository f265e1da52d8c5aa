"""The nearest edit of a layout in use: the smallest change that serves the accesses as well as any edit does.

Every edit of `layoutopt.study.edits` is counted by the conflict engine. Of each kind, the one with the fewest
wavefronts, then bytes, then the smallest change is looked at closely; of those, the smallest kind that costs
no more than the best.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from layoutopt.engine.case import Case
from layoutopt.engine.estimate import estimate
from layoutopt.errors import ExpressionError, LayoutError
from layoutopt.expressions.grammar import Node
from layoutopt.expressions.simplify import operations
from layoutopt.ground.budget import Budget
from layoutopt.layout.formula import has_xor
from layoutopt.problems.objective import EXCESS_FIRST
from layoutopt.problems.types import Constraints, Tile
from layoutopt.study.counted import Counter
from layoutopt.study.edits import KINDS, Edit, edits, strides_obey, strides_of

# What a family must be allowed for.
_NEEDS = {"constant": "pad", "mask": "xor", "order": "order"}

# Lane accesses that are counted, and operations on elements that are evaluated, in less time than what they
# decide is worth.
_QUICK_LANES = 1 << 20
_QUICK_OPERATIONS = 1 << 24

# Lane accesses, and elements of tables, that are counted in one go.
_BATCH_LANES = 1 << 18
_BATCH_ELEMENTS = 1 << 22


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


def nearest_edit(
    node: Node,
    case: Case,
    budget: Budget,
    *,
    by_time: bool = False,
) -> Nearest | None:
    """The nearest edit of `node` that is better than it; None where there is none.

    Better is less weighted excess, or as much in fewer bytes; anything is better than a formula that
    is no layout of the tile.

    Args:
        node: element offset of `case.problem` over x0, x1, ...
        case: the tile and its accesses, with one width for each.
        budget: the time there is.
        by_time: kinds of edits are compared by their estimated time, where lanes do not choose at run time
            and time is left; else by excess.
    """
    large = is_large(case, node)
    if large and budget.spent:
        return None
    before = _measured(case, Edit("constant", node, "", 0.0))
    best = [
        found
        for kind in (budget.while_left(KINDS) if large else KINDS)
        if (found := _best_of(kind, node, case, budget)) is not None
        and (before is None or found.rank < before.rank)
    ]
    if not best:
        return None
    # Each estimate may take as long as the counts of all.
    by_time = by_time and not case.chooses and not budget.spent
    prices = [_time(case, found.edit.node) if by_time else found.excess for found in best]
    return next(found for found, price in zip(best, prices, strict=True) if price <= min(prices))


def _time(case: Case, node: Node) -> float:
    return estimate(case, node, case.count(case.table(node))).time


def _best_of(kind: str, node: Node, case: Case, budget: Budget) -> Nearest | None:
    """The edit of this kind with the least excess, then bytes, then distance, that is a layout."""
    allowed = case.problem.layout
    if case.problem.is_dictated or _NEEDS[kind] not in (allowed.families or _NEEDS.values()):
        return None
    if kind == "order" and allowed.order is not None:
        return None
    tile = case.problem.tile
    vector = max(access.width_elements for access in case.lanes.accesses) * tile.packed
    rules = [case.device.rule(access.operation) for access in case.lanes.accesses]
    period = max(rule.banks * rule.bank_bytes for rule in rules) * 8 // tile.element_bits
    tried = (edit for edit in edits(node, tile, vector, max(2, period)) if edit.kind == kind)
    most = math.inf if allowed.alignment_bytes is None else allowed.alignment_bytes
    alignments = {swizzled: case.alignment(swizzled) for swizzled in (False, True)}
    kept = (e for e in tried if _obeys(e, allowed, tile) and alignments[has_xor(e.node)] <= most)
    counted = sorted(_counted(kept, case, budget), key=lambda c: c[:3])
    for _, end, _, edit in counted:
        if allowed.max_bytes is not None and end > allowed.max_bytes:
            continue
        found = _measured(case, edit)
        if found is not None:
            return found
        if budget.spent:
            return None
    return None


def _counted(tried: Iterator[Edit], case: Case, budget: Budget) -> Iterator[tuple[int, int, float, Edit]]:
    """Excess of the lanes that are known, bytes, distance and the edit, of every edit that gives offsets."""
    counter = Counter(case.certain, case.device)
    size = min(_BATCH_LANES // max(1, counter.lanes), _BATCH_ELEMENTS // case.lowered.tile.elements)
    seen: set[bytes] = set()
    while batch := list(itertools.islice(tried, max(1, size))):
        usable = []
        for edit in batch:
            try:
                table = case.table(edit.node)
            except (ExpressionError, LayoutError):
                continue
            key = table.tobytes()
            if key not in seen and table.min() >= 0:
                seen.add(key)
                usable.append((edit, table))
        if usable:
            excess = counter.excess(np.stack([table for _, table in usable]))
            for (edit, table), over in zip(usable, excess.tolist(), strict=True):
                yield over, case.size(table), edit.distance, edit
        if budget.spent:
            return


def _measured(case: Case, edit: Edit) -> Nearest | None:
    """What an edit costs; None where it is no layout of the tile."""
    try:
        table = case.table(edit.node)
        case.check(table)
    except (ExpressionError, LayoutError):
        return None
    return Nearest(edit, case.weighted_excess(case.count(table)), case.size(table))


def _obeys(edit: Edit, allowed: Constraints, tile: Tile) -> bool:
    """Whether the strides have the order and, all but the innermost, the multiple that the file asks for."""
    multiple, order = allowed.pitch_multiple_bytes, allowed.order
    if edit.kind == "mask" or (multiple is None and order is None):
        return True
    strides = strides_of(edit.node, len(tile.shape))
    return strides is not None and strides_obey(strides, allowed, tile)
