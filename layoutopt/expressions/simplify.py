"""Rules on expressions whose variables have known ranges: bounds, and what they make redundant."""

import math
from collections.abc import Iterable, Mapping

from layoutopt.expressions.grammar import (
    ARITHMETIC,
    MAX_SHIFT,
    Const,
    Lookup,
    Node,
    Op,
    Var,
    parts,
    with_parts,
)

Range = tuple[int, int]  # both ends included

_BITS = frozenset("^&|")
_UNBOUNDED: Range = (-(2**62), 2**62)


def bounds(node: Node, ranges: Mapping[str, Range], known: dict[Node, Range] | None = None) -> Range:
    """An interval that holds every value of `node`; not always the smallest.

    `known` keeps those of its parts, for who asks about them under the same ranges, too.
    """
    if known is None:
        return _bounds(node, ranges, None)
    if node not in known:
        known[node] = _bounds(node, ranges, known)
    return known[node]


def _bounds(node: Node, ranges: Mapping[str, Range], known: dict[Node, Range] | None) -> Range:
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
            low, high = bounds(arg, ranges, known)
            return -high, -low
        case Op("if", (yes, _, no)):
            a, b = bounds(yes, ranges, known), bounds(no, ranges, known)
            return min(a[0], b[0]), max(a[1], b[1])
        case Op("min" | "max" as symbol, args):
            pick = min if symbol == "min" else max
            every = [bounds(arg, ranges, known) for arg in args]
            return pick(low for low, _ in every), pick(high for _, high in every)
        case Op(symbol, (left, right)):
            return _binary(symbol, bounds(left, ranges, known), bounds(right, ranges, known))
    return _UNBOUNDED


def _is_defined(symbol: str, by: Range) -> bool:
    """Whether an operator gives a value for every right operand of this range."""
    if symbol in ("<<", ">>"):
        return by[0] >= 0 and by[1] <= MAX_SHIFT
    return by[0] > 0 or symbol not in ("//", "%")


def _binary(symbol: str, a: Range, b: Range) -> Range:
    match symbol:
        case "+" | "-" | "*" | "//" | "<<" | ">>" if _is_defined(symbol, b):
            corners = [ARITHMETIC[symbol].of(p, q) for p in a for q in b]
            return min(corners), max(corners)
        case "%" if _is_defined(symbol, b):
            return (0, min(a[1], b[1] - 1)) if a[0] >= 0 else (0, b[1] - 1)
        case "&" if a[0] >= 0 or b[0] >= 0:
            return 0, min(high for low, high in (a, b) if low >= 0)
        case "&" | "|" | "^":
            reach = 1 << max(end if end >= 0 else ~end for end in (*a, *b)).bit_length()
            return (0 if symbol != "&" and a[0] >= 0 and b[0] >= 0 else -reach), reach - 1
    return _UNBOUNDED


def simplify(node: Node, ranges: Mapping[str, Range], known: dict[Node, Node] | None = None) -> Node:
    """An equal expression without the operations that the ranges make redundant.

    `known` keeps what became of parts, for who asks about them under the same ranges, too.
    """
    done = {} if known is None else known  # rules look at what they made again, and parts repeat

    def run(node: Node) -> Node:
        if not isinstance(node, Op | Lookup):
            return node
        if node not in done:
            plain = with_parts(node, run)
            result = plain
            if isinstance(plain, Op):
                shorter = _shorter(plain, ranges)
                result = plain if shorter is None else run(shorter)
            done[node] = done[result] = result
        return done[node]

    return run(node)


