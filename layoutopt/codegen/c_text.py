"""Integer expressions as C: shifts and masks for powers of two, floor semantics kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from layoutopt.expressions.grammar import Const, Lookup, Node, Op, Var, with_parts
from layoutopt.expressions.simplify import Range, bounds

_RANK: Final = {
    "|": 1,
    "^": 2,
    "&": 3,
    "<<": 4,
    ">>": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "%": 6,
    "neg": 7,
    "~": 7,
}
_SHIFT: Final = _RANK["<<"]  # binds tighter than a comparison; & ^ | do not
_BITWISE: Final = frozenset("|^&") | {"<<", ">>"}
_COMPARE: Final = frozenset(("<", "<=", ">", ">=", "==", "!="))


def to_c(
    node: Node, ranges: Mapping[str, Range], wide: str = "long long", positive: Collection[Node] = ()
) -> str:
    """`node` as a C expression, of type int, or `wide` where a step leaves the range of int.

    Division and remainder round down as in the problem file: a power of two becomes a shift or a
    mask, other divisors use C's own operators where the operand cannot be negative and a
    correction where it can, except for the dividends in `positive`.
    """
    lowered = _lower(node, ranges, positive)
    return _write(_widened(lowered, wide) if _leaves_int(node, ranges) else lowered, 0)


def _leaves_int(node: Node, ranges: Mapping[str, Range]) -> bool:
    low, high = bounds(node, ranges)
    if low < -(2**31) or high >= 2**31:
        return True
    if isinstance(node, Lookup):
        return _leaves_int(node.index, ranges)
    return isinstance(node, Op) and any(_leaves_int(arg, ranges) for arg in node.args)


def _widened(node: Node, wide: str) -> Node:
    if isinstance(node, Var):
        return Var(f"({wide}){node.name}")
    return with_parts(node, lambda part: _widened(part, wide))


def _lower(node: Node, ranges: Mapping[str, Range], positive: Collection[Node]) -> Node:
    """Replace Python's operators by C's."""
    if not isinstance(node, Op) or node.symbol not in ("//", "%"):
        return with_parts(node, lambda part: _lower(part, ranges, positive))
    args = tuple(_lower(arg, ranges, positive) for arg in node.args)
    low, high = bounds(node.args[1], ranges)
    if low == high > 0 and low & (low - 1) == 0:
        if node.symbol == "//":
            return Op(">>", (args[0], Const(low.bit_length() - 1)))
        return Op("&", (args[0], Const(low - 1)))
    a, b = args
    if low > 0 and (bounds(node.args[0], ranges)[0] >= 0 or node.args[0] in positive):
        return Op("/" if node.symbol == "//" else "%", (a, b))
    # C rounds towards zero; the remainder's sign tells when to step down.
    remainder = Op("%", (a, b))
    wrong = Op(
        "and",
        (Op("!=", (remainder, Const(0))), Op("!=", (Op("<", (remainder, Const(0))), Op("<", (b, Const(0)))))),
    )
    if node.symbol == "//":
        return Op("-", (Op("/", (a, b)), wrong))
    return Op("+", (remainder, Op("if", (b, wrong, Const(0)))))


def _write(node: Node, minimum: int) -> str:
    match node:
        case Const(value):
            text = f"{value}LL" if abs(value) >= 2**31 else str(value)
            return text if value >= 0 else f"({text})"
        case Var(name):
            return name
        case Lookup(_, index, name):
            return f"{name}({_write(index, 0)})"
        case Op("if", (yes, test, no)):
            return f"({_write(test, 0)} ? {_write(yes, 0)} : {_write(no, 0)})"
        case Op("min" | "max" as symbol, args):
            return _extreme("<" if symbol == "min" else ">", list(args))
        case Op("and" | "or" as symbol, args):
            return "(" + (" && " if symbol == "and" else " || ").join(_write(a, 8) for a in args) + ")"
        case Op("not", (arg,)):
            return f"(!{_write(arg, 8)})"
        case Op("neg" | "~" as symbol, (arg,)):
            return f"({'-' if symbol == 'neg' else '~'}{_write(arg, 8)})"
        case Op(symbol, (left, right)) if symbol in _COMPARE:
            return f"({_write(left, _SHIFT)} {symbol} {_write(right, _SHIFT)})"
        case Op(symbol, (left, right)):
            rank = _RANK[symbol]
            # Parentheses around every operand of a bit operation: compilers warn without them.
            inner = 8 if symbol in _BITWISE else rank
            first = left if symbol in _BITWISE and isinstance(left, Op) and left.symbol == symbol else None
            a = _write(left, rank if first is not None else inner)
            b = _write(right, 8 if symbol in _BITWISE else rank + 1)
            text = f"{a} {symbol} {b}"
            return text if rank >= minimum else f"({text})"
    raise AssertionError(node)


def _extreme(compare: str, args: list[Node]) -> str:
    if len(args) == 1:
        return _write(args[0], 8)
    rest = _extreme(compare, args[1:])
    first = _write(args[0], 8)
    return f"({first} {compare} {rest} ? {first} : {rest})"
