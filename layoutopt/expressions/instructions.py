"""About how many machine instructions expressions cost, so that the cheapest of equal ones can be taken.

Counted as NVIDIA's compiler selects them (sm_70 and later): a product is fused with an addition (IMAD, LEA),
an addition takes three operands (IADD3) and so does any function of bits (LOP3); a division by a constant is
a high product and a shift. What several expressions share is computed once.
`scripts/benchmarks/index_machine_code.py` counts what the compiler really makes of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

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
    counter = _Counter(ranges, positive)
    total = sum(map(counter.cost, before or ()))
    for node in nodes:
        shared = counter.seen if before is None else set(counter.seen)
        total += _Counter(ranges, positive, shared).cost(_without_constant(node))
    return total


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


def _without_constant(node: Node) -> Node:
    match node:
        case Op("+", (Const(), rest)) | Op("+" | "-", (rest, Const())):
            return _without_constant(rest)
        case Op("-", (Const(), rest)):
            return Op("-", (Const(0), _without_constant(rest)))
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
        if node.symbol in ("+", "-"):
            return self._sum(node)
        if node.symbol in _BITS or _masks(node):
            leaves = dict.fromkeys(self._leaves(node))
            return len(leaves) // 2 + sum(map(self.cost, leaves))
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
        if isinstance(node, Op) and node.symbol in _BITS:
            return [leaf for arg in node.args for leaf in self._under(arg)]
        return [node]

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
        return (5 if corrected else 2) + self.cost(dividend)


def _masks(node: Node) -> bool:
    """Whether `node` is a remainder that one mask gives."""
    match node:
        case Op("%", (_, Const(value))):
            return value > 0 and value & (value - 1) == 0
    return False
