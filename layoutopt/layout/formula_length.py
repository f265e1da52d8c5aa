"""Operations of a formula, which tell where no other formula is shorter.

    x0*32 + (x1 ^ x0)      three operations
    x0*33 + x1             two

What an index costs is another matter: `layoutopt.index.index_code`. The formulas of all families
join k coordinates of two values or more with k - 1 operations, and all but one of what they join
takes an operation of its own, for no two digits have stride 1 and a digit that is no whole coordinate takes a
division or a remainder. A swizzle adds one XOR at least.
"""

from __future__ import annotations

from layoutopt.expressions.count import operations
from layoutopt.layout.formula import element_expression
from layoutopt.layout.layout import Layout


def formula_operations(layout: Layout) -> int:
    """Operations of the layout's formula over x0, x1, ..."""
    return operations(element_expression(layout))


def least_formula_operations(shape: tuple[int, ...], swizzled: bool) -> int:
    """What no formula of the families undercuts for a tile of this shape."""
    coordinates = sum(1 for extent in shape if extent > 1)
    return 2 * max(0, coordinates - 1) + swizzled
