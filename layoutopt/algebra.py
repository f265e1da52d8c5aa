"""Rules on expressions whose variables have known ranges: bounds, and what they make redundant."""

from __future__ import annotations

from collections.abc import Mapping

from layoutopt.expressions import Const, Lookup, Node, Op, Var, with_parts

Range = tuple[int, int]  # both ends included

_UNBOUNDED: Range = (-(2**62), 2**62)


def bounds(node: Node, ranges: Mapping[str, Range]) -> Range:
    """An interval that holds every value of `node`; not always the smallest."""
    match node:
        case Const(value):
            return value, value
        case Var(name):
            return ranges[name]
        case Lookup(values, _):
            return min(values), max(values)
        case Op("<" | "<=" | ">" | ">=" | "==" | "!=" | "and" | "or" | "not"):
            return 0, 1
        case Op("neg", (arg,)):
            low, high = bounds(arg, ranges)
            return -high, -low
        case Op("if", (yes, _, no)):
            a, b = bounds(yes, ranges), bounds(no, ranges)
            return min(a[0], b[0]), max(a[1], b[1])
        case Op("min" | "max" as symbol, args):
            pick = min if symbol == "min" else max
            every = [bounds(arg, ranges) for arg in args]
            return pick(low for low, _ in every), pick(high for _, high in every)
        case Op(symbol, (left, right)):
            return _binary(symbol, bounds(left, ranges), bounds(right, ranges))
    return _UNBOUNDED


def _binary(symbol: str, a: Range, b: Range) -> Range:
    match symbol:
        case "+":
            return a[0] + b[0], a[1] + b[1]
        case "-":
            return a[0] - b[1], a[1] - b[0]
        case "*":
            corners = [p * q for p in a for q in b]
            return min(corners), max(corners)
        case "//" if b[0] > 0:
            corners = [p // q for p in a for q in b]
            return min(corners), max(corners)
        case "%" if b[0] > 0:
            return (0, min(a[1], b[1] - 1)) if a[0] >= 0 else (0, b[1] - 1)
        case "<<" if b[0] >= 0 and b[1] <= 62:
            corners = [p << q for p in a for q in b]
            return min(corners), max(corners)
        case ">>" if b[0] >= 0 and b[1] <= 62:
            corners = [p >> q for p in a for q in b]
            return min(corners), max(corners)
        case "&" if a[0] >= 0 or b[0] >= 0:
            return 0, min(high for low, high in (a, b) if low >= 0)
        case "|" | "^" if a[0] >= 0 and b[0] >= 0:
            return 0, (1 << max(a[1], b[1]).bit_length()) - 1
    return _UNBOUNDED


def simplify(node: Node, ranges: Mapping[str, Range]) -> Node:
    """An equal expression without the operations that the ranges make redundant."""
    if isinstance(node, Lookup):
        return with_parts(node, lambda part: simplify(part, ranges))
    if not isinstance(node, Op):
        return node
    args = tuple(simplify(arg, ranges) for arg in node.args)
    match node.symbol, args:
        case "+" | "-" | "*" | "//" | "%" | "&" | "|" | "^" | "<<" | ">>" as symbol, (Const(a), Const(b)):
            if not (symbol in ("//", "%") and b == 0) and not (symbol in ("<<", ">>") and not 0 <= b <= 62):
                return Const(_FOLD[symbol](a, b))
        case "+" | "^" | "|", (Const(0), other):
            return other
        case "+" | "-" | "^" | "|" | "<<" | ">>", (other, Const(0)):
            return other
        case "*", (Const(0), _) | (_, Const(0)):
            return Const(0)
        case ("*", (Const(1), other)) | ("*" | "//", (other, Const(1))):
            return other
        case "%", (_, Const(1)):
            return Const(0)
        case "*", (Const(value), other):
            return simplify(Op("*", (other, Const(value))), ranges)
        case "//", (Op("//", (inner, Const(a))), Const(b)) if a > 0 and b > 0:
            return simplify(Op("//", (inner, Const(a * b))), ranges)
        case "%", (Op("%", (inner, Const(a))), Const(b)) if b > 0 and a % b == 0:
            return simplify(Op("%", (inner, Const(b))), ranges)
        case ("//" | "%") as symbol, (inner, Const(b)) if b > 0:
            low, high = bounds(inner, ranges)
            if low // b == high // b:
                quotient = low // b
                if symbol == "//":
                    return Const(quotient)
                return inner if quotient == 0 else simplify(Op("-", (inner, Const(quotient * b))), ranges)
    return Op(node.symbol, args)


_FOLD = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}
