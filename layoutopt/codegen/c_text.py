"""Integer expressions as C: shifts and masks for powers of two, floor semantics kept."""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from layoutopt.errors import LayoutError
from layoutopt.expressions.grammar import PRECEDENCE, Const, Lookup, Node, Op, Var, parts, with_parts
from layoutopt.expressions.simplify import Range, bounds
from layoutopt.index.folding import is_power

# C's operators bind as Python's do, but for comparisons, which bind tighter than & ^ |.
_RANK: Final = {**PRECEDENCE, "/": PRECEDENCE["//"]}
_SHIFT: Final = _RANK["<<"]
_OPERAND: Final = 1 + max(_RANK.values())  # whatever has operators stands in parentheses
_BITWISE: Final = frozenset("|^&") | {"<<", ">>"}
_OF_SIGNS: Final = frozenset(("//", "%", ">>", "<", "<=", ">", ">=", "min", "max"))
_SUFFIXES: Final = {"long": "L", "long long": "LL"}  # of literals of a type
_REPEATED: Final = 16  # operators of an operand that stands in the text more than once
_MOST_REPEATED: Final = 1 << 12  # the same where no function can take it
_CALL: Final = "call"  # an operator: of a function's name and two operands
_TO_INT: Final = "(int)"
_FUNCTIONS: Final = {"min": "lesser", "max": "greater", "//": "floor_div", "%": "floor_mod"}
HELPERS: Final = {
    "lesser": "a < b ? a : b",
    "greater": "a > b ? a : b",
    "floor_div": "a / b - (a % b != 0 && (a % b < 0) != (b < 0))",
    "floor_mod": "a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0)",
}


def to_c(
    node: Node,
    ranges: Mapping[str, Range],
    wide: str = "long long",
    positive: Collection[Node] = (),
    called: str | None = None,
    unsigned: bool = False,
) -> str:
    """`node` as a C expression, of type int, or `wide` where a step leaves the range of int.

    Variables are of type int, or `unsigned`, of 32 bits too: then the value is right modulo 2**32.

    Division and remainder round down as in the problem file: a power of two becomes a shift or a
    mask, other divisors use C's own operators where the operand cannot be negative and a
    correction where it can, except for the dividends in `positive`.

    A correction, a minimum and a maximum name their operands more than once. Where these are long, a function
    takes them: one of `helpers`, whose names begin with `called`.

    Raises:
        LayoutError: such functions may not be called, and without them the text is too long.
    """
    known: dict[Node, Range] = {}
    lowered = _Lowering(ranges, positive, called, known).of(node)
    if _leaves_int(node, ranges, known):
        lowered = _widened(lowered, wide)
    elif unsigned and _depends_on_sign(node, ranges, known):
        lowered = _widened(lowered, "int")
    return _write(lowered, 0)


def helpers(text: str, called: str, function: str, wide: str) -> list[str]:
    """The functions that a text of `to_c` calls; `function` is what stands before a function's type."""
    lines = []
    for name, value in HELPERS.items():
        if f"{called}_{name}(" in text:
            head = f"{function} {wide} {called}_{name}({wide} a, {wide} b)"
            lines += [f"{head} {{", f"    return {value};", "}"]
    return lines


def operands(first: int, count: int) -> str:
    """The numbers of so many operands of inline PTX: `%0, %1`."""
    return ", ".join(f"%{first + k}" for k in range(count))


def _leaves_int(node: Node, ranges: Mapping[str, Range], known: dict[Node, Range]) -> bool:
    low, high = bounds(node, ranges, known)
    if low < -(2**31) or high >= 2**31:
        return True
    if isinstance(node, Lookup):
        return _leaves_int(node.index, ranges, known)
    return isinstance(node, Op) and any(_leaves_int(arg, ranges, known) for arg in node.args)


def _depends_on_sign(node: Node, ranges: Mapping[str, Range], known: dict[Node, Range]) -> bool:
    """Whether an operator that needs more than the bits of its operands may have a negative one."""
    if isinstance(node, Op) and node.symbol in _OF_SIGNS:
        low, high = bounds(node.args[-1], ranges, known)
        is_mask = node.symbol == "%" and low == high > 0 and is_power(low)
        if not is_mask and any(bounds(arg, ranges, known)[0] < 0 for arg in node.args):
            return True
    return any(_depends_on_sign(part, ranges, known) for part in parts(node))


def _widened(node: Node, wide: str) -> Node:
    if isinstance(node, Var):
        return Var(f"({wide}){node.name}")
    if isinstance(node, Const) and not -(2**31) <= node.value < 2**31:
        text = f"{node.value}{_SUFFIXES[wide]}"
        return Var(text if node.value > 0 else f"({text})")
    if isinstance(node, Op) and node.symbol == _CALL:
        name, *args = node.args
        assert isinstance(name, Var)
        whole = Var(name.name.removeprefix(_TO_INT))
        return Op(_CALL, (whole, *(_widened(arg, wide) for arg in args)))
    return with_parts(node, lambda part: _widened(part, wide))