def _shorter(node: Op, ranges: Mapping[str, Range]) -> Node | None:
    """`node`, its operands already simplified, in a simpler form that may be simplified again, or None."""
    args = node.args
    match node.symbol, args:
        case symbol, (Const(a), Const(b)) if symbol in ARITHMETIC:
            if not (symbol in ("//", "%") and b == 0) and not (
                symbol in ("<<", ">>") and not 0 <= b <= MAX_SHIFT
            ):
                return Const(ARITHMETIC[symbol].of(a, b))
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
            return Op("*", (other, Const(value)))
        case "*", (Op("*", (inner, Const(a))), Const(b)):
            return Op("*", (inner, Const(a * b)))
        case "//", (Op("//", (inner, Const(a))), Const(b)) if a > 0 and b > 0:
            return Op("//", (inner, Const(a * b)))
        case "%", (Op("%", (inner, Const(a))), Const(b)) if b > 0 and a % b == 0:
            return Op("%", (inner, Const(b)))
        case "<<" | ">>" as symbol, (other, Const(b)) if 0 <= b <= MAX_SHIFT:
            return Op("*" if symbol == "<<" else "//", (other, Const(1 << b)))
        case "&", (inner, Const(mask)) if mask > 0:
            multiple, rest = _divided(inner, 1 << mask.bit_length(), ranges)
            return Op("&", (rest, Const(mask))) if multiple != Const(0) else None
        case ("//" | "%") as symbol, (inner, Const(b)) if b > 0:
            multiple, rest = _divided(inner, b, ranges)
            if multiple != Const(0):
                short = Op(symbol, (rest, Const(b)))
                return short if symbol == "%" else Op("+", (short, multiple))
            low, high = bounds(inner, ranges)
            if low // b == high // b:
                quotient = low // b
                if symbol == "//":
                    return Const(quotient)
                return inner if quotient == 0 else Op("-", (inner, Const(quotient * b)))
        case "+" | "-", _:
            return _joined(node) or _like_terms_once(node)
    return None


def _like_terms_once(node: Op) -> Node | None:
    """A sum with like terms put together, or None where that does not make it shorter."""
    terms = gathered(node)
    if len(terms) == len(sum_terms(node, 1)):
        return None
    once = weighted_sum(terms)
    return once if operations(once) < operations(node) else None


def gathered(node: Node) -> list[tuple[int, Node]]:
    """`node` as a sum, each term once with its factor; what is constant comes last, positive, as one term."""
    factors: dict[Node, int] = {}
    constant = 0
    for factor, part in sum_terms(node, 1):
        if isinstance(part, Const):
            constant += factor * part.value
        else:
            factors[part] = factors.get(part, 0) + factor
    terms = [(factor, part) for part, factor in factors.items() if factor]
    return [*terms, ((constant > 0) - (constant < 0), Const(abs(constant)))] if constant else terms


def _joined(node: Op) -> Node | None:
    """A sum with a quotient and a remainder of the same division put together, or None without such.

    `x % 4 + 4*(x // 4)` is `x`, and `x % 4 + 4*(x // 4 % 8)` is `x % 32`; with any factor.
    """
    terms = sum_terms(node, 1)
    for low, (factor, remainder) in enumerate(terms):
        match remainder:
            case Op("%", (dividend, Const(divisor))) if divisor > 0:
                quotient = Op("//", (dividend, Const(divisor)))
            case _:
                continue
        for high, (high_factor, part) in enumerate(terms):
            if high_factor != factor * divisor:
                continue
            match part:
                case _ if part == quotient:
                    both = dividend
                case Op("%", (inner, Const(size))) if inner == quotient:
                    both = Op("%", (dividend, Const(divisor * size)))
                case _:
                    continue
            others = [term for k, term in enumerate(terms) if k not in (low, high)]
            return weighted_sum([(factor, both), *others])
    return None


