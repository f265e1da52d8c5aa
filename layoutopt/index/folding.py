"""Constants folded as compilers do it, which know no ranges: nothing else becomes simpler."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from layoutopt.errors import ExpressionError
from layoutopt.expressions.grammar import (
    ARITHMETIC,
    MAX_VALUE,
    Const,
    Node,
    Op,
    Var,
    evaluate,
    names,
    with_parts,
)

_TOTAL: Final = frozenset("+-*&|^")


@lru_cache(maxsize=1 << 14)  # forms of one address share nearly all their parts
def folded(node: Node) -> Node:
    """`node` with its constants folded."""
    return _step(with_parts(node, folded))


def unrolled(node: Node, loops: Mapping[str, int], iterations: Iterable[int]) -> Iterator[Node]:
    """`node`, folded, at one iteration after another.

    Args:
        node: the expression.
        loops: how often each variable that becomes a constant runs.
        iterations: which, counted with the last variable fastest.
    """
    known: dict[tuple[Node, tuple[int, ...]], Node] = {}

    def at(node: Node, place: Mapping[str, int]) -> Node:
        used = names(node)
        mine = tuple([place[name] for name in loops if name in used])
        if not mine:
            return folded(node)
        key = node, mine
        if key not in known:
            if isinstance(node, Var):
                known[key] = Const(mine[0])
            else:
                known[key] = _step(with_parts(node, lambda part: at(part, place)))
        return known[key]

    for k in iterations:
        place = {}
        for name, trips in reversed(list(loops.items())):
            k, place[name] = divmod(k, trips)
        yield at(node, place)


def _step(node: Node) -> Node:
    """`node`, folded, given that its operands are; only what has a constant among them becomes simpler."""
    if not isinstance(node, Op):
        return node
    constants = list(map(type, node.args)).count(Const)
    if not constants:
        return node
    if constants == len(node.args):
        return _constant(node)
    symbol = node.symbol
    if symbol in ("+", "-", "^", "|"):
        return _sum(node)
    match node:
        case Op("*"):
            return _product(node)
        case Op("//"):
            return _quotient(node)
        case Op("&"):
            return _masked(node)
        case Op("if", (yes, Const(test), no)):
            return yes if test else no
        # Shifts by 32 bits and more are left alone: addresses have 32.
        case Op("<<", (Op("<<", (value, Const(a))), Const(b))) if 0 <= a + b < 32:
            return Op("<<", (value, Const(a + b)))
        case Op("<<", (value, Const(0))):
            return value
        case Op(">>", (value, Const(by))) if 0 <= by < 32:
            return folded(Op("//", (value, Const(1 << by))))
    return node


def _quotient(node: Op) -> Node:
    """A quotient by a constant. What a shift to the left loses is not known, and no product may lose bits."""
    match node.args:
        case (other, Const(1)):
            return other
        case (Op("*", (inner, Const(a))), Const(b)) if is_power(a) and is_power(b) and a <= b:
            return folded(Op("//", (inner, Const(b // a))))
        case (Op("*", (inner, Const(a))), Const(b)) if is_power(b) and a % b == 0:
            return folded(Op("*", (inner, Const(a // b))))
        # `part` has no bits below its unit, so that a constant there is carried nowhere.
        case (Op("+", (part, Const(c))), Const(b)) if is_power(b) and _unit(part) % b == 0:
            return folded(Op("+", (Op("//", (part, Const(b))), Const(c // b))))
        case (Op("+", (part, Const(c))), Const(b)) if is_power(b) and (lost := c % _unit(part)):
            return folded(Op("//", (folded(Op("+", (part, Const(c - lost)))), Const(b))))
    return node


def _masked(node: Op) -> Node:
    """The bits of a sum, product or anything else that a constant has."""
    match (_lossless(node.args[0]), node.args[1]):
        case (_, Const(0)):
            return Const(0)
        case (Op("+", (part, Const(c))), Const(mask)) if mask > 0:
            unit, low = _unit(part), c % (1 << mask.bit_length())  # what the mask can see of c
            if mask < unit:  # nothing of `part`, which has no bits below its unit
                return Const(c & mask)
            if not low or (low < unit and not low & mask):  # nothing of c, which is carried nowhere
                return folded(Op("&", (part, Const(mask))))
        case (part, Const(mask)) if 0 < mask < _unit(part):  # bits that it has not
            return Const(0)
        case (part, Const(mask)) if mask > 0:
            return Op("&", (part, Const(mask)))
    return node


def _lossless(node: Node) -> Node:
    """A node of which only low bits count, so that those which a shift to the left loses do not matter."""
    match node:
        case Op("//", (Op("<<", (inner, Const(by))), divisor)):
            return folded(Op("//", (Op("*", (inner, Const(1 << by))), divisor)))
        case Op("+", (part, Const() as added)):
            return folded(Op("+", (_lossless(part), added)))
    return node


def _unit(node: Node) -> int:
    """A power of two of which a product or a shifted value is a multiple."""
    match node:
        case Op("*", (_, Const(factor))) if factor:
            return factor & -factor
        case Op("<<", (_, Const(by))):
            return 1 << by
    return 1


def _sum(node: Op) -> Node:
    """A sum, difference, XOR or OR of one constant and something else."""
    match node.args:
        case (other, Const(0)):
            return other
        case (Op("+", (inner, Const(a))), Const(b)) if node.symbol == "+":
            return folded(Op("+", (inner, Const(a + b))))
        case (Op("+", (inner, Const(a))), Const(b)) if node.symbol == "-":
            return folded(Op("+", (inner, Const(a - b))))
        case (Const(0), other) if node.symbol != "-":
            return other
        case (Op("+", (part, Const(c))), Const(b)) if node.symbol == "^" and 0 < b < (unit := _unit(part)):
            # All bits below the unit are those of c.
            return folded(Op("+", (part, Const(c - c % unit + (c % unit ^ b)))))
        case (Const(0), Op("*", (inner, Const(k)))):
            return Op("*", (inner, Const(-k)))
    return node


def _product(node: Op) -> Node:
    """A product with a constant: by a power of two a shift, which joins those of masks and divisions."""
    match node.args:
        case (Const() as factor, other):
            return folded(Op("*", (other, factor)))
        case (Op("*", (inner, Const(a))), Const(b)):
            return folded(Op("*", (inner, Const(a * b))))
        case (Op("<<", (inner, Const(a))), Const(b)) if is_power(b):
            return folded(Op("<<", (inner, Const(a + b.bit_length() - 1))))
        case (Op("<<", (inner, Const(a))), Const(b)):
            return folded(Op("*", (inner, Const(b << a))))
        case (Op("-", (Const(a), inner)), Const(k)):
            return folded(Op("-", (Const(a * k), Op("*", (inner, Const(k))))))
        case (Op("+", (inner, Const(a))), Const(k)) if is_power(k):
            return folded(Op("+", (Op("*", (inner, Const(k))), Const(a * k))))
        case (Op("^", (inner, Const(flip))), Const(k)) if is_power(k):
            return Op("^", (folded(Op("*", (inner, Const(k)))), Const(flip * k)))
        case (Op("&", (inner, Const(mask))), Const(k)) if mask > 0 and is_power(k):
            return Op("&", (_shifted(inner, k), Const(mask * k)))
        case (Op("%", (inner, Const(size))), Const(k)) if is_power(size) and is_power(k):
            return Op("&", (_shifted(inner, k), Const((size - 1) * k)))
        case (Op("//", (_, Const(by))) as inner, Const(k)) if is_power(by) and is_power(k):
            return Op("&", (_shifted(inner, k), Const(-k)))
        case (other, Const(1)):
            return other
        case (_, Const(0)):
            return Const(0)
    return node


def _constant(node: Op) -> Node:
    """The value of an operation on constants; the operation, where it has none."""
    values = [arg.value for arg in node.args if isinstance(arg, Const)]
    if node.symbol in _TOTAL or (node.symbol in ("//", "%") and values[1]):
        value = ARITHMETIC[node.symbol].of(*values)
        return Const(value) if abs(value) <= MAX_VALUE else node
    try:
        return Const(int(evaluate(node, {})))
    except ExpressionError:
        return node


def _shifted(node: Node, factor: int) -> Node:
    """A node times a power of two, but for bits below it, which are to be masked away."""
    match node:
        case Op("//", (inner, Const(by))) if is_power(by):
            if by >= factor:
                return inner if by == factor else Op("//", (inner, Const(by // factor)))
            return folded(Op("*", (inner, Const(factor // by))))
    return folded(Op("*", (node, Const(factor))))


def is_power(value: int) -> bool:
    """Whether a value is a power of two."""
    return value > 0 and not value & (value - 1)
