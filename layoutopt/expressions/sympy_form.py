"""Expressions as sympy's, for whoever goes on there; loading sympy takes longer than most solves."""

from typing import Any

import numpy as np
import sympy

from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, evaluate


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
