"""TileLang: a `Layout` for `T.annotate_layout`.

A tile that TMA or a matrix instruction reaches must be one of TileLang's own swizzled layouts, which its
lowering of copies and products knows: they are named where they are the layout at every element.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from layoutopt.codegen.plan import Plan
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import operators, to_text

_INDEXABLE: Final = frozenset(("+", "-", "*", "//", "%", "&", "|", "^", "~", "<<", ">>", "neg"))
# TileLang's own layouts by the bytes of their rows' pages (tilelang/layout/swizzle.py).
_SWIZZLED: Final = {
    128: "make_full_bank_swizzled_layout",
    64: "make_half_bank_swizzled_layout",
    32: "make_quarter_bank_swizzled_layout",
}
_CHUNK_BYTES: Final = 16
_ROWS: Final = 8  # after which the swizzle repeats


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


def own_layout(offsets: npt.NDArray[np.int64], element_bytes: int) -> str | None:
    """Which of TileLang's own functions makes this layout, if one does.

    Args:
        offsets: in elements, in the shape of the tile.
        element_bytes: of an element.
    """
    shape = offsets.shape
    row_major = np.arange(offsets.size).reshape(shape)
    if (offsets == row_major).all():
        return "make_linear_layout"
    if len(shape) < 2 or shape[-2] % _ROWS or _CHUNK_BYTES % element_bytes:
        return None
    rows, columns, chunk = shape[-2], shape[-1], _CHUNK_BYTES // element_bytes
    r, c = np.arange(rows)[:, None], np.arange(columns)
    first = row_major[..., :1, :1]
    for width, made in _SWIZZLED.items():
        page, chunks = width // element_bytes, width // _CHUNK_BYTES
        if columns % page:
            continue
        flipped = c % page // chunk ^ r % _ROWS // (_ROWS // chunks)
        if (offsets == first + (c // page * rows + r) * page + flipped * chunk + c % chunk).all():
            return made
    return None
