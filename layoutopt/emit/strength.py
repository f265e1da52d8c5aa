"""Address expressions of accesses, reduced by sympy and checked against the table.

Substituting an access's index into the layout gives a correct but clumsy expression. Sympy
expands the polynomial part, so that every loop variable contributes a constant step where the
algebra allows (`2048*i`), and drops multiples under `%` and `//`. Bit operations are opaque to it.
Sympy 1.14 rewrites some remainders wrongly (`Mod(3*x, 4)` under a product), so an expression counts
only after it has given the table's offset for every thread and iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import sympy
from sympy.core.function import UndefinedFunction

from layoutopt.accesses import LaneTrace, environment, expression_ranges
from layoutopt.address import Layout
from layoutopt.algebra import Range, simplify
from layoutopt.errors import ExpressionError, VerificationError
from layoutopt.expressions import Const, Node, Op, Var, evaluate, parse
from layoutopt.formula import offset_expression
from layoutopt.model import Access, Problem

_PLAIN = frozenset(("+", "-", "*", "//", "%", "neg"))


def access_address(access: Access, lanes: LaneTrace, problem: Problem, layout: Layout) -> Node:
    """The byte offset of an access over `tid` and its loop variables, in few operations.

    Args:
        access: one access of `problem`.
        lanes: its trace, which says where it must point.
        problem: the problem.
        layout: the layout; its table is what the expression is checked against.

    Raises:
        VerificationError: neither the reduced nor the plain expression equals the table. Our bug.
    """
    warp = lanes.element.shape[1]
    ranges = expression_ranges(access, problem, warp)
    free = frozenset(("tid", "lane", "warp", *access.loops))
    tid = Var("tid")
    names = {"lane": Op("%", (tid, Const(warp))), "warp": Op("//", (tid, Const(warp)))}
    index = {f"x{d}": substituted(parse(str(text), free), names) for d, text in enumerate(access.index)}
    offset, size = offset_expression(layout), layout.element_bytes
    address = reduced(offset, index, size, ranges)
    if not _equals_table(address, access, lanes, problem, layout):
        address = simplify(Op("*", (substituted(offset, index), Const(size))), ranges)
        if not _equals_table(address, access, lanes, problem, layout):
            raise VerificationError(f"the address of access {access.name!r} does not equal the table")
    return address


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """`node` with the variables in `values` replaced."""
    match node:
        case Var(name):
            return values.get(name, node)
        case Op(symbol, args):
            return Op(symbol, tuple(substituted(arg, values) for arg in args))
    return node


def _equals_table(address: Node, access: Access, lanes: LaneTrace, problem: Problem, layout: Layout) -> bool:
    env = environment(access, problem.threads, lanes.element.shape[1])
    shape = np.broadcast_shapes(*(values.shape for values in env.values()))
    # The trace pads the last warp; beyond the last thread nothing is active.
    active = lanes.active.reshape(shape[0], -1)[:, : problem.threads]
    element = lanes.element.reshape(shape[0], -1)[:, : problem.threads]
    try:
        values = np.broadcast_to(evaluate(address, env, active), shape)
    except ExpressionError:
        return False
    return bool((values == layout.table().ravel()[element])[active].all())


def reduced(node: Node, values: Mapping[str, Node], scale: int, ranges: Mapping[str, Range]) -> Node:
    """`scale * node` with `values` substituted, in a form that costs few operations.

    Args:
        node: an expression over the names in `values`.
        values: what to substitute, over the names in `ranges`.
        scale: a constant factor.
        ranges: the range of every free variable.
    """
    opaque: dict[str, Any] = {}
    bound = {name: _to_sympy(value, {}, opaque) for name, value in values.items()}
    expression = sympy.expand(scale * _to_sympy(node, bound, opaque))
    return simplify(_from_sympy(expression), ranges)


def _to_sympy(node: Node, bound: Mapping[str, Any], opaque: dict[str, Any]) -> Any:
    match node:
        case Const(value):
            return sympy.Integer(value)
        case Var(name):
            return bound.get(name, sympy.Symbol(name, integer=True, nonnegative=True))
        case Op(symbol, args):
            parts = [_to_sympy(arg, bound, opaque) for arg in args]
            if symbol not in _PLAIN:
                return _opaque(symbol, opaque)(*parts)
            match symbol:
                case "+":
                    return parts[0] + parts[1]
                case "-":
                    return parts[0] - parts[1]
                case "*":
                    return parts[0] * parts[1]
                case "neg":
                    return -parts[0]
            if parts[1] == 0:  # a branch never taken; leave it as written
                return _opaque(symbol, opaque)(*parts)
            return sympy.floor(parts[0] / parts[1]) if symbol == "//" else sympy.Mod(parts[0], parts[1])
    raise AssertionError(node)


def _opaque(symbol: str, opaque: dict[str, Any]) -> Any:
    if symbol not in opaque:
        opaque[symbol] = sympy.Function(symbol, integer=True)
    return opaque[symbol]


def _from_sympy(expression: Any) -> Node:
    if expression.is_Integer:
        return Const(int(expression))
    if expression.is_Symbol:
        return Var(expression.name)
    if expression.is_Add:
        terms = sorted(expression.args, key=_term_order)
        return reduce(_plus, (_from_sympy(term) for term in terms))
    if expression.is_Mul:
        number, rest = expression.as_coeff_mul()
        factors = reduce(lambda a, b: Op("*", (a, b)), (_from_sympy(f) for f in rest))
        return factors if number == 1 else Op("*", (factors, Const(int(number))))
    if isinstance(expression, sympy.Mod):
        return Op("%", (_from_sympy(expression.args[0]), _from_sympy(expression.args[1])))
    if isinstance(expression, sympy.floor):
        numerator, denominator = sympy.fraction(sympy.together(expression.args[0]))
        return Op("//", (_from_sympy(sympy.expand(numerator)), _from_sympy(denominator)))
    if expression.is_Pow:
        base, exponent = expression.as_base_exp()
        return reduce(lambda a, b: Op("*", (a, b)), [_from_sympy(base)] * int(exponent))
    if isinstance(expression.func, UndefinedFunction):
        return Op(expression.func.__name__, tuple(_from_sympy(arg) for arg in expression.args))
    raise AssertionError(f"sympy gave {sympy.srepr(expression)}")


def _plus(a: Node, b: Node) -> Node:
    if isinstance(b, Const) and b.value < 0:
        return Op("-", (a, Const(-b.value)))
    if isinstance(b, Op) and b.symbol == "*" and isinstance(b.args[1], Const) and b.args[1].value < 0:
        return Op("-", (a, Op("*", (b.args[0], Const(-b.args[1].value)))))
    return Op("+", (a, b))


def _term_order(term: Any) -> tuple[bool, bool, str]:
    """Positive terms first (a leading minus costs an operation), constants last."""
    return bool(term.as_coeff_Mul()[0] < 0), bool(term.is_number), str(term)
