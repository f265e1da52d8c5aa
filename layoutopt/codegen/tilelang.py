"""TileLang: a `Layout` for `T.annotate_layout`.

A tile that TMA or a matrix instruction reaches must be one of TileLang's own swizzled layouts, which its
lowering of copies and products knows: they are named where they are the layout at every element.
"""

from typing import Final

import numpy as np

from layoutopt.codegen.cute import tilings
from layoutopt.codegen.plan import Plan
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import operators, to_text
from layoutopt.ground.arrays import IntArray

_INDEXABLE: Final = frozenset(("+", "-", "*", "//", "%", "&", "|", "^", "~", "<<", ">>", "neg"))
# TileLang's own layouts by CuTe's atoms, which they repeat over the rows first (tilelang/layout/swizzle.py).
_SWIZZLED: Final = {
    "Layout_K_SW128_Atom": "make_full_bank_swizzled_layout",
    "Layout_K_SW64_Atom": "make_half_bank_swizzled_layout",
    "Layout_K_SW32_Atom": "make_quarter_bank_swizzled_layout",
}
_COLUMNS_LAST: Final = "cute::_1, cute::_2"


def emit(plan: Plan) -> str:
    """A Python module; the offset counts elements.

    Raises:
        LayoutError: the formula uses what TileLang's index expressions do not have.
    """
    foreign = operators(plan.offset) - _INDEXABLE
    if foreign:
        raise LayoutError(
            f"TileLang's index expressions have no {', '.join(sorted(foreign))}; --lang cuda, c or numba have"
        )
    coordinates = ", ".join(plan.coordinate_ranges)
    lines = [
        *(f"# {line}" for line in plan.headlines),
        "",
        "",
        f"def {plan.name}_offset({coordinates}):",
        '    """Element offset of an element."""',
        f"    return {to_text(plan.offset)}",
        "",
        "",
        *_layout(plan),
    ]
    return "\n".join(lines) + "\n"


def _layout(plan: Plan) -> list[str]:
    """The function that makes the layout."""
    name, shape = f"{plan.name}_layout", list(plan.problem.tile.shape)
    tile = f"tile = T.alloc_shared({shape}, dtype)"
    own = own_layout(plan.table // plan.element_bytes, plan.element_bytes) if plan.dictated else None
    if own is not None:
        return [
            f"def {name}(tile):",
            f'    """For T.annotate_layout({{tile: {name}(tile)}}), {tile}.',
            "",
            "    TileLang's TMA and matrix instructions know it.",
            '    """',
            f"    from tilelang.layout import {own}",
            "",
            f"    return {own}(tile)",
        ]
    unknown = "# None of TileLang's own layouts: its TMA and matrix instructions do not know it."
    return [
        *([unknown] if plan.dictated else []),
        f"def {name}():",
        f'    """For T.annotate_layout({{tile: {name}()}}), {tile}."""',
        "    from tilelang.layout import Layout",
        "",
        f"    return Layout({shape}, {plan.name}_offset)",
    ]


def own_layout(offsets: IntArray, element_bytes: int) -> str | None:
    """Which of TileLang's own functions makes the layout of these offsets, in elements, if one does."""
    row_major = np.arange(offsets.size).reshape(offsets.shape)
    if (offsets == row_major).all():
        return "make_linear_layout"
    if offsets.ndim < 2 or 16 % element_bytes:
        return None
    within = offsets - row_major[..., :1, :1]
    for atom, step, table in tilings(offsets.shape[-2:], element_bytes):
        if atom in _SWIZZLED and step == _COLUMNS_LAST and (within == table).all():
            return _SWIZZLED[atom]
    return None
