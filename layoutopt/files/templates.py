"""Templates: a problem file with parameters stands for one problem for each combination of their values.

    {"name": "A {M}x{K}", "params": {"M": [64, 128], "K": [32, 64], "op": ["ldmatrix.x4", "load"]},
     "where": "M * K <= 4096", "tile": {"shape": ["M", "K"], "element": "f16"},
     "accesses": [{"name": "fill", "op": "op", "index": ["tid // (K // 8)", ...], "for": {"i": "M // 32"}}]}

What a text of the file is decides what a parameter is in it:

    expressions (index, where, weight, offset)     a name of the expression, put in as a value
    numbers (shape, for, bytes, threads, ...)      an integer expression over the parameters, evaluated
    names and notes                                {M} within the text
    words (op, element, target and the others)     the whole word, or {M} within it

`where` at the top leaves combinations out: an expression over the parameters, in which those that are words
are compared with words. `"sizes": [{"M": 64, "N": 32}, ...]` in the place of `params` lists the combinations
themselves, for which `layoutopt.search.sizes` finds one formula. Everything after `expand` sees ordinary
problem data.
"""

from __future__ import annotations

import ast
import itertools
import keyword
import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from layoutopt.errors import ExpressionError, ProblemFileError
from layoutopt.expressions.grammar import MAX_CHARACTERS, evaluate, parse
from layoutopt.ground.escape import described, shown

Value = int | str
Values = Mapping[str, Value]

MAX_VALUES: Final = 10_000
MAX_SIZES: Final = 64
MAX_COMBINATIONS: Final = 1 << 20
_TOGETHER: Final = 1 << 12  # combinations for which `where` is evaluated at once
MAX_INTEGER: Final = (1 << 63) - 1
_EXPRESSIONS: Final = frozenset(("index", "where", "weight", "offset"))
_TEXTS: Final = frozenset(("name", "notes", "source", "kind", "schema", "tile", "overlay"))
_TABLES: Final = frozenset(("for", "any", "repeat"))  # of numbers, by name
_NUMBERS: Final = _TABLES | {
    "shape", "bytes", "box", "rows", "k", "threads", "align", "warps", "stages", "order", "excess",
    "contiguous", "covers",
    "max_bytes", "alignment_bytes", "pitch_multiple_bytes", "other_shared_bytes", "registers",
    "cluster", "multicast", "first_warp", "mn",
}  # fmt: skip
_ORDERS: Final = ("row", "column")  # in words, where numbers may stand
_RESERVED: Final = frozenset(("tid", "lane", "warp", "min", "max"))
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

# Of the fields that make a file a template; the others are those of a problem, with texts for numbers.
JSON_SCHEMA: Final = {
    "title": "Template",
    "type": "object",
    "description": "One problem for each combination of the values of its parameters.",
    "properties": {
        "params": {
            "type": "object",
            "additionalProperties": {
                "anyOf": [
                    {"type": "integer"},
                    {"type": "string"},
                    {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
                ]
            },
            "description": "Parameters and their values, which shapes, loops, indices and ops may use",
        },
        "sizes": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]},
            },
            "description": "Combinations of values, in the place of params: emit finds one formula for all; "
            "a word names the tile's element",
        },
        "where": {
            "type": "string",
            "description": "Combinations for which this expression over the parameters is 0 are left out",
        },
    },
    "anyOf": [{"required": ["params"]}, {"required": ["sizes"]}],
}


@dataclass(frozen=True, slots=True)
class Instance:
    """One combination: the values of the parameters, and the data of the problem."""

    values: dict[str, Value]
    data: Any

    @property
    def label(self) -> str:
        """The values in words, such as `M=64, op=load`; empty without parameters."""
        return ", ".join(f"{name}={value}" for name, value in self.values.items())


