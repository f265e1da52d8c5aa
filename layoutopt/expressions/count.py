"""How many operations an expression takes."""

from __future__ import annotations

from layoutopt.expressions.grammar import Const, Lookup, Node, Op, parts


def operations(node: Node) -> int:
    """Integer operations of an expression, a repeated subexpression once; a look-up counts one.

    A division or remainder by a constant that is no power of two counts as three (a multiplication,
    a shift, a correction), as the solver counts it.
    """
    seen: set[Node] = set()

    def visit(part: Node) -> int:
        if not isinstance(part, Op | Lookup) or part in seen:
            return 0
        seen.add(part)
        costly = isinstance(part, Op) and part.symbol in ("//", "%") and not _is_power_of_two(part.args[1])
        return (3 if costly else 1) + sum(map(visit, parts(part)))

    return visit(node)


def _is_power_of_two(node: Node) -> bool:
    return isinstance(node, Const) and node.value > 0 and not node.value & (node.value - 1)
