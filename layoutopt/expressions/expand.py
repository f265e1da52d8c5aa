"""Sums and products expanded, so that every variable contributes a constant step where it can.

    ((m - tid + 1)*17 + tid % 4*2)*4 // 8     ->     (m*17 - tid*17 + tid % 4*2 + 17) // 2

Like terms are gathered, products by constants move into sums and, by powers of two, into bit operations;
divisions and remainders lose what all their terms have in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from layoutopt.expressions.grammar import Const, Lookup, Node, Op, with_parts
from layoutopt.expressions.simplify import Range, gathered, simplify, weighted_sum

_BITS = frozenset("^&|")


def expanded(node: Node, ranges: Mapping[str, Range]) -> Node:
    """`node` expanded so that sums of multiples come apart, over variables of these ranges."""
    done: dict[Node, Node] = {}

    def run(node: Node) -> Node:
        if not isinstance(node, Op | Lookup):
            return node
        if node not in done:
            plain = with_parts(node, run)
            done[node] = _apart(plain) if isinstance(plain, Op) else plain
        return done[node]

    return simplify(run(simplify(node, ranges)), ranges)


def through_xor(node: Node) -> Node:
    """`node` with quotients and remainders by powers of two moved from XORs to their operands."""
    plain = with_parts(node, through_xor)
    match plain:
        case Op("%", (Op("^", (a, b)), Const(k))) if k > 0 and not k & (k - 1):
            return Op("^", (through_xor(Op("%", (a, Const(k)))), through_xor(Op("%", (b, Const(k))))))
        case Op("//", (Op("^", (a, b)) as both, Const(k))) if k > 0:
            low = k & -k
            if low > 1:
                both = Op("^", tuple(through_xor(Op("//", (part, Const(low)))) for part in (a, b)))
            return both if k == low else Op("//", (both, Const(k // low)))
    return plain


def _apart(node: Op) -> Node:
    """`node`, its operands already expanded, as a sum of multiples where it is one."""
    match node.symbol, node.args:
        case "neg", (inner,):
            return weighted_sum((-factor, part) for factor, part in gathered(inner))
        case "*", (Op(symbol, (a, b)), Const(k)) if symbol in _BITS and k > 0 and not k & (k - 1):
            return Op(symbol, (_apart(Op("*", (a, Const(k)))), _apart(Op("*", (b, Const(k))))))
        case "+" | "-" | "*", _:
            return weighted_sum(gathered(node))
        case ("//" | "%") as symbol, (inner, Const(divisor)) if divisor > 0:
            terms = gathered(inner)
            if symbol == "%":
                terms = [(factor % divisor if factor > 0 else factor, part) for factor, part in terms]
            common = math.gcd(divisor, *(f * (p.value if isinstance(p, Const) else 1) for f, p in terms))
            if common > 1:
                terms = [
                    (1, Const(f * p.value // common)) if isinstance(p, Const) else (f // common, p)
                    for f, p in terms
                ]
            short = Op(symbol, (weighted_sum(terms), Const(divisor // common)))
            return Op("*", (short, Const(common))) if symbol == "%" and common > 1 else short
    return node
