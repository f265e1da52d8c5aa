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
are compared with words (`op == 'load'`). Everything after `expand` sees ordinary problem data.
"""

import itertools
import keyword
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from layoutopt.errors import ProblemFileError, under
from layoutopt.expressions.grammar import evaluate, parse
from layoutopt.ground import json_data
from layoutopt.ground.escape import described, shown

Value = int | str
Values = Mapping[str, Value]

MAX_COMBINATIONS: Final = 1 << 20
_TOGETHER: Final = 1 << 12  # combinations for which `where` is evaluated at once
_LARGEST: Final = (1 << 63) - 1
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
RESERVED: Final = frozenset(("tid", "lane", "warp", "min", "max"))  # names with a meaning in expressions
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMPARED: Final = re.compile(r"\b([A-Za-z_][A-Za-z0-9_]*)\s*(==|!=)\s*([\"'])(.*?)\3")
_BRACED: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

_Integer = Annotated[int, Meta(ge=-_LARGEST, le=_LARGEST)]
_List = Annotated[list[_Integer | str], Meta(min_length=1, max_length=10_000)]


class Template(Struct):
    """One problem for each combination of the values of its parameters."""

    params: Annotated[
        dict[str, _Integer | str | _List] | UnsetType,
        Meta(description="Parameters and their values, which shapes, loops, indices and ops may use"),
    ] = UNSET
    where: Annotated[
        str | UnsetType,
        Meta(description="Combinations for which this expression over the parameters is 0 are left out"),
    ] = UNSET


class Instance(Struct, frozen=True):
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
    if not is_template(raw) and not (over and isinstance(raw, dict)):
        return iter((Instance({}, raw),))
    own = {name: raw[name] for name in ("params", "where") if name in raw}
    lists = own.get("params")
    params = {
        name: _values(name, values if isinstance(values, list) else [values], "params.")
        for name, values in (lists if isinstance(lists, dict) else {}).items()
    }
    condition = json_data.convert(own, Template).where or None
    data = {key: value for key, value in raw.items() if key not in own}
    params |= {name: _values(name, values, "--over.") for name, values in (over or {}).items()}
    count = math.prod(map(len, params.values()))
    if count > MAX_COMBINATIONS:
        most = f"expected at most {MAX_COMBINATIONS:,} combinations, got {count:,}"
        raise ProblemFileError("params", most)
    _check_used(params, data, condition)
    every = (dict(zip(params, chosen, strict=True)) for chosen in itertools.product(*params.values()))
    return _instances(params, _satisfying(condition, params, every) if condition else every, data)


def is_template(raw: Any) -> bool:
    """Whether decoded data has parameters."""
    return isinstance(raw, dict) and "params" in raw


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


def value_of(text: str) -> Value:
    """A value as the command line spells it: an integer, else a word."""
    try:
        return int(text)
    except ValueError:
        return text


def _values(name: str, given: Iterable[Any], place: str) -> list[Value]:
    """The values of a parameter, whose name is checked, too; their integers may be NumPy's."""
    field = f"{place}{shown(str(name))}"
    if not isinstance(name, str) or not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise ProblemFileError(field, "expected the name of a parameter: letters, digits and _")
    if name in RESERVED or re.fullmatch(r"x\d+", name):
        raise ProblemFileError(field, f"{name!r} means something else in expressions; choose another name")
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ProblemFileError(field, f"expected a list of values, got {described(given)}")
    plain = [value.item() if isinstance(value, np.generic) else value for value in given]
    return json_data.convert(plain, _List, field)


def _check_used(params: Iterable[str], data: dict[str, Any], condition: str | None) -> None:
    """Check that every parameter is used, and that none is a variable of an access, too."""
    used = set(_NAME.findall(condition or ""))
    _with_texts(data, lambda text, key, _: used.update((_BRACED if key in _TEXTS else _NAME).findall(text)))
    accesses = data.get("accesses")
    for name in params:
        for k, access in enumerate(accesses if isinstance(accesses, list) else ()):
            for table in ("for", "any"):
                variables = access.get(table) if isinstance(access, dict) else None
                if isinstance(variables, dict) and name in variables:
                    twice = f"{name!r} is a variable of accesses[{k}].{table}, too; rename one of them"
                    raise ProblemFileError(f"params.{name}", twice)
        if name not in used:
            raise ProblemFileError(f"params.{name}", "no field of the problem uses it")