def expand(raw: Any, over: Mapping[str, Sequence[Value]] | None = None) -> Iterator[Instance]:
    """Every problem that decoded data stands for; the data itself where it has no parameters.

    Args:
        raw: data of a problem file.
        over: parameters that take the place of, or are added to, those of the data.

    Returns:
        combinations in the order of the lists, the last parameter fastest. The data is checked before the
        first is there.

    Raises:
        ProblemFileError: a parameter, or what it is put into, is wrong.
    """
    if over is not None and not isinstance(over, Mapping):
        raise ProblemFileError("over", f"expected lists of values by name, got {described(over)}")
    if not isinstance(raw, dict) or not ("params" in raw or "sizes" in raw or over):
        return iter((Instance({}, raw),))
    if "sizes" in raw:
        if over or "params" in raw:
            raise ProblemFileError("sizes", "names every combination; `params` and --over do not go with it")
        return _sizes(raw)
    params = _params(raw.get("params", {}))
    for name, values in (over or {}).items():
        field = f"--over {shown(str(name))}"
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ProblemFileError(field, f"expected a list of values, got {described(values)}")
        params[_parameter(name, field)] = _values(values, field)
    condition = raw.get("where")
    data = {key: value for key, value in raw.items() if key not in ("params", "where")}
    if condition is not None and not isinstance(condition, str):
        raise ProblemFileError("where", "expected an expression over the parameters")
    _check_used(params, data, condition)
    count = math.prod(map(len, params.values()))
    if count > MAX_COMBINATIONS:
        raise ProblemFileError("params", f"expected at most {MAX_COMBINATIONS:,} combinations, got {count:,}")
    return _instances(params, itertools.product(*params.values()), data, condition)


def _sizes(raw: dict[str, Any]) -> Iterator[Instance]:
    """The combinations that `sizes` lists: `[{"M": 64, "N": 32}, {"M": 128, "N": 64}]`.

    Numbers, but for the parameter that is the tile's element.
    """
    listed = raw["sizes"]
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_SIZES:
        raise ProblemFileError("sizes", f"expected a list of 1 to {MAX_SIZES} objects")
    tile = raw.get("tile")
    element = tile.get("element") if isinstance(tile, dict) else None
    for k, size in enumerate(listed):
        names = list(size) if isinstance(size, dict) else []
        if not names or names != list(listed[0]):
            raise ProblemFileError(
                f"sizes[{k}]", "expected an object with the names of sizes[0], in their order"
            )
        for name, value in size.items():
            if name == element and not isinstance(value, str):
                required = "the name of the element's type"
            elif name != element and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                required = "1 or more; only the tile's element is a word"
            else:
                continue
            raise ProblemFileError(
                f"sizes[{k}].{shown(name)}", f"expected {required}, got {shown(repr(value))}"
            )
            _values((value,), f"sizes[{k}].{shown(name)}")
    params = {_parameter(name, "sizes[0]"): tuple(size[name] for size in listed) for name in listed[0]}
    data = {key: value for key, value in raw.items() if key != "sizes"}
    _check_used(params, data, None)
    return _instances(params, [tuple(size.values()) for size in listed], data, None)


def has_sizes(raw: Any) -> bool:
    """Whether decoded data lists the sizes that one formula is to serve."""
    return isinstance(raw, dict) and "sizes" in raw


def is_template(raw: Any) -> bool:
    """Whether decoded data has parameters."""
    return isinstance(raw, dict) and ("params" in raw or "sizes" in raw)


def single(raw: Any) -> Any:
    """The data of the one problem that decoded data stands for.

    Raises:
        ProblemFileError: it stands for none, or for several.
    """
    if not is_template(raw):
        return raw
    found = list(itertools.islice(expand(raw), 2))
    if len(found) > 1:
        raise ProblemFileError(
            "params",
            "one problem is expected here, and the values combine to several; "
            "`solve`, `check`, `compare` and `sweep` take several",
        )
    return found[0].data


def substituted(data: Any, values: Values) -> Any:
    """Problem data with values in place of parameters.

    Raises:
        ProblemFileError: a text cannot be evaluated with them; `field` is its path.
    """
    return _walk(data, "", "", _Substitution(values))


def value_of(text: str) -> Value:
    """A value as the command line spells it: an integer, else a word."""
    try:
        return int(text)
    except ValueError:
        return text


