"""A model and its solution in words that can be read beside the formulas.

bool_or        a or not b                  at_most_one    at most one of a, b
exactly_one    exactly one of a, b         bool_xor       c = a xor b
linear         a + 2 b in 1..3             with enforcement literals   x and y => ...
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from layoutopt.model.cp_sat import Answer, Model

_LIST = re.compile(r"(\w+):\[([-\d,]*)\]")
_FAR = 1 << 39  # a bound beyond it binds nothing


def readable(model: Model, answer: Answer) -> dict[str, list[str]]:
    """Variables with their ranges, constraints, the objective, and the variables that are not 0."""
    names = [model.names.get(v, f"v{v}") for v in range(model.size[0])]
    switches = [n for n, domain in zip(names, model.domains, strict=True) if domain == (0, 1)]
    numbers = [
        f"{n} in {low}..{high}"
        for n, (low, high) in zip(names, model.domains, strict=True)
        if (low, high) != (0, 1)
    ]
    values = zip(names, answer.values, strict=False)
    found = [name if value == 1 else f"{name} = {value}" for name, value in values if value]
    return {
        "integers": numbers,
        "0 or 1": switches,
        "constraints": [_constraint(text, names) for text in model.constraints],
        "minimise": [_sum(model.objective, names)],
        "solution, and 0 for all others": found,
    }


def _constraint(text: str, names: Sequence[str]) -> str:
    lists = {key: [int(n) for n in numbers.split(",") if n] for key, numbers in _LIST.findall(text)}
    literals = [_literal(literal, names) for literal in lists.get("literals", ())]
    if "bool_or" in text:
        return " or ".join(literals)
    if "exactly_one" in text:
        return "exactly one of " + ", ".join(literals)
    if "at_most_one" in text:
        return "at most one of " + ", ".join(literals)
    if "bool_xor" in text:
        *others, (last) = literals
        return f"{last.removeprefix('not ')} = " + " xor ".join(others)
    said = _sum(list(zip(lists["vars"], lists["coeffs"], strict=True)), names) + _domain(lists["domain"])
    given = " and ".join(_literal(literal, names) for literal in lists.get("enforcement_literal", ()))
    return f"{given} => {said}" if given else said


def _literal(literal: int, names: Sequence[str]) -> str:
    return names[literal] if literal >= 0 else "not " + names[-literal - 1]


def _sum(terms: Sequence[tuple[int, int]], names: Sequence[str]) -> str:
    text = ""
    for variable, coefficient in terms:
        sign = " - " if coefficient < 0 else " + "
        times = "" if abs(coefficient) == 1 else f"{abs(coefficient)} "
        text += (sign if text else sign.strip(" +")) + times + names[variable]
    return text or "0"


def _domain(domain: Sequence[int]) -> str:
    if len(domain) > 2:
        parts = [(low, high) for low, high in zip(domain[::2], domain[1::2], strict=True) if low <= high]
        return " in " + ", ".join(f"{low}.." + (f"{high}" if high < _FAR else "") for low, high in parts)
    low, high = domain
    if low == high:
        return f" = {low}"
    if high >= _FAR:
        return f" >= {low}"
    return f" <= {high}" if low <= -_FAR else f" in {low}..{high}"
