"""Integer expressions: a whitelist grammar, evaluated over whole arrays.

The text is parsed by Python's own parser and every node is checked against a whitelist, so
precedence, `//` and `%` are Python's (division rounds down). Nothing is ever `eval`ed.

    literals         12, 0x1f, True, False
    variables        tid, lane, warp, loop variables; x0, x1, ... in offsets
    arithmetic       + - * // %    unary -
    bits             & | ^ ~ << >>
    comparisons      < <= > >= == !=   (chains too), giving 0 or 1
    logic            and or not, `a if c else b`, min(...), max(...)
    tables           [0, 2, 1, 3][tid // 8], of integer literals

Values are int64; anything that leaves +-2**62 is an error, not a wrong answer.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from layoutopt.errors import ExpressionError
from layoutopt.ground.arrays import BoolArray, IntArray

MAX_CHARACTERS: Final = 4000
MAX_DEPTH: Final = 60
MAX_NODES: Final = 1000
MAX_VALUE: Final = 2**62
MAX_SHIFT: Final = 62
MAX_ENTRIES: Final = 1 << 16  # of all tables of an expression together
_MAX_TABLE_CHARACTERS: Final = 1 << 20
_SHORT: Final = 200  # characters of expressions that are kept once parsed


# Nodes are made, hashed and compared by the hundred thousand, and hold no cycles.
class Const(Struct, frozen=True, cache_hash=True, gc=False):
    """An integer literal."""

    value: int


class Var(Struct, frozen=True, cache_hash=True, gc=False):
    """A variable, by name."""

    name: str


class Op(Struct, frozen=True, cache_hash=True, gc=False):
    """An operator applied to operands.

    `symbol` is the Python spelling; "neg" is unary minus, "if" has (value, condition, otherwise).
    """

    symbol: str
    args: tuple["Node", ...]


class Lookup(Struct, frozen=True, cache_hash=True, gc=False):
    """An entry of a constant table, which is written out where it has no name."""

    values: tuple[int, ...]
    index: "Node"
    name: str = "lookup"


Node = Const | Var | Op | Lookup


class Binary(NamedTuple):
    """An operator of two operands."""

    syntax: type[ast.operator] | type[ast.cmpop]  # what Python's parser calls it
    precedence: int  # higher ones bind more tightly
    of: Callable[[Any, Any], Any]  # what it gives, of integers or arrays; comparisons give booleans
    most: Callable[[int, int], int]  # a bound on its magnitude, by those of the operands


def _most_of_bits(a: int, b: int) -> int:
    return 1 << (a | b).bit_length()


ARITHMETIC: Final = {
    "|": Binary(ast.BitOr, 6, operator.or_, _most_of_bits),
    "^": Binary(ast.BitXor, 7, operator.xor, _most_of_bits),
    "&": Binary(ast.BitAnd, 8, operator.and_, _most_of_bits),
    "<<": Binary(ast.LShift, 9, operator.lshift, operator.lshift),
    ">>": Binary(ast.RShift, 9, operator.rshift, lambda a, b: a + 1),
    "+": Binary(ast.Add, 10, operator.add, operator.add),
    "-": Binary(ast.Sub, 10, operator.sub, operator.add),
    "*": Binary(ast.Mult, 11, operator.mul, operator.mul),
    "//": Binary(ast.FloorDiv, 11, operator.floordiv, lambda a, b: a + 1),
    "%": Binary(ast.Mod, 11, operator.mod, lambda a, b: max(b, 1)),
}
_BINARY: Final = ARITHMETIC | {
    "<": Binary(ast.Lt, 5, operator.lt, lambda a, b: 1),
    "<=": Binary(ast.LtE, 5, operator.le, lambda a, b: 1),
    ">": Binary(ast.Gt, 5, operator.gt, lambda a, b: 1),
    ">=": Binary(ast.GtE, 5, operator.ge, lambda a, b: 1),
    "==": Binary(ast.Eq, 5, operator.eq, lambda a, b: 1),
    "!=": Binary(ast.NotEq, 5, operator.ne, lambda a, b: 1),
}
_SPELT: Final = {row.syntax: symbol for symbol, row in _BINARY.items()}
_UNARY: Final[dict[type[ast.unaryop], str]] = {ast.USub: "neg", ast.Invert: "~", ast.Not: "not"}
PRECEDENCE: Final = {
    "if": 1, "or": 2, "and": 3, "not": 4, **{symbol: row.precedence for symbol, row in _BINARY.items()},
    "neg": 12, "~": 12, "min": 14, "max": 14,
}  # fmt: skip


def parse(text: str, variables: frozenset[str]) -> Node:
    """Parse `text`, which may use only the names in `variables`.

    Raises:
        ExpressionError: the text is too long or too deep, is no expression, or uses something
            outside the grammar or an unknown name.
    """
    # Short ones are asked for again and again: to trace an access, to cost its index code, to emit it.
    return _parsed(text, variables) if len(text) <= _SHORT else _parsed.__wrapped__(text, variables)


@lru_cache(maxsize=1 << 10)
def _parsed(text: str, variables: frozenset[str]) -> Node:
    if _length(text) > MAX_CHARACTERS:
        raise ExpressionError(f"an expression has at most {MAX_CHARACTERS} characters, not {len(text)}")
    if not text.strip():
        raise ExpressionError("expected an integer expression, got an empty text")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(f"{_quote(text)} is not an expression: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):
        raise ExpressionError(f"{_quote(text)} is nested too deeply or holds invalid characters") from None
    return _Reader(text, variables).node(tree, 1)


def _length(text: str) -> int:
    """Characters of a text, those of its tables left out where they are not too many."""
    if len(text) <= MAX_CHARACTERS or len(text) > _MAX_TABLE_CHARACTERS:
        return len(text)
    return len(re.sub(r"\[[-\d\s,]*\]", "", text))


class _Reader:
    """Python's syntax tree as an expression, with the limits on both."""

    def __init__(self, text: str, variables: frozenset[str]) -> None:
        self.text = text.strip()
        self.quoted = _quote(text)
        self.variables = variables
        self.count = 0
        self.entries = 0

    def node(self, node: ast.expr, depth: int) -> Node:
        """A node of Python's syntax tree, `depth` levels deep, as an expression."""
        self.count += 1
        if depth > MAX_DEPTH:
            raise ExpressionError(f"{self.quoted} is nested deeper than {MAX_DEPTH} levels")
        if self.count > MAX_NODES:
            raise ExpressionError(f"{self.quoted} has more than {MAX_NODES} operators and operands")

        def sub(child: ast.expr) -> Node:
            return self.node(child, depth + 1)

        match node:
            case ast.Constant(value=bool() | int() as value):
                if abs(value) > MAX_VALUE:
                    raise ExpressionError(f"{self.quoted} holds a number beyond 2**62")
                return Const(int(value))
            case ast.Name(id=name):
                if name not in self.variables:
                    known = ", ".join(sorted(self.variables))
                    raise ExpressionError(f"unknown name {name!r} in {self.quoted}; known here: {known}")
                return Var(name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _SPELT:
                return Op(_SPELT[type(op)], (sub(left), sub(right)))
            case ast.BinOp(op=ast.Div()):
                raise ExpressionError(f"'/' in {self.quoted} is not integer arithmetic: write '//'")
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return sub(operand)
            case ast.UnaryOp(op=op, operand=operand):
                return Op(_UNARY[type(op)], (sub(operand),))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(o) in _SPELT for o in ops):
                terms = [sub(term) for term in (left, *others)]
                pairs = [Op(_SPELT[type(o)], (a, b)) for o, a, b in zip(ops, terms, terms[1:], strict=False)]
                return pairs[0] if len(pairs) == 1 else Op("and", tuple(pairs))
            case ast.BoolOp(op=op, values=values):
                return Op("and" if isinstance(op, ast.And) else "or", tuple(sub(v) for v in values))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return Op("if", (sub(body), sub(test), sub(orelse)))
            case ast.Subscript(value=ast.List(elts=entries), slice=index) if entries:
                return Lookup(self.table(entries), sub(index), "")
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=args, keywords=[]) if len(args) >= 2:
                return Op(name, tuple(sub(a) for a in args))
        at_fault = ast.get_source_segment(self.text, node) or ""
        raise ExpressionError(
            f"{_quote(at_fault[:60])} in {self.quoted} is not allowed: only integers, + - * // %, "
            "bit operations, comparisons, and/or/not, 'a if c else b', min, max and tables of integers"
        )

    def table(self, entries: list[ast.expr]) -> tuple[int, ...]:
        """The entries of a table."""
        self.entries += len(entries)
        if self.entries > MAX_ENTRIES:
            raise ExpressionError(f"the tables of {self.quoted} have more than {MAX_ENTRIES:,} entries")
        return tuple(map(self.entry, entries))

    def entry(self, node: ast.expr) -> int:
        """One of them."""
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node, sign = node.operand, -1
        if not (isinstance(node, ast.Constant) and type(node.value) is int and node.value <= MAX_VALUE):
            raise ExpressionError(f"a table in {self.quoted} holds something else than integers up to 2**62")
        return sign * node.value