def _params(raw: Any) -> dict[str, tuple[Value, ...]]:
    if not isinstance(raw, dict):
        raise ProblemFileError("params", 'expected an object such as {"M": [64, 128]}')
    found = {}
    for name, values in raw.items():
        field = f"params.{shown(name)}"
        found[_parameter(name, field)] = _values(values if isinstance(values, list) else [values], field)
    return found


def _values(given: Iterable[Any], field: str) -> tuple[Value, ...]:
    # Integers of NumPy are integers, too.
    listed = tuple(
        int(v) if isinstance(v, numbers.Integral) and not isinstance(v, bool) else v for v in given
    )
    if not 1 <= len(listed) <= MAX_VALUES:
        raise ProblemFileError(field, f"expected 1 to {MAX_VALUES:,} values, got {len(listed)}")
    for value in listed:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ProblemFileError(field, f"expected integers or words, got {shown(repr(value))}")
        if isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise ProblemFileError(field, f"expected integers of 64 bits, got {shown(str(value))}")
    return listed


def _parameter(name: str, field: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ProblemFileError(field, "expected the name of a parameter: letters, digits and _")
    if name in _RESERVED or re.fullmatch(r"x\d+", name):
        raise ProblemFileError(field, f"{name!r} means something else in expressions; choose another name")
    return name


def _check_used(params: Mapping[str, Sequence[Value]], data: Any, condition: str | None) -> None:
    """Check that every parameter is one, and that none is a variable of an access, too."""
    seen = _Names(frozenset(params))
    _walk(data, "", "", seen)
    if condition is not None:
        seen.used.update(_NAME.findall(condition))
    for name in params:
        if name in seen.variables:
            raise ProblemFileError(
                f"params.{name}", f"{name!r} is a variable of {seen.variables[name]}, too; rename one of them"
            )
        if name not in seen.used:
            raise ProblemFileError(f"params.{name}", "no field of the problem uses it")


def _instances(
    params: Mapping[str, Sequence[Value]],
    combinations: Iterable[Sequence[Value]],
    data: dict[str, Any],
    condition: str | None,
) -> Iterator[Instance]:
    none = True
    for values in _left(params, combinations, condition):
        none = False
        one = substituted(data, values)
        name = data.get("name")
        if isinstance(name, str):  # no two instances are called the same
            said = set(_BRACED.findall(name))
            unsaid = [p for p in params if len(params[p]) > 1 and p not in said]
            one["name"] = " ".join([one["name"], *(f"{p}={values[p]}" for p in unsaid)])
        yield Instance(dict(values), one)
    if none:
        raise ProblemFileError("where", "leaves none of the combinations of the parameters")


def _left(
    params: Mapping[str, Sequence[Value]], combinations: Iterable[Sequence[Value]], condition: str | None
) -> Iterator[Values]:
    """The values of the combinations for which `condition` holds, in their order."""
    rest = iter(combinations)
    while some := [dict(zip(params, chosen, strict=True)) for chosen in itertools.islice(rest, _TOGETHER)]:
        if condition is None:
            yield from some
            continue
        held: Iterable[bool]
        try:
            held = _together(condition, some)
        except ExpressionError:  # told where that combination is reached
            held = (_holds(condition, values) for values in some)
        yield from (values for values, holds in zip(some, held, strict=True) if holds)


def _walk(data: Any, key: str, place: str, text: Callable[[str, str, str], Any]) -> Any:
    """`data` with `text(value, key, place)` in place of every text that is no key."""
    if isinstance(data, str):
        return text(data, key, place)
    if isinstance(data, list):
        return [_walk(item, key, f"{place}[{k}]", text) for k, item in enumerate(data)]
    if isinstance(data, dict):
        if isinstance(text, _Names) and key in ("for", "any"):
            text.variables = dict.fromkeys(data, place) | text.variables
        inner = key if key in _TABLES else ""
        return {
            name: _walk(item, inner or name, f"{place}.{name}".lstrip("."), text)
            for name, item in data.items()
        }
    return data


class _Names:
    """Collects the parameters that texts use."""

    def __init__(self, params: frozenset[str]) -> None:
        self.params = params
        self.used: set[str] = set()
        self.variables: dict[str, str] = {}

    def __call__(self, value: str, key: str, place: str) -> str:
        if key in _TEXTS:
            self.used.update(_BRACED.findall(value))
        else:
            self.used.update(_NAME.findall(value))
        return value


class _Substitution:
    """Puts values into texts."""

    def __init__(self, values: Values) -> None:
        self.values = values
        names = "|".join(map(re.escape, values)) or "(?!)"
        self.names = re.compile(rf"(?<![A-Za-z0-9_.])(?:{names})(?![A-Za-z0-9_])")

    def __call__(self, value: str, key: str, place: str) -> Any:
        if key in _EXPRESSIONS:
            return self.names.sub(lambda match: _operand(self.values[match[0]]), value)
        if key not in _TEXTS and value in self.values:
            return self.values[value]
        if key in _NUMBERS and value not in _ORDERS:
            return _integer(value, self.values, place)
        return _BRACED.sub(lambda match: str(self.values.get(match[1], match[0])), value)


def _operand(value: Value) -> str:
    return str(value) if isinstance(value, int) and value >= 0 else f"({value})"


def _integer(text: str, values: Values, place: str) -> int:
    """An integer expression over the parameters that are integers."""
    integers = {name: value for name, value in values.items() if isinstance(value, int)}
    try:
        node = parse(text, frozenset(integers))
        return int(evaluate(node, {name: _array(value) for name, value in integers.items()}))
    except ExpressionError as error:
        raise ExpressionError(error.reason, None, place) from None


def _array(value: int) -> Any:
    return np.array(value, np.int64)


def _together(condition: str, every: Sequence[Values]) -> list[bool]:
    """Whether the condition holds for each of some combinations."""
    held = np.zeros(len(every), bool)
    # The same words make the same expression over the parameters that are integers.
    same: dict[tuple[tuple[str, Value], ...], list[int]] = {}
    for k, values in enumerate(every):
        same.setdefault(tuple((n, v) for n, v in values.items() if isinstance(v, str)), []).append(k)
    for words, places in same.items():
        integers = [name for name, value in every[places[0]].items() if isinstance(value, int)]
        node = parse(_without_words(condition, dict(words)), frozenset(integers))
        columns = {n: np.array([every[k][n] for k in places], np.int64) for n in integers}
        held[places] = evaluate(node, columns) != 0
    return held.tolist()


def _holds(condition: str, values: Values) -> bool:
    return bool(_integer(_without_words(condition, values), values, "where"))


def _without_words(condition: str, values: Values) -> str:
    """The condition with what the grammar lacks decided: `op == "load"`, `M in (64, 128)`."""
    if len(condition) > MAX_CHARACTERS:
        return condition
    try:
        tree = ast.parse(condition.strip(), mode="eval")
        return ast.unparse(_Words(values).visit(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return condition  # the parser says what is wrong


class _Words(ast.NodeTransformer):
    def __init__(self, values: Values) -> None:
        self.values = values

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) == 1:
            left, op, right = self._word(node.left), node.ops[0], node.comparators[0]
            if isinstance(op, ast.In | ast.NotIn) and isinstance(right, ast.Tuple | ast.List | ast.Set):
                words = [self._word(item) for item in right.elts]
                if left is not None and None not in words:
                    return ast.Constant(int((left in words) == isinstance(op, ast.In)))
                if left is None and isinstance(node.left, ast.Name) and None not in words:
                    # A parameter that is an integer equals no word.
                    equal = [
                        ast.Compare(node.left, [ast.Eq()], [ast.Constant(w)])
                        for w in words
                        if isinstance(w, int)
                    ]
                    among: ast.expr = ast.BoolOp(ast.Or(), [*equal, ast.Constant(0), ast.Constant(0)])
                    return among if isinstance(op, ast.In) else ast.UnaryOp(ast.Not(), among)
            other = self._word(right)
            if left is not None and other is not None and isinstance(op, ast.Eq | ast.NotEq):
                return ast.Constant(int((left == other) == isinstance(op, ast.Eq)))
        self.generic_visit(node)
        return node

    def _word(self, node: ast.expr) -> Value | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int):
            return node.value
        return self.values.get(node.id) if isinstance(node, ast.Name) else None