def _instances(
    params: Mapping[str, Sequence[Value]], combinations: Iterable[Values], data: dict[str, Any]
) -> Iterator[Instance]:
    """The problem of each combination; parameters that its name does not say are added to it.

    Raises:
        ProblemFileError: there is no combination.
    """
    name, is_empty = data.get("name"), True
    for values in combinations:
        is_empty = False
        instance = substituted(data, values)
        if isinstance(name, str):  # no two instances are called the same
            named = set(_BRACED.findall(name))
            unnamed = [p for p in params if len(params[p]) > 1 and p not in named]
            instance["name"] = " ".join([instance["name"], *(f"{p}={values[p]}" for p in unnamed)])
        yield Instance(dict(values), instance)
    if is_empty:
        raise ProblemFileError("where", "leaves none of the combinations of the parameters")


def _with_texts(data: Any, text: Callable[[str, str, str], Any], key: str = "", place: str = "") -> Any:
    """`data` with `text(value, key, place)` in place of every text that is no key.

    `key` is that of the nearest object around the text, but for tables of numbers (`for`) their own;
    `place` is its path, such as `accesses[0].for.i`.
    """
    if isinstance(data, str):
        return text(data, key, place)
    if isinstance(data, list):
        return [_with_texts(item, text, key, f"{place}[{k}]") for k, item in enumerate(data)]
    if isinstance(data, dict):
        inner = key if key in _TABLES else ""
        return {
            name: _with_texts(item, text, inner or name, f"{place}.{name}".lstrip("."))
            for name, item in data.items()
        }
    return data


def substituted(data: Any, values: Values) -> Any:
    """Problem data with values in place of parameters.

    Raises:
        ProblemFileError: a text cannot be evaluated with them; `field` is its path.
    """
    listed = "|".join(map(re.escape, values)) or "(?!)"
    names = re.compile(rf"(?<![A-Za-z0-9_.])(?:{listed})(?![A-Za-z0-9_])")
    integers = {name: np.array(v, np.int64) for name, v in values.items() if isinstance(v, int)}

    def operand(match: re.Match[str]) -> str:
        value = values[match[0]]
        return str(value) if isinstance(value, int) and value >= 0 else f"({value})"

    def text(given: str, key: str, place: str) -> Any:
        if key in _EXPRESSIONS:
            return names.sub(operand, given)
        if key not in _TEXTS and given in values:
            return values[given]
        if key in _NUMBERS and given not in _ORDERS:
            with under(place):
                return int(evaluate(parse(given, frozenset(integers)), integers))
        return _BRACED.sub(lambda match: str(values.get(match[1], match[0])), given)

    return _with_texts(data, text)


def _satisfying(
    condition: str, params: Mapping[str, Sequence[Value]], every: Iterable[Values]
) -> Iterator[Values]:
    """The combinations for which `condition` holds, in their order.

    The grammar knows integers only. A comparison with a word is one of numbers that stand for words:
    `op == 'load'` becomes `word_of_op == 0`, with `word_of_op` a variable beside `op`.
    """
    numbers: dict[Value, int] = {}

    def number(value: Value) -> int:
        return numbers.setdefault(value, len(numbers))

    def numbered(match: re.Match[str]) -> str:
        return f"word_of_{match[1]} {match[2]} {number(match[4])}"

    with under("where"):
        # The parameter of each variable.
        variables = {name: name for name, values in params.items() if all(isinstance(v, int) for v in values)}
        variables |= {f"word_of_{name}": name for name in params}
        node = parse(_COMPARED.sub(numbered, condition), frozenset(variables))
        while batch := list(itertools.islice(every, _TOGETHER)):
            columns = {}
            for variable, name in variables.items():
                values = (v[name] if variable == name else number(v[name]) for v in batch)
                columns[variable] = np.array(list(values), np.int64)
            holds = np.broadcast_to(evaluate(node, columns) != 0, len(batch))
            yield from itertools.compress(batch, holds)