def _is_longer(node: Node, most: int) -> bool:
    """Whether the text of a node has more than so many operators."""
    ahead, left = [node], most
    while ahead:
        part = ahead.pop()
        left -= isinstance(part, Op | Lookup)
        if left < 0:
            return True
        ahead += parts(part)
        if isinstance(part, Op) and part.symbol in ("min", "max"):
            ahead += part.args
    return False


class _Lowering(Struct, frozen=True):
    """Python's operators by C's; the fields are the arguments of `to_c`, and `known` those of `bounds`."""

    ranges: Mapping[str, Range]
    positive: Collection[Node]
    called: str | None
    known: dict[Node, Range]

    def of(self, node: Node) -> Node:
        """`node` in operators of C."""
        match node:
            case Op("//" | "%" as symbol):
                return self._rounded(symbol, node, tuple(map(self.of, node.args)))
            case Op("min" | "max" as symbol, args):
                *others, least = map(self.of, args)
                for other in reversed(others):
                    least = self._called(symbol, other, least) or Op(symbol, (other, least))
                return least
        return with_parts(node, self.of)

    def _rounded(self, symbol: str, node: Op, args: tuple[Node, ...]) -> Node:
        low, high = bounds(node.args[1], self.ranges, self.known)
        a, b = args
        if low == high > 0 and is_power(low):
            return (
                Op(">>", (a, Const(low.bit_length() - 1))) if symbol == "//" else Op("&", (a, Const(low - 1)))
            )
        if low > 0 and (
            bounds(node.args[0], self.ranges, self.known)[0] >= 0 or node.args[0] in self.positive
        ):
            return Op("/" if symbol == "//" else "%", (a, b))
        return self._called(symbol, a, b) or _corrected(symbol, a, b)

    def _called(self, symbol: str, a: Node, b: Node) -> Node | None:
        """A function of operands that are too long to be repeated; None where they are not."""
        if self.called is None:
            if _is_longer(a, _MOST_REPEATED) or _is_longer(b, _MOST_REPEATED):
                raise LayoutError(
                    f"operands of {symbol!r} are too long for C in one expression, which repeats them"
                )
            return None
        if _is_longer(a, _REPEATED) or _is_longer(b, _REPEATED):
            return Op(_CALL, (Var(f"{_TO_INT}{self.called}_{_FUNCTIONS[symbol]}"), a, b))
        return None


def _corrected(symbol: str, a: Node, b: Node) -> Node:
    """Quotient or remainder, rounded down."""
    # C rounds towards zero; the remainder's sign tells when to step down.
    remainder = Op("%", (a, b))
    wrong = Op(
        "and",
        (Op("!=", (remainder, Const(0))), Op("!=", (Op("<", (remainder, Const(0))), Op("<", (b, Const(0)))))),
    )
    if symbol == "//":
        return Op("-", (Op("/", (a, b)), wrong))
    return Op("+", (remainder, Op("if", (b, wrong, Const(0)))))


def _write(node: Node, minimum: int) -> str:
    match node:
        case Const(value):
            return str(value) if value >= 0 else f"({value})"
        case Var(name):
            return name
        case Lookup(_, index, name):
            return f"{name}({_write(index, 0)})"
        case Op("if", (yes, test, no)):
            return f"({_write(test, 0)} ? {_write(yes, 0)} : {_write(no, 0)})"
        case Op("min" | "max" as symbol, args):
            one, other = (_write(arg, _OPERAND) for arg in args)
            return f"({one} {'<' if symbol == 'min' else '>'} {other} ? {one} : {other})"
        case Op(symbol, (Var(function), *args)) if symbol == _CALL:
            return f"{function}({', '.join(_write(arg, 0) for arg in args)})"
        case Op("and" | "or" as symbol, args):
            return "(" + (" && " if symbol == "and" else " || ").join(_write(a, _OPERAND) for a in args) + ")"
        case Op("not", (arg,)):
            return f"(!{_write(arg, _OPERAND)})"
        case Op("neg" | "~" as symbol, (arg,)):
            return f"({'-' if symbol == 'neg' else '~'}{_write(arg, _OPERAND)})"
        case Op(symbol, (left, right)) if _RANK[symbol] == _RANK["<"]:
            return f"({_write(left, _SHIFT)} {symbol} {_write(right, _SHIFT)})"
        case Op(symbol, (left, right)):
            rank = _RANK[symbol]
            # Parentheses around every operand of a bit operation: compilers warn without them.
            inner = _OPERAND if symbol in _BITWISE else rank
            first = left if symbol in _BITWISE and isinstance(left, Op) and left.symbol == symbol else None
            a = _write(left, rank if first is not None else inner)
            b = _write(right, _OPERAND if symbol in _BITWISE else rank + 1)
            text = f"{a} {symbol} {b}"
            return text if rank >= minimum else f"({text})"
    raise AssertionError(node)