def parts(node: Node) -> tuple[Node, ...]:
    """The operands of `node`."""
    match node:
        case Op(_, args):
            return args
        case Lookup(_, index):
            return (index,)
    return ()


@lru_cache(maxsize=1 << 14)  # of the same parts over and over
def names(node: Node) -> frozenset[str]:
    """The variables that `node` mentions."""
    return frozenset((node.name,)) if isinstance(node, Var) else frozenset().union(*map(names, parts(node)))


@lru_cache(maxsize=1 << 14)
def operators(node: Node) -> frozenset[str]:
    """The symbols of the operators that `node` uses; [] for a table."""
    inner = frozenset().union(*map(operators, parts(node)))
    return inner | {node.symbol if isinstance(node, Op) else "[]"} if isinstance(node, Op | Lookup) else inner


def lookups(node: Node) -> frozenset[Lookup]:
    """The tables that a formula looks up, with where."""
    inner = frozenset().union(*map(lookups, parts(node)))
    return inner | {node} if isinstance(node, Lookup) else inner


def with_parts(node: Node, change: Callable[[Node], Node]) -> Node:
    """`node` with `change` applied to each of its operands."""
    match node:
        case Op(symbol, args):
            changed = tuple(map(change, args))
            return node if all(map(operator.is_, changed, args)) else Op(symbol, changed)
        case Lookup(values, index, name):
            return Lookup(values, change(index), name)
    return node


