"""The index cost: what it takes to compute an offset, as the formula spells it. The one definition.

    x0*32 + (x1 ^ x0)      three operations
    x0*33 + x1             two

The search orders candidates by an estimate (operations of the linearisation, three for each shift of a
swizzle), which does not know what spellings there are. So a cost is called least only where it meets a bound
that holds for the formulas of all families: they join k coordinates of two values or more with k - 1
operations, and all but one of what they join takes an operation of its own, for no two digits have stride 1
and a digit that is no whole coordinate takes a division or a remainder. A swizzle adds one XOR at least.
"""

from __future__ import annotations

from layoutopt.expressions.count import operations
from layoutopt.layout.formula import element_expression
from layoutopt.layout.layout import Layout

MEASURE = (
    "integer operations of the offset as printed: a repeated subexpression once, "
    "a division or remainder by no power of two as three, a look-up as one"
)


def index_cost(layout: Layout) -> int:
    """Operations of the layout's formula over x0, x1, ..."""
    return operations(element_expression(layout))


def least_index_cost(shape: tuple[int, ...], swizzled: bool) -> int:
    """What no formula of the families undercuts for a tile of this shape."""
    coordinates = sum(1 for extent in shape if extent > 1)
    return 2 * max(0, coordinates - 1) + swizzled
