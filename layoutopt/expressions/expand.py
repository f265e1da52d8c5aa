"""Sums and products expanded by sympy, so that every loop variable contributes a constant step where it can.

Bit operations are opaque to it. Sympy 1.14 rewrites some remainders wrongly (`Mod(3*x, 4)` under a product),
so what comes back counts only after it has given the table's offset for every thread and iteration. Loading
sympy takes longer than most solves: whoever can do without it does not import this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import sympy
from sympy.core.function import UndefinedFunction

from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, evaluate, with_parts
from layoutopt.expressions.simplify import Range, simplify

_PLAIN = frozenset(("+", "-", "*", "//", "%", "neg"))


def expanded(node: Node, ranges: Mapping[str, Range]) -> Node:
    """`node` expanded so that sums of multiples come apart, over variables of these ranges."""
    try:
        opaque: dict[str, Any] = {}
        expression = sympy.expand(_to_sympy(node, opaque))
        return simplify(_with_tables(_from_sympy(expression), opaque), ranges)
    except RecursionError:  # sympy, on deep expressions
        return simplify(node, ranges)


def _with_tables(node: Node, opaque: Mapping[str, Any]) -> Node:
    """Look-ups in place of the functions that stood for them."""
    node = with_parts(node, lambda part: _with_tables(part, opaque))
    if isinstance(node, Op) and f"@{node.symbol}" in opaque:
        table: Lookup = opaque[f"@{node.symbol}"]
        return replace(table, index=node.args[0])
    return node


def _to_sympy(node: Node, opaque: dict[str, Any]) -> Any:
    match node:
        case Const(value):
            return sympy.Integer(value)
        case Var(name):
            return sympy.Symbol(name, integer=True, nonnegative=True)
        case Lookup(values, index, name):
            name = name or f"table_{hash(values):x}"
            opaque[f"@{name}"] = node
            return _opaque(name, opaque)(_to_sympy(index, opaque))
        case Op(symbol, args):
            parts = [_to_sympy(arg, opaque) for arg in args]
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


def as_sympy(node: Node) -> Any:
    """`node` as sympy's expression over symbols of the same names, which stand for integers.

    Sums, products, `//` and `%` are sympy's own. What sympy does not know (bits, comparisons, tables) is a
    function, written as in the grammar, that is a number once its arguments are.
    """
    match node:
        case Const(value):
            return sympy.Integer(value)
        case Var(name):
            return sympy.Symbol(name)
        case Lookup(_, index):
            return _function(node, as_sympy(index))
        case Op(symbol, args):
            parts = [as_sympy(arg) for arg in args]
            if symbol in ("+", "-", "*", "neg"):
                signed = {"+": sum(parts), "-": parts[0] - parts[-1], "neg": -parts[0]}
                return sympy.Mul(*parts) if symbol == "*" else signed[symbol]
            if symbol in ("//", "%") and parts[1].is_nonzero:
                return sympy.floor(parts[0] / parts[1]) if symbol == "//" else sympy.Mod(*parts)
            return _function(node, *parts)
    raise AssertionError(node)


_SYMPY_NAMES = {
    "^": "xor",
    "&": "bitand",
    "|": "bitor",
    "<<": "shl",
    ">>": "shr",
    "~": "invert",
    "if": "where",
}


def _function(node: Op | Lookup, *arguments: Any) -> Any:
    """A function of sympy that does what `node` does to its operands."""
    variables = tuple(Var(f"_{k}") for k in range(len(arguments)))
    bare = Lookup(node.values, variables[0]) if isinstance(node, Lookup) else Op(node.symbol, variables)
    name = node.name or "table" if isinstance(node, Lookup) else _SYMPY_NAMES.get(node.symbol, node.symbol)

    def value(cls: Any, *args: Any) -> Any:
        if all(arg.is_Integer for arg in args):
            env = {v.name: np.array(int(arg), np.int64) for v, arg in zip(variables, args, strict=True)}
            return sympy.Integer(int(evaluate(bare, env)))
        return None

    kind = type(name, (sympy.Function,), {"eval": classmethod(value), "is_integer": True})
    return kind(*arguments)