def joined(symbol: str, nodes: Iterable[Node]) -> Node:
    """The nodes joined by an operator of two operands, the first ones first; 0 for none."""
    return reduce(lambda a, b: Op(symbol, (a, b)), nodes) if (nodes := list(nodes)) else Const(0)


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """`node` with expressions in place of the variables in `values`."""
    if isinstance(node, Var):
        return values.get(node.name, node)
    return with_parts(node, lambda part: substituted(part, values))


def evaluate(node: Node, env: Mapping[str, IntArray], where: BoolArray | None = None) -> IntArray:
    """Evaluate over arrays that broadcast against one another.

    Args:
        node: the expression.
        env: an int64 array for every variable.
        where: positions that count (broadcast against the result). Elsewhere the value is
            arbitrary and faults such as a division by zero are ignored.

    Returns:
        int64 array, of some shape that broadcasts to that of `env` and `where` together.

    Raises:
        ExpressionError: division by zero, a shift outside 0..62, or a value beyond +-2**62 at
            a position that counts; `position` is the first such place.
    """
    return np.asarray(_Evaluation(node, env, where).run(node, where)[0], np.int64)


def coordinates(shape: Sequence[int]) -> dict[str, IntArray]:
    """x0, x1, ... of a tile, as arrays that broadcast to its shape."""
    return {f"x{d}": x for d, x in enumerate(np.indices(tuple(shape), dtype=np.int64, sparse=True))}


def tabulated(node: Node, shape: Sequence[int]) -> IntArray:
    """The values of an expression over x0, x1, ... in the shape of a tile; errors as for `evaluate`."""
    return np.broadcast_to(evaluate(node, coordinates(shape)), tuple(shape))


