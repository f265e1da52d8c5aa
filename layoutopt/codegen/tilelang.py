"""TileLang: a `Layout` for `T.annotate_layout`."""

from __future__ import annotations

from typing import Final

from layoutopt.codegen.plan import Plan
from layoutopt.codegen.python_text import header, headline
from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import Node, Op, to_text

_INDEXABLE: Final = frozenset(("+", "-", "*", "//", "%", "&", "|", "^", "~", "<<", ">>", "neg"))


def emit(plan: Plan) -> str:
    """A Python module; the offset counts elements.

    Raises:
        LayoutError: the formula uses what TileLang's index expressions do not have.
    """
    foreign = _symbols(plan.offset) - _INDEXABLE
    if foreign:
        raise LayoutError(
            f"TileLang's index expressions have no {', '.join(sorted(foreign))}; --lang cuda, c or numba have"
        )
    name, shape = plan.name, list(plan.problem.tile.shape)
    coordinates = ", ".join(plan.coordinate_ranges)
    lines = [
        *header(plan),
        *(f"# {headline(a)}" for a in plan.accesses),
        "",
        "",
        f"def {name}_offset({coordinates}):",
        '    """Element offset of an element."""',
        f"    return {to_text(plan.offset)}",
        "",
        "",
        f"def {name}_layout():",
        f'    """For T.annotate_layout({{tile: {name}_layout()}}), tile = T.alloc_shared({shape}, dtype)."""',
        "    from tilelang.layout import Layout",
        "",
        f"    return Layout({shape}, {name}_offset)",
    ]
    return "\n".join(lines) + "\n"


def _symbols(node: Node) -> frozenset[str]:
    if not isinstance(node, Op):
        return frozenset()
    return frozenset((node.symbol,)).union(*map(_symbols, node.args))