def _divided(node: Node, divisor: int, ranges: Mapping[str, Range]) -> tuple[Node, Node]:
    """A quotient and a rest such that `divisor` times the one plus the other is `node`.

    `8*x + y + 9` by 4 is `2*x + 2` and `y + 1`, if y >= 0. The quotient holds the multiples, and
    of the constant as much as leaves the rest no less sure to be positive: negative dividends cost more.
    """
    terms = sum_terms(node, 1)
    constant = sum(factor * part.value for factor, part in terms if isinstance(part, Const))
    others = [(factor, part) for factor, part in terms if not isinstance(part, Const)]
    multiples: list[tuple[int, Node]] = [(f // divisor, part) for f, part in others if f % divisor == 0]
    rest: list[tuple[int, Node]] = [(f, part) for f, part in others if f % divisor]
    whole = constant // divisor
    low = bounds(weighted_sum(rest), ranges)[0] + constant
    if low >= 0:
        whole = min(whole, low // divisor)
    if whole:
        multiples.append((1, Const(whole)))
    if constant - whole * divisor:
        rest.append((1, Const(constant - whole * divisor)))
    return weighted_sum(multiples), weighted_sum(rest)


def sum_terms(node: Node, factor: int) -> list[tuple[int, Node]]:
    """Nodes with factors whose sum is `factor` times `node`: sums, differences and products opened up."""
    match node:
        case Op("+", (a, b)):
            return [*sum_terms(a, factor), *sum_terms(b, factor)]
        case Op("-", (a, b)):
            return [*sum_terms(a, factor), *sum_terms(b, -factor)]
        case Op("*", (a, Const(value))):
            return sum_terms(a, factor * value)
    return [(factor, node)]


def weighted_sum(terms: Iterable[tuple[int, Node]]) -> Node:
    """The sum of nodes, each times its factor; what is subtracted comes last."""
    total: Node = Const(0)
    for factor, node in sorted(terms, key=lambda term: term[0] < 0):
        if factor:
            term = node if abs(factor) == 1 else Op("*", (node, Const(abs(factor))))
            first = total == Const(0) and factor > 0
            total = term if first else Op("-" if factor < 0 else "+", (total, term))
    return total


def operations(node: Node) -> int:
    """The length of an expression: its operators, a repeated subexpression once; a look-up counts one.

    A division or remainder by a constant that is no power of two counts as three. What computing it costs is
    another matter: `layoutopt.index`.
    """
    seen: set[Node] = set()

    def visit(part: Node) -> int:
        if not isinstance(part, Op | Lookup) or part in seen:
            return 0
        seen.add(part)
        match part:
            case Op("//" | "%", (_, Const(by))) if by > 0 and not by & (by - 1):
                cost = 1
            case _:
                cost = 3 if isinstance(part, Op) and part.symbol in ("//", "%") else 1
        return cost + sum(map(visit, parts(part)))

    return visit(node)


def expanded(node: Node, ranges: Mapping[str, Range], known: dict[Node, Node] | None = None) -> Node:
    """Sums and products expanded, so that every variable contributes a constant step where it can.

        ((m - tid + 1)*17 + tid % 4*2)*4 // 8     ->     (m*17 - tid*17 + tid % 4*2 + 17) // 2

    Like terms are gathered, products by constants move into sums and, by powers of two, into bit operations;
    divisions and remainders lose what all their terms have in common.
    """
    done: dict[Node, Node] = {}

    def run(node: Node) -> Node:
        if not isinstance(node, Op | Lookup):
            return node
        if node not in done:
            plain = with_parts(node, run)
            done[node] = _apart(plain) if isinstance(plain, Op) else plain
        return done[node]

    return simplify(run(simplify(node, ranges, known)), ranges, known)


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


def read_inside(node: Node, ranges: Mapping[str, Range]) -> Node:
    """`node` with its tables read inside, whichever thread asks: some compute addresses and take no part."""
    if not isinstance(node, Lookup):
        return with_parts(node, lambda part: read_inside(part, ranges))
    (low, high), last, index = bounds(node.index, ranges), len(node.values) - 1, node.index
    index = Op("max", (index, Const(0))) if low < 0 else index
    return Lookup(node.values, Op("min", (index, Const(last))) if high > last else index, node.name)