class _Evaluation:
    """One expression over arrays; `mask` says which positions count, None all.

    Beside values goes a bound on their magnitude, so that arrays are searched for values beyond +-2**62 only
    where there may be some.
    """

    def __init__(self, node: Node, env: Mapping[str, IntArray], where: BoolArray | None) -> None:
        self.node = node
        self.env = env
        self.where = where
        self.most: dict[str, int] = {}  # of the variables that were met

    def check(self, bad: BoolArray, mask: BoolArray | None, message: str) -> None:
        if bad.any():
            arrays = [*self.env.values(), *(() if self.where is None else (self.where,))]
            shape = np.broadcast_shapes(*(array.shape for array in arrays))
            fault = np.broadcast_to(bad if mask is None else bad & mask, shape).ravel()
            if fault.any():
                raise ExpressionError(f"{message} in {_quote(to_text(self.node))}", int(fault.argmax()))

    def run(self, node: Node, mask: BoolArray | None) -> tuple[Any, int]:
        match node:
            case Const(value):
                return np.array(value, np.int64), abs(value)
            case Var(name):
                given = self.env[name]
                if name not in self.most:
                    self.most[name] = max(-int(given.min()), int(given.max())) if given.size else 0
                return given, self.most[name]
            case Op(symbol, (left, right)) if symbol in _BINARY:
                return self.binary(symbol, self.run(left, mask), self.run(right, mask), mask)
            case Lookup(values, index):
                at, _ = self.run(index, mask)
                outside = (at < 0) | (at >= len(values))
                self.check(outside, mask, f"an entry outside 0..{len(values) - 1}")
                return np.array(values, np.int64)[np.where(outside, 0, at)], max(map(abs, values))
            case Op("if", (body, test, otherwise)):
                chosen = self.run(test, mask)[0] != 0
                yes = chosen if mask is None else chosen & mask
                no = ~chosen if mask is None else ~chosen & mask
                (a, most_a), (b, most_b) = self.run(body, yes), self.run(otherwise, no)
                return np.where(chosen, a, b), max(most_a, most_b)
            case Op("and" | "or" as symbol, args):
                return self.logic(symbol, args, mask), 1
            case Op("min" | "max" as symbol, args):
                pick = np.minimum if symbol == "min" else np.maximum
                every = [self.run(arg, mask) for arg in args]
                return reduce(pick, [value for value, _ in every]), max(most for _, most in every)
            case Op(symbol, (arg,)):
                value, most = self.run(arg, mask)
                if symbol == "not":
                    return (value == 0).astype(np.int64), 1
                return (-value, most) if symbol == "neg" else (~value, most + 1)
        raise AssertionError(node)

    def logic(self, symbol: str, args: tuple[Node, ...], mask: BoolArray | None) -> Any:
        result = self.run(args[0], mask)[0] != 0
        for arg in args[1:]:
            live = result if symbol == "and" else ~result
            value = self.run(arg, live if mask is None else live & mask)[0] != 0
            result = result & value if symbol == "and" else result | value
        return result.astype(np.int64)

    def binary(
        self, symbol: str, left: tuple[Any, int], right: tuple[Any, int], mask: BoolArray | None
    ) -> tuple[Any, int]:
        (a, most_a), (b, most_b) = left, right
        if symbol in ("//", "%"):
            zero = b == 0
            self.check(
                zero, mask, "division by zero" if symbol == "//" else "remainder of a division by zero"
            )
            b = np.where(zero, 1, b)
        elif symbol in ("<<", ">>"):
            wrong = (b < 0) | (b > MAX_SHIFT)
            self.check(wrong, mask, f"shift outside 0..{MAX_SHIFT}")
            b = np.where(wrong, 0, b)
            most_b = min(most_b, MAX_SHIFT)
        known = _BINARY[symbol]
        most = known.most(most_a, most_b)
        if symbol in ("+", "-", "*", "<<") and most > MAX_VALUE:
            # In float64 the magnitude is right to 1 part in 2**52: enough to see 2**62 coming.
            rounded = a.astype(np.float64)
            high = np.ldexp(rounded, b) if symbol == "<<" else known.of(rounded, b.astype(np.float64))
            wide = np.abs(high) > float(MAX_VALUE)
            if wide.any():
                self.check(wide, mask, "value beyond 2**62")
                a = np.where(wide, 0, a)
            most = MAX_VALUE
        return np.asarray(known.of(a, b), np.int64), most


def to_text(node: Node) -> str:
    """Write `node` in the grammar above, with as few parentheses as it allows."""

    def write(node: Node, minimum: int) -> str:
        """`node`, in parentheses where it binds less tightly than the precedence `minimum`."""
        match node:
            case Const(value):
                return str(value) if value >= 0 or minimum <= PRECEDENCE["neg"] else f"({value})"
            case Var(name):
                return name
            case Lookup(values, index, name):
                return f"{name or list(values)}[{write(index, 1)}]"
            case Op(symbol, args):
                rank = PRECEDENCE[symbol]
                text = operation(symbol, args, rank)
                return text if rank >= minimum else f"({text})"
        raise AssertionError(node)

    def operation(symbol: str, args: tuple[Node, ...], rank: int) -> str:
        """An operator, of precedence `rank`, between its operands, without parentheses around it."""
        match symbol:
            case "if":
                return f"{write(args[0], 2)} if {write(args[1], 2)} else {write(args[2], 1)}"
            case "min" | "max":
                return f"{symbol}({', '.join(write(a, 1) for a in args)})"
            case "and" | "or":
                return f" {symbol} ".join(write(a, rank + 1) for a in args)
            case "not":
                return f"not {write(args[0], rank)}"
            case "neg" | "~":
                return ("-" if symbol == "neg" else "~") + write(args[0], rank)
        left_rank = rank + 1 if rank == PRECEDENCE["<"] else rank
        left, right = write(args[0], left_rank), write(args[1], rank + 1)
        tight = symbol == "*" and not (isinstance(args[0], Op) and PRECEDENCE[args[0].symbol] == rank)
        return f"{left}{symbol}{right}" if tight else f"{left} {symbol} {right}"

    return write(node, 1)


def _quote(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= 80 else text[:77] + "...")
