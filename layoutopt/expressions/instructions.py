"""How many integer instructions a compiler makes of expressions, so that the cheapest of equal ones is taken.

Counted as NVIDIA's compiler selects them (sm_70 and later):

    a*33 + b            1    a product is fused with an addition (IMAD, LEA)
    a + b + c           1    an addition takes three operands (IADD3)
    a ^ (b & 7)         1    any function of the bits of three, at most one of them constant (LOP3)
    (a % 8)*16 ^ b      2    a shift, and the mask with the XOR; a sum of disjoint bits is one of bits, too
    a // 8, a // 3      1, 2 a shift; a high product and a correction, or three where the product is shifted
    a % 3               3    the division, and a product taken away

What several expressions share is computed once; a constant added last goes into the memory instruction.
`scripts/benchmarks/index_machine_code.py` counts what the compiler really makes of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from layoutopt.errors import ExpressionError
from layoutopt.expressions.grammar import Const, Lookup, Node, Op, evaluate, with_parts
from layoutopt.expressions.simplify import Range, bounds

_BITS = frozenset("^&|")


def instructions(
    nodes: Iterable[Node],
    ranges: Mapping[str, Range],
    positive: Collection[Node] = (),
    before: Iterable[Node] | None = None,
) -> int:
    """The integer instructions of computing all of `nodes` as addresses: a constant added last is free.

    Args:
        nodes: the expressions.
        ranges: the range of every variable; a dividend that may be negative costs a correction.
        positive: dividends that need none although their ranges say so.
        before: where nodes share nothing but what these compute; None where they share all that they can.
    """
    positive = {folded(node) for node in positive}
    counter = _Counter(ranges, positive)
    total = sum(counter.cost(folded(node)) for node in before or ())
    for node in nodes:
        shared = counter.seen if before is None else set(counter.seen)
        total += _Counter(ranges, positive, shared).cost(_without_constant(folded(node)))
    return total


@lru_cache(maxsize=1 << 14)  # forms of one address share nearly all their parts
def folded(node: Node) -> Node:
    """`node` with constants folded as compilers do it, which know no ranges: nothing else becomes simpler."""
    node = with_parts(node, folded)
    match node:
        case Op("if", (yes, Const(test), no)):
            return yes if test else no
        case Op("<<", (value, Const(by))) if 0 <= by < 32:
            return folded(Op("*", (value, Const(1 << by))))
        case Op(">>", (value, Const(by))) if 0 <= by < 32:
            return folded(Op("//", (value, Const(1 << by))))
        case Op("*", (Const() as factor, other)) if not isinstance(other, Const):
            return folded(Op("*", (other, factor)))
        case Op("*", (Op("*", (inner, Const(a))), Const(b))):
            return folded(Op("*", (inner, Const(a * b))))
        case Op("*", (Op("-", (Const(a), inner)), Const(k))):
            return folded(Op("-", (Const(a * k), Op("*", (inner, Const(k))))))
        case Op("-", (Const(0), Op("*", (inner, Const(k))))):
            return Op("*", (inner, Const(-k)))
        case Op("*", (Op("+", (inner, Const(a))), Const(k))) if _is_power(k):
            return folded(Op("+", (Op("*", (inner, Const(k))), Const(a * k))))
        case Op("*", (Op("&", (inner, Const(mask))), Const(k))) if mask > 0 and _is_power(k):
            return Op("&", (_shifted(inner, k), Const(mask * k)))
        case Op("*", (Op("%", (inner, Const(size))), Const(k))) if _is_power(size) and _is_power(k):
            return Op("&", (_shifted(inner, k), Const((size - 1) * k)))
        case Op("*", (Op("//", (_, Const(by))) as inner, Const(k))) if _is_power(by) and _is_power(k):
            return Op("&", (_shifted(inner, k), Const(-k)))
        case Op("//", (Op("*", (inner, Const(a))), Const(b))) if _is_power(a) and _is_power(b) and a <= b:
            return folded(Op("//", (inner, Const(b // a))))
        case Op("+", (Op("+", (inner, Const(a))), Const(b))):
            return folded(Op("+", (inner, Const(a + b))))
        case Op("+" | "-" | "^" | "|", (other, Const(0))) | Op("+" | "^" | "|", (Const(0), other)):
            return other
        case Op("*" | "//", (other, Const(1))):
            return other
        case Op("*" | "&", (_, Const(0))):
            return Const(0)
        case Op(_, args) if all(isinstance(arg, Const) for arg in args):
            try:
                return Const(int(evaluate(node, {})))
            except ExpressionError:
                return node
    return node


def _shifted(node: Node, factor: int) -> Node:
    """`factor` times a node, a shift right before it made shorter; the low bits are arbitrary."""
    match node:
        case Op("//", (inner, Const(by))) if _is_power(by):
            if by >= factor:
                return inner if by == factor else Op("//", (inner, Const(by // factor)))
            return folded(Op("*", (inner, Const(factor // by))))
    return folded(Op("*", (node, Const(factor))))


def _is_power(value: int) -> bool:
    return value > 0 and not value & (value - 1)


def _without_constant(node: Node) -> Node:
    match node:
        case Op("+", (Const(), rest)) | Op("+" | "-", (rest, Const())):
            return _without_constant(rest)
        case Op("-", (Const(), rest)):
            return folded(Op("-", (Const(0), _without_constant(rest))))
        case Op("+" | "-" as symbol, (a, b)):
            left, right = _without_constant(a), _without_constant(b)
            return (
                Op(symbol, (left, right))
                if (left, right) == (a, b)
                else _without_constant(Op(symbol, (left, right)))
            )
        case Op("*", (Op("+" | "-") as inner, Const() as factor)):
            rest = _without_constant(inner)
            return rest if isinstance(rest, Const) else Op("*", (rest, factor))
    return node


class _Counter:
    def __init__(
        self, ranges: Mapping[str, Range], positive: Collection[Node], seen: set[Node] | None = None
    ) -> None:
        self.ranges = ranges
        self.positive = positive
        self.seen = set() if seen is None else seen

    def cost(self, node: Node) -> int:
        """What `node` costs beyond what has been counted already."""
        if node in self.seen or not isinstance(node, Op | Lookup):
            return 0
        self.seen.add(node)
        if isinstance(node, Lookup):
            return 2 + self.cost(node.index)
        if node.symbol in _BITS or _masks(node) or self._disjoint(node):
            leaves = dict.fromkeys(self._leaves(node))
            constants = sum(isinstance(leaf, Const) for leaf in leaves)
            return max(len(leaves) // 2, constants) + sum(map(self.cost, leaves))
        if node.symbol in ("+", "-"):
            return self._sum(node)
        if node.symbol in ("//", "%"):
            return self._division(node)
        return 1 + sum(map(self.cost, node.args))

    def _sum(self, node: Op) -> int:
        products, others = 0, 0
        total = 0
        for term in self._terms(node):
            if isinstance(term, Op) and term.symbol == "*" and term not in self.seen:
                products += 1
                self.seen.add(term)
                total += sum(map(self.cost, term.args))
            else:
                others += 1
                total += self.cost(term)
        return total + products + others // 2

    def _terms(self, node: Node) -> list[Node]:
        if isinstance(node, Op) and node.symbol in ("+", "-"):
            return [t for arg in node.args for t in ([arg] if arg in self.seen else self._terms(arg))]
        return [node]

    def _leaves(self, node: Node) -> list[Node]:
        if _masks(node):
            assert isinstance(node, Op)
            return [*self._under(node.args[0]), node.args[1]]
        if isinstance(node, Op) and (node.symbol in _BITS or self._disjoint(node)):
            return [leaf for arg in node.args for leaf in self._under(arg)]
        return [node]

    def _disjoint(self, node: Node) -> bool:
        """Whether a sum's operands have no bits in common, so that compilers take it for one of bits."""
        match node:
            case Op("+", (a, b)) if not isinstance(b, Const):
                masked = any(isinstance(part, Op) and part.symbol in _BITS for part in (a, b))
                return masked and not self._possible(a) & self._possible(b)
        return False

    def _possible(self, node: Node) -> int:
        """The bits that `node` may have, all above its highest included where it may be negative."""
        match node:
            case Const(value):
                return value
            case Op("&", (a, Const(mask))):
                return self._possible(a) & mask
            case Op("^" | "|", (a, b)):
                return self._possible(a) | self._possible(b)
            case Op("*", (a, Const(k))) if _is_power(k):
                return self._possible(a) * k
            case Op("+", (a, b)) if not (left := self._possible(a)) & (right := self._possible(b)):
                return left | right
        low, high = bounds(node, self.ranges)
        return -1 if low < 0 else (1 << high.bit_length()) - 1

    def _under(self, node: Node) -> list[Node]:
        return [node] if node in self.seen else self._leaves(node)

    def _division(self, node: Op) -> int:
        dividend, divisor = node.args
        if not isinstance(divisor, Const) or divisor.value <= 0:
            return 8 + self.cost(dividend) + self.cost(divisor)
        if node.symbol == "%":
            return 1 + self.cost(Op("//", node.args))
        if divisor.value & (divisor.value - 1) == 0:
            return 1 + self.cost(dividend)
        corrected = bounds(dividend, self.ranges)[0] < 0 and dividend not in self.positive
        return (3 if corrected else 0) + (2 if _high_product(divisor.value) else 3) + self.cost(dividend)


def _high_product(divisor: int) -> bool:
    """Whether the high half of one product of 32 bits is the quotient, but for its sign.

    Warren, Hacker's Delight, 10-4: the multiplier for signed division then needs no shift.
    """
    multiplier = (1 << 32) // divisor + 1
    return multiplier * divisor - (1 << 32) <= 2


def _masks(node: Node) -> bool:
    """Whether `node` is a remainder that one mask gives."""
    match node:
        case Op("%", (_, Const(value))):
            return value > 0 and value & (value - 1) == 0
    return False
